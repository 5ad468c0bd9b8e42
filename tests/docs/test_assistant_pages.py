"""What coding assistants read is right: its commands are run here as written, and its links lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lgov_core.testing import ScriptedModelServer, ScriptedReply, call
from tests.docs.page_runner import follow, read_page

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "docs/skill/SKILL.md"


def clerk(body: Mapping[str, Any]) -> ScriptedReply | str:
    """Reads the order, pays, and says so."""
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    return (
        "Done."
        if len(results) == 2
        else [call("read_order", number=7), call("refund", number=7, euros=120)][len(results)]
    )


def test_the_skill_puts_an_agent_under_policy(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    files, _ = read_page(f"{ROOT}/docs/start/quickstart.md#Five steps", tab="openai client")
    (tmp_path / "agent.py").write_text(files["agent.py"])
    with ScriptedModelServer(clerk) as model:
        printed = follow(SKILL, tmp_path, {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"})
    assert "PAID 120 euros" in printed[0]
    assert "refund" in (tmp_path / "policy.yaml").read_text()
    assert "PAID 120 euros" in printed[-1]  # what was suggested permits what was recorded
    assert "intact" in printed[-1] or "verif" in printed[-1]


def test_the_commands_of_the_other_pages_are_those_of_the_skill() -> None:
    _, steps = read_page(SKILL, {})
    run = {line for step in steps for line in step.commands.splitlines()}
    _, short = read_page(ROOT / "AGENTS.md", {})
    lines = [line for step in short for line in step.commands.splitlines()]
    assert len(lines) == 5
    assert set(lines) <= run
    assert "```" not in (ROOT / "llms.txt").read_text("utf-8")


@pytest.mark.parametrize("name", ["AGENTS.md", "llms.txt", "docs/skill/SKILL.md"])
def test_every_link_leads_to_a_page(name: str) -> None:
    path = ROOT / name
    links = re.findall(r"\]\(([^)#]+)", path.read_text("utf-8"))
    assert links
    assert [link for link in links if not (path.parent / link).is_file()] == []
