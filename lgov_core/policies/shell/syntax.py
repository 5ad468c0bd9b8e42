"""Parses a shell text into a syntax tree, and refuses what the parser may read differently from the shell.

Words are values with placeholders for unknown text; quotes, escapes and braces are bash's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from lgov_core.governor.options import names

if TYPE_CHECKING:
    import tree_sitter


#: Commands of one text, those of the texts inside it included.
MAX_COMMANDS = 1_000
#: Steps of one judgement, of about a microsecond each.
MAX_STEPS = 150_000
#: Shells inside shells, functions inside functions.
MAX_DEPTH = 6


class ShellRefusal(Exception):
    """A reason to deny: ``rule`` is a stable slug, ``reason`` a sentence for the model."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule, self.reason = rule, reason


def unclear(reason: str) -> ShellRefusal:
    """Something in the text whose meaning cannot be read for certain."""
    return ShellRefusal("shell-unclear", reason)


def unknown(reason: str) -> ShellRefusal:
    """A command, option or program text that the table does not know."""
    return ShellRefusal("shell-unknown", reason)


def code(name: str, why: str = "which may run code of this folder") -> ShellRefusal:
    """A program that runs what the policy does not read."""
    return ShellRefusal(
        "shell-code",
        f"{shown(name)[1:-1][:60]} runs code, {why}. Run it in a box (lgov run --confine), or let the owner list it in"
        " code: {allow: [...]} of this policy.",
    )


def sends(name: str, why: str = "reaches the network in a way that is not judged here") -> ShellRefusal:
    """A command that sends something to another machine."""
    return ShellRefusal(
        "shell-sends",
        f"{name[:60]} {why}. Run it in a box (lgov run --confine), or let the owner write egress: {{...}}.",
    )


