"""Spans of the program's OpenTelemetry, which lgov neither needs nor loads."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

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


class BegunSpan(NamedTuple):
    """OpenTelemetry's span, where there is one, and the ids of ours.

    ``unrecorded``: without a tracer provider the trace that the span would be in, with its flags; empty where OpenTelemetry has
    no SDK either.
    """

    otel: Any
    unrecorded: tuple[int, Any] | tuple[()] | None
    span_id: str
    trace_id: str | None


def begin_otel_span(
    api: Any, title: str, operation: str, started_at: float, parent: Any, ids: tuple[str, int]
) -> BegunSpan:
    """Opens a span below ``parent``, or, without it, below the current one. Without a tracer provider it opens none.

    ``ids`` are those of the span, and of its trace, that OpenTelemetry does not record.
    """
    span_id, trace_id = ids
    context = None if parent is None else api.set_span_in_context(parent)
    if type(api.get_tracer_provider()) is api.ProxyTracerProvider:
        above = api.get_current_span(context).get_span_context()
        has_sdk = "opentelemetry.sdk.trace" in sys.modules
        return BegunSpan(None, _trace_of(api, above, trace_id) if has_sdk else (), span_id, None)
    kind = api.SpanKind.CLIENT if operation == semconv.CHAT else api.SpanKind.INTERNAL
    otel = _tracer(api).start_span(title, context, kind, start_time=nanoseconds(started_at))
    own = otel.get_span_context()
    if otel.is_recording():
        return BegunSpan(otel, None, f"{own.span_id:016x}", f"{own.trace_id:032x}")
    # Its sampler may record those below it all the same, so they have to ask again.
    return BegunSpan(unrecorded_span(api, span_id, _trace_of(api, own, trace_id)), None, span_id, None)


def _trace_of(api: Any, above: Any, trace_id: int) -> tuple[int, Any]:
    """The trace id and flags of a span that is not recorded: those of the span context ``above``, or ``trace_id``."""
    if above.trace_id:
        return above.trace_id, above.trace_flags
    return trace_id, api.TraceFlags(api.TraceFlags.SAMPLED)


@lru_cache(maxsize=1)
def _tracer(api: Any) -> Any:
    """The tracer of lgov: before a provider is set it is a proxy, which finds the provider once there is one."""
    return api.get_tracer("lgov")


def attach_otel_span(otel: Any) -> Any:
    """Makes ``otel`` the current span; returns the token for `detach`."""
    api: Any = sys.modules["opentelemetry.trace"]
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
