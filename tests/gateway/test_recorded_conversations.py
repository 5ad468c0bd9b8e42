"""What the endpoint recorded over each route is read back as the conversation that the client had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from lgov_core.gateway.access import ATTEMPT_HEADER, ROLLOUT_HEADER
from lgov_core.testing import ScriptedCall, ScriptedReply
from lgov_core.transitions.calls import RecordedConversations, threads_of
from lgov_core.types import CapturedCall

WHOSE = {ROLLOUT_HEADER: "r1", ATTEMPT_HEADER: "1"}
SCRIPT = [ScriptedReply(None, tool_calls=[ScriptedCall("look_up", {"key": "a"}, "c1")]), ScriptedReply("It is 4711.")]
PARAMETERS = {"type": "object", "properties": {"key": {"type": "string"}}}
ROLES = ["system", "user", "assistant", "tool", "assistant"]


def one_thread(store: Any) -> Any:
    calls = list(store.calls())
    (thread,) = threads_of(calls, RecordedConversations(calls))
    assert thread.calls == tuple(calls)
    return thread


def check(thread: Any) -> None:
    assert [message["role"] for message in thread.messages] == ROLES
    assert thread.written == (2, 4)
    assert [message["content"] for message in thread.messages] == ["Be brief.", "Which?", None, "4711", "It is 4711."]
    (call,) = thread.messages[2]["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("c1", "look_up")
    assert thread.messages[3]["tool_call_id"] == "c1"
    assert thread.tools[0]["function"]["name"] == "look_up"


@pytest.mark.parametrize("by_id", [False, True], ids=["whole input", "previous_response_id"])
def test_responses(by_id: bool, serve: Any, store: Any) -> None:
    client = openai.OpenAI(base_url=serve(SCRIPT).base_url, api_key="none", default_headers=WHOSE)
    tools: Any = [{"type": "function", "name": "look_up", "parameters": PARAMETERS}]
    asked: list[Any] = [{"role": "user", "content": "Which?"}]
    first = client.responses.create(model="m", instructions="Be brief.", input=asked, tools=tools)
    answered = {"type": "function_call_output", "call_id": "c1", "output": "4711"}
    before: dict[str, Any] = {"previous_response_id": first.id} if by_id else {}
    rest: Any = [answered] if by_id else [*asked, *(item.to_dict() for item in first.output), answered]
    client.responses.create(model="m", instructions="Be brief.", input=rest, tools=tools, **before)
    check(one_thread(store))
    last = list(store.calls())[-1]
    assert (RecordedConversations([last])(last) is None) == by_id  # its beginning is not among the calls


def test_messages(serve: Any, store: Any) -> None:
    serving = serve(SCRIPT)
    tools = [{"name": "look_up", "input_schema": PARAMETERS}]
    said: list[dict[str, Any]] = [{"role": "user", "content": "Which?"}]
    for _ in range(2):
        body = {"model": "m", "max_tokens": 50, "system": "Be brief.", "messages": said, "tools": tools}
        reply = httpx.post(f"{serving.base_url}/messages", json=body, headers=WHOSE).json()
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "4711"}
        said = [*said, {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}]
    check(one_thread(store))


def test_what_is_no_conversation_is_none(serve: Any, store: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "y"}]}
    httpx.post(f"{serve(['x']).base_url}/chat/completions", json=body, headers=WHOSE)
    (call,) = store.calls()
    assert RecordedConversations([call])(call) is not None
    for route in ("completions", "responses", "messages", "something"):
        assert RecordedConversations([call])(replace(call, route=route)) is None
    loop = replace(
        call, route="responses", request={"model": "m", "input": "x", "previous_response_id": call.response_id},
        response={"output": [{"type": "message", "role": "assistant", "content": "y"}]},
    )  # fmt: skip
    assert RecordedConversations([loop])(loop) is None


def test_a_reply_of_several_messages_or_of_none_is_no_chat_message() -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
    asked = CapturedCall(
        "r",
        "m",
        {"model": "m", "input": "Which?"},
        {},
        None,
        None,
        None,
        "stop",
        None,
        1.0,
        1.0,
        0.0,
        1.0,
        route="responses",
    )
    for output, is_read in (([said], True), ([said, said], False), ([], False)):
        call = replace(asked, response={"output": output})
        assert (RecordedConversations([call])(call) is not None) == is_read
