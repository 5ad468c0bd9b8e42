"""Starting, stopping and failing, with an engine of our own."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator

import httpx
import openai
import pytest

from lgov_core.errors import EndpointError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.server import EndpointServer
from lgov_core.types import new_id
from lgov_core.wire.chat import completion_pieces
from lgov_core.wire.exchange import ChatRequest, Completion, StreamPiece, ToolCall

BODY = {"model": "echo", "messages": [{"role": "user", "content": "a b"}]}


class Echo:
    """An engine that says what it was told, knows its tokens, and calls a tool when it is offered one."""

    def __init__(self, *, name="echo", broken_start=False) -> None:
        self.name = name
        self.models = (name,)
        self.broken_start = broken_start
        self.running = False
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    async def start(self) -> None:
        if self.broken_start:
            raise EndpointError("no weights here", status=500)
        self.running = True

    async def close(self) -> None:
        self.running = False

    async def chat(self, request: ChatRequest) -> Completion:
        self.entered.set()
        if self.gate is not None:
            await asyncio.to_thread(self.gate.wait)
        text = str(request.messages[-1]["content"])
        if text == "raise":
            raise ZeroDivisionError("oops")
        ids = tuple(text.encode())
        return Completion(
            response_id=new_id("chatcmpl"),
            model=request.model,
            text=text,
            content=None if request.tools else text,
            tool_calls=tuple(ToolCall(f"c{i}", t["function"]["name"], "{}") for i, t in enumerate(request.tools)),
            finish_reason="tool_calls" if request.tools else "stop",
            prompt_ids=(7, 8),
            response_ids=ids,
            logprobs=tuple(-0.5 for _ in ids),
            weights_version=3,
            prompt_tokens=2,
            completion_tokens=len(ids),
        )

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPiece]:
        for piece in completion_pieces(await self.chat(request), request.body):
            yield piece


class Mute(Echo):
    """An engine that breaks the protocol: its streams have no completion."""

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPiece]:
        yield StreamPiece('{"id": "x", "choices": []}')


def test_replies_of_an_engine_that_knows_its_tokens(store):
    with EndpointServer([Echo()], store) as server:
        reply = httpx.post(
            f"{server.base_url}/chat/completions", json={**BODY, "logprobs": True, "return_token_ids": True}
        ).json()
        plain = httpx.post(f"{server.base_url}/chat/completions", json=BODY).json()
    assert reply["prompt_token_ids"] == [7, 8]
    assert reply["choices"][0]["token_ids"] == list(b"a b")
    assert reply["choices"][0]["logprobs"]["content"][0] == {
        "token": "token_id:97",
        "logprob": -0.5,
        "bytes": None,
        "top_logprobs": [],
    }
    assert reply["lgov"] == {"weights_version": 3}
    assert reply["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert "prompt_token_ids" not in plain
    assert plain["choices"][0]["logprobs"] is None
    first, second = store.calls()
    assert first.response == reply
    assert (second.prompt_ids, second.response_ids, second.logprobs) == ((7, 8), tuple(b"a b"), (-0.5,) * 3)
    assert (second.weights_version, second.engine) == (3, "echo")


def test_streams_of_an_engine_that_does_not_stream_by_itself(store):
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    with EndpointServer([Echo()], store) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
        extra = {"return_token_ids": True}
        chunks = list(
            client.chat.completions.create(
                **BODY, stream=True, logprobs=True, stream_options={"include_usage": True}, extra_body=extra
            )
        )
        with client.chat.completions.stream(**BODY, tools=tools) as stream:
            final = stream.get_final_completion()
        # A chained endpoint reads out of the stream what this one knew.
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "a b"
    finish = chunks[-2]
    assert finish.choices[0].finish_reason == "stop"
    assert (finish.prompt_token_ids, finish.choices[0].token_ids) == ([7, 8], list(b"a b"))
    assert [item.logprob for item in finish.choices[0].logprobs.content] == [-0.5] * 3
    assert chunks[-1].usage.total_tokens == 5
    assert [call.function.name for call in final.choices[0].message.tool_calls] == ["f", "g"]
    assert [call.finish_reason for call in store.calls()] == ["stop", "tool_calls"]
    assert list(store.calls())[1].tool_call_ids == ("c0", "c1")


def test_a_broken_engine_is_a_500(store, caplog):
    raising = {**BODY, "messages": [{"role": "user", "content": "raise"}]}
    with EndpointServer([Echo(), Mute(name="mute")], store) as server:
        url = f"{server.base_url}/chat/completions"
        for stream in (False, True):
            reply = httpx.post(url, json={**raising, "stream": stream})
            assert reply.status_code == 500
            assert reply.json()["error"]["message"].startswith("engine echo failed: ZeroDivisionError (")
            assert "oops" not in reply.text
        assert "oops" in caplog.text
        mute = httpx.post(url, json={**BODY, "model": "mute", "stream": True})
        assert "ended without a completion" in mute.text
        assert "[DONE]" not in mute.text
        assert httpx.post(url, json=BODY).status_code == 200
    assert len(list(store.calls())) == 1


def test_engines_start_and_close_with_the_server():
    engine = Echo()
    server = EndpointServer([engine])
    assert not engine.running
    with server:
        assert engine.running
        assert server.port > 0
        assert server.url == f"http://127.0.0.1:{server.port}"
        with pytest.raises(EndpointError, match="runs already"):
            server.start()
    assert not engine.running
    server.stop()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/healthz")
    with server:  # the same server may be started again
        assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_an_engine_that_fails_to_start_closes_the_others():
    good = Echo()
    server = EndpointServer([good, Echo(name="bad", broken_start=True)])
    with pytest.raises(EndpointError, match="did not start: no weights here"):
        server.start()
    assert not good.running


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(EndpointError, match=rf"port {port} on 127.0.0.1 is in use.*choose another port"):
            EndpointServer([Echo()], port=port).start()
    with EndpointServer([Echo()], port=port) as server:
        assert server.port == port


def test_an_address_of_another_machine():
    with pytest.raises(EndpointError, match="no such address"):
        EndpointServer([Echo()], host="192.0.2.1", keys=KeyRing()).start()


def test_an_endpoint_for_other_machines_needs_keys():
    with pytest.raises(EndpointError, match="no keys are required"):
        EndpointServer([Echo()], host="0.0.0.0")
    EndpointServer([Echo()], host="0.0.0.0", keys=KeyRing())


def test_engines_that_share_a_name_or_are_missing_are_refused():
    with pytest.raises(EndpointError, match="answered by two engines"):
        create_app([Echo(), Echo()], None, keys=KeyRing())
    with pytest.raises(EndpointError, match="at least one engine"):
        create_app([], None, keys=KeyRing())


def test_stop_lets_a_running_request_end(store):
    engine = Echo()
    engine.gate = threading.Event()
    server = EndpointServer([engine], store).start()
    replies: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: replies.append(httpx.post(f"{server.base_url}/chat/completions", json=BODY, timeout=30))
    )
    asking.start()
    assert engine.entered.wait(30)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    engine.gate.set()
    asking.join(30)
    stopping.join(30)
    assert [reply.status_code for reply in replies] == [200]
    assert len(list(store.calls())) == 1


FOREVER = """
import sys
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
server = EndpointServer([UpstreamEngine("http://127.0.0.1:9/v1")], port=int(sys.argv[1]))
server.serve_forever()
"""


def test_serve_forever_answers_until_a_signal():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", FOREVER, str(port)], stderr=subprocess.PIPE)
    try:
        transport = httpx.HTTPTransport(retries=10)
        with httpx.Client(transport=transport) as client:
            assert client.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode != 0
    finally:
        process.kill()
        process.communicate()
