"""Conversations, preference pairs and prompt-tuning records out of recorded calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lgov_core.trace import semconv
from lgov_core.transitions import assign_credit
from lgov_core.transitions.calls import chat_conversation, threads_of
from lgov_core.transitions.messages import (
    Keep,
    denied_attempts,
    preference_pairs,
    prompt_records,
    sft_records,
)
from lgov_core.types import Attempt, CapturedCall, Outcome, Reward, Rollout, Span
from tests.transitions.assembled import assemble

SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None, *, call: str | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call is not None:
        message["tool_calls"] = [{"id": call, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]
    return message


def result(call: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": text}


def called(
    name: str,
    messages: Sequence[dict[str, Any]],
    reply: dict[str, Any],
    *,
    rollout: str = "r1",
    prompt: Sequence[int] = (1, 2),
    said: Sequence[int] = (3,),
    at: float = 0.0,
    agent: str = "clerk",
    **fields: Any,
) -> CapturedCall:
    call = CapturedCall(
        response_id=name,
        model="m",
        request={"model": "m", "messages": list(messages), "tools": TOOLS},
        response={"id": name, "choices": [{"index": 0, "message": {**reply, "refusal": None, "annotations": []}}]},
        prompt_ids=tuple(prompt),
        response_ids=tuple(said),
        logprobs=(-0.5,) * len(said),
        finish_reason="stop",
        weights_version=0,
        temperature=1.0,
        top_p=1.0,
        started_at=at,
        ended_at=at + 0.5,
        rollout_id=rollout,
        attempt=1,
        agent=agent,
    )
    return replace(call, **fields)


ASK = [SYSTEM, user("Who?")]
FIRST = called("a1", ASK, assistant(None, call="c1"))
SECOND = called(
    "a2",
    [*ASK, assistant("", call="c1"), result("c1", "Ada")],
    assistant("Ada."),
    prompt=(1, 2, 3, 4),
    said=(5, 6),
    at=1.0,
)


def ended(name: str, outcome: Outcome = Outcome.SUCCEEDED) -> Attempt:
    return Attempt(name, 1, 0.0, 9.0, outcome, None, "Ada")


def data_of(
    calls: Sequence[CapturedCall], rewards: Sequence[Reward], outcomes: dict[str, Outcome] | None = None
) -> Any:
    names = list(dict.fromkeys(call.rollout_id or "" for call in calls))
    rollouts = [Rollout(name, "task", "run", {"question": "Who?"}) for name in names]
    attempts = [ended(name, (outcomes or {}).get(name, Outcome.SUCCEEDED)) for name in names]
    return assemble(rollouts, attempts, calls, rewards), rollouts, attempts


def final(value: float, rollout: str = "r1", dimension: str = "task") -> Reward:
    return Reward(value, dimension, rollout, 1)


def test_a_conversation_is_one_record_whatever_empty_fields_the_client_sends_back() -> None:
    data, _, _ = data_of([FIRST, SECOND], [final(1.0)])
    found = sft_records(data, [SECOND, FIRST])
    (record,) = found.records
    assert [message["role"] for message in record["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert record["messages"][-1] == {"role": "assistant", "content": "Ada."}
    assert record["trained"] == [2, 4]
    assert record["tools"] == TOOLS
    assert record["rewards"] == {"task": 1.0}
    assert record["response_ids"] == ["a1", "a2"]
    assert found.left_out == {}
    json.dumps(record, allow_nan=False)


def test_a_rewritten_context_and_a_second_agent_are_conversations_of_their_own() -> None:
    other = called("b1", [user("Check Ada.")], assistant("Fine."), at=0.5, agent="checker")
    shortened = called("a3", [SYSTEM, user("So far: Ada. Who else?")], assistant("Bob."), at=2.0)
    threads = threads_of([FIRST, other, SECOND, shortened])
    assert [[call.response_id for call in thread.calls] for thread in threads] == [["a1", "a2"], ["b1"], ["a3"]]


def test_two_calls_that_go_on_from_one_place_are_two_conversations() -> None:
    again = replace(SECOND, response_id="a2b")
    threads = threads_of([FIRST, SECOND, again])
    assert [[call.response_id for call in thread.calls] for thread in threads] == [["a1", "a2"], ["a2b"]]
    assert threads[1].written == (4,)


def test_an_assistant_message_of_the_prompt_is_not_trained() -> None:
    shown = [SYSTEM, user("1+1?"), assistant("2"), user("2+2?")]
    data, _, _ = data_of([called("a1", shown, assistant("4"))], [final(1.0)])
    assert sft_records(data, [called("a1", shown, assistant("4"))]).records[0]["trained"] == [4]


@pytest.mark.parametrize(
    ("rewards", "outcome", "keep", "denied", "reason"),
    [
        ([final(1.0)], Outcome.FAILED, Keep(), {}, "outcome"),
        ([final(0.4)], Outcome.SUCCEEDED, Keep(min_reward=0.5), {}, "reward"),
        ([], Outcome.SUCCEEDED, Keep(min_reward=0.0), {}, "reward"),
        (
            [final(1.0), Reward(-0.1, "compliance", "r1", 1, response_id="a1"), final(0.2, dimension="compliance")],
            Outcome.SUCCEEDED,
            Keep(),
            {},
            "not_compliant",
        ),
        ([final(1.0)], Outcome.SUCCEEDED, Keep(), {("r1", 1): ["sql: no"]}, "not_compliant"),
    ],
)
def test_what_is_not_worth_imitating_is_left_out_with_a_reason(
    rewards: list[Reward], outcome: Outcome, keep: Keep, denied: Any, reason: str
) -> None:
    data, _, _ = data_of([FIRST, SECOND], rewards, {"r1": outcome})
    found = sft_records(data, [FIRST, SECOND], keep, denied=denied)
    assert found.records == []
    assert found.left_out == {reason: 1}
    everything = Keep(outcomes=list(Outcome), compliant=False)
    assert len(sft_records(data, [FIRST, SECOND], everything, denied=denied).records) == 1


def test_decisions_that_blocked_say_which_attempts_are_not_compliant() -> None:
    def decision(effect: str, **fields: Any) -> Span:
        said = {semconv.DECISION_EFFECT: effect, semconv.DECISION_POLICY: "sql", semconv.DECISION_REASON: "no"}
        span = Span(semconv.DECISION_SPAN_NAME, "s", 0.0, 0.0, said, "r1", 1)
        return replace(span, **fields)

    assert denied_attempts([decision("deny"), decision("warn"), decision("escalate")]) == {
        ("r1", 1): ["sql: no", "sql: no"]
    }
    assert denied_attempts([decision("allow"), decision("deny", claimed=True), decision("deny", rollout_id=None)]) == {}


def test_calls_without_messages_are_counted() -> None:
    spoken = replace(FIRST, route="responses")
    assert chat_conversation(spoken) is None
    data, _, _ = data_of([spoken], [final(1.0)])
    found = sft_records(data, [spoken])
    assert (found.records, found.left_out) == ([], {"no_messages": 1})
    assert sft_records(data, []).left_out == {"call_not_on_record": 1}


def test_of_several_choices_each_reads_its_own() -> None:
    both = {"choices": [{"index": 1, "message": assistant("one")}, {"index": 0, "message": assistant("zero")}]}
    read = [chat_conversation(replace(FIRST, response=both, choice=choice)) for choice in (0, 1, 2)]
    assert [one and one.reply["content"] for one in read] == ["zero", "one", None]


def test_pairs_compare_replies_to_one_prompt_by_their_return() -> None:
    # Returns to go: r1 earns 1, r2 earns 0; their first prompts are equal, their second ones are not.
    calls = [
        called("g1", ASK, assistant("good"), rollout="r1", said=(7,)),
        called(
            "g2", [*ASK, assistant("good"), user("more")], assistant("x"), rollout="r1", prompt=(1, 2, 7, 9), at=1.0
        ),
        called("b1", ASK, assistant("bad"), rollout="r2", said=(8,)),
        called("b2", [*ASK, assistant("bad"), user("more")], assistant("y"), rollout="r2", prompt=(1, 2, 8, 9), at=1.0),
    ]
    data, _, _ = data_of(calls, [final(1.0, "r1"), final(0.0, "r2")], {"r2": Outcome.FAILED})
    found = preference_pairs(assign_credit(data), calls)
    (pair,) = found.records
    assert (pair["prompt"], pair["tools"]) == (ASK, TOOLS)
    assert pair["chosen"] == [{"role": "assistant", "content": "good"}]
    assert pair["rejected"] == [{"role": "assistant", "content": "bad"}]
    assert (pair["chosen_return"], pair["rejected_return"]) == (1.0, 0.0)
    assert found.left_out == {"prompt_seen_once": 2}
    assert preference_pairs(assign_credit(data), calls, margin=1.0).left_out["no_difference"] == 1
    assert preference_pairs(data, calls).left_out == {"no_return": 4}


def test_equal_replies_are_no_pair() -> None:
    calls = [called("g1", ASK, assistant("same")), called("b1", ASK, assistant("same"), rollout="r2")]
    data, _, _ = data_of(calls, [final(1.0, "r1"), final(0.0, "r2")])
    assert preference_pairs(assign_credit(data), calls).left_out == {"no_difference": 1}


def test_a_prompt_record_says_what_was_asked_said_earned_and_denied() -> None:
    data, rollouts, attempts = data_of([FIRST, SECOND], [final(1.0), final(-0.1, dimension="compliance")])
    (record,) = prompt_records(
        data, [FIRST, SECOND], rollouts, attempts, denied={("r1", 1): ["sql/read-only: DROP"]}
    ).records
    assert record["input"] == {"question": "Who?"}
    assert record["system"] == ["Be brief."]
    assert record["result"] == "Ada"
    assert record["denials"] == ["sql/read-only: DROP"]
    assert record["rewards"] == {"task": 1.0, "compliance": -0.1}
    assert record["threads"][0]["written"] == [2, 4]
    json.dumps(record, allow_nan=False)
