"""FlightRecorderEmitter: the entries of a flight recorder as spans, for a store, a file or a stream."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from lgov_core._util.files import atomic_file
from lgov_core.errors import ExportError
from lgov_core.flow import Flow, arun_flow, either, in_thread, run_flow, wait
from lgov_core.rl_governance.adapt import adapt_recorder, is_trace_store
from lgov_core.rl_governance.flight_recorder import (
    POLICY_CHECK,
    SIGNAL,
    TOOL_CALL,
    LightningSpan,
    entry_type_of,
    policy_of,
    span_of,
    violated,
)
from lgov_core.types import Span

#: Spans handed to a lgov store between two looks at what it kept: its queue must not overflow.
_BATCH: Final = 500

_LOG = logging.getLogger(__name__)


class FlightRecorderEmitter:
    """Turns each entry of ``flight_recorder`` into a span.

    A recorder is a `FlightRecorder`, or an object (a test double too) with ``get_log()``, ``get_entries()`` or ``entries``,
    oldest first, or with ``query_logs()``, in either order. An entry is a mapping or an object with fields. Where ``get_log``
    takes ``after``, the ``position`` of the last entry that was read (an entry without one counts as one), only new entries are
    read. Policy checks, signals and tool calls can be left out; entries of other types are always included. The trace id
    consists of ``trace_id_prefix`` and the agent's id.

    All methods may be called from any thread. Raises `ExportError` for an object that is not a recorder.
    """

    def __init__(
        self,
        flight_recorder: Any,
        include_policy_checks: bool = True,
        include_signals: bool = True,
        include_tool_calls: bool = True,
        trace_id_prefix: str = "agentos",
    ) -> None:
        self.flight_recorder = flight_recorder
        self.include_policy_checks, self.include_signals = include_policy_checks, include_signals
        self.include_tool_calls, self.trace_id_prefix = include_tool_calls, trace_id_prefix
        self._emitted = 0
        switches = {POLICY_CHECK: include_policy_checks, SIGNAL: include_signals, TOOL_CALL: include_tool_calls}
        self._left_out = frozenset(kind for kind, included in switches.items() if not included)
        self._read = adapt_recorder(flight_recorder)
        self._lock = threading.Lock()
        self._position = 0
        self._last: Mapping[str, Any] | None = None
        self._new: deque[LightningSpan] = deque()

    # ------------------------------------------------------------------ spans

    def get_spans(self) -> list[LightningSpan]:
        """The spans of everything recorded so far. Leaves what `get_new_spans` will answer as it is."""
        spans = self._all_spans()
        self._count(len(spans))
        return spans

    def _all_spans(self) -> list[LightningSpan]:
        return self._spans(self._read(0, None), 0)

    def get_new_spans(self) -> list[LightningSpan]:
        """The spans of what was recorded since the last call; at first, of everything. Each is answered once."""
        with self._lock:
            self._look()
            # Popped one by one, because a stream takes from the same queue without the lock.
            spans = [span for _ in range(len(self._new)) if (span := self._popped()) is not None]
        self._count(len(spans))
        return spans

    async def stream(self, stop_event: Any = None, poll_interval: float = 0.1) -> AsyncGenerator[LightningSpan]:
        """New spans as they come; shares its place with `get_new_spans`, so each span goes to one of them.

        Looks every ``poll_interval`` seconds, in a thread; 0 looks again at once. With a ``stop_event`` (an
        ``asyncio.Event`` or ``threading.Event``) that is set already nothing is yielded. When it is set later, what was
        recorded before is still yielded; then the stream ends. A consumer that leaves early loses nothing: what it did not
        get comes with the next call.
        """
        if not isinstance(poll_interval, int | float) or not poll_interval >= 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ExportError(f"poll_interval must be 0 or more, not {poll_interval!r}")
        if stop_event is not None and stop_event.is_set():
            return
        while True:
            stopping = stop_event is not None and stop_event.is_set()
            while (span := self._popped() or await asyncio.to_thread(self._next)) is not None:
                self._count(1)
                yield span
            if stopping:
                return
            if isinstance(stop_event, asyncio.Event):
                try:
                    await asyncio.wait_for(stop_event.wait(), poll_interval)
                except TimeoutError:
                    continue
            else:
                await asyncio.sleep(poll_interval)

    def _next(self) -> LightningSpan | None:
        with self._lock:
            if not self._new:
                self._look()
            return self._popped()

    def _popped(self) -> LightningSpan | None:
        try:
            return self._new.popleft()
        except IndexError:
            return None

    def _look(self) -> None:
        """Queues what is new. Where the recorder forgot old entries, the last one seen tells where to go on."""
        entries = self._read(self._position, self._last)
        if entries:
            self._new.extend(self._spans(entries, self._position))
            positions = [position for entry in entries if isinstance(position := entry.get("position"), int)]
            self._position = max(positions) if len(positions) == len(entries) else self._position + len(entries)
            self._last = entries[-1]

    def _spans(self, entries: Sequence[Mapping[str, Any]], before: int) -> list[LightningSpan]:
        return [
            span_of(entry, trace_id_prefix=self.trace_id_prefix, number=number)
            for number, entry in enumerate(entries, before + 1)
            if entry_type_of(entry) not in self._left_out
        ]

    def get_violation_summary(self) -> dict[str, Any]:
        """``total_entries``, ``total_violations``, ``violation_rate`` (of all entries) and ``policies_violated`` by name.

        Over everything recorded, whatever is left out of the spans. A violation is an entry whose own ``violated`` is true.
        Of an entry of agent-os or lgov, which has no ``violated``, the verdict says so: a policy check that found something
        and was enforced; one that failed itself (a fault) is none.
        """
        entries = self._read(0, None)
        by_policy = Counter(policy_of(entry) for entry in entries if violated(entry))
        return {
            "total_entries": len(entries),
            "total_violations": by_policy.total(),
            "violation_rate": by_policy.total() / len(entries) if entries else 0.0,
            "policies_violated": dict(by_policy),
        }

    def get_stats(self) -> dict[str, Any]:
        """``emitted_count``, the spans handed out so far, and ``last_position``, up to which `get_new_spans` has read.

        Handed out is what `get_spans`, `get_new_spans` and `stream` gave, what stores took and what files hold: a span that
        was given twice counts twice.
        """
        return {"emitted_count": self._emitted, "last_position": self._position}

    def _count(self, spans: int) -> None:
        with self._lock:
            self._emitted += spans

    # ------------------------------------------------------------------ to a store

    def emit_to_store(self, store: Any) -> int:
        """Hands every span to ``store`` and returns how many it took.

        The store has ``emit_span`` or ``add_span``, plain or asynchronous, which gets `LightningSpan.to_dict`; a lgov
        `TraceStore` gets its own kind of span, and what it dropped does not count. All spans are tried; that some were not
        stored is logged, with the first error. Inside a running event loop an asynchronous store needs
        `aemit_to_store`.
        """
        if inspect.iscoroutinefunction(_taker_of(store)):
            _require_no_loop()
            return asyncio.run(self.aemit_to_store(store))  # one loop for all spans
        return run_flow(self._emission_flow(store))

    async def aemit_to_store(self, store: Any) -> int:
        """As `emit_to_store`, for a running event loop: awaitable answers of the store are awaited."""
        return await arun_flow(self._emission_flow(store))

    def _emission_flow(self, store: Any) -> Flow[int]:
        take = _taker_of(store)
        own = is_trace_store(store)
        dropped = store.dropped_spans if own else 0
        stored, first = 0, cast("Exception | None", None)
        spans = yield from wait(in_thread(self._all_spans))
        for number, span in enumerate([*spans, None], start=1):
            try:
                if own and (span is None or number % _BATCH == 0):
                    yield from wait(in_thread(store.flush))
                if span is None:
                    break
                answer = take(_own_span(span) if own else span.to_dict())
                if inspect.isawaitable(answer):
                    answer = yield from wait(either(partial(_run, answer), lambda answer=answer: answer))
                stored += answer is not False
            except ExportError:
                raise
            except Exception as error:  # noqa: BLE001 - counted, and raised at the end
                first = first or error
        if own:
            stored -= store.dropped_spans - dropped
        if stored < len(spans):
            why = "it answered False or dropped them" if first is None else repr(first)
            _LOG.error("%d of %d spans were not stored: %s", len(spans) - stored, len(spans), why)
        self._count(stored)
        return stored

    # ------------------------------------------------------------------ to a file

    def export_to_file(self, path: str | os.PathLike[str]) -> int:
        """Writes every span to ``path`` as a JSON array and returns how many.

        The file (mode 0600) appears whole or not at all: it is written beside its place, synced and moved there. Raises
        `ExportError`, leaving what was there, when ``path`` is a link, no ordinary file or a database (the record itself
        is easily named by mistake), or cannot be written.
        """
        with atomic_file(Path(path), ExportError) as beside, beside.open("w", encoding="ascii") as file:
            spans = self._all_spans()
            json.dump([span.to_dict() for span in spans], file, indent=2, allow_nan=False)
            file.write("\n")
        self._count(len(spans))
        return len(spans)


def create_emitter(recorder: Any, *options: Any, **named: Any) -> FlightRecorderEmitter:
    """A `FlightRecorderEmitter` for ``recorder``, with its options. An unknown keyword is a TypeError."""
    return FlightRecorderEmitter(recorder, *options, **named)


def _own_span(span: LightningSpan) -> Span:
    """The span as lgov's own stores take it."""
    written = span.to_dict()["attributes"]
    attempt = written.get("agent_os.attempt")
    rollout = written.get("agent_os.rollout_id")
    return Span(
        name=span.name,
        span_id=span.span_id,
        started_at=span.start_time.timestamp(),
        ended_at=None if span.end_time is None else span.end_time.timestamp(),
        attributes={**written, "agent_os.trace_id": span.trace_id},
        rollout_id=rollout if isinstance(rollout, str) else None,
        attempt=attempt if isinstance(attempt, int) else None,
    )


def _taker_of(store: Any) -> Callable[[Any], Any]:
    for name in ("emit_span", "add_span"):
        if callable(take := getattr(store, name, None)):
            return take
    raise ExportError(f"a {type(store).__name__} takes no spans", hint="pass an object with emit_span or add_span")


def _require_no_loop(answer: Any = None) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if inspect.iscoroutine(answer):
        answer.close()
    raise ExportError("this store is asynchronous", hint="write await emitter.aemit_to_store(store)")


def _run(answer: Any) -> Any:
    """Awaits on an event loop of its own."""

    async def wait() -> Any:
        return await answer

    _require_no_loop(answer)
    return asyncio.run(wait())
