"""Calls that LangGraph executes again: after an interrupt, after an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

from lgov_core.audit import AuditLog
from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.policies import (
    ApprovalPolicy,
    CostControlPolicy,
    LoopPolicy,
    OrderPolicy,
    PolicySet,
    RateLimitPolicy,
    Rule,
    ToolPolicy,
)
from lgov_core.policies.base import BoundedPolicy
from lgov_core.reward import AirPlugin, AirRules
from lgov_core.scope import RolloutScope
from lgov_core.testing import ScriptedModelServer, call
from lgov_core.types import Action, Decision, Point, Reward
from lgov_langchain import LgovMiddleware, wrap_tool_node


class Rules:
    """A governor that permits each call once, and what became of the calls."""

    def __init__(self, folder: Path, calls: int = 1) -> None:
        self.asked: list[dict[str, object]] = []
        self.cost = CostControlPolicy(max_calls=calls, per="global")
        self.audit = AuditLog(folder / "audit.db")
        approval = ApprovalPolicy(approver=lambda request: self.asked.append(dict(request.arguments)) is None)
        rate = RateLimitPolicy(max_calls=calls, per_seconds=1e6, per="global")
        rules = [_ToolCalls(LoopPolicy(max_repeats=1)), _ToolCalls(rate), _ToolCalls(self.cost), approval]
        self.governor = Governor(rules, audit=self.audit, timeout_s=20)

    def record(self) -> list[tuple[str | None, str | None]]:
        """The rule or the status of each entry about a tool call before its result is judged."""
        entries = [entry for entry in self.audit.entries() if entry.point == "pre_tool_call"]
        return [(entry.policy, entry.rule) if entry.kind == "decision" else (None, entry.status) for entry in entries]


class _ToolCalls(BoundedPolicy):
    """A policy that is asked about tool calls alone."""

    def __init__(self, policy) -> None:
        self.policy, self.name = policy, policy.name

    def judge(self, action: Action) -> Decision | None:
        return self.policy.judge(action) if action.point is Point.PRE_TOOL_CALL else None

    def observe(self, event) -> None:
        self.policy.observe(event)


@pytest.fixture
def rules(tmp_path):
    rules = Rules(tmp_path)
    yield rules
    rules.audit.close()


@tool
def ask_human(question: str) -> str:
    """Asks a person."""
    return f"the person said {interrupt(question)}"


THREAD = {"configurable": {"thread_id": "1"}}


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_call_that_is_paused_and_resumed_is_one_call(rules, way):
    with ScriptedModelServer([call("ask_human", question="ok?"), "bye"]) as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="k")
        agent = create_agent(
            model, [ask_human], middleware=[LgovMiddleware(rules.governor)], checkpointer=InMemorySaver()
        )
        begin, go_on = {"messages": [("user", "hi")]}, Command(resume="yes")
        if way == "sync":
            agent.invoke(begin, THREAD)
            messages = agent.invoke(go_on, THREAD)["messages"]
        else:
            await agent.ainvoke(begin, THREAD)
            messages = (await agent.ainvoke(go_on, THREAD))["messages"]
    assert messages[-2].content == "the person said yes"
    assert rules.asked == [{"question": "ok?"}]
    assert rules.cost.spent().calls == 1
    assert rules.record() == [
        ("ApprovalPolicy", "approved"), (None, "paused"), ("lgov", "resumed"), (None, "ok"),
    ]  # fmt: skip


def test_a_call_that_is_resumed_keeps_its_place_in_an_order():
    @tool
    def pay() -> str:
        """Pays."""
        return "paid"

    after = OrderPolicy(after={"tool": "ask_human", "within": 1})
    rules = [
        Rule(ToolPolicy(allow=["*"])),
        Rule(OrderPolicy(at_most=1), tools=["ask_human"]),
        Rule(after, tools=["pay"]),
    ]
    replies = [call("pay"), call("ask_human", question="ok?"), call("pay"), call("ask_human", question="ok?"), "bye"]
    with ScriptedModelServer(replies) as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="k")
        middleware = [LgovMiddleware(Governor(PolicySet(rules)))]
        agent = create_agent(model, [ask_human, pay], middleware=middleware, checkpointer=InMemorySaver())
        agent.invoke({"messages": [("user", "hi")]}, THREAD)
        messages = agent.invoke(Command(resume="yes"), THREAD)["messages"]
    results = [message.content for message in messages if message.type == "tool"]
    assert [text.partition(":")[0] for text in results] == [
        "DENIED by policy order/order-after", "the person said yes", "paid", "DENIED by policy order/order-limit",
    ]  # fmt: skip


def _flaky(failures: int):
    ran = []

    @tool
    def work(what: str) -> str:
        """Works."""
        ran.append(what)
        if len(ran) <= failures:
            raise ConnectionError("not there")
        return f"{what} done"

    return work, ran


def test_a_call_that_middleware_tries_again_is_one_call(rules):
    work, ran = _flaky(2)
    with ScriptedModelServer([call("work", what="a"), "bye"]) as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="k")
        again = ToolRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
        agent = create_agent(model, [work], middleware=[again, LgovMiddleware(rules.governor)])
        assert agent.invoke({"messages": [("user", "hi")]})["messages"][-2].content == "a done"
    assert (ran, rules.asked, rules.cost.spent().calls) == (["a"] * 3, [{"what": "a"}], 1)
    repeated = [("lgov", "repeated"), (None, "error")]
    assert rules.record() == [
        ("ApprovalPolicy", "approved"), (None, "error"), *repeated, ("lgov", "repeated"), (None, "ok"),
    ]  # fmt: skip


class _Rewards:
    """Keeps the rewards that a governor shows."""

    def __init__(self) -> None:
        self.paid: list[tuple[float, str | None]] = []

    @hookimpl
    def lgov_observe(self, event) -> None:
        if isinstance(event, Reward):
            self.paid.append((event.value, event.tool_call_id))


@pytest.mark.parametrize("shaped", [True, False])
@pytest.mark.parametrize(("failures", "worth"), [(0, 1.0), (2, 1.0), (9, -0.25)])
def test_a_call_that_is_tried_again_earns_what_its_last_result_is_worth(shaped, failures, worth):
    work, ran = _flaky(failures)
    rewards, again = _Rewards(), ToolRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
    air = AirPlugin(AirRules(tool_success=1.0, tool_error=-0.25, shaped=shaped))
    governor = Governor([ApprovalPolicy(approver=lambda _request: True)], plugins=[air, rewards])
    with ScriptedModelServer([call("work", what="a"), "bye"]) as server:
        model = ChatOpenAI(model="m", base_url=server.base_url, api_key="k")
        agent = create_agent(model, [work], middleware=[again, LgovMiddleware(governor)])
        with governor.rollout(RolloutScope("r1", 1)):
            agent.invoke({"messages": [("user", "hi")]})
            assert len(ran) == min(failures, 3) + 1
            assert sum(value for value, _ in rewards.paid) == worth, rewards.paid
            assert len({call_id for _, call_id in rewards.paid}) == 1
    assert sum(value for value, _ in rewards.paid) == (0 if shaped else worth)


def _proposal(*calls: tuple[str, str, str]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": {"what": what}, "id": id_} for name, what, id_ in calls])


def _graph(node, **options):
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node, **options)
    graph.add_edge(START, "tools")
    return graph.compile()


_RETRY = RetryPolicy(max_attempts=3, initial_interval=0.01, jitter=False)


def test_a_node_that_is_tried_again_repeats_its_calls(tmp_path):
    rules, (work, ran) = Rules(tmp_path, calls=2), _flaky(0)
    broken, tried = _flaky(1)
    broken.name = "broken"
    node = wrap_tool_node(rules.governor, [work, broken], handle_tool_errors=False)
    _graph(node, retry_policy=_RETRY).invoke({"messages": [_proposal(("work", "a", "c1"), ("broken", "b", "c2"))]})
    assert (len(tried), rules.cost.spent().calls, len(rules.asked)) == (2, 2, 2)
    assert len(ran) == 2, "LangGraph runs the whole node again"
    rules.audit.close()


@pytest.mark.parametrize("other", [("work", "another", "c1"), ("twin", "a", "c1"), ("work", "a", "c2")])
def test_the_permission_covers_only_the_same_id_tool_and_arguments(rules, other):
    work, ran = _flaky(1)
    twin, _ = _flaky(0)
    twin.name = "twin"
    node, attempts = wrap_tool_node(rules.governor, [work, twin], handle_tool_errors=False), []

    def changes(state):
        attempts.append(1)
        return node.invoke({"messages": [_proposal(("work", "a", "c1") if len(attempts) == 1 else other)]})

    messages = _graph(changes, retry_policy=_RETRY).invoke({"messages": []})["messages"]
    assert "DENIED" in messages[-1].content, "it is judged, and more than one call is denied"
    assert ran == ["a"]
    assert len(rules.asked) == 1


def test_a_second_call_with_the_id_of_the_first_is_judged(rules):
    work, ran = _flaky(0)
    node = wrap_tool_node(rules.governor, [work])

    def twice(state):
        return {"messages": [node.invoke({"messages": [_proposal(("work", "a", "c1"))]})["messages"][0] for _ in "ab"]}

    messages = _graph(twice).invoke({"messages": []})["messages"]
    assert (ran, len(rules.asked)) == (["a"], 1)
    assert "DENIED" in messages[-1].content


def test_a_permission_of_other_policies_covers_nothing(rules, monkeypatch):
    work, ran = _flaky(1)
    node, digests = wrap_tool_node(rules.governor, [work], handle_tool_errors=False), iter("abcdefgh")
    monkeypatch.setattr(Governor, "policy_digest", property(lambda _: next(digests)))
    messages = _graph(node, retry_policy=_RETRY).invoke({"messages": [_proposal(("work", "a", "c1"))]})["messages"]
    assert "DENIED" in messages[-1].content
    assert ran == ["a"]
