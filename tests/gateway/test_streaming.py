"""Streamed replies: what the client sees, what is recorded, and when."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from lgov_core.gateway.capture import Capture, ReceivedCall, StreamedReply, StreamJudging
from lgov_core.gateway.limits import Admission, Limits
from lgov_core.gateway.operation import Readiness
from lgov_core.gateway.policy_gate import PolicyGate
from lgov_core.gateway.protocol import Attribution, gate_request
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.governor import Governor
from lgov_core.policies import CostControlPolicy
from lgov_core.testing import ScriptedCall, ScriptedReply, token_logprob
from lgov_core.types import CapturedCall, ModelCallFailed
from lgov_core.wire.apis import CHAT, Exchange
from lgov_core.wire.exchange import StreamPiece
from tests.cells import Seen

MESSAGES = [{"role": "user", "content": "How many?"}]
BODY = {"model": "m", "messages": MESSAGES, "stream": True}
HEADERS = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"}


def events(raw: bytes) -> list[str]:
    return [part.removeprefix("data: ") for part in raw.decode().split("\n\n") if part]


def test_openai_client_reassembles_text_and_calls(serve, store):
    reply = ScriptedReply("Let me see", [ScriptedCall("a", {"x": "é"}, "c1"), ScriptedCall("b", '{"broken', "c2")])
    serving = serve([reply])
    client = openai.OpenAI(base_url=serving.base_url, api_key="any", default_headers=HEADERS, max_retries=0)
    text, calls, usage = "", {}, None
    for chunk in client.chat.completions.create(**BODY, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                call = calls.setdefault(part.index, ["", ""])
                call[0] += part.function.name or ""
                call[1] += part.function.arguments or ""
    assert text == "Let me see"
    assert calls == {0: ["a", '{"x": "\\u00e9"}'], 1: ["b", '{"broken']}

    (captured,) = store.calls()
    assert captured.rollout_id == "r1"
    assert captured.tool_call_ids == ("c1", "c2")
    assert captured.finish_reason == "tool_calls"
    assert bytes(captured.prompt_ids) == json.dumps(MESSAGES).encode()
    assert bytes(captured.response_ids[:-1]).startswith(b"Let me see")
    assert captured.logprobs == tuple(map(token_logprob, captured.response_ids))
    message = captured.response["choices"][0]["message"]
    assert message["content"] == "Let me see"
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "a", "arguments": '{"x": "\\u00e9"}'},
        {"name": "b", "arguments": '{"broken'},
    ]
    assert captured.response["usage"]["prompt_tokens"] == usage.prompt_tokens


def test_the_upstreams_events_come_through_byte_for_byte(serve):
    payloads = [
        '{"id":"c-1",  "object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"\u00e9\\u00e9 "}}]}',
        '{"choices":[ {"delta":{"content":"{\\"finish_reason\\": \\"no\\"}"},"finish_reason":null}],"id":"c-1"}',
        '{"id":"c-1","choices":[{"index":0,"delta":{},"finish_reason": "stop"}]}',
        '{"id":"c-1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2},"x":[1.0,1e3]}',
    ]
    crlf = f": a comment\r\n\r\nevent: x\r\ndata:{payloads[0]}\r\n\r\n"
    rest = "".join(f"data: {payload}\n\n" for payload in payloads[1:])
    sent = (crlf + rest + ": bye\n\ndata: [DONE]\n\n").encode()
    unended = (crlf + rest).encode()
    replies = [ScriptedReply(body=body, content_type="text/event-stream") for body in (sent, unended)]
    serving = serve(replies, store=None)
    for body in (sent, unended):
        reply = httpx.post(f"{serving.base_url}/chat/completions", json=BODY)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.content == body


async def test_pieces_are_passed_on_as_they_come(serve):
    gate = threading.Event()
    serving = serve([ScriptedReply("one two three", gate=gate, gate_at=3)])
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{serving.base_url}/chat/completions", json=BODY) as reply,
    ):
        seen = b""
        while b" two" not in seen:  # would wait for ever if the endpoint collected the reply first
            piece = await asyncio.wait_for(reply.content.readany(), 30)
            assert piece, f"the reply ended early: {seen!r}"
            seen += piece
        assert b"three" not in seen
        gate.set()
        seen += await reply.content.read()
    assert events(seen)[-1] == "[DONE]"


class OneThatCannotCommit:
    """A store behind which the disk is full; it notes what it was asked to keep."""

    def __init__(self) -> None:
        self.asked: list[CapturedCall] = []

    def add_call(self, call: CapturedCall) -> None:
        self.asked.append(call)
        raise OSError(28, "No space left on device")


def test_a_call_that_cannot_be_committed_is_an_error(serve, caplog):
    store = OneThatCannotCommit()
    serving, streaming, asked_by_client = (serve(["the answer"], store=store) for _ in range(3))
    plain = httpx.post(f"{serving.base_url}/chat/completions", json={**BODY, "stream": False})
    assert (plain.status_code, plain.headers["retry-after"]) == (503, "5")
    assert "the call cannot be recorded now" in plain.json()["error"]["message"]
    assert "No space left" in str([vars(record) for record in caplog.records]), "the log has the cause"
    assert "No space left" not in plain.text
    assert "the answer" not in plain.text

    streamed = events(httpx.post(f"{streaming.base_url}/chat/completions", json=BODY).content)
    assert "the call cannot be recorded now" in json.loads(streamed[-1])["error"]["message"]
    assert "[DONE]" not in streamed
    assert all('"finish_reason": "' not in event for event in streamed)

    client = openai.OpenAI(base_url=asked_by_client.base_url, api_key="any", max_retries=0)
    with pytest.raises(openai.APIError, match="cannot be recorded now"):
        list(client.chat.completions.create(**BODY))
    assert len(store.asked) == 3
    for each in (serving, streaming, asked_by_client):
        assert (each.counters.unrecorded, each.counters.recorded) == (1, 0)


def test_a_response_id_that_comes_twice_loses_no_call(serve, store):
    serving = serve(lambda body: ScriptedReply(body["messages"][0]["content"], extra={"id": "always-the-same"}))
    for text in ("a", "b", "b"):
        asked = {"model": "m", "messages": [{"role": "user", "content": text}]}
        answer = httpx.post(f"{serving.base_url}/chat/completions", json=asked)
        assert (answer.status_code, answer.json()["id"]) == (200, "always-the-same")
    calls = list(store.calls())
    assert [call.response["choices"][0]["message"]["content"] for call in calls] == ["a", "b", "b"]
    assert len({call.response_id for call in calls}) == 3
    assert calls[0].response_id == "always-the-same"
    assert {call.response["id"] for call in calls} == {"always-the-same"}
    assert serving.counters.renamed == 2


async def leave_after(serving, word: bytes) -> None:
    async with aiohttp.ClientSession() as session:
        reply = await session.post(f"{serving.base_url}/chat/completions", json=BODY, headers=HEADERS)
        seen = b""
        while word not in seen:
            piece = await asyncio.wait_for(reply.content.readany(), 30)
            assert piece, f"the reply ended early: {seen!r}"
            seen += piece
        reply.close()


async def test_leaving_in_mid_stream_is_recorded_as_cancelled(serve, store):
    gate = threading.Event()
    serving = serve([ScriptedReply("one two three", gate=gate, gate_at=3)])
    await leave_after(serving, b" two")
    # The upstream is told: its own client, the endpoint, leaves too.
    assert await asyncio.to_thread(serving.model.abandoned.acquire, timeout=30)
    gate.set()
    async with asyncio.timeout(30):
        while serving.counters.cancelled == 0:
            await asyncio.sleep(0.01)
    (captured,) = store.calls()
    assert captured.finish_reason == "cancelled"
    assert captured.rollout_id == "r1"
    assert captured.response["choices"][0]["message"]["content"] == "one two"
    assert bytes(captured.response_ids) == b"one two"


async def test_a_client_that_leaves_before_anything_came_is_counted(serve, store):
    gate = threading.Event()
    serving = serve([ScriptedReply("one", gate=gate, gate_at=0)])
    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.post(f"{serving.base_url}/chat/completions", json=BODY))
        async with asyncio.timeout(30):
            while not serving.model.requests:
                await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(30):
        while serving.counters.cancelled_unrecorded == 0:
            await asyncio.sleep(0.01)
    gate.set()
    assert list(store.calls()) == []


def test_what_came_of_a_stream_that_the_upstream_broke_off_is_recorded_as_cancelled(serve, store):
    serving = serve([ScriptedReply("one two three", cut_at=2)])
    streamed = events(httpx.post(f"{serving.base_url}/chat/completions", json=BODY).content)
    assert json.loads(streamed[-1])["error"]["code"] == "upstream"
    assert "[DONE]" not in streamed
    (captured,) = store.calls()
    assert captured.finish_reason == "cancelled"
    assert captured.response["choices"][0]["message"]["content"] == "one"
    assert (serving.counters.failed, serving.counters.cancelled) == (1, 1)


#: A call of a custom tool, which the endpoint does not read.
CUSTOM = (
    b'data: {"id": "x", "choices": [{"delta": {"tool_calls": [{"type": "custom"}]}}]}\n\n'
    b'data: {"id": "x", "choices": [{"delta": {}, "finish_reason": "tool_calls"}]}\n\n'
)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n', "broke off"),
        (b'data: {"id": "x", "choices": [{"index": 0, "finish_reason": "stop"}]}', "broke off"),
        (b'data: {"id": "x", "choices": []}\n\ndata: [DONE]\n\n', "broke off"),
        (b"data: {oops\n\ndata: [DONE]\n\n", "not a JSON object"),
        (b"data: [1]\n\n", "not a JSON object"),
        (b'data: {"choices": [3]}\n\n', "malformed"),
        (CUSTOM, "without a function name"),
        (CUSTOM.replace(b'"tool_calls"}', b'""}'), "broke off"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b"data: \xff\n\n", "not UTF-8"),
        (b'data: {"choices": [{"index": 0, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n', "no id"),
    ],
)
def test_streams_that_make_no_sense_are_upstream_errors(serve, store, body, says):
    serving = serve([ScriptedReply(body=body, content_type="text/event-stream")])
    reply = httpx.post(f"{serving.base_url}/chat/completions", json=BODY)
    error = reply.json()["error"] if reply.status_code != 200 else json.loads(events(reply.content)[-1])["error"]
    assert says in error["message"]
    assert error["code"] == "upstream"
    assert b"[DONE]" not in reply.content
    assert {call.finish_reason for call in store.calls()} <= {"cancelled"}


def test_parts_of_a_message_that_are_no_text_are_recorded_too(serve, store):
    deltas = [
        {"role": "assistant", "content": "see", "function_call": {"name": "f", "arguments": '{"a"'}, "audio": None},
        {"annotations": [{"url": "one"}], "function_call": {"arguments": ":1}"}},
        {"annotations": [{"url": "two"}], "audio": {"id": "au", "transcript": "s"}},
        {"audio": {"transcript": "ee", "expires_at": 5}},
    ]
    chunks = [{"id": "x", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "function_call"}]})
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    serving = serve([ScriptedReply(body=stream.encode(), content_type="text/event-stream")])
    assert httpx.post(f"{serving.base_url}/chat/completions", json=BODY).text == stream
    (captured,) = store.calls()
    assert captured.response["choices"][0]["message"] == {
        "role": "assistant",
        "content": "see",
        "function_call": {"name": "f", "arguments": '{"a":1}'},
        "annotations": [{"url": "one"}, {"url": "two"}],
        "audio": {"id": "au", "transcript": "see", "expires_at": 5},
    }


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_tool_calls_are_joined_however_they_are_cut(serve, store, path):
    parts = [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "a", "arguments": '{"x": 1}'}},
        {"index": 0, "id": "c2", "type": "function", "function": {"name": "b", "arguments": "{"}},
        {"index": 0, "id": "c3", "type": "function", "function": {"arguments": "}"}},  # a fresh id with each piece
        {"index": 1, "id": "c4", "type": "function", "function": {"name": "run_"}},  # a name in pieces
        {"index": 1, "function": {"name": "sql", "arguments": "{"}},
        {"index": 1, "function": {"name": "run_sql", "arguments": "}"}},  # and again
    ]
    chunks = [{"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": [part]}}]} for part in parts]
    chunks.append({"id": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    serving = serve([ScriptedReply(body=stream.encode(), content_type="text/event-stream")])
    asked = BODY if path == "chat/completions" else {"model": "m", "input": "How many?", "stream": True}
    assert httpx.post(f"{serving.base_url}/{path}", json=asked).status_code == 200
    (captured,) = store.calls()
    assert captured.tool_call_ids == ("c1", "c2", "c4")
    if path == "responses":
        made = [(item["call_id"], item["name"], item["arguments"]) for item in captured.response["output"]]
    else:
        calls = captured.response["choices"][0]["message"]["tool_calls"]
        made = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
    assert made == [("c1", "a", '{"x": 1}'), ("c2", "b", "{}"), ("c4", "run_sql", "{}")]


class Streaming:
    """One streamed call under a budget, answered by ``one`` and then by nothing; its server and its client are the test."""

    def __init__(self, store: Any) -> None:
        self.seen, self.budget = Seen(), CostControlPolicy(max_calls=1)
        self.gate = PolicyGate(Governor([self.budget], plugins=[self.seen]))
        self.capture = Capture(store, Admission(Limits()), Readiness(store, (), {}))
        self.messages: asyncio.Queue[Any] = asyncio.Queue()

    async def run(self, send: Any) -> None:
        exchange, who = Exchange.read(CHAT, BODY, native=True), Attribution()
        judged = await self.gate.admit(gate_request(exchange.readable, "chat", BODY, who))
        call = ReceivedCall(exchange, UpstreamEngine("http://127.0.0.1:1/v1"), who, time.time())
        judging = StreamJudging(self._release, True, partial(self.gate.failed, judged))
        writer = exchange.reply_writer()
        reply = StreamedReply(
            call, self._pieces(), self.capture, writer, lambda error: None, judging=judging, kept=lambda body: None
        )
        await reply({"lgov.request": SimpleNamespace(status=None)}, self.messages.get, send)

    async def _release(self, *_: Any) -> None:
        return None

    async def _pieces(self) -> AsyncIterator[StreamPiece]:
        yield StreamPiece(data=json.dumps({"id": "c-1", "choices": [{"index": 0, "delta": {"content": "one"}}]}))
        await asyncio.Event().wait()

    @property
    def failures(self) -> list[ModelCallFailed]:
        """What those who keep count were told."""
        return [event for event in self.seen.events if isinstance(event, ModelCallFailed)]


async def test_a_call_whose_reply_cannot_be_sent_is_over_for_those_who_keep_count(store):
    async def send(message: Any) -> None:
        raise OSError("the connection is lost")

    streaming = Streaming(store)
    with pytest.raises(OSError, match="lost"):
        await asyncio.wait_for(streaming.run(send), 30)
    assert [failure.refused for failure in streaming.failures] == [False]
    assert (streaming.budget.spent().calls, streaming.budget.spent().reserved_calls) == (1, 0)
    assert [call.finish_reason for call in store.calls()] == ["cancelled"]


class SlowStore:
    """Keeps calls, each of them only when ``goes_on`` is set."""

    def __init__(self) -> None:
        self.asked: list[CapturedCall] = []
        self.goes_on = threading.Event()

    def add_call(self, call: CapturedCall) -> None:
        self.asked.append(call)
        self.goes_on.wait(30)


async def test_a_server_that_stops_while_what_came_is_recorded_records_it_once():
    """The client has left, and the commit of what it got is under way."""
    store, sent = SlowStore(), asyncio.Event()
    streaming = Streaming(store)

    async def send(message: Any) -> None:
        sent.set()

    running = asyncio.create_task(streaming.run(send))
    await asyncio.wait_for(sent.wait(), 30)
    streaming.messages.put_nowait({"type": "http.disconnect"})
    while not store.asked:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.sleep(0.1)
    store.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(store.asked) == len(streaming.failures) == 1
