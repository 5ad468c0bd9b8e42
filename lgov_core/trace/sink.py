"""Writers into a trace store: the plugin that a governor shows its events, and a span processor for OpenTelemetry's SDK."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from lgov_core._util.json_text import sorted_json
from lgov_core.governor import ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.scope import current_scope
from lgov_core.trace import semconv
from lgov_core.trace.otlp_spans import OUR_SCOPE, OTLPSpan, Scope, link_value, seconds_of, span_of
from lgov_core.types import Action, Decision, Effect, JSONValue, Point, Reward, Span, SpanEvent, ToolOutcome, new_id


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

    One that did more than allow a tool call has the call's arguments, which say what it was about: a host, a path, a query.

    In shadow mode policy, rule, reason and severity are those of what was not enforced, and ``lgov.decision.would`` its effect.
    """
    action, decision = observed.action, observed.decision
    verdict = decision.unenforced or decision
    is_tool = action.point in (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL)  # else the call's id is a model call's
    is_told = content and action.point is Point.PRE_TOOL_CALL and verdict.effect is not Effect.ALLOW
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
                semconv.TOOL_ARGUMENTS: json.dumps(dict(action.arguments), default=repr) if is_told else None,
                semconv.DECISION_SEVERITY: verdict.severity.value,
                semconv.DECISION_SHADOWED: decision.shadowed or None,
                semconv.DECISION_WOULD: verdict.effect.label if verdict is not decision else None,
                semconv.DECISION_SOURCES: sorted_json(sources) if (sources := _sources(decision)) else None,
                semconv.DECISION_LATENCY_US: decision.latency_us,
            }
        ),
        rollout_id=action.rollout_id,
        attempt=action.attempt,
        parent_id=action.span_id or action.call_id or action.parent_id,
    )


def _sources(decision: Decision) -> dict[str, list[str]]:
    """The texts that each argument's value is in, out of all parts of a decision."""
    sources: dict[str, list[str]] = {}
    for component in decision.parts or (decision,):
        for argument, texts in (component.sources or {}).items():
            sources[argument] = [*dict.fromkeys([*sources.get(argument, ()), *texts])]
    return sources


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


#: What baggage may say about whose span it is.
_BAGGAGE: Final = (semconv.ROLLOUT_ID, semconv.ATTEMPT, semconv.TASK_ID, semconv.RUN_ID)

#: The numbers that OTLP gives kinds and statuses; the SDK's kinds begin with one less.
_KIND_OFFSET: Final = 1


class LgovSpanProcessor:
    """Puts every span that ends into the queue of ``store``::

        provider.add_span_processor(LgovSpanProcessor(store))

    A span belongs to the rollout that its attributes name, or else OpenTelemetry's baggage, or else to the lgov scope in
    which it began; where it named none, ``lgov.rollout_id`` and ``lgov.attempt`` are set on it, so that other exporters
    have them too. What is stored is marked as a claim: anything in the process can make spans.

    Spans of lgov's own tracer are left out, because the governor's `StoreSink` writes them; ``own=True`` takes them.
    Never blocks and never raises: what cannot be stored is counted, here in ``failed`` or by the store, whose queue drops
    what it has no room for. All methods may be called from any thread. The store is not closed.
    """

    def __init__(self, store: EventStore, *, own: bool = False) -> None:
        self._store = store
        self._own = own
        self._open = True
        self._lock = threading.Lock()
        self.failed = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Writes whose span it is onto it, unless it says so itself."""
        try:
            if self._open and self._takes(span):
                for name, value in _belonging(parent_context).items():
                    if name not in (span.attributes or ()):
                        span.set_attribute(name, value)
        except Exception:  # noqa: BLE001 - the program must not notice
            self._count()

    def on_end(self, span: Any) -> None:
        """Queues the span."""
        try:
            if self._open and self._takes(span):
                self._store.add_span(read_sdk_span(span))
        except Exception:  # noqa: BLE001 - the program must not notice
            self._count()

    def _on_ending(self, span: Any) -> None:
        """Called by the SDK before the end; nothing is to be done then."""

    def shutdown(self) -> None:
        """Takes no more spans, and waits until those it took are durable."""
        self._open = False
        self.force_flush()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Waits until what was queued is durable. False if that took too long, or the store could not write it."""
        done: list[bool] = []

        def flush() -> None:
            try:
                self._store.flush()
                done.append(True)
            except Exception:  # noqa: BLE001 - the result tells the caller
                self._count()

        waiting = threading.Thread(target=flush, name="lgov-flush-spans", daemon=True)
        waiting.start()
        waiting.join(timeout_millis / 1000)
        return bool(done)

    def _takes(self, span: Any) -> bool:
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return False
        scope = span.instrumentation_scope
        return self._own or scope is None or scope.name != OUR_SCOPE

    def _count(self) -> None:
        with self._lock:
            self.failed += 1


def _belonging(parent_context: Any) -> dict[str, Any]:
    from opentelemetry import baggage

    carried = baggage.get_all(parent_context)
    attributes: dict[str, Any] = {name: str(carried[name]) for name in _BAGGAGE if carried.get(name) is not None}
    if semconv.ROLLOUT_ID not in attributes and (scope := current_scope()) is not None:
        attributes[semconv.ROLLOUT_ID], attributes[semconv.ATTEMPT] = scope.rollout_id, scope.attempt
        if scope.task_id is not None:
            attributes.setdefault(semconv.TASK_ID, scope.task_id)
        if scope.mode is not None:
            attributes.setdefault(semconv.ROLLOUT_MODE, scope.mode)
    return attributes


def read_sdk_span(span: Any) -> Span:
    """A span of the SDK (``opentelemetry.sdk.trace.ReadableSpan``) as lgov keeps it. Raises ValueError for bad ids."""
    context, parent, scope = span.get_span_context(), span.parent, span.instrumentation_scope
    otlp_span = OTLPSpan(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id="" if parent is None else f"{parent.span_id:016x}",
        name=span.name,
        kind=span.kind.value + _KIND_OFFSET,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=_plain_all(span.attributes),
        events=tuple(
            SpanEvent(event.name, seconds_of(event.timestamp), _plain_all(event.attributes)) for event in span.events
        ),
        links=[
            link_value(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}", _plain_all(link.attributes))
            for link in span.links
        ],
        status=span.status.status_code.value,
        message=span.status.description or "",
        dropped_attributes=span.dropped_attributes,
        dropped_events=span.dropped_events,
    )
    resource = _plain_all(span.resource.attributes)
    return span_of(otlp_span, resource, Scope() if scope is None else Scope(scope.name, scope.version or ""))


def _plain_all(attributes: Any) -> dict[str, JSONValue]:
    return {str(name): _plain(value) for name, value in (attributes or {}).items()}


def _plain(value: Any) -> JSONValue:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return [_plain(item) for item in value] if isinstance(value, Sequence) else str(value)
