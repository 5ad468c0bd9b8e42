"""Streams and unreadable messages under policy."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from lgov_core.audit import AuditLog
from lgov_core.errors import PolicyDenied
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_openai import govern_client
from tests.openai import openai_programs as programs
from tests.openai.rules import USER, chat


@pytest.mark.parametrize("cut_at", [1, 3])
def test_a_cut_stream_delivers_nothing(governor, cut_at: int):
    with ScriptedModelServer([ScriptedReply("one two", cut_at=cut_at)]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with pytest.raises(openai.APIConnectionError):
            client.chat.completions.create(model="m", messages=[USER], stream=True)


def test_an_unreadable_reply_is_withheld(governor):
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{"}}
    open_end = {**chunk, "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    body = f"data: {json.dumps(open_end)}\n\ndata: [DONE]\n\n".encode()
    failing = f"data: {json.dumps(open_end)}\n\n".encode() + b'data: {"error": {"message": "overloaded"}}\n\n'
    streams = [ScriptedReply(body=one, content_type="text/event-stream") for one in (body, failing)]
    with ScriptedModelServer([*streams, ScriptedReply(body=b"[1]"), ScriptedReply(body=b"<html>")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with pytest.raises(PolicyDenied, match="cannot be read"):
            client.chat.completions.create(model="m", messages=[USER], stream=True)
        with pytest.raises(openai.APIError, match="overloaded"):
            list(client.chat.completions.create(model="m", messages=[USER], stream=True))
        for _ in range(2):
            with pytest.raises(PolicyDenied, match="cannot be read"):
                chat(client)


def test_a_stream_delivers_the_calls_that_were_evaluated(governor):
    """What was judged and what the program assembles must be one thing, however a server cuts its chunks."""
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def part(**delta: Any) -> dict[str, Any]:
        return {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": delta.pop("end", None)}]}

    pieces = [
        part(role="assistant", tool_calls=[{"index": 0, "id": "c1", "type": "function",
                                            "function": {"name": "lo", "arguments": ""}}]),
        part(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "ok", "arguments": '{"pa'}}]),
        part(tool_calls=[{"index": 0, "function": {"arguments": 'th": "x"}'}}]),
        part(end="tool_calls"),
    ]  # fmt: skip
    body = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces).encode() + b"data: [DONE]\n\n"
    with ScriptedModelServer([ScriptedReply(body=body, content_type="text/event-stream")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        message = programs.assembled(client.chat.completions.create(model="m", messages=[USER], stream=True))
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "x"}'}}
    ]


def test_contradicting_events_deliver_what_was_evaluated(governor):
    """A server whose finished item is another call than the response it ends with."""
    judged_item = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"}
    other = {**judged_item, "name": "erase_file"}
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
                "output": [judged_item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    events = [
        {"type": "response.created", "sequence_number": 0, "response": {**response, "output": []}},
        {"type": "response.output_item.added", "sequence_number": 1, "output_index": 0, "item": other},
        {"type": "response.output_item.done", "sequence_number": 2, "output_index": 0, "item": other},
        {"type": "response.completed", "sequence_number": 3, "response": response},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    with ScriptedModelServer([ScriptedReply(body=body, content_type="text/event-stream")]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        given = list(client.responses.create(model="m", input="go", stream=True))
    assert "erase_file" not in str(given)
    assert [event.item.name for event in given if event.type == "response.output_item.done"] == ["look"]


@pytest.mark.parametrize("what", ["text", [7], [None], {"a": 1}])
def test_a_request_that_cannot_be_read_is_denied_on_record(governor, what, tmp_path):
    governor.audit = AuditLog(tmp_path / "audit.db")
    with ScriptedModelServer([]) as server:
        client = govern_client(programs.client(server.base_url), governor)
        with pytest.raises(PolicyDenied, match="unreadable-request"):
            client.chat.completions.create(model="m", messages=what)
        if what != "text":  # which is a question there
            with pytest.raises(PolicyDenied, match="unreadable-request"):
                client.responses.create(model="m", input=what)
    assert server.requests == []
    entries = list(governor.audit.entries())
    governor.audit.close()
    expected = ("pre_model_call", "deny", "unreadable-request")
    assert [(one.point, one.effect, one.rule) for one in entries] == [expected] * (1 if what == "text" else 2)