class Budget:
    """Counts down the steps and commands of one judgement. Made for one judgement, used by one thread."""

    def __init__(self) -> None:
        self.steps, self.commands, self.depth = MAX_STEPS, MAX_COMMANDS, 0

    def spend(self, steps: int) -> None:
        """Counts steps. Raises `ShellRefusal` beyond `MAX_STEPS`."""
        self.steps -= steps
        if self.steps < 0:
            raise ShellRefusal(
                "shell-too-deep", "The command takes too much work to judge; split it into smaller ones."
            )

    def command(self, words: Sequence[str]) -> None:
        """Counts a command and its words. Raises `ShellRefusal` beyond `MAX_COMMANDS`."""
        self.spend(sum(map(len, words)) // 8)
        self.commands -= 1
        if self.commands < 0:
            raise ShellRefusal("shell-too-deep", "The text runs too many commands; write fewer.")

    @contextmanager
    def nested(self) -> Generator[None, None, None]:
        """Counts an inner shell or function call. Raises `ShellRefusal` beyond `MAX_DEPTH`."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ShellRefusal(
                "shell-too-deep", "Shells or functions call each other too deeply; write the commands out."
            )
        yield
        self.depth -= 1


#: Any text at all.
UNKNOWN = "\ue000"
#: Wildcards, or a name without a slash that a command prints: ``*`` and ``?``.
STAR, ANY = "\ue001", "\ue002"
#: Folders below a folder, any number of them and each with its slash: ``find src`` prints ``src/`` + BELOW + STAR.
#: Behind a name: the names are those that a listing of one folder prints.
BELOW = "\ue009"
#: The same of what leaves out hidden names.
LISTED = BELOW + BELOW
#: A number, whose digits are not known.
DIGITS = "\ue00a"
#: Between two arguments of one word.
BREAK = "\ue007"
OPEN, CLOSE, COMMA, TILDE, CLASS = "\ue003", "\ue004", "\ue005", "\ue006", "\ue008"
#: What ``<(...)`` becomes: a file with what its commands print.
PIPE = f"/dev/fd/{UNKNOWN}"
#: The home folder of the user, which is not known here.
HOME = "/~"
#: The ``PATH`` that is set: folders of installed programs.
INSTALLED = "/usr/bin"

_ACTIVE = {"*": STAR, "?": ANY, "[": CLASS, "{": OPEN, "}": CLOSE, ",": COMMA}
_INERT = str.maketrans({OPEN: "{", CLOSE: "}", COMMA: ",", TILDE: "~"})
_RANGE = re.compile(r"(?:-?\d{1,4}\.\.-?\d{1,4}|([A-Za-z])\.\.([A-Za-z]))(?:\.\.-?\d{1,4})?")
#: Readings of one word, and characters of all its readings together.
MAX_READINGS, MAX_CHARACTERS = 64, 60_000
_GLOBS = str.maketrans({"*": STAR, "?": ANY, "[": CLASS})
_SPACE = re.compile(r"[ \t\n]+")
_SPECIAL = re.compile(r"\\(.?)|[*?[{},]", re.DOTALL)
_WILD = re.compile(f"[{UNKNOWN}{STAR}{ANY}{BELOW}{DIGITS}]")
#: A number, as it is written or not known.
NUMBER = re.compile(rf"-?[\d{DIGITS}]+")


def is_wild(word: str) -> bool:
    """Returns whether a word holds a placeholder, so that it may be several things."""
    return _WILD.search(word) is not None


def literal(word: str) -> str:
    """A word without its placeholders."""
    return _WILD.sub("", word)


def as_glob(word: str) -> str:
    """A word as a glob of `fnmatch`."""
    return word.replace(BELOW, "*").replace(STAR, "*").replace(ANY, "?").replace(DIGITS, "*")


def unquoted(value: str) -> str:
    """A value as part of a word without quotes: it is split at spaces, and its wildcards are expanded."""
    # A value that is not known, or a list of files, may be several words.
    if BELOW in value:
        value = f"{value} {value}"
    return _SPACE.sub(BREAK, value.translate(_GLOBS)).replace(UNKNOWN, UNKNOWN + BREAK + UNKNOWN)


def shown(word: str) -> str:
    """A word for a message, its placeholders as the characters they replace."""
    return repr(
        as_glob(word.replace(UNKNOWN, "$…").replace(DIGITS, "$…").replace(BELOW, "**/").replace(HOME, "~"))[:80]
    )


def marked(text: str) -> str:
    """Source outside quotes: escapes undone, special characters replaced by placeholders."""
    text = TILDE + text[1:] if text.startswith("~") else text
    if text.isalnum():
        return text
    return _SPECIAL.sub(lambda match: _ACTIVE.get(match[0]) or match[1] or "\\", text)


def ansi_c(text: str) -> str:
    """The inside of ``$'...'``, which has no escapes other than of a line end, a tab, a quote and a backslash."""
    return re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), text, flags=re.DOTALL)


def in_quotes(text: str) -> str:
    """Source inside of double quotes, its escapes undone."""
    return re.sub(r'\\([$`"\\\n])', lambda match: "" if match[1] == "\n" else match[1], text)


def trimmed(value: str, operator: str) -> str:
    """``${name%suffix}``, ``${name#prefix}``, ``${name%%,*}`` with literals; UNKNOWN for the rest."""
    if operator == "##*/" and UNKNOWN not in value:
        return value.rpartition("/")[2]
    match = re.fullmatch(r"(%%?|##?)([\w./\-]+)", operator)
    if match is None or UNKNOWN in value:
        return UNKNOWN
    return value.removesuffix(match[2]) if match[1][0] == "%" else value.removeprefix(match[2])


def braces(word: str) -> list[str]:
    """Brace expansion. An incomplete brace is literal text."""
    done: list[str] = []
    waiting = [word]
    while waiting:
        current = waiting.pop()
        close = current.find(CLOSE)
        start = current.rfind(OPEN, 0, close) if close >= 0 else -1
        if start < 0:
            (waiting if close >= 0 else done).append(current.replace(CLOSE, "}", 1))
            continue
        before, inner, after = current[:start], current[start + 1 : close], current[close + 1 :]
        span = _RANGE.fullmatch(inner)
        if COMMA in inner:
            items = inner.split(COMMA)
        elif span is not None:
            low, high = sorted((ord(span[1] or DIGITS), ord(span[2] or DIGITS)))
            items = [chr(code) for code in range(low, high + 1)]
        elif ".." in inner:
            raise unclear("A range in braces that is not understood; write it more simply.")
        else:
            waiting.append(f"{before}{{{inner}}}{after}")
            continue
        if (len(items) + len(waiting) + len(done)) * len(current) > MAX_CHARACTERS or len(items) > 4 * MAX_READINGS:
            raise ShellRefusal("shell-too-deep", "A brace expansion makes too many words; write fewer.")
        waiting.extend(before + item + after for item in reversed(items))
    return done


def finished(field: str) -> str:
    """An argument with its tilde, brackets and other special characters restored."""
    if field.startswith(TILDE):
        rest = field[1:]
        field = HOME + rest if rest[:1] in ("", "/") else f"/home/{rest}" if rest[:1].isalpha() else UNKNOWN + rest
    if "=" in field or ":" in field:  # name=~/x, and some shells and programs expand --option=~/x
        field = re.sub(f"(?<=[=:])[~{TILDE}](?=/|:|$)", HOME, field)
    if CLASS in field:
        field = re.sub(rf"{CLASS}[!^]?[\w.,@+~-]+](?![^/]*])", ANY, field)
        # Where others end, and what they match, shells and programs read each in its own way.
        field = re.sub(f"{CLASS}[^/]*]", STAR, field).replace(CLASS, "[")
    return field.translate(_INERT)


_WORD_TYPES = """word string raw_string ansi_c_string translated_string number concatenation simple_expansion expansion
    command_substitution process_substitution arithmetic_expansion brace_expression regex extglob_pattern array
    subscript variable_name test_operator special_variable_name string_content file_descriptor"""
#: SyntaxNode types that are words, or parts of one.
WORDS = frozenset(names(_WORD_TYPES))
_WORD_ENDS = (WORDS - {"file_descriptor"}) | {"command_name"}
REDIRECTS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})
#: SyntaxNode types with several words side by side, where the parser may miss the end of one.
_LISTS = frozenset({"for_statement", "array", "declaration_command", "file_redirect", "case_statement", "command"})
#: SyntaxNode types that hold text of their own between their children.
_OPEN_TEXT = frozenset({"string", "heredoc_body", "expansion", "regex", "concatenation", "ansi_c_string", "raw_string"})
#: A character beyond U+FFFF where the parser looks for digits, ``{1..3}``: it reads outside of a table.
_FAR_LETTER = re.compile(rb"(\{[0-9.]*)[\xf0-\xf4][\x80-\xbf]{3}")
#: Levels of nodes: about twenty substitutions, or forty blocks.
MAX_NESTING = 100
#: Signs that open something. On a syntax error the parser's time grows with the square of their number.
_OPENING, MAX_OPENING = (b"|", b"<", b"(", b"{", b"["), 3_000
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f\u0085\u00a0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ufeff"
    "\ud800-\uf8ff]"
)
_SUBSTITUTION = re.compile(rb"\\.|`|\$\(|\$\[|\$\{", re.DOTALL)
#: What the parser may take for something else than the shell does, by the type of the node: arithmetic, escapes, gaps.
_MISREAD = {
    "command_substitution": re.compile(r"\$\(\(|`[^\\]*\\"),
    "subshell": re.compile(r"\(\("),
    "simple_expansion": re.compile(r"\$\s"),
    "variable_assignment": re.compile(r"[^=]*=\s"),
    "ansi_c_string": re.compile(r"(?!\$'(?:[^'\\]|\\[nt'\"\\])*'\Z)"),
    "regex": re.compile(r".*[<>]\(", re.DOTALL),
    "expansion": re.compile(r".*[<>]\(|(?=.*').*(?:`|\$\()", re.DOTALL),
}
#: Nodes in which a substitution sign is plain text.
_QUOTING = frozenset({"raw_string", "ansi_c_string", "comment", "heredoc_body"})


