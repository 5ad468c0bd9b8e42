"""Actions judged by a policy: of a trace store, of an audit record, or the cases of a file.

An audit record holds every decision with what it was about. A trace store holds the tool calls only. What was recorded
without its arguments, or was cut because it was too long, cannot be judged again: it is counted, never guessed.

A case of a file is one JSON object a line: ``{"id", "point", "name", "arguments", "agent"?, "text"?, "user_text"?,
"context"?, "sequence"?, "result"?, "expect"}``; ``expect`` is ``allow`` (which a warn and a transform satisfy too) or ``deny``
(which an escalate satisfies too), and ``result`` is what the call returned, if it is allowed. Other keys, such as ``why``, are
for the reader, unless they look like a misspelt one of these.
Cases are judged each by itself, except those of one ``sequence``: what policies count and remember lasts from one of them to
the next. Without the key, the ``session_id`` or else the ``rollout_id`` names the sequence.
"""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from lgov_core.errors import PolicyError
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.governor.options import APPROVED, SHADOW
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import dry_run, load_policy_file
from lgov_core.policies.budgets.counting import NOT_MADE
from lgov_core.trace import semconv
from lgov_core.trace.canonical import as_object, written_calls
from lgov_core.transitions.spans import messages_of
from lgov_core.types import (
    ALLOW,
    BLOCKING,
    Action,
    Decision,
    Effect,
    Kind,
    Point,
    Span,
    ToolOutcome,
    ToolStatus,
    new_id,
)

if TYPE_CHECKING:
    from lgov_core.audit import AuditEntry
    from lgov_core.store import TraceStore


_TEXTS = ("agent", "text", "user_text", "call_id", "session_id", "rollout_id", "framework")
_ACTION_KEYS = ("point", "name", "kind", "arguments", "context", *_TEXTS)
_CASE_KEYS = ("id", *_ACTION_KEYS, "sequence", "expect", "result", "why")
#: Other names for the arguments, refused with a hint: a case without arguments would pass or fail by accident.
_ALSO_ARGUMENTS = frozenset({"args", "kwargs", "params", "parameters", "input"})
_HINT = 'write {"point": "pre_tool_call", "name": "TOOL", "arguments": {...}}'


@dataclass(frozen=True, slots=True)
class PolicyCase:
    """One case: what is judged, whether it should be blocked, and its ``result``. ``line`` is its line in the file.

    Cases with the same ``sequence`` follow on each other; None: the case is independent.
    """

    case_id: str
    action: Action
    blocked: bool
    line: int
    sequence: str | None
    result: str | None = None


