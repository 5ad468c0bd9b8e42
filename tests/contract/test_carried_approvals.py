"""`via: framework` in LangGraph and the OpenAI Agents SDK: the run pauses with the question and is resumed with the answer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agents import Agent, RunConfig, Runner, RunState, function_tool
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from lgov_core.audit import AuditLog
from lgov_core.audit.verify import verify
from lgov_core.governor import Governor
from lgov_core.policies import ApprovalPolicy, ApprovalRequest, ApprovalRequests, PolicySet, Rule, ToolPolicy
from lgov_core.testing import ScriptedModelServer
from lgov_openai_agents import LgovRunner
from tests.cells import asks, says
from tests.contract import agents_sdk_driver, langchain_driver
from tests.contract.adapter_driver import Driver, Program
from tests.openai_agents.cells_agents import MODELS

pytestmark = pytest.mark.filterwarnings("ignore")

REFUND = ("c1", "refund", {"euros": 120})
PAGE = Path(__file__).parents[2] / "docs/how-to/approvals.md"
CONFIG = RunConfig(tracing_disabled=True)


class Run(ABC):
    """A run of an agent that refunds, up to its pause, and from there on."""

    driver: ClassVar[Driver]
    resumed_by: ClassVar[str]
    block: ClassVar[str]

    def __init__(self, program: Program) -> None:
        self.program = program

    @abstractmethod
    def begin(self) -> str:
        """Runs up to the pause, and returns the tool that is asked about."""

    @abstractmethod
    def resume(self, answer: str | None = None, reason: str = "") -> None:
        """Goes on with an answer, or with none."""

    @abstractmethod
    def paused(self) -> bool:
        """Returns whether the run waits for an answer."""

    @abstractmethod
    def names(self) -> dict[str, Any]:
        """The names that the block of the page uses."""


class LangGraphRun(Run):
    driver = langchain_driver.LangChain()
    resumed_by, block = "the resumed run (langchain)", "resume_langgraph.py"
    thread: ClassVar[Any] = {"configurable": {"thread_id": "1"}}

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        tools = [StructuredTool.from_function(tool, name=tool.__name__) for tool in program.tools]
        self.agent: Any = langchain_driver.LangChain().agent(program, tools, checkpointer=InMemorySaver())
        self.result: Any = None

    def begin(self) -> str:
        self.result = self.agent.invoke({"messages": [("user", "refund order 7")]}, self.thread)
        return self.result["__interrupt__"][0].value["name"]

    def resume(self, answer: str | None = None, reason: str = "") -> None:
        request_id = self.result["__interrupt__"][0].value["request_id"]
        fields = {"request_id": request_id, "answer": answer, "reason": reason}
        self.result = self.agent.invoke(None if answer is None else Command(resume=fields), self.thread)

    def paused(self) -> bool:
        return "__interrupt__" in self.result

    def names(self) -> dict[str, Any]:
        return {"agent": self.agent, "text": "refund order 7", "config": self.thread, "Command": Command}


class AgentsRun(Run):
    driver = agents_sdk_driver.SETUPS[0][0]
    resumed_by, block = "the resumed run (openai-agents)", "resume_agents.py"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.runner: Any = LgovRunner(program.governor) if program.explicit else Runner
        tools: Any = [function_tool(tool) for tool in program.tools]
        agent = Agent(name="clerk", model=MODELS["chat"](program), tools=tools)
        self.agent: Any = self.runner.govern(agent) if program.explicit else agent
        self.result: Any = None

    def begin(self) -> str:
        self.result = self.runner.run_sync(self.agent, "refund order 7", run_config=CONFIG)
        return self.result.interruptions[0].name

    def resume(self, answer: str | None = None, reason: str = "") -> None:
        state: Any = asyncio.run(RunState.from_json(self.agent, self.result.to_state().to_json()))
        if answer == "approve":
            state.approve(state.get_interruptions()[0])
        elif answer == "reject":
            state.reject(state.get_interruptions()[0], rejection_message=reason)
        self.result = self.runner.run_sync(self.agent, state, run_config=CONFIG)

    def paused(self) -> bool:
        return bool(self.result.interruptions)

    def names(self) -> dict[str, Any]:
        return {"agent": self.agent, "text": "refund order 7", "Runner": self.runner}


class Shop:
    """A rule that asks about refunds, its store and its record, and the refunds that were made."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.store, self.refunds, self.audit = folder / "approvals.db", list[int](), AuditLog(folder / "audit.db")
        self.later_s = 0.0
        options |= {"store": self.store, "clock": self.clock, "via": "framework", "name": "ask"}
        ask = ApprovalPolicy(tools=["refund"], **options)
        rules = [Rule(ToolPolicy(allow=["*"])), Rule(ask)]
        self.governor = Governor(PolicySet(rules), audit=self.audit, timeout_s=20)

    def clock(self) -> float:
        return time.time() + self.later_s

    @property
    def requests(self) -> ApprovalRequests:
        return ApprovalRequests(self.store, clock=self.clock)

    @property
    def asked(self) -> ApprovalRequest:
        return self.requests.all()[-1]

    def record(self) -> list[str | None]:
        """The rule, or the status, of each entry about a tool call before its result is judged."""
        return [entry.rule or entry.status for entry in self.audit.entries() if entry.point == "pre_tool_call"]

    @contextmanager
    def running(self, kind: type[Run], way: str) -> Generator[tuple[Run, ScriptedModelServer]]:
        """A run of the shop's agent, and its model."""

        def refund(euros: int) -> str:
            """Pays back."""
            self.refunds.append(euros)
            return f"paid {euros}"

        with (
            ScriptedModelServer([asks(REFUND), says("done")]) as server,
            kind.driver.governed(way, self.governor),
        ):
            yield kind(Program(server.base_url, self.governor, way, "sync", [refund])), server
        self.audit.close()