@dataclass(slots=True, eq=False)
class SyntaxNode:
    """A node of the syntax tree, copied from the parser's, which are slow to walk."""

    type: str
    text: str
    start: int
    end: int
    field: str | None
    is_named: bool
    depth: int
    children: list[SyntaxNode] = dataclasses.field(default_factory=list["SyntaxNode"])

    def __post_init__(self) -> None:
        if self.type == "word" and "\n" in self.text.replace("\\\n", ""):
            raise unclear("A word over several lines is not understood; put it in quotes.")
        if self.depth > MAX_NESTING:
            raise ShellRefusal("shell-too-deep", "The command is nested too deeply; write it more simply.")

    @property
    def named(self) -> list[SyntaxNode]:
        """The named children."""
        return [child for child in self.children if child.is_named]

    def first(self, role: str) -> SyntaxNode | None:
        """The first child of a field or a type."""
        return next(iter(self.every(role)), None)

    def every(self, role: str) -> list[SyntaxNode]:
        """The children of a field or a type."""
        return [child for child in self.children if role in (child.field, child.type)]

    def walk(self) -> list[SyntaxNode]:
        """The node and all below it, in the order of the text."""
        nodes: list[SyntaxNode] = []
        waiting: list[SyntaxNode] = [self]
        while waiting:
            node = waiting.pop()
            nodes.append(node)
            waiting.extend(node.children[::-1])
        return nodes


