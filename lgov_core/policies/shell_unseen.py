"""Words that stand nowhere in the text: fetched, decoded or computed while it runs, and so hidden by whoever wrote it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from lgov_core.policies.options import names
from lgov_core.policies.shell_files import READERS
from lgov_core.policies.shell_places import Refused
from lgov_core.policies.shell_syntax import Node, nodes_above, nodes_of, within
from lgov_core.policies.shell_words import PIPE, UNKNOWN, Words

_SUBSTITUTIONS = ("command_substitution", "process_substitution")
#: Commands that fetch or decode what they print.
_FETCHING = frozenset(
    names("curl wget nc ncat netcat socat http https xh aria2c base64 base32 basenc xxd uudecode rev dig host nslookup")
)
#: Code for an interpreter that puts a text together.
_COMPUTING = re.compile(
    r"(?:python[\d.]*|node|perl|ruby|php)\s-[cepr](?=\s.{0,200}?(?:\+|chr|join|\[::|decode|hex))|\S*awk\s.*\bBEGIN\b"
    r"|openssl (?:enc|base64)",
    re.DOTALL,
)
#: Signs as numbers, or a path of which parts are filled in.
_WRITTEN_OTHERWISE = re.compile(r"\\x[0-9a-fA-F]|\\[0-7]{2}|printf\s[\"']?(?:/\S{0,60}%|\S{0,60}%\S{0,60}%)")
#: Commands that print the words they are given.
_TELLING = ("echo", "printf")
#: Of two commands that tell, one of which ends no line, the words may be the halves of one.
_NO_LINE = re.compile(r"printf |echo\s+-\w*n")
#: Commands that print lines they read as they are, and those that print numbers made of them.
_KEEPING = frozenset(names("cat tee sort uniq grep egrep fgrep rg head tail xargs while for read shuf tac column less"))
_COUNTING = frozenset(names("wc bc md5sum sha1sum sha256sum sha512sum shasum cksum"))
#: The stage of a pipeline that makes words of what it reads.
_TAKES_WORDS = re.compile(r".{0,35}xargs|parallel |while|until|read|mapfile|for|\{|\(")
#: A word that is such a text from where it says which file it is, or which option.
_HIDDEN = re.compile(rf"(?:-[\w-]*=?|@)?(?:\.{{0,2}}/)*{UNKNOWN}")
#: Commands that do nothing with their words but show or compare them, or what they name.
_SHOWING = frozenset(names("echo printf test [ : true false expr seq sleep exit return ls stat basename dirname"))
#: Commands that only read the files they are given, wherever these come from; a shell runs none that has no name.
_READING = frozenset(READERS) | frozenset(
    names(
        "diff colordiff grep egrep fgrep rg jq yq sort uniq sed awk gawk mawk cut tr read mapfile readarray tar while bash sh"
    )
)


class Unseen:
    """Finds where a text fetches, decodes or computes what it then reads or takes for words."""

    def __init__(self, root: Node, words: Words) -> None:
        self._root, self._words = root, words

    def hides_words(self) -> bool:
        """Whether such a text may become words of the commands."""
        if not self._makers:
            return False
        if any(self.makes(node) for kind in _SUBSTITUTIONS for node in nodes_of(self._root, kind)):
            return True
        return any(
            _TAKES_WORDS.match(self._words.text(stage)) is not None and self.makes(*pipeline.named_children[:at])
            for pipeline in nodes_of(self._root, "pipeline")
            for at, stage in enumerate(pipeline.named_children)
            if at
        )

    def makes(self, *nodes: Node) -> bool:
        """Whether what these nodes print, one behind the other, is such a text."""
        return any(within(self._makers, node) for node in nodes)

    @cached_property
    def _makers(self) -> Sequence[Node]:
        """The nodes that fetch, decode, compute or change a text, in order."""
        found = [node for node in nodes_of(self._root, "command") if self._fetches(node)]
        found += [node for node in nodes_of(self._root, "herestring_redirect") if _in_substitution(node)]
        for statement in nodes_of(self._root, "redirected_statement"):
            body = statement.child_by_field_name("body")
            given = any(child.type == "heredoc_redirect" for child in statement.named_children)
            if given and body is not None and body.type == "command" and not self._keeps(body):
                found.append(body)
        for pipeline in nodes_of(self._root, "pipeline"):
            found += self._changing(pipeline)
        found += self._halves()
        return sorted(found, key=lambda node: node.at)

    def _fetches(self, node: Node) -> bool:
        text = self._words.text(node)
        return (
            self._name(node) in _FETCHING
            or _COMPUTING.match(text) is not None
            or (self._name(node) in _TELLING and _WRITTEN_OTHERWISE.search(text) is not None)
        )

    def _changing(self, pipeline: Node) -> list[Node]:
        """The stages that make another text of one that is told."""
        told = False
        found: list[Node] = []
        for stage in pipeline.named_children:
            name = self._name(stage)
            if told and not self._keeps(stage):
                told = name not in _COUNTING
                found += [stage] if told else []
            told = told or name in _TELLING
        return found

    def _halves(self) -> Iterable[Node]:
        """Substitutions in which several commands tell parts of one word."""
        for kind in _SUBSTITUTIONS if b"echo" in self._words.source or b"printf" in self._words.source else ():
            for node in nodes_of(self._root, kind):
                telling = [c for c in nodes_of(node, "command") if self._name(c) in _TELLING]
                if len(telling) > 1 and any(_NO_LINE.match(self._words.text(command)) for command in telling):
                    yield node

    def _keeps(self, node: Node) -> bool:
        """Whether a command prints the lines that it reads as they are, or some of them."""
        name = self._name(node)
        whole = name not in ("head", "tail", "grep") or re.search(r"\s-\w*[co]", self._words.text(node)) is None
        return whole and (name in _KEEPING or node.type not in ("command", "redirected_statement"))

    def _name(self, node: Node) -> str:
        """The name of a command, as it is written."""
        if node.type == "redirected_statement":
            node = node.child_by_field_name("body") or node
        name = node.child_by_field_name("name") if node.type == "command" else None
        return posixpath.basename(re.sub(r"[\\'\"]", "", self._words.text(name))) if name is not None else ""


def check_seen(name: str, words: Iterable[str]) -> None:
    """Refuses words for ``name`` that may be such a text."""
    if name in _SHOWING:
        return
    for word in words:
        if _HIDDEN.match(word) or (PIPE in word and name not in _READING):
            raise Refused("shell-unclear", f"{name}: what it is given is fetched or decoded; write it as plain text.")


def check_applied(name: str, words: Sequence[str]) -> None:
    """Refuses to change files, or to build, by a text that is fetched or decoded on the way."""
    applies = name == "patch" or (name == "git" and not {"apply", "am"}.isdisjoint(words[:4]))
    if applies or (name in ("docker", "podman", "buildah") and "build" in words[:3]):
        raise Refused("shell-unclear", f"{name}: what it reads is fetched or decoded; look at it in between.")


def _in_substitution(node: Node) -> bool:
    return any(up.type in _SUBSTITUTIONS for up in nodes_above(node))
