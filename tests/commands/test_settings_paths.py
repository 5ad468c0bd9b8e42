"""Commands that need no path where the settings name it, and settings on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgov_core.audit import AuditLog
from lgov_core.commands.group import Exit
from lgov_core.process.offline_start import OfflineStart
from lgov_core.store import open_store
from lgov_core.types import Action, Decision, Effect, Outcome, Point, Rollout
from tests.commands.cli_runner import POLICY, lgov


@pytest.fixture
def recorded(folder: Path) -> Path:
    """A store and a record, which lgov.toml names, and an empty folder in which to stand."""
    (folder / "lgov.toml").write_text('policy = "policy.yaml"\nstore = "traces.db"\naudit = "record.db"\n')
    (folder / "policy.yaml").write_text(POLICY)
    with open_store(str(folder / "traces.db")) as store:  # type: ignore[attr-defined]
        store.add_rollouts([Rollout("r1", "t", "run", {})])
        store.start_attempt("r1", 1)
        store.finish_attempt("r1", 1, Outcome.SUCCEEDED)
    with AuditLog(folder / "record.db", signer=None) as log:
        log.commit(Action(Point.PRE_TOOL_CALL, "rm"), Decision(Effect.DENY, "desk", "default", "no"))
    return folder


def test_audit_show_takes_the_record_of_the_settings(recorded: Path) -> None:
    (entry,) = json.loads(lgov("audit", "show", "--json", "--denied").stdout)
    assert entry["name"] == "rm"
    (recorded / "lgov.toml").unlink()
    assert "there is no audit record .lgov/audit.db" in lgov("audit", "show").stderr


def test_traces_list_takes_the_store_of_the_settings(recorded: Path) -> None:
    shown = json.loads(lgov("traces", "list", "--json").stdout)
    assert (shown["store"]["attempts"], [one["rollout_id"] for one in shown["attempts"]]) == (1, ["r1"])
    (recorded / "lgov.toml").unlink()
    nothing = lgov("traces", "list")
    assert (nothing.exit_code, "set store in lgov.toml" in nothing.stderr) == (Exit.USAGE, True)


def test_view_takes_the_store_the_record_and_the_policy_of_the_settings(recorded: Path) -> None:
    pytest.importorskip("starlette", reason='needs the extra "view"')
    written = lgov("view", "--export", "page.html", "--json")
    assert written.exit_code == 0, written.output
    assert "r1" in (recorded / "page.html").read_text()
    (recorded / "lgov.toml").write_text('audit = "record.db"\n')
    assert lgov("view", "--export", "page.html").exit_code == 0
    assert "desk" in (recorded / "page.html").read_text(), "the decisions of the record"
    (recorded / "lgov.toml").unlink()
    nothing = lgov("view", "--export", "page.html")
    assert (nothing.exit_code, "set store or audit in lgov.toml" in nothing.stderr) == (Exit.USAGE, True)


def test_a_setting_on_the_command_line_is_one_of_lgov_toml(recorded: Path) -> None:
    wrong = lgov("audit", "rotate", "record.db", "--to", "old", "--set", "audit_kez=key")
    assert (wrong.exit_code, "did you mean audit_key" in wrong.stderr) == (Exit.USAGE, True)
    without = lgov("audit", "rotate", "record.db", "--to", "old", "--set", "audit_key")
    assert (without.exit_code, "NAME=VALUE" in without.stderr) == (Exit.USAGE, True)


def test_a_field_of_where_is_one_of_the_commands(recorded: Path) -> None:
    for command, why in (
        (("audit", "show", "--where", "run=x"), "there is no field run; there are entry, rollout, session"),
        (("audit", "show", "--where", "tool=x", "--where", "tool=y"), "--where tool can be given once"),
        (
            ("export", "record.db", "--where", "run=x"),
            "an audit record has rollout, session, tool, agent, text, not run",
        ),
        (("export", "traces.db", "--where", "tool=x"), "a trace store has rollout, run, not tool"),
        (("export", "traces.db", "--format", "ocsf"), "a trace store is exported as jsonl, parquet, otlp, otlp-json"),
        (("export", "traces.db", "--since", "1d"), "are for audit records"),
        (("traces", "list", "--where", "outcome=good"), "there is no outcome good"),
    ):
        refused = lgov(*command)
        assert (refused.exit_code, why in refused.stderr) == (Exit.USAGE, True), (command, refused.stderr)


def test_init_for_a_program_writes_beside_it(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (recorded / "app").mkdir()
    (recorded / "app" / "main.py").write_text("print('not run')")
    start = OfflineStart(calls=1)
    start.add({"call": 1, "tools": [{"name": "search", "parameters": {"type": "object"}}]})
    monkeypatch.setattr("lgov_core.process.offline_start.start_offline", lambda command: start)
    written = json.loads(lgov("init", "--json", "--", "python", "app/main.py").stdout)
    assert written == {
        "wrote": ["app/policy.yaml", "app/lgov.toml", "app/.lgov/.gitignore", "app/.traces/.gitignore"],
        "tools": ["search (function)"],
    }  # fmt: skip
    assert "search" in (recorded / "app" / "policy.yaml").read_text()
    kept = lgov("init", "--", "python", "app/main.py").stdout
    assert "kept  app/policy.yaml" in kept
    assert "lgov run -- python app/main.py" in kept
    assert lgov("init", "--framework", "openai", "--", "python", "app/main.py").exit_code == Exit.USAGE
    assert "there is no script gone.py" in lgov("init", "--", "python", "gone.py").stderr


def test_a_training_waits_for_clients_only_where_it_is_told_to(recorded: Path) -> None:
    for options, why in (
        (("--serve", "--agent", "a.py:f"), "are not for --serve"),
        (("--serve", "8000x"), "is not HOST:PORT"),
        (("--gpus", "0"), "are for --serve"),
        (("--set", "training.sede=1"), "--set training.sede: there is no setting training.sede"),
        (("--set", "training.seed=one"), "--set training.seed: training.seed must be a whole number, not 'one'"),
        (("--set", "seed=1"), "there is no setting seed"),
        (("--engine", "fast"), "the address of a vLLM"),
    ):
        refused = lgov("train", *options)
        assert (refused.exit_code, why in refused.stderr) == (Exit.USAGE, True), (options, refused.stderr)
