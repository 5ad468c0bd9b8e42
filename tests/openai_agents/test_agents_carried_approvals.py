"""The Agents SDK carries the question of an approval: an interruption, and the answer in the `RunState`."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, RunState, function_tool
from cells import ANSWER, asks, says
from cells_agents import chat_model, instrumented

from lgov_core.audit import AuditLog
from lgov_core.governor import Governor
from lgov_core.policies import ApprovalPolicy, ApprovalRequest, ApprovalRequests, PolicySet, Rule, ToolPolicy
from lgov_core.testing import ScriptedModelServer
from lgov_openai_agents import LgovRunner

CONFIG = RunConfig(tracing_disabled=True)
REFUND = ("c1", "refund", {"euros": 120})


class Shop:
    """An agent that refunds, a rule that asks about refunds over 100 euros, its store and its record."""

    def __init__(self, folder: Path, way: str, **options: Any) -> None:
        self.store, self.refunds, self.way = folder / "approvals.db", list[int](), way
        self.audit = AuditLog(folder / "audit.db")
        rule = ApprovalPolicy(store=self.store, via="framework", name="ask", **options)
        rules = [Rule(ToolPolicy(allow=["*"])), Rule(rule, tools=["refund"], when="arguments.euros > 100")]
        self.governor = Governor(PolicySet(rules), audit=self.audit, timeout_s=20)
        self.runner: Any = Runner if way == "instrumented" else LgovRunner(self.governor)

    def agent(self, server: ScriptedModelServer, needs_approval: Any = False) -> Any:
        @function_tool(needs_approval=needs_approval)
        def refund(euros: int, why: str = "none") -> str:
            """Pays back."""
            self.refunds.append(euros)
            return f"paid {euros}"

        agent = Agent(name="clerk", model=chat_model(server), tools=[refund])
        return agent if self.way == "instrumented" else self.runner.govern(agent)

    def run(self, agent: Any, begin: Any) -> Any:
        with instrumented(self.governor) if self.way == "instrumented" else nullcontext():
            return self.runner.run_sync(agent, begin, run_config=CONFIG)

    @property
    def requests(self) -> ApprovalRequests:
        return ApprovalRequests(self.store)

    @property
    def asked(self) -> ApprovalRequest:
        return self.requests.all()[-1]

    def record(self) -> list[str | None]:
        """The rule, or the status, of each entry about a tool call before its result is judged."""
        return [entry.rule or entry.status for entry in self.audit.entries() if entry.point == "pre_tool_call"]


@pytest.fixture(params=["instrumented", "runner"])
def shop(request: Any, tmp_path: Path) -> Any:
    shop = Shop(tmp_path, request.param)
    yield shop
    shop.audit.close()


def through_json(agent: Any, result: Any) -> RunState[Any]:
    return asyncio.run(RunState.from_json(agent, result.to_state().to_json()))


def last_prompt(server: ScriptedModelServer) -> str:
    return str(server.requests[-1].body)


def test_a_streamed_run_pauses_and_is_resumed_too(shop: Shop) -> None:
    async def streamed(agent: Any, begin: Any) -> Any:
        result = shop.runner.run_streamed(agent, begin, run_config=CONFIG)
        async for _ in result.stream_events():
            pass
        return result

    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        agent = shop.agent(server)
        with instrumented(shop.governor) if shop.way == "instrumented" else nullcontext():
            state = asyncio.run(streamed(agent, "go")).to_state()
            state.approve(state.get_interruptions()[0])
            assert asyncio.run(streamed(agent, state)).final_output == ANSWER
    assert shop.refunds == [120]


def test_a_call_that_no_rule_asks_about_is_judged_once_and_runs(shop: Shop) -> None:
    with ScriptedModelServer([asks(("c1", "refund", {"euros": 5})), says(ANSWER)]) as server:
        assert shop.run(shop.agent(server), "go").final_output == ANSWER
    assert shop.refunds == [5]
    assert shop.record() == ["allow", "ok"]


def test_each_call_is_asked_about_even_if_a_person_approves_the_tool_for_good(shop: Shop) -> None:
    replies = [asks(REFUND), asks(("c2", "refund", {"euros": 9000})), says(ANSWER)]
    with ScriptedModelServer(replies) as server:
        agent = shop.agent(server)
        state = shop.run(agent, "go").to_state()
        state.approve(state.get_interruptions()[0], always_approve=True)
        shop.run(agent, state)
        assert "NOT RUN YET, needs approval" in last_prompt(server)
    assert shop.refunds == [120]


def test_a_call_that_was_approved_already_is_used_once(shop: Shop) -> None:
    more = ("c2", "refund", {"euros": 300})
    with ScriptedModelServer([asks(REFUND, more), says(ANSWER), asks(REFUND)]) as server:
        agent = shop.agent(server)
        state = shop.run(agent, "go").to_state()
        first, second = state.get_interruptions()
        state.approve(first)
        (other,) = [request for request in shop.requests.all() if request.arguments["euros"] == 300]
        shop.requests.approve(other.request_id, by="Eve")
        shop.run(agent, state)
        assert sorted(shop.refunds) == [120, 300]
        answered = {request.arguments["euros"]: request.answered_by for request in shop.requests.all()}
        assert answered == {120: "the resumed run (openai-agents)", 300: "Eve"}
        assert len(shop.run(agent, "once more").interruptions) == 1
    assert second.call_id == "c2"


def test_a_tool_with_an_approval_of_its_own_is_asked_about_once(shop: Shop) -> None:
    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        agent = shop.agent(server, needs_approval=True)
        state = through_json(agent, shop.run(agent, "go"))
        assert shop.asked.state == "pending"
        state.approve(state.get_interruptions()[0])
        assert shop.run(agent, state).final_output == ANSWER
    assert shop.refunds == [120]


def test_an_approval_in_the_state_is_not_that_of_a_named_approver(tmp_path: Path, caplog: Any) -> None:
    shop = Shop(tmp_path, "runner", by=["ada"])
    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        agent = shop.agent(server)
        state = through_json(agent, shop.run(agent, "go"))
        state.approve(state.get_interruptions()[0])
        shop.run(agent, state)
        assert "NOT RUN YET, needs approval" in last_prompt(server)
    assert "does not approve refund" in caplog.text
    assert shop.refunds == []
    shop.audit.close()


def test_calls_of_an_agent_that_is_a_tool_pause_the_run_around_it(shop: Shop) -> None:
    replies = [asks(("o1", "clerk", {"input": "refund"})), asks(REFUND), says("done"), says(ANSWER)]
    with ScriptedModelServer(replies) as server:
        boss = Agent(name="boss", model=chat_model(server), tools=[shop.agent(server).as_tool("clerk", "Works.")])
        boss = boss if shop.way == "instrumented" else shop.runner.govern(boss)
        state = shop.run(boss, "go").to_state()
        state.approve(state.get_interruptions()[0])
        assert shop.run(boss, state).final_output == ANSWER
    assert shop.refunds == [120]
