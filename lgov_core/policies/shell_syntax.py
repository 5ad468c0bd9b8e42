"""The syntax tree of a shell text: parsing it, walking it, and what the parser reads otherwise than the shell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lgov_core.policies.options import names
from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_words import PRIVATE

if TYPE_CHECKING:
    from tree_sitter import Node

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
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f\u0085\u00a0\u00ad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ufeff]"
)


@lru_cache(1)
def _language() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def parse_shell(source: bytes) -> Node:
    """The syntax tree of ``source``, read as bash. A parser is not shared, so this may be called from several threads."""
    import tree_sitter

    # The parser looks such a character up in a table of 256, far outside of which the process may end. Another letter of as
    # many bytes in its place changes nothing in the tree.
    source = _FAR_LETTER.sub(b"\\1" + "××".encode(), source)
    return tree_sitter.Parser(_language()).parse(source).root_node


def every_node(node: Node) -> Iterator[Node]:
    """The node and all below it, in order."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.named_children))


def nodes_of(node: Node, kind: str) -> Iterator[Node]:
    """The nodes of one kind at or below ``node``."""
    return (inner for inner in every_node(node) if inner.type == kind)


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
