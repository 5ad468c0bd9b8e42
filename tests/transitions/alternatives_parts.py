"""Calls, rewards and rollouts with several choices of one reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lgov_core.transitions import (
    CreditRules,
    TransitionSet,
    assign_credit,
)
from lgov_core.types import Attempt, CapturedCall, Outcome, Reward, Rollout
from tests.transitions.assembled import assemble

ASK = [{"role": "user", "content": "Who?"}]
NO_CAP = CreditRules(air_cap=None)


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(
    name: str,
    choice: int = 0,
    *,
    prompt: Sequence[int] = (1,),
    reply: Sequence[int] | None = None,
    at: float = 0.0,
    rollout: str = "r",
    messages: Sequence[Mapping[str, Any]] = ASK,
    tools: Sequence[str] = (),
    text: str | None = None,
) -> CapturedCall:
    reply = (10 + choice,) if reply is None else reply
    answers = [{"index": n, "message": said(text if text is not None else f"{name}/{n}")} for n in range(4)]
    return CapturedCall(
        response_id=name,
        model="m",
        request={"messages": list(messages)},
        response={"choices": answers},
        prompt_ids=tuple(prompt),
        response_ids=tuple(reply),
        logprobs=(-0.5,) * len(reply),
        finish_reason="stop",
        weights_version=0,
        temperature=1.0,
        top_p=1.0,
        started_at=at,
        ended_at=at + 0.5,
        rollout_id=rollout,
        attempt=1,
        tool_call_ids=tuple(tools),
        choice=choice,
    )


def made(calls: Sequence[CapturedCall], rewards: Sequence[Reward] = ()) -> TransitionSet:
    names = sorted({one.rollout_id or "" for one in calls})
    rollouts = [Rollout(name, "t", "run", {}, 0.0) for name in names]
    attempts = [Attempt(name, 1, 0.0, 9.0, Outcome.SUCCEEDED) for name in names]
    numbered = [replace(one, reward_id=f"w{n}") for n, one in enumerate(rewards)]
    return assemble(rollouts, attempts, calls, numbered)


def on(name: str, choice: int | None, value: float, rollout: str = "r") -> Reward:
    return Reward(value, "task", rollout, 1, response_id=name, choice=choice)


def final(value: float, rollout: str = "r") -> Reward:
    return Reward(value, "task", rollout, 1)


def credits(data: TransitionSet, rules: CreditRules = NO_CAP) -> dict[tuple[str, str, int], float | None]:
    found = assign_credit(data, rules).transitions
    return {(one.rollout_id, one.response_id, one.choice): one.credit for one in found}


THREE = [call("a", choice) for choice in range(3)]
#: Goes on from choice 1 of ``a``: 1 11, and what a tool said.
NEXT = call("b", prompt=(1, 11, 5), at=1.0)


def two_rollouts(first: Sequence[Reward], second: Sequence[Reward]) -> TransitionSet:
    """Two rollouts of a call of three choices and one that goes on from choice 1."""
    other = [replace(one, rollout_id="s", response_id=f"s{one.response_id}") for one in (*THREE, NEXT)]
    return made([*THREE, NEXT, *other], [*first, *second])
