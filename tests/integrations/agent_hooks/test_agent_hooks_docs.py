"""The programs in docs/how-to/other-frameworks.md run, and its table is that of the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_hooks_conformance import APPLICABLE, RUNS, SKIPPED, VECTORS

from tests.docs.page_runner import page_text

TEXT = page_text(f"{Path(__file__).parents[3]}/docs/how-to/other-frameworks.md#AGENT-HOOKS")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def test_the_programs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (policy,) = blocks("yaml")
    (tmp_path / "policy.yaml").write_text(policy)
    programs = blocks("python")
    assert len(programs) == 2
    for number, program in enumerate(programs):
        exec(compile(program, f"docs/how-to/other-frameworks.md, program {number}", "exec"), {"__name__": "__main__"})
    assert (tmp_path / "audit.db").exists()


def test_the_sentence_on_conformance_is_what_is_tested() -> None:
    assert RUNS
    text = " ".join(TEXT.split())
    assert (
        f"Of its {VECTORS} vectors the {APPLICABLE} that apply pass; {max(SKIPPED.values())} are about documents"
        in text
    )
