"""LangGraph carries the question of an approval: the run pauses with an interrupt, and its answer comes back with `Command`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from scripted import ModelServer, calls, says

from lgov_core.audit import AuditLog
from lgov_core.audit.verify import verify
from lgov_core.errors import PolicyError
from lgov_core.governor import Governor
from lgov_core.policies import ApprovalPolicy, ApprovalRequest, ApprovalRequests, PolicySet, Rule, ToolPolicy
from lgov_langchain import LgovMiddleware, wrap_tool_node

THREAD: Any = {"configurable": {"thread_id": "1"}}
BEGIN: Any = {"messages": [("user", "refund order 7")]}
REFUND = ("c1", "refund", {"euros": 120})


class Shop:
    """A governor whose rule asks about refunds, its store and record, and the refunds that were made."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.store = folder / "approvals.db"
        self.refunds: list[int] = []
        self.audit = AuditLog(folder / "audit.db")
        rule = ApprovalPolicy(tools=["refund"], store=self.store, via="framework", name="ask", **options)
        rules = [Rule(ToolPolicy(allow=["*"])), Rule(rule)]
        self.governor = Governor(PolicySet(rules), audit=self.audit, timeout_s=20)

        @tool
        def refund(euros: int) -> str:
            """Pays back."""
            self.refunds.append(euros)
            return f"paid {euros}"

        @tool
        def look(number: int) -> str:
            """Looks an order up."""
            self.refunds.append(-number)
            return f"order {number}"

        self.tools = [refund, look]

    def agent(self, chat: Any, saver: Any = None, **options: Any) -> Any:
        saver = InMemorySaver() if saver is None else saver or None
        return create_agent(chat, self.tools, middleware=[LgovMiddleware(self.governor)], checkpointer=saver, **options)

    @property
    def requests(self) -> list[ApprovalRequest]:
        return ApprovalRequests(self.store).all()

    def record(self) -> list[tuple[str | None, str | None]]:
        """The rule or the status, and the reason, of each entry about a tool call before its result is judged."""
        entries = [entry for entry in self.audit.entries() if entry.point == "pre_tool_call"]
        return [(entry.rule or entry.status, entry.reason) for entry in entries]


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    shop = Shop(tmp_path)
    yield shop
    shop.audit.close()


def question(result: Any) -> dict[str, Any]:
    (pause,) = result["__interrupt__"]
    return pause.value


def answers(result: Any) -> list[str]:
    return [message.content for message in result["messages"] if message.type == "tool"]


def approval(asked: dict[str, Any], **fields: Any) -> Command[Any]:
    return Command(resume={"request_id": asked["request_id"], "answer": "approve", **fields})


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_the_run_pauses_with_the_question_and_the_resumed_run_brings_the_answer(
    shop: Shop, model_server: ModelServer, chat: Any, way: str
) -> None:
    model_server.play(calls(REFUND), says("done"))
    agent = shop.agent(chat)
    asked = question(agent.invoke(BEGIN, THREAD) if way == "sync" else await agent.ainvoke(BEGIN, THREAD))
    assert (asked["name"], asked["arguments"], asked["rule"]) == ("refund", {"euros": 120}, "ask")
    assert shop.refunds == []
    resume = approval(asked, by="ada")
    result = agent.invoke(resume, THREAD) if way == "sync" else await agent.ainvoke(resume, THREAD)
    assert answers(result) == ["paid 120"]
    assert shop.refunds == [120]
    (request,) = shop.requests
    assert (request.state, request.answered_by) == ("used", "ada")
    assert [rule for rule, _ in shop.record()] == [
        "approval-pending", "paused", "approval-pending", "approved", "ok",
    ]  # fmt: skip
    assert any("ada approved it (request apr_" in (reason or "") for _, reason in shop.record())
    shop.audit.close()
    assert verify(shop.audit.path).ok


