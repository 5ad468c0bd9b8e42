"""How openai is patched in an instrumented process, and the proof: a model proposes a call that is denied."""

from __future__ import annotations

import asyncio
import atexit
import json
from typing import Any

import httpx2
import openai
from openai import AsyncOpenAI, OpenAI

from lgov_core.instrumentation.framework import Instrumentor, Patches, in_fresh_thread
from lgov_core.types import Point
from lgov_core.wire.chat_turns import ChatProtocol
from lgov_core.wire.responses_turns import ResponsesProtocol
from lgov_core.wire.turns import JSON, MessageProtocol
from lgov_openai.client import Interceptor, wrapped_request
from lgov_openai.instrumentor import INSTRUMENTOR


def patch(patches: Patches) -> None:
    """Wraps ``request`` of both clients."""
    interceptor = Interceptor(lambda: INSTRUMENTOR.governor)
    patches.undo_by(interceptor.forget)
    atexit.register(interceptor.end_recordings)
    patches.undo_by(lambda: atexit.unregister(interceptor.end_recordings))
    for cls in (OpenAI, AsyncOpenAI):
        patches.replace(cls, "request", wrapped_request(cls.request, (interceptor,)))


def self_test(instrumentor: Instrumentor) -> list[str]:
    """Calls the model as programs do; returns the ways in which the proposed call reached the caller.

    Runs in this thread: while openai is being imported (``lgov run`` instruments it then) another one could not import what
    it needs. In a running event loop the asynchronous half needs a thread, so that it is left out during the import.
    """
    with instrumentor.denying_everything(only=frozenset({Point.PRE_TOOL_CALL})):
        ways = _ungoverned_ways()
        if not _loop_is_running():
            ways += asyncio.run(_aungoverned_ways())
        elif not getattr(openai.__spec__, "_initializing", False):
            in_fresh_thread(lambda: ways.extend(asyncio.run(_aungoverned_ways())))
    return ways


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_CALL = {"id": "probe", "type": "function", "function": {"name": "lgov_probe", "arguments": "{}"}}
_ITEM = {"type": "function_call", "id": "fc_probe", "call_id": "probe", "name": "lgov_probe", "arguments": "{}"}
_CHAT: dict[str, Any] = {"model": "probe", "messages": [{"role": "user", "content": "probe"}]}
_RESPONSE: dict[str, Any] = {"model": "probe", "input": "probe"}
_CLIENT: dict[str, Any] = {"api_key": "probe", "base_url": "http://probe.invalid/v1"}


def _answer(request: httpx2.Request) -> httpx2.Response:
    """The reply of the model: it proposes one call, and answers in words once it has read that the call was denied."""
    body: JSON = json.loads(request.content)
    chat = request.url.path.endswith("/chat/completions")
    protocol: MessageProtocol = ChatProtocol() if chat else ResponsesProtocol()
    reply = protocol.denial_reply(body, "probe")
    if "DENIED" not in json.dumps(body) and chat:
        message = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
        reply["choices"][0].update(message=message, finish_reason="tool_calls")
    elif "DENIED" not in json.dumps(body):
        reply["output"] = [_ITEM]
    if body.get("stream"):
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=protocol.to_stream(body, reply, ()))
    return httpx2.Response(200, json=reply)


def _ungoverned_ways() -> list[str]:
    with OpenAI(**_CLIENT, http_client=httpx2.Client(transport=httpx2.MockTransport(_answer))) as client:
        replies = {
            "chat.completions.create": [client.chat.completions.create(**_CHAT)],
            "chat.completions.with_raw_response": [client.chat.completions.with_raw_response.create(**_CHAT).parse()],
            "chat.completions.create(stream=True)": list(client.chat.completions.create(**_CHAT, stream=True)),
            "responses.create": [client.responses.create(**_RESPONSE)],
        }
    return _with_call(replies)


async def _aungoverned_ways() -> list[str]:
    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(_answer))
    async with AsyncOpenAI(**_CLIENT, http_client=http_client) as client:
        stream = await client.chat.completions.create(**_CHAT, stream=True)
        replies = {
            "AsyncOpenAI chat.completions.create(stream=True)": [chunk async for chunk in stream],
            "AsyncOpenAI chat.completions.create": [await client.chat.completions.create(**_CHAT)],
            "AsyncOpenAI responses.create": [await client.responses.create(**_RESPONSE)],
        }
    return _with_call(replies)


def _with_call(replies: dict[str, Any]) -> list[str]:
    return [way for way, parts in replies.items() if any("lgov_probe" in str(piece.model_dump()) for piece in parts)]