EVERY_WAY = pytest.mark.parametrize("way", ["explicit", "instrumented"])
EVERY_RUN = pytest.mark.parametrize("kind", [LangGraphRun, AgentsRun])


def last_prompt(server: ScriptedModelServer) -> str:
    return str(server.requests[-1].body)


@EVERY_WAY
@EVERY_RUN
def test_the_run_pauses_and_what_it_is_resumed_with_is_the_answer(kind: type[Run], way: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.running(kind, way) as (run, server):
        assert run.begin() == "refund"
        assert (shop.asked.state, dict(shop.asked.arguments)) == ("pending", {"euros": 120})
        assert shop.asked.inquiry.user_text == "refund order 7"
        assert shop.refunds == []
        run.resume("approve")
        assert not run.paused()
        assert "paid 120" in last_prompt(server)
        assert shop.refunds == [120]
        assert (shop.asked.state, shop.asked.answered_by) == ("used", kind.resumed_by)
        assert shop.record() == ["approval-pending", "paused", "approval-pending", "approved", "ok"]
    assert verify(shop.audit.path).ok


@EVERY_WAY
@EVERY_RUN
def test_a_rejection_is_text_for_the_model_and_on_record(kind: type[Run], way: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.running(kind, way) as (run, server):
        run.begin()
        run.resume("reject", "not twice")
        assert "not twice" in last_prompt(server)
        assert shop.refunds == []
        assert (shop.asked.state, shop.asked.reason) == ("rejected", "not twice")
        (denial,) = [entry for entry in shop.audit.entries() if entry.rule == "approval-rejected"]
        assert (denial.policy, denial.reason) == ("ask", f"{kind.resumed_by} rejected this call: not twice")


@pytest.mark.parametrize("answer", ["approve", "reject"])
@EVERY_WAY
@EVERY_RUN
def test_an_answer_given_elsewhere_counts_when_the_run_is_resumed(
    kind: type[Run], way: str, answer: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path)
    with shop.running(kind, way) as (run, server):
        run.begin()
        if answer == "approve":
            shop.requests.approve(shop.asked.request_id, by="Eve")
        else:
            shop.requests.reject(shop.asked.request_id, by="Eve", reason="not twice")
        run.resume()
        rejected = "DENIED by policy ask/approval-rejected: Eve rejected this call: not twice"
        assert ("paid 120" if answer == "approve" else rejected) in last_prompt(server)
        assert shop.refunds == ([120] if answer == "approve" else [])


@EVERY_WAY
@EVERY_RUN
def test_a_run_that_is_resumed_without_an_answer_pauses_again(kind: type[Run], way: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    with shop.running(kind, way) as (run, _):
        run.begin()
        run.resume()
        assert run.paused()
        assert (shop.refunds, shop.asked.state) == ([], "pending")


@pytest.mark.parametrize("after", ["it lapsed", "it was forgotten"])
@EVERY_WAY
@EVERY_RUN
def test_a_run_that_is_resumed_after_its_request_is_over_waits_for_a_new_one(
    kind: type[Run], way: str, after: str, tmp_path: Path, caplog: Any
) -> None:
    shop = Shop(tmp_path)
    with shop.running(kind, way) as (run, server):
        run.begin()
        before = shop.asked.request_id
        shop.later_s = 3601 if after == "it lapsed" else 200_000
        caplog.clear()
        run.resume()
        assert run.paused()
        (waiting,) = shop.requests.pending()
        assert waiting.request_id != before
        assert f"--approve {waiting.request_id[:12]}" in caplog.text
        shop.requests.approve(waiting.request_id, by="Eve")
        run.resume()
        assert shop.refunds == [120]
        assert "paid 120" in last_prompt(server)


@EVERY_WAY
@EVERY_RUN
def test_what_a_framework_carries_does_not_answer_for_a_named_approver(
    kind: type[Run], way: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, by=["ada"])
    with shop.running(kind, way) as (run, _):
        run.begin()
        run.resume("approve")
        assert (shop.refunds, shop.asked.state) == ([], "pending")


@EVERY_WAY
@EVERY_RUN
def test_the_run_is_resumed_as_the_page_says(kind: type[Run], way: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    code = PAGE.read_text().split(f'```python title="{kind.block}"\n')[1].split("```")[0]
    with shop.running(kind, way) as (run, _):
        exec(code, run.names())
        assert (shop.refunds, shop.asked.state) == ([120], "used")


LANGGRAPH_PROGRAM = """
import pickle, sys
from pathlib import Path
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

@tool
def refund(euros: int) -> str:
    "Pays back."
    print("PAID", euros, flush=True)
    return f"paid {euros}"

saver, kept = InMemorySaver(), Path("checkpoints.pickle")
if kept.exists():
    for own, was in zip((saver.storage, saver.writes, saver.blobs), pickle.loads(kept.read_bytes())):
        own.update(was)
agent = create_agent(ChatOpenAI(model="m", base_url=sys.argv[1], api_key="k"), [refund], checkpointer=saver)
thread = {"configurable": {"thread_id": "1"}}
if sys.argv[2] == "ask":
    result = agent.invoke({"messages": [("user", "refund order 7")]}, thread)
    asked = result["__interrupt__"][0].value
    Path("asked").write_text(asked["request_id"])
    print("ASKED", asked["name"])
else:
    answer = {"request_id": Path("asked").read_text(), "answer": "approve", "by": "ada"}
    result = agent.invoke(Command(resume=answer) if sys.argv[2] == "approve" else None, thread)
    print("ANSWER", result["messages"][-1].content)
kept.write_bytes(pickle.dumps([dict(saver.storage), dict(saver.writes), dict(saver.blobs)]))
"""
AGENTS_PROGRAM = """
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
@pytest.mark.parametrize(
    ("program", "resumed_by"),
    [(LANGGRAPH_PROGRAM, "ada"), (AGENTS_PROGRAM, AgentsRun.resumed_by)],
    ids=["lc", "agents"],
)
def test_another_process_resumes_an_unedited_program(
    tmp_path: Path, program: str, resumed_by: str, answered: str
) -> None:
    (tmp_path / "agent.py").write_text(program)
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
    who = resumed_by if answered == "by resuming" else "ada"
    assert f"{who} approved it" in lgov("audit", "show", ".lgov/audit.db", "--json")
    assert "ok:" in lgov("audit", "verify", ".lgov/audit.db")
