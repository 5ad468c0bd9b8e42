"""Upstreams that speak an API themselves: their bytes come through, and every call is recorded before its end is seen."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import aiohttp
import httpx
import pytest

from lgov_core.testing import ScriptedReply, call
from lgov_core.testing.scripted_reply import CompletionWriter, MessageWriter, ResponseWriter

ALL = ("chat", "completions", "responses", "messages", "embeddings")
USER = {"role": "user", "content": "hi"}
ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": [USER]},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "max_tokens": 9, "messages": [USER]},
    "completions": {"model": "m", "prompt": "hi"},
}
HEADERS = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"}
#: What only the last events of each API hold.
ENDS = {
    "chat/completions": '"finish_reason": "stop"',
    "responses": "response.completed",
    "messages": '"stop_reason": "end_turn"',
    "completions": '"finish_reason": "stop"',
}
BOTH = ScriptedReply("I look", call("f", x="é").tool_calls)
WRITERS: dict[str, Any] = {
    "responses": lambda: ResponseWriter(BOTH, {"input": "hi"}, "m"),
    "messages": lambda: MessageWriter(BOTH, {"messages": []}, "m"),
    "completions": lambda: CompletionWriter(BOTH, {"prompt": "hi", "logprobs": 1, "return_token_ids": True}, "m", True),
}


def post(serving: Any, path: str, **more: Any) -> httpx.Response:
    return httpx.post(f"{serving.base_url}/{path}", json={**ASKED[path], **more}, headers=HEADERS)


@pytest.mark.parametrize("path", list(WRITERS))
def test_bytes_come_through_whole_and_streamed(stage, store, path):
    writer = WRITERS[path]()
    whole = json.dumps(writer.body(), indent=1, ensure_ascii=False).encode()
    events = ": ping\r\n\r\n" + "".join(writer.frames()).replace("data:", "data: ").replace("\n\n", "\r\n\r\n", 1)
    stream = (events + "data: [DONE]\n\n" * (path == "messages")).encode()  # which some servers add
    serving = stage(
        [ScriptedReply(body=whole), ScriptedReply(body=stream, content_type="text/event-stream")],
        speaks=ALL,
        store=store,
    )
    assert post(serving, path).content == whole
    reply = post(serving, path, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.content == stream
    calls = list(store.calls())
    assert [call.route for call in calls] == [path] * 2
    assert calls[0].response == writer.body()
    # The same id came twice, once whole and once streamed: neither call was lost.
    assert calls[0].response_id == writer.body()["id"] != calls[1].response_id
    assert serving.counters.renamed == 1
    if path == "completions":
        assert {call.response_ids for call in calls} == {(*b"I look", 256)}
        assert {call.prompt_ids for call in calls} == {tuple(b"hi")}
        assert all(call.logprobs for call in calls)
    else:
        assert {call.tool_call_ids for call in calls} == {(BOTH.tool_calls[0].call_id,)}
        same = ("id", "model", "output") if path == "responses" else ("id", "model", "content", "stop_reason")
        assert {name: calls[1].response[name] for name in same} == {name: writer.body()[name] for name in same}
    assert all((call.rollout_id, call.attempt) == ("r1", 1) for call in calls)


class OneThatCannotCommit:
    """A store behind which the disk is full."""

    dropped_spans = 0

    def add_call(self, call: Any) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("speaks", [ALL, ("chat",)], ids=["native", "translated"])
@pytest.mark.parametrize("path", list(ASKED))
def test_an_unrecorded_call_never_ends_for_the_client(stage, path, speaks):
    serving = stage(["the answer"] * 2, store=OneThatCannotCommit(), speaks=speaks)
    streamed = post(serving, path, stream=True)
    plain = post(serving, path)
    assert plain.status_code == 503
    assert "the call cannot be recorded now" in plain.text
    assert "No space left" not in streamed.text + plain.text
    assert "the answer" not in plain.text
    assert "the" in streamed.text
    assert ENDS[path] not in streamed.text
    assert ENDS[path].replace(": ", ":") not in streamed.text
    assert "[DONE]" not in streamed.text
    last = [part for part in streamed.text.split("\n\n") if part][-1]
    named, _, data = last.rpartition("data: ")
    error = json.loads(data)
    if path == "messages":
        assert (named, error["type"], error["error"]["type"]) == ("event: error\n", "error", "overloaded_error")
        assert "cannot be recorded now" in error["error"]["message"]
    elif path == "responses" and speaks == ("chat",):
        assert (named, error["type"], error["code"]) == ("event: error\n", "error", "busy")
        assert error["sequence_number"] > 0
    else:
        assert error["error"]["code"] == "busy"


@pytest.mark.parametrize("speaks", [ALL, ("chat",)], ids=["native", "translated"])
@pytest.mark.parametrize("path", list(ASKED))
async def test_a_client_that_leaves_is_recorded_as_cancelled(stage, store, path, speaks):
    gate = threading.Event()
    # Four pieces come before the third word of every API's stream.
    before = {"chat/completions": 3, "completions": 2, "responses": 6, "messages": 5}
    at = before[path] if speaks == ALL else before["chat/completions"]
    serving = stage([ScriptedReply("one two three", gate=gate, gate_at=at)], store=store, speaks=speaks)
    async with aiohttp.ClientSession() as session:
        asked = {**ASKED[path], "stream": True}
        reply = await session.post(f"{serving.base_url}/{path}", json=asked, headers=HEADERS)
        seen = b""
        while b" two" not in seen:  # pieces come as they are written
            piece = await asyncio.wait_for(reply.content.readany(), 30)
            assert piece, f"the reply ended early: {seen!r}"
            seen += piece
        assert b"three" not in seen
        reply.close()
    assert await asyncio.to_thread(serving.model.abandoned.acquire, timeout=30)
    gate.set()
    async with asyncio.timeout(30):
        while serving.counters.cancelled == 0:
            await asyncio.sleep(0.01)
    (recorded,) = store.calls()
    route = path.partition("/")[0]
    assert (recorded.finish_reason, recorded.route, recorded.rollout_id) == ("cancelled", route, "r1")
    assert "one two" in json.dumps(recorded.response)
    assert recorded.response_id in seen.decode()
    if speaks == ("chat",) or route in ("chat", "completions"):
        assert bytes(recorded.response_ids) == b"one two"


@pytest.mark.parametrize("path", ["responses", "messages", "completions"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"data: {oops\n\n", "not a JSON object"),
        (b"data: [1]\n\n", "not a JSON object"),
        (b'event: error\ndata: {"type": "error", "error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b": nothing\n\n", "broke off"),
        (b'data: {"type": "content_block_delta", "index": 7, "delta": {}, "choices": [{"index": -1}],'
         b' "output_index": 3}\n\n', "malformed|broke off"),
    ],
)  # fmt: skip
def test_malformed_streams_are_upstream_errors(stage, store, path, content, says):
    serving = stage([ScriptedReply(body=content, content_type="text/event-stream")], store=store, speaks=ALL)
    reply = post(serving, path, stream=True)
    text = reply.text
    assert any(one in text for one in says.split("|")), text
    if path == "messages":
        assert '"type":"error"' in text.replace(": ", ":")
    assert list(store.calls()) == []
    assert serving.counters.failed == 1


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("responses", b'{"id": "x"}', "no output"),
        ("responses", b'{"id": "x", "output": [{"type": "message"}]}', "items without"),
        ("messages", b'{"content": []}', "no id"),
        ("messages", b'{"id": "x", "content": [{"type": "tool_use"}]}', "blocks without"),
        ("completions", b'{"id": "x", "choices": [{}]}', "no choice"),
    ],
)
def test_replies_that_make_no_sense_are_502(stage, store, path, body, says):
    reply = post(stage([ScriptedReply(body=body)], store=store, speaks=ALL), path)
    assert reply.status_code == 502
    assert says in reply.text
    assert list(store.calls()) == []


def test_upstream_refusals_keep_their_message(stage):
    replies = [ScriptedReply("slow down", status=429, headers={"retry-after": "7"})] * 3
    translated = stage(replies, speaks=["chat"])
    for stream in (False, True):
        reply = post(translated, "messages", stream=stream)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "7")
        error = reply.json()
        assert (error["type"], error["error"]["type"]) == ("error", "rate_limit_error")
        assert "slow down" in error["error"]["message"]
    assert post(translated, "responses").json()["error"]["message"] == "slow down"
    native = stage(replies, speaks=ALL)
    assert post(native, "messages").json()["error"]["type"] == "scripted_error"  # as the upstream wrote it


def test_an_upstream_without_chat(stage):
    serving = stage(["x"], speaks=["messages"])
    assert post(serving, "messages").status_code == 200
    reply = post(serving, "chat/completions")
    assert reply.status_code == 400
    assert "speaks messages only" in reply.json()["error"]["message"]
    assert [request.path for request in serving.model.requests] == ["/v1/messages"]
    assert serving.model.requests[0].headers["anthropic-version"]


def test_a_list_of_prompts_is_as_many_choices(stage, store):
    choices = [{"index": i, "text": f"t{i}", "finish_reason": "stop", "token_ids": [i], "prompt_token_ids": [9, i],
                "logprobs": {"token_logprobs": [-0.5]}} for i in (1, 0)]  # fmt: skip
    body = {"id": "cmpl-1", "choices": choices, "usage": {"prompt_tokens": 4, "completion_tokens": 2}}
    serving = stage([ScriptedReply(body=json.dumps(body).encode())], store=store, speaks=ALL)
    reply = httpx.post(f"{serving.base_url}/completions", json={"model": "m", "prompt": ["a", "b"]})
    assert reply.json() == body
    calls = list(store.calls())
    assert [(call.choice, call.response_ids, call.prompt_ids) for call in calls] == [
        (0, (0,), (9, 0)),
        (1, (1,), (9, 1)),
    ]
    assert [call.response["choices"][0]["text"] for call in calls] == ["t0", "t1"]


def test_citations_of_a_streamed_message_are_recorded(stage, store):
    start = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    cited = [{"type": "char_location", "cited_text": text} for text in ("one", "two")]
    deltas = [{"type": "text_delta", "text": "see"}, *({"type": "citations_delta", "citation": one} for one in cited)]
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "citations": None}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    serving = stage([ScriptedReply(body=stream, content_type="text/event-stream")], store=store, speaks=ALL)
    assert post(serving, "messages", stream=True).content == stream
    (call_,) = store.calls()
    assert call_.response["content"] == [{"type": "text", "text": "see", "citations": cited}]
