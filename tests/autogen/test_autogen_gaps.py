"""The known ways around: each is still one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.models import CreateResult, RequestUsage
from autogen_core.tools import FunctionTool

from lgov_autogen.instrumentor import lgov_framework
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Point
from tests.autogen.autogen_parts import at, deny, playing
from tests.cells import asks, says

DENY = at(Point.PRE_TOOL_CALL, lambda action: deny("no"))


ran: list[str] = []


def act(word: str) -> str:
    """Acts."""
    ran.append(word)
    return f"acted on {word}"


def tool() -> FunctionTool:
    ran.clear()
    return FunctionTool(act, description="Acts.")


def gap(name: str) -> str:
    return next(one for one in lgov_framework().gaps if one.name == name).why


@pytest.mark.gap("autogen", "tool.run")
async def test_gap_the_function_behind_a_tool() -> None:
    assert gap("tool.run")
    with playing("instrumented", DENY) as (_parts, seen, _server):
        one = tool()
        args: Any = one.args_type()(word="x")
        assert await one.run(args, CancellationToken()) == "acted on x"
        assert act("y") == "acted on y"
    assert seen.decisions() == []


@pytest.mark.gap("autogen", "model client of another kind")
async def test_gap_a_model_client_of_another_kind() -> None:
    assert gap("model client of another kind")

    class Lookalike:
        def __init__(self) -> None:
            self.model_info = {"vision": False, "function_calling": True, "family": "unknown", "json_output": False}

        async def create(self, *args: Any, **kwargs: Any) -> CreateResult:
            return CreateResult(finish_reason="stop", content="hi", usage=RequestUsage(0, 0), cached=False)

    with playing("instrumented", DENY) as (_parts, seen, _server):
        client: Any = Lookalike()
        await AssistantAgent("clerk", client).run(task="go")
    assert seen.decisions(Point.PRE_MODEL_CALL) == []


@pytest.mark.gap("autogen", "runtime of its own")
async def test_gap_a_team_on_a_runtime_that_was_started_elsewhere() -> None:
    from autogen_agentchat.conditions import MaxMessageTermination
    from autogen_agentchat.teams import RoundRobinGroupChat
    from autogen_core import SingleThreadedAgentRuntime

    assert gap("runtime of its own")
    with playing("instrumented", DENY, asks(("c1", "act", {"word": "x"})), says("done")) as (parts, seen, _server):
        runtime = SingleThreadedAgentRuntime()
        runtime.start()
        team = RoundRobinGroupChat(
            [parts.agent("clerk", [act])], termination_condition=MaxMessageTermination(2), runtime=runtime
        )
        with enter_scope(RolloutScope("r1")):
            await team.run(task="go")
        await runtime.stop()
    (one,) = seen.decisions()
    assert one.decision.blocks
    assert one.action.rollout_id is None, "the gap has been closed: say so"


@pytest.mark.gap("autogen", "other processes")
async def test_gap_a_process_that_a_tool_starts(tmp_path: Path) -> None:
    import subprocess
    import sys

    assert gap("other processes")

    def launch() -> str:
        """Starts a program."""
        subprocess.run([sys.executable, "-c", f"open({str(tmp_path / 'made')!r}, 'w')"], check=True)
        return "launched"

    only_launch = at(Point.PRE_TOOL_CALL, lambda action: None if action.name == "launch" else deny("no"))
    with playing("instrumented", only_launch, asks(("c1", "launch", {})), says("done")) as (parts, _seen, _server):
        await parts.agent("clerk", [launch]).run(task="go")
    assert (tmp_path / "made").exists()


@pytest.mark.gap("autogen", "agents that bring their own client")
async def test_gap_agents_that_bring_their_own_client() -> None:
    """Such an agent's run has a span, and its tools would be judged; its model calls are the openai client's own."""
    from autogen_ext.agents.openai import OpenAIAgent
    from openai import AsyncOpenAI

    assert gap("agents that bring their own client")
    with playing("instrumented", DENY, says("hi")) as (parts, seen, server):
        client = AsyncOpenAI(base_url=parts.base_url, api_key="none")
        agent = OpenAIAgent("clerk", "a clerk", client, "scripted", "be kind")
        assert (await agent.run(task="go")).messages[-1].to_text() == "hi"
        assert len(server.requests) == 1
    assert seen.decisions(Point.PRE_MODEL_CALL) == []
    assert [span.name for span in seen.spans] == ["invoke_agent clerk"]
