"""Governed copies of agents that a program changes."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    RunConfig,
    UserError,
    function_tool,
)
from cells import ANSWER, Seen, asks, says
from cells_agents import (
    as_response,
    chat_model,
    deny,
    denying,
    make_governor,
    responses_model,
    run,
    run_with,
)

from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Point
from lgov_openai_agents import LgovRunner


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def erase(ran: list[str]) -> Any:
    @function_tool
    def erase(path: str) -> str:
        """Erases."""
        ran.append(path)
        return f"erased {path}"

    return erase


@pytest.mark.parametrize("mode", ["sync", "streaming"])
@pytest.mark.parametrize("change", ["hand-off", "tools", "clone", "replace", "copy"])
def test_what_a_governed_agent_is_given_later_is_governed_too(
    mode: str, change: str, erase: Any, ran: list[str], seen: Seen
) -> None:
    runner = LgovRunner(make_governor(denying("erase"), seen))
    replies = [asks(("c1", "erase", {"path": "x"})), says(ANSWER)]
    if change == "hand-off":
        replies.insert(0, asks(("h1", "transfer_to_b", {})))
    with ScriptedModelServer(replies) as server:
        agent = runner.govern(Agent(name="a", model=chat_model(server)))
        if change == "hand-off":
            agent.handoffs.append(Agent(name="b", model=chat_model(server), tools=[erase]))
        elif change == "tools":
            agent.tools.append(erase)
        elif change == "clone":
            agent = agent.clone(name="c", tools=[erase])
        elif change == "replace":
            agent = dataclasses.replace(agent, tools=[erase])
        else:
            agent = copy.copy(agent)
            agent.tools = [erase]
        result = run_with(runner, mode, agent, "go")
        assert "DENIED" in str(server.requests[-1].body)
    assert result.final_output == ANSWER
    assert ran == []
    assert len(seen.decisions(Point.INPUT)) == 1


def test_a_model_given_to_a_copy_later_is_governed(seen: Seen) -> None:
    runner = LgovRunner(make_governor(lambda action: deny("no") if action.point is Point.INPUT else None, seen))
    with ScriptedModelServer([]) as server:
        agent = runner.govern(Agent(name="a"))
        agent.model = chat_model(server)
        assert "DENIED" in str(run_with(runner, "sync", agent, "go").final_output)


def test_an_agent_tool_is_governed_with_later_additions(erase: Any, ran: list[str]) -> None:
    runner = LgovRunner(make_governor(denying("erase")))
    replies = [
        asks(("t1", "helper", {"input": "x"})),
        asks(("h1", "transfer_to_b", {})),
        asks(("c1", "erase", {"path": "x"})),
        says("in"),
        says(ANSWER),
    ]
    with ScriptedModelServer(replies) as server:
        inner = runner.govern(Agent(name="inner", model=chat_model(server)))
        boss = Agent(name="boss", model=chat_model(server), tools=[inner.as_tool("helper", "Helps")])
        inner.handoffs.append(Agent(name="b", model=chat_model(server), tools=[erase]))
        assert run_with(runner, "sync", boss, "go").final_output == ANSWER
    assert ran == []


def test_copies_of_another_or_of_no_governor_are_refused() -> None:
    governor, other = make_governor(lambda action: None), make_governor(lambda action: None)
    with ScriptedModelServer([]) as server:
        agent = LgovRunner(other).govern(Agent(name="a", model=chat_model(server)))
        with pytest.raises(UserError, match="another governor"):
            run_with(LgovRunner(governor), "sync", agent, "go")
        with pytest.raises(UserError, match="has no governor"):
            run("sync", dataclasses.replace(agent), "go")


def test_a_sandbox_agent_is_governed(seen: Seen, tmp_path: Path) -> None:
    sandbox = pytest.importorskip("agents.sandbox")
    local = pytest.importorskip("agents.sandbox.sandboxes.unix_local")
    kept = tmp_path / "kept"
    kept.write_text("")
    asked = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "exec_command", "status": "completed"}
    asked["arguments"] = json.dumps({"cmd": f"rm {kept}"})
    said = {"type": "output_text", "text": ANSWER, "annotations": []}
    answer = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [said]}
    with ScriptedModelServer([as_response(asked), as_response(answer)]) as server:
        runner = LgovRunner(make_governor(denying("exec_command"), seen))
        agent = sandbox.SandboxAgent(name="a", model=responses_model(server), default_manifest=sandbox.Manifest())
        config = RunConfig(
            tracing_disabled=True, sandbox=sandbox.SandboxRunConfig(client=local.UnixLocalSandboxClient())
        )
        assert run_with(runner, "async", agent, "go", run_config=config).final_output == ANSWER
        assert "DENIED" in str(server.requests[-1].body)
    assert kept.exists()
    assert [outcome.status for outcome in seen.outcomes] == ["denied"]
