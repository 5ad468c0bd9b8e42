"""Spans out: to any OpenTelemetry collector, over OTLP/HTTP, from a store or as a governor shows them."""

from __future__ import annotations

import email.utils
import gzip
import hashlib
import http.client
import logging
import os
import random
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from lgov_core.errors import SettingsError, TraceError
from lgov_core.governor import ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.trace import semconv
from lgov_core.trace.otlp_http import CONTENT_TYPE_OF, Protocol, encode_traces, rejected_in
from lgov_core.trace.otlp_spans import OUR_SCOPE, is_id
from lgov_core.trace.rollout_spans import (
    RolloutReader,
    call_span,
    reward_span,
    rollout_ids_in,
    rollout_spans,
    without_content,
)
from lgov_core.trace.sink import decision_span, tool_span
from lgov_core.types import CapturedCall, JSONValue, Reward, Span, ToolOutcome

#: Answers after which the same request may be sent again (OTLP/HTTP, "Failures").
RETRYABLE: Final = frozenset({429, 502, 503, 504})

_RESOURCE: Final[Mapping[str, JSONValue]] = {"service.name": OUR_SCOPE}
_ANSWER_READ: Final = 64 * 1024
#: Where OpenTelemetry's own exporters look for headers: NAME=VALUE pairs with commas between them, percent-encoded.
HEADERS_VARIABLE: Final = "OTEL_EXPORTER_OTLP_HEADERS"


#: A span in its attempt.
_Key: TypeAlias = tuple[str | None, int | None, str]


def _derived(size: int, *parts: object) -> str:
    digest = hashlib.blake2b(
        "\0".join(str(part) for part in parts).encode(errors="replace"), digest_size=size, person=b"lgov span ids"
    )
    return digest.hexdigest()


def trace_id_of_attempt(rollout_id: str, attempt: int | None) -> str:
    """The trace of the spans of an attempt that came from no OpenTelemetry trace: 32 hexadecimal digits."""
    return _derived(16, "attempt", rollout_id, attempt or 1)


def with_ids(spans: Sequence[Span]) -> list[Span]:
    """``spans`` with the ids they are sent under, in the given order.

    A trace or span id that is one already is kept. A span without a trace of its own is in its parent's, where that is
    among ``spans`` and has one, else in its attempt's (`trace_id_of_attempt`), or with neither in one derived from the
    top of its tree. The same spans get the same ids each time; so give the spans of an attempt together.
    """
    by_key: dict[_Key, Span] = {}
    for span in spans:
        by_key.setdefault(_key(span), span)
    trace_ids: dict[_Key, str] = {}
    identified: list[Span] = []
    for span in spans:
        trace_id = _trace(span, by_key, trace_ids)
        parent_id = None if span.parent_id is None else _span_id(trace_id, span.parent_id)
        identified.append(
            replace(span, trace_id=trace_id, span_id=_span_id(trace_id, span.span_id), parent_id=parent_id)
        )
    return identified


def _span_id(trace_id: str, span_id: str) -> str:
    return span_id if is_id(span_id, 16) else _derived(8, "span", trace_id, span_id)


def _key(span: Span) -> _Key:
    return span.rollout_id, span.attempt, span.span_id


def _trace(span: Span, by_key: Mapping[_Key, Span], trace_ids: dict[_Key, str]) -> str:
    """Walks up until a span with a trace of its own, a known one or the top; a cycle ends where it began."""
    path: dict[_Key, None] = {}
    here = span
    while not (here.trace_id is not None and is_id(here.trace_id, 32)) and _key(here) not in trace_ids:
        path[_key(here)] = None
        above = None if here.parent_id is None else by_key.get((here.rollout_id, here.attempt, here.parent_id))
        if above is None or _key(above) in path:
            top = min(path) if above is not None else _key(here)
            trace_ids[_key(here)] = (
                trace_id_of_attempt(here.rollout_id, here.attempt) if here.rollout_id else _derived(16, "top", top[2])
            )
            break
        here = above
    own = here.trace_id if here.trace_id is not None and is_id(here.trace_id, 32) else None
    trace_id = trace_ids[_key(here)] if own is None else own
    trace_ids.update(dict.fromkeys(path, trace_id))
    return trace_id


