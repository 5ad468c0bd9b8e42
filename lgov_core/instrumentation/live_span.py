"""Spans of what is going on now: an adapter opens one around an agent run, a model call or a tool call.

The span under which the running code stands is a context variable, so spans nest by themselves, in tasks, in threads
that get their caller's context, and (by `LiveSpan.active`, entered anew for each step) in generators. Where the program
uses OpenTelemetry, the same span is also a span of its tracer provider and the current one while it is active: spans
that user code opens inside a tool become its children, and ours become children of what the program had opened. A run
that began before OpenTelemetry's SDK was imported, or a provider set, stays out of it.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from lgov_core.instrumentation.call_context import CALL_CONTEXT
from lgov_core.scope import current_scope
from lgov_core.trace import semconv
from lgov_core.trace.otlp.span import nanoseconds
from lgov_core.types import JSONValue, Span

if TYPE_CHECKING:
    from types import ModuleType

    from lgov_core.governor import Governor
    from lgov_core.instrumentation.evaluated_call import CoveredCall

#: The variable that lets GenAI instrumentations put prompts, arguments and results on the spans they export.
CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

_CONTENT = frozenset(
    {
        semconv.INPUT_MESSAGES,
        semconv.OUTPUT_MESSAGES,
        semconv.SYSTEM_INSTRUCTIONS,
        semconv.TOOL_DEFINITIONS,
        semconv.TOOL_ARGUMENTS,
        semconv.TOOL_RESULT,
        semconv.ERROR_MESSAGE,
    }
)


#: What ids are drawn from; that of `random` itself a program may seed, and draw the same again. `os.urandom` lets go of the
#: interpreter lock: where tools run in threads, each id made others run first, at the price of two switches between threads.
_RANDOM = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RANDOM.seed)


class SpanObserver(Protocol):
    """Who is shown the spans: a `lgov_core.governor.Governor`."""

    @property
    def capture_content(self) -> bool:
        """Whether prompts, arguments and results may be on spans."""
        ...

    @property
    def exports_spans(self) -> bool:
        """Whether its spans are also spans of the program's OpenTelemetry."""
        ...

    def observe(self, event: Span) -> None:
        """Takes a span that has ended."""
        ...


def current_span() -> LiveSpan | None:
    """The span under which the running code stands, or None. Callable from any thread or task."""
    return CALL_CONTEXT.get()[0]


class LiveSpan:
    """A span that has begun: ``operation`` and ``name`` make its name, ``span_id`` (16 hex digits) is unique.

    ``trace_id`` is that of OpenTelemetry's trace where the program exports one, else None. Its parent is ``parent`` or
    else the current span, its rollout the one in whose scope it began. ``started_at`` (Unix time in seconds) is when it
    began, if that was not now. Whoever opens it must `end` it, once; what is ended already stays as it was. Attributes
    that hold content (`semconv`: messages, arguments, results, error texts) are dropped at once unless
    ``observer.capture_content``; OpenTelemetry gets them only if the environment variable `CONTENT_VARIABLE` says so
    too. Used by one task or thread at a time.
    """

    __slots__ = (
        "_otel", "_unrecorded", "attributes", "ended", "name", "observer", "operation", "parent_id", "scope", "span_id",
        "started_at", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        observer: SpanObserver,
        operation: str,
        name: str = "",
        attributes: Mapping[str, JSONValue] | None = None,
        *,
        parent: LiveSpan | None = None,
        started_at: float | None = None,
    ) -> None:
        parent = parent if parent is not None else CALL_CONTEXT.get()[0]
        self.observer = observer
        self.operation = operation
        self.name = name
        self.scope = scope = current_scope()
        self.started_at = time.time() if started_at is None else started_at
        self.ended = False
        self.attributes: dict[str, JSONValue] = {semconv.OPERATION: operation}
        if scope is not None and scope.task_id is not None:
            self.attributes[semconv.TASK_ID] = scope.task_id
        self._otel: Any = None
        #: Where no provider was set when the outermost span began: the trace that it and those below it are in, and its flags;
        #: empty where there could not be one either that is not set, so that OpenTelemetry is told of none of them.
        self._unrecorded: tuple[int, Any] | tuple[()] | None = None
        self.trace_id: str | None = None
        if observer.exports_spans:
            self._unrecorded = parent._unrecorded if parent is not None else None
            if self._unrecorded is None and (api := sys.modules.get("opentelemetry.trace")) is not None:
                self._begin_otel(api, parent)
        if self._otel is None:
            self.span_id = f"{_RANDOM.getrandbits(64):016x}"
        self.parent_id = parent.span_id if parent is not None else None
        if attributes:
            self.set(attributes)

    def _begin_otel(self, api: Any, parent: LiveSpan | None) -> None:
        """Opens OpenTelemetry's span; where nobody can record it, only notes the trace that it would be in."""
        # Under the current span the context is left as it is: the program may have opened spans of its own inside.
        elsewhere = parent is not None and parent is not current_span() and parent._otel is not None
        context = api.set_span_in_context(parent._otel) if parent is not None and elsewhere else None
        if type(api.get_tracer_provider()) is api.ProxyTracerProvider:  # nobody has set one
            has_sdk = "opentelemetry.sdk.trace" in sys.modules
            self._unrecorded = _trace_of(api, api.get_current_span(context).get_span_context()) if has_sdk else ()
            return
        kind = api.SpanKind.CLIENT if self.operation == semconv.CHAT else api.SpanKind.INTERNAL
        otel = _tracer(api).start_span(self.title, context, kind, start_time=nanoseconds(self.started_at))
        above = otel.get_span_context()
        if otel.is_recording():
            self._otel, self.span_id, self.trace_id = otel, f"{above.span_id:016x}", f"{above.trace_id:032x}"
        else:  # its sampler may record those below it all the same, so they have to ask again
            self.span_id = f"{_RANDOM.getrandbits(64):016x}"
            self._otel = _unrecorded_span(api)(self.span_id, *_trace_of(api, above))

    @property
    def title(self) -> str:
        """The span's name: its operation and what it is done to."""
        return f"{self.operation} {self.name}" if self.name else self.operation

    def set(self, attributes: Mapping[str, JSONValue]) -> None:
        """Adds attributes; a value of None is left out."""
        if not self.observer.capture_content:
            attributes = {key: value for key, value in attributes.items() if key not in _CONTENT}
        if None in attributes.values():
            attributes = {key: value for key, value in attributes.items() if value is not None}
        self.attributes.update(attributes)

    def active(
        self, *, tool: CoveredCall | None = None, model: Governor | None = None
    ) -> AbstractContextManager[LiveSpan, None]:
        """Makes this the current span inside the block. In a generator it must not stay open across a ``yield``.

        The block is the inside of the judged call ``tool``, in this thread or task and those it hands its context to; a
        tool that calls a model makes a call of its own. Or it is that of a model call that the governor ``model`` judges:
        model calls in it are part of that one.
        """
        return _Active(self, tool, model)

    def end(self, error: BaseException | str | None = None) -> None:
        """Ends the span and shows it; ``error`` is what went wrong, or a word for it. Does nothing the second time."""
        if self.ended:
            return
        self.ended = True
        if error is not None:
            self.attributes[semconv.ERROR_TYPE] = error if isinstance(error, str) else type(error).__name__
        self._show(time.time())

    def abandon(self) -> None:
        """Shows the span as one whose end nobody saw."""
        if not self.ended:
            self.ended = True
            self._show(None)

    def _show(self, ended_at: float | None) -> None:
        if self.trace_id is not None:  # somebody records it
            _end_otel(self._otel, self, ended_at)
        scope = self.scope
        span = Span(
            self.title,
            self.span_id,
            self.started_at,
            ended_at,
            self.attributes,
            rollout_id=scope.rollout_id if scope else None,
            attempt=scope.attempt if scope else None,
            parent_id=self.parent_id,
            trace_id=self.trace_id,
        )
        self.observer.observe(span)


