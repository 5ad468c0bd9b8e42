"""What a gate remembers of an attempt, and what it does where a judgement fails: called as the endpoint's routes call it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lgov_core.gateway import GateRefusal, GateReply, GateRequest, PolicyGate
from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.types import Action, Decision, Point
from tests.cells import Seen

QUESTION = {"role": "user", "content": "a question"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "look", "args": {}}]}
RESULT = {"role": "tool", "content": "a result", "tool_call_id": "c1"}


class Judging(BoundedPolicy):
    """Does at one point what ``judged`` says."""

    name = "judging"

    def __init__(self, point: Point, judged: Any) -> None:
        self._point, self._judged = point, judged

    def judge(self, action: Action) -> Decision | None:
        return self._judged(self, action) if action.point is self._point else None


def request(*messages: dict[str, Any], rollout_id: str | None = "r", attempt: int | None = 1) -> GateRequest:
    return GateRequest("m", list(messages), rollout_id=rollout_id, attempt=attempt)


def admitted(gate: PolicyGate, *requests: GateRequest) -> list[str]:
    """The content of the last message of each request, as it may be sent."""

    async def all_of_them() -> list[str]:
        return [(await gate.admit(each)).messages[-1]["content"] for each in requests]

    return asyncio.run(all_of_them())


def test_a_text_is_judged_once_in_each_attempt() -> None:
    seen = Seen()
    gate = PolicyGate(Governor([Judging(Point.INPUT, lambda policy, action: None)], plugins=[seen]))
    admitted(
        gate, request(QUESTION), request(QUESTION), request(QUESTION, CALLED, RESULT), request(QUESTION, attempt=2)
    )
    admitted(gate, request(QUESTION, rollout_id="s"), request(QUESTION, QUESTION, rollout_id="s"))
    judged = [(each.action.rollout_id, each.action.attempt) for each in seen.decisions(Point.INPUT)]
    assert judged == [("r", 1), ("r", 2), ("s", 1)]


def test_a_text_that_was_rewritten_in_one_attempt_is_not_so_in_another() -> None:
    words = iter(["first", "second"])
    gate = PolicyGate(Governor([Judging(Point.POST_TOOL_CALL, lambda policy, action: _once(policy, action, words))]))
    turns = [request(QUESTION, CALLED, RESULT, attempt=attempt) for attempt in (1, 1, 2, 2, 1)]
    assert admitted(gate, *turns) == ["first", "first", "second", "second", "first"]
    gate.close()


def _once(policy: BoundedPolicy, action: Action, words: Any) -> Decision | None:
    return None if action.text in ("first", "second") else policy.transform("x", "x", text=next(words))


def _fails(policy: BoundedPolicy, action: Action) -> Decision | None:
    raise RuntimeError("no judgement")


@pytest.mark.parametrize(
    ("point", "messages"), [(Point.INPUT, (QUESTION,)), (Point.POST_TOOL_CALL, (QUESTION, CALLED, RESULT))]
)
def test_a_text_that_could_not_be_judged_stops_the_call(point: Point, messages: tuple[dict[str, Any], ...]) -> None:
    gate = PolicyGate(Governor([Judging(point, _fails)]))
    for _ in range(2):
        with pytest.raises(GateRefusal) as refused:
            admitted(gate, request(*messages))
        assert refused.value.status == 503
    gate.close()


def test_a_denied_reply_has_nothing_but_the_denial() -> None:
    def denies(policy: BoundedPolicy, action: Action) -> Decision | None:
        return policy.deny("x", "not this") if action.text == "an answer" else None

    gate = PolicyGate(Governor([Judging(Point.POST_MODEL_CALL, denies)]))
    reply = GateReply("id", "an answer", (), "stop", reasoning="a thought")
    (released,) = asyncio.run(gate.release(request(QUESTION), [reply]))
    assert ("not this" in released.text, released.reasoning, released.tool_calls) == (True, "", ())
    gate.close()
