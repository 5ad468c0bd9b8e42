"""lgov init: what it writes runs, and denies what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from lgov_runs import lgov_run, write

from lgov_core import open_store
from lgov_core.commands import cli
from lgov_core.policies import load_policy_file
from lgov_core.settings import load_settings
from lgov_core.testing import ScriptedModelServer, call

FRAMEWORKS = ["langchain", "openai-agents", "autogen", "openai"]


def lgov(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments], catch_exceptions=False)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_agent_of_init_runs_without_a_key(framework: str, tmp_path: Path) -> None:
    assert lgov("init", str(tmp_path / "new"), "--framework", framework).exit_code == 0
    done = lgov_run(tmp_path / "new", "python", "agent.py")
    assert done.returncode == 0, done.stderr
    assert "the notes: plans, old" in done.stdout, "nothing was deleted"
    assert "lgov: denied: delete_note, by no-note-is-deleted/deny: notes are not deleted by agents (aud_" in done.stderr
    assert (tmp_path / "new" / ".traces" / "traces.db").is_file()


def test_the_agent_of_init_uses_the_endpoint_that_is_named(tmp_path: Path) -> None:
    lgov("init", str(tmp_path), "--framework", "openai")
    with ScriptedModelServer([call("read_note", name="plans"), "They say: Friday."]) as model:
        done = lgov_run(tmp_path, "python", "agent.py", "Read", "them", env={"OPENAI_BASE_URL": model.base_url})
    assert "agent: They say: Friday." in done.stdout
    assert model.requests[1].body["messages"][-1]["content"] == "Ship on Friday."


def test_init_names_the_two_next_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = lgov("init").stdout
    assert said.splitlines()[-3:] == [
        "next:",
        "  lgov run -- python agent.py",
        "  lgov audit show --denied",
    ]


def test_init_keeps_what_is_there_and_names_what_writes_a_policy_for_it(tmp_path: Path) -> None:
    write(tmp_path, "print(1)")
    write(tmp_path, "# mine", "lgov.toml")
    refused = lgov("init", str(tmp_path))
    assert refused.exit_code == 1
    assert "lgov init -- python" in refused.stderr
    write(tmp_path, "version: 1\nrules: [{use: allow}]", "policy.yaml")
    assert json.loads(lgov("init", str(tmp_path), "--json").stdout) == {
        "wrote": [str(tmp_path / folder / ".gitignore") for folder in (".lgov", ".traces")],
        "tools": [],
    }
    assert (tmp_path / "agent.py").read_text() == "print(1)"
    assert (tmp_path / "lgov.toml").read_text() == "# mine"


def test_the_folder_of_records_is_there_and_not_for_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lgov("init", "--framework", "openai")
    open_store(load_settings().store or "").close()  # as lgov serve opens it before any run
    assert [(tmp_path / folder / ".gitignore").read_text() for folder in (".lgov", ".traces")] == ["*\n"] * 2


def test_the_agent_of_init_runs_in_a_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lgov("init", "--framework", "openai")
    hidden = lgov_run(tmp_path, "python", "agent.py", options=("--store", ".lgov/traces.db", "--confine"))
    assert hidden.returncode == 78
    assert "the trace store cannot be in it" in hidden.stderr
    for options in (("--confine",), ("--confine", "--preset", "workspace")):
        done = lgov_run(tmp_path, "python", "agent.py", options=options)
        if "namespace" in done.stderr and done.returncode == 78:
            pytest.skip(f"no box here: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stderr
        assert "denied: delete_note" in done.stderr


def test_a_shadow_run_becomes_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lgov("init", "--framework", "openai")
    policy = (tmp_path / "policy.yaml").read_text().replace("mode: enforce", "mode: shadow")
    (tmp_path / "policy.yaml").write_text(policy.replace("tools: [delete_note]", "tools: [drop_note]"))
    assert lgov_run(tmp_path, "python", "agent.py").returncode == 0
    done = lgov("policy", "suggest", ".traces/traces.db", "--output", "made.yaml")
    assert done.exit_code == 0, done.output
    rules = {rule.name for rule in load_policy_file(tmp_path / "made.yaml").rules}
    assert {"list_notes", "delete_note"} <= rules


def test_run_without_a_policy_names_what_writes_one(tmp_path: Path) -> None:
    done = lgov_run(tmp_path, "python", write(tmp_path, "print(1)"))
    assert (done.returncode, done.stdout) == (78, "")
    assert "lgov init" in done.stderr
    assert "lgov init -- python agent.py" in done.stderr