class _Active:
    """What `LiveSpan.active` gives; a generator would take twice as long, and this is on the path of every call."""

    __slots__ = ("_attached", "_model", "_span", "_token", "_tool")

    def __init__(self, span: LiveSpan, tool: CoveredCall | None, model: Governor | None) -> None:
        self._span = span
        self._tool = tool
        self._model = model

    def __enter__(self) -> LiveSpan:
        span, tool, model = self._span, self._tool, self._model
        if tool is None:
            _, tool, around = CALL_CONTEXT.get()
            model = around if model is None else model
        self._token = CALL_CONTEXT.set((span, tool, model))
        self._attached = None if span._otel is None and not span._unrecorded else _attach_otel(span)
        return span

    def __exit__(self, *exc: object) -> None:
        if self._attached is not None:
            sys.modules["opentelemetry.context"].detach(self._attached)
        CALL_CONTEXT.reset(self._token)


# ---------------------------------------------------------------------- OpenTelemetry, if the program uses it


def _api() -> ModuleType | None:
    """OpenTelemetry's tracing API if the program has imported it: lgov neither needs nor loads it."""
    return sys.modules.get("opentelemetry.trace")


def _trace_of(api: Any, above: Any) -> tuple[int, Any]:
    """The trace of a span that nobody records, and its flags: that of the span above it, or one of its own."""
    if above.trace_id:
        return above.trace_id, above.trace_flags
    return _RANDOM.getrandbits(128) | 1, api.TraceFlags(api.TraceFlags.SAMPLED)


@lru_cache(maxsize=1)
def _unrecorded_span(api: Any) -> type[Any]:
    """What makes a span of ours that nobody records, so that whoever reads OpenTelemetry's context all the same finds a parent.

    It is at every call, and hardly ever looked at: what it says is made when it is asked.
    """

    class UnrecordedSpan(api.NonRecordingSpan):
        def __init__(self, span_id: str, trace_id: int, flags: Any) -> None:
            self._said = span_id, trace_id, flags

        def get_span_context(self) -> Any:
            span_id, trace_id, flags = self._said
            return api.SpanContext(trace_id, int(span_id, 16), False, flags)

        def __repr__(self) -> str:
            return f"UnrecordedSpan({self.get_span_context()!r})"

    return UnrecordedSpan


@lru_cache(maxsize=1)
def _tracer(api: ModuleType) -> Any:
    """One tracer for all: before a provider is set it is a proxy, which finds the provider once there is one."""
    return api.get_tracer("lgov")


def _attach_otel(span: LiveSpan) -> Any:
    api, context = sys.modules.get("opentelemetry.trace"), sys.modules.get("opentelemetry.context")
    if api is None or context is None:
        return None
    if span._otel is None and span._unrecorded:
        span._otel = _unrecorded_span(api)(span.span_id, *span._unrecorded)
    return context.attach(api.set_span_in_context(span._otel))


def _end_otel(otel: Any, span: LiveSpan, ended_at: float | None) -> None:
    if otel.is_recording():
        content = os.environ.get(CONTENT_VARIABLE, "").strip().lower() not in ("", "false", "0", "no_content")
        for key, value in span.attributes.items():
            if content or key not in _CONTENT:
                otel.set_attribute(key, value)
        if (error := span.attributes.get(semconv.ERROR_TYPE)) is not None:
            api: Any = _api()
            otel.set_status(api.StatusCode.ERROR, str(error))
    otel.end(nanoseconds(ended_at if ended_at is not None else time.time()))
