"""A hundred rollouts in one event loop, their tools in threads: nothing of one is taken for another's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from scripted import ModelServer, Witness, at, calls, deny, make_governor, says

from lgov_core.governor import ObservedDecision
from lgov_core.scope import RolloutScope, current_scope
from lgov_core.testing import ScriptedReply
from lgov_core.types import Action, Decision, Point
from lgov_langchain import LgovCallbackHandler, LgovMiddleware

ROLLOUTS = 100


def reply(body: Mapping[str, Any]) -> ScriptedReply:
    """Two parallel calls that carry the rollout's number, one of them forbidden, then an answer that carries it."""
    number = int(body["messages"][0]["content"])
    if len(body["messages"]) > 1:
        return says(f"answer {number}")
    return calls((f"good-{number}", "note", {"n": number}), (f"bad-{number}", "note", {"n": -number - 1}))


async def test_a_hundred_rollouts_do_not_mix(
    model_server: ModelServer, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langchain_openai import ChatOpenAI

    monkeypatch.setenv("LGOV_ENDPOINT", model_server.url)
    model_server.script = reply
    ran: list[tuple[int, str, str]] = []

    @tool
    def note(n: int) -> str:
        """Notes a number."""
        scope = current_scope()
        ran.append((n, scope.rollout_id if scope else "", threading.current_thread().name))
        return f"noted {n}"

    def only_positive(action: Action) -> Decision | None:
        return deny(f"no {action.arguments['n']}") if action.arguments["n"] < 0 else None

    governor = make_governor(at(Point.PRE_TOOL_CALL, only_positive), witness=witness)
    chat = ChatOpenAI(model="scripted", base_url=f"{model_server.url}/v1", api_key="none", max_retries=0)
    agent = create_agent(chat, [note], middleware=[LgovMiddleware(governor)])
    handler = LgovCallbackHandler(governor)

    async def roll(number: int) -> Any:
        async with governor.arollout(RolloutScope(f"rollout-{number}", attempt=number + 1)):
            question: Any = {"messages": [("user", str(number))]}
            return await agent.ainvoke(question, {"callbacks": [handler]})

    states = await asyncio.gather(*(roll(number) for number in range(ROLLOUTS)))

    for number, state in enumerate(states):
        assert state["messages"][-1].text == f"answer {number}"
        results = {message.tool_call_id: message.text for message in state["messages"][2:4]}
        assert results[f"good-{number}"] == f"noted {number}"
        assert f"no {-number - 1}" in results[f"bad-{number}"]

    assert sorted(number for number, _, _ in ran) == list(range(ROLLOUTS))
    assert all(rollout == f"rollout-{number}" for number, rollout, _ in ran)
    assert not any(thread == threading.main_thread().name for _, _, thread in ran), "the tools ran in threads"

    assert len(model_server.bodies) == 2 * ROLLOUTS
    for body, headers in zip(model_server.bodies, model_server.headers, strict=True):
        number = int(body["messages"][0]["content"])
        assert headers["x-lgov-rollout-id"] == f"rollout-{number}"
        assert headers["x-lgov-attempt"] == str(number + 1)

    decisions = [event for event in witness.events if isinstance(event, ObservedDecision)]
    judged = [seen.action for seen in decisions if seen.action.point is Point.PRE_TOOL_CALL]
    assert len(judged) == 2 * ROLLOUTS
    for action in [*judged, *(outcome.action for outcome in witness.outcomes)]:
        n = action.arguments["n"]
        number = n if n >= 0 else -n - 1
        assert (action.rollout_id, action.attempt) == (f"rollout-{number}", number + 1)
    assert all(seen.action.rollout_id is not None for seen in decisions)

    agents = {span.span_id: span.rollout_id for span in witness.spans if span.parent_id is None}
    assert sorted(str(rollout) for rollout in agents.values()) == sorted(f"rollout-{n}" for n in range(ROLLOUTS))
    assert all(agents[span.parent_id] == span.rollout_id for span in witness.spans if span.parent_id is not None)
    assert handler.open_runs == 0
