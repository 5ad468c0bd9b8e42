"""Judges actions that are on record as a policy would have decided about them: from a trace store, or from an audit record.

An audit record holds every decision with what it was about. A trace store holds the tool calls only. What was recorded
without its arguments, or was cut because it was too long, cannot be judged again: it is counted, never guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import dry_run, load_policy_file
from lgov_core.trace import semconv
from lgov_core.trace.written_calls import as_object, written_calls
from lgov_core.types import BLOCKING, Action, Decision, Point

if TYPE_CHECKING:
    from lgov_core.audit import AuditEntry
    from lgov_core.store import TraceStore

_CUT = "lgov.cut"


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """An action as it was recorded and what was decided then; ``effect`` is None when no decision was recorded.

    ``verdict`` is what the policies decided, enforced or not: in shadow mode the effect that was not enforced. ``status``
    is how a tool call ended, None where that is not recorded. ``verdict_rule`` is the rule behind ``verdict``.
    """

    action: Action
    effect: str | None
    policy: str | None
    rule: str | None
    reason: str | None
    verdict: str | None = None
    status: str | None = None
    verdict_rule: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A recorded action that would now be blocked, or no longer is."""

    recorded: RecordedAction
    decision: Decision

    def as_json(self) -> dict[str, Any]:
        """As JSON values; ``reason`` is that of the decision which blocks."""
        action, then, now = self.recorded.action, self.recorded, self.decision
        return {
            **{name: getattr(action, name) for name in ("rollout_id", "attempt", "call_id", "name")},
            "point": action.point.value,
            "arguments": dict(action.arguments),
            **{"then": then.effect, "then_policy": then.policy, "then_rule": then.rule},
            **{"now": now.effect.label, "now_policy": now.policy, "now_rule": now.rule},
            "reason": now.reason if now.blocks else then.reason,
        }


@dataclass(slots=True)
class Replay:
    """The result of a replay: counts of actions, and the changed ones in the order of the record.

    ``without_decision`` counts actions recorded without a decision: they are judged, but not compared. ``incomplete``
    counts actions whose arguments are not recorded in full.
    """

    judged: int = 0
    blocked_then: int = 0
    blocked_now: int = 0
    without_decision: int = 0
    incomplete: int = 0
    changes: list[Change] = field(default_factory=lambda: [])

    def counts(self) -> dict[str, int]:
        """The counts by name."""
        names = ("judged", "blocked_then", "blocked_now", "without_decision", "incomplete")
        return {**{name: getattr(self, name) for name in names}, "changed": len(self.changes)}


def replay_file(file: Path, recorded: Iterable[RecordedAction | None]) -> Replay:
    """As `replay`, by the policies in ``file``, without plugins; nothing is written. Raises `PolicyError`."""
    with dry_run():
        policies = load_policy_file(file)
    with closing(Governor(policies, manager=make_plugin_manager(builtin=(), third_party=False))) as governor:
        return replay(governor, recorded)


def replay(governor: Governor, recorded: Iterable[RecordedAction | None]) -> Replay:
    """Judges every action once more, in order; None counts as incomplete. Budgets and rates count anew.

    A set in shadow mode counts as if it were enforced.
    """
    result = Replay()
    for act in recorded:
        if act is None:
            result.incomplete += 1
            continue
        decision = governor.decide(act.action)
        decision = decision.unenforced or decision
        result.judged += 1
        result.blocked_now += decision.blocks
        if act.effect is None:
            result.without_decision += 1
            continue
        blocked = act.effect in BLOCKING
        result.blocked_then += blocked
        if blocked != decision.blocks:
            result.changes.append(Change(act, decision))
    return result


# ---------------------------------------------------------------------- from an audit record


def from_audit(entries: Iterable[AuditEntry]) -> Iterator[RecordedAction | None]:
    """The decisions of an audit record, as actions."""
    for entry in entries:
        if entry.kind != "decision":
            continue
        arguments = _object(entry.arguments)
        content = _object(entry.content) if "content_sha256" in entry.body else {}
        if arguments is None or content is None:
            yield None
            continue
        action = Action(
            Point(entry.point or ""),
            entry.name or "",
            kind=entry.action_kind,  # type: ignore[arg-type]
            arguments=arguments,
            text=content.get("text"),
            agent=entry.agent,
            framework=entry.framework,
            session_id=entry.session_id,
            rollout_id=entry.rollout_id,
            attempt=entry.attempt,
            call_id=entry.call_id,
            parent_id=entry.body.get("parent_id"),
            source=entry.source,  # type: ignore[arg-type]
        )
        verdict = {"verdict": entry.verdict["effect"], "verdict_rule": entry.verdict["rule"]}
        yield RecordedAction(action, entry.effect, entry.policy, entry.rule, entry.reason, **verdict)