@dataclass(frozen=True, slots=True)
class Collector:
    """Where spans are sent. ``url`` is the whole address: for most collectors it ends in ``/v1/traces``.

    ``headers`` go with each request (keys, tenants). A request holds at most ``batch_spans`` spans and, unpacked, about
    ``batch_bytes``. One that fails in a way that may pass is sent again, up to ``attempts`` times in all, after
    ``backoff_s`` seconds, doubled each time and up to half as long by chance, at most ``backoff_limit_s``; a collector
    that says how long to wait (``Retry-After``) is believed up to that limit.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)  # they hold keys
    protocol: Protocol = "protobuf"
    compress: bool = True
    timeout_s: float = 10.0
    batch_spans: int = 512
    batch_bytes: int = 2 * 1024 * 1024
    attempts: int = 6
    backoff_s: float = 1.0
    backoff_limit_s: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TraceError(
                f"{self.url!r} is not the address of a collector",
                hint="write http://host:4318/v1/traces, with the path",
            )


@dataclass(slots=True)
class Sent:
    """The result of an export. ``rejected`` spans reached the collector, which refused them."""

    rollouts: int = 0
    spans: int = 0
    rejected: int = 0
    requests: int = 0
    retries: int = 0
    messages: list[str] = field(default_factory=list[str])


def export_spans(
    store: RolloutReader,
    collector: Collector,
    *,
    rollout_ids: Sequence[str] | None = None,
    run_id: str | None = None,
    content: bool = True,
    sleep: Callable[[float], object] = time.sleep,
) -> Sent:
    """Sends rollouts (all, those of a run, or those named) with everything that ``store`` holds of them.

    What belongs to no rollout is not sent. See `rollout_spans`. Each span has the same ids whenever it is sent, so a
    collector that is sent a rollout twice can tell. Without ``content`` only names, ids, counts and verdicts go out
    (`without_content`). Raises `TraceError` when a request is refused for good, or still fails after the last attempt;
    what was sent before stays sent. Blocks; for one thread.
    """
    if rollout_ids is None:
        rollout_ids = rollout_ids_in(store, run_id)
    sent = Sent()
    with closing(_Sender(collector, sent, sleep)) as sender:
        for rollout_id in rollout_ids:
            if spans := rollout_spans(store, rollout_id):
                sender.add(spans, content=content)
                sent.rollouts += 1
        sender.flush()
    return sent


def send_spans(
    spans: Iterable[Span], collector: Collector, *, content: bool = True, sleep: Callable[[float], object] = time.sleep
) -> Sent:
    """As `export_spans`, for spans at hand."""
    sent = Sent()
    with closing(_Sender(collector, sent, sleep)) as sender:
        sender.add(list(spans), content=content)
        sender.flush()
    return sent


class _Sender:
    """Collects spans into requests and posts them over one connection."""

    def __init__(self, collector: Collector, sent: Sent, sleep: Callable[[float], object]) -> None:
        self._collector = collector
        self._sent = sent
        self._sleep = sleep
        self._waiting: list[Span] = []
        self._bytes = 0
        self._connection: http.client.HTTPConnection | None = None

    def add(self, spans: Sequence[Span], *, content: bool) -> None:
        """Takes spans; what fills a request is sent."""
        for span in with_ids(spans if content else [without_content(span) for span in spans]):
            self._waiting.append(span)
            self._bytes += 100 + len(repr((span.name, span.attributes, span.events)))  # about
            if len(self._waiting) >= self._collector.batch_spans or self._bytes >= self._collector.batch_bytes:
                self.flush()

    def flush(self) -> None:
        """Sends what waits."""
        if self._waiting:
            count, self._waiting, waiting = len(self._waiting), [], self._waiting
            self._bytes = 0
            self._post(encode_traces(waiting, self._collector.protocol, _RESOURCE), count)

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, body: bytes, count: int) -> None:
        collector, sent = self._collector, self._sent
        packed = gzip.compress(body, 6, mtime=0) if collector.compress else body
        waits = _waits(collector)
        while True:
            status, answer, headers, failure = self._try(packed)
            if 200 <= status < 300:
                break
            wait = next(waits, None) if status in RETRYABLE or status == 0 else None
            if wait is None:
                beginning = "".join(
                    char if char.isprintable() else " " for char in answer[:200].decode(errors="replace")
                )
                what = failure or f"it answered {status}: {beginning.strip() or 'nothing more'}"
                raise TraceError(
                    f"{count} spans were not taken by {_shown(collector.url)}: {what}",
                    status=502,
                    hint=_HINTS.get(status),
                )
            sent.retries += 1
            self._sleep(_asked(headers, collector.backoff_limit_s) or wait)
        rejected, message = rejected_in(answer, headers.get("content-type"))
        sent.requests += 1
        sent.rejected += min(max(rejected, 0), count)
        sent.spans += count - min(max(rejected, 0), count)
        if message and message not in sent.messages:
            sent.messages.append(message)

    def _try(self, packed: bytes) -> tuple[int, bytes, Mapping[str, str], str]:
        """One request: its status (0 where there was no answer), answer, headers in lower case, and what went wrong."""
        collector, parts = self._collector, urlsplit(self._collector.url)
        headers = {**collector.headers, "content-type": CONTENT_TYPE_OF[collector.protocol], "user-agent": "lgov"}
        if collector.compress:
            headers["content-encoding"] = "gzip"
        try:
            if self._connection is None:
                host, timeout_s = parts.hostname or "", collector.timeout_s
                if parts.scheme == "https":
                    context = ssl.create_default_context()
                    self._connection = http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)
                else:
                    self._connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            self._connection.request("POST", path, packed, headers)
            reply = self._connection.getresponse()
            answer = reply.read(_ANSWER_READ)
            if not reply.isclosed():
                self.close()  # the rest of a long answer is not needed
            return reply.status, answer, {name.lower(): value for name, value in reply.getheaders()}, ""
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return 0, b"", {}, f"{type(error).__name__}: {error}"


_HINTS: Final = {
    0: "is the collector running there?",
    401: "give the collector's key with --header",
    403: "give the collector's key with --header",
    404: "give the whole address, which mostly ends in /v1/traces",
    405: "give the whole address, which mostly ends in /v1/traces",
    413: "send smaller batches",
    415: "try the other protocol",
}


def _waits(collector: Collector) -> Iterator[float]:
    """How long to wait before each further attempt."""
    for number in range(collector.attempts - 1):
        yield min(collector.backoff_s * 2**number, collector.backoff_limit_s) * (1 + random.random() / 2)


def _asked(headers: Mapping[str, str], limit: float) -> float | None:
    """The seconds that ``Retry-After`` asks for (as a number or a date), at most ``limit``."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), limit)
    try:
        when = email.utils.parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, IndexError):
        return None
    return min(max(when - time.time(), 0.0), limit)


