"""Unedited agents in a box: governed as without one, and their models reached."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lgov_core.audit import AuditLog
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from tests.confine.conftest import Workspace

EXAMPLES = Path(__file__).parents[2] / "examples"

AGENT = """
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def touch(name: str) -> str:
    "Makes a file."
    open(name, "w")
    return "made"

agent = create_agent(ChatOpenAI(model="scripted", max_retries=0), [touch], name="clerk")
print(agent.invoke({"messages": [("user", "go")]})["messages"][-1].text)
"""


def test_an_agent_reaches_its_model_and_its_files(workspace: Workspace, tmp_path: Path) -> None:
    script = [
        ScriptedReply(tool_calls=[ScriptedCall("touch", {"name": "inside"}, "c1")]),
        ScriptedReply(tool_calls=[ScriptedCall("touch", {"name": str(tmp_path / "outside")}, "c2")]),
        "done",
    ]
    with ScriptedModelServer(script) as model:
        ran = workspace.run(AGENT, env={"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"})
    assert ran.output == "done\n", ran.errors
    assert (workspace.folder / "inside").exists()
    assert not (tmp_path / "outside").exists()
    log = AuditLog(workspace.folder / ".lgov" / "audit.db")
    acts = [(entry.kind, entry.effect or entry.status) for entry in log.entries() if entry.name == "touch"]
    log.close()
    assert acts[:2] == [("decision", "allow"), ("outcome", "ok")]
    assert acts.count(("outcome", "ok")) == 2


@pytest.mark.parametrize("example", ["01_langchain_agent", "02_autogen_agent", "03_openai_agents", "04_plain_openai"])
def test_the_examples_run_in_a_box(example: str, workspace: Workspace) -> None:
    shutil.copytree(EXAMPLES / example, workspace.folder, dirs_exist_ok=True)
    policy = workspace.folder / "policy.yaml"
    policy.write_text(policy.read_text() + "\nconfine: {preset: workspace}\n")
    ran = workspace.run((EXAMPLES / example / "main.py").read_text())
    assert ran.status == 0, ran.errors
    report = json.loads(ran.errors.splitlines()[-2])["report"]
    assert report["denied"] > 0
