"""Interceptors learn from each framework that a tool failed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from agent_hooks import EnforcementMode, Verdict
from agent_hooks.composition import CompositionConfig
from agent_hooks.ctk import Scenario
from agent_hooks.ctk.harness import RunOutcome
from agents import FunctionTool, function_tool
from ctk_agents import AgentsHarness
from ctk_autogen import AutoGenHarness
from ctk_harness import KitModel, LgovHarness, Mode
from more_vectors import ANSWER, CALL


class Keeps:
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def intercept(self, context: dict[str, Any]) -> Verdict:
        self.seen.append(context)
        return Verdict.allow()


class FailingAgents(AgentsHarness):
    def tool(self, name: str) -> FunctionTool:
        @function_tool
        def look_up(key: str) -> str:
            """Looks a key up."""
            raise ValueError("no such key")

        return look_up


class FailingAutoGen(AutoGenHarness):
    def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        raise ValueError("no such key")


# An exception out of a tool of LangChain's, or of a `FunctionTool` made by hand, ends the run: no result to judge.
@pytest.mark.parametrize("mode", ["async", "streaming"])
@pytest.mark.parametrize("harness", [FailingAgents, FailingAutoGen])
def test_a_tool_that_fails_is_a_result_that_is_an_error(harness: type[LgovHarness], mode: Mode) -> None:
    keeps, model = Keeps(), KitModel()
    tools = [{"name": "look_up", "behavior": []}]
    script = [{"respond": CALL}, {"respond": ANSWER}]
    said = {"content": "look", "role": "user"}
    subject = harness(mode, model)
    subject.setup(
        Scenario.from_wire({"input": said, "tools": tools, "model_script": script}),
        [keeps],
        None,
        EnforcementMode.ENFORCE,
        CompositionConfig.run_all(),
        None,
    )
    with model.server:
        record = asyncio.run(subject.run())
    subject.teardown()
    assert record.outcome is RunOutcome.COMPLETED
    (result,) = [one["tool_result"] for one in keeps.seen if one["interception_point"] == "post_tool_call"]
    assert result["is_error"] is True
