"""Words that stand nowhere in the text: fetched, decoded or computed while it runs, and so hidden by whoever wrote it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_syntax import nodes_of
from lgov_core.policies.shell_words import UNKNOWN, Words

if TYPE_CHECKING:
    from tree_sitter import Node

#: What fetches or decodes, and the common ways to put a text together.
_MAKES_WORDS = re.compile(
    rb"(?<![\w-])(?:curl|wget|nc|ncat|base(?:64|32|nc)|xxd|uudecode|rev|dig|openssl (?:enc|base64))(?=[\s)`;|<])"
    rb"|\\x[0-9a-fA-F]|\\[0-7]{2}|<<<|\bBEGIN\b|\bprintf\s(?=[\"']?/\S{0,60}%)"
    rb"|\b(?:python[\d.]*|node|perl|ruby|php)\s-[cepr](?=\s.{0,200}?(?:\+|chr|join|\[::|decode|hex))",
    re.DOTALL,
)
#: The stage of a pipeline that makes words of what it reads.
_TAKES_WORDS = re.compile(rb".{0,35}xargs|parallel |while|until|read|mapfile|for|\{|\(")
#: A word that is such a text from where it says which file it is, or which option.
_HIDDEN = re.compile(rf"(?:-[\w-]*=?|@)?(?:\.{{0,2}}/)*{UNKNOWN}")
#: Commands that do nothing with their words but show or compare them.
_SHOWING = frozenset({"echo", "printf", "test", "[", ":", "true", "false", "expr", "seq", "sleep", "exit", "return"})


def hides_words(root: Node, words: Words) -> bool:
    """Whether a text fetches, decodes or computes what may become words of its commands."""
    made = [match.start() for match in _MAKES_WORDS.finditer(words.source)]

    def holds(node: Node) -> bool:
        return bisect_left(made, node.start_byte) < bisect_left(made, node.end_byte)

    for kind in ("command_substitution", "process_substitution") if made else ():
        if any(holds(node) for node in nodes_of(root, kind)):
            return True
    for pipeline in nodes_of(root, "pipeline") if made else ():
        before = False
        for stage in pipeline.named_children:
            if before and _TAKES_WORDS.match(words.source, stage.start_byte):
                return True
            before = before or holds(stage)
    return False


def check_seen(name: str, words: Iterable[str]) -> None:
    """Refuses words for ``name`` that may be such a text."""
    if name not in _SHOWING and any(_HIDDEN.match(word) for word in words):
        raise Refused("shell-unclear", f"{name}: what it is given is fetched or decoded; write it as plain text.")
