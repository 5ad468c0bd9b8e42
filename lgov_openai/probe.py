"""The model of the self-test: it proposes one call, and answers in words once it has read that the call was denied."""

from __future__ import annotations

import json
from typing import Any

import httpx2
from openai import AsyncOpenAI, OpenAI

from lgov_openai.chat import ChatProtocol
from lgov_openai.content import JSON
from lgov_openai.protocol import MessageProtocol
from lgov_openai.responses import ResponsesProtocol

_CALL = {"id": "probe", "type": "function", "function": {"name": "lgov_probe", "arguments": "{}"}}
_ITEM = {"type": "function_call", "id": "fc_probe", "call_id": "probe", "name": "lgov_probe", "arguments": "{}"}


def answer(request: httpx2.Request) -> httpx2.Response:
    """What the model of the self-test answers."""
    body: JSON = json.loads(request.content)
    chat = request.url.path.endswith("/chat/completions")
    protocol: MessageProtocol = ChatProtocol() if chat else ResponsesProtocol()
    reply = protocol.denial_reply(body, "probe")
    if "DENIED" not in json.dumps(body):
        if chat:
            message = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
            reply["choices"][0].update(message=message, finish_reason="tool_calls")
        else:
            reply["output"] = [_ITEM]
    if body.get("stream"):
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=protocol.to_stream(body, reply, ()))
    return httpx2.Response(200, json=reply)


_ASK: dict[str, Any] = {"model": "probe", "messages": [{"role": "user", "content": "probe"}]}
_ASK_RESPONSES: dict[str, Any] = {"model": "probe", "input": "probe"}
_CLIENT: dict[str, Any] = {"api_key": "probe", "base_url": "http://probe.invalid/v1"}


def ask(got: list[str]) -> None:
    """Asks as programs do; adds to ``got`` the name of each way by which the proposed call came through."""
    transport = httpx2.MockTransport(answer)
    with OpenAI(**_CLIENT, http_client=httpx2.Client(transport=transport)) as on:
        if _calls(on.chat.completions.create(**_ASK)):
            got.append("chat.completions.create")
        if _calls(on.chat.completions.with_raw_response.create(**_ASK).parse()):
            got.append("chat.completions.with_raw_response")
        if any(_calls(chunk) for chunk in on.chat.completions.create(**_ASK, stream=True)):
            got.append("chat.completions.create(stream=True)")
        if _calls(on.responses.create(**_ASK_RESPONSES)):
            got.append("responses.create")


async def aask(got: list[str]) -> None:
    """As `ask`, by the asynchronous client."""
    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with AsyncOpenAI(**_CLIENT, http_client=client) as on:
        if _calls(await on.chat.completions.create(**_ASK)):
            got.append("AsyncOpenAI chat.completions.create")
        async for chunk in await on.chat.completions.create(**_ASK, stream=True):
            if _calls(chunk):
                got.append("AsyncOpenAI chat.completions.create(stream=True)")
        if _calls(await on.responses.create(**_ASK_RESPONSES)):
            got.append("AsyncOpenAI responses.create")


def _calls(reply: Any) -> bool:
    """Whether a reply or a chunk of one proposes the call."""
    return "lgov_probe" in str(reply.model_dump())
