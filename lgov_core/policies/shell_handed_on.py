"""Which commands of a shell text are given what a search in it finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lgov_core.policies.shell_finds import check_handed_on, looks_only
from lgov_core.policies.shell_listed import listed
from lgov_core.policies.shell_runners import run_by_xargs
from lgov_core.policies.shell_syntax import REDIRECTS, WORDS, nodes_above, within

if TYPE_CHECKING:
    from lgov_core.policies.shell_script import Script
    from lgov_core.policies.shell_syntax import Node

_LOOPS = ("while_statement", "for_statement")
_KEEPING = ("mapfile", "readarray", "read")
_WORDS = WORDS | {"command_name"}
#: Nobody asks what longer pipelines print.
_MAX_STAGES = 8


def check_stages(script: Script, stages: Sequence[Node]) -> None:
    """Judges the searches in each stage of a pipeline by what the later ones do with what they find."""
    shows = False
    for stage in reversed(stages if script.searches else ()):
        if shows:
            _check(script, stage)
        shows = shows or _shows_listed(script, stage)


def check_substitution(script: Script, node: Node) -> None:
    """Judges the searches in a command or process substitution by the commands that are given what they find."""
    if script.searches and _is_shown(script, node):
        for inner in node.named_children:
            _check(script, inner)


def _is_shown(script: Script, node: Node) -> bool:
    """Whether a command that is given what a substitution prints may show the files of these names."""
    for up in nodes_above(node):
        if up.type == "redirected_statement" and (body := up.child_by_field_name("body")) is not None:
            return _shows_listed(script, body)
        if node.type == "process_substitution":
            continue  # its name stands for a list of files, not for the files
        if up.type in ("command", *_LOOPS):
            return len(within(script.showing, up)) > len(within(script.showing, node))
        if up.type in ("variable_assignment", "herestring_redirect"):
            return True
    return False


def files_of(script: Script, stages: Sequence[Node]) -> tuple[str, ...]:
    """Words for the files whose names the commands of a pipeline print; none where nobody can say."""
    return listed([_plain_words(script, stage) for stage in stages]) if len(stages) <= _MAX_STAGES else ()


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
    return [] if any(child.type in REDIRECTS for child in node.named_children) else words_of(script, node)


def _shows_listed(script: Script, node: Node) -> bool:
    """Whether a command that opens the files whose names ``node`` reads may show them."""
    if node.type in _LOOPS:
        return bool(within(script.showing, node))
    if node.type == "redirected_statement" and (body := node.child_by_field_name("body")) is not None:
        return _shows_listed(script, body)
    words = words_of(script, node)
    if words[:1] == ["xargs"]:
        return not looks_only(run_by_xargs(words[1:]))
    return bool(words) and words[0] in _KEEPING


def _check(script: Script, node: Node) -> None:
    stages = node.named_children if node.type == "pipeline" else [node]
    if words_of(script, stages[-1])[:1] == ["wc"]:  # hands on a number
        return
    for command in within(script.searchers, node):
        check_handed_on(script.places, words_of(script, command))


def words_of(script: Script, node: Node) -> list[str]:
    """The words of a command; none for another node."""
    children = [child for child in node.named_children if child.type in _WORDS] if node.type == "command" else []
    return [field for child in children for field in script.words.fields(child)]
