"""Perl on a command line: what only looks at, counts, changes and prints lines passes, read sign by sign."""

from __future__ import annotations

import re
from typing import NoReturn

from lgov_core.policies.options import names
from lgov_core.policies.shell_call import Call, is_option
from lgov_core.policies.shell_places import Refused

MAX_CODE = 2000
#: Words behind which a value must follow, so that a slash begins a pattern and a percent sign a hash.
_AHEAD_OF_VALUES = frozenset(
    names(
        """
    print printf say if elsif unless while until for foreach and or not xor return split join map grep push unshift
    keys values each scalar defined exists delete die warn my our eq ne lt gt le ge cmp
    """
    )
)
#: The other words a program may be made of; handles but these, modules, functions of its own are none of them.
_WORDS = _AHEAD_OF_VALUES | frozenset(
    names(
        """
    else next last BEGIN END length substr index rindex uc lc ucfirst lcfirst sort reverse pop shift undef int abs sqrt
    log exp sprintf x chomp chop chr ord hex oct eof pos exit localtime gmtime STDIN STDOUT STDERR
    """
    )
)
#: What is open to no program, wherever it stands: variables that lead out, code within texts and patterns, modules.
_CLOSED = re.compile(
    r"::|\b(?:ENV|INC|SIG)\b|@\s*ARGV|#\s*ARGV|\$\s*ARGV\s*\[|\(\?p?\??\{|\(\*\*?\{|[$@]#?\s*[{$]|\$\s*\^|->[@$]"
    r"|^=[a-z]|<<|`",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"[$@][A-Za-z_]\w*|\$#[A-Za-z_]\w*|\$\d+|\$[.,/\\;&!+](?!\w)")
