"""What docs/how-to/frameworks.md and the example say holds: each snippet is run, and governs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from scripted import ModelServer, calls, says

from lgov_langchain import uninstrument
from tests.docs.page_runner import page_text

ROOT = Path(__file__).parents[2]
POLICY = """
version: 1
default: allow
rules:
  - name: no-erasing
    tools: [erase]
    use: deny
    with: {reason: nothing is erased here}
"""


def snippets() -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", page_text(f"{ROOT}/docs/how-to/frameworks.md#LangChain and LangGraph"), re.M | re.S
    )


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat: Any) -> dict[str, Any]:
    """What the snippets take for granted: a model, two tools, a policy file."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    erased: list[str] = []

    @tool
    def erase(path: str) -> str:
        """Erases."""
        erased.append(path)
        return "erased"

    @tool
    def look(path: str) -> str:
        """Looks."""
        return f"{path} is there"

    return {"model": chat, "look": look, "erase": erase, "erased": erased}


def both(server: ModelServer) -> None:
    server.play(calls(("c1", "erase", {"path": "x"}), ("c2", "look", {"path": "x"})), says("done"))


def governs(server: ModelServer, names: dict[str, Any]) -> None:
    results = server.last_results()
    assert "no-erasing" in results["c1"]
    assert results["c2"] == "x is there"
    assert names["erased"] == []


def test_the_snippets(surroundings: dict[str, Any], model_server: ModelServer) -> None:
    instrumentation, middleware, graph, handler = snippets()
    question: Any = {"messages": [("user", "Tidy up.")]}
    names = dict(surroundings)
    try:
        exec(instrumentation, names)
        both(model_server)
        import langchain.agents

        langchain.agents.create_agent(names["model"], [names["look"], names["erase"]]).invoke(question)
        governs(model_server, names)
    finally:
        uninstrument()
    names = dict(surroundings)
    for code in (middleware, graph):
        exec(code, names)
        both(model_server)
        names["agent"].invoke(question)
        governs(model_server, names)
    both(model_server)
    exec(handler, names)
    governs(model_server, names)


README = (ROOT / "examples" / "01_langchain_agent" / "README.md").read_text()
FOLDER = ROOT / "examples" / "01_langchain_agent"


def run_example(*command: str, folder: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPENAI_")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_without_lgov_does_the_damage(tmp_path: Path) -> None:
    out = run_example(str(FOLDER / "main.py"), folder=tmp_path)
    assert "rows in orders now: 0" in out
    assert "lgov" not in (FOLDER / "main.py").read_text()


def test_the_example_by_no_line(tmp_path: Path) -> None:
    command = ["-m", "lgov_core", "run", "--", "python", str(FOLDER / "main.py")]
    out = run_example(*command, folder=tmp_path)
    assert "rows in orders now: 5" in out
    assert "invoices.txt" in out


def test_the_example_by_one_line(tmp_path: Path) -> None:
    """The lines of the README in a copy of the example."""
    for name in ("main.py", "offline_model.py", "policy.yaml"):
        (tmp_path / name).write_text((FOLDER / name).read_text())
    (snippet,) = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    *before, line = snippet.strip().splitlines()
    assert "middleware=[LgovMiddleware(governor)]" in line
    program = (tmp_path / "main.py").read_text()
    made = 'prompt="You look after the shop\'s database."\n'
    assert made in program
    program = program.replace(made, made.rstrip("\n") + ", middleware=[LgovMiddleware(governor)]\n")
    head, entry, tail = program.partition("def main()")
    (tmp_path / "main.py").write_text(head + "\n".join(before) + "\n\n\n" + entry + tail)
    out = run_example(str(tmp_path / "main.py"), folder=tmp_path)
    assert "rows in orders now: 5" in out
    assert "invoices.txt" in out