def _shown(url: str) -> str:
    """An address without what it may hold of a key."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path}"


#: Spans of one request, and how long the first of them may wait for others.
_BATCH: Final = 512
_LINGER_S: Final = 1.0


_LOG = logging.getLogger("lgov.otlp")


class CollectorSink:
    """Sends spans, captured calls, decisions, tool outcomes and rewards to ``collector``: a plugin for a governor.

    Nothing waits for it: events go into a queue of at most ``queue`` spans, and a thread sends them. What finds no room,
    and what the collector does not take even after `Collector.attempts`, is dropped and counted in ``dropped``;
    ``last_problem`` describes the last failure, and the first of several in a row is logged. A decision is sent when its
    parent span has ended, so that it goes into the same trace; one of an endpoint at once, since the agent has that span.
    With ``content=False`` no content is sent (`lgov_core.trace.rollout_spans.without_content`).

    `close` sends what is left, and waits for it. Callable from any thread. This is telemetry: the audit record and the
    trace store hold what must not be lost.
    """

    def __init__(self, collector: Collector, *, content: bool = True, queue: int = 10_000) -> None:
        self._collector = collector
        self._content = content
        self._limit = queue
        self._waiting: deque[Span | CapturedCall] = deque()
        self._held: dict[str, list[Span]] = {}
        self._held_count = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self.sent = 0
        self.dropped = 0
        self.last_problem = ""
        self._is_down = False
        self._thread = threading.Thread(target=self._run, name="lgov-collector-sink", daemon=True)
        self._thread.start()

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """Queues ``event`` if it is one of the kinds named above."""
        if isinstance(event, Span | CapturedCall):
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

    def readings(self) -> Iterator[tuple[str, str, str, str, dict[str, float]]]:
        """The metric of what was sent."""
        counts = {"sent": float(self.sent), "dropped": float(self.dropped)}
        yield "counter", "lgov_exported_spans", "Spans for the collector, by what became of them.", "what", counts

    def _put(self, span: Span | CapturedCall) -> None:
        with self._lock:
            if self._stopping.is_set() or len(self._waiting) + self._held_count >= self._limit:
                self.dropped += 1
                return
            if isinstance(span, Span) and _awaits_parent(span):
                self._held.setdefault(str(span.parent_id), []).append(span)
                self._held_count += 1
                return
            self._waiting.append(span)
            if isinstance(span, Span):
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
                if (
                    not self._send(batch) and self._stopping.is_set()
                ):  # an end does not wait for a collector that is away
                    with self._lock:
                        self.dropped += len(self._waiting)
                        self._waiting.clear()
            if stopping:
                return

    def _take(self, *, everything: bool) -> list[Span | CapturedCall]:
        with self._lock:
            if everything:
                for below in self._held.values():
                    self._waiting.extend(below)
                self._held.clear()
                self._held_count = 0
            return [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]

    def _send(self, batch: Sequence[Span | CapturedCall]) -> bool:
        """Sends a batch; True if the collector took it. Once `close` was called no time is spent between two attempts."""
        failure, taken = None, 0
        try:
            spans = [call_span(item) if isinstance(item, CapturedCall) else item for item in batch]
            result = send_spans(spans, self._collector, content=self._content, sleep=self._stopping.wait)
        except Exception as error:  # noqa: BLE001 - the thread goes on with the next batch
            failure = str(error) if isinstance(error, TraceError) else f"{type(error).__name__}: {error}"
            self.last_problem = failure
        else:
            taken, self.last_problem = result.spans, result.messages[-1] if result.messages else self.last_problem
        with self._lock:
            self.sent += taken
            self.dropped += len(batch) - taken
        if (failure is not None) != self._is_down:
            self._is_down = failure is not None
            level, event = (logging.WARNING, "down") if self._is_down else (logging.INFO, "back")
            _LOG.log(level, "collector is %s", event, extra={"lgov_fields": {"cause": failure}})
        return failure is None


def _awaits_parent(span: Span) -> bool:
    """Returns whether a decision is to wait for the span that it is below, which may name another trace."""
    if span.name != semconv.DECISION_SPAN_NAME or span.attributes.get(semconv.FRAMEWORK) == "endpoint":
        return False
    return span.parent_id is not None and span.trace_id is None


def headers_in_environment() -> dict[str, str]:
    """The headers that `HEADERS_VARIABLE` names. Raises `SettingsError`."""
    headers: dict[str, str] = {}
    for text in map(unquote, filter(str.strip, os.environ.get(HEADERS_VARIABLE, "").split(","))):
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or "\n" in text or "\r" in text:
            # Its text may be a key, so it is not shown.
            raise SettingsError(f"a header in {HEADERS_VARIABLE} is written NAME=VALUE")
        headers[name.strip().lower()] = value.strip()
    return headers