def test_a_run_that_is_resumed_without_an_answer_pauses_again(shop: Shop, model_server: ModelServer, chat: Any) -> None:
    model_server.play(calls(REFUND), says("done"))
    agent = shop.agent(chat)
    asked = question(agent.invoke(BEGIN, THREAD))
    for value in ("yes", True, {"answer": "approve"}, {"request_id": "apr_other", "answer": "approve"}):
        again = question(agent.invoke(Command(resume=value), THREAD))
        assert again["request_id"] == asked["request_id"]
        assert asked["request_id"] in again["problem"]
    assert question(agent.invoke(None, THREAD))["request_id"] == asked["request_id"]
    assert shop.refunds == []
    assert answers(agent.invoke(approval(asked), THREAD)) == ["paid 120"]


def test_an_answer_is_for_the_arguments_that_were_shown(shop: Shop, model_server: ModelServer, chat: Any) -> None:
    model_server.play(calls(REFUND), says("done"))
    agent = shop.agent(chat)
    asked = question(agent.invoke(BEGIN, THREAD))
    message = agent.get_state(THREAD).values["messages"][-1]
    message.tool_calls[0]["args"] = {"euros": 9000}
    agent.update_state(THREAD, {"messages": [message]}, as_node="model")
    again = question(agent.invoke(approval(asked), THREAD))
    assert again["arguments"] == {"euros": 9000}
    assert again["request_id"] != asked["request_id"]
    assert shop.refunds == []
    assert answers(agent.invoke(approval(again), THREAD)) == ["paid 9000"]


def test_calls_of_one_reply_are_asked_about_each_and_run_once(shop: Shop, model_server: ModelServer, chat: Any) -> None:
    more = ("c2", "refund", {"euros": 5})
    model_server.play(calls(REFUND, more, ("c3", "look", {"number": 7})), says("done"))
    agent = shop.agent(chat)
    paused = agent.invoke(BEGIN, THREAD)
    assert shop.refunds == [-7]
    pauses = {pause.value["arguments"]["euros"]: pause for pause in paused["__interrupt__"]}
    swapped = {pauses[120].id: approval(pauses[5].value).resume, pauses[5].id: approval(pauses[120].value).resume}
    again = agent.invoke(Command(resume=swapped), THREAD)
    assert shop.refunds == [-7]
    pauses = {pause.value["arguments"]["euros"]: pause for pause in again["__interrupt__"]}
    right = {pauses[120].id: approval(pauses[120].value).resume}
    right |= {pauses[5].id: {"request_id": pauses[5].value["request_id"], "answer": "reject"}}
    result = agent.invoke(Command(resume=right), THREAD)
    assert shop.refunds == [-7, 120]
    assert [text.split(" ")[0] for text in answers(result)] == ["paid", "DENIED", "order"]


def test_a_tool_with_an_interrupt_of_its_own_gets_its_own_answer(
    shop: Shop, model_server: ModelServer, chat: Any
) -> None:
    @tool
    def refund(euros: int) -> str:
        """Pays back."""
        colour = interrupt("which colour?")
        shop.refunds.append(euros)
        return f"paid {euros} in {colour}"

    shop.tools = [refund]
    model_server.play(calls(REFUND), says("done"))
    agent = shop.agent(chat)
    asked = question(agent.invoke(BEGIN, THREAD))
    assert question(agent.invoke(approval(asked), THREAD)) == "which colour?"
    assert answers(agent.invoke(Command(resume="red"), THREAD)) == ["paid 120 in red"]
    assert shop.refunds == [120]


def test_a_key_is_not_for_the_framework(tmp_path: Path, model_server: ModelServer, chat: Any) -> None:
    shop = Shop(tmp_path, by=["ada"])
    key = ApprovalRequests(shop.store).add_approver("ada")
    model_server.play(calls(REFUND), says("done"))
    agent = shop.agent(chat)
    asked = question(agent.invoke(BEGIN, THREAD))
    for by, problem in ((key, "a key is not for it"), ("ada", "answered with an approver's key")):
        assert problem in question(agent.invoke(approval(asked, by=by), THREAD))["problem"]
    ApprovalRequests(shop.store).approve(asked["request_id"], by=key)
    assert answers(agent.invoke(None, THREAD)) == ["paid 120"]
    shop.audit.close()


