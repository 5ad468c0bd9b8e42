"""The syntax tree of a shell text: parsing it, walking it, and what the parser reads otherwise than the shell."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lgov_core.policies.options import names
from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_words import PRIVATE

if TYPE_CHECKING:
    import tree_sitter

#: Nodes that hold others and do nothing of their own.
HOLDERS = frozenset(
    names(
        """
    program list subshell compound_statement negated_command if_statement elif_clause else_clause
    while_statement do_group case_item comment heredoc_body heredoc_content heredoc_end heredoc_start
    """
    )
)
#: Nodes that are words, or parts of one.
WORDS = frozenset(
    names(
        """
    word string raw_string ansi_c_string translated_string number concatenation simple_expansion expansion
    command_substitution process_substitution arithmetic_expansion brace_expression regex extglob_pattern
    array subscript variable_name test_operator special_variable_name binary_expression unary_expression
    ternary_expression postfix_expression parenthesized_expression string_content file_descriptor
    """
    )
)
REDIRECTS = frozenset({"file_redirect", "herestring_redirect", "heredoc_redirect"})
#: Parts of words that only the run tells.
DYNAMIC = frozenset(
    names("simple_expansion expansion command_substitution process_substitution arithmetic_expansion subscript")
)
#: Nodes that hold several words side by side, so that the parser may miss where one ends.
_LISTS = frozenset({"for_statement", "array", "declaration_command", "file_redirect", "case_statement"})
#: A character beyond U+FFFF where the parser looks for the digits of a range, ``{1..3}``.
_FAR_LETTER = re.compile(rb"(\{[0-9.]*)[\xf0-\xf4][\x80-\xbf]{3}")
_AT = attrgetter("at")
#: How many nodes may stand within each other: some twenty substitutions, or forty blocks.
MAX_NESTING = 100
#: Signs that open something, and how many of them a text may hold.
_OPENING, MAX_OPENING = (b"|", b"<", b"(", b"{", b"["), 3_000
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f\u0085\u00a0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ufeff]"
)


@lru_cache(1)
def _language() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


class Node:
    """A node of the syntax tree. The parser's own nodes look their neighbours up from the root, and read their type anew."""

    __slots__ = (
        *("at", "behind", "children", "depth", "end_byte", "field", "is_named", "named_children", "parent", "place"),
        *("source", "start_byte", "tree", "type"),
    )

    def __init__(self, kind: str, start: int, end: int, field: str | None, parent: Node | None, tree: Tree) -> None:
        self.type, self.start_byte, self.end_byte = kind, start, end
        self.field, self.parent, self.tree = field, parent, tree
        self.is_named = False
        self.children: list[Node] = []
        self.named_children: list[Node] = []
        #: Where it stands among its parent's children.
        self.place = 0
        #: Where it stands among the named nodes of the tree, and where the first one behind all that it holds does.
        self.at = self.behind = 0
        self.depth = 0
        #: Its text, once somebody asked for it.
        self.source: str | None = None

    def add(self, child: Node) -> None:
        """Puts a child behind the others. Raises `Refused` where too many nodes stand within each other."""
        child.depth = self.depth + 1
        if child.depth > MAX_NESTING:
            raise Refused("shell-too-deep", "The command is nested too deeply; write it more simply.")
        child.place = len(self.children)
        self.children.append(child)
        if child.is_named:
            self.named_children.append(child)

    def child_by_field_name(self, name: str) -> Node | None:
        """The first child that is called so."""
        return next((child for child in self.children if child.field == name), None)

    def children_by_field_name(self, name: str) -> list[Node]:
        """All children that are called so."""
        return [child for child in self.children if child.field == name]

    @property
    def prev_sibling(self) -> Node | None:
        """The node before this one, of the same parent."""
        return self.parent.children[self.place - 1] if self.parent is not None and self.place else None

    @property
    def next_sibling(self) -> Node | None:
        """The node behind this one, of the same parent."""
        beside = self.parent.children if self.parent is not None else []
        return beside[self.place + 1] if self.place + 1 < len(beside) else None


class Tree:
    """The named nodes of a tree, in order and by kind."""

    __slots__ = ("by_kind", "nodes")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.by_kind: dict[str, list[Node]] = {}

    def add(self, node: Node) -> None:
        """Takes note of a named node, which stands behind the others."""
        node.is_named, node.at = True, len(self.nodes)
        self.nodes.append(node)
        self.by_kind.setdefault(node.type, []).append(node)


