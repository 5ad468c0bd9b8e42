"""Streams under policies that read no text: the text passes while it arrives, calls are held until they are evaluated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import ReloadingPolicySet, load_policies
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Point
from lgov_openai import govern_client
from tests.cells import Seen
from tests.openai import openai_programs as programs
from tests.openai.rules import USER

TOOLS_ONLY = {"name": "tools", "use": "tool", "with": {"allow": ["look"]}}
COSTS = {"name": "costs", "use": "cost", "with": {"max_tokens": 100_000}}
SECRETS = {"name": "secrets", "use": "secrets"}
#: A condition at a point of replies reads them, whatever the policy is.
ON_OUTPUT = {"name": "said", "use": "deny", "on": ["output"], "when": {"field": "text", "contains": "4711"}}
LONG = ScriptedCall("look", {"path": "x"}, "c1")
ERASE = ScriptedCall("erase_file", {"path": "x"}, "c2")


class Served:
    def __init__(self, server: ScriptedModelServer, *rules: Any, seen: Seen) -> None:
        self.server, self.seen = server, seen
        manager = make_plugin_manager(builtin=(), third_party=False)
        self.governor = Governor(load_policies({"version": 1, "rules": list(rules)}), plugins=[seen], manager=manager)
        self.client = govern_client(programs.client(server.base_url), self.governor)
        self.aclient = govern_client(programs.aclient(server.base_url), self.governor)

    def stream(self, *messages: Any) -> Any:
        return self.client.chat.completions.create(model="m", messages=list(messages) or [USER], stream=True)

    def message(self, *messages: Any) -> Any:
        return programs.assembled(self.stream(*messages))


@contextmanager
def gated(after_s: float = 5.0) -> Iterator[threading.Event]:
    """A gate for a model's reply, which opens by itself after a while."""
    gate = threading.Event()
    timer = threading.Timer(after_s, gate.set)
    timer.start()
    yield gate
    timer.cancel()


@contextmanager
def served(replies: Any, *rules: Any) -> Iterator[Served]:
    with ScriptedModelServer(replies) as server:
        found = Served(server, *(rules or [TOOLS_ONLY]), seen=Seen())
        yield found
        found.governor.close()


def texts(chunk: Any) -> str:
    return (chunk.choices[0].delta.content or "") if chunk.choices else ""


@pytest.mark.parametrize("rules", [[TOOLS_ONLY], [TOOLS_ONLY, COSTS]], ids=["tools", "costs"])
def test_text_arrives_before_the_reply_is_complete(rules: list[Any]) -> None:
    with gated() as gate, served([ScriptedReply("one two three", gate=gate, gate_at=2)], *rules) as program:
        stream = program.stream()
        first = next(text for chunk in stream if (text := texts(chunk)))
        assert (first, gate.is_set()) == ("one", False)
        gate.set()
        assert first + "".join(map(texts, stream)) == "one two three"
        assert len(program.seen.decisions(Point.POST_MODEL_CALL)) == 1


def test_text_arrives_early_in_a_task_too() -> None:
    async def read(program: Served, gate: threading.Event) -> str:
        stream = await program.aclient.chat.completions.create(model="m", messages=[USER], stream=True)
        found = ""
        async for chunk in stream:
            if texts(chunk) and not found:
                assert not gate.is_set()
                gate.set()
            found += texts(chunk)
        return found

    with gated() as gate, served([ScriptedReply("one two three", gate=gate, gate_at=2)]) as program:
        assert asyncio.run(read(program, gate)) == "one two three"


@pytest.mark.parametrize("rule", [SECRETS, ON_OUTPUT], ids=["secrets", "condition"])
def test_a_rule_that_reads_text_holds_it(rule: Any) -> None:
    with (
        gated(0.3) as gate,
        served([ScriptedReply("one two three", gate=gate, gate_at=2)], TOOLS_ONLY, rule) as program,
    ):
        next(text for chunk in program.stream() if (text := texts(chunk)))
        assert gate.is_set()


def test_an_allowed_call_follows_its_text() -> None:
    with served([ScriptedReply("Let me look.", tool_calls=[LONG])]) as program:
        message = program.message()
        assert message["content"] == "Let me look."
        function = {"name": "look", "arguments": '{"path": "x"}'}
        assert message["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]


def test_a_call_is_not_handed_over_before_it_is_evaluated() -> None:
    with gated(0.3) as gate, served([ScriptedReply("Look.", tool_calls=[LONG], gate=gate, gate_at=4)]) as program:
        for chunk in program.stream():
            if chunk.choices and chunk.choices[0].delta.tool_calls:
                assert gate.is_set()
                assert program.seen.decisions(Point.PRE_TOOL_CALL)


def test_after_a_denied_call_the_stream_goes_on_with_the_next_reply() -> None:
    replies = [ScriptedReply("I erase it.", tool_calls=[ERASE]), "I may not.", "Bye."]
    with served(replies) as program:
        message = program.message()
        assert message == {"role": "assistant", "content": "I erase it.\nI may not."}
        program.message(USER, message, {"role": "user", "content": "And?"})
        read = program.server.requests[2].body["messages"]
        assert [one["role"] for one in read] == ["user", "assistant", "tool", "assistant", "user"]
        assert (read[1]["content"], read[1]["tool_calls"][0]["id"]) == ("I erase it.", "c2")
        assert "DENIED" in read[2]["content"]
        assert read[3]["content"] == "I may not."


def test_of_two_calls_only_the_allowed_one_is_handed_over() -> None:
    with served([ScriptedReply("Both.", tool_calls=[LONG, ERASE])]) as program:
        message = program.message()
        assert message["content"] == "Both."
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["look"]


def test_a_stream_that_ends_early_is_refused_if_it_has_a_call() -> None:
    body = b'data: {"choices": [{"index": 0, "delta": {"content": "one"}, "finish_reason": null}]}\n\n'
    call = body.replace(b'"content": "one"', b'"tool_calls": [{"index": 0, "id": "c", "function": {"name": "look"}}]')
    streams = [ScriptedReply(body=each, content_type="text/event-stream") for each in (body, body + call)]
    with served(streams) as program:
        assert [texts(chunk) for chunk in program.stream()] == ["one"]
        stream = program.stream()
        assert texts(next(iter(stream))) == "one"
        with pytest.raises(PolicyDenied, match="not a complete reply"):
            list(stream)


def test_a_reply_that_is_not_read_to_its_end_ends_its_span() -> None:
    with served([ScriptedReply("one two three")]) as program:
        with program.stream() as stream:
            next(iter(stream))
        assert [span.attributes[semconv.OPERATION] for span in program.seen.spans] == [semconv.CHAT]


def test_a_reloaded_set_says_what_its_rules_read(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\nrules:\n  - {name: a, use: allow}\n")
    policies = ReloadingPolicySet(file, every_s=0)
    governor = Governor(policies, manager=make_plugin_manager(builtin=(), third_party=False))
    assert not governor.reads_replies()
    file.write_text("version: 1\nrules:\n  - {name: a, use: allow}\n  - {name: s, use: secrets}\n")
    for _ in range(2):
        policies.judge(Action(Point.PRE_TOOL_CALL, "look"))
    assert governor.reads_replies()
