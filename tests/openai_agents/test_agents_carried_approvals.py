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
from lgov_core.audit.auditor_report import evidence
from lgov_core.audit.reading import EntrySelection
from lgov_core.flow import arun_flow
from lgov_core.governor import Governor
from lgov_core.policies import ApprovalPolicy, ApprovalRequest, ApprovalRequests, PolicySet, Rule, ToolPolicy
from lgov_core.testing import ScriptedModelServer
from lgov_openai_agents import LgovRunner
from lgov_openai_agents.runs import RunMemory, call_name, entering, new_run
from lgov_openai_agents.tools import new_carried_call, settle_flow

CONFIG = RunConfig(tracing_disabled=True)
REFUND = ("c1", "refund", {"euros": 120})


class Shop:
    """An agent that refunds, a rule that asks about refunds over 100 euros and one over 10,000, their store and record."""

    def __init__(self, folder: Path, way: str, **options: Any) -> None:
        self.store, self.refunds, self.way = folder / "approvals.db", list[int](), way
        self.audit = AuditLog(folder / "audit.db")
        ask, more = (
            ApprovalPolicy(store=self.store, via="framework", name=name, **options) for name in ("ask", "more")
        )
        rules = [
            Rule(ToolPolicy(allow=["*"])),
            Rule(ask, tools=["refund"], when="arguments.euros > 100 && arguments.euros <= 10000"),
            Rule(more, tools=["refund"], when="arguments.euros > 10000"),
        ]
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


def test_two_equal_calls_wait_for_an_answer_each(shop: Shop) -> None:
    again = ("c2", *REFUND[1:])
    with ScriptedModelServer([asks(REFUND, again), says(ANSWER)]) as server:
        agent = shop.agent(server)
        paused = shop.run(agent, "go")
        for paid in (1, 2):
            (waiting,) = shop.requests.pending()
            shop.requests.approve(waiting.request_id, by="Eve")
            paused = shop.run(agent, through_json(agent, paused))
            assert (len(shop.refunds), len(paused.interruptions)) == (paid, 2 - paid)
        assert paused.final_output == ANSWER
    assert len(shop.requests.all()) == 2


def test_of_two_equal_calls_the_one_without_an_answer_waits_for_its_own(shop: Shop) -> None:
    again = ("c2", *REFUND[1:])
    with ScriptedModelServer([asks(REFUND, again), says(ANSWER)]) as server:
        agent = shop.agent(server)
        state = through_json(agent, shop.run(agent, "go"))
        state.approve(state.get_interruptions()[1])
        assert [item.call_id for item in shop.run(agent, state).interruptions] == ["c1"]
        assert shop.refunds == [120]
        assert len(shop.requests.pending()) == 1


def test_a_state_that_was_used_already_waits_for_a_new_answer(shop: Shop) -> None:
    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        agent = shop.agent(server)
        kept = shop.run(agent, "go").to_state().to_json()
        shop.requests.approve(shop.asked.request_id, by="Eve")
        shop.run(agent, asyncio.run(RunState.from_json(agent, kept)))
        used = shop.asked.request_id
        assert shop.run(agent, asyncio.run(RunState.from_json(agent, kept))).interruptions
        (waiting,) = shop.requests.pending()
    assert waiting.request_id != used
    assert shop.refunds == [120]


def test_an_approval_in_a_state_is_used_once_however_often_the_state_is(shop: Shop, caplog: Any) -> None:
    with ScriptedModelServer([asks(REFUND), says(ANSWER), says(ANSWER)]) as server:
        agent = shop.agent(server)
        state = through_json(agent, shop.run(agent, "go"))
        state.approve(state.get_interruptions()[0])
        kept = state.to_json()
        for _ in range(2):
            shop.run(agent, asyncio.run(RunState.from_json(agent, kept)))
        assert "NOT RUN YET, needs approval" in last_prompt(server)
    assert "the request that this answers is not open any more" in caplog.text
    assert (shop.refunds, len(shop.requests.pending())) == ([120], 1)


def test_two_equal_calls_that_are_both_approved_in_the_state_run(shop: Shop) -> None:
    with ScriptedModelServer([asks(REFUND, ("c2", *REFUND[1:])), says(ANSWER)]) as server:
        agent = shop.agent(server)
        state = through_json(agent, shop.run(agent, "go"))
        for item in state.get_interruptions():
            state.approve(item)
        assert shop.run(agent, state).final_output == ANSWER
    assert shop.refunds == [120, 120]
    assert shop.requests.pending() == []


