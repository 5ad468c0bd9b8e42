"""A rollout as spans in the documented attributes (docs/reference/data.md): all that a store holds of it, or no content."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Final, Protocol

from lgov_core.trace import semconv
from lgov_core.trace.canonical import canonical
from lgov_core.types import Attempt, CapturedCall, JSONValue, Reward, Rollout, Span, SpanEvent

#: What a call is in the conventions' words, by the API it was made over. Others are chats.
_OPERATIONS = {"completions": semconv.TEXT_COMPLETION, "embeddings": semconv.EMBEDDINGS}


class RolloutReader(Protocol):
    """The reading part of a trace store. See `lgov_core.store.TraceStore`."""

    def rollouts(self, *, run_id: str | None = None, ids: Sequence[str] | None = None) -> list[Rollout]:
        """Rollouts, all or those of a run, or those with the given ids."""
        ...

    def attempts(self, rollout_ids: Sequence[str] | None = None) -> list[Attempt]:
        """Attempts, all or those of the given rollouts."""
        ...

    def calls(self, rollout_ids: Sequence[str] | None = None) -> Iterator[CapturedCall]:
        """Captured calls, all or those of the given rollouts."""
        ...

    def rewards(self, rollout_ids: Sequence[str] | None = None) -> list[Reward]:
        """Rewards, all or those of the given rollouts."""
        ...

    def spans(self, rollout_ids: Sequence[str] | None = None) -> list[Span]:
        """Spans, all or those of the given rollouts."""
        ...


def rollout_ids_in(store: RolloutReader, run_id: str | None = None) -> list[str]:
    """The rollouts in ``store``, or those of a run; without a run also those that were never added, which only have
    calls, spans or rewards. Raises `StoreError`.
    """
    ids = dict.fromkeys(rollout.rollout_id for rollout in store.rollouts(run_id=run_id))
    if run_id is None:
        for record in chain(store.calls(), store.spans(), store.rewards()):
            if record.rollout_id is not None:
                ids.setdefault(record.rollout_id)
    return list(ids)


def rollout_spans(store: RolloutReader, rollout_id: str) -> list[Span]:
    """Everything that ``store`` holds of a rollout, as spans.

    Each attempt is a span ``lgov.rollout`` with its task, run and outcome. Below it are the recorded spans that have no
    parent, the captured calls (below the span of the same response, where the agent's side recorded one) and the
    rewards, as spans ``lgov.reward``. Ids that are made here are made of the ids that things have, so they are always
    the same. Nothing for a rollout that is not there. Raises `StoreError` for what cannot be read.
    """
    ids = [rollout_id]
    spans, calls, rewards = store.spans(ids), list(store.calls(ids)), store.rewards(ids)
    rollout = next(iter(store.rollouts(ids=ids)), None)
    attempts = {attempt.attempt: attempt for attempt in store.attempts(ids)}
    times = [record.started_at for record in (*spans, *calls)] or [rollout.created_at if rollout else 0.0]
    named = {record.attempt for record in (*spans, *rewards) if record.attempt is not None} | {
        call.attempt or 1 for call in calls
    }
    for number in (named or ({1} if spans or rewards else set[int]())) - attempts.keys():
        attempts[number] = Attempt(rollout_id, number, min(times))
    attempt_spans = {attempt.attempt: _attempt_span(rollout, attempt) for attempt in attempts.values()}
    by_response = {
        str(span.attributes[semconv.RESPONSE_ID]): span
        for span in spans
        if not span.claimed and span.attributes.get(semconv.RESPONSE_ID) is not None
    }
    all_spans = [attempt_spans[number] for number in sorted(attempt_spans)]
    for span in spans:
        if span.parent_id is None and span.trace_id is None:  # at the top of its attempt
            above = attempt_spans[max(attempt_spans) if span.attempt is None else span.attempt]
            span = replace(span, parent_id=above.span_id)
        all_spans.append(span)
    all_spans += [
        call_span(call, by_response.get(call.response_id) or attempt_spans[call.attempt or 1]) for call in calls
    ]
    for reward in rewards:
        above = attempt_spans[attempt_of(reward, attempts.values(), calls)]
        at = above.started_at if above.ended_at is None else above.ended_at
        all_spans.append(replace(reward_span(reward, at, above.span_id), attempt=above.attempt))
    return all_spans


def _attempt_span(rollout: Rollout | None, attempt: Attempt) -> Span:
    return Span(
        semconv.ROLLOUT_SPAN_NAME,
        f"{attempt.rollout_id}/{attempt.attempt}",
        attempt.started_at,
        attempt.ended_at,
        semconv.said(
            {
                semconv.TASK_ID: rollout.task_id if rollout else None,
                semconv.RUN_ID: (rollout.run_id or None) if rollout else None,
                semconv.ROLLOUT_MODE: rollout.mode if rollout else None,
                semconv.OUTCOME: attempt.outcome.value if attempt.outcome else None,
                semconv.ERROR_MESSAGE: attempt.error,
            }
        ),
        attempt.rollout_id,
        attempt.attempt,
    )


def call_span(call: CapturedCall, above: Span | None = None) -> Span:
    """A captured call as a span below ``above``."""
    operation = _OPERATIONS.get(call.route, semconv.CHAT)
    usage: Any = call.response.get("usage") if call.choice == 0 else None  # which is of all choices together
    reported = [
        next((count for name in names if isinstance(count := usage.get(name), int)), None) if usage else None
        for names in (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
    ]
    return Span(
        f"{operation} {call.model}",
        f"{call.response_id}#{call.choice}",
        call.started_at,
        call.ended_at,
        semconv.said(
            {
                semconv.OPERATION: operation,
                semconv.SPAN_KIND: "server",
                semconv.AGENT_NAME: call.agent,
                semconv.REQUEST_MODEL: call.model,
                semconv.RESPONSE_MODEL: call.model,
                semconv.REQUEST_TEMPERATURE: call.temperature,
                semconv.REQUEST_TOP_P: call.top_p,
                semconv.RESPONSE_ID: call.response_id,
                semconv.REQUEST_ID: _request_id(call),
                semconv.CHOICE: call.choice or None,
                semconv.FINISH_REASONS: [call.finish_reason] if call.finish_reason else None,
                semconv.TOOL_CALL_IDS: list(call.tool_call_ids) or None,
                semconv.INPUT_TOKENS: reported[0] if call.prompt_ids is None else len(call.prompt_ids),
                semconv.OUTPUT_TOKENS: reported[1] if call.response_ids is None else len(call.response_ids),
                semconv.PROMPT_TOKEN_IDS: _list(call.prompt_ids),
                semconv.RESPONSE_TOKEN_IDS: _list(call.response_ids),
                semconv.RESPONSE_LOGPROBS: _list(call.logprobs),
                semconv.WEIGHTS_VERSION: call.weights_version,
                semconv.INPUT_MESSAGES: _messages(call.request.get("messages", call.request.get("input"))),
                semconv.OUTPUT_MESSAGES: _messages(_reply(call)),
            }
        ),
        call.rollout_id,
        None if call.rollout_id is None else call.attempt or 1,
        None if above is None else above.span_id,
        None if above is None else above.trace_id,
    )


def _request_id(call: CapturedCall) -> str | None:
    noted = call.response.get("lgov")
    request_id: Any = noted.get("request_id") if isinstance(noted, Mapping) else None
    return request_id if isinstance(request_id, str) else None


def _reply(call: CapturedCall) -> Any:
    """The reply, in the form of the API of the call."""
    choices = call.response.get("choices")
    if isinstance(choices, list) and call.choice < len(choices):
        return [choices[call.choice].get("message", choices[call.choice])]
    return call.response.get("output", call.response.get("content"))


def reward_span(reward: Reward, at: float, parent_id: str | None = None) -> Span:
    """A reward as a span at the time ``at`` (Unix seconds), whose id is the reward's."""
    return Span(
        semconv.REWARD_SPAN_NAME,
        reward.reward_id,
        at,
        at,
        semconv.said(
            {
                semconv.REWARD_VALUE: reward.value,
                semconv.REWARD_DIMENSION: reward.dimension,
                semconv.REWARD_SOURCE: reward.source or None,
                semconv.RESPONSE_ID: reward.response_id,
                semconv.TOOL_CALL_ID: reward.tool_call_id,
                semconv.CHOICE: reward.choice,
            }
        ),
        reward.rollout_id,
        reward.attempt,
        parent_id,
    )


def attempt_of(reward: Reward, attempts: Collection[Attempt], calls: Iterable[CapturedCall]) -> int:
    """The attempt that ``reward`` names, or that has the call that it names, or else the last one that has ended.

    ``attempts`` and ``calls`` are those of its rollout; without any attempt it is the first one.
    """
    if reward.attempt is not None:
        return reward.attempt
    if len(attempts) > 1 and (reward.response_id is not None or reward.tool_call_id is not None):
        for call in calls:
            if reward.response_id is None:
                is_meant = reward.tool_call_id in call.tool_call_ids
            else:
                is_meant = reward.response_id == call.response_id
            if is_meant:
                return call.attempt or 1
    ended = [attempt.attempt for attempt in attempts if attempt.outcome is not None or attempt.ended_at is not None]
    return max(ended or (attempt.attempt for attempt in attempts), default=1)


def _messages(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _list(values: Sequence[float] | None) -> list[JSONValue] | None:
    return None if values is None else list(values)


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
        semconv.REQUEST_ID,
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
        semconv.DECISION_SOURCES,
        semconv.DECISION_LATENCY_US,
        semconv.REWARD_VALUE,
        semconv.REWARD_DIMENSION,
        semconv.REWARD_SOURCE,
        semconv.SCOPE_NAME,
        semconv.SCOPE_VERSION,
        semconv.STATUS_CODE,
        semconv.SPAN_KIND,
        semconv.SERVICE_NAME,
        *semconv.ROLLOUT_NAMES,
        *semconv.ATTEMPT_NAMES,
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
