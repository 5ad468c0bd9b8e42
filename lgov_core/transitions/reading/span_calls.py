"""Reads calls from the spans that show them, mostly one span a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from lgov_core.trace import semconv
from lgov_core.transitions.findings import Diagnostic, Finding
from lgov_core.transitions.reading.span_tree import Place
from lgov_core.transitions.reading.span_values import (
    Tokens,
    finish_reason_of,
    messages_of,
    number_or,
    proposed_tool_calls,
    request_of,
    text_of,
    tokens_agree,
    tokens_of,
    unreadable_tokens,
    version_of,
)
from lgov_core.types import CapturedCall, Span

#: A call in its attempt: its response id and choice.
CallKey: TypeAlias = tuple[str, int]
#: A span that shows a call, and its place.
Shown: TypeAlias = tuple[Span, Place]


def calls_of_spans(
    key: CallKey,
    rollout_id: str | None,
    attempt: int | None,
    shown: Sequence[Shown],
    proposed: Collection[str],
    found: list[Diagnostic],
) -> list[CapturedCall]:
    """The call that some spans show; spans that claim different tokens for it are as many calls.

    The call itself is the innermost of the spans. What one does not say another may. ``proposed`` are tool calls that
    other spans say it proposed.
    """
    inside_out = sorted(shown, key=lambda one: (one[0].started_at, one[0].span_id, one[0].trace_id or ""), reverse=True)
    spans = [span for span, _ in inside_out]
    agent = next((name for span in spans if (name := text_of(span.attributes.get(semconv.AGENT_NAME)))), None)
    agent = agent or next((place.agent for _, place in inside_out if place.agent), None)
    tools = tuple(dict.fromkeys(one for span in spans for one in proposed_tool_calls(span.attributes)))
    if proposed:
        tools = tuple(sorted({*tools, *proposed}))
    made: list[CapturedCall] = []
    for span, attributes, tokens in _claims(spans, found):
        given = attributes.get(semconv.WEIGHTS_VERSION)
        version = version_of(given)
        if version is None and given is not None:
            found.append(invalid(span, semconv.WEIGHTS_VERSION))
        made.append(
            CapturedCall(
                response_id=key[0],
                choice=key[1],
                model=str(attributes.get(semconv.RESPONSE_MODEL) or attributes.get(semconv.REQUEST_MODEL) or ""),
                request=request_of(attributes),
                response=messages_of(attributes.get(semconv.OUTPUT_MESSAGES)),
                prompt_ids=tokens[0],
                response_ids=tokens[1],
                logprobs=tokens[2],
                finish_reason=finish_reason_of(attributes.get(semconv.FINISH_REASONS)),
                weights_version=version,
                temperature=number_or(attributes.get(semconv.REQUEST_TEMPERATURE), 1.0),
                top_p=number_or(attributes.get(semconv.REQUEST_TOP_P), 1.0),
                started_at=span.started_at,
                ended_at=span.started_at if span.ended_at is None else span.ended_at,
                rollout_id=rollout_id,
                attempt=attempt,
                agent=agent,
                tool_call_ids=tools,
            )
        )
    return made


def invalid(span: Span, name: str) -> Diagnostic:
    """The finding that an attribute of ``span`` is not of its kind."""
    return Diagnostic(Finding.INVALID_ATTRIBUTE, span.span_id, f"{name} is {str(span.attributes.get(name))[:60]!r}")


def _claims(spans: Sequence[Span], found: list[Diagnostic]) -> list[tuple[Span, Mapping[str, Any], Tokens]]:
    """The different tokens that the spans of one call claim, mostly one; what one does not say another may."""
    claims: list[tuple[Span, Tokens]] = []
    for span in spans:
        tokens = tokens_of(span.attributes)
        found += [invalid(span, name) for name in unreadable_tokens(span.attributes, tokens)]
        same = next((index for index, one in enumerate(claims) if tokens_agree(one[1], tokens)), None)
        if same is None:
            claims.append((span, tokens))
        elif claims[same][1].count(None) > tokens.count(None):
            claims[same] = (span, tokens)
    claims = [one for one in claims if one[1][1] is not None] or claims[:1]
    said: dict[str, Any] = {}
    for span in reversed(spans):
        said.update(span.attributes)
    return [(span, {**said, **span.attributes}, tokens) for span, tokens in claims]
