"""The table of denials for LangChain: every mode and shape, by one line and by none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lc_cells import (
    bare_loop,
    erase_tool,
    handlers,
    instrumented,
    make_agent,
    make_agent_as_tool,
    make_graph,
    mcp_tools,
    note,
    run_graph,
)

from tests.cells import ANSWER, asks, open_cell, says

WAYS = pytest.mark.parametrize("way", ["explicit", "instrumented"])


def modes(shape: str) -> Any:
    """Every mode, marked as this shape's cell; streamed runs are both synchronous and asynchronous."""
    runs = [("sync", False), ("async", True), ("streaming", False), ("streaming", True)]
    return pytest.mark.parametrize(
        ("mode", "is_async"),
        [
            pytest.param(mode, is_async, id=f"{mode}-{is_async}", marks=pytest.mark.cell("langchain", mode, shape))
            for mode, is_async in runs
        ],
    )


@WAYS
@modes("agent-as-tool")
@pytest.mark.parametrize("denied", ["ask_eraser", "erase_file"])
def test_agent_as_tool(tmp_path: Path, mode: str, is_async: bool, way: str, denied: str) -> None:
    """The agent that is a tool is denied, or what it does itself is."""
    path = str(tmp_path / "precious.txt")
    ask = asks(("c1", "ask_eraser", {"task": "erase it"}))
    inner = [asks(("c2", "erase_file", {"path": path})), says("DENIED by policy cells/no-erasing, I was told.")]
    replies = [ask, *(inner if denied == "erase_file" else []), says(ANSWER)]
    with open_cell(tmp_path, *replies, denied=[denied]) as cell, instrumented(cell, way):
        eraser = make_agent(cell, way, mode, [erase_tool(cell, is_async=is_async)], name="eraser")
        agent = make_agent_as_tool(cell, way, mode, eraser)
        cell.check(run_graph(agent, mode, is_async=is_async), ran=["ask_eraser"] if denied == "erase_file" else [])
        if denied == "erase_file":
            assert "DENIED" in str(cell.server.requests[2].body["messages"][-1]), "the inner agent did not read it"
            spans = {span.span_id: span for span in cell.seen.spans}
            (eraser_run,) = [span for span in spans.values() if span.name == "invoke_agent eraser"]
            above = spans[eraser_run.parent_id or ""]
            assert above.name == "execute_tool ask_eraser"
            assert spans[above.parent_id or ""].name == "invoke_agent boss"


@WAYS
@modes("MCP tool")
def test_mcp_tool(tmp_path: Path, mode: str, is_async: bool, way: str) -> None:
    path = str(tmp_path / "precious.txt")
    both = asks(("c1", "erase_file", {"path": path}), ("c2", "read_file", {"path": path}))
    with open_cell(tmp_path, both, says(ANSWER)) as cell, instrumented(cell, way), mcp_tools() as tools:
        agent = make_agent(cell, way, mode, list(tools))
        cell.check(run_graph(agent, mode, is_async=is_async), ran=["read_file"])
        assert "precious" in str(cell.server.requests[-1].body["messages"]), (
            "the tool beside the denied one did not answer"
        )


@WAYS
@modes("hand-made loop")
def test_handmade_graph(tmp_path: Path, mode: str, is_async: bool, way: str) -> None:
    path = str(tmp_path / "precious.txt")
    both = asks(("c1", "erase_file", {"path": path}), ("c2", "note", {"text": "hello"}))
    with open_cell(tmp_path, both, says(ANSWER)) as cell, instrumented(cell, way):
        graph = make_graph(cell, way, mode, [erase_tool(cell), note])
        cell.check(run_graph(graph, mode, is_async=is_async, callbacks=handlers(cell, way)), ran=["note"])
        assert [span.name for span in cell.seen.spans if span.parent_id is None] == ["invoke_agent handmade"]


@modes("hand-made loop")
def test_bare_loop(tmp_path: Path, mode: str, is_async: bool) -> None:
    path = str(tmp_path / "precious.txt")
    both = asks(("c1", "erase_file", {"path": path}), ("c2", "note", {"text": "hello"}))
    with open_cell(tmp_path, both, says(ANSWER)) as cell, instrumented(cell, "instrumented"):
        answer = bare_loop(cell, mode, [erase_tool(cell, is_async=is_async), note], is_async=is_async)
        cell.check(answer, ran=["note"], agent_span=False)
        chats = [span for span in cell.seen.spans if span.name.startswith("chat")]
        assert len(chats) == len(cell.server.requests) == 2, "each model call is one span"
