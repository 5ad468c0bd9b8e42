"""Rewards as spans say them: a span named ``lgov.reward``, or an evaluation among the events of what was judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lgov_core.trace import semconv
from lgov_core.transitions.reading.span_tree import CALL_OPERATIONS, Place, SpanTree
from lgov_core.transitions.reading.span_values import number_of, text_of
from lgov_core.types import Reward, Span, SpanEvent


def reward_of_span(span: Span, place: Place) -> Reward:
    """The reward of an ``lgov.reward`` span. A value that is not a number is NaN: it is reported later and never counted."""
    get = span.attributes.get
    choice = get(semconv.CHOICE)
    return Reward(
        value=number_of(get(semconv.REWARD_VALUE)),
        dimension=str(get(semconv.REWARD_DIMENSION) or "task"),
        rollout_id=place.rollout_id,
        attempt=place.attempt,
        response_id=_named(get(semconv.RESPONSE_ID)),
        tool_call_id=_named(get(semconv.TOOL_CALL_ID)),
        source=str(get(semconv.REWARD_SOURCE) or ""),
        reward_id=_id(span),
        choice=choice if type(choice) is int else None,
    )


def further_rewards(span: Span, reward: Reward) -> list[Reward]:
    """The further dimensions that its evaluation events add to the ``reward`` that a span is."""
    return [
        _judged(event, replace(reward, source="", reward_id=f"{_id(span)}#{position}"))
        for position, event in enumerate(span.events)
        if event.name == semconv.EVALUATION_EVENT
    ]


def evaluations_of_span(span: Span, tree: SpanTree) -> Iterator[Reward]:
    """The evaluations of what ``span`` shows: a call, a tool call, or at the top of an attempt all of it."""
    for position, event in enumerate(span.events):
        if event.name == semconv.EVALUATION_EVENT:
            yield _judged(event, _target(span, tree, f"{_id(span)}#{position}"))


def _id(span: Span) -> str:
    return span.span_id if span.trace_id is None else f"{span.trace_id}:{span.span_id}"


def _named(value: object) -> str | None:
    """The id that a reward names. Other values than text are ids too: of something that does not exist."""
    return text_of(value) if value is None or isinstance(value, str) else str(value)


def _judged(event: SpanEvent, target: Reward) -> Reward:
    """The reward of an event, on the target that it names itself, or else on ``target``."""
    given = event.attributes
    choice = given.get(semconv.CHOICE)
    response_id, tool_call = _named(given.get(semconv.RESPONSE_ID)), _named(given.get(semconv.TOOL_CALL_ID))
    if response_id is not None or tool_call is not None:
        target = replace(target, response_id=response_id, tool_call_id=tool_call, choice=None)
    return replace(
        target,
        value=number_of(given.get(semconv.REWARD_VALUE, given.get(semconv.EVALUATION_SCORE))),
        dimension=str(given.get(semconv.REWARD_DIMENSION) or given.get(semconv.EVALUATION_NAME) or "task"),
        source=str(given.get(semconv.REWARD_SOURCE) or ""),
        choice=choice if type(choice) is int else target.choice,
    )


def _target(span: Span, tree: SpanTree, reward_id: str) -> Reward:
    place, attributes = tree.place(span), span.attributes
    operation = attributes.get(semconv.OPERATION)
    response_id = tool_call = None
    choice = attributes.get(semconv.CHOICE)
    if operation in CALL_OPERATIONS:
        response_id = text_of(attributes.get(semconv.RESPONSE_ID)) or span.span_id
        choice = choice if type(choice) is int else 0
    elif operation == semconv.EXECUTE_TOOL:
        tool_call = text_of(attributes.get(semconv.TOOL_CALL_ID)) or span.span_id
    elif _inside_something(span, tree):
        response_id = span.span_id  # what it judges is none of a reward's targets, and no call has this id
    return Reward(
        0.0,
        rollout_id=place.rollout_id,
        attempt=place.attempt,
        response_id=response_id,
        tool_call_id=tool_call,
        reward_id=reward_id,
        choice=choice if type(choice) is int else None,
    )


def _inside_something(span: Span, tree: SpanTree) -> bool:
    """Whether an agent, a call or a tool of the same attempt is above the span."""
    place = tree.place(span)
    above = tree.above(span)
    while above is not None:
        its = tree.place(above)
        if (its.rollout_id, its.attempt) != (place.rollout_id, place.attempt):
            break
        operation = above.attributes.get(semconv.OPERATION)
        if operation in CALL_OPERATIONS or operation in (semconv.INVOKE_AGENT, semconv.EXECUTE_TOOL):
            return True
        above = tree.above(above)
    return False