@pytest.mark.parametrize("where", ["in the store", "in the state"])
def test_a_rejection_is_of_the_rule_that_asked_and_counts_once(shop: Shop, where: str, caplog: Any) -> None:
    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        agent = shop.agent(server)
        state = through_json(agent, shop.run(agent, "go"))
        if where == "in the store":
            shop.requests.reject(shop.asked.request_id, by="Eve", reason="not twice")
        else:
            state.reject(state.get_interruptions()[0], rejection_message="not twice")
        caplog.clear()
        assert shop.run(agent, state).final_output == ANSWER
        assert "not twice" in last_prompt(server)
        assert "policy more" not in last_prompt(server)
    assert {entry.policy for entry in shop.audit.entries() if entry.rule == "approval-rejected"} == {"ask"}
    assert caplog.text == ""
    shop.requests.put_on_record(shop.audit)
    report = evidence(shop.audit.path, EntrySelection(), key=None, heads=None)
    assert (len(report.rejections), len(report.denials)) == (1, 0)


def test_a_rejection_by_the_program_is_on_record_as_its_own_where_people_answer_with_keys(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "runner", by=["ada"])
    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        agent = shop.agent(server)
        state = through_json(agent, shop.run(agent, "go"))
        state.reject(state.get_interruptions()[0], rejection_message="not twice")
        shop.run(agent, state)
        assert "not twice" in last_prompt(server)
    (denial,) = [entry for entry in shop.audit.entries() if entry.rule == "rejected-by-program"]
    reason = "the resumed run (openai-agents) rejected this call: not twice"
    assert (denial.policy, denial.effect, denial.reason) == ("lgov", "deny", reason)
    assert (shop.refunds, shop.requests.all()) == ([], [])
    shop.audit.close()


def test_a_rejection_by_one_program_leaves_the_answers_to_the_request_that_another_shares(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "runner", approvers=2, per="global")
    ada, bob = (shop.requests.add_approver(name) for name in ("ada", "bob"))
    with ScriptedModelServer([asks(REFUND), asks(("c2", *REFUND[1:])), says(ANSWER), says(ANSWER)]) as server:
        agent = shop.agent(server)
        first, second = (through_json(agent, shop.run(agent, "go")) for _ in range(2))
        shop.requests.approve(shop.asked.request_id, by=ada)
        first.reject(first.get_interruptions()[0], rejection_message="not here")
        shop.run(agent, first)
        assert "not here" in last_prompt(server)
        (request,) = shop.requests.pending()
        assert ([answer.by for answer in request.answers], len(request.inquiry.calls)) == (["ada"], 1)
        shop.requests.approve(request.request_id, by=bob)
        assert shop.run(agent, second).final_output == ANSWER
    assert shop.refunds == [120]
    shop.audit.close()


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_rejected_call_takes_its_request_along_unless_others_wait_for_it_or_somebody_answered(
    tmp_path: Path, is_shared: bool
) -> None:
    shop = Shop(tmp_path, "runner", approvers=2, per="global")
    calls = [REFUND, ("c2", *REFUND[1:])][: 1 + is_shared]
    with ScriptedModelServer([*map(asks, calls), says(ANSWER), says(ANSWER)]) as server:
        agent = shop.agent(server)
        runs = [through_json(agent, shop.run(agent, "go")) for _ in calls]
        if not is_shared:
            shop.requests.approve(shop.asked.request_id, by=shop.requests.add_approver("ada"))
        waiting = [len(shop.requests.pending())]
        for run in runs:
            run.reject(run.get_interruptions()[0])
            shop.run(agent, run)
            waiting.append(len(shop.requests.pending()))
    assert waiting == ([1, 1, 0] if is_shared else [1, 1])
    shop.audit.close()


def test_an_answer_in_a_state_is_for_one_call_and_not_for_a_later_one_of_the_same_name(shop: Shop) -> None:
    async def settled(agent: Any, state: Any) -> list[bool]:
        with entering(new_run(shop.governor, agent, state, RunMemory(), None)) as run:
            await arun_flow(settle_flow(run, state))
            answered = run.judged[call_name("c1", "refund", REFUND[2])]
            later = new_carried_call(run, agent.tools[0], REFUND[2], None, "c1", agent)
            return [call.is_asked(await arun_flow(call.judge_flow())) for call in (answered, later)]

    with ScriptedModelServer([asks(REFUND)]) as server:
        agent = shop.agent(server)
        state = through_json(agent, shop.run(agent, "go"))
        state.approve(state.get_interruptions()[0])
        with instrumented(shop.governor) if shop.way == "instrumented" else nullcontext():
            assert asyncio.run(settled(agent, state)) == [False, True]
    assert [request.state for request in shop.requests.all()] == ["used", "pending"]
