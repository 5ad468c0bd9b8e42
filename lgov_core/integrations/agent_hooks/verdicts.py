"""A `Decision` as a verdict of AGENT-HOOKS-0.1. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from agent_hooks import Decision as TheirDecision
from agent_hooks import Evidence, Transform, Verdict, Warning

from lgov_core.integrations.agent_hooks.contexts import Unclear, plain, target_of
from lgov_core.types import Action, Decision, Effect, Point

_AFTER_A_CALL: Final = (Point.POST_MODEL_CALL, Point.POST_TOOL_CALL)
#: Where the text of a point is in its target; None: the target itself.
_TEXT_AT: Final = {
    Point.INPUT: "content",
    Point.POST_MODEL_CALL: "content",
    Point.OUTPUT: "content",
    Point.POST_TOOL_CALL: None,
}


def verdict_of(action: Action, context: Mapping[str, Any], decision: Decision) -> Verdict:
    """``decision`` on ``action``, which was made of ``context``, as a verdict. Raises `Unclear` for an impossible change."""
    slug = _slug(decision)
    evidence = Evidence(artefact=decision.decision_id) if decision.decision_id else None
    if decision.blocks:
        approval: dict[str, Any] | None = {} if decision.effect is Effect.ESCALATE else None
        message = decision.denial_message(after=action.point in _AFTER_A_CALL)
        return Verdict(TheirDecision.DENY, slug, message, approval=approval, evidence=evidence)
    warnings = tuple(Warning(_slug(part), part.reason) for part in _warned(decision))
    if decision.arguments is None and decision.text is None:
        return Verdict(TheirDecision.ALLOW, slug, decision.reason, warnings, evidence=evidence)
    transform = _transform_of(action.point, context, decision)
    return Verdict(TheirDecision.TRANSFORM, slug, decision.reason, warnings, transform=transform, evidence=evidence)


def _slug(decision: Decision) -> str:
    where = f"{decision.policy}/{decision.rule}" if decision.rule else decision.policy
    return f"lgov:{where}"[:200]


def _warned(decision: Decision) -> list[Decision]:
    """The parts that warn, and those that would have blocked outside shadow mode."""
    parts = decision.parts or (decision,)
    return [part for part in parts if part.effect is Effect.WARN or (part.shadowed and part.blocks)]


def _transform_of(point: Point, context: Mapping[str, Any], decision: Decision) -> Transform:
    target = target_of(context, point)
    if point is Point.PRE_TOOL_CALL and decision.text is None:
        return Transform("$target", plain(decision.arguments))
    if point is Point.PRE_MODEL_CALL and decision.text is None and decision.arguments is not None:
        if {**decision.arguments, "messages": None} != {**_model_arguments(context), "messages": None}:
            raise Unclear("only the messages of a model call can be changed")
        return Transform("$target", plain(decision.arguments["messages"]))
    if point is Point.POST_MODEL_CALL and decision.arguments is not None:
        calls = plain(decision.arguments.get("tool_calls", []))
        content = target["content"] if decision.text is None else decision.text
        return Transform("$target", {**target, "content": content, "tool_calls": calls})
    if point not in _TEXT_AT or decision.text is None or decision.arguments is not None:
        raise Unclear(f"a change of this kind cannot be made at {point}")
    member = _TEXT_AT[point]
    old = target if member is None else target[member]
    return Transform("$target" if member is None else f"$target.{member}", _as_before(old, decision.text, point))


def _model_arguments(context: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": None, **({"tools": context["tools"]} if "tools" in context else {})}


def _as_before(old: Any, text: str, point: Point) -> Any:
    """``text`` in the form that ``old`` had: where that was not a text, the text read as JSON."""
    if old is None or isinstance(old, str):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if type(value) is type(old) or point is Point.POST_TOOL_CALL:
        return value  # a tool's result may have any form
    raise Unclear("content that is not a text cannot be replaced by a text")
