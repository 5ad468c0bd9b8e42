"""What the adapter declares it can do at each point is what it does."""

from __future__ import annotations

import asyncio
import json
from contextlib import nullcontext
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, function_tool
from cells_agents import MODELS, instrumented, make_governor, run_with

from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Point
from lgov_openai_agents import LgovRunner
from lgov_openai_agents.instrumentor import INSTRUMENTOR
from tests import surfaces


def play(mode: str, way: str, kind: str, policy: surfaces.AtPoint) -> surfaces.Ran:
    """One run under the policy. The caller of a streamed run sees every piece."""
    ran = surfaces.Ran()

    @function_tool
    def note(text: str) -> str:
        """Notes."""
        return ran.note(text)

    governor = make_governor(policy, ran.seen)
    with (
        ScriptedModelServer(surfaces.script()) as server,
        instrumented(governor) if way == "instrumented" else nullcontext(),
    ):
        runner: Any = Runner if way == "instrumented" else LgovRunner(governor)
        agent = Agent(name="a", model=MODELS[kind](server), tools=[note])
        if mode == "streaming":
            ran.shown = asyncio.run(streamed(runner, agent))
        else:
            ran.shown = str(run_with(runner, mode, agent, surfaces.QUESTION).final_output)
    ran.sent = [json.dumps(request.body) for request in server.requests]
    governor.close()
    return ran


async def streamed(runner: Any, agent: Agent[Any]) -> str:
    result = runner.run_streamed(agent, surfaces.QUESTION, run_config=RunConfig(tracing_disabled=True))
    pieces = [str(event.data) async for event in result.stream_events() if event.type == "raw_response_event"]
    return " ".join([*pieces, str(result.final_output)])


@pytest.mark.parametrize(("way", "kind"), [("runner", "chat"), ("instrumented", "responses")])
@surfaces.cases("openai-agents")
def test_what_is_declared_is_what_can_be_done(point: Point, mode: str, way: str, kind: str) -> None:
    runs = [play(mode, way, kind, surfaces.AtPoint(point, effect)) for effect in ("deny", "change")]
    assert surfaces.found(point, *runs) == surfaces.of(point)


def test_no_point_is_declared_that_was_not_tried() -> None:
    assert set(INSTRUMENTOR.surface) == set(surfaces.WORDS)
