"""Judges of what goes through whole trees: searches, archives, and find with what it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lgov_core.policies.shell_call import NO_INPUT, Call, Judge, is_option, parse
from lgov_core.policies.shell_finds import WIDER, check_handed_on, looks_only
from lgov_core.policies.shell_listed import listed
from lgov_core.policies.shell_places import Refused, made_again
from lgov_core.policies.shell_words import UNKNOWN

_FIND_VALUES = frozenset({"-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex"})


def _find(call: Call) -> None:
    call.reads(call.args)
    args = list(call.args)
    starts: list[str] = []
    for word in args:
        if is_option(word) or word in ("(", "!"):
            break
        starts.append(word)
    # Behind an option the starting points are not seen; the others widen what is found.
    vague = args[:1] != starts[:1] or any(word in WIDER for word in args)
    patterns: list[str] = []
    at = 0
    while at < len(args):
        word = args[at]
        remade = bool(patterns) and not vague and all(made_again(pattern) for pattern in patterns)
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((i for i in range(at + 1, len(args)) if args[i] in (";", "+")), len(args))
            words = args[at + 1 : end]
            if remade and re.fullmatch(r"rm(?: -[rRfvd]+)* \{\}", " ".join(words)):
                _within(call, starts)
            else:
                _run_on_each(call, word, words, listed([["find", *args[:at]]]))
            at = end
        elif word == "-delete":
            if not remade:
                call.refuse("-delete needs -name ahead with a pattern of files that are made again, such as '*.pyc'.")
            _within(call, starts)
        elif word in ("-fprint", "-fprintf", "-fls", "-fprint0"):
            call.places.write("".join(args[at + 1 : at + 2]))
        elif word == "-perm" and re.search(r"[4267]000|[ug]?[+=]?s\b", "".join(args[at + 1 : at + 2])):
            call.refuse("looking for files that run as their owner is not allowed.")
        elif word in _FIND_VALUES:
            if word in ("-name", "-iname"):
                patterns.append("".join(args[at + 1 : at + 2]))
            at += 1
        at += 1


def _run_on_each(call: Call, option: str, words: list[str], found: Sequence[str]) -> None:
    """Judges a command for any file, or, where it is unclear only which one it is, for those that ``found`` stands for."""
    if option in ("-execdir", "-okdir") and any("/" in item.strip("{}") for item in words):
        call.refuse(f"{option} runs in other folders; name programs and files for -exec.", "shell-unclear")
    if not looks_only(words):
        check_handed_on(call.places, [call.name, *call.args])
    try:
        call.runner.run([item.replace("{}", UNKNOWN) for item in words], NO_INPUT)
    except Refused as refused:
        if refused.rule != "shell-unclear" or not found or words[0] in ("sh", "bash", "truncate", "tee", "dd"):
            raise
        for name in found:
            call.runner.run([item.replace("{}", name) for item in words], NO_INPUT)


def _within(call: Call, starts: list[str]) -> None:
    for start in starts or ["."]:
        call.places.write(start)


_TAR_VALUES = (
    "-f --file -C --directory -T --files-from -X --exclude-from -I --use-compress-program -F --info-script -b -H --exclude"
    " -g --listed-incremental -K -L -N -V --label --one-top-level --index-file --volno-file --transform --xform --owner --group"
)


def _tar_words(args: Sequence[str]) -> list[str]:
    """The words, where letters without a dash (``cfz``) take theirs from behind, as options of their own."""
    words = list(args)
    if not words or words[0].startswith("-") or not words[0].isalpha():
        return words
    made: list[str] = []
    letters, rest = words[0], words[1:]
    for letter in letters:
        made.append(f"-{letter}")
        if f"-{letter}" in _TAR_VALUES.split() and rest:
            made.append(rest.pop(0))
    return [*made, *rest]


def _tar(call: Call) -> None:
    given = parse(_tar_words(call.args), _TAR_VALUES)
    risky = ("--to-command", "--checkpoint-action", "--use-compress-program", "-I", "--rsh-command", "--rmt-command")
    if given.has(*risky, "-F", "--info-script", "--new-volume-script", "-P", "--absolute-names", "--remove-files"):
        call.refuse("options that run programs, write anywhere or remove files are not allowed.")
    archives, folders = given.of("-f", "--file"), given.of("-C", "--directory")
    if any(":" in archive for archive in archives):
        call.refuse("a remote archive is not allowed.", "shell-network")
    call.reads(given.of("-T", "--files-from", "-X", "--exclude-from"))
    for word in given.of("--one-top-level", "-g", "--listed-incremental", "--index-file", "--volno-file"):
        call.places.write(word)
    if given.has("-x", "--extract", "--get"):
        call.reads(archives)
        for folder in folders or ["."]:
            call.places.write(folder)
    elif given.has("-t", "--list", "-d", "--diff", "--compare"):
        call.reads(archives)
    else:
        for archive in archives:
            call.places.write(archive)
        call.reads([*given.operands, *folders])
        _reads_trees(call, [*given.operands, *folders])


def _zip(call: Call) -> None:
    given = call.parsed("-x -i -b -t -tt -P -TT -O --out --output-file -lf --logfile-path --temp-path")
    for word in given.of("-O", "--out", "--output-file", "-lf", "--logfile-path", "-b", "--temp-path"):
        call.places.write(word)
    if given.has("-TT", "--unzip-command", "-m", "--move"):
        call.refuse("options that run programs or remove files are not allowed.")
    for word in given.operands[:1]:
        call.places.write(word)
    call.reads(given.operands[1:])
    _reads_trees(call, given.operands[1:])


def _unzip(call: Call) -> None:
    given = call.parsed("-d -x -P")
    call.reads(given.operands)
    if given.has("-:"):
        call.refuse("files stay below the folder they are taken out to.", "shell-write")
    if not given.has("-l", "-t", "-p", "-v", "-Z"):
        for folder in given.of("-d") or ["."]:
            call.places.write(folder)


def _seven_zip(call: Call) -> None:
    verb, rest = "".join(call.args[:1]), call.args[1:]
    known = re.compile(r"-(?:y|bd|bso0|mx=?\d|ao[asu]|o.+|t(?:zip|7z|tar|gzip))")
    if any(is_option(word) and known.fullmatch(word) is None for word in rest):
        call.refuse("of its options -y, -bd, -mx, -ao, -o and -t are known here.", "shell-unclear")
    files = [word for word in rest if not is_option(word)]
    call.reads(files)
    if verb in ("x", "e"):
        for folder in [word[2:] for word in rest if word.startswith("-o")] or ["."]:
            call.places.write(folder)
    elif verb in ("a", "u"):
        for word in files[:1]:
            call.places.write(word)
        for word in files[1:]:
            call.places.read_tree(word)
    elif verb not in ("l", "t", "h", "i"):
        call.refuse(f"{verb[:20]!r} is not known here.", "shell-unclear")


def _compress(call: Call) -> None:
    given = call.parsed("-S -T -o -D --output-dir-flat --output-dir-mirror")
    if given.has("-r", "--recursive"):
        call.refuse("name single files.")
    listing = given.has("-l") and call.name != "lz4"  # which means another format there
    reading = listing or given.has("-c", "--stdout", "--list", "-t", "--test")
    for word in given.of("-o", "--output-dir-flat", "--output-dir-mirror"):
        call.places.write(word)
    for word in given.operands:
        call.places.read(word)
        if not reading:
            call.places.write(word)


#: Options of grep that take the next word (--color takes none).
_GREP_VALUES = (
    "-e -f -m -A -B -C -D -d --include --exclude --exclude-dir --exclude-from --regexp --file --max-count --label"
    " --after-context --before-context --context --binary-files --devices --directories --group-separator"
)


def _grep(call: Call) -> None:
    given = call.parsed(_GREP_VALUES)
    operands = given.operands
    pattern = () if given.has("-e", "-f", "--regexp", "--file") else operands[:1]  # which names no file
    call.reads(word for word in call.args if word not in pattern or word in operands[1:])
    if given.has("-r", "-R", "--recursive", "--dereference-recursive", "-d", "--directories"):
        _reads_trees(call, operands[len(pattern) :])


def _reads_trees(call: Call, words: Iterable[str]) -> None:
    for word in words:
        call.places.read_tree(word)


def _ripgrep(call: Call) -> None:
    given = call.parsed("-e --regexp -f --file")
    if given.has("--pre", "--hostname-bin", "--pager"):
        call.refuse("running a program on files or on what is found is not allowed.")
    call.reads(call.args)
    named = given.has("-e", "--regexp", "-f", "--file", "--files")
    _reads_trees(call, given.operands if named else given.operands[1:])


def _fd(call: Call) -> None:
    call.reads(call.args)
    for at, word in enumerate(call.args):
        match = re.fullmatch(r"-[A-Za-z0-9]*[xX]=?(.*)|--exec(?:-batch)?(?:=(.*))?", word, re.DOTALL)
        if match is None or re.match(r"-[EtdSec]", word):  # these take what stands behind them
            continue
        words = [*filter(None, match.groups()), *call.args[at + 1 :]]
        if not looks_only(words):
            check_handed_on(call.places, [call.name, *call.args[:at]])
        return call.runner.run([*(item.replace("{}", UNKNOWN) for item in words), UNKNOWN], NO_INPUT)
    return None


TREE_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep"), _grep),
    **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd", "lz4"), _compress),
    **dict.fromkeys(("rg", "ag", "ack"), _ripgrep),
    **dict.fromkeys(("fd", "fdfind"), _fd),
    "find": _find,
    "tar": _tar,
    "zip": _zip,
    "unzip": _unzip,
    **dict.fromkeys(("7z", "7za", "7zr", "7zz"), _seven_zip),
}
