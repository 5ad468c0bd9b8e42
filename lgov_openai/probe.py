"""The model of the self-test: it proposes one call, and answers in words once it has read that the call was denied."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from lgov_openai.chat import ChatProtocol
from lgov_openai.responses import ResponsesProtocol
from lgov_openai.wire import JSON, Wire

_CALL = {"id": "probe", "type": "function", "function": {"name": "lgov_probe", "arguments": "{}"}}
_ITEM = {"type": "function_call", "id": "fc_probe", "call_id": "probe", "name": "lgov_probe", "arguments": "{}"}


def answer(request: httpx2.Request) -> httpx2.Response:
    """What the model of the self-test answers."""
    body: JSON = json.loads(request.content)
    chat = request.url.path.endswith("/chat/completions")
    wire: Wire = ChatProtocol() if chat else ResponsesProtocol()
    reply = wire.invented(body, "probe")
    if "DENIED" not in json.dumps(body):
        if chat:
            message = {"role": "assistant", "content": None, "tool_calls": [_CALL]}
            reply["choices"][0].update(message=message, finish_reason="tool_calls")
        else:
            reply["output"] = [_ITEM]
    if body.get("stream"):
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, content=wire.to_stream(body, reply, ()))
    return httpx2.Response(200, json=reply)


def message_calls(reply: Any) -> bool:
    """Whether a chat completion proposes a call."""
    return any(choice.message.tool_calls for choice in reply.choices)


def chunk_calls(chunk: Any) -> bool:
    """Whether a chunk of a chat completion proposes a call."""
    return any(choice.delta.tool_calls for choice in chunk.choices)


def output_calls(reply: Any) -> bool:
    """Whether a response proposes a call."""
    return any(item.type == "function_call" for item in reply.output)