# ---------------------------------------------------------------------- from a trace store


def from_store(store: TraceStore) -> Iterator[RecordedAction | None]:
    """The tool calls in a trace store, each with what the user had said in its rollout's first model call.

    Where a span has no arguments (contents were not recorded), they are those that the captured reply has under its id.
    """
    # What came in from outside is a claim, and no record of what was called or decided.
    spans = [span for span in store.spans() if not span.claimed]
    decisions = {
        (span.rollout_id, span.attempt, span.attributes.get(semconv.TOOL_CALL_ID)): span.attributes
        for span in spans
        if span.name == semconv.DECISION_SPAN_NAME and span.attributes.get(semconv.POINT) == Point.PRE_TOOL_CALL.value
    }
    user_texts, written = _said_and_written(store)
    seen: set[tuple[Any, ...]] = set()
    for span in spans:
        attributes = span.attributes
        # The sink's own spans carry the status; those of a callback handler describe the same calls once more.
        if attributes.get(semconv.OPERATION) != semconv.EXECUTE_TOOL or semconv.TOOL_STATUS not in attributes:
            continue
        key = (span.rollout_id, span.attempt, attributes.get(semconv.TOOL_CALL_ID))
        if key[2] is not None and key in seen:
            continue
        seen.add(key)
        recorded = attributes.get(semconv.TOOL_ARGUMENTS)
        arguments = written.get(key) if recorded is None else _object(recorded)
        if arguments is None:
            yield None
            continue
        decision: Mapping[str, Any] = decisions.get(key, {}) if key[2] is not None else {}
        action = Action(
            Point.PRE_TOOL_CALL,
            str(attributes[semconv.TOOL_NAME]),
            kind=attributes.get(semconv.TOOL_TYPE, "function"),  # type: ignore[arg-type]
            arguments=arguments,
            agent=_text(attributes.get(semconv.AGENT_NAME)),
            framework=_text(attributes.get(semconv.FRAMEWORK)),
            session_id=_text(attributes.get(semconv.CONVERSATION_ID)),
            rollout_id=span.rollout_id,
            attempt=span.attempt,
            call_id=_text(key[2]),
            context={"user_text": user_texts[span.rollout_id]} if span.rollout_id in user_texts else {},
        )
        yield RecordedAction(
            action,
            decision.get(semconv.DECISION_EFFECT),
            decision.get(semconv.DECISION_POLICY),
            decision.get(semconv.DECISION_RULE),
            decision.get(semconv.DECISION_REASON),
            verdict=decision.get(semconv.DECISION_WOULD) or decision.get(semconv.DECISION_EFFECT),
            status=_text(attributes.get(semconv.TOOL_STATUS)),
            verdict_rule=decision.get(semconv.DECISION_RULE),  # in shadow mode that of the effect that was not enforced
        )


def _said_and_written(store: TraceStore) -> tuple[dict[str | None, str], dict[tuple[Any, ...], dict[str, Any] | None]]:
    """By rollout what the user said first, and by rollout, attempt and tool call the arguments that the model wrote."""
    user_texts: dict[str | None, list[str]] = defaultdict(list)
    written: dict[tuple[Any, ...], dict[str, Any] | None] = {}
    for call in store.calls():
        for written_call in written_calls(call):
            key = (call.rollout_id, call.attempt, written_call.call_id)
            arguments = written.setdefault(key, written_call.arguments)
            if written_call.call_id is None or arguments != written_call.arguments:
                written[key] = None  # nothing says which of them was run
        if call.rollout_id in user_texts:
            continue
        for message in call.request.get("messages", ()):
            if message.get("role") == "user" and isinstance(message.get("content"), str):
                user_texts[call.rollout_id].append(message["content"])
    return {rollout: "\n".join(texts) for rollout, texts in user_texts.items()}, written


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _object(text: Any) -> dict[str, Any] | None:
    """The object in ``text``, or None when there is none any more, or only its beginning."""
    value = as_object(text)
    return None if value is None or _CUT in value else value
