"""How several decisions on one action become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lgov_core.types import ALLOW, Action, Decision, Effect


def fold(action: Action, decision: Decision) -> Action:
    """The action as ``decision`` leaves it: a transform's arguments or text put in place of the action's own."""
    if decision.effect is not Effect.TRANSFORM:
        return action
    if decision.arguments is not None:
        action = replace(action, arguments=decision.arguments)
    if decision.text is not None:
        action = replace(action, text=decision.text)
    return action


def combine(decisions: Sequence[Decision], *, original: Action, folded: Action) -> Decision:
    """One decision out of several.

    The most severe effect wins; of equals the first taken is the face (its policy, rule and reason). ``parts`` carries
    all of them, flattened. What the transforms left of the action is kept (``arguments``, ``text``) unless the result
    blocks. An empty sequence is an allow without parts.
    """
    if not decisions:
        return ALLOW
    face = max(decisions, key=lambda decision: decision.effect)  # max keeps the first of equals
    parts = tuple(part for decision in decisions for part in (decision.parts or (decision,)))
    changed = not face.blocks
    return replace(
        face,
        parts=parts,
        abort=any(decision.abort for decision in decisions if decision.blocks),
        arguments=folded.arguments if changed and folded.arguments is not original.arguments else None,
        text=folded.text if changed and folded.text is not original.text else None,
        shadowed=any(part.shadowed for part in parts),
    )