def parse_shell(source: bytes) -> Node:
    """The syntax tree of ``source``, read as bash. Raises `Refused` for what is no bash, or would take long to read.

    A parser is not shared, so this may be called from several threads.
    """
    import tree_sitter

    # Where the text turns out to be wrong, the parser looks back over what is open: the square of these signs. It cannot be
    # interrupted, and other wrong texts (20,000 characters behind a ${a:- that nothing closes) take it up to two seconds.
    if sum(map(source.count, _OPENING)) > MAX_OPENING:
        raise Refused("shell-too-deep", "The command holds too many signs that open something; write less at a time.")
    # The parser looks such a character up in a table of 256, far outside of which the process may end. Another letter of as
    # many bytes in its place changes nothing in the tree.
    source = _FAR_LETTER.sub(b"\\1" + "××".encode(), source)
    root = tree_sitter.Parser(_language()).parse(source).root_node
    if root.has_error:
        raise Refused("shell-unparsable", "The command is not complete or not understood; write it more simply.")
    return _copied(root)


def _copied(root: tree_sitter.Node) -> Node:
    """The tree below ``root``. A list within a list (``(a && b) && c``) becomes one, however long it is."""
    cursor = root.walk()
    tree = Tree()
    above: list[Node] = []
    while True:
        raw = cursor.node
        assert raw is not None
        parent = above[-1] if above else None
        if parent is not None and parent.type == raw.type == "list":
            node = parent
        else:
            node = Node(raw.type, raw.start_byte, raw.end_byte, cursor.field_name, parent, tree)
            if raw.is_named:
                tree.add(node)
            if parent is not None:
                parent.add(node)
        if cursor.goto_first_child():
            above.append(node)
            continue
        node.behind = len(tree.nodes)
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return tree.nodes[0]
            above.pop().behind = len(tree.nodes)


def every_node(node: Node) -> Sequence[Node]:
    """The node and all named ones below it, in order."""
    return node.tree.nodes[node.at : node.behind]


def nodes_of(node: Node, kind: str) -> Sequence[Node]:
    """The nodes of one kind at or below ``node``, in order."""
    return within(node.tree.by_kind.get(kind, []), node)


def within(nodes: Sequence[Node], node: Node) -> Sequence[Node]:
    """Of some nodes of the tree in order, those at or below ``node``."""
    if not nodes or node.at == 0:
        return nodes
    return nodes[bisect_left(nodes, node.at, key=_AT) : bisect_left(nodes, node.behind, key=_AT)]


def nodes_above(node: Node) -> Iterator[Node]:
    """The nodes that hold ``node``, the nearest first."""
    up = node.parent
    while up is not None:
        yield up
        up = up.parent


def check_letters(text: str) -> None:
    """Refuses a text with letters that are not seen, or that the parser reads otherwise than the shell."""
    if PRIVATE.search(text) or _INVISIBLE.search(text.replace("\r\n", "\n")) or "\r" in text:
        raise Refused("shell-unclear", "The command holds invisible or control characters; leave them out.")
    # The parser takes a line continuation for a space; within a word the shell takes it for nothing.
    if re.search(r"(?:[^\s]|^)\\\n", text):
        raise Refused("shell-unclear", "Put a space before a backslash at the end of a line.")


def check_gaps(root: Node, source: bytes) -> None:
    """Refuses an escaped space that the parser took for one between two words; the shell makes one word of it."""
    for node in every_node(root):
        if node.type in ("string", "heredoc_body", "heredoc_redirect", "expansion", "regex"):
            continue
        before = node.start_byte
        for child in node.children:
            if b"\\" in source[before : child.start_byte].replace(b"\\\n", b""):
                raise Refused("shell-unclear", "Put words with spaces in quotes.")
            glued = child.start_byte == before and child.type in WORDS and child.prev_sibling is not None
            if glued and node.type in _LISTS and child.prev_sibling.type in WORDS - {"file_descriptor"}:  # type: ignore[union-attr]
                raise Refused("shell-unclear", "Two words stand together in a way that is not understood.")
            before = child.end_byte
