"""The table of denials for plain openai: each cell by the one line, and instrumented without a line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lgov_openai import govern_client, instrument, uninstrument
from tests.cells import ANSWER, Cell, asks, open_cell, says
from tests.openai import openai_programs as programs

WAYS = ("one line", "instrumented")

SYNC_CHAT = (programs.chat_parse, programs.chat_raw, programs.chat_streaming_response)
SYNC_RESPONSES = (programs.response_create, programs.response_parse, programs.response_beta)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return request.param


@contextmanager
def governed(way: str, cell: Cell) -> Iterator[Callable[[Any], Any]]:
    """Gives a function that makes a client governed; instrumented, there is nothing to do for it."""
    if way == "one line":
        yield lambda client: govern_client(client, cell.governor)
        return
    instrument(cell.governor)
    try:
        yield lambda client: client
    finally:
        uninstrument()


def one_call(cell_path: Path) -> Any:
    return asks(("call_1", "erase_file", {"path": str(cell_path / "precious.txt")}))


def two_calls(cell_path: Path) -> Any:
    path = str(cell_path / "precious.txt")
    return asks(("call_1", "look", {"path": path}), ("call_2", "erase_file", {"path": path}))


def tools_of(cell: Cell) -> programs.Tools:
    return {"erase_file": cell.erase, "look": lambda path: f"{path} is there"}


# ---------------------------------------------------------------------- one tool


@pytest.mark.cell("openai", "sync", "tool")
@pytest.mark.parametrize("ask", SYNC_CHAT, ids=lambda ask: ask.__name__)
def test_chat(ask: Any, way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = programs.chat_loop(ask, on(programs.client(cell.base_url)), tools_of(cell))
        cell.check(answer, agent_span=False)


@pytest.mark.cell("openai", "sync", "tool")
def test_the_clients_own_tool_runner(way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        cell.check(programs.run_tools(on(programs.client(cell.base_url)), tools_of(cell)), agent_span=False)


@pytest.mark.cell("openai", "async", "tool")
async def test_the_async_clients_own_tool_runner(way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = await programs.arun_tools(on(programs.aclient(cell.base_url)), tools_of(cell))
        cell.check(answer, agent_span=False)


@pytest.mark.cell("openai", "streaming", "tool")
@pytest.mark.parametrize("ask", [programs.chat_stream_helper], ids=lambda ask: ask.__name__)
def test_streamed_chat(ask: Any, way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = programs.chat_loop(ask, on(programs.client(cell.base_url)), tools_of(cell))
        cell.check(answer, agent_span=False)


@pytest.mark.cell("openai", "streaming", "tool")
@pytest.mark.parametrize("ask", [programs.achat_stream_helper], ids=lambda ask: ask.__name__)
async def test_async_streamed_chat(ask: Any, way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        client = on(programs.aclient(cell.base_url))
        cell.check(await programs.achat_loop(ask, client, tools_of(cell)), agent_span=False)


@pytest.mark.cell("openai", "streaming", "tool")
def test_the_streaming_tool_runner_starts_no_denied_call(way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = programs.run_tools(on(programs.client(cell.base_url)), tools_of(cell), stream=True)
        cell.check(answer, agent_span=False)


# ---------------------------------------------------------------------- two at once, one of them denied


@pytest.mark.cell("openai", "sync", "parallel tools")
@pytest.mark.parametrize("ask", SYNC_CHAT, ids=lambda ask: ask.__name__)
def test_parallel_chat(ask: Any, way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, two_calls(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = programs.chat_loop(ask, on(programs.client(cell.base_url)), tools_of(cell))
        cell.check(answer, ran=["look"], agent_span=False)


@pytest.mark.cell("openai", "sync", "parallel tools")
@pytest.mark.parametrize("chained", [False, True], ids=["own transcript", "the server's transcript"])
@pytest.mark.parametrize("ask", SYNC_RESPONSES, ids=lambda ask: ask.__name__)
def test_parallel_responses(ask: Any, chained: bool, way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, two_calls(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = programs.response_loop(ask, on(programs.client(cell.base_url)), tools_of(cell), chained=chained)
        cell.check(answer, ran=["look"], agent_span=False)


@pytest.mark.cell("openai", "sync", "parallel tools")
def test_parallel_in_the_tool_runner(way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, two_calls(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = programs.run_tools(on(programs.client(cell.base_url)), tools_of(cell))
        cell.check(answer, ran=["look"], agent_span=False)


@pytest.mark.cell("openai", "streaming", "parallel tools")
@pytest.mark.parametrize("ask", [programs.chat_stream_helper], ids=lambda ask: ask.__name__)
def test_streamed_parallel_chat(ask: Any, way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, two_calls(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = programs.chat_loop(ask, on(programs.client(cell.base_url)), tools_of(cell))
        cell.check(answer, ran=["look"], agent_span=False)


# ---------------------------------------------------------------------- the tools of an MCP server


@pytest.mark.cell("openai", "sync", "MCP tool")
def test_mcp_tool_in_a_synchronous_loop(way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        client = on(programs.client(cell.base_url))

        def loop(call: Any, runs: asyncio.AbstractEventLoop) -> str:
            def erase_file(path: str) -> str:
                asked = call("erase_file", json.dumps({"path": path}))
                return asyncio.run_coroutine_threadsafe(asked, runs).result(30)

            return programs.chat_loop(programs.chat_create, client, {"erase_file": erase_file})

        async def run(call: Any) -> str:
            return await asyncio.to_thread(loop, call, asyncio.get_running_loop())

        cell.check(asyncio.run(programs.with_mcp(run)), agent_span=False)


@pytest.mark.cell("openai", "async", "MCP tool")
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_mcp_tool(api: str, way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        client = on(programs.aclient(cell.base_url))
        loop: Any = (programs.achat_loop, programs.achat_create) if api == "chat" else (
            programs.aresponse_loop, programs.aresponse_create
        )  # fmt: skip
        answer = await programs.with_mcp(lambda call: loop[0](loop[1], client, call))
        cell.check(answer, agent_span=False)


@pytest.mark.cell("openai", "streaming", "MCP tool")
async def test_mcp_tool_on_a_stream(way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        client = on(programs.aclient(cell.base_url))
        answer = await programs.with_mcp(lambda call: programs.achat_loop(programs.achat_chunks, client, call))
        cell.check(answer, agent_span=False)


# ---------------------------------------------------------------------- loops of one's own on the Responses API


@pytest.mark.cell("openai", "sync", "hand-made loop")
@pytest.mark.parametrize("chained", [False, True], ids=["own transcript", "the server's transcript"])
@pytest.mark.parametrize("ask", SYNC_RESPONSES, ids=lambda ask: ask.__name__)
def test_responses(ask: Any, chained: bool, way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = programs.response_loop(ask, on(programs.client(cell.base_url)), tools_of(cell), chained=chained)
        cell.check(answer, agent_span=False)


@pytest.mark.cell("openai", "async", "hand-made loop")
async def test_async_responses(way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, one_call(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        client = on(programs.aclient(cell.base_url))
        answer = await programs.aresponse_loop(programs.aresponse_create, client, tools_of(cell))
        cell.check(answer, agent_span=False)


@pytest.mark.cell("openai", "streaming", "hand-made loop")
@pytest.mark.parametrize("ask", [programs.response_events, programs.response_stream_helper], ids=lambda a: a.__name__)
@pytest.mark.parametrize("calls", [one_call, two_calls], ids=["one", "parallel"])
def test_streamed_responses(ask: Any, calls: Any, way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, calls(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        answer = programs.response_loop(ask, on(programs.client(cell.base_url)), tools_of(cell))
        cell.check(answer, ran=["look"] if calls is two_calls else [], agent_span=False)


@pytest.mark.cell("openai", "streaming", "hand-made loop")
async def test_async_streamed_responses(way: str, tmp_path: Path) -> None:
    with open_cell(tmp_path, two_calls(tmp_path), says(ANSWER)) as cell, governed(way, cell) as on:
        client = on(programs.aclient(cell.base_url))
        answer = await programs.aresponse_loop(programs.aresponse_events, client, tools_of(cell))
        cell.check(answer, ran=["look"], agent_span=False)
