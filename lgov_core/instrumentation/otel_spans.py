"""Spans of the program's OpenTelemetry, which lgov neither needs nor loads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from lgov_core.trace import semconv
from lgov_core.trace.otlp_spans import nanoseconds

#: The variable that lets GenAI instrumentations put prompts, arguments and results on the spans they export.
CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def exports_content() -> bool:
    """Returns whether the program exports prompts, arguments and results."""
    return os.environ.get(CONTENT_VARIABLE, "").strip().lower() not in ("", "false", "0", "no_content")


def unrecorded_span(api: Any, span_id: str, trace: tuple[int, Any]) -> Any:
    """A span that is not recorded, as a parent for what reads OpenTelemetry's context."""
    trace_id, flags = trace
    return api.NonRecordingSpan(api.SpanContext(trace_id, int(span_id, 16), False, flags))


@lru_cache(maxsize=1)
def tracer(api: Any) -> Any:
    """The tracer of lgov: before a provider is set it is a proxy, which finds the provider once there is one."""
    return api.get_tracer("lgov")


def attach_otel_span(api: Any, otel: Any) -> Any:
    """Makes ``otel`` the current span; returns the token for `detach`."""
    return sys.modules["opentelemetry.context"].attach(api.set_span_in_context(otel))


def detach_otel_span(token: Any) -> None:
    """Makes the span current again that was so before `attach_otel_span`."""
    sys.modules["opentelemetry.context"].detach(token)


def end_otel_span(otel: Any, attributes: Mapping[str, Any], ended_at: float | None) -> None:
    """Ends a recorded span with ``attributes``, at ``ended_at`` (Unix time in seconds) or now."""
    if otel.is_recording():
        for key, value in attributes.items():
            otel.set_attribute(key, value)
        if (error := attributes.get(semconv.ERROR_TYPE)) is not None:
            api: Any = sys.modules["opentelemetry.trace"]
            otel.set_status(api.StatusCode.ERROR, str(error))
    otel.end(nanoseconds(ended_at if ended_at is not None else time.time()))
