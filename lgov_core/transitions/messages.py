"""Transitions as records of messages: for supervised fine-tuning, for preferences, and for tuning prompts.

Each record is plain JSON. What is left out is counted by its reason and never goes missing silently.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lgov_core.trace import semconv
from lgov_core.transitions.calls import ConversationReader, Message, chat_conversation, threads_of
from lgov_core.transitions.transition_set import Transition, TransitionSet, alternatives_of, by_rollout, line_of
from lgov_core.types import BLOCKING, Attempt, CapturedCall, Outcome, Rollout, Span


class UnreadableArguments(ValueError):
    """The arguments of a tool call are not a JSON object, so that no template can write them as the model would."""


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """``messages`` of OpenAI's chat form with the ``arguments`` of tool calls as objects, and without what is None.

    Templates write the arguments with ``tojson``: most take nothing but an object, and some make of OpenAI's text one that
    is quoted twice, without a word. Raises `UnreadableArguments`.
    """
    written: list[dict[str, Any]] = []
    for message in messages:
        written.append({name: value for name, value in message.items() if value is not None})
        if message.get("tool_calls"):
            written[-1]["tool_calls"] = [_called(call) for call in message["tool_calls"]]
        else:
            written[-1].setdefault("content", "")
    return written


def _called(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    return {**call, "function": {**function, "arguments": _object(function.get("arguments"))}}


def _object(arguments: Any) -> Mapping[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")  # some models write nothing where there is nothing to say
        except ValueError as error:
            raise UnreadableArguments(str(error)) from error
    if not isinstance(arguments, Mapping):
        raise UnreadableArguments(f"{type(arguments).__name__} instead of an object")
    return arguments


#: The dimension in which denials are paid for.
COMPLIANCE: Final = "compliance"


@dataclass(frozen=True, slots=True)
class Keep:
    """Which rollouts are good enough to learn from.

    ``outcomes``: how the attempt ended (an unknown outcome never fits). ``min_reward``: the least sum of
    ``dimension``'s rewards over the attempt; None asks for none. ``compliant``: no denied act, neither as a negative
    reward in ``compliance`` nor as a decision on record.
    """

    outcomes: Collection[Outcome] = frozenset({Outcome.SUCCEEDED})
    min_reward: float | None = None
    dimension: str = "task"
    compliant: bool = True


@dataclass(frozen=True, slots=True)
class Exported:
    """Records, and how much was left out for which reason."""

    records: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    left_out: Counter[str] = field(default_factory=Counter[str])


def denied_attempts(spans: Iterable[Span]) -> dict[tuple[str, int], list[str]]:
    """Per attempt the reasons of the decisions that blocked an act. Spans that came from outside do not count."""
    reasons: dict[tuple[str, int], list[str]] = defaultdict(list)
    for span in spans:
        if span.name != semconv.DECISION_SPAN_NAME or span.claimed or span.rollout_id is None or span.attempt is None:
            continue
        get = span.attributes.get
        if get(semconv.DECISION_EFFECT) in BLOCKING and not get(semconv.DECISION_SHADOWED):
            policy, reason = get(semconv.DECISION_POLICY), get(semconv.DECISION_REASON) or get(semconv.DECISION_RULE)
            reasons[span.rollout_id, span.attempt].append(f"{policy}: {reason}")
    return dict(reasons)


def sft_records(
    data: TransitionSet,
    calls: Iterable[CapturedCall],
    keep: Keep | None = None,
    *,
    denied: Mapping[tuple[str, int], Sequence[str]] | None = None,
    read: ConversationReader = chat_conversation,
) -> Exported:
    """Conversations worth imitating, one record a conversation.

    ``messages`` and ``tools`` are what TRL's ``SFTTrainer`` takes as it is (`template_messages`); ``trained`` are the
    positions of the messages that the selected agents wrote in this attempt: an assistant message at another position
    was in the prompt. Left out are choices that the attempt set aside, and conversations with a tool call whose arguments
    cannot be read. ``denied`` are the attempts in which acts were blocked (`denied_attempts`).
    """
    keep, denied = keep or Keep(), denied or {}
    exported = Exported()
    by_id = _by_id(calls)
    for key, turns in by_rollout(data.transitions).items():
        reason = unfit(key, turns, keep, denied)
        if reason is not None:
            exported.left_out[reason] += 1
            continue
        line = line_of(turns)
        own = [by_id[turn.response_id, turn.choice] for turn in line if (turn.response_id, turn.choice) in by_id]
        exported.left_out["set_aside"] += len(turns) - len(line)
        exported.left_out["call_not_on_record"] += len(line) - len(own)
        threads = threads_of(own, read)
        exported.left_out["no_messages"] += len(own) - sum(len(thread.calls) for thread in threads)
        for thread in threads:
            try:
                messages = template_messages(thread.messages)
            except UnreadableArguments:
                exported.left_out["unreadable_arguments"] += 1
                continue
            record = {
                "messages": messages,
                **({"tools": list(thread.tools)} if thread.tools else {}),
                "trained": list(thread.written),
                **_about(key, turns),
                "agent": thread.calls[-1].agent,
                "response_ids": [call.response_id for call in thread.calls],
            }
            exported.records.append(record)
    return _counted(exported)


def preference_pairs(
    data: TransitionSet,
    calls: Iterable[CapturedCall],
    *,
    margin: float = 0.0,
    read: ConversationReader = chat_conversation,
) -> Exported:
    """Pairs of replies to one and the same prompt, the better one ``chosen``: what TRL's ``DPOTrainer`` takes as it is.

    Within a group, calls of one agent with equal prompt tokens are compared by their return (`assign_credit` fills it):
    the best with the worst, when they said different things and their returns differ by more than ``margin``. So a pair
    never compares replies to different prompts, and never two rollouts as wholes. A choice that an attempt set aside has no
    return to compare: the choices of its reply are compared with each other, by what the rewards that name them say.
    """
    exported = Exported()
    by_id = _by_id(calls)
    for task, rollouts in data.groups().items():
        by_prompt: dict[tuple[str | None, tuple[int, ...]], list[tuple[float, Transition]]] = defaultdict(list)
        for turn in (turn for rollout in rollouts for turn in line_of(rollout)):
            if turn.value_to_go is None:
                exported.left_out["no_return"] += 1
            else:
                by_prompt[turn.agent, turn.prompt_ids].append((turn.value_to_go, turn))
        compared = [*by_prompt.values()]
        for choices in (choices for rollout in rollouts for choices in alternatives_of(rollout)):
            compared.append([(choice.reward, choice) for choice in choices])
        for replies in compared:
            pair = _pair(replies, margin)
            if isinstance(pair, str):
                exported.left_out[pair] += 1
                continue
            (worse, worst), (better, best) = pair
            good, bad = (by_id.get((turn.response_id, turn.choice)) for turn in (best, worst))
            chosen, rejected = good and read(good), bad and read(bad)
            if chosen is None or rejected is None:
                exported.left_out["no_messages"] += 1
                continue
            try:
                columns = [
                    template_messages(messages) for messages in (chosen.messages, [chosen.reply], [rejected.reply])
                ]
            except UnreadableArguments:
                exported.left_out["unreadable_arguments"] += 1
                continue
            exported.records.append(
                {
                    **dict(zip(("prompt", "chosen", "rejected"), columns, strict=True)),
                    **({"tools": list(chosen.tools)} if chosen.tools else {}),
                    "task_id": task,
                    "agent": best.agent,
                    "held_out": best.held_out or worst.held_out,
                    "chosen_response_id": best.response_id,
                    "rejected_response_id": worst.response_id,
                    "chosen_return": better,
                    "rejected_return": worse,
                }
            )
    return _counted(exported)


def _pair(
    replies: Sequence[tuple[float, Transition]], margin: float
) -> tuple[tuple[float, Transition], tuple[float, Transition]] | str:
    """The worst and the best of replies to one prompt; the reason where they make no pair."""
    if len(replies) < 2:
        return "prompt_seen_once"
    worst, best = min(replies, key=_rank), max(replies, key=_rank)
    if not best[0] - worst[0] > margin or best[1].response_ids == worst[1].response_ids:
        return "no_difference"
    return worst, best


def prompt_records(
    data: TransitionSet,
    calls: Iterable[CapturedCall],
    rollouts: Iterable[Rollout],
    attempts: Iterable[Attempt],
    *,
    denied: Mapping[tuple[str, int], Sequence[str]] | None = None,
    read: ConversationReader = chat_conversation,
) -> Exported:
    """Records for tuning a prompt: per attempt the task, what was said, what it earned, and what went wrong in words.

    ``threads`` are the conversations, each with its messages; ``system`` are their distinct system prompts, which is what
    such a tuner rewrites; ``denials`` the reasons of blocked acts, ``error`` what ended the attempt.
    """
    denied = denied or {}
    exported = Exported()
    by_id = _by_id(calls)
    tasks = {rollout.rollout_id: rollout for rollout in rollouts}
    ends = {(attempt.rollout_id, attempt.attempt): attempt for attempt in attempts}
    for key, turns in by_rollout(data.transitions).items():
        own = [by_id[turn.response_id, turn.choice] for turn in turns if (turn.response_id, turn.choice) in by_id]
        threads = threads_of(own, read)
        exported.left_out["no_messages"] += len(turns) - sum(len(thread.calls) for thread in threads)
        if not threads:
            continue
        ended = ends.get(key)
        system = [
            message.get("content")
            for thread in threads
            for message in thread.messages
            if message.get("role") in ("system", "developer")
        ]
        exported.records.append(
            {
                **_about(key, turns),
                "input": dict(tasks[key[0]].input) if key[0] in tasks else None,
                "result": None if ended is None else ended.result,
                "error": None if ended is None else ended.error,
                "denials": list(denied.get(key, ())),
                "system": [text for index, text in enumerate(system) if text not in system[:index]],
                "threads": [
                    {
                        "agent": thread.calls[-1].agent,
                        "messages": list(thread.messages),
                        "written": list(thread.written),
                    }
                    for thread in threads
                ],
            }
        )
    return _counted(exported)


def unfit(
    key: tuple[str, int], turns: Sequence[Transition], keep: Keep, denied: Mapping[tuple[str, int], Sequence[str]]
) -> str | None:
    """Why an attempt is not kept; None when it is."""
    if turns[0].outcome not in keep.outcomes:
        return "outcome"
    if keep.compliant and (key in denied or any(turn.rewards.get(COMPLIANCE, 0.0) < 0.0 for turn in turns)):
        return "not_compliant"
    if keep.min_reward is not None and totals_of(turns).get(keep.dimension, float("-inf")) < keep.min_reward:
        return "reward"
    return None


def _about(key: tuple[str, int], turns: Sequence[Transition]) -> dict[str, Any]:
    first = turns[0]
    return {
        "task_id": first.task_id,
        "rollout_id": key[0],
        "attempt": key[1],
        "outcome": None if first.outcome is None else first.outcome.value,
        "held_out": first.held_out,
        "rewards": totals_of(turns),
    }


def totals_of(turns: Sequence[Transition]) -> dict[str, float]:
    """The attempt's rewards by dimension, along its line."""
    totals: dict[str, float] = defaultdict(float)
    for turn in line_of(turns):
        for dimension, value in turn.rewards.items():
            totals[dimension] += value
    return dict(totals)


def _rank(reply: tuple[float, Transition]) -> tuple[float, str, int]:
    return reply[0], reply[1].response_id, reply[1].choice


def _by_id(calls: Iterable[CapturedCall]) -> dict[tuple[str, int], CapturedCall]:
    return {(call.response_id, call.choice): call for call in calls}


def _counted(exported: Exported) -> Exported:
    return Exported(exported.records, +exported.left_out)  # the sign takes out what is 0
