"""Ids for spans that go to an OpenTelemetry collector: real ones are kept, others are derived, always the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lgov_core.trace.otlp.span import is_id
from lgov_core.types import Span


def _derived(size: int, *parts: object) -> str:
    made = hashlib.blake2b(
        "\0".join(str(part) for part in parts).encode(errors="replace"), digest_size=size, person=b"lgov span ids"
    )
    return made.hexdigest()


def trace_id_of_attempt(rollout_id: str, attempt: int | None) -> str:
    """The trace of the spans of an attempt that came from no OpenTelemetry trace: 32 hexadecimal digits."""
    return _derived(16, "attempt", rollout_id, attempt or 1)


def with_ids(spans: Sequence[Span]) -> list[Span]:
    """``spans`` with the ids they are sent under, in the given order.

    A trace or span id that is one already is kept. A span without a trace of its own is in its parent's, where that is
    among ``spans`` and has one, else in its attempt's (`trace_id_of_attempt`), or with neither in one derived from the
    top of its tree. The same spans get the same ids each time; so give the spans of an attempt together.
    """
    return [
        replace(
            span,
            trace_id=trace_id,
            span_id=_span_id(trace_id, span.span_id),
            parent_id=None if span.parent_id is None else _span_id(trace_id, span.parent_id),
        )
        for span, trace_id in zip(spans, _traces(spans), strict=True)
    ]


def _span_id(trace_id: str, span_id: str) -> str:
    return span_id if is_id(span_id, 16) else _derived(8, "span", trace_id, span_id)


def _traces(spans: Iterable[Span]) -> list[str]:
    spans = list(spans)
    by_id: dict[tuple[str | None, int | None, str], Span] = {}
    for span in spans:
        by_id.setdefault((span.rollout_id, span.attempt, span.span_id), span)
    known: dict[tuple[str | None, int | None, str], str] = {}
    return [_trace(span, by_id, known) for span in spans]


def _trace(
    span: Span,
    by_id: dict[tuple[str | None, int | None, str], Span],
    known: dict[tuple[str | None, int | None, str], str],
) -> str:
    """Walks up until a span with a trace of its own, a known one or the top; cycles end where they began."""
    path: list[tuple[str | None, int | None, str]] = []
    seen: set[tuple[str | None, int | None, str]] = set()
    here = span
    while True:
        key = (here.rollout_id, here.attempt, here.span_id)
        if here.trace_id is not None and is_id(here.trace_id, 32):
            found = here.trace_id
            break
        if key in known:
            found = known[key]
            break
        path.append(key)
        seen.add(key)
        above = None if here.parent_id is None else by_id.get((here.rollout_id, here.attempt, here.parent_id))
        if above is None or (above.rollout_id, above.attempt, above.span_id) in seen:
            top = min(seen) if above is not None else key
            found = (
                trace_id_of_attempt(here.rollout_id, here.attempt) if here.rollout_id else _derived(16, "top", top[2])
            )
            break
        here = above
    for key in path:
        known[key] = found
    return found
