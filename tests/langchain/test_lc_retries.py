"""A call that is tried again."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import Any

import langchain.agents
import pytest
from langchain.agents.middleware import ModelRetryMiddleware, ToolRetryMiddleware
from langchain_core.tools import tool
from scripted import ModelServer, Witness, at, calls, deny, make_governor, says

from lgov_core.governor import Governor
from lgov_core.testing import ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from lgov_langchain import LgovMiddleware, instrument, uninstrument

QUESTION: Any = {"messages": [("user", "go")]}
WAYS = pytest.mark.parametrize("way", ["explicit", "instrumented"])
ran: list[str] = []


@tool
def work(what: str) -> str:
    """Works."""
    ran.append(what)
    return f"{what} done"


@contextmanager
def governed(way: str, governor: Governor) -> Any:
    ran.clear()
    if way == "instrumented":
        instrument(governor)
    try:
        yield [] if way == "instrumented" else [LgovMiddleware(governor)]
    finally:
        uninstrument()


def no_digging(action: Action) -> Decision | None:
    return deny("no digging") if action.arguments.get("what") == "dig" else None


@WAYS
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
def test_a_tool_that_is_tried_again_is_one_call(
    how: str, way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    tries: list[str] = []

    @tool
    def flaky(what: str) -> str:
        """Works at the third try."""
        tries.append(what)
        if len(tries) < 3:
            raise ConnectionError("again")
        return "at last"

    governor = make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), witness=witness)
    retry: Any = ToolRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
    model_server.play(calls(("c1", "flaky", {"what": "x"})), says("done"))
    with governed(way, governor) as middleware:
        agent = langchain.agents.create_agent(chat, [flaky], middleware=[*middleware, retry])
        _ = agent.invoke(QUESTION) if how == "invoke" else asyncio.run(agent.ainvoke(QUESTION))
    assert len(tries) == 3
    assert model_server.last_results()["c1"] == "at last"
    assert len(witness.decisions()) == 1
    assert [(one.status, one.error_type) for one in witness.outcomes] == [("ok", None)]
    assert len([span for span in witness.spans if span.name == "execute_tool flaky"]) == 1


def test_a_denial_is_not_tried_again(model_server: ModelServer, chat: Any, witness: Witness) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, no_digging), witness=witness)
    retry: Any = ToolRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)
    model_server.play(calls(("c1", "work", {"what": "dig"})), says("done"))
    agent = langchain.agents.create_agent(chat, [work], middleware=[retry, LgovMiddleware(governor)])
    agent.invoke(QUESTION)
    assert len(witness.decisions()) == 1


@WAYS
def test_a_model_that_is_tried_again_is_one_call(
    way: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), witness=witness)
    retry: Any = ModelRetryMiddleware(max_retries=2, initial_delay=0, jitter=False)
    model_server.play(ScriptedReply("busy", status=503, headers={"connection": "close"}), says("done"))
    with governed(way, governor) as middleware:
        agent = langchain.agents.create_agent(chat, [work], middleware=[*middleware, retry])
        assert agent.invoke(QUESTION)["messages"][-1].text == "done"
    assert len(witness.decisions(Point.PRE_MODEL_CALL)) == 1
    (span,) = [span for span in witness.spans if span.name == "chat scripted"]
    assert str(span.attributes[semconv.RESPONSE_ID]).startswith("chatcmpl")


def test_a_model_with_retries_of_its_own_is_judged_at_each_try(
    model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    governor = make_governor(at(Point.PRE_TOOL_CALL, lambda action: None), witness=witness)
    model_server.play(ScriptedReply("busy", status=503, headers={"connection": "close"}), says("done"))
    with governed("instrumented", governor):
        assert chat.with_retry(wait_exponential_jitter=False).invoke("hi").text == "done"
    errors = [span.attributes.get(semconv.ERROR_TYPE) is not None for span in witness.spans]
    assert errors == [True, False]