@lru_cache(1)
def load_parser() -> tree_sitter.Language:
    """Imports the parser: before a program is governed, in whose folder modules of these names could lie later."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def parse(text: str) -> SyntaxNode:
    """The syntax tree of ``text``, read as bash. Raises `ShellRefusal` for what is not bash or may be read in two ways."""
    import tree_sitter

    if _INVISIBLE.search(text.replace("\r\n", "\n")) or "\r" in text:
        raise unclear("The command holds invisible or control characters, or a lone surrogate; leave them out.")
    # The parser takes a line continuation for a space; inside a word the shell takes it for nothing.
    if re.search(r"(?:[^ \t]|^|\\\s)\\\n", text):
        raise unclear("Put a space before a backslash at the end of a line.")
    source = text.encode()
    if sum(map(source.count, _OPENING)) > MAX_OPENING:
        raise ShellRefusal(
            "shell-too-deep", "The command holds too many opening brackets or pipes; write less at a time."
        )
    # Another letter of as many bytes in its place changes nothing in the tree.
    parser = tree_sitter.Parser(load_parser())
    raw = parser.parse(_FAR_LETTER.sub(b"\\1" + "××".encode(), source)).root_node
    if raw.has_error:
        raise ShellRefusal("shell-unparsable", "The command is not complete or not understood; write it more simply.")
    root = _copied(raw, source)
    nodes = root.walk()
    _check_gaps(nodes, source)
    for node in nodes:
        if node.type == "heredoc_redirect":
            _check_heredoc(node, source)
        misread = _MISREAD.get(node.type)
        adjoins = node.type == "comment" and source[node.start - 1 : node.start] not in b" \t\n;|&()"
        if adjoins or (misread is not None and misread.match(node.text)):
            raise unclear(f"{node.text[:40]!r} may be read in two ways; write it more simply.")
    _check_substitutions(nodes, source)
    return root


def _copied(raw: tree_sitter.Node, source: bytes) -> SyntaxNode:
    """The tree below ``raw``. A list inside a list (``(a && b) && c``) becomes one, however long it is."""
    cursor = raw.walk()
    root: SyntaxNode | None = None  # the first one
    above: list[SyntaxNode] = []
    while True:
        node = cursor.node
        assert node is not None
        parent = above[-1] if above else None
        if parent is not None and parent.type == node.type == "list":
            here = parent
        else:
            start, end, depth = node.start_byte, node.end_byte, parent.depth + 1 if parent is not None else 0
            text = source[start:end].decode(errors="replace")
            here = SyntaxNode(node.type, text, start, end, cursor.field_name, node.is_named, depth)
            root = root or here
            if parent is not None:
                parent.children.append(here)
        if cursor.goto_first_child():
            above.append(here)
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                assert root is not None
                return root
            _hand_down(above.pop(), source)


def _hand_down(node: SyntaxNode, source: bytes) -> None:
    """Gives the redirections behind a pipeline or list to its last command, whose they are."""
    body = node.first("body") if node.type == "redirected_statement" else None
    while body is not None and body.type in ("pipeline", "list", "negated_command"):
        last = body.children[-1]
        text = source[last.start : node.end].decode(errors="replace")
        inner = SyntaxNode(node.type, text, last.start, node.end, last.field, True, last.depth)
        inner.children = [last, *(child for child in node.children if child is not body)]
        last.field = "body"
        body.children[-1] = inner
        node.type, node.children = body.type, body.children
        node, body = inner, last


def _check_gaps(nodes: list[SyntaxNode], source: bytes) -> None:
    """Refuses an escaped space that the parser took for a gap between words, and words with no gap between them."""
    for node in nodes:
        if node.type in _OPEN_TEXT:
            continue
        before = node.start
        previous: SyntaxNode | None = None
        for child in node.children:
            gap = source[before : child.start].replace(b"\\\n", b"").strip()
            if gap and not (gap == b"-" and node.type == "redirected_statement"):
                raise unclear(
                    f"{gap.decode(errors='replace')[:20]!r} is not understood; put words with spaces in quotes."
                )
            ends = node.type in _LISTS and previous is not None and previous.type in _WORD_ENDS
            if ends and child.start == before and child.type in WORDS:
                raise unclear("Two words without a space between them are not understood.")
            before, previous = child.end, child


def _check_heredoc(node: SyntaxNode, source: bytes) -> None:
    """Refuses a here-document whose lines the parser took for words of the command."""
    start, body = node.first("heredoc_start"), node.first("heredoc_body")
    line = source.find(b"\n", start.end if start is not None else node.end)
    for child in node.children:
        after = source[child.end : child.end + 1]
        if child.type == "heredoc_body":
            wrong = child.start <= line or source[line + 1 : child.start].strip(b"\n")
        elif child.type == "heredoc_end":
            wrong = source[body.end if body else line + 1 : child.start].strip(b"\t\n") or after not in b"\n"
        elif child is start:
            wrong = after not in b"\n\t ;|&<>)" or not re.fullmatch(r"""(['"]?)\\?[^\s'"\\$`]+\1""", child.text)
        else:
            wrong = child.end > line
        if wrong and child.text:
            raise unclear("A here-document that is not understood; write it more simply.")


def _check_substitutions(nodes: list[SyntaxNode], source: bytes) -> None:
    """Refuses a backtick, ``$(``, ``${`` or ``$[`` that the tree does not show as what the shell takes it for."""
    understood: set[int] = set()
    quoted: list[tuple[int, int]] = []
    verbatim = False
    for node in nodes:
        if node.type in ("command_substitution", "arithmetic_expansion", "expansion"):
            understood.update(
                (node.end - len(node.text.lstrip().encode()), node.end - 1)
            )  # a space before it is part of it
        if node.type == "heredoc_start":
            verbatim = re.search(r"[\"'\\]", node.text) is not None
        elif node.type in _QUOTING and (verbatim or node.type != "heredoc_body"):
            quoted.append((node.start, node.end))
    spans = iter(sorted(quoted))
    span = next(spans, None)
    at = 0
    while (match := _SUBSTITUTION.search(source, at)) is not None:
        while span is not None and span[1] <= match.start():
            span = next(spans, None)
        if span is not None and match.end() > span[0]:
            if match.start() < span[0]:
                raise unclear("A backslash before a quote is not followed here; write it more simply.")
            at = span[1]
            continue
        if match[0][:1] != b"\\" and match.start() not in understood:
            raise unclear("A substitution that is not understood; write it more simply.")
        at = match.end()