def read_cases(path: Path) -> list[PolicyCase]:
    """The cases in a file. Raises `PolicyError` with the line of the first invalid case, or if there is none."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path} cannot be read: {error}", hint="give a file of JSON lines") from error
    cases = list(_cases(path, lines))
    if not cases:
        raise PolicyError(f"{path} holds no case", hint=_HINT)
    return cases


def _cases(path: Path, lines: list[str]) -> Iterator[PolicyCase]:
    seen: dict[str, int] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        fields = parse_object(text, where)
        expected = fields.get("expect")
        if expected not in ("allow", "deny"):
            raise PolicyError(f"{where}: expect is {expected!r}", hint="write allow or deny")
        case_id = str(fields.get("id", number))
        if case_id in seen:
            raise PolicyError(f"{where}: the id {case_id!r} is in line {seen[case_id]} too", hint="rename one")
        seen[case_id] = number
        sequence = fields.get("sequence")
        if not isinstance(sequence, str | None) or sequence == "":
            raise PolicyError(f"{where}: sequence is {sequence!r}, which is not text", hint="put it in quotes")
        sequence = sequence or fields.get("session_id") or fields.get("rollout_id")
        if fields.get("rollout_id") is None:
            fields["rollout_id"] = sequence or f"case-{number}"
        action, result = action_of(fields, where, known=_CASE_KEYS), fields.get("result")
        if not isinstance(result, str | None):
            raise PolicyError(f"{where}: result is {result!r}, which is not text", hint="put it in quotes")
        if result is not None:
            action.operation_id = new_id("op")
        yield PolicyCase(case_id, action, expected == "deny", number, sequence, result)


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object in ``text``. Raises `PolicyError`, with ``where``, when it is anything else."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PolicyError(f"{where}: not JSON: {error}", hint=_HINT) from error
    if not isinstance(fields, dict):
        raise PolicyError(f"{where}: not a JSON object", hint=_HINT)
    return cast("dict[str, Any]", fields)


def action_of(fields: Mapping[str, Any], where: str, *, known: tuple[str, ...] = _ACTION_KEYS) -> Action:
    """The action that ``fields`` describes; ``point`` is ``pre_tool_call`` unless they say otherwise.

    Raises `PolicyError`, with ``where``, for a value of the wrong type and for a key that looks like a misspelt one.
    """
    for key in fields:
        if key not in known and (close := difflib.get_close_matches(key, known, n=1, cutoff=0.8)):
            raise PolicyError(f"{where}: there is no key {key!r}", hint=f"did you mean {close[0]}?")
        if key in _ALSO_ARGUMENTS and "arguments" not in fields:
            raise PolicyError(f"{where}: there is no key {key!r}", hint="did you mean arguments?")
    point, kind = fields.get("point", Point.PRE_TOOL_CALL.value), fields.get("kind", "function")
    if point not in tuple(Point):
        raise PolicyError(f"{where}: point is {point!r}", hint=f"write one of: {', '.join(Point)}")
    if kind not in get_args(Kind):
        raise PolicyError(f"{where}: kind is {kind!r}", hint=f"write one of: {', '.join(get_args(Kind))}")
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise PolicyError(f"{where}: name is {name!r}", hint="write the name of the tool, or of the model or agent")
    for key in _TEXTS:
        if not isinstance(fields.get(key), str | None):
            raise PolicyError(f"{where}: {key} is {fields[key]!r}, which is not text", hint="put it in quotes")
    arguments, context = fields.get("arguments", {}), fields.get("context", {})
    if not isinstance(arguments, dict) or not isinstance(context, dict):
        raise PolicyError(f"{where}: arguments and context must be objects", hint="write {...}")
    circumstances = dict(cast("dict[str, Any]", context))
    if fields.get("user_text") is not None:
        circumstances["user_text"] = fields["user_text"]
    same = ("text", "agent", "framework", "session_id", "rollout_id", "call_id")
    return Action(
        Point(point),
        name,
        kind=kind,
        arguments=cast("dict[str, Any]", arguments),
        context=circumstances,
        **{key: fields.get(key) for key in same},
    )


_CUT = "lgov.cut"


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """An action as it was recorded and what was decided then; ``effect`` is None when no decision was recorded.

    ``verdict`` is what the policies decided, enforced or not: in shadow mode the effect that was not enforced. ``status``
    is how a tool call ended, None where that is not recorded. ``verdict_rule`` is the rule behind ``verdict``. ``events`` are
    what policies that keep count have to observe first: outcomes of calls, and calls of models. ``offered`` has by name the
    schemas of the tools that the rollout's model was offered.
    """

    action: Action
    effect: str | None
    policy: str | None
    rule: str | None
    reason: str | None
    verdict: str | None = None
    status: str | None = None
    verdict_rule: str | None = None
    events: tuple[ToolOutcome | ObservedDecision, ...] = ()
    approved: bool = False
    offered: Mapping[str, Any] = field(default_factory=dict[str, Any])


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

    A set in shadow mode counts as if it were enforced. Nobody is asked for an approval: one that is on record holds again.
    """
    result = Replay()
    for act in recorded:
        if act is None:
            result.incomplete += 1
            continue
        for event in act.events:
            governor.observe(event)
        decision = governor.decide(act.action.changed(context={**act.action.context, SHADOW: True}))
        decision = decision.unenforced or decision
        if act.approved and decision.rule == "approval-pending":
            decision = decision.changed(
                effect=Effect.ALLOW, rule=APPROVED, reason="It was approved when it was recorded."
            )
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
    """The decisions of an audit record, as actions, with the outcomes that came between them."""
    calls: dict[str | None, Action] = {}
    ended: dict[tuple[Any, ...], str] = {}
    events: list[ToolOutcome | ObservedDecision] = []
    for entry in entries:
        key = (entry.rollout_id, entry.attempt, entry.session_id, entry.call_id)
        if entry.kind == "outcome" and (call := calls.pop(entry.refers_to, None)) is not None:
            ended[key] = entry.refers_to or ""
            events += _outcome(call, entry.status, (_object(entry.content) or {}).get("result"))
        if entry.kind != "decision":
            continue
        arguments = _object(entry.arguments)
        content = _object(entry.content) if "content_sha256" in entry.body else {}
        point = Point(entry.point or "")
        if arguments is None or content is None:
            if point is Point.PRE_MODEL_CALL and entry.effect not in BLOCKING:  # a model was called all the same
                events.append(_model_call(entry.rollout_id, entry.attempt, entry.session_id))
            yield None
            continue
        action = Action(
            point,
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
            operation_id=entry.entry_id if point is Point.PRE_TOOL_CALL else ended.pop(key, None),
        )
        if point is Point.PRE_TOOL_CALL:
            calls[entry.entry_id] = action
        verdict: dict[str, Any] = {"verdict": entry.verdict["effect"], "verdict_rule": entry.verdict["rule"]}
        verdict["approved"] = entry.approval is not None
        before, events = tuple(events), []
        yield RecordedAction(action, entry.effect, entry.policy, entry.rule, entry.reason, **verdict, events=before)


