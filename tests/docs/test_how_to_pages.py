"""The how-to pages with commands do what they say, typed as written."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lgov_core.store import open_store
from lgov_core.testing import ScriptedModelServer, ScriptedReply, call
from lgov_core.train.settings import load_train_settings
from tests.docs.page_runner import CLEAN, follow, read_page

ROOT = Path(__file__).parents[2]
LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")


def desk(body: Mapping[str, Any]) -> ScriptedReply | str:
    """Reads the order, tries to pay, and says what came back."""
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if len(results) < 2:
        return [call("read_order", number=7), call("refund", number=7, euros=120)][len(results)]
    return "You have been paid." if results[1] == "paid" else f"I could not pay you: {results[1]}"


@pytest.fixture
def in_shop(tmp_path: Path) -> Callable[[str], list[str]]:
    """Follows a page beside the agent of the openai quickstart."""
    pytest.importorskip("openai")
    files, _ = read_page(f"{ROOT}/docs/start/quickstart.md#Five steps", tab="openai client")
    for name in ("agent.py", "policy.yaml"):
        (tmp_path / name).write_text(files[name])

    def following(name: str) -> list[str]:
        with ScriptedModelServer(desk) as model:
            environment = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"}
            return follow(ROOT / name, tmp_path, environment)

    return following


def test_a_call_is_approved_as_the_page_says(in_shop: Callable[[str], list[str]]) -> None:
    assert ["PAID" in one for one in in_shop("docs/how-to/approvals.md")] == [False, False, True, False]


def mailer(body: Mapping[str, Any]) -> ScriptedReply | str:
    """Sends a mail to Bob, whoever asks, and says what came back."""
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    return results[-1] if body["messages"][-1]["role"] == "tool" else call("send_mail", to="bob@example.org", text="hi")


def test_conversations_of_a_server_are_apart_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langchain")
    files, _ = read_page(ROOT / "docs/how-to/server.md", {})
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    program = """
from starlette.testclient import TestClient
from app import app
from scoped import answer
with TestClient(app) as client:
    for conversation, text in (("1", "Write to bob@example.org"), ("2", "Write to Bob"), ("1", "Write to him again")):
        said = {"user": "ada", "text": text}
        print(client.post(f"/chat/{conversation}", json=said).json()["answer"][:23])
    print(client.portal.call(answer, "ada", "3", "Write to bob@example.org")[:23])
    print(client.portal.call(answer, "eve", "1", "Write to Bob")[:6])
"""
    (tmp_path / "serve.py").write_text(program)
    with ScriptedModelServer(mailer) as model:
        environment = {**CLEAN, "OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none", "PYTHONWARNINGS": "ignore"}
        command = [*LGOV, "run", "--", "python", "serve.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout.splitlines()
    assert [line.startswith("DENIED") for line in said] == [False, True, False, False, True], done.stderr
    assert said[0] == said[3] == "sent to bob@example.org"
    assert "2 conversations shared one rollout" in done.stderr


def test_a_test_asks_for_decisions_as_the_page_says(in_shop: Callable[[str], list[str]]) -> None:
    in_shop("docs/how-to/test-a-policy.md#Test an agent under its policy")


def test_shadow_mode_is_left_as_the_page_says(in_shop: Callable[[str], list[str]]) -> None:
    assert ["PAID" in one for one in in_shop("docs/how-to/test-a-policy.md#From shadow mode to enforcement")] == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_a_program_of_agentmesh_runs_as_the_page_says(tmp_path: Path) -> None:
    follow(ROOT / "docs/reference/rl-governance.md#From agentmesh-lightning and agent-os", tmp_path, {})


def test_a_migrated_agent_returns_its_rewards_by_name() -> None:
    pytest.importorskip("openai")
    names: dict[str, Any] = {"__name__": "migrated"}
    files, _ = read_page(ROOT / "docs/reference/rl-governance.md", {})
    exec(files["migrated.py"], names)
    with ScriptedModelServer(["4?", "5"]) as model:
        resource, task = SimpleNamespace(model_api=model.base_url), SimpleNamespace(question="2 + 3?", answer="5")
        assert names["agent"](resource, task) == {"task": 1.0, "draft": 0.1}


def test_a_framework_is_added_as_the_page_says(tmp_path: Path) -> None:
    page = ROOT / "docs/how-to/other-frameworks.md#Add a framework"
    files, _ = read_page(page)
    points = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]["lgov"]
    for name in ("workbench", "lgov_workbench"):
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lgov]\n" + "".join(f"{key} = {value}\n" for key, value in points.items()))
    follow(page, tmp_path, {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})


def test_only_the_chosen_agent_is_trained(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("openai")
    follow(
        ROOT / "docs/how-to/training.md#Train some of several agents", tmp_path, {"LGOV_CACHE": str(tmp_path / "cache")}
    )
    with closing(open_store(tmp_path / "runs/team/store.sqlite")) as store:
        assert {one.agent for one in store.calls()} == {"writer", "checker"}
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = parquet.read_table(next((tmp_path / "runs/team/transitions").glob("*.parquet"))).to_pylist()
    assert {row["agent"] for row in rows} == {"writer"}


@pytest.mark.parametrize("name", ["cpu.yaml", "gpu.yaml", "cluster.yaml"])
def test_each_place_has_settings_that_load(name: str, tmp_path: Path) -> None:
    files, _ = read_page(ROOT / "docs/how-to/scale.md", {})
    (tmp_path / name).write_text(files[name])
    settings = load_train_settings(tmp_path / name, environ={})
    assert settings.model.name
    assert settings.training.steps
