"""Streams of the endpoint under a policy that reads no text of the model: text passes while it arrives, calls are held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from lgov_core.gateway.policy_gate import open_gate
from lgov_core.governance import Governance
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.testing import ScriptedCall, ScriptedReply
from tests.gateway.conftest import Serving

HEADERS = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"}
ASKED: Any = [{"role": "user", "content": "Look, then erase."}]
TOOLS = "version: 1\nrules:\n  - {name: tools, use: tool, with: {allow: [look]}}\n"
READS = TOOLS + "  - {name: secrets, use: secrets}\n"
LOOK, ERASE = ScriptedCall("look", {"path": "x"}, "c1"), ScriptedCall("erase", {"path": "x"}, "c2")
Start = Callable[..., Serving]


@pytest.fixture
def governed(serve: Start, store: SQLiteStore, tmp_path: Path) -> Iterator[Start]:
    gates: list[Any] = []

    def start(reply: ScriptedReply, policy: str = TOOLS) -> Serving:
        (tmp_path / "policy.yaml").write_text(policy)
        gates.append(open_gate(Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db"), store=store))
        return serve([reply], gate=gates[0])

    yield start
    for gate in gates:
        gate.close()


def client(serving: Serving) -> openai.OpenAI:
    return openai.OpenAI(base_url=serving.base_url, api_key="any", default_headers=HEADERS, max_retries=0)


def chat(serving: Serving) -> Iterator[str]:
    for chunk in client(serving).chat.completions.create(model="m", messages=ASKED, stream=True):
        yield (chunk.choices[0].delta.content or "") if chunk.choices else ""


def responses(serving: Serving) -> Iterator[str]:
    for event in client(serving).responses.create(model="m", input=ASKED, stream=True):
        yield event.delta if event.type == "response.output_text.delta" else ""


def messages(serving: Serving) -> Iterator[str]:
    on = anthropic.Anthropic(base_url=serving.url, api_key="any", default_headers=HEADERS, max_retries=0)
    with on.messages.stream(model="m", max_tokens=9, messages=ASKED) as stream:
        yield from stream.text_stream


APIS = pytest.mark.parametrize("ask", [chat, responses, messages])


@APIS
def test_text_arrives_before_the_reply_is_complete(governed: Start, ask: Callable[[Serving], Iterator[str]]) -> None:
    gate = threading.Event()
    timer = threading.Timer(5, gate.set)
    timer.start()
    pieces = filter(None, ask(governed(ScriptedReply("one two three", gate=gate, gate_at=2))))
    first = next(pieces)
    assert (first, gate.is_set()) == ("one", False)
    gate.set()
    assert first + "".join(pieces) == "one two three"
    timer.cancel()


def test_a_rule_that_reads_text_holds_it(governed: Start) -> None:
    gate = threading.Event()
    threading.Timer(0.3, gate.set).start()
    next(filter(None, chat(governed(ScriptedReply("one two", gate=gate, gate_at=2), READS))))
    assert gate.is_set()


def test_of_two_calls_a_chat_completion_gets_the_allowed_one(governed: Start) -> None:
    serving = governed(ScriptedReply("Both.", tool_calls=[LOOK, ERASE]))
    with client(serving).chat.completions.stream(model="m", messages=ASKED) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.role == "assistant"
    assert message.content is not None
    assert message.content.startswith("Both.\nDENIED by policy tools")
    assert [one.function.name for one in message.tool_calls or ()] == ["look"]


def test_of_two_calls_a_response_gets_the_allowed_one(governed: Start) -> None:
    serving = governed(ScriptedReply("Both.", tool_calls=[LOOK, ERASE]))
    with client(serving).responses.stream(model="m", input=ASKED) as stream:
        seen = [event.sequence_number for event in stream]
        response = stream.get_final_response()
    assert seen == list(range(len(seen)))
    assert response.output_text.startswith("Both.\nDENIED by policy tools")
    assert [one.name for one in response.output if one.type == "function_call"] == ["look"]
    assert len({one.id for one in response.output}) == 2


def test_of_two_calls_a_message_gets_the_allowed_one(governed: Start) -> None:
    serving = governed(ScriptedReply("Both.", tool_calls=[LOOK, ERASE]))
    on = anthropic.Anthropic(base_url=serving.url, api_key="any", default_headers=HEADERS, max_retries=0)
    with on.messages.stream(model="m", max_tokens=9, messages=ASKED) as stream:
        text, call = stream.get_final_message().content
    assert text.type == "text"
    assert text.text.startswith("Both.\nDENIED by policy tools")
    assert (call.type, getattr(call, "name", "")) == ("tool_use", "look")


@APIS
def test_a_call_that_is_not_denied_follows_its_text(governed: Start, ask: Callable[[Serving], Iterator[str]]) -> None:
    assert "".join(ask(governed(ScriptedReply("Let me look.", tool_calls=[LOOK])))) == "Let me look."
