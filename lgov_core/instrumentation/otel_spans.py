"""Spans of the program's OpenTelemetry, if it uses it: lgov neither needs nor loads it."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lgov_core.trace import semconv
from lgov_core.trace.otlp.spans import nanoseconds

#: The variable that lets GenAI instrumentations put prompts, arguments and results on the spans they export.
CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

#: The source of ids. A program may seed the one of `random`; `os.urandom` releases the interpreter lock, which costs two
#: thread switches an id where tools run in threads.
_RANDOM = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RANDOM.seed)


def new_span_id() -> str:
    """A fresh span id: 16 hex digits."""
    return f"{_RANDOM.getrandbits(64):016x}"


def exports_content() -> bool:
    """Whether the program exports prompts, arguments and results."""
    return os.environ.get(CONTENT_VARIABLE, "").strip().lower() not in ("", "false", "0", "no_content")


def trace_of(api: Any, above: Any) -> tuple[int, Any]:
    """The trace id and flags of a span that is not recorded: those of the span context ``above``, or new ones."""
    if above.trace_id:
        return above.trace_id, above.trace_flags
    return _RANDOM.getrandbits(128) | 1, api.TraceFlags(api.TraceFlags.SAMPLED)


def unrecorded_span(api: Any, span_id: str, trace: tuple[int, Any]) -> Any:
    """A span that is not recorded, as a parent for what reads OpenTelemetry's context."""
    trace_id, flags = trace
    return api.NonRecordingSpan(api.SpanContext(trace_id, int(span_id, 16), False, flags))


@lru_cache(maxsize=1)
def tracer(api: Any) -> Any:
    """The tracer of lgov: before a provider is set it is a proxy, which finds the provider once there is one."""
    return api.get_tracer("lgov")


def attach(api: Any, otel: Any) -> Any:
    """Makes ``otel`` the current span; returns the token for `detach`."""
    return sys.modules["opentelemetry.context"].attach(api.set_span_in_context(otel))


def detach(token: Any) -> None:
    """Makes the span current again that was so before `attach`."""
    sys.modules["opentelemetry.context"].detach(token)


def end(otel: Any, attributes: Mapping[str, Any], ended_at: float | None) -> None:
    """Ends a recorded span with ``attributes``, at ``ended_at`` (Unix time in seconds) or now."""
    if otel.is_recording():
        for key, value in attributes.items():
            otel.set_attribute(key, value)
        if (error := attributes.get(semconv.ERROR_TYPE)) is not None:
            api: Any = sys.modules["opentelemetry.trace"]
            otel.set_status(api.StatusCode.ERROR, str(error))
    otel.end(nanoseconds(ended_at if ended_at is not None else time.time()))
