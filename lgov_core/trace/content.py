"""Removes content from spans: prompts, replies, arguments, results, and whatever may quote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from lgov_core.trace import identity, semconv
from lgov_core.trace.mapping.canonical import canonical
from lgov_core.types import JSONValue, Span, SpanEvent

#: What stays: names, ids, counts, verdicts and numbers. An allow-list, so that unknown names are removed. Token ids are
#: not on it, because they are the prompt; nor are a decision's reason and an error's text.
KEPT: Final = frozenset(
    {
        semconv.OPERATION,
        semconv.PROVIDER,
        semconv.REQUEST_MODEL,
        semconv.REQUEST_TEMPERATURE,
        semconv.REQUEST_TOP_P,
        semconv.REQUEST_MAX_TOKENS,
        semconv.RESPONSE_ID,
        semconv.RESPONSE_MODEL,
        semconv.FINISH_REASONS,
        semconv.INPUT_TOKENS,
        semconv.OUTPUT_TOKENS,
        semconv.AGENT_ID,
        semconv.AGENT_NAME,
        semconv.CONVERSATION_ID,
        semconv.TOOL_NAME,
        semconv.TOOL_TYPE,
        semconv.TOOL_CALL_ID,
        semconv.TOOL_CALL_IDS,
        semconv.TOOL_STATUS,
        semconv.ERROR_TYPE,
        semconv.TASK_ID,
        semconv.RUN_ID,
        semconv.OUTCOME,
        semconv.FRAMEWORK,
        semconv.CALL_ID,
        semconv.CHOICE,
        semconv.WEIGHTS_VERSION,
        semconv.POINT,
        semconv.ACTION_KIND,
        semconv.ACTION_NAME,
        semconv.DECISION_ID,
        semconv.DECISION_EFFECT,
        semconv.DECISION_POLICY,
        semconv.DECISION_RULE,
        semconv.DECISION_SEVERITY,
        semconv.DECISION_SHADOWED,
        semconv.DECISION_WOULD,
        semconv.DECISION_LATENCY_US,
        semconv.REWARD_VALUE,
        semconv.REWARD_DIMENSION,
        semconv.REWARD_SOURCE,
        semconv.SCOPE_NAME,
        semconv.SCOPE_VERSION,
        semconv.STATUS_CODE,
        semconv.SPAN_KIND,
        semconv.SERVICE_NAME,
        *identity.ROLLOUT_NAMES,
        *identity.ATTEMPT_NAMES,
    }
)
_OF_EVENTS: Final[Mapping[str, frozenset[str]]] = {
    semconv.EVALUATION_EVENT: frozenset(
        {
            semconv.EVALUATION_NAME,
            semconv.EVALUATION_SCORE,
            semconv.EVALUATION_LABEL,
            semconv.RESPONSE_ID,
            semconv.TOOL_CALL_ID,
            semconv.CHOICE,
        }
    ),
    "exception": frozenset({"exception.type"}),
}
#: Values of the names above are short; longer values are dropped.
_LONGEST: Final = 500


def without_content(span: Span) -> Span:
    """``span`` (or what `canonical` makes of a claimed one) with nothing but names, ids, counts and verdicts.

    The name of a claimed span is the sender's to choose, so it becomes that of its operation. Ids, the tree and times
    stay. Pure.
    """
    canonical_span = canonical(span)
    attributes = _kept(canonical_span.attributes, KEPT)
    return replace(
        canonical_span,
        name=_name(attributes) if span.claimed and canonical_span.name not in _OUR_NAMES else span.name,
        attributes=attributes,
        events=tuple(
            SpanEvent(event.name, event.at, _kept(event.attributes, _OF_EVENTS[event.name]))
            for event in canonical_span.events
            if event.name in _OF_EVENTS
        ),
    )


_OUR_NAMES: Final = (semconv.REWARD_SPAN_NAME, semconv.DECISION_SPAN_NAME, semconv.ROLLOUT_SPAN_NAME)


def _name(attributes: Mapping[str, JSONValue]) -> str:
    operation = attributes.get(semconv.OPERATION)
    if not isinstance(operation, str):
        return "span"
    of_what = {
        semconv.EXECUTE_TOOL: semconv.TOOL_NAME,
        semconv.INVOKE_AGENT: semconv.AGENT_NAME,
    }.get(operation, semconv.REQUEST_MODEL)
    name = attributes.get(of_what)
    return f"{operation} {name}" if name else operation


def _kept(attributes: Mapping[str, JSONValue], names: frozenset[str]) -> dict[str, JSONValue]:
    return {name: value for name, value in attributes.items() if name in names and _is_short(value)}


def _is_short(value: JSONValue) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST
    if isinstance(value, list | tuple):
        return all(not isinstance(item, str) or len(item) <= _LONGEST for item in value)
    return not isinstance(value, Mapping)
