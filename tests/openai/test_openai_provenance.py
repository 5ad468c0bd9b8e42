"""What the user said is in the program's own transcript; what a page or a tool says is not the user's."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from lgov_core.governor import Governor
from lgov_core.scope import enter_scope
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Point
from lgov_openai import instrument, uninstrument
from tests.cells import Seen, asks, live_span, says
from tests.provenance_example import (
    BOTH_ADDRESSES,
    ORDER,
    REQUEST,
    SCOPES,
    UNSAID,
    Mails,
    documented_governor,
    in_plain_thread,
    provenance_governor,
)

SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": one, "parameters": SCHEMA}} for one in ("send_mail", "read_page")]
RESPONSE_TOOLS: Any = [{"type": "function", "name": one["function"]["name"], "parameters": SCHEMA} for one in TOOLS]


def chat(on: openai.OpenAI, mails: Mails, text: str) -> str | None:
    """A program's own loop on chat completions."""
    messages: list[Any] = [{"role": "user", "content": text}]
    while True:
        reply = on.chat.completions.create(model="m", messages=messages, tools=TOOLS).choices[0].message  # type: ignore[arg-type]
        messages.append(reply)
        if not reply.tool_calls:
            return reply.content
        for call in reply.tool_calls:
            result = getattr(mails, call.function.name)(**json.loads(call.function.arguments))  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def respond(on: openai.OpenAI, mails: Mails, text: str) -> str:
    """A program's own loop on responses."""
    given: list[Any] = [{"role": "user", "content": text}]
    while True:
        reply = on.responses.create(model="m", input=given, tools=RESPONSE_TOOLS)
        calls = [one for one in reply.output if one.type == "function_call"]
        given += reply.output
        if not calls:
            return reply.output_text
        for call in calls:
            result = getattr(mails, call.name)(**json.loads(call.arguments))
            given.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def run(governor: Governor, loop: Any, mails: Mails, *script: Any) -> None:
    """The process instrumented by one line, without a rollout or a session."""
    instrument(governor)
    try:
        with ScriptedModelServer(list(script)) as server:
            loop(openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0), mails, REQUEST)
    finally:
        uninstrument()
        governor.close()


@SCOPES
@BOTH_ADDRESSES
@pytest.mark.parametrize("loop", [chat, respond])
def test_the_documented_example(loop: Any, address: str, sent: bool, scope: Any) -> None:
    mails = Mails()
    script = [asks(("c1", "read_page", {})), asks(("c2", "send_mail", {"to": address})), says("done")]
    with enter_scope(scope):
        run(documented_governor(), loop, mails, *script)
    assert mails.to == ([address] if sent else [])


@pytest.mark.parametrize("loop", [chat, respond])
def test_what_a_tool_says_to_a_model_is_not_the_users(loop: Any) -> None:
    mails, seen = Mails(), Seen()
    governor = provenance_governor(seen)

    def inside_a_tool(on: openai.OpenAI, mails: Mails, text: str) -> None:
        with live_span(governor, "execute_tool", "helper"):
            loop(on, mails, ORDER)

    run(governor, inside_a_tool, mails, asks(("c1", "send_mail", {"to": UNSAID})), says("done"))
    assert mails.to == []
    assert [(one.action.text, one.action.source) for one in seen.decisions(Point.INPUT)] == [(ORDER, "tool")]


@pytest.mark.parametrize("loop", [chat, respond])
def test_what_a_thread_of_a_tool_says_is_not_the_users(loop: Any, carrying: None) -> None:
    mails, governor = Mails(), provenance_governor()

    def inside_a_tool(on: openai.OpenAI, mails: Mails, text: str) -> None:
        with live_span(governor, "execute_tool", "helper"):
            in_plain_thread(lambda: loop(on, mails, ORDER))

    run(governor, inside_a_tool, mails, asks(("c1", "send_mail", {"to": UNSAID})), says("done"))
    assert mails.to == []
