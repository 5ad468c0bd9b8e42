"""The Agents SDK carries the question of an approval: an interruption, and the answer in the `RunState`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, RunState, function_tool
from cells import ANSWER, asks, says
from cells_agents import chat_model, instrumented

from lgov_core.audit import AuditLog
from lgov_core.audit.verify import verify
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


def test_the_run_pauses_and_the_approval_in_its_state_is_the_answer(shop: Shop) -> None:
    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        agent = shop.agent(server)
        paused = shop.run(agent, "go")
        assert [item.name for item in paused.interruptions] == ["refund"]
        assert (shop.asked.state, dict(shop.asked.arguments)) == ("pending", {"euros": 120, "why": "none"})
        assert shop.refunds == []
        state = through_json(agent, paused)
        state.approve(state.get_interruptions()[0])
        assert shop.run(agent, state).final_output == ANSWER
        assert "paid 120" in last_prompt(server)
    assert shop.refunds == [120]
    assert (shop.asked.state, shop.asked.answered_by) == ("used", "the resumed run (openai-agents)")
    assert shop.record() == ["approval-pending", "paused", "approval-pending", "approved", "ok"]
    shop.audit.close()
    assert verify(shop.audit.path).ok


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


def test_a_rejection_in_the_state_is_text_for_the_model_and_on_record(shop: Shop) -> None:
    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        agent = shop.agent(server)
        state = through_json(agent, shop.run(agent, "go"))
        state.reject(state.get_interruptions()[0], rejection_message="not twice")
        shop.run(agent, state)
        assert "not twice" in last_prompt(server)
    assert shop.refunds == []
    assert (shop.asked.state, shop.asked.reason) == ("rejected", "not twice")
    assert shop.record() == ["approval-pending", "paused", "approval-rejected", "denied"]
    (denial,) = [entry for entry in shop.audit.entries() if entry.rule == "approval-rejected"]
    assert (denial.policy, denial.reason) == (
        "ask", "the resumed run (openai-agents) rejected this call: not twice",
    )  # fmt: skip


@pytest.mark.parametrize("answer", ["approve", "reject"])
def test_an_answer_given_elsewhere_counts_when_the_run_is_resumed(shop: Shop, answer: str) -> None:
    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        agent = shop.agent(server)
        state = through_json(agent, shop.run(agent, "go"))
        if answer == "approve":
            shop.requests.approve(shop.asked.request_id, by="Eve")
        else:
            shop.requests.reject(shop.asked.request_id, by="Eve", reason="not twice")
        assert shop.run(agent, state).final_output == ANSWER
        words = "paid 120" if answer == "approve" else "DENIED by policy ask/approval-rejected: Eve rejected this call"
        assert words in last_prompt(server)
    assert shop.refunds == ([120] if answer == "approve" else [])
    assert shop.record()[2:] == (["approved", "ok"] if answer == "approve" else ["approval-rejected", "denied"])


def test_a_run_that_is_resumed_without_an_answer_pauses_again(shop: Shop) -> None:
    with ScriptedModelServer([asks(REFUND)]) as server:
        agent = shop.agent(server)
        again = shop.run(agent, through_json(agent, shop.run(agent, "go")))
        assert len(again.interruptions) == 1
    assert shop.refunds == []
    assert shop.asked.state == "pending"


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


def test_the_run_is_resumed_as_the_page_says(shop: Shop) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/approvals.md"
    code = page.read_text().split('```python title="resume_agents.py"\n')[1].split("```")[0]
    with ScriptedModelServer([asks(REFUND), says(ANSWER)]) as server:
        names: dict[str, Any] = {"agent": shop.agent(server), "text": "go", "Runner": shop.runner}
        with instrumented(shop.governor) if shop.way == "instrumented" else nullcontext():
            exec(code, names)
    assert names["result"].final_output == ANSWER
    assert shop.refunds == [120]


PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, RunState, function_tool
from openai import AsyncOpenAI

@function_tool
def refund(euros: int) -> str:
    "Pays back."
    print("PAID", euros, flush=True)
    return f"paid {euros}"

model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=sys.argv[1], api_key="k"))
agent, kept = Agent(name="clerk", model=model, tools=[refund]), Path("state.json")
config = RunConfig(tracing_disabled=True)
if sys.argv[2] == "ask":
    result = Runner.run_sync(agent, "refund order 7", run_config=config)
    kept.write_text(json.dumps(result.to_state().to_json()))
    print("ASKED", result.interruptions[0].name)
else:
    state = asyncio.run(RunState.from_json(agent, json.loads(kept.read_text())))
    if sys.argv[2] == "approve":
        state.approve(state.get_interruptions()[0])
    print("ANSWER", Runner.run_sync(agent, state, run_config=config).final_output)
"""


@pytest.mark.parametrize("answered", ["by resuming", "by lgov approvals"])
def test_another_process_resumes_an_unedited_program(tmp_path: Path, answered: str) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    (tmp_path / "policy.yaml").write_text(
        "version: 1\ndefault: deny\nrules:\n- name: tools\n  tools: [refund]\n  use: allow\n"
        "- name: ask\n  tools: [refund]\n  use: approval\n  with: {via: framework}\n"
    )

    def lgov(*words: str) -> str:
        command = [sys.executable, "-m", "lgov_core", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120).stdout

    with ScriptedModelServer([asks(REFUND), says("done")]) as server:
        run = ("run", "--policy", "policy.yaml", "--", sys.executable, "agent.py", server.base_url)
        assert lgov(*run, "ask") == "ASKED refund\n"
        if answered == "by resuming":
            output = lgov(*run, "approve")
        else:
            lgov("approvals", ".lgov/approvals.db", "--approve", "apr_", "--by", "ada")
            output = lgov(*run, "resume")
    assert output.splitlines() == ["PAID 120", "ANSWER done"]
    who = "the resumed run (openai-agents)" if answered == "by resuming" else "ada"
    assert f"{who} approved it" in lgov("audit", "show", ".lgov/audit.db", "--json")
    assert "ok:" in lgov("audit", "verify", ".lgov/audit.db")
