"""The plugin that sends what a governor shows its observers to an OpenTelemetry collector, as it happens."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any, Final

from lgov_core.errors import TraceError
from lgov_core.governor import ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.trace import semconv
from lgov_core.trace.otlp.export import Collector, send_spans
from lgov_core.trace.rollout_spans import reward_span
from lgov_core.trace.sink import decision_span, tool_span
from lgov_core.types import Reward, Span, ToolOutcome

#: Spans of one request, and how long the first of them may wait for others.
_BATCH: Final = 512
_LINGER_S: Final = 1.0


class CollectorSink:
    """Sends spans, decisions, tool outcomes and rewards to ``collector``: a plugin for a governor.

    Nothing waits for it: events go into a queue of at most ``queue`` spans, and a thread sends them. What finds no room,
    and what the collector does not take even after `Collector.attempts`, is dropped and counted in ``dropped``;
    ``last_problem`` describes the last failure. A decision is sent when its parent span has ended, so that it goes into the
    same trace.
    With ``content=False`` no content is sent (`lgov_core.trace.content.without_content`).

    `close` sends what is left, and waits for it. Callable from any thread. This is telemetry: the audit record and the
    trace store hold what must not be lost.
    """

    def __init__(self, collector: Collector, *, content: bool = True, queue: int = 10_000) -> None:
        self._collector = collector
        self._content = content
        self._limit = queue
        self._waiting: deque[Span] = deque()
        self._held: dict[str, list[Span]] = {}
        self._held_count = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self.sent = 0
        self.dropped = 0
        self.last_problem = ""
        self._thread = threading.Thread(target=self._run, name="lgov-collector-sink", daemon=True)
        self._thread.start()

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """Queues ``event`` if it is one of the kinds named above."""
        if isinstance(event, Span):
            self._put(event)
        elif isinstance(event, ObservedDecision):
            self._put(decision_span(event, content=self._content))
        elif isinstance(event, ToolOutcome):
            if event.action.span_id is None:
                self._put(tool_span(event, content=self._content))
        elif isinstance(event, Reward):
            self._put(reward_span(event, time.time()))

    def close(self) -> None:
        """Sends what is left and stops. Calling it again does nothing; what comes later is dropped and counted."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def _put(self, span: Span) -> None:
        with self._lock:
            if self._stopping.is_set() or len(self._waiting) + self._held_count >= self._limit:
                self.dropped += 1
                return
            if span.name == semconv.DECISION_SPAN_NAME and span.parent_id is not None and span.trace_id is None:
                self._held.setdefault(span.parent_id, []).append(span)
                self._held_count += 1
                return
            self._waiting.append(span)
            for below in self._held.pop(span.span_id, ()):
                self._held_count -= 1
                self._waiting.append(replace(below, trace_id=span.trace_id))
            if len(self._waiting) >= _BATCH:
                self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(_LINGER_S)
            self._wake.clear()
            stopping = self._stopping.is_set()
            while batch := self._take(everything=stopping):
                self._send(batch)
            if stopping:
                return

    def _take(self, *, everything: bool) -> list[Span]:
        with self._lock:
            if everything:
                for below in self._held.values():
                    self._waiting.extend(below)
                self._held.clear()
                self._held_count = 0
            return [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]

    def _send(self, batch: list[Span]) -> None:
        """Sends a batch. Once `close` was called no time is spent between two attempts."""
        try:
            result = send_spans(batch, self._collector, content=self._content, sleep=self._stopping.wait)
        except TraceError as error:
            taken, self.last_problem = 0, str(error)
        else:
            taken, self.last_problem = result.spans, result.messages[-1] if result.messages else self.last_problem
        with self._lock:
            self.sent += taken
            self.dropped += len(batch) - taken