def test_without_a_checkpointer_the_model_reads_that_a_person_has_to_answer(
    shop: Shop, model_server: ModelServer, chat: Any
) -> None:
    model_server.play(calls(REFUND), says("waiting"))
    (text,) = answers(shop.agent(chat, saver=False).invoke(BEGIN))
    assert text.startswith("NOT RUN YET, needs approval")
    assert shop.refunds == []


@pytest.mark.parametrize("number", [1, 2])
def test_a_node_with_several_calls_is_not_paused_because_the_others_would_run_again(
    shop: Shop, model_server: ModelServer, chat: Any, number: int
) -> None:
    graph = StateGraph(MessagesState)
    bound = chat.bind_tools(shop.tools)

    def model(state: MessagesState) -> Any:
        return {"messages": [bound.invoke(state["messages"])]}

    graph.add_node("model", model)
    graph.add_node("tools", wrap_tool_node(shop.governor, shop.tools))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    agent = graph.compile(checkpointer=InMemorySaver())
    model_server.play(calls(*[REFUND, ("c2", "look", {"number": 7})][:number]))
    result = agent.invoke(BEGIN, THREAD)
    if number == 1:
        assert answers(agent.invoke(approval(question(result)), THREAD)) == ["paid 120"]
    else:
        assert [text.split(" ")[0] for text in answers(result)] == ["NOT", "order"]
        assert shop.refunds == [-7]


@pytest.mark.parametrize("number", [1, 2])
def test_a_call_inside_of_a_tool_pauses_the_run_only_if_nothing_beside_it_would_run_again(
    shop: Shop, model_server: ModelServer, chat: Any, number: int
) -> None:
    clerk = create_agent(chat, shop.tools, middleware=[LgovMiddleware(shop.governor)])

    @tool
    def ask_clerk(text: str) -> str:
        """Asks the clerk."""
        begin: Any = {"messages": [("user", text)]}
        return clerk.invoke(begin)["messages"][-1].content

    graph = StateGraph(MessagesState)
    bound = chat.bind_tools([ask_clerk, shop.tools[1]])

    def model(state: MessagesState) -> Any:
        return {"messages": [bound.invoke(state["messages"])]}

    graph.add_node("model", model)
    graph.add_node("tools", wrap_tool_node(shop.governor, [ask_clerk, shop.tools[1]]))
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    agent = graph.compile(checkpointer=InMemorySaver())
    outer = [("o1", "ask_clerk", {"text": "refund"}), ("o2", "look", {"number": 7})][:number]
    model_server.play(calls(*outer), calls(REFUND), says("clerk's answer"))
    result = agent.invoke(BEGIN, THREAD)
    if number == 1:
        result = agent.invoke(approval(question(result)), THREAD)
    assert answers(result)[0] == "clerk's answer"
    assert shop.refunds == ([120] if number == 1 else [-7])


@pytest.mark.parametrize("options", [{}, {"store": "a.db", "approver": lambda request: True}])
def test_an_option_that_nobody_could_answer_by_is_refused(options: Any, tmp_path: Path) -> None:
    if "store" in options:
        options = {**options, "store": tmp_path / options["store"]}
    with pytest.raises(PolicyError, match="via framework asks people, who answer in a store"):
        ApprovalPolicy(via="framework", **options)


def test_who_resumes_is_whom_the_server_knows(
    shop: Shop, model_server: ModelServer, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lgov_langchain.tools.resumed_by", lambda runtime: "eve")
    model_server.play(calls(REFUND), says("done"))
    agent = shop.agent(chat)
    asked = question(agent.invoke(BEGIN, THREAD))
    agent.invoke(approval(asked, by="ada"), THREAD)
    assert shop.requests[0].answered_by == "eve"
