"""What docs/how-to/frameworks.md and the example say holds: each snippet is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from lgov_core.audit import AuditLog
from lgov_core.audit.verify import verify
from lgov_core.testing import ScriptedModelServer
from lgov_openai import uninstrument
from tests.cells import asks, says
from tests.docs.page_runner import page_text

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "04_plain_openai"
LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")
POLICY = """
version: 1
name: docs
default: allow
rules:
  - {name: kept, tools: [erase], use: deny, with: {reason: nothing is erased}}
"""


def snippets(place: Path | str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page_text(place), re.M | re.S)


def answer(client: openai.OpenAI) -> str | None:
    asked: Any = [{"role": "user", "content": "go"}]
    return client.chat.completions.create(model="m", messages=asked).choices[0].message.content


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(POLICY)
    instrumented, governed = snippets(f"{ROOT}/docs/how-to/frameworks.md#Plain openai")
    (example,) = snippets(EXAMPLE / "README.md")
    asked = asks(("c1", "erase", {"path": "x"}))
    with ScriptedModelServer([asked, says("one"), asked, says("two"), asked, says("three")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        names: dict[str, Any] = {"OpenAI": openai.OpenAI}
        exec(governed, names)
        assert answer(names["client"]) == "one"
        exec(example, names)
        assert answer(names["client"]) == "two"
        assert isinstance(names["governor"].audit, AuditLog)
        names["governor"].audit.close()
        try:
            exec(instrumented, names)
            assert answer(openai.OpenAI()) == "three"
        finally:
            uninstrument()
    assert verify(tmp_path / "audit.db").ok
    assert all("DENIED by policy kept" in str(server.requests[number].body) for number in (1, 3, 5))


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
    assert "model: I answered the letter. All is done." in done.stdout
    assert done.stdout.splitlines()[-2:] == [
        "sent to: hill@example.org, someone@elsewhere.test",
        "files now: letter.txt",
    ]


def test_the_example_does_none_with_lgov_run(tmp_path: Path) -> None:
    done = run_example(tmp_path, *LGOV, "run", "--audit", "audit.db", "--")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["sent to: hill@example.org", "files now: letter.txt, marks.txt"]
    assert "model: I answered the letter. 2 of my calls were refused, so I left it at that." in done.stdout
    assert "delete_file" not in done.stdout, "the program got a denied call"
    assert "openai" in done.stderr
    assert "2 denied" in done.stderr
    assert verify(tmp_path / "audit.db").ok


def test_the_example_is_an_ordinary_program() -> None:
    text = (EXAMPLE / "main.py").read_text()
    assert "lgov" not in text
    assert len(text.splitlines()) <= 120
