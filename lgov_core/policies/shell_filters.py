"""Judges of what reads text and makes other text of it, some by programs of their own: sed, jq, sort and the like."""

from __future__ import annotations

import re

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, Judge
from lgov_core.policies.shell_places import Refused

#: Options of jq with a value, and those with a name and a value.
_JQ_ONE = frozenset(names("-L --indent"))
_JQ_TWO = frozenset(names("--arg --argjson --slurpfile --rawfile --argfile"))


def _jq(call: Call) -> None:
    if any(re.search(r"\$ENV|(?<![.\w\"-])env(?![\w\":-])", word) for word in call.args):
        call.refuse("the environment is not read this way.", "shell-secret")
    args, at = list(call.args), 0
    while at < len(args) and args[at].startswith("-"):
        at += 2 if args[at] in _JQ_ONE else 3 if args[at] in _JQ_TWO else 1
    from_file = any(re.match(r"-[A-Za-z]*f|--from", word) for word in args)
    if at < len(args) and not from_file and not re.search(r"\b(?:import|include)\b", args[at]):
        args.pop(at)  # the program, in which .a.key names no file
    call.reads(args)


def _sort(call: Call) -> None:
    given = call.parsed("-o --output -k -t -S -T --temporary-directory --compress-program --key --files0-from")
    if given.has("--compress-program"):
        call.refuse("running a program while sorting is not allowed.")
    for word in given.of("-o", "--output", "-T", "--temporary-directory"):
        call.places.write(word)
    call.reads((*given.operands, *given.of("--files0-from")))


def _uniq(call: Call) -> None:
    given = call.parsed("-f -s -w")
    call.reads(given.operands[:1])
    for word in given.operands[1:]:
        call.places.write(word)


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
    programs, files = given.programs("-e", "--expression")
    for program in programs:
        check_sed(call, call.literal(program, "the program"))
    in_place = given.has("--in-place") or any(re.fullmatch(r"-[nErsuz]*i.*", option) for option in given.options)
    suffixes = [*given.of("--in-place"), *(o for o in given.options if re.match(r"-[nErsuz]*i", o))]
    if any("/" in suffix for suffix in suffixes):
        call.refuse("the copy of a file stays beside it.", "shell-write")
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
            end = re.compile(r"[^\n;}]*" if letter in "btTlLqQ:v" else r"(?:\\\n|[^\n])*").match(program, at + 1)
            at = end.end() if end else len(program)
        elif letter in "=dDgGhHnNpPxzF":
            at += 1
        else:
            call.refuse(f"the sed command {letter!r} is not allowed.")


_BRACKETS = re.compile(r"\[\^?\]?[^\]\n]*\]")


def _delimited(text: str, at: int, delimiter: str) -> int:
    """The place after the next ``delimiter`` that no backslash and no bracket hides."""
    seen = at  # no bracket that is open here is closed ahead of this
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == "[" and delimiter != "[" and at >= seen:
            ends = (text.find(delimiter, at), text.find("\n", at), len(text))
            seen = min(end for end in ends if end >= 0)
            closing = _BRACKETS.match(text, at, seen)
            if closing is not None:
                at = seen = closing.end()
                continue
        if text[at] == delimiter:
            return at + 1
        at += 1
    raise Refused("shell-unclear", "sed: the program is not complete.")


def _yq(call: Call) -> None:
    """yq: it reads, and with ``-i`` writes."""
    given = call.parsed("-o --output")
    words = given.operands[1:] if given.operands[:1] in (("eval",), ("e",), ("eval-all",), ("ea",)) else given.operands
    program = words[0] if len(words) > 1 and words[0].startswith(".") else None  # in which .a.key names no file
    call.reads(word for word in call.args if word != program)
    if any(re.search(r"\b(?:load(?:_\w+)?|(?:str)?env(?:subst)?)\s*\(|\$ENV|\benvsubst\b", word) for word in call.args):
        call.refuse("other files and the environment are not read this way.", "shell-secret")
    splitting = [word for at, word in enumerate(call.args) if call.args[at - 1 : at] == ("-s",) and at]
    if given.has("--split-exp", "--split-exp-file") or any("/" in word for word in splitting):
        call.refuse("splitting a file into others is not allowed.", "shell-write")
    if given.has("-i", "--inplace", "-w", "--write"):
        for word in given.operands[1:]:
            call.places.write(word)


_PDF_ENGINES = frozenset(names("pdflatex xelatex lualatex tectonic weasyprint typst"))


def _outputs(call: Call) -> None:
    """Tools with an input and, as second operand, an output (xxd, pandoc with ``-o``)."""
    given = call.parsed(
        "-o --output -c -l -s -f -t --from --to -r --read -w --write -g --extract-media --log -d --defaults"
    )
    engines = [word.partition("=")[2] for word in call.args if word.startswith("--pdf-engine=")]
    if (
        given.has("--filter", "--lua-filter", "-F", "-L")
        or "--pdf-engine-opt" in " ".join(call.args)
        or given.has("-d", "--defaults", "--data-dir")
        or any(
            value.endswith(".lua") for value in given.of("-f", "-t", "--from", "--to", "-r", "--read", "-w", "--write")
        )
        or (given.has("--pdf-engine") and not (engines and set(engines) <= _PDF_ENGINES))
    ):
        call.refuse("running a program on the document is not allowed.")
    call.reads(given.operands)
    for word in (
        *given.of("-o", "--output", "--extract-media", "--log"),
        *(given.operands[1:] if call.name == "xxd" else ()),
    ):
        call.places.write(word)


def _patch(call: Call) -> None:
    given = call.parsed("-p -i --input -o --output -d --directory -B -D -F -g -r --reject-file -V -Y -z")
    if given.has("-B", "-Y", "-z", "--prefix", "--basename-prefix", "--suffix", "-g", "--get"):
        call.refuse("copies of files stay where they are, under the usual name.", "shell-write")
    call.reads(given.of("-i", "--input"))
    named = re.findall(r"^(?:---|\+\+\+|\*\*\*) ([^\t\n]+)", call.given.text, re.MULTILINE)
    for word in named:  # the program itself refuses what leads out of the folder
        call.places.write(word.strip().lstrip("/") or "-")
    for word in (*given.operands, *given.of("-o", "--output", "-d", "--directory", "-r", "--reject-file")):
        call.places.write(word)


FILTER_JUDGES: dict[str, Judge] = {
    **dict.fromkeys(("sed", "gsed"), _sed),
    **dict.fromkeys(("xxd", "pandoc"), _outputs),
    "jq": _jq,
    "sort": _sort,
    "uniq": _uniq,
    "split": _split,
    "yq": _yq,
    "patch": _patch,
}
