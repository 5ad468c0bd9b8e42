"""What the callback handler shows of a real agent's run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks.manager import handle_event
from langchain_core.tools import tool
from scripted import Judging, ModelServer, Witness, allow, calls, make_governor, says

from lgov_core.governor import Governor
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Span
from lgov_langchain import LgovCallbackHandler
from lgov_langchain.process_handler import process_handler


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    if b < 0:
        raise ValueError("no negative numbers")
    return a + b


@pytest.fixture
def governor(witness: Witness) -> Governor:
    return make_governor(witness=witness)


def named(spans: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in spans}


@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stream"])
def test_a_run_becomes_a_tree_of_spans(
    how: str, model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    model_server.play(calls(("c1", "add", {"a": 1, "b": 2})), says("three"))
    chat.streaming = chat.stream_usage = how == "stream"
    handler = LgovCallbackHandler(governor, enforce=False)
    agent = create_agent(chat, [add], name="clerk")
    question: Any = {"messages": [("user", "1 + 2?")]}
    with enter_scope(RolloutScope("r1", 3)):
        if how == "ainvoke":
            asyncio.run(agent.ainvoke(question, {"callbacks": [handler]}))
        elif how == "stream":
            list(agent.stream(question, {"callbacks": [handler]}))
        else:
            agent.invoke(question, {"callbacks": [handler]})

    assert [span.name for span in witness.spans] == [
        "chat scripted",
        "execute_tool add",
        "chat scripted",
        "invoke_agent clerk",
    ]
    first_chat, tool_span, second_chat, agent_span = witness.spans
    assert agent_span.parent_id is None
    assert {first_chat.parent_id, tool_span.parent_id, second_chat.parent_id} == {agent_span.span_id}
    assert all((span.rollout_id, span.attempt) == ("r1", 3) for span in witness.spans)
    assert all(span.ended_at is not None and span.ended_at >= span.started_at for span in witness.spans)
    ids = [span.attributes["gen_ai.response.id"] for span in (first_chat, second_chat)]
    assert len(set(ids)) == 2
    assert all(str(one).startswith("chatcmpl") for one in ids)
    assert first_chat.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert second_chat.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    usages = [span.attributes["gen_ai.usage.input_tokens"] for span in (first_chat, second_chat)]
    assert isinstance(usages[0], int)
    assert 0 < usages[0] < usages[1]  # type: ignore[operator]
    assert second_chat.attributes["gen_ai.usage.output_tokens"] == len("three") + 1
    assert first_chat.attributes["gen_ai.provider.name"] == "openai"
    assert tool_span.attributes["gen_ai.tool.call.id"] == "c1"
    assert tool_span.attributes["gen_ai.agent.name"] == "clerk"
    assert not any("messages" in key or "arguments" in key for span in witness.spans for key in span.attributes)
    assert handler.open_runs == 0


def test_content_is_kept_only_when_asked_for(
    model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    model_server.play(calls(("c1", "add", {"a": 1, "b": 2})), says("three"))
    governor.capture_content = True
    handler = LgovCallbackHandler(governor, enforce=False)
    create_agent(chat, [add]).invoke({"messages": [("user", "1 + 2?")]}, {"callbacks": [handler]})
    first_chat, tool_span, _, _ = witness.spans
    assert json.loads(str(first_chat.attributes["gen_ai.input.messages"]))[0]["content"] == "1 + 2?"
    assert json.loads(str(tool_span.attributes["gen_ai.tool.call.arguments"])) == {"a": 1, "b": 2}
    assert tool_span.attributes["gen_ai.tool.call.result"] == "3"


def test_errors_are_spans_too_and_leave_nothing_open(
    model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    model_server.play(calls(("c1", "add", {"a": 1, "b": -2})))
    handler = LgovCallbackHandler(governor, enforce=False)
    with pytest.raises(ValueError, match="no negative numbers"):
        create_agent(chat, [add]).invoke({"messages": [("user", "1 - 2?")]}, {"callbacks": [handler]})
    by_name = named(witness.spans)
    assert by_name["execute_tool add"].attributes["error.type"] == "ValueError"
    assert next(span for span in witness.spans if span.parent_id is None).attributes["error.type"] == "ValueError"
    assert handler.open_runs == 0


def test_a_model_that_cannot_be_reached_is_a_failed_chat(governor: Governor, witness: Witness) -> None:
    from langchain_openai import ChatOpenAI

    dead = ChatOpenAI(model="scripted", base_url="http://127.0.0.1:1/v1", api_key="none", max_retries=0)
    handler = LgovCallbackHandler(governor, enforce=False)
    with pytest.raises(Exception, match="Connection"):
        dead.invoke("hello", {"callbacks": [handler]})
    assert named(witness.spans)["chat scripted"].attributes["error.type"] == "OpenAIConnectionError"
    assert handler.open_runs == 0


def test_a_stream_given_up_leaves_nothing_open(
    model_server: ModelServer, chat: Any, governor: Governor, witness: Witness
) -> None:
    model_server.play(calls(("c1", "add", {"a": 1, "b": 2})), says("three"))
    handler = LgovCallbackHandler(governor, enforce=False)
    stream = create_agent(chat, [add]).stream({"messages": [("user", "1 + 2?")]}, {"callbacks": [handler]})
    next(stream)
    assert handler.open_runs > 0
    stream.close()
    assert handler.open_runs == 0
    assert any(span.parent_id is None for span in witness.spans)


@pytest.mark.parametrize("run_id", ["mine", 7])
def test_a_program_may_give_a_run_an_id_of_any_type(
    run_id: Any, model_server: ModelServer, chat: Any, witness: Witness
) -> None:
    model_server.play(calls(("c1", "add", {"a": 1, "b": 2})), says("three"))
    handler = LgovCallbackHandler(make_governor(Judging(lambda action: allow()), witness=witness))
    config: Any = {"callbacks": [handler], "run_id": run_id}
    assert add.invoke({"a": 1, "b": 2}, config) == 3
    create_agent(chat, [add], name="clerk").invoke({"messages": [("user", "1 + 2?")]}, config)
    *_, tool_span, _, agent_span = witness.spans
    assert [span.name for span in witness.spans[:2]] == ["execute_tool add", "chat scripted"]
    assert tool_span.parent_id == agent_span.span_id
    assert handler.open_runs == 0


def test_what_observes_the_process_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """As if a later LangChain reported runs without what the handler reads."""
    for event in ("on_chain_start", "on_chain_end", "on_chain_error", "on_llm_end", "on_tool_end", "on_tool_error"):
        handle_event([process_handler()], event, None, {}, {})
        assert f"Error in ProcessHandler.{event}" in caplog.text