_NUMBER = re.compile(r"\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"[A-Za-z_]\w*")
_ELEMENT = re.compile(r"(?:->)?\{-?\w+\}")
#: An element of a variable within a text, as far as it is plainly named; a quantifier of a pattern looks alike.
_PLAIN_ELEMENT = re.compile(r"(?:->)?(?:\[(?:-?\d+|\$\w+)\]|\{(?:\w+|\$\w+|[\d,]+)\})")
_QUOTING = {"s": 2, "tr": 2, "y": 2, "m": 1, "qr": 1, "q": 1, "qq": 1, "qw": 1}
_FLAGS = {"s": "gimsxnar", "tr": "cdsr", "y": "cdsr", "m": "gimsxnac", "qr": "imsxna"}
_PAIRS = {"{": "}", "(": ")", "[": "]"}
_OPTION = re.compile(
    r"-(?:0[0-7]*|[nplaw]|i(?:\.\w+)?)*(?:F(?:[,:; \t|]|\\t|\\s\+|/[\w\s,:;|\\+*.-]{1,12}/))?[eE]?|-F[,:;|]"
)


def judge_perl(call: Call) -> bool:
    """Whether perl is given its program on the command line, which is then judged with its files. Raises `Refused`."""
    args = list(call.args)
    codes: list[str] = []
    changes = False
    while args and is_option(args[0]):
        option = args.pop(0)
        if _OPTION.fullmatch(option) is None:
            return False
        changes = changes or "i" in option.partition("F")[0]
        if option[-1] in "eE":
            codes.append(call.literal("".join(args[:1]), "the program"))
            args = args[1:]
    if not codes:
        return False
    call.places.work.spend(2 * sum(map(len, codes)))
    check_perl("\n".join(codes))
    for word in args:
        if is_option(word) or re.search(r"[|<>]", word):
            call.refuse("it takes such a file name for a command.")
    call.reads(args)
    for word in args if changes else ():
        call.places.write(word)
    return True


def check_perl(code: str) -> None:
    """Refuses Perl that does more than look at lines, compute and print: no programs, files, modules, code from text.

    Wherever Perl itself would have to guess what a sign means (a slash that divides or begins a pattern), it is refused.
    """
    if len(code) > MAX_CODE or not code.isascii() or _CLOSED.search(code) is not None:
        _refuse()
    at = 0
    value: bool | None = False  # whether a value stands before; None where it may be or not
    braces: list[bool] = []  # the open ones: whether they hold the key of an element
    while at < len(code):
        sign = code[at]
        if sign.isspace():
            at += 1
        elif sign == "{":
            braces.append(value is True and re.search(r"[$@]\w+$|[\]}]$", code[:at]) is not None)
            at, value = at + 1, False
        elif sign == "}":
            at, value = at + 1, True if braces and braces.pop() else None
        elif (match := _VARIABLE.match(code, at)) is not None:
            at, value = _elements(code, match.end()), True
        elif sign in "\"'":
            at, value = _quoted(code, at, plain=sign == "'"), True
        elif (match := _NUMBER.match(code, at)) is not None:
            at, value = match.end(), True
        elif (match := _WORD.match(code, at)) is not None:
            at, value = _word(code, match)
        else:
            at, value = _sign(code, at, value)


def _sign(code: str, at: int, value: bool | None) -> tuple[int, bool | None]:
    """Where the text goes on behind a sign, and whether that is a value."""
    sign = code[at]
    if sign == "/" and value is False:
        return _flags(code, _quoted(code, at), "m"), True
    if sign == "%" and value is False and (match := _WORD.match(code, at + 1)) is not None:
        return match.end(), True
    if sign == "<" and not value:
        given = re.compile(r"<(?:STDIN)?>").match(code, at)
        return (given.end(), True) if given is not None else _refuse()
    if sign in "/%*" and not value:
        _refuse()
    if sign == "/" and not code[at + 1 : at + 2].isspace():
        _refuse()
    if code.startswith(("&&", "**"), at):
        return at + 2, False
    if sign not in ";,()[]?:.+-=!~<>|*/%" or re.match(r"->(?!\s*[\[{])", code[at:]):
        _refuse()
    return at + 1, sign in ")]"


def _word(code: str, match: re.Match[str]) -> tuple[int, bool | None]:
    """Where the text goes on behind a word, and whether it is a value."""
    word, end = match.group(), match.end()
    tested = code[: match.start()].endswith("-")  # perhaps a question about a file (-s $name)
    if re.match(r"\s*=>", code[end:]):
        return end, True
    if word in _QUOTING and code[end : end + 1] in {*"/|!#{(["} and not tested:
        plain, opening = word in ("q", "qw"), code[end]
        at = _quoted(code, end, plain=plain)
        if _QUOTING[word] == 2 and opening in _PAIRS:
            if code[at : at + 1] != opening:
                _refuse()
            at = _quoted(code, at)
        elif _QUOTING[word] == 2:
            at = _quoted(code, at - 1)
        return _flags(code, at, word), True
    if word not in _WORDS or tested:
        _refuse(word)
    return end, False if word in _AHEAD_OF_VALUES else None


def _elements(code: str, at: int) -> int:
    """Behind the plain keys of a variable's elements; what else stands in brackets is read as code."""
    while (match := _ELEMENT.match(code, at)) is not None:
        at = match.end()
    return at


def _quoted(code: str, at: int, *, plain: bool = False) -> int:
    """Behind the quoted text that begins with the sign at ``at``; it may hold no code."""
    opening = code[at]
    closing = _PAIRS.get(opening, opening)
    depth, here = 1, at + 1
    while here < len(code):
        sign = code[here]
        if sign == closing:
            depth -= 1
            if depth == 0:
                break
        elif sign == opening:
            depth += 1
        here += 2 if sign == "\\" else 1
    if here >= len(code):
        _refuse()
    inner = code[at + 1 : here]
    for variable in () if plain else re.finditer(r"[$@](?:\w+|\W(?=[\[{]))", inner):
        end = variable.end()
        while (element := _PLAIN_ELEMENT.match(inner, end)) is not None:
            end = element.end()
        if re.match(r"(?:->)?[\[{]", inner[end:]):
            _refuse()
    return here + 1


def _flags(code: str, at: int, word: str) -> int:
    """Behind the flags of a pattern; none of them may run the replacement."""
    end = at
    while code[end : end + 1].isalpha():
        end += 1
    if not set(code[at:end]) <= set(_FLAGS.get(word, "")):
        _refuse()
    return end


def _refuse(word: str = "") -> NoReturn:
    why = f"{word[:20]!r} is not known to do no harm" if word else "the program is not plain"
    raise Refused("shell-code", f"perl: {why}; put it into a file of this folder.")
