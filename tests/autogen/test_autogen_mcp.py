"""MCP tools behind AutoGen's own client, which needs mcp 1: run in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.autogen.autogen_parts import WAYS
from tests.peers import SERVERS, PeerUnavailable, peer_python, run_there
from tests.slow import slow

pytestmark = slow  # installs packages into an environment of its own

NEEDED = (
    "autogen-agentchat==0.7.5",
    "autogen-ext[openai,mcp]==0.7.5",
    "mcp==1.30.0",
    "packaging",
    *SERVERS,
)


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return peer_python(*NEEDED)
    except PeerUnavailable as error:
        pytest.skip(str(error))


def check(python: Path, way: str, mode: str, folder: Path) -> None:
    done = run_there(python, "-m", "tests.autogen.mcp_program", way, mode, str(folder))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("done\n")


@pytest.mark.cell("autogen", "async", "MCP tool")
@pytest.mark.parametrize("way", WAYS)
def test_a_denied_mcp_tool_does_not_run(tmp_path: Path, python: Path, way: str) -> None:
    check(python, way, "async", tmp_path)


@pytest.mark.cell("autogen", "streaming", "MCP tool")
@pytest.mark.parametrize("way", WAYS)
def test_a_denied_mcp_tool_does_not_run_streamed(tmp_path: Path, python: Path, way: str) -> None:
    check(python, way, "streaming", tmp_path)


@pytest.mark.gap("autogen", "MCP session")
def test_single_tools_are_governed_and_sessions_are_a_known_gap(tmp_path: Path, python: Path) -> None:
    check(python, "single", "async", tmp_path)
