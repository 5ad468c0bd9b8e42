"""The cells of the table of denials: AutoGen, asynchronous and streaming, in both ways of governing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.models import AssistantMessage, CreateResult, FunctionExecutionResult, UserMessage
from autogen_core.models import FunctionExecutionResultMessage as Results

from tests.autogen.autogen_parts import WAYS, answer_of, as_tool, governed
from tests.cells import ANSWER, Cell, asks, open_cell, says


def eraser(cell: Cell) -> Any:
    def erase_file(path: str) -> str:
        """Erases a file."""
        return cell.erase(path)

    return erase_file


async def agent_tool_cell(folder: Path, way: str, stream: bool) -> None:
    """The agent behind the tool would erase the file; it is not run."""
    path = str(folder / "precious.txt")
    with open_cell(
        folder, asks(("c1", "cleaner", {"task": f"erase {path}"})), says(ANSWER), denied=["cleaner"]
    ) as cell:
        with governed(way, cell.governor, cell.base_url) as parts:
            inner = parts.agent("cleaner", [eraser(cell)], stream=stream)
            boss = parts.agent("boss", [AgentTool(inner)], stream=stream)
            answer = await answer_of(boss, "tidy up", stream=stream)
        (decision,) = cell.seen.decisions()
        assert decision.action.kind == "agent"
        cell.check(answer, agent_span=parts.instrumented)


@pytest.mark.parametrize("stream", [False, True], ids=["async", "streaming"])
@pytest.mark.parametrize("way", WAYS)
async def test_the_tool_of_the_agent_behind_a_tool_is_denied(tmp_path: Path, way: str, stream: bool) -> None:
    """The inner agent's model reads the denial, says so, and the outer run goes on."""
    path = str(tmp_path / "precious.txt")
    told = "It told me: DENIED by policy cells/no-erasing."
    replies = [
        asks(("c1", "cleaner", {"task": f"erase {path}"})),
        asks(("c2", "erase_file", {"path": path})),
        says(told),
        says(ANSWER),
    ]
    with open_cell(tmp_path, *replies) as cell:
        with governed(way, cell.governor, cell.base_url) as parts:
            inner = parts.agent("cleaner", [eraser(cell)], stream=stream)
            boss = parts.agent("boss", [AgentTool(inner)], stream=stream)
            if stream:
                events = [event async for event in boss.run_stream(task="tidy up")]
                answer = events[-1].messages[-1].to_text()
                assert any(getattr(event, "source", "") == "cleaner" for event in events), "inner events are lost"
            else:
                answer = (await boss.run(task="tidy up")).messages[-1].to_text()
        assert "DENIED" in json.dumps(cell.server.requests[2].body), "the inner model did not read the denial"
        kinds = {one.action.name: (one.action.kind, one.action.agent) for one in cell.seen.decisions()}
        assert kinds == {"cleaner": ("agent", "boss"), "erase_file": ("function", "cleaner")}
        cell.check(answer, ran=["cleaner"], agent_span=parts.instrumented)
        spans = {span.span_id: span for span in cell.seen.spans}
        (outer,) = [span for span in spans.values() if span.name == "execute_tool cleaner"]
        (denied,) = [span for span in spans.values() if span.name == "execute_tool erase_file"]
        above = [denied.parent_id]
        while (parent := spans.get(str(above[-1]))) is not None:
            above.append(parent.parent_id)
        assert outer.span_id in above, "the inner call does not hang below the tool that made it"


@pytest.mark.cell("autogen", "async", "agent-as-tool")
@pytest.mark.parametrize("way", WAYS)
async def test_a_denied_agent_as_tool_does_not_run(tmp_path: Path, way: str) -> None:
    await agent_tool_cell(tmp_path, way, False)


@pytest.mark.cell("autogen", "streaming", "agent-as-tool")
@pytest.mark.parametrize("way", WAYS)
async def test_a_denied_agent_as_tool_does_not_run_streamed(tmp_path: Path, way: str) -> None:
    await agent_tool_cell(tmp_path, way, True)


async def hand_made_cell(folder: Path, way: str, stream: bool) -> None:
    """A loop that the program wrote itself: the client, and ``run_json`` of its tools."""
    path = str(folder / "precious.txt")
    replies = [asks(("c1", "erase_file", {"path": path})), says(ANSWER)]
    with open_cell(folder, *replies) as cell:
        with governed(way, cell.governor, cell.base_url) as parts:
            client, tool = parts.client(), as_tool(eraser(cell))
            messages: list[Any] = [UserMessage(content="tidy up", source="user")]
            while True:
                if stream:
                    chunks = [chunk async for chunk in client.create_stream(messages, tools=[tool])]
                    reply = chunks[-1]
                    assert isinstance(reply, CreateResult)
                else:
                    reply = await client.create(messages, tools=[tool])
                messages.append(AssistantMessage(content=reply.content, source="loop"))
                if isinstance(reply.content, str):
                    break
                results: list[FunctionExecutionResult] = []
                for call in reply.content:
                    value = await tool.run_json(json.loads(call.arguments), CancellationToken(), call_id=call.id)
                    text = tool.return_value_as_string(value)
                    results.append(FunctionExecutionResult(content=text, name=call.name, call_id=call.id))
                messages.append(Results(content=results))
        cell.check(reply.content, agent_span=False)


@pytest.mark.cell("autogen", "async", "hand-made loop")
@pytest.mark.parametrize("way", WAYS)
async def test_a_hand_made_loop_is_governed(tmp_path: Path, way: str) -> None:
    await hand_made_cell(tmp_path, way, False)


@pytest.mark.cell("autogen", "streaming", "hand-made loop")
@pytest.mark.parametrize("way", WAYS)
async def test_a_hand_made_loop_is_governed_streamed(tmp_path: Path, way: str) -> None:
    await hand_made_cell(tmp_path, way, True)
