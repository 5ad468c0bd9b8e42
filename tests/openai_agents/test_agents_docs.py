"""What docs/how-to/frameworks.md and the example say holds: each snippet is run, and so is the example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIProvider, function_tool, set_trace_processors
from cells import asks, says
from cells_agents import chat_model, run

from lgov_core.audit.verify import verify
from lgov_core.testing import ScriptedModelServer
from lgov_openai_agents import uninstrument
from tests.docs.page_runner import page_text

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "03_openai_agents"
LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")
POLICY = """
version: 1
name: docs
default: allow
rules:
  - {name: kept, tools: [erase], use: deny, with: {reason: nothing is erased}}
"""


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(POLICY)
    text = page_text(f"{ROOT}/docs/how-to/frameworks.md#OpenAI Agents SDK")
    instrumented, one_line, nested, parts = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    erased: list[str] = []

    @function_tool
    def erase(path: str) -> str:
        """Erases."""
        erased.append(path)
        return "erased"

    wanted = asks(("c1", "erase", {"path": "x"}))
    look = asks(("c2", "look", {"path": "x"}))
    replies = [wanted, says("one"), asks(("c3", "tidy", {"input": "go"})), wanted, says("two"), says("three")]
    with ScriptedModelServer([*replies, look, says("four"), wanted, says("five")]) as server:
        model = chat_model(server)
        agent = Agent(name="a", model=model, tools=[erase])
        names: dict[str, Any] = {"agent": agent, "model": model, "Agent": Agent}
        names["provider"] = OpenAIProvider(base_url=server.base_url, api_key="none", use_responses=False)
        exec(one_line, names)
        assert names["result"].final_output == "one"
        exec(nested, names)
        assert names["result"].final_output == "three"
        try:
            exec(parts, names)
            assert names["result"].final_output == "four"
            exec(instrumented, names)
            assert run("sync", agent, "go").final_output == "five"
        finally:
            uninstrument()
            set_trace_processors([])
        assert all("DENIED by policy kept" in str(server.requests[at].body) for at in (1, 4, 9))
        assert "looked at x" in str(server.requests[7].body)
    assert erased == []


def run_example(folder: Path, *before: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
    return subprocess.run(
        [*before, sys.executable if not before else "python", str(EXAMPLE / "main.py")],
        cwd=folder,
        env={**clean, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_example_does_harm_without_lgov(tmp_path: Path) -> None:
    """The control: what the other test prevents would happen."""
    done = run_example(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "-- cashier --" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["bookings now: room_1: Ada, room_3: Emmy", "till now: 400 euros"]


def test_the_example_is_governed_by_lgov_run(tmp_path: Path) -> None:
    done = run_example(tmp_path, *LGOV, "run", "--audit", "audit.db", "--")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "bookings now: room_1: Ada, room_2: Blaise, room_3: Emmy",
        "till now: 900 euros",
    ]
    assert "-- cashier --" not in done.stdout
    assert "2 of my calls were refused" in done.stdout, "the model reads of the hand-over, too"
    assert "governed: openai, openai-agents; decisions: " in done.stderr
    assert "openai-agents: evaluated 1 input, 4 model calls" in done.stderr
    assert "openai: judged" not in done.stderr, "what the SDK asks through the client is judged once"
    assert "2 denied" in done.stderr
    assert verify(tmp_path / "audit.db").ok


def test_the_example_is_an_ordinary_program() -> None:
    text = (EXAMPLE / "main.py").read_text()
    assert "lgov" not in text
    assert len(text.splitlines()) <= 120


@pytest.mark.parametrize("policy", ["not: [a policy", "version: 1\nname: x\nrules:\n  - {name: r, use: no-such}\n"])
def test_with_a_broken_policy_no_line_of_the_example_runs(policy: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text(policy)
    done = run_example(tmp_path, *LGOV, "run", "--policy", "broken.yaml", "--")
    assert done.returncode == 78
    assert done.stdout == ""
