"""Streams of the Agents SDK under policies that read no text: it passes while it arrives; calls are held."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, function_tool
from cells import Seen
from cells_agents import chat_model, instrumented, responses_model

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import load_policies
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.types import Point

CONFIG = RunConfig(tracing_disabled=True)
TOOLS_ONLY = {"name": "tools", "use": "tool", "with": {"allow": ["look"]}}
SECRETS = {"name": "secrets", "use": "secrets"}
MODELS = pytest.mark.parametrize("model_of", [chat_model, responses_model], ids=["chat", "responses"])


@function_tool
def look(path: str) -> str:
    """Looks."""
    return f"saw {path}"


@function_tool
def erase(path: str) -> str:
    """Erases."""
    raise AssertionError("it is denied")


def governor(seen: Seen, *rules: Any) -> Governor:
    policies = load_policies({"version": 1, "rules": list(rules)})
    return Governor(policies, plugins=[seen], manager=make_plugin_manager(builtin=(), third_party=False))


async def streamed(agent: Agent[Any], on_text: Any = lambda: None) -> tuple[list[str], str]:
    """The text deltas of a run as they come, and its final output."""
    result = Runner.run_streamed(agent, "go", run_config=CONFIG)
    deltas: list[str] = []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            deltas.append(event.data.delta)
            on_text()
    return deltas, str(result.final_output)


@MODELS
@pytest.mark.parametrize("reads", [False, True], ids=["tools only", "reads text"])
def test_text_passes_as_it_arrives_unless_a_rule_reads_it(model_of: Any, reads: bool) -> None:
    gate, early, seen = threading.Event(), [], Seen()

    def on_text() -> None:
        early.append(not gate.is_set())
        gate.set()

    rules = [TOOLS_ONLY, *([SECRETS] if reads else [])]
    reply = ScriptedReply("one two three", gate=gate, gate_at=5 if model_of is responses_model else 2)
    with ScriptedModelServer([reply]) as server, instrumented(governor(seen, *rules)):
        timer = threading.Timer(1.0, gate.set)
        timer.start()
        deltas, output = asyncio.run(streamed(Agent(name="a", model=model_of(server)), on_text))
        timer.cancel()
    assert early[0] == (not reads)
    assert ("".join(deltas), output) == ("one two three", "one two three")
    assert len(seen.decisions(Point.POST_MODEL_CALL)) == 1


@MODELS
def test_after_a_denied_call_no_text_comes_twice(model_of: Any) -> None:
    seen = Seen()
    denied = ScriptedReply("I erase.", tool_calls=[ScriptedCall("erase", {"path": "x"}, "c1")])
    both = ScriptedReply(
        "I look.", tool_calls=[ScriptedCall("look", {"path": "x"}, "c2"), ScriptedCall("erase", {"path": "x"}, "c3")]
    )
    with ScriptedModelServer([denied, both, "Done."]) as server, instrumented(governor(seen, TOOLS_ONLY)):
        deltas, output = asyncio.run(streamed(Agent(name="a", model=model_of(server), tools=[look, erase])))
    text = "".join(deltas)
    assert [text.count(part) for part in ("I erase.", "I look.", "Done.")] == [1, 1, 1]
    assert output == "Done."
