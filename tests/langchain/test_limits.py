"""Budgets and approvals in a real agent: what the model reads, and what a failed call leaves of the budget."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from scripted import ModelServer, Witness, allow, at, calls, make_governor, says

from lgov_core.policies import ApprovalPolicy, CostControlPolicy
from lgov_core.testing import ScriptedReply
from lgov_core.types import ModelCallFailed, Point
from lgov_langchain import LgovMiddleware

PAID: list[int] = []


@tool
def pay(amount: int) -> str:
    """Pays."""
    PAID.append(amount)
    return f"paid {amount}"


def run(agent: Any, how: str) -> list[Any]:
    question = {"messages": [{"role": "user", "content": "Pay Ann."}]}
    return (agent.invoke(question) if how == "sync" else asyncio.run(agent.ainvoke(question)))["messages"]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_the_model_is_told_to_wait_and_the_approved_call_runs(
    how: str, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    PAID.clear()
    approvals = ApprovalPolicy(["pay"])
    governor = make_governor(approvals, witness=witness)
    agent = create_agent(chat, [pay], middleware=[LgovMiddleware(governor)])
    model_server.play(calls(("c1", "pay", {"amount": 7})), says("I am waiting."))
    run(agent, how)
    (request,) = approvals.pending()
    told = model_server.last_results()["c1"]
    assert told.startswith("NOT RUN YET")
    assert request.request_id in told
    assert PAID == []
    approvals.approve(request.request_id, by="Eve")
    model_server.play(calls(("c2", "pay", {"amount": 8}), ("c3", "pay", {"amount": 7})), says("Done."))
    run(agent, how)
    assert PAID == [7]
    assert model_server.last_results()["c3"] == "paid 7"
    assert model_server.last_results()["c2"].startswith("NOT RUN YET")
    governor.close()


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_refused_call_costs_nothing_and_a_lost_one_does(
    how: str, model_server: ModelServer, witness: Witness
) -> None:
    def agent(read_s: float) -> Any:
        chat = ChatOpenAI(
            model="scripted",
            base_url=f"{model_server.url}/v1",
            api_key="none",  # type: ignore[arg-type]
            max_retries=0,
            max_tokens=50,  # type: ignore[call-arg]
            timeout=httpx.Timeout(60, read=read_s),
        )
        return create_agent(chat, [pay], middleware=[LgovMiddleware(governor)])

    budget = CostControlPolicy(max_tokens=100_000)
    governor = make_governor(budget, at(Point.PRE_TOOL_CALL, lambda _action: allow()), witness=witness)
    model_server.play(ScriptedReply("overloaded", status=503, headers={"connection": "close"}))
    with pytest.raises(Exception, match="overloaded"):
        run(agent(60), how)
    assert (budget.spent().tokens, budget.spent().reserved_tokens) == (0, 0)
    answered = threading.Event()
    model_server.play(ScriptedReply("never", gate=answered, headers={"connection": "close"}))
    with pytest.raises(Exception, match=r"(?i)timed? ?out"):
        run(agent(0.1), how)
    answered.set()
    lost = budget.spent()
    assert lost.tokens + lost.reserved_tokens > 50
    assert lost.tokens + lost.reserved_tokens < 4096, "the limit of the reply is the one that the model was made with"
    failures = [event for event in witness.events if isinstance(event, ModelCallFailed)]
    assert [failure.refused for failure in failures] == [True, False]
    model_server.play(says("Hello."))
    run(agent(60), how)
    after = budget.spent()
    assert after.reserved_calls == lost.reserved_calls
    assert after.tokens > lost.tokens
