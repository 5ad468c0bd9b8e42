"""What the user said is what the outermost run was given, not what a page, a tool or another agent says."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import StructuredTool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from lc_agents import ask

from lgov_core.audit import AuditLog
from lgov_core.governor import Governor
from lgov_core.scope import enter_scope
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Point
from lgov_langchain import LgovMiddleware, instrument, uninstrument
from tests.cells import Seen, asks, says
from tests.provenance_example import (
    BOTH_ADDRESSES,
    ORDER,
    REQUEST,
    SAID,
    SCOPES,
    UNSAID,
    Mails,
    documented_governor,
    in_plain_thread,
    provenance_governor,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def model_of(server: ScriptedModelServer) -> Any:
    return ChatOpenAI(model="scripted", base_url=server.base_url, api_key="none", max_retries=0)  # type: ignore[arg-type]


def tools_of(mails: Mails) -> list[Any]:
    return [StructuredTool.from_function(one) for one in (mails.send_mail, mails.read_page)]


class governed:
    """The process instrumented by one line, without a rollout or a session."""

    def __init__(self, governor: Governor) -> None:
        self.governor = governor

    def __enter__(self) -> Governor:
        instrument(self.governor)
        return self.governor

    def __exit__(self, *exc: object) -> None:
        uninstrument()
        self.governor.close()


@SCOPES
@BOTH_ADDRESSES
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream", "astream"])
def test_the_documented_example(how: str, address: str, sent: bool, scope: Any) -> None:
    mails = Mails()
    script = [asks(("c1", "read_page", {})), asks(("c2", "send_mail", {"to": address})), says("done")]
    with ScriptedModelServer(script) as server, governed(documented_governor()), enter_scope(scope):
        ask(create_agent(model_of(server), tools_of(mails)), how, REQUEST)
    assert mails.to == ([address] if sent else [])


@BOTH_ADDRESSES
def test_the_documented_example_with_the_middleware(address: str, sent: bool) -> None:
    mails, governor = Mails(), documented_governor()
    with ScriptedModelServer([asks(("c1", "send_mail", {"to": address})), says("done")]) as server:
        agent = create_agent(model_of(server), tools_of(mails), middleware=[LgovMiddleware(governor)])
        ask(agent, "invoke", REQUEST)
    governor.close()
    assert mails.to == ([address] if sent else [])


@BOTH_ADDRESSES
def test_an_earlier_turn_in_the_input_counts(address: str, sent: bool) -> None:
    mails = Mails()
    with (
        ScriptedModelServer([asks(("c1", "send_mail", {"to": address})), says("done")]) as server,
        governed(documented_governor()),
    ):
        agent = create_agent(model_of(server), tools_of(mails))
        agent.invoke({"messages": [("user", REQUEST), ("ai", ORDER), ("user", "Yes, please.")]})
    assert mails.to == ([address] if sent else [])


@SCOPES
@BOTH_ADDRESSES
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_what_a_node_of_a_graph_writes_is_not_the_users(how: str, address: str, sent: bool, scope: Any) -> None:
    mails, seen = Mails(), Seen()
    script = [asks(("c1", "send_mail", {"to": address})), says("done")]
    with ScriptedModelServer(script) as server, governed(provenance_governor(seen)), enter_scope(scope):
        graph: Any = StateGraph(MessagesState)
        graph.add_node("researcher", lambda _state: {"messages": [HumanMessage(ORDER, name="researcher")]})
        graph.add_node("mailer", create_agent(model_of(server), tools_of(mails), name="mailer"))
        graph.add_edge(START, "researcher")
        graph.add_edge("researcher", "mailer")
        ask(graph.compile(), how, REQUEST)
    assert mails.to == ([address] if sent else [])
    sources = {one.action.text: one.action.source for one in seen.decisions(Point.INPUT)}
    assert sources == {REQUEST: "user", ORDER: "agent"}


def test_what_a_node_says_to_an_agent_that_it_runs_is_not_the_users() -> None:
    mails = Mails()
    with (
        ScriptedModelServer([asks(("c1", "send_mail", {"to": UNSAID})), says("done")]) as server,
        governed(provenance_governor()),
    ):
        agent = create_agent(model_of(server), tools_of(mails))

        async def delegate(_state: Any) -> Any:
            return {"messages": (await agent.ainvoke({"messages": [("user", ORDER)]}))["messages"][-1:]}

        graph: Any = StateGraph(MessagesState)
        graph.add_node("delegate", delegate)
        graph.add_edge(START, "delegate")
        asyncio.run(graph.compile().ainvoke({"messages": [("user", REQUEST)]}))
    assert mails.to == []


@BOTH_ADDRESSES
@pytest.mark.parametrize("joins", [True, False])
def test_what_a_thread_of_a_node_says_is_not_the_users(joins: bool, address: str, sent: bool, carrying: None) -> None:
    mails, threads = Mails(), []
    script = [asks(("c1", "send_mail", {"to": address})), says("done")]
    with ScriptedModelServer(script) as server, governed(provenance_governor()):
        agent = create_agent(model_of(server), tools_of(mails))
        ended = threading.Event()

        def said_in_thread() -> None:
            if not joins:
                ended.wait(30)
            agent.invoke({"messages": [("user", ORDER)]})

        def delegate(_state: Any) -> Any:
            thread = threading.Thread(target=said_in_thread)
            thread.start()
            threads.append(thread)
            if joins:
                thread.join()
            return {"messages": []}

        graph: Any = StateGraph(MessagesState)
        graph.add_node("delegate", delegate)
        graph.add_edge(START, "delegate")
        graph.compile().invoke({"messages": [("user", REQUEST)]})
        ended.set()
        threads[0].join()
    assert mails.to == []


def test_what_a_program_says_in_its_own_thread_is_the_users(carrying: None) -> None:
    mails = Mails()
    with (
        ScriptedModelServer([asks(("c1", "send_mail", {"to": SAID})), says("done")]) as server,
        governed(provenance_governor()),
    ):
        agent = create_agent(model_of(server), tools_of(mails))
        in_plain_thread(lambda: ask(agent, "invoke", REQUEST))
    assert mails.to == [SAID]


@SCOPES
@BOTH_ADDRESSES
def test_what_is_said_to_an_agent_that_is_a_tool_is_not_the_users(address: str, sent: bool, scope: Any) -> None:
    mails = Mails()
    script = [
        asks(("c1", "helper", {"task": f"Write to {address}."})),
        asks(("c2", "send_mail", {"to": address})),
        says("done"),
        says("done"),
    ]
    with ScriptedModelServer(script) as server, governed(provenance_governor()), enter_scope(scope):
        inner = create_agent(model_of(server), tools_of(mails), name="inner")

        @tool
        def helper(task: str) -> str:
            """Helps."""
            return inner.invoke({"messages": [("user", task)]})["messages"][-1].text

        ask(create_agent(model_of(server), [helper]), "invoke", REQUEST)
    assert mails.to == ([address] if sent else [])


def test_one_run_does_not_speak_for_another() -> None:
    mails = Mails()
    script = [says("noted"), asks(("c1", "send_mail", {"to": SAID})), says("done")]
    with ScriptedModelServer(script) as server, governed(documented_governor()):
        agent = create_agent(model_of(server), tools_of(mails))
        ask(agent, "invoke", REQUEST)
        ask(agent, "invoke", "Send it to whom you know.")
    assert mails.to == []


def test_the_record_names_the_source(tmp_path: Path) -> None:
    mails, governor = Mails(), documented_governor()
    governor.audit = AuditLog(tmp_path / "audit.db")
    script = [asks(("c1", "read_page", {})), asks(("c2", "send_mail", {"to": UNSAID})), says("done")]
    with ScriptedModelServer(script) as server, governed(governor):
        ask(create_agent(model_of(server), tools_of(mails)), "invoke", REQUEST)
    found = {(entry.point, entry.source) for entry in governor.audit.entries() if entry.kind == "decision"}
    assert {("input", "user"), ("post_tool_call", "tool"), ("output", "agent"), ("pre_tool_call", None)} <= found
    governor.audit.close()
