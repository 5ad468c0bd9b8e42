"""Which commands of a shell text are given what a search in it finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lgov_core.policies.shell_finds import check_handed_on, looks_only
from lgov_core.policies.shell_listed import listed
from lgov_core.policies.shell_runners import run_by_xargs
from lgov_core.policies.shell_syntax import REDIRECTS, WORDS, nodes_above, nodes_of

if TYPE_CHECKING:
    from tree_sitter import Node

    from lgov_core.policies.shell_script import Script

_LOOPS = ("while_statement", "for_statement")
_KEEPING = ("mapfile", "readarray", "read")
#: A command nobody knows, which may do anything with what it is given.
_UNKNOWN_COMMAND = ["?"]


def check_stages(script: Script, stage: Node, later: Sequence[Node]) -> None:
    """Judges the searches in one stage of a pipeline by what the later ones do with what they find."""
    for other in later if _searches(script) else ():
        _check(script, stage, _readers_of_a_list(script, other))


def check_substitution(script: Script, node: Node) -> None:
    """Judges the searches in a command or process substitution by the commands that are given what they find."""
    users: list[list[str]] = []
    for up in nodes_above(node) if _searches(script) else ():
        if up.type == "redirected_statement" and (body := up.child_by_field_name("body")) is not None:
            users = _readers_of_a_list(script, body)
            break
        if node.type == "process_substitution":
            continue  # its name stands for a list of files, not for the files
        if up.type in ("command", *_LOOPS):
            users = [_words(script, inner) for inner in nodes_of(up, "command") if not _holds(node, inner)]
            break
        if up.type in ("variable_assignment", "herestring_redirect"):
            users = [_UNKNOWN_COMMAND]
            break
    for inner in node.named_children:
        _check(script, inner, users)


def files_of(script: Script, stages: Sequence[Node]) -> tuple[str, ...]:
    """Words for the files whose names the commands of a pipeline print; none where nobody can say."""
    return listed([_plain_words(script, stage) for stage in stages])


def files_of_substitution(script: Script, node: Node) -> tuple[str, ...]:
    """The same for what a substitution puts into a command."""
    if node.type != "command_substitution" or len(node.named_children) != 1:
        return ()
    inner = node.named_children[0]
    return files_of(script, inner.named_children if inner.type == "pipeline" else [inner])


def _plain_words(script: Script, node: Node) -> list[str]:
    """The words of a command that keeps its output; none for what is more than one."""
    if node.type == "redirected_statement" and script.words.text(node).endswith(" 2>/dev/null"):
        node = node.named_children[0]
    return [] if any(child.type in REDIRECTS for child in node.named_children) else _words(script, node)


def _searches(script: Script) -> bool:
    """Whether there can be a search in the text at all; most have none."""
    plain = script.words.source.replace(b"'", b"").replace(b'"', b"")
    return b"fd" in plain or b"find" in plain or b"\\" in plain


def _readers_of_a_list(script: Script, node: Node) -> list[list[str]]:
    """The commands that open the files whose names ``node`` reads."""
    if node.type in _LOOPS:
        return [_words(script, inner) for inner in nodes_of(node, "command")]
    if node.type == "redirected_statement" and (body := node.child_by_field_name("body")) is not None:
        return _readers_of_a_list(script, body)
    words = _words(script, node)
    if words[:1] == ["xargs"]:
        return [run_by_xargs(words[1:])]
    return [_UNKNOWN_COMMAND] if words and words[0] in _KEEPING else []


def _check(script: Script, node: Node, users: Sequence[Sequence[str]]) -> None:
    if all(looks_only(words) for words in users):
        return
    stages = node.named_children if node.type == "pipeline" else [node]
    if _words(script, stages[-1])[:1] == ["wc"]:  # hands on a number
        return
    for command in nodes_of(node, "command"):
        check_handed_on(script.places, _words(script, command))


def _words(script: Script, node: Node) -> list[str]:
    """The words of a command; none for another node."""
    kinds = (*WORDS, "command_name")
    children = [child for child in node.named_children if child.type in kinds] if node.type == "command" else []
    return [field for child in children for field in script.words.fields(child)]


def _holds(node: Node, other: Node) -> bool:
    return node.start_byte <= other.start_byte and other.end_byte <= node.end_byte
