"""The plugin that writes what a governor shows its observers into a trace store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Protocol

from lgov_core.governor import ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.scope import current_scope
from lgov_core.trace import semconv
from lgov_core.types import Action, JSONValue, Point, Reward, Span, ToolOutcome, new_id


class EventStore(Protocol):
    """The part of a trace store that events go to. See `lgov_core.store.TraceStore`."""

    def add_rewards(self, rewards: Iterable[Reward]) -> None:
        """Adds rewards; durable when it returns."""
        ...

    def add_span(self, span: Span) -> None:
        """Queues a span and returns at once."""
        ...

    def flush(self) -> None:
        """Returns when everything queued before is durable."""
        ...


class StoreSink:
    """Turns events into rows of ``store``: a plugin for a governor.

    A `Reward` is durable when the hook returns, because it is training data. A `Span`, a decision (a span named
    ``lgov.decision`` whose parent is the call it judged) and a tool outcome (a span ``execute_tool {name}`` whose id is
    the tool call's, unless the adapter shows a span of its own for the call) are queued: they never hold up the agent,
    and what a full queue drops is counted by the store. Decisions are proved by the audit record, not by these spans.

    With ``content=False`` arguments, results and reasons (which may quote them) stay out of the spans. Callable from
    any thread. What the store raises (`StoreError`) goes to the governor, which counts it and shows it to the other
    observers. Other events are ignored.
    """

    def __init__(self, store: EventStore, *, content: bool = True) -> None:
        self._store = store
        self._content = content

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """Writes ``event`` if it is one of the kinds named above."""
        if isinstance(event, Span):
            self._store.add_span(event)
        elif isinstance(event, Reward):
            self._store.add_rewards((event,))
        elif isinstance(event, ObservedDecision):
            self._store.add_span(decision_span(event, content=self._content))
        elif isinstance(event, ToolOutcome) and event.action.span_id is None:
            self._store.add_span(tool_span(event, content=self._content))


def decision_span(observed: ObservedDecision, *, content: bool) -> Span:
    """A decision as a span, with a fresh id, below the call it judged. Its reason may quote an argument: content.

    In shadow mode policy, rule, reason and severity are those of what was not enforced, and ``lgov.decision.would`` its effect.
    """
    action, decision = observed.action, observed.decision
    verdict = decision.unenforced or decision
    is_tool = action.point in (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL)  # else the call's id is a model call's
    return Span(
        name=semconv.DECISION_SPAN_NAME,
        span_id=new_id("span"),
        started_at=observed.at - observed.commit_s - decision.latency_us / 1e6,
        ended_at=observed.at,
        attributes=semconv.said(
            {
                **_who(action),
                **_of_rollout(action),
                semconv.POINT: action.point.value,
                semconv.ACTION_KIND: action.kind,
                semconv.ACTION_NAME: action.name,
                semconv.TOOL_CALL_ID if is_tool else semconv.CALL_ID: action.call_id,
                semconv.DECISION_ID: decision.decision_id,
                semconv.DECISION_EFFECT: decision.effect.label,
                semconv.DECISION_POLICY: verdict.policy,
                semconv.DECISION_RULE: verdict.rule or None,
                semconv.DECISION_REASON: (verdict.reason or None) if content else None,  # it may quote an argument
                semconv.DECISION_SEVERITY: verdict.severity.value,
                semconv.DECISION_SHADOWED: decision.shadowed or None,
                semconv.DECISION_WOULD: verdict.effect.label if verdict is not decision else None,
                semconv.DECISION_LATENCY_US: decision.latency_us,
            }
        ),
        rollout_id=action.rollout_id,
        attempt=action.attempt,
        parent_id=action.span_id or action.call_id or action.parent_id,
    )


def tool_span(outcome: ToolOutcome, *, content: bool) -> Span:
    """Writes the outcome of a tool call as a span whose id is the tool call's."""
    action, failed = outcome.action, outcome.status != "ok"
    return Span(
        name=semconv.execute_tool_span_name(action.name),
        span_id=action.call_id or new_id("span"),
        started_at=outcome.started_at,
        ended_at=outcome.started_at + outcome.duration_s,
        attributes=semconv.said(
            {
                **_who(action),
                semconv.OPERATION: semconv.EXECUTE_TOOL,
                semconv.TOOL_NAME: action.name,
                semconv.TOOL_TYPE: action.kind,
                semconv.TOOL_CALL_ID: action.call_id,
                semconv.TOOL_STATUS: outcome.status,
                semconv.DECISION_ID: outcome.decision.decision_id if outcome.decision else None,
                semconv.ERROR_TYPE: (outcome.error_type or outcome.status) if failed else None,
                semconv.ERROR_MESSAGE: outcome.error if failed and content else None,
                semconv.TOOL_ARGUMENTS: json.dumps(dict(action.arguments), default=repr) if content else None,
                semconv.TOOL_RESULT: outcome.result if content else None,
            }
        ),
        rollout_id=action.rollout_id,
        attempt=action.attempt,
        parent_id=action.parent_id,
    )


def _of_rollout(action: Action) -> dict[str, JSONValue]:
    """Task and mode of a rollout that begins: a store that the rollout was not added to has them from here."""
    scope = current_scope() if action.point is Point.AGENT_STARTUP else None
    if scope is None or scope.rollout_id != action.rollout_id:
        return {}
    return {semconv.TASK_ID: scope.task_id, semconv.ROLLOUT_MODE: scope.mode}


def _who(action: Action) -> dict[str, JSONValue]:
    return {
        semconv.AGENT_NAME: action.agent,
        semconv.FRAMEWORK: action.framework,
        semconv.CONVERSATION_ID: action.session_id,
        semconv.ROLLOUT_ID: action.rollout_id,
        semconv.ATTEMPT: action.attempt,
    }
