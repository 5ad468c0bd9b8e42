"""Helpers for tests of what the model reads in each request."""

from __future__ import annotations

from typing import Any

import openai

from lgov_core.governor import Governor
from lgov_core.testing import ScriptedModelServer
from lgov_openai import govern_client
from tests.openai import openai_programs as programs

USER = {"role": "user", "content": "go"}


def on(server: ScriptedModelServer, governor: Governor, **options: Any) -> openai.OpenAI:
    return govern_client(programs.client(server.base_url, **options), governor)


def read(server: ScriptedModelServer, number: int = -1) -> list[dict[str, Any]]:
    body = server.requests[number].body
    return body.get("messages") or body["input"]


def shape(messages: list[dict[str, Any]]) -> list[Any]:
    """Each message in a word: who, and which calls."""
    found: list[Any] = []
    for one in messages:
        calls = [call["id"] for call in one.get("tool_calls") or ()]
        kind = one.get("type", "message")
        found.append(
            f"{kind}:{one['call_id']}"
            if "call_id" in one
            else f"assistant:{','.join(calls)}"
            if calls
            else f"tool:{one['tool_call_id']}"
            if one.get("role") == "tool"
            else f"{one['role']}:{text(one)}"
        )
    return found


def text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def create(client: openai.OpenAI, messages: list[Any]) -> Any:
    return client.chat.completions.create(model="m", messages=messages, tools=programs.CHAT_TOOLS).choices[0].message


def assert_each_continues_the_one_before(server: ScriptedModelServer) -> None:
    for number in range(1, len(server.requests)):
        before, after = read(server, number - 1), read(server, number)
        assert after[: len(before)] == before, (shape(before), shape(after))
