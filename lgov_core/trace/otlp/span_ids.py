"""Ids for spans that go to an OpenTelemetry collector: real ones are kept, others are derived, always the same way."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from lgov_core.trace.otlp.span import is_id
from lgov_core.types import Span

#: A span in its attempt.
_Key: TypeAlias = tuple[str | None, int | None, str]


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
    by_key: dict[_Key, Span] = {}
    for span in spans:
        by_key.setdefault(_key(span), span)
    known: dict[_Key, str] = {}
    made: list[Span] = []
    for span in spans:
        trace_id = _trace(span, by_key, known)
        parent_id = None if span.parent_id is None else _span_id(trace_id, span.parent_id)
        made.append(replace(span, trace_id=trace_id, span_id=_span_id(trace_id, span.span_id), parent_id=parent_id))
    return made


def _span_id(trace_id: str, span_id: str) -> str:
    return span_id if is_id(span_id, 16) else _derived(8, "span", trace_id, span_id)


def _key(span: Span) -> _Key:
    return span.rollout_id, span.attempt, span.span_id


def _trace(span: Span, by_key: Mapping[_Key, Span], known: dict[_Key, str]) -> str:
    """Walks up until a span with a trace of its own, a known one or the top; a cycle ends where it began."""
    path: dict[_Key, None] = {}
    here = span
    while not (here.trace_id is not None and is_id(here.trace_id, 32)) and _key(here) not in known:
        path[_key(here)] = None
        above = None if here.parent_id is None else by_key.get((here.rollout_id, here.attempt, here.parent_id))
        if above is None or _key(above) in path:
            top = min(path) if above is not None else _key(here)
            known[_key(here)] = (
                trace_id_of_attempt(here.rollout_id, here.attempt) if here.rollout_id else _derived(16, "top", top[2])
            )
            break
        here = above
    own = here.trace_id if here.trace_id is not None and is_id(here.trace_id, 32) else None
    found = known[_key(here)] if own is None else own
    known.update(dict.fromkeys(path, found))
    return found
