"""The SDK's own traces: not sent to the vendor, and shown to the governor where nothing else shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import set_trace_processors
from agents.tracing import get_trace_provider
from agents.tracing.processor_interface import TracingProcessor
from agents.tracing.processors import default_processor

from lgov_core.instrumentation import Governor, readable_json, semconv
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_openai_agents._internals import trace_processors
from lgov_openai_agents.items import FRAMEWORK

_OPERATIONS = {
    "agent": semconv.INVOKE_AGENT,
    "generation": semconv.CHAT,
    "response": semconv.CHAT,
    "function": semconv.EXECUTE_TOOL,
}


class LgovTracingProcessor(TracingProcessor):
    """Shows the SDK's traces to ``governor`` as spans with GenAI names; it observes and stops nothing::

        set_trace_processors([LgovTracingProcessor(governor)])

    For programs that are not governed in another way: `instrument` and `LgovRunner` make agent, model and tool spans, and
    these would be a second copy. ``set_trace_processors`` also takes out the SDK's exporter, which
    sends prompts to the vendor. Callable from any thread.
    """

    def __init__(self, governor: Governor) -> None:
        self._governor = governor
        self._open: dict[str, LiveSpan] = {}

    def on_trace_start(self, trace: Any) -> None:
        """Nothing: only spans are shown."""

    def on_trace_end(self, trace: Any) -> None:
        """Nothing."""

    def on_span_start(self, span: Any) -> None:
        """Opens a span for the SDK's."""
        data = span.span_data
        operation = _OPERATIONS.get(data.type) or str(data.type)
        name = getattr(data, "name", None) or getattr(data, "model", None) or ""
        parent = self._open.get(span.parent_id) if span.parent_id else None
        attributes: dict[str, Any] = {semconv.FRAMEWORK: FRAMEWORK}
        if data.type == "agent":
            attributes[semconv.AGENT_NAME] = data.name
        if data.type == "function":
            attributes[semconv.TOOL_NAME] = data.name
        self._open[span.span_id] = LiveSpan(self._governor, operation, str(name), attributes, parent=parent)

    def on_span_end(self, span: Any) -> None:
        """Ends it, with the attributes of the SDK's."""
        ours = self._open.pop(span.span_id, None)
        if ours is not None:
            ours.set(_attributes_of(span.span_data))
            ours.end(str(span.error.get("message")) if span.error else None)

    def shutdown(self) -> None:
        """Shows the spans that never ended."""
        for span in list(self._open.values()):
            span.abandon()
        self._open.clear()

    def force_flush(self) -> None:
        """Nothing is held back."""


def _attributes_of(data: Any) -> dict[str, Any]:
    if data.type == "function":
        return {semconv.TOOL_ARGUMENTS: _text(data.input), semconv.TOOL_RESULT: _text(data.output)}
    if data.type == "generation":
        return {
            semconv.REQUEST_MODEL: data.model,
            semconv.INPUT_MESSAGES: _text(data.input),
            semconv.OUTPUT_MESSAGES: _text(data.output),
            **_usage(data.usage or {}),
        }
    if data.type == "response" and data.response is not None:
        usage = data.response.usage
        return {
            semconv.REQUEST_MODEL: data.response.model,
            semconv.RESPONSE_ID: data.response.id,
            semconv.INPUT_MESSAGES: _text(data.input),
            semconv.OUTPUT_MESSAGES: _text([item.model_dump() for item in data.response.output]),
            **(_usage({"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}) if usage else {}),
        }
    return {}


def _usage(used: dict[str, Any]) -> dict[str, Any]:
    return {semconv.INPUT_TOKENS: used.get("input_tokens"), semconv.OUTPUT_TOKENS: used.get("output_tokens")}


def _text(value: Any) -> str | None:
    return None if value is None else value if isinstance(value, str) else readable_json(value)


def keep_traces_here() -> Callable[[], None]:
    """Takes the SDK's exporter out of its trace processors, and nothing else; returns what puts it back."""
    provider: Any = get_trace_provider()
    present = trace_processors(provider)
    vendor = default_processor()
    set_trace_processors([processor for processor in present if processor is not vendor])

    def put_back() -> None:
        current = trace_processors(provider)
        if vendor in present and vendor not in current:
            set_trace_processors([vendor, *current])

    return put_back
