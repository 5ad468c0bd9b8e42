"""Whatever a model replies: the calls that a client of the endpoint gets are those on record, each with its arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from hypothesis import Phase, given, settings

from lgov_core.gateway.policy_gate import PolicyGate
from lgov_core.governor import Governor
from lgov_core.testing import ScriptedReply
from lgov_core.types import Point
from tests.cells import Seen
from tests.openai.test_openai_reply_property import Handed, read_chat, read_responses
from tests.random_replies import CALLS, FRESH_IDS, Hiding, chat_reply, events, on_record

ALL = ("chat", "responses", "messages")


USER = {"role": "user", "content": "go"}
CASES = [
    (api, speaks, streamed)
    for api in ALL
    for speaks in (ALL, ("chat",))
    for streamed in (False, True)
    if api != "chat" or speaks is ALL
]


def responses_reply(calls: Any, early: Any, streamed: bool) -> bytes:
    """A Response; ``early`` are calls that events before the last one name instead."""
    output = [response_item(call) for call in calls]
    whole = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": output,
             "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    if not streamed:
        return json.dumps(whole).encode()
    found: list[Any] = [{"type": "response.created", "response": {**whole, "output": []}}]
    for at, item in enumerate(map(response_item, early or calls)):
        if item["type"] == "function_call":
            done = {"item_id": "x", "arguments": item["arguments"], "name": item["name"]}
            found.append({"type": "response.function_call_arguments.done", "output_index": at, **done})
        found.append({"type": "response.output_item.done", "output_index": at, "item": item})
    found.append({"type": "response.completed", "response": whole})
    return events([{**event, "sequence_number": at} for at, event in enumerate(found)])


def response_item(call: Any) -> dict[str, Any]:
    made: dict[str, Any] = {} if call["id"] is ... else {"call_id": call["id"]}
    made |= {"id": f"fc_{call['n']}", "name": call["name"], "status": "completed"}
    if call["form"] != "function":
        return {**made, "type": "custom_tool_call", "input": str(call["n"])}
    return {**made, "type": "function_call", "arguments": json.dumps({"n": call["n"]})}


def messages_reply(calls: Any, streamed: bool) -> bytes:
    blocks = [{"type": "tool_use", "id": None if call["id"] is ... else call["id"], "name": call["name"],
               "input": {"n": call["n"]}} for call in calls]  # fmt: skip
    whole: Any = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": blocks,
                  "stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None,
                  "usage": {"input_tokens": 1, "output_tokens": 1}}  # fmt: skip
    if not streamed:
        return json.dumps(whole).encode()
    found: list[Any] = [{"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}]
    for at, block in enumerate(blocks):
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        found.append({"type": "content_block_start", "index": at, "content_block": {**block, "input": {}}})
        found.append({"type": "content_block_delta", "index": at, "delta": delta})
        found.append({"type": "content_block_stop", "index": at})
    ends = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    found += [{"type": "message_delta", "delta": ends, "usage": {"output_tokens": 1}}, {"type": "message_stop"}]
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in found).encode()


def read_messages(client: anthropic.Anthropic, streamed: bool) -> list[Handed]:
    asked: Any = {"model": "m", "max_tokens": 9, "messages": [USER]}
    if streamed:
        with client.messages.stream(**asked) as stream:
            message: Any = stream.get_final_message()
    else:
        message = client.messages.create(**asked)
    uses = [block for block in message.content if block.type == "tool_use"]
    return [[(use.id, use.name, json.dumps(use.input), False) for use in uses]]


def handed_by(serving: Any, api: str, streamed: bool) -> list[Handed]:
    try:
        if api == "messages":
            with anthropic.Anthropic(base_url=serving.url, api_key="k", max_retries=0) as client:
                return read_messages(client, streamed)
        with openai.OpenAI(base_url=serving.base_url, api_key="k", max_retries=0) as client:
            return (read_chat if api == "chat" else read_responses)(client, streamed)
    except (openai.APIStatusError, anthropic.APIStatusError):
        return [[]]


@pytest.mark.parametrize(("api", "speaks", "streamed"), CASES)
@settings(max_examples=25, deadline=None, phases=[Phase.generate])
@given(calls=CALLS | FRESH_IDS, early=FRESH_IDS)
def test_a_client_gets_only_calls_on_record(stage, api: str, speaks: Any, streamed: bool, calls: Any, early: Any):
    native = api in speaks
    if not native or api == "chat":
        content = chat_reply(calls, streamed)
    elif api == "responses":
        content = responses_reply(calls, early, streamed)
    else:
        content = messages_reply(calls, streamed)
    seen = Seen()
    gate = PolicyGate(Governor([Hiding()], plugins=[seen]))
    kind = {"content_type": "text/event-stream"} if streamed else {}
    serving = stage([ScriptedReply(body=content, **kind)], gate=gate, speaks=speaks)
    handed = handed_by(serving, api, streamed)
    gate.close()
    allowed = [(call_id, name, json.dumps(arguments)) for call_id, name, arguments in on_record(seen)]
    for one in handed:
        assert [(call_id, name, text) for call_id, name, text, _ in one] == allowed
    rules = [event.decision.rule for event in seen.decisions(Point.POST_MODEL_CALL)]
    forms = {call["form"] for call in calls} - {"function"} if api != "messages" or not native else set()
    if "custom" in forms and (api == "chat" or not native):
        return  # which is not a reply of the API: an error
    unclear = bool(forms)  # a call without a clear id has got one
    assert len({call_id for call_id, _, _ in allowed}) == len(allowed)
    if unclear or not (early and api == "responses" and native and streamed):
        assert ("unreadable-reply" in rules) == unclear


def chat_stream(*parts: Any) -> bytes:
    deltas = [{"tool_calls": [part]} for part in parts]
    chunks = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    chunks.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    return events([{"id": "x", "choices": [chunk]} for chunk in chunks])


def part(call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments, **({} if name is None else {"name": name})}
    return {"index": 0, "function": function, **({} if call_id is None else {"id": call_id})}


#: Streams that clients put together in different ways.
UNREADABLE: dict[str, bytes] = {
    "a second id": chat_stream(part("c1", "look", "{"), part("c2", None, "}")),
    "a repeated name": chat_stream(part("c1", "look", "{"), part("c1", "look", "}")),
}


@pytest.fixture
def judged() -> Iterator[tuple[PolicyGate, Seen]]:
    seen = Seen()
    gate = PolicyGate(Governor([Hiding()], plugins=[seen]))
    yield gate, seen
    gate.close()


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_stream_that_clients_read_differently_is_refused(stage, judged, what: str) -> None:
    gate, seen = judged
    serving = stage([ScriptedReply(body=UNREADABLE[what], content_type="text/event-stream")], gate=gate)
    asked = {"model": "m", "stream": True, "messages": [USER]}
    reply = httpx.post(f"{serving.base_url}/chat/completions", json=asked)
    assert (reply.status_code, "lgov/unreadable-reply" in reply.text, "look" in reply.text) == (503, True, False)
    assert [event.decision.rule for event in seen.decisions(Point.POST_MODEL_CALL)] == ["unreadable-reply"]


@pytest.mark.parametrize(("path", "kind"), [("responses", "shell_call"), ("messages", "server_tool_use")])
def test_a_reply_with_a_part_that_no_policy_reads_is_refused(stage, judged, path: str, kind: str) -> None:
    gate, _ = judged
    item = {"type": kind, "id": "i", "call_id": "c", "name": "look", "input": {}, "action": {"commands": ["id"]}}
    whole = {"id": "x", "status": "completed", "stop_reason": "end_turn", "output": [item], "content": [item]}
    serving = stage([ScriptedReply(body=json.dumps(whole).encode())], gate=gate, speaks=ALL)
    asked = {"input": "x"} if path == "responses" else {"messages": [USER], "max_tokens": 9}
    reply = httpx.post(f"{serving.base_url}/{path}", json={"model": "m", **asked})
    assert (reply.status_code, kind in reply.text, "commands" in reply.text) == (503, True, False)