def _outcome(call: Action, status: str | None, result: Any) -> list[ToolOutcome]:
    """The outcome of a recorded call that was made."""
    was_made = status is not None and status not in (*NOT_MADE, "paused")
    return [ToolOutcome(call, cast("ToolStatus", status), result=_text(result))] if was_made else []


def _model_call(rollout_id: str | None, attempt: int | None, session_id: str | None) -> ObservedDecision:
    """A recorded call of a model of which no more is known than that it was made."""
    ids = {"rollout_id": rollout_id, "attempt": attempt, "session_id": session_id}
    return ObservedDecision(Action(Point.PRE_MODEL_CALL, "unknown", "model", **ids), ALLOW, 0.0)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- from a trace store


def from_store(store: TraceStore) -> Iterator[RecordedAction | None]:
    """The tool calls in a trace store, each with what the user had said in its rollout's first model call.

    Where a span has no arguments (contents were not recorded), they are those that the captured reply has under its id.
    """
    # What came in from outside is a claim, and no record of what was called or decided.
    spans = sorted((span for span in store.spans() if not span.claimed), key=lambda span: span.started_at)
    running: list[tuple[float, ToolOutcome]] = []
    events: list[ToolOutcome | ObservedDecision] = []
    judged = (span for span in spans if span.attributes.get(semconv.POINT) == Point.PRE_TOOL_CALL.value)
    decisions = {_call_key(span): span.attributes for span in judged if span.name == semconv.DECISION_SPAN_NAME}
    user_texts, written, offered = _said_and_written(store, spans)
    seen: set[tuple[Any, ...]] = set()
    for span in spans:
        attributes = span.attributes
        events += _events_before(span, running)
        # The sink's own spans carry the status; those of a callback handler describe the same calls once more.
        if attributes.get(semconv.OPERATION) != semconv.EXECUTE_TOOL or semconv.TOOL_STATUS not in attributes:
            continue
        key = _call_key(span)
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
            operation_id=span.span_id,
        )
        status = _text(attributes.get(semconv.TOOL_STATUS))
        for outcome in _outcome(action, status, attributes.get(semconv.TOOL_RESULT)):
            running.append((span.ended_at or span.started_at, outcome))
        before, events = tuple(events), []
        yield RecordedAction(
            action,
            decision.get(semconv.DECISION_EFFECT),
            decision.get(semconv.DECISION_POLICY),
            decision.get(semconv.DECISION_RULE),
            decision.get(semconv.DECISION_REASON),
            verdict=decision.get(semconv.DECISION_WOULD) or decision.get(semconv.DECISION_EFFECT),
            status=status,
            approved=decision.get(semconv.DECISION_RULE) == APPROVED,
            offered=offered.get(span.rollout_id, {}),
            verdict_rule=decision.get(semconv.DECISION_RULE),  # in shadow mode that of the effect that was not enforced
            events=before,
        )


