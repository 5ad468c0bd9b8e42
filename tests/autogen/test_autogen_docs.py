"""What docs/how-to/frameworks.md and the example say holds: each snippet is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_autogen import uninstrument
from lgov_core.audit.verify import verify
from lgov_core.testing import ScriptedModelServer
from tests.autogen.autogen_parts import MODEL_INFO
from tests.cells import asks, says
from tests.docs.page_runner import page_text

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "02_autogen_agent"
LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")

POLICY = """
version: 1
name: docs
default: allow
rules:
  - {name: kept, tools: [erase], use: deny, with: {reason: nothing is erased}}
"""

erased: list[str] = []


def look(path: str) -> str:
    """Looks at a file."""
    return f"looked at {path}"


def erase(path: str) -> str:
    """Erases a file."""
    erased.append(path)
    return f"erased {path}"


def snippets() -> list[str]:
    return re.findall(
        r'^```python(?: title="agent.py")?\n(.*?)^```',
        page_text(f"{ROOT}/docs/how-to/frameworks.md#AutoGen"),
        re.M | re.S,
    )


async def run_agent(agent: Any) -> str:
    return (await agent.run(task="tidy up")).messages[-1].to_text()


async def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "work").mkdir()
    erased.clear()
    instrumented, client, workbench, coder, loaded, _ = snippets()
    asked = asks(("c1", "erase", {"path": "x"}))
    script = [
        asked,
        says("one"),
        asked,
        says("two"),
        says("```sh\necho hello\n```"),
        says("three"),
        asked,
        says("four"),
    ]
    with ScriptedModelServer(script) as server:
        names: dict[str, Any] = {
            "model": OpenAIChatCompletionClient(
                model="scripted", base_url=server.base_url, api_key="none", model_info=MODEL_INFO
            ),
            "look": look,
            "erase": erase,
            "look_tool": FunctionTool(look, description="Looks."),
            "erase_tool": FunctionTool(erase, description="Erases."),
        }
        exec(client, names)
        assert await run_agent(names["agent"]) == "one"
        exec(workbench, names)
        assert await run_agent(names["agent"]) == "two"
        exec(coder, names)
        assert await run_agent(names["coder"]) == "three"
        assert "hello" in str(server.requests[-1].body)
        names["agent"]._workbench[0].workbench._tools.clear()  # functions of a test cannot be written down
        exec(loaded, names)
        assert names["agent"].name == "clerk"
        try:
            exec(instrumented, names)
            tool: Any = names["erase_tool"]
            from autogen_core import CancellationToken

            assert "DENIED by policy kept" in await tool.run_json({"path": "x"}, CancellationToken())
        finally:
            uninstrument()
        assert await run_agent(names["agent"]) == "four"
    assert erased == []


async def test_the_team_is_an_agent_that_can_be_trained() -> None:
    names: dict[str, Any] = {}
    exec(snippets()[-1], names)
    with ScriptedModelServer(["ab 12", "fine"]) as server:
        resource, task = SimpleNamespace(model_api=server.base_url), SimpleNamespace(question="write")
        assert await names["team"](resource, task) == 0.4
        assert [request.body["model"] for request in server.requests] == ["tiny", "tiny"]


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
    assert "archivist hands over to caretaker" in done.stdout
    assert done.stdout.splitlines()[-1] == "files in the archive now: map.txt"


def test_the_example_keeps_its_files_with_lgov_run(tmp_path: Path) -> None:
    done = run_example(tmp_path, *LGOV, "run", "--audit", "audit.db", "--")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "files in the archive now: letters_1912.txt, letters_1913.txt, map.txt"
    assert "hands over" not in done.stdout
    assert "3 of my calls were refused" in done.stdout, "the model reads of the hand-over, too"
    assert "governed: autogen" in done.stderr
    assert "3 denied" in done.stderr
    assert verify(tmp_path / "audit.db").ok


def test_the_example_is_an_ordinary_program() -> None:
    text = (EXAMPLE / "main.py").read_text()
    assert "lgov" not in text
    assert len(text.splitlines()) <= 120


@pytest.mark.parametrize(
    "policy", ["not: [a policy", "version: 1\nname: x\nrules:\n  - {name: r, use: nothing-known}\n"]
)
def test_with_a_broken_policy_no_line_of_the_example_runs(policy: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text(policy)
    done = run_example(tmp_path, *LGOV, "run", "--policy", "broken.yaml", "--")
    assert done.returncode == 78
    assert done.stdout == ""
