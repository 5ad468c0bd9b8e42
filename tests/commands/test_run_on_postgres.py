"""A run whose store is on PostgreSQL: every command that gets its folder finds it, and prints no password."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgov_core.errors import StoreError
from lgov_core.server.run_state import RunStart, begin
from lgov_core.settings import without_password
from lgov_core.store import open_store, store_of, without_secret
from lgov_core.types import Outcome, Reward, Rollout, Span
from tests.commands.cli_runner import POLICY, lgov

pytest.importorskip("psycopg", reason="needs the extra postgres")
from tests.postgres_server import shared_server

PASSWORD = "hunter2"


@pytest.fixture
def address() -> str:
    """The address, with a password, of a store with one rollout."""
    server = shared_server()
    place = server.empty_store().replace("lgov@", f"with_password:{PASSWORD}@")
    server.execute("DROP ROLE IF EXISTS with_password")
    server.execute(f"CREATE ROLE with_password LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    with open_store(place) as store:
        store.add_rollouts([Rollout("told", "t1", "run1", {"q": 1}, 1000.0)])
        store.start_attempt("told", 1)
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search"}
        attributes |= {"gen_ai.tool.call.arguments": '{"q": "zebra"}', "lgov.tool.status": "ok"}
        store.add_spans([Span("execute_tool search", "s1", 1001.0, 1002.0, dict(attributes), "told", 1)])
        store.finish_attempt("told", 1, Outcome.SUCCEEDED, rewards=[Reward(0.5)])
    return place


@pytest.fixture(params=["the run's own file", "its settings"])
def run(request: pytest.FixtureRequest, folder: Path, address: str) -> Path:
    """The folder of a run in a project whose settings name the store, with its password."""
    place = folder / "run"
    place.mkdir()
    if request.param == "its settings":
        (place / "lgov.toml").write_text(f'store = "{address}"\n')
    else:
        (folder / "lgov.toml").write_text(f'store = "{address}"\n')
        begin(place, RunStart("train_1"), RunStart("train_1", "tiny", store=without_secret(address)), resume=False)
        assert PASSWORD not in (place / "server.json").read_text()
    return place


COMMANDS = {
    "traces list RUN": "told",
    "traces show RUN told": "search",
    "traces prune RUN --keep-last 5 --dry-run": "would delete",
    "export RUN": '"kind":"rollout"',
    "export RUN --format otlp --to http://127.0.0.1:9/v1/traces --where rollout=nobody": "no rollout nobody",
    "transitions RUN --json": "",
    "policy eval policy.yaml RUN": "1 action",
    "policy suggest RUN": "search",
    "doctor RUN": "rollout",
    "erase RUN --where text=zebra --dry-run": "1 rollout",
    "view RUN --export page.html": "page.html",
}


@pytest.mark.parametrize("line", list(COMMANDS))
def test_a_command_that_gets_the_folder_finds_the_store(run: Path, folder: Path, line: str) -> None:
    (folder / "policy.yaml").write_text(POLICY)
    result = lgov(*line.replace("RUN", str(run)).split())
    assert COMMANDS[line] in result.output, result.output
    assert "there is no trace store" not in result.output
    assert PASSWORD not in result.output


def test_the_window_shows_the_store_of_the_folder(run: Path, folder: Path) -> None:
    lgov("view", str(run), "--export", "page.html")
    page = (folder / "page.html").read_text()
    assert "told" in page
    assert PASSWORD not in page


def test_a_store_that_is_named_without_the_password_that_it_needs_is_told(folder: Path, address: str) -> None:
    begin(folder, RunStart("train_1"), RunStart("train_1", store=without_secret(address)), resume=False)
    result = lgov("traces", "list", str(folder))
    assert result.exit_code == 1
    assert "the password in PGPASSWORD or ~/.pgpass" in result.output
    assert without_password(without_secret(address)).partition("?")[0] in result.output.replace("%2F", "/")


def test_a_place_is_kept_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert without_secret("postgresql://u:p%40w@h:1,[::1]:2/d?sslmode=require") == (
        "postgresql://u@h:1,[::1]:2/d?sslmode=require"
    )
    assert without_secret("postgresql://u@h/d?password=x&a=1&sslpassword=y") == "postgresql://u@h/d?a=1"
    assert without_secret("postgresql:///d?password=x") == "postgresql:///d"
    monkeypatch.chdir(tmp_path)
    assert without_secret("runs.db") == without_secret("sqlite:///runs.db") == str(tmp_path / "runs.db")


def test_a_folder_without_a_store_is_no_store(folder: Path) -> None:
    (folder / "lgov.toml").write_text('store = "runs.db"\n')
    (inner := folder / "inner").mkdir()
    (inner / "server.json").write_text(json.dumps({"id": "train_1"}))
    assert store_of(inner) == str(inner)
    assert store_of(folder) == str(folder / "runs.db")
    with pytest.raises(StoreError, match="there is no trace store"):
        open_store(inner, make=False)
    (inner / "store.sqlite").touch()
    assert store_of(inner) == str(inner / "store.sqlite")