def _call_key(span: Span) -> tuple[str | None, int | None, Any]:
    return span.rollout_id, span.attempt, span.attributes.get(semconv.TOOL_CALL_ID)


def _events_before(span: Span, running: list[tuple[float, ToolOutcome]]) -> list[ToolOutcome | ObservedDecision]:
    """The outcomes, taken out of ``running``, of calls that ended before ``span``, and the call of a model that it is."""
    is_model = span.attributes.get(semconv.OPERATION) == semconv.CHAT
    events: list[ToolOutcome | ObservedDecision] = []
    for call in list(running):
        ended_at, outcome = call
        # A program's own loop hands results over in the call of a model: there they end, and are read.
        is_read = is_model and outcome.action.rollout_id == span.rollout_id and ended_at <= (span.ended_at or 0)
        if ended_at <= span.started_at or is_read:
            running.remove(call)
            events.append(outcome)
    if is_model:
        session_id = _text(span.attributes.get(semconv.CONVERSATION_ID))
        events.append(_model_call(span.rollout_id, span.attempt, session_id))
    return events


def _said_and_written(
    store: TraceStore, spans: Sequence[Span]
) -> tuple[dict[str | None, str], dict[tuple[Any, ...], dict[str, Any] | None], dict[str | None, dict[str, Any]]]:
    """By rollout what the user said first, by rollout, attempt and tool call the arguments that the model wrote, and by
    rollout the schemas of the tools that it was offered.
    """
    user_texts: dict[str | None, list[str]] = defaultdict(list)
    offered: dict[str | None, dict[str, Any]] = defaultdict(dict)
    written: dict[tuple[Any, ...], dict[str, Any] | None] = {}
    for call in store.calls():
        for written_call in written_calls(call):
            key = (call.rollout_id, call.attempt, written_call.call_id)
            arguments = written.setdefault(key, written_call.arguments)
            if written_call.call_id is None or arguments != written_call.arguments:
                written[key] = None  # nothing says which of them was run
        for tool in call.request.get("tools") or ():
            function = tool.get("function") if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                offered[call.rollout_id][function["name"]] = function.get("parameters")
        if call.rollout_id in user_texts:
            continue
        for message in call.request.get("messages", ()):
            if message.get("role") == "user" and isinstance(message.get("content"), str):
                user_texts[call.rollout_id].append(message["content"])
    opening = {rollout: "\n".join(texts) for rollout, texts in user_texts.items()}
    for span in spans:
        if span.attributes.get(semconv.OPERATION) == semconv.CHAT and semconv.INPUT_MESSAGES in span.attributes:
            opening.setdefault(span.rollout_id, _opening_texts(span.attributes[semconv.INPUT_MESSAGES]))
    return opening, written, offered


def _opening_texts(messages: Any) -> str:
    """The user's texts, one a line, before the model's first reply in the messages of a span."""
    texts: list[str] = []
    for message in messages_of(messages).get("messages", ()):
        if message.get("role") == "assistant":
            break
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            texts.append(message["content"])
    return "\n".join(texts)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _object(text: Any) -> dict[str, Any] | None:
    """The object in ``text``, or None when there is none any more, or only its beginning."""
    value = as_object(text)
    return None if value is None or _CUT in value else value
