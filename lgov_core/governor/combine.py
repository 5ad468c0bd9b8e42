"""How several decisions on one action become one, and what counts as a decision at all."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from lgov_core.types import ALLOW, Action, Decision, Effect, Severity


class BadAnswer(Exception):
    """A policy answered something that is not a decision. The message says what, in words that the model may read."""


def fold(action: Action, decision: Decision) -> Action:
    """The action as ``decision`` leaves it: a transform's arguments or text put in place of the action's own."""
    if decision.effect is not Effect.TRANSFORM:
        return action
    return action.changed(arguments=decision.arguments, text=decision.text)


def combine(
    decisions: Sequence[Decision],
    *,
    original: Action,
    folded: Action,
    latency_us: float = 0.0,
    shadow_of: str | None = None,
) -> Decision:
    """One decision out of several.

    The most severe effect wins; of equals the first taken is the face (its policy, rule and reason). ``parts`` carries
    all of them, flattened. What the transforms left of the action is kept (``arguments``, ``text``) unless the result
    blocks. A result that blocks is a ``fault`` when every part that blocks is one. An empty sequence is an allow without
    parts. With ``shadow_of``, the name of a set in shadow mode, the result allows and every part is ``shadowed``; a plain
    allow keeps its policy, rule and reason.
    """
    if not decisions:
        return ALLOW
    face = max(decisions, key=lambda decision: decision.effect)  # max keeps the first of equals
    parts = [part for decision in decisions for part in (decision.parts or (decision,))]
    shadowed = any(part.shadowed for part in (face, *parts))
    if shadow_of is not None:
        marked = tuple(part.changed(shadowed=True) for part in parts)
        if face.effect is Effect.ALLOW:
            return face.changed(parts=marked, latency_us=latency_us, shadowed=True)
        reason = "The policy set is in shadow mode; nothing is blocked."
        return Decision(Effect.ALLOW, shadow_of, "shadow", reason, parts=marked, latency_us=latency_us, shadowed=True)
    blocks = face.effect >= Effect.ESCALATE
    aborts = faulty = False
    if blocks:
        aborts = any([decision.abort for decision in decisions if decision.effect >= Effect.ESCALATE])
        faulty = all([part.fault for part in parts if part.effect >= Effect.ESCALATE and not part.shadowed])
    return Decision(
        face.effect,
        face.policy,
        face.rule,
        face.reason,
        face.severity,
        abort=aborts,
        arguments=None if blocks or folded.arguments is original.arguments else folded.arguments,
        text=None if blocks or folded.text is original.text else folded.text,
        parts=tuple(parts),
        latency_us=latency_us,
        shadowed=shadowed,
        fault=faulty,
    )


def checked(answer: object) -> Decision | None:
    """``answer`` when it is a decision that has a meaning, or None. Raises `BadAnswer` for anything else.

    The arguments of a transform are copied: what the policy does with its own afterwards changes nothing.
    """
    if answer is None:
        return None
    if not isinstance(answer, Decision):
        if inspect.iscoroutine(answer):
            answer.close()
        raise BadAnswer(f"answered {type(answer).__name__} instead of a Decision")
    if not isinstance(answer.effect, Effect):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadAnswer("answered an effect that does not exist")
    if not isinstance(answer.severity, Severity):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadAnswer("answered a severity that does not exist")
    for part in answer.parts:
        if not isinstance(part, Decision):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadAnswer("answered parts that are not decisions")
    if answer.effect is Effect.TRANSFORM:
        if answer.arguments is None and answer.text is None:
            raise BadAnswer("answered a transform without saying into what")
        if not isinstance(answer.arguments, Mapping | None) or not isinstance(answer.text, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadAnswer("answered a transform into what is not an argument mapping or no text")
        try:
            return answer.changed(arguments=private_copy(answer.arguments))
        except RecursionError:
            raise BadAnswer(
                "answered a transform into arguments that contain themselves, or are nested too deep"
            ) from None
    return answer


def complete(answer: Decision, policy: str, severity: Severity | None = None) -> Decision:
    """``answer`` in the name of ``policy``, with a slug and a reason if it had none, and with ``severity`` if one is given."""
    if severity is None:
        severity = answer.severity
    if answer.rule and answer.reason and answer.policy == policy and severity is answer.severity:
        return answer
    plain = answer.effect is Effect.ALLOW and not (answer.rule or answer.parts)
    reason = answer.reason or f"{policy} {'has nothing against it' if plain else f'answers {answer.effect.label}'}."
    return answer.changed(policy=policy, rule=answer.rule or answer.effect.label, reason=reason, severity=severity)


def fault(policy: str, rule: str, reason: str) -> Decision:
    """A deny because the judgement itself failed; it says nothing about the agent."""
    return Decision(Effect.DENY, policy, rule, reason, Severity.CRITICAL, fault=True)


def private_copy(value: Any) -> Any:
    """``value`` with containers of its own, so that changes to it do not reach the caller's arguments.

    Mappings become dicts, lists and tuples stay what they are; what is not a container is shared. Raises `RecursionError` for
    a value that contains itself.
    """
    if isinstance(value, Mapping):
        return {key: private_copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [private_copy(item) for item in value]
    if isinstance(value, tuple):
        return tuple(private_copy(item) for item in value)
    if isinstance(value, set | frozenset):
        return set(value) if isinstance(value, set) else value
    if isinstance(value, bytearray):
        return bytearray(value)
    return value
