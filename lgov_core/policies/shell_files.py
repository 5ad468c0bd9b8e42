"""Judges of the commands that work on files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import NO_INPUT, Call, Judge, is_option, wild
from lgov_core.policies.shell_places import Refused, made_again
from lgov_core.policies.shell_words import UNKNOWN

#: Commands that only read, whatever they are given; files with secrets are refused by name.
READERS = names(
    """
    ls dir cat head tail wc cut tr nl tac rev paste join comm diff diff3 sdiff cmp fold fmt column expand
    unexpand od hexdump strings file stat du df realpath readlink basename dirname pwd true false test [ : cal
    uptime uname whoami id groups arch nproc free lscpu lsblk lsof ps pgrep pidof top htop vmstat iostat which
    type whereis ack bc expr factor seq md5sum
    sha1sum sha224sum sha256sum sha384sum sha512sum cksum b2sum sum shasum md5 base64 base32 iconv numfmt
    sleep wait jobs fg bg exit return break continue shift umask ulimit times dirs popd getopts tput clear
    reset locale localectl tty who w last users zcat bzcat xzcat zless zdiff cloc tokei scc exa eza lsd mktemp
    pstree printenv nm objdump readelf size tsort yes look shuf dos2unix wdiff colordiff delta glow mdcat
    pdftotext xmllint hash getconf ss netstat dmesg let disown logname hostid cd pushd read
    mapfile readarray local ptx lsmod lspci lsusb hexyl sar mpstat pidstat findmnt blkid lvs vgs pvs vgdisplay
    lvdisplay pvdisplay sw_vers lsns getfacl getfattr lsattr numastat ncal rpm2cpio zipinfo zgrep jless difft
    xsv csvlook csvstat
    """
)
_COPY_VALUES = "-t --target-directory -S --suffix -m --mode -o --owner -g --group"
_FIND_VALUES = frozenset({"-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex"})


def _reader(call: Call) -> None:
    call.reads(call.args)


def _pager(call: Call) -> None:
    """Pagers and the manual: no commands for them to run."""
    risky = (
        "-P",
        "--pager",
        "-H",
        "--html",
        "-k",
        "-o",
        "-O",
        "--log-file",
        "-C",
        "--config-file",
        "-K",
        "--lesskey-file",
    )
    if call.parsed().has(*risky) or any(word.startswith("+") for word in call.args):
        call.refuse("options that run programs or write files are not allowed.")
    call.reads(call.args)


def _history(call: Call) -> None:
    if any(not re.fullmatch(r"\d+", word) for word in call.args):
        call.refuse("the history stays as it is.")


def _tree(call: Call) -> None:
    given = call.parsed("-L -I -P -o -H -T --charset --filelimit --sort")
    for word in given.of("-o"):
        call.places.write(word)
    call.reads(given.operands)


def _echo(call: Call) -> None:
    if call.name == "printf" and any(word.startswith("-v") for word in call.args[:1]):
        return
    for word in call.args:
        if re.fullmatch(r"/dev/(tcp|udp)/.*", word):
            call.refuse("a network connection through /dev/tcp is not allowed.", "shell-network")


def _jq(call: Call) -> None:
    if any(re.search(r"\$ENV|(?<![.\w\"-])env(?![\w\":-])", word) for word in call.args):
        call.refuse("the environment is not read this way.", "shell-secret")
    call.reads(call.args)


def _rm(call: Call) -> None:
    given = call.parsed()
    if given.has("--no-preserve-root"):
        call.refuse("the root folder stays.")
    recursive = given.has("-r", "-R", "--recursive")
    if recursive and not given.operands:
        call.refuse("name what is removed.", "shell-unclear")
    for word in given.operands:
        call.places.delete(word, recursive=recursive)


def _rmdir(call: Call) -> None:
    for word in call.parsed().operands:
        call.places.write(word)


def _writes_operands(call: Call) -> None:
    for word in call.parsed("-m --mode -d -t -r --date --reference -s --size").operands:
        call.places.write(word)


def _touch(call: Call) -> None:
    given = call.parsed("-d -t -r --date --reference -m --mode")
    for word in given.operands:
        call.places.write(word, may_be_secret=True)


def _copy(call: Call) -> None:
    given = call.parsed(_COPY_VALUES)
    folders = given.of("-t", "--target-directory")
    sources = given.operands if folders else given.operands[:-1]
    targets = folders or list(given.operands[-1:])
    if len(given.operands) + len(folders) < 2:
        return
    if call.name == "install" and given.has("-o", "--owner", "-g", "--group"):
        call.refuse("changing owners is not allowed.")
    for mode in given.of("-m", "--mode") if call.name == "install" else []:
        _check_mode(call, mode)
    if given.has("-r", "-R", "-a", "--recursive", "--archive"):
        _reads_trees(call, sources)
    for word in sources:
        call.places.read(word)
        if call.name == "mv":
            if word in (".", "..", "/", "*") or not re.sub(r"[\W_]", "", word.replace("\ue001", "")):
                call.refuse("name what is moved.", "shell-unclear")
            call.places.move(word)
        elif word == "/dev/null":
            call.refuse("emptying files this way is not allowed.")
    for word in targets:
        if call.name == "mv" and word.startswith("/dev/"):
            call.refuse("moving files into a device destroys them.")
        call.places.write(word, may_be_secret=call.name == "cp")


def _link(call: Call) -> None:
    given = call.parsed(_COPY_VALUES)
    for word in given.operands:
        call.places.read(word)
        if word.startswith("/") or ".." in word.split("/") or len(given.operands) == 1:
            call.places.write(word)
    for word in given.operands[-1:]:
        call.places.write(word)


def _tee(call: Call) -> None:
    for word in call.parsed().operands:
        call.places.write(word)


def _sort(call: Call) -> None:
    given = call.parsed("-o --output -k -t -S -T --compress-program --key")
    if given.has("--compress-program"):
        call.refuse("running a program while sorting is not allowed.")
    for word in given.of("-o", "--output"):
        call.places.write(word)
    call.reads(given.operands)


def _uniq(call: Call) -> None:
    given = call.parsed("-f -s -w")
    call.reads(given.operands[:1])
    for word in given.operands[1:]:
        call.places.write(word)


def _check_mode(call: Call, mode: str) -> None:
    if (
        re.fullmatch(r"0*[1-7][0-7]{3}|[0-7]?[0-7][0-7][2367]", mode)
        or "s" in mode
        or re.search(r"[oa][^,]*[+=][^,]*w", mode)
    ):
        call.refuse(f"the mode {mode} lets others write or run as the owner.")


def _chmod(call: Call) -> None:
    given = call.parsed()
    modes = [word for word in call.args if re.fullmatch(r"[-+=]?[ugoarwxXst,+=-]+|[0-7]{1,5}", word)]
    if given.has("-R", "--recursive", "--reference"):
        call.refuse("changing the rights of a whole tree is not allowed; name single files.")
    for mode in modes:
        _check_mode(call, mode)
    for word in given.operands:
        if word not in modes:
            call.places.write(word)


def _dd(call: Call) -> None:
    for word in call.args:
        key, _, value = word.partition("=")
        if key == "of":
            if value.startswith("/dev/") and value != "/dev/null":
                call.refuse("writing to a device destroys what is on it.")
            call.places.write(value)
        elif key == "if":
            call.places.read(value)
        elif wild(word):
            call.refuse("write its operands out.", "shell-unclear")
    if not any(word.startswith("count=") for word in call.args):
        call.refuse("without count= it may fill the disk.")


def _split(call: Call) -> None:
    given = call.parsed("-b -l -n -a -C --filter --additional-suffix --lines --bytes")
    if given.has("--filter"):
        call.refuse("running a program on each part is not allowed.")
    call.reads(given.operands[:1])
    for word in given.operands[1:]:
        call.places.write(word)


def _sed(call: Call) -> None:
    given = call.parsed("-e --expression -f --file -l --line-length")
    if given.has("-f", "--file"):
        call.refuse("give the program on the command line.")
    programs = given.of("-e", "--expression")
    files = given.operands
    if not programs:
        programs, files = list(files[:1]), files[1:]
    for program in programs:
        check_sed(call, call.literal(program, "the program"))
    in_place = given.has("--in-place") or any(re.fullmatch(r"-[nErsuz]*i.*", option) for option in given.options)
    for word in files:
        call.places.read(word)
        if in_place:
            call.places.write(word)


def check_sed(call: Call, program: str) -> None:
    """Refuses the commands of sed that run programs or touch other files (``e``, ``w``, ``r`` and the flags of ``s``)."""
    at = 0
    while at < len(program):
        match = re.compile(r"[\s;{}!,]+|\d+(?:~\d+)?|\$|\+\d+").match(program, at)
        if match is not None:
            at = match.end()
            continue
        letter = program[at]
        if letter in "/\\":
            delimiter = program[at + 1 : at + 2] if letter == "\\" else "/"
            at = _delimited(program, at + (2 if letter == "\\" else 1), delimiter)
            while program[at : at + 1] in ("I", "M") and at < len(program):
                at += 1
        elif letter in "sy" and at + 1 < len(program):
            end = _delimited(program, _delimited(program, at + 2, program[at + 1]), program[at + 1])
            flags = re.compile(r"[A-Za-z0-9]*").match(program, end)
            at = flags.end() if flags else end
            if flags and re.search("[ew]", flags.group()):
                call.refuse("sed may not run programs or write other files.")
        elif letter in "aic:btT#vlLqQ":
            end = re.compile(r"[^\n;}]*" if letter in "btTlLqQ" else r"(?:\\\n|[^\n])*").match(program, at + 1)
            at = end.end() if end else len(program)
        elif letter in "=dDgGhHnNpPxzF":
            at += 1
        else:
            call.refuse(f"the sed command {letter!r} is not allowed.")


def _delimited(text: str, at: int, delimiter: str) -> int:
    """The place after the next ``delimiter`` that no backslash and no bracket hides."""
    bracket = False
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == "[" and not bracket and delimiter != "[":
            closing = re.compile(r"\[\^?\]?[^\]\n]*\]").match(text, at)
            if closing is not None and delimiter not in closing.group():
                at = closing.end()
                continue
        if text[at] == delimiter:
            return at + 1
        at += 1
    raise Refused("shell-unclear", "sed: the program is not complete.")


def _awk(call: Call) -> None:
    given = call.parsed("-F -v -f --file --assign -i --include -e --source -l --load -E --exec")
    if given.has("-f", "--file", "-i", "--include", "-l", "--load", "-E", "--exec"):
        call.refuse("give the program on the command line.")
    programs = given.of("-e", "--source")
    files = given.operands
    if not programs:
        programs, files = list(files[:1]), files[1:]
    for program in programs:
        code = re.sub(r'"(?:\\.|[^"\\])*"', '""', call.literal(program, "the program"))
        code = re.sub(r"(?:(?<=[(,~!&|{;])|(?<=^))\s*/(?:\\.|[^/\\\n])*/", " ", code)
        if re.search(r"\bsystem\b|\bgetline\b|@|\bENVIRON\b|\bPROCINFO\b|(?<!\|)\|(?!\|)", code):
            call.refuse("awk may not run programs, read the environment or open further files.")
        if re.search(r"\bprintf?\b[^;}\n]*>", code):
            call.refuse("awk may not write files; send its output on with >.")
    call.reads(files)


def _find(call: Call) -> None:
    call.reads(call.args)
    args = list(call.args)
    starts: list[str] = []
    for word in args[1 if args[:1] in (["-H"], ["-P"]) else 0 :]:
        if is_option(word) or word in ("(", "!"):
            break
        starts.append(word)
    vague = any(word in ("-o", "-or", "!", "-not", ",", "-L", "-follow") for word in args)
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
                call.runner.run([item.replace("{}", UNKNOWN) for item in words], NO_INPUT)
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


def _within(call: Call, starts: list[str]) -> None:
    for start in starts or ["."]:
        call.places.write(start)


def _tar(call: Call) -> None:
    words = list(call.args)
    if words and not words[0].startswith("-") and words[0].isalpha():
        words[0] = "-" + words[0]
    given = Call(call.name, tuple(words), call.given, call.runner).parsed(
        "-f --file -C --directory -T --files-from -X --exclude-from -I --use-compress-program -F --info-script -b -H --exclude"
    )
    risky = ("--to-command", "--checkpoint-action", "--use-compress-program", "-I", "--rsh-command", "--rmt-command")
    if given.has(*risky, "-F", "--info-script", "--new-volume-script", "-P", "--absolute-names", "--remove-files"):
        call.refuse("options that run programs, write anywhere or remove files are not allowed.")
    archives, folders = given.of("-f", "--file"), given.of("-C", "--directory")
    if any(":" in archive for archive in archives):
        call.refuse("a remote archive is not allowed.", "shell-network")
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
    given = call.parsed("-x -i -b -t -tt -P -TT")
    if given.has("-TT", "--unzip-command", "-m", "--move"):
        call.refuse("options that run programs or remove files are not allowed.")
    for word in given.operands[:1]:
        call.places.write(word)
    call.reads(given.operands[1:])
    _reads_trees(call, given.operands[1:])


def _unzip(call: Call) -> None:
    given = call.parsed("-d -x -P")
    call.reads(given.operands)
    if not given.has("-l", "-t", "-p", "-v", "-Z"):
        for folder in given.of("-d") or ["."]:
            call.places.write(folder)


def _compress(call: Call) -> None:
    given = call.parsed("-S -T -o")
    if given.has("-r", "--recursive"):
        call.refuse("name single files.")
    reading = given.has("-c", "--stdout", "-l", "--list", "-t", "--test", "-dc")
    for word in (*given.operands, *given.of("-o")):
        call.places.read(word)
        if not reading:
            call.places.write(word)


def _grep(call: Call) -> None:
    given = call.parsed(
        "-e -f -m -A -B -C --include --exclude --exclude-dir --regexp --file --max-count --color --label"
    )
    call.reads(call.args)
    if given.has("-r", "-R", "--recursive", "--dereference-recursive", "-d", "--directories"):
        _reads_trees(call, given.operands)


def _reads_trees(call: Call, words: Iterable[str]) -> None:
    for word in words:
        call.places.read_tree(word)


def _ripgrep(call: Call) -> None:
    given = call.parsed("--pre -x -X --exec --exec-batch --hostname-bin")
    if given.has("--pre", "--hostname-bin") and call.name == "rg":
        call.refuse("running a program on each file is not allowed.")
    if call.name in ("fd", "fdfind"):
        for at, word in enumerate(call.args):
            if word in ("-x", "-X", "--exec", "--exec-batch"):
                call.runner.run([*(w.replace("{}", UNKNOWN) for w in call.args[at + 1 :]), UNKNOWN], NO_INPUT)
                return
    call.reads(call.args)
    if call.name not in ("fd", "fdfind"):
        _reads_trees(call, given.operands[1:])


def _in_place(call: Call) -> None:
    """Like yq:  the like: they read, and write with ``-i``."""
    given = call.parsed("-o --output")
    call.reads(call.args)
    if given.has("-i", "--inplace", "-w", "--write"):
        for word in given.operands[1:]:
            call.places.write(word)


def _outputs(call: Call) -> None:
    """Tools with an input and, as second operand, an output (xxd, pandoc with ``-o``)."""
    given = call.parsed("-o --output -c -l -s -f -t --from --to -g")
    if given.has("--filter", "--lua-filter", "-F", "-L", "--pdf-engine"):
        call.refuse("running a program on the document is not allowed.")
    call.reads(given.operands)
    for word in (*given.of("-o", "--output"), *(given.operands[1:] if call.name == "xxd" else ())):
        call.places.write(word)


def _date(call: Call) -> None:
    given = call.parsed("-d --date -r -f --file --reference -I")
    if given.has("-s", "--set") or any(not word.startswith("+") for word in given.operands):
        call.refuse("the clock stays as it is.")
    call.reads(call.args)


def _hostname(call: Call) -> None:
    if call.parsed().operands:
        call.refuse("the host's name stays as it is.")


def _patch(call: Call) -> None:
    given = call.parsed("-p -i --input -o --output -d --directory -B -D -F -g -r -V -Y -z")
    call.reads(given.of("-i", "--input"))
    for word in (*given.operands, *given.of("-o", "--output", "-d", "--directory")):
        call.places.write(word)


FILE_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(READERS, _reader),
    **dict.fromkeys(("echo", "printf"), _echo),
    **dict.fromkeys(("grep", "egrep", "fgrep", "zgrep"), _grep),
    **dict.fromkeys(("mkdir", "truncate", "mkfifo"), _writes_operands),
    **dict.fromkeys(("cp", "mv", "install"), _copy),
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd", "lz4"), _compress),
    **dict.fromkeys(("rg", "ag", "fd", "fdfind"), _ripgrep),
    **dict.fromkeys(("xxd", "pandoc"), _outputs),
    **dict.fromkeys(("man", "info", "apropos", "help", "less", "more", "bat", "batcat"), _pager),
    "history": _history,
    "jq": _jq,
    "tree": _tree,
    "touch": _touch,
    "rm": _rm,
    "unlink": _rm,
    "rmdir": _rmdir,
    "ln": _link,
    "tee": _tee,
    "sort": _sort,
    "uniq": _uniq,
    "chmod": _chmod,
    "dd": _dd,
    "split": _split,
    "sed": _sed,
    "gsed": _sed,
    "find": _find,
    "tar": _tar,
    "zip": _zip,
    "unzip": _unzip,
    "yq": _in_place,
    "date": _date,
    "hostname": _hostname,
    "patch": _patch,
}
