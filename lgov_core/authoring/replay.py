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
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

from lgov_core.errors import PolicyError
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.governor.options import APPROVED, SHADOW
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import dry_run, load_policy_file
from lgov_core.policies.budgets.counting import NOT_MADE
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.trace import semconv
from lgov_core.trace.canonical import as_object, written_calls
from lgov_core.transitions.spans import ByConversation, SpanTree, messages_of
from lgov_core.types import (
    ALLOW,
    BLOCKING,
    Action,
    CapturedCall,
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


_T = TypeVar("_T")
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
    acts = list(recorded)
    result = Replay(incomplete=acts.count(None))

    def decide(act: RecordedAction) -> Decision:
        decision = governor.decide(act.action.changed(context={**act.action.context, SHADOW: True}))
        return decision.unenforced or decision

    for act, decision in in_order(acts, governor.observe, decide):
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


def in_order(
    recorded: Sequence[RecordedAction | None], observe: Callable[[Any], None], judge: Callable[[RecordedAction], _T]
) -> Iterator[tuple[RecordedAction, _T]]:
    """Each action with what ``judge`` says of it once ``observe`` had what came before it; None is passed over.

    Both run in a scope as it was then: the session that all of a rollout have is the program's, and others are
    conversations that a framework named.
    """
    sessions: dict[str | None, set[str | None]] = defaultdict(set)
    for act in recorded:
        if act is not None and act.action.rollout_id is not None:
            sessions[act.action.rollout_id].add(act.action.session_id)

    def scope_of(action: Action) -> enter_scope:
        own = sessions[action.rollout_id]
        return enter_scope(RolloutScope("replayed", session_id=next(iter(own)) if len(own) == 1 else None))

    for act in recorded:
        if act is None:
            continue
        for event in act.events:
            with scope_of(event.action):
                observe(event)
        with scope_of(act.action):
            judged = judge(act)
        yield act, judged


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
    """The tool calls in a trace store, each with what the user had said in its conversation.

    Where a span has no arguments (contents were not recorded), they are those that the captured reply has under its id.
    """
    # What came in from outside is a claim, and no record of what was called or decided.
    spans = sorted((span for span in store.spans() if not span.claimed), key=lambda span: span.started_at)
    reading = _StoreReading(store, spans)
    running: list[tuple[float, ToolOutcome]] = []
    events: list[ToolOutcome | ObservedDecision] = []
    for span in spans:
        attributes = span.attributes
        events += _events_before(span, reading.session_of(span), running)
        # The sink's own spans carry the status; those of a callback handler describe the same calls once more.
        if attributes.get(semconv.OPERATION) != semconv.EXECUTE_TOOL or semconv.TOOL_STATUS not in attributes:
            continue
        recorded = attributes.get(semconv.TOOL_ARGUMENTS)
        arguments = reading.written_for(span) if recorded is None else _object(recorded)
        if arguments is None:
            yield None
            continue
        decision, user_text = reading.decision_on(span), reading.user_text(span)
        action = Action(
            Point.PRE_TOOL_CALL,
            str(attributes[semconv.TOOL_NAME]),
            kind=attributes.get(semconv.TOOL_TYPE, "function"),  # type: ignore[arg-type]
            arguments=arguments,
            agent=_text(attributes.get(semconv.AGENT_NAME)),
            framework=_text(attributes.get(semconv.FRAMEWORK)),
            session_id=reading.session_of(span),
            rollout_id=span.rollout_id,
            attempt=span.attempt,
            call_id=_text(attributes.get(semconv.TOOL_CALL_ID)),
            context={} if user_text is None else {"user_text": user_text},
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
            offered=reading.offered[span.rollout_id],
            verdict_rule=decision.get(semconv.DECISION_RULE),  # in shadow mode that of the effect that was not enforced
            events=before,
        )


def _events_before(
    span: Span, session_id: str | None, running: list[tuple[float, ToolOutcome]]
) -> list[ToolOutcome | ObservedDecision]:
    """The outcomes, taken out of ``running``, of calls that ended before ``span``, and the call of a model that it is."""
    is_model = span.attributes.get(semconv.OPERATION) == semconv.CHAT
    events: list[ToolOutcome | ObservedDecision] = []
    for call in list(running):
        ended_at, outcome = call
        # A program's own loop hands results over in the call of a model: there they end, and are read.
        is_own = (outcome.action.rollout_id, outcome.action.session_id) == (span.rollout_id, session_id)
        if ended_at <= span.started_at or (is_model and is_own and ended_at <= (span.ended_at or 0)):
            running.remove(call)
            events.append(outcome)
    if is_model:
        events.append(_model_call(span.rollout_id, span.attempt, session_id))
    return events


class _StoreReading:
    """The spans and captured calls of a store, to say of a tool call what was decided, said and written in its session."""

    def __init__(self, store: TraceStore, spans: Sequence[Span]) -> None:
        self._tree = SpanTree(spans, [])
        self._decisions: ByConversation[Mapping[str, Any]] = ByConversation(is_strict=True)
        self._written: ByConversation[dict[str, Any] | None] = ByConversation(is_strict=True)
        self._said: ByConversation[str] = ByConversation(is_strict=True)
        #: By rollout the schemas of the tools that its model was offered.
        self.offered: dict[str | None, dict[str, Any]] = defaultdict(dict)
        judged = [span for span in spans if span.name == semconv.DECISION_SPAN_NAME]
        self._sessions = {
            (span.rollout_id, span.attempt, span.parent_id): _session(span)
            for span in judged
            if span.parent_id is not None
        }
        for span in judged:
            if span.attributes.get(semconv.POINT) == Point.PRE_TOOL_CALL.value:
                for name in {span.parent_id, _text(span.attributes.get(semconv.TOOL_CALL_ID))} - {None}:
                    self._decisions.add(*self._place(span, name), span.started_at, span.attributes)
        self._take_calls(store.calls(), {_text(span.attributes.get(semconv.RESPONSE_ID)): span for span in spans})
        self._take_texts(span for span in spans if span.attributes.get(semconv.OPERATION) == semconv.CHAT)

    def session_of(self, span: Span) -> str | None:
        """The session that a span names, or a decision about it, or the nearest span around it."""
        decided = self._sessions.get((span.rollout_id, span.attempt, span.span_id))
        return _session(span) or decided or _text(self._tree.nearest(span, semconv.CONVERSATION_ID))

    def _place(self, span: Span, name: Any) -> tuple[tuple[Any, ...], str | None]:
        return (span.rollout_id, span.attempt, name), self.session_of(span)

    def decision_on(self, span: Span) -> Mapping[str, Any]:
        """The attributes of the decision on a tool call, the last before it ended; empty where none is recorded."""
        ids = (span.span_id, _text(span.attributes.get(semconv.TOOL_CALL_ID)))
        end = span.ended_at or span.started_at
        decisions = (self._decisions.find(*self._place(span, name), end) for name in ids if name is not None)
        return next(filter(None, decisions), {})

    def written_for(self, span: Span) -> dict[str, Any] | None:
        """The arguments that the model wrote for a tool call; None where nothing says which of several was run."""
        call_id = _text(span.attributes.get(semconv.TOOL_CALL_ID))
        written = self._written.known(*self._place(span, call_id)) if call_id is not None else []
        return written[0] if written and all(arguments == written[0] for arguments in written) else None

    def user_text(self, span: Span) -> str | None:
        """The texts that the user had said before a tool call, one a line; None where none is recorded."""
        texts = self._said.known((span.rollout_id,), self.session_of(span), span.started_at)
        return "\n".join(dict.fromkeys(texts)) if texts else None

    def _take_calls(self, calls: Iterable[CapturedCall], by_response: Mapping[str | None, Span]) -> None:
        """Takes what was offered and written, and what the user said in the first call of a session."""
        begun: set[tuple[str | None, str | None]] = set()
        for call in calls:
            span = by_response.get(call.response_id)
            session_id = None if span is None else self.session_of(span)
            for written in written_calls(call):
                key = (call.rollout_id, call.attempt, written.call_id)
                self._written.add(key, session_id, call.started_at, written.arguments)
            for tool in call.request.get("tools") or ():
                function = tool.get("function") if isinstance(tool, Mapping) else None
                if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                    self.offered[call.rollout_id][function["name"]] = function.get("parameters")
            if (call.rollout_id, session_id) in begun:
                continue
            for message in call.request.get("messages", ()):
                if message.get("role") == "user" and isinstance(message.get("content"), str):
                    begun.add((call.rollout_id, session_id))
                    self._said.add((call.rollout_id,), session_id, -math.inf, message["content"])

    def _take_texts(self, chats: Iterable[Span]) -> None:
        """Takes what the user said: before the first reply, and newly in the first call of each outermost agent run."""
        begun: set[tuple[str | None, str | None]] = set()
        runs: set[str] = set()
        for span in chats:
            if semconv.INPUT_MESSAGES not in span.attributes:
                continue
            above = [span]
            while (parent := self._tree.above(above[-1])) is not None:
                above.append(parent)
            run = next((at for at in above[::-1] if at.attributes.get(semconv.OPERATION) == semconv.INVOKE_AGENT), span)
            session = span.rollout_id, self.session_of(span)
            messages = messages_of(span.attributes[semconv.INPUT_MESSAGES]).get("messages", [])
            texts = list(_user_texts(messages)) if session not in begun else []
            texts += [] if run.span_id in runs else list(_user_texts(messages[::-1]))[::-1]
            begun.add(session)
            runs.add(run.span_id)
            for text in texts:
                self._said.add((span.rollout_id,), session[1], span.started_at, text)


def _session(span: Span) -> str | None:
    return _text(span.attributes.get(semconv.CONVERSATION_ID))


def _user_texts(messages: Iterable[Any]) -> Iterator[str]:
    """The user's texts among ``messages`` up to a reply of the model."""
    for message in takewhile(lambda message: message.get("role") != "assistant", messages):
        if message.get("role") == "user" and isinstance(message.get("content"), str):
            yield message["content"]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _object(text: Any) -> dict[str, Any] | None:
    """The object in ``text``, or None when there is none any more, or only its beginning."""
    value = as_object(text)
    return None if value is None or _CUT in value else value
