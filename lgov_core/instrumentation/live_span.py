"""Spans in progress, and the judged call whose inside is running.

An adapter opens a span around an agent run, a model call or a tool call. The current span is a context variable, so spans
nest by themselves, in tasks, in threads that get their caller's context, and (by `LiveSpan.active`, entered anew for each
step) in generators. Where the program uses OpenTelemetry, which lgov neither needs nor loads, the same span is also a span
of its tracer provider and the current one while it is active: spans that user code opens inside a tool become its children,
and ours become children of those that the program had opened. A run that began before OpenTelemetry's SDK was imported, or
a provider set, is not exported.

A framework is often governed at two levels: at the agent's calls, and below at every call. A decision covers exactly the
call that was judged (`CoveredCall`): the same name, arguments, call id and governor. Whatever runs inside it with anything
changed (a middleware that rewrites arguments, a tool that calls another tool) is a call of its own. Running the covered
call again, as a retry does, is still that call. For model calls the lower level is the client library that a framework
uses: inside a judged model call the client's own call is part of it.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lgov_core.governor import Governor
from lgov_core.instrumentation.otel_spans import (
    attach_otel_span,
    begin_otel_span,
    detach_otel_span,
    end_otel_span,
    exports_content,
    unrecorded_span,
)
from lgov_core.scope import current_scope, inherited
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, JSONValue, Span

if TYPE_CHECKING:
    from lgov_core.instrumentation.tool_arguments import ToolArguments

#: The source of ids. A program may seed the one of `random`; `os.urandom` releases the interpreter lock, which costs two
#: thread switches an id where tools run in threads.
_RANDOM = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RANDOM.seed)


def new_span_id() -> str:
    """A fresh span id: 16 hex digits."""
    return f"{_RANDOM.getrandbits(64):016x}"


_NOWHERE = object()


@dataclass(slots=True)
class CoveredCall:
    """A judged tool call that is about to run.

    Mutable: code inside the call reports to the code around it. ``recorded`` is set once an outcome was recorded for it;
    ``raised`` is the error that the tool raised, set before the framework turns it into a text for the model.

    Code between the decision and the tool may change the call. The lower level then judges it again: `changed_to` is the
    call that runs, and `refused` the decision that blocked it. ``validated`` holds what the tool's function gets, where the
    adapter has validated the arguments. ``place`` is where, in the framework's own terms, this
    call is to run, set by the adapter: what runs elsewhere is another call, made inside it.
    """

    governor: Governor
    name: str
    arguments: Mapping[str, Any]
    call_id: str | None
    recorded: bool = False
    raised: BaseException | None = None
    action: Action | None = None
    place: object = _NOWHERE
    validated: ToolArguments | None = None
    refused: Decision | None = None

    def covers(self, governor: Governor, name: str, arguments: Mapping[str, Any], call_id: str | None) -> bool:
        """Returns whether the judgement holds for this execution."""
        return (
            self.governor is governor
            and self.call_id == call_id
            and self.name == name
            and (self.arguments == arguments or dict(self.arguments) == dict(arguments))
        )

    def changed_to(self, action: Action, refused: Decision | None) -> None:
        """The call runs as ``action`` and not as it was judged at first; ``refused`` if that must not be."""
        self.action, self.refused = action, refused
        self.name, self.arguments, self.call_id = action.name, action.arguments, action.call_id


#: The tool call whose inside is running.
TOOL_CALL: ContextVar[CoveredCall | None] = ContextVar("lgov_tool_call", default=None)
#: The governor that judged the model call whose inside is running.
MODEL_CALL: ContextVar[Governor | None] = ContextVar("lgov_model_call", default=None)
#: The base URL of the governed client of a model that is sending a request, whatever that is.
MODEL_SERVER: ContextVar[str | None] = ContextVar("lgov_model_server", default=None)


def covered_call() -> CoveredCall | None:
    """The judged tool call whose inside is running, or None."""
    return TOOL_CALL.get()


def note_error(error: BaseException) -> None:
    """Tells the judged call around the running code what its tool raised; the first error counts."""
    call = TOOL_CALL.get()
    if call is not None and call.raised is None:
        call.raised = error


def model_call_covered(governor: Governor) -> bool:
    """Returns whether the inside of a model call that ``governor`` has judged is running."""
    return MODEL_CALL.get() is governor


_CURRENT: ContextVar[LiveSpan | None] = ContextVar("lgov_span", default=None)

_CONTENT = frozenset({
    semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.SYSTEM_INSTRUCTIONS, semconv.TOOL_DEFINITIONS,
    semconv.TOOL_ARGUMENTS, semconv.TOOL_RESULT, semconv.ERROR_MESSAGE,
})  # fmt: skip


def current_span() -> LiveSpan | None:
    """The current span of the running code, or None. Callable from any thread or task."""
    return _CURRENT.get()


def started_span() -> LiveSpan | None:
    """The current span, or else the one in which the running thread was started (`lgov_core.scope.inherited`)."""
    return inherited(_CURRENT)


class LiveSpan:
    """A span that has begun: ``operation`` and ``name`` make its name, ``span_id`` (16 hex digits) is unique.

    ``trace_id`` is that of OpenTelemetry's trace where the program exports one, else None. Its parent is ``parent`` or
    else the current span, its rollout the one in whose scope it began. ``run_id`` is the id of the outermost span above.
    ``started_at`` (Unix time in seconds) is when it began, if that was not now. ``session_id`` is that of its scope, or else
    the conversation that it or a span above names. It must be ended (`end`) once; a second
    end changes nothing. Attributes that hold content (`semconv`: messages, arguments, results, error texts) are dropped at
    once unless ``observer.capture_content``; OpenTelemetry gets them only if the environment variable
    `CONTENT_VARIABLE` says so too. Used by one task or thread at a time.
    """

    __slots__ = (
        "_otel", "_unrecorded", "attributes", "ended", "name", "observer", "operation", "parent_id", "run_id", "scope",
        "session_id", "span_id", "started_at", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        observer: Governor,
        operation: str,
        name: str = "",
        attributes: Mapping[str, JSONValue] | None = None,
        *,
        parent: LiveSpan | None = None,
        started_at: float | None = None,
    ) -> None:
        parent = parent if parent is not None else _CURRENT.get()
        self.observer = observer
        self.operation = operation
        self.name = name
        self.scope = scope = current_scope()
        self.started_at = time.time() if started_at is None else started_at
        self.ended = False
        self.attributes: dict[str, JSONValue] = {semconv.OPERATION: operation}
        if scope is not None and scope.task_id is not None:
            self.attributes[semconv.TASK_ID] = scope.task_id
        if scope is not None and scope.mode is not None:
            self.attributes[semconv.ROLLOUT_MODE] = scope.mode
        self._otel: Any = None
        #: Without a tracer provider at the outermost span: the trace of that span and those below it, and its flags; empty
        #: where OpenTelemetry has no SDK either, so that its context is left alone.
        self._unrecorded: tuple[int, Any] | tuple[()] | None = (
            parent._unrecorded if parent is not None and observer.exports_spans else None
        )
        self.span_id = new_span_id()
        self.trace_id: str | None = None
        api = sys.modules.get("opentelemetry.trace") if observer.exports_spans else None
        if api is not None and self._unrecorded is None:
            # Under the current span the context is left as it is: the program may have opened spans of its own inside.
            above = parent._otel if parent is not None and parent is not _CURRENT.get() else None
            ids = self.span_id, _RANDOM.getrandbits(128) | 1
            begun = begin_otel_span(api, self.title, operation, self.started_at, above, ids)
            self._otel, self._unrecorded, self.span_id, self.trace_id = begun
        self.parent_id = parent.span_id if parent is not None else None
        self.run_id: str = parent.run_id if parent is not None else self.span_id
        if attributes:
            self.set(attributes)
        session_id = scope.session_id if scope is not None else None
        named = self.attributes.get(semconv.CONVERSATION_ID) or (parent.session_id if parent is not None else None)
        self.session_id: str | None = session_id or (None if named is None else str(named))

    def attach_otel(self) -> Any:
        """Makes it OpenTelemetry's current span; returns the token for `detach_otel_span`, or None."""
        if self._otel is None and self._unrecorded:
            self._otel = unrecorded_span(sys.modules["opentelemetry.trace"], self.span_id, self._unrecorded)
        return None if self._otel is None else attach_otel_span(self._otel)

    @property
    def title(self) -> str:
        """The span's name: its operation and the model, tool or agent."""
        return f"{self.operation} {self.name}" if self.name else self.operation

    def set(self, attributes: Mapping[str, JSONValue]) -> None:
        """Adds attributes; a value of None is left out."""
        if not self.observer.capture_content:
            attributes = {key: value for key, value in attributes.items() if key not in _CONTENT}
        if None in attributes.values():
            attributes = {key: value for key, value in attributes.items() if value is not None}
        self.attributes.update(attributes)

    @contextmanager
    def active(self, *, tool: CoveredCall | None = None, model: Governor | None = None) -> Generator[LiveSpan]:
        """Makes this the current span inside the block. In a generator it must not stay open across a ``yield``.

        The block is the inside of the judged call ``tool``, in this thread or task and those it hands its context to; a
        tool that calls a model makes a call of its own. Or it is that of a model call that the governor ``model`` judges:
        model calls in it are part of that one.
        """
        tokens: list[tuple[ContextVar[Any], Token[Any]]] = [(_CURRENT, _CURRENT.set(self))]
        if tool is not None:
            tokens.append((TOOL_CALL, TOOL_CALL.set(tool)))
        if tool is not None or model is not None:  # a model call inside of a tool is a call of its own
            tokens.append((MODEL_CALL, MODEL_CALL.set(model)))
        attached = self.attach_otel()
        try:
            yield self
        finally:
            if attached is not None:
                detach_otel_span(attached)
            for variable, token in reversed(tokens):
                variable.reset(token)

    def end(self, error: BaseException | str | None = None) -> None:
        """Ends the span and shows it; ``error`` is the exception, or a word for it. Does nothing the second time."""
        if self.ended:
            return
        self.ended = True
        if error is not None:
            self.attributes[semconv.ERROR_TYPE] = error if isinstance(error, str) else type(error).__name__
        self._show(time.time())

    def abandon(self) -> None:
        """Shows the span as one that never ended."""
        if not self.ended:
            self.ended = True
            self._show(None)

    def _show(self, ended_at: float | None) -> None:
        if self.trace_id is not None:  # a tracer provider records it
            exported = self.attributes
            if not exports_content():
                exported = {key: value for key, value in exported.items() if key not in _CONTENT}
            end_otel_span(self._otel, exported, ended_at)
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
