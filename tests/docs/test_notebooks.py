"""The notebooks of the examples run from their first cell to their last."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "examples/notebooks"


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the cells of a notebook print, when it is run in ``folder``."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "lgov").write_text(f'#!/bin/sh\nexec {sys.executable} -m lgov_core "$@"\n')
    (programs / "lgov").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("TMPDIR", str(folder))
    for variable in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    done = NotebookClient(notebook, timeout=250, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def test_an_agent_is_governed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langchain")
    printed = executed("govern_an_agent.ipynb", tmp_path, monkeypatch)
    assert "The refund: paid\npaid: [120]\n" in printed
    assert "The refund: DENIED by policy no-refunds/deny: a person decides on refunds" in printed
    assert "paid: []\n" in printed
    assert "1 of 1 entr" in printed
    assert "ok: " in printed


def test_an_agent_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    printed = executed("train_on_cpu.ipynb", tmp_path, monkeypatch)
    found = re.search(r"first update ([\d.]+), last update ([\d.]+)", printed)
    assert found is not None, printed[-2000:]
    print(found[0])
    assert float(found[2]) > float(found[1]) + 0.1
