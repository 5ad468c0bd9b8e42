"""The judge of awk: its programs read lines, compute, print, and write to files that they name."""

from __future__ import annotations

import re

from lgov_core.policies.shell_call import Call, Judge

_WORD = re.compile(r"[A-Za-z_]\w*|\d[\w.]*")
_STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')
_PATTERN = re.compile(r"/(?:\\.|\[\^?\]?(?:\[:\w+:\]|\\.|[^\]\\\n])*\]|[^/\\\n\[])+/")
#: What may not stand in a pattern with a slash in brackets, where some kinds of awk take the pattern to end.
_CODE_IN_PATTERN = re.compile(r"[\"@]|\||system|getline|print|ENV")
#: Words behind which a slash begins a pattern.
_STATEMENTS = frozenset({"print", "printf", "return", "in", "else", "do", "case"})
_WRITES = re.compile(r'\bprintf?\b[^;}\n>]*>>?[ \t]*"(\d+)"[ \t]*(?=[;}\n]|$)')


def _awk(call: Call) -> None:
    given = call.parsed("-F -v -f --file --assign -i --include -e --source -l --load -E --exec")
    if given.has("-f", "--file", "-i", "--include", "-l", "--load", "-E", "--exec"):
        call.refuse("give the program on the command line.")
    if given.has("-d", "-D", "-o", "-p", "-W", "--dump-variables", "--debug", "--pretty-print", "--profile"):
        call.refuse("options that write files or load programs are not allowed.")
    programs, files = given.programs("-e", "--source")
    for program in programs:
        _check_program(call, call.literal(program, "the program"))
    call.reads(files)


def _check_program(call: Call, program: str) -> None:
    code, texts = _bare(call, program)
    code = re.sub(r"(,|&&|\|\|)[ \t]*\n\s*|\\\n", r"\1 ", code)  # where a statement goes on in the next line
    if re.search(r"\bsystem\b|\bgetline\b|@|\bENVIRON\b|\bPROCINFO\b|(?<!\|)\|(?!\|)", code):
        call.refuse("awk may not run programs, read the environment or open further files.")
    if re.search(r"\bARG[VC]\b(?:\s*\[[^\]]*\])?\s*(?:[-+]{2}|[-+*/%^]?=(?!=))", code) or any(
        re.search(r"\bARGV\b", given) for given in re.findall(r"\bsplit\s*\(([^;]*+)", code)
    ):
        call.refuse("awk reads the files that are named on its command line.")
    for match in _WRITES.finditer(code):
        target = texts[int(match[1])]
        if "\\" in target:
            call.refuse("write the names of files without a backslash.", "shell-unclear")
        call.places.write(target)
        call.runner.writes(target)
    if re.search(r"\bprintf?\b[^;}\n]*>", _WRITES.sub("", code)):
        call.refuse("awk writes only to files whose names are written out; send its output on with >.")


def _bare(call: Call, program: str) -> tuple[str, list[str]]:
    """The program without patterns and comments, each of its strings replaced by its number, and the strings."""
    made: list[str] = []
    texts: list[str] = []
    at, before = 0, "\n"  # the last word or sign but for spaces
    while at < len(program):
        sign = program[at]
        match = None
        if sign == '"':
            match = _STRING.match(program, at)
            if match is None:
                call.refuse("the program is not complete.", "shell-unclear")
            made.append(f'"{len(texts)}"')
            texts.append(match[1])
        elif sign == "#":
            at = program.find("\n", at)
            if at < 0:
                break
            continue
        elif sign == "/" and _begins_pattern(call, before, program[at:]):
            match = _PATTERN.match(program, at)
            if match is None or ("/" in match.group()[1:-1] and _CODE_IN_PATTERN.search(match.group())):
                call.refuse("a pattern in it is not plain.", "shell-unclear")
            made.append(" ")
        elif (match := _WORD.match(program, at)) is not None:
            made.append(match.group())
        else:
            made.append(sign)
        whole = match.group() if match is not None else sign
        before = whole if whole not in (" ", "\t") else before
        at += len(whole)
    return "".join(made), texts


def _begins_pattern(call: Call, before: str, rest: str) -> bool:
    """Whether a slash behind ``before`` begins a pattern; refused where it may also divide, and a string follows."""
    if before in (")", "+", "-") and '"' in rest and "/" in rest[1:]:
        call.refuse("a slash in it may divide or begin a pattern; use parentheses or variables.", "shell-unclear")
    if before in (")", "+", "-"):
        return False
    return before in _STATEMENTS or re.match(r"[\w\"\]$/]", before) is None


AWK_JUDGES: dict[str, Judge] = dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk)
