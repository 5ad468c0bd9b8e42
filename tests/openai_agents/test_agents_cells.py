"""The table of denials for the Agents SDK: a denied tool leaves the file, the model is told, the run goes on."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, FunctionTool, Model, ModelSettings, ModelTracing, RunConfig
from agents.mcp import MCPServerStdio
from agents.tool_context import ToolContext
from cells import ANSWER, asks, open_cell, says
from cells_agents import MODELS, eraser, governed

from lgov_core.instrumentation.tool_call import failure_status
from lgov_openai_agents import GovernedModel, governed_tool

MODES = ("sync", "async", "streaming")
SERVER = str(Path(__file__).parents[1] / "mcp_files_server.py")


def cells(shape: str, modes: tuple[str, ...] = MODES) -> Any:
    """One case for each mode, marked as the cell it is."""
    return pytest.mark.parametrize(
        "mode", [pytest.param(mode, marks=pytest.mark.cell("openai-agents", mode, shape)) for mode in modes]
    )


#: The instrumented process with both kinds of model, and the one-line way.
ways = pytest.mark.parametrize(
    ("way", "model"), [("instrumented", "responses"), ("instrumented", "chat"), ("runner", "responses")]
)


@cells("agent-as-tool")
@ways
def test_a_denied_tool_of_an_agent_that_is_a_tool(tmp_path: Path, mode: str, way: str, model: str) -> None:
    erase = ("c2", "erase_file", {"path": str(tmp_path / "precious.txt")})
    replies = (
        asks(("c1", "ask_eraser", {"input": "erase it"})),
        asks(erase),
        says("It is forbidden: DENIED"),
        says(ANSWER),
    )
    with open_cell(tmp_path, *replies) as cell, governed(way, cell) as how:
        inner = Agent(name="eraser", model=MODELS[model](cell), tools=[eraser(cell)])
        outer = Agent(
            name="boss", model=MODELS[model](cell), tools=[how.govern(inner).as_tool("ask_eraser", "Erases files.")]
        )
        result = how.run(mode, outer, "tidy up")
        assert "DENIED by policy cells/no-erasing" in str(cell.server.requests[2].body)
        assert "It is forbidden: DENIED" in str(cell.server.requests[3].body)
        cell.server.requests.pop()  # the outer model reads the inner agent's words; the inner one read the denial
        cell.check(result.final_output, ran=["ask_eraser"])


@cells("MCP tool")
@ways
def test_a_denied_tool_of_an_mcp_server(tmp_path: Path, mode: str, way: str, model: str) -> None:
    erase = ("c1", "erase_file", {"path": str(tmp_path / "precious.txt")})
    with (
        open_cell(tmp_path, asks(erase, ("c2", "add", {"a": 2, "b": 3})), says(ANSWER)) as cell,
        governed(way, cell) as how,
    ):

        def agent_with(server: MCPServerStdio) -> Agent[Any]:
            return Agent(name="cleaner", model=MODELS[model](cell), mcp_servers=[server])

        if mode == "sync":
            with asyncio.Runner() as loop:  # run_sync uses the thread's own loop, where the session must live too
                asyncio.set_event_loop(loop.get_loop())
                server = MCPServerStdio(
                    {"command": sys.executable, "args": [SERVER]}, client_session_timeout_seconds=60
                )
                loop.run(server.connect())
                result = how.run(mode, agent_with(server), "tidy up")
                loop.run(server.cleanup())
        else:
            result = asyncio.run(_with_server(how.runner, mode, agent_with))
        cell.check(result.final_output, ran=["add"])
        (added,) = [one for one in cell.seen.outcomes if one.action.name == "add"]
        assert added.action.kind == "mcp"
        assert added.result is not None
        assert "5" in added.result


async def _with_server(runner: Any, mode: str, agent_with: Any) -> Any:
    async with MCPServerStdio(
        {"command": sys.executable, "args": [SERVER]}, client_session_timeout_seconds=60
    ) as server:
        config = RunConfig(tracing_disabled=True)
        if mode == "async":
            return await runner.run(agent_with(server), "tidy up", run_config=config)
        result = runner.run_streamed(agent_with(server), "tidy up", run_config=config)
        async for _ in result.stream_events():
            pass
        return result


@ways
def test_a_servers_error_is_one_and_all_its_calls_are_governed(tmp_path: Path, way: str, model: str) -> None:
    """The SDK forgets it: to the model, an error is a text like any other."""
    missing = {"path": str(tmp_path / "missing.txt")}
    replies = (asks(("c1", "read_file", missing), ("c2", "add", {"a": 2, "b": 3})), says(ANSWER))

    async def main(how: Any) -> tuple[Any, str]:
        async with MCPServerStdio(
            {"command": sys.executable, "args": [SERVER]}, client_session_timeout_seconds=60
        ) as server:
            agent = Agent(name="cleaner", model=MODELS[model](cell), mcp_servers=[server])
            result = await how.runner.run(agent, "tidy up", run_config=RunConfig(tracing_disabled=True))
            if way != "instrumented":
                return result, "DENIED"
            return result, str(await server.call_tool("erase_file", {"path": str(cell.file)}))

    with open_cell(tmp_path, *replies) as cell, governed(way, cell) as how:
        result, told = asyncio.run(main(how))
    assert result.final_output == ANSWER
    outcomes = {one.action.call_id: (one.status, one.error_type) for one in cell.seen.outcomes}
    assert outcomes["c1"] == ("error", "MCPToolError")
    assert outcomes["c2"] == ("ok", None)
    assert "DENIED" in told
    assert cell.file.exists()
    assert len(cell.seen.decisions()) == (3 if way == "instrumented" else 2)


def test_a_server_that_does_not_answer_is_a_timeout() -> None:
    errors = importlib.import_module("mcp.shared.exceptions")
    if hasattr(errors, "MCPError"):
        late, wrong = errors.MCPError(-32001, "timed out"), errors.MCPError(-32602, "no such tool")
    else:
        data = importlib.import_module("mcp.types").ErrorData
        late, wrong = (errors.McpError(data(code=code, message="no")) for code in (408, -32602))
    assert [failure_status(late), failure_status(wrong)] == ["timeout", "error"]


@cells("hand-made loop")
@ways
def test_a_denied_tool_in_a_loop_made_by_hand(tmp_path: Path, mode: str, way: str, model: str) -> None:
    """The program asks the model and calls ``on_invoke_tool`` itself; no Runner is involved."""
    erase = ("c1", "erase_file", {"path": str(tmp_path / "precious.txt")})
    with open_cell(tmp_path, asks(erase), says(ANSWER)) as cell:
        tool = eraser(cell)  # made before instrumentation: tools need not be made anew
        invoke = tool.on_invoke_tool
        with governed(way, cell):
            asked = MODELS[model](cell)
            if way == "runner":
                asked, tool = GovernedModel(asked, cell.governor), governed_tool(tool, cell.governor)
            assert tool.on_invoke_tool is not invoke
            if mode == "sync":
                answer = _loop_in_steps(asked, tool)
            else:
                answer = asyncio.run(_loop(asked, tool, streaming=mode == "streaming"))
        cell.check(answer, agent_span=False)


async def _ask(model: Model, given: list[Any], tool: FunctionTool, streaming: bool = False) -> list[Any]:
    settings, tracing = ModelSettings(), ModelTracing.DISABLED
    if not streaming:
        reply = await model.get_response(
            "tidy", given, settings, [tool], None, [], tracing,
            previous_response_id=None, conversation_id=None, prompt=None,
        )  # fmt: skip
        return reply.output
    events = model.stream_response(
        "tidy", given, settings, [tool], None, [], tracing,
        previous_response_id=None, conversation_id=None, prompt=None,
    )  # fmt: skip
    whole = [event.response.output async for event in events if event.type == "response.completed"]
    return whole[0]


async def _act(tool: FunctionTool, item: Any) -> dict[str, Any]:
    context: Any = ToolContext(None, tool_name=item.name, tool_call_id=item.call_id, tool_arguments=item.arguments)
    output = await tool.on_invoke_tool(context, item.arguments)
    return {"type": "function_call_output", "call_id": item.call_id, "output": str(output)}


async def _loop(model: Model, tool: FunctionTool, streaming: bool) -> str:
    given: list[Any] = [{"role": "user", "content": "tidy up"}]
    while True:
        output = await _ask(model, given, tool, streaming)
        calls = [item for item in output if item.type == "function_call"]
        if not calls:
            return output[-1].content[0].text
        for item in calls:
            given += [item.model_dump(exclude_none=True), await _act(tool, item)]


def _loop_in_steps(model: Model, tool: FunctionTool) -> str:
    given: list[Any] = [{"role": "user", "content": "tidy up"}]
    with asyncio.Runner() as loop:
        while True:
            output = loop.run(_ask(model, given, tool))
            calls = [item for item in output if item.type == "function_call"]
            if not calls:
                return output[-1].content[0].text
            for item in calls:
                given += [item.model_dump(exclude_none=True), loop.run(_act(tool, item))]
