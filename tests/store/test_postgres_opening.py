"""How a PostgreSQL trace store is opened, and what may be shown of its address."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from lgov_core.commands import cli
from lgov_core.errors import StoreError
from lgov_core.settings import load_settings, without_password
from lgov_core.store import open_store
from lgov_core.store.pages import Filters
from lgov_core.store.postgres import FORMAT, PostgresStore
from lgov_core.types import Outcome, Reward, Rollout
from tests.postgres_server import PostgresServer
from tests.store.postgres_parts import call, span

SECRET = "hunter2:/@?"
ESCAPED = "hunter2%3A%2F%40%3F"


def test_an_address_opens_it(address: str) -> None:
    with open_store(address) as store:  # type: ignore[attr-defined]
        assert isinstance(store, PostgresStore)
        store.add_rollouts([Rollout("r1", "t", "run", {})])
    with open_store(address.replace("postgresql://", "postgres://")) as store:  # type: ignore[attr-defined]
        assert [rollout.rollout_id for rollout in store.rollouts()] == ["r1"]


def test_many_open_an_empty_database_at_once(server: PostgresServer, database: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: PostgresStore(server.url(database)), range(8)))
    stores[0].add_call(call("c1"))
    for store in stores:
        assert [one.response_id for one in store.calls()] == ["c1"]
        store.close()
    assert server.execute("SELECT number FROM lgov.format", database=database) == [(FORMAT,)]


def test_a_commit_is_never_left_to_the_servers_memory(server: PostgresServer, database: str) -> None:
    server.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    server.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")
    with PostgresStore(server.url(database)) as store:
        asked = "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
        assert store._submit(lambda transaction: transaction.execute(asked)).result() == [("on", "read committed")]


def test_tables_of_the_first_format_are_brought_up_to_date(server: PostgresServer, database: str) -> None:
    with PostgresStore(server.url(database)) as store:
        store.add_call(call("c1"))
    server.execute(
        "SET search_path = lgov; DROP TABLE decisions, decision_kinds; DROP INDEX rollouts_of_task;"
        " DELETE FROM rollouts WHERE added = 0; ALTER TABLE rollouts DROP added;"
        " CREATE INDEX rollouts_of_run ON rollouts (run_id);"
        " ALTER TABLE rewards DROP choice; UPDATE format SET number = 1",
        database=database,
    )
    with PostgresStore(server.url(database)) as store:
        assert [one.response_id for one in store.calls()] == ["c1"]
        assert [head.rollout_id for head in store.pages.rollouts_before(None, 9, Filters())] == ["r1"]
        rewards = [Reward(1.0, response_id="c1", choice=1)]
        store.add_rewards(rewards)
        assert store.rewards() == rewards
    assert server.execute("SELECT number FROM lgov.format", database=database) == [(FORMAT,)]


@pytest.mark.parametrize("number", [FORMAT + 1, 0])
def test_a_format_that_is_not_known_is_refused(server: PostgresServer, database: str, number: int) -> None:
    PostgresStore(server.url(database)).close()
    server.execute(f"UPDATE lgov.format SET number = {number}", database=database)
    with pytest.raises(StoreError, match=rf"has format {number}; this lgov knows formats up to {FORMAT}"):
        PostgresStore(server.url(database))


def test_tables_of_somebody_else_are_left_alone(server: PostgresServer, database: str) -> None:
    server.execute("CREATE SCHEMA lgov; CREATE TABLE lgov.calls (mine text)", database=database)
    with pytest.raises(StoreError, match=r"schema lgov holds something that lgov did not make \(calls"):
        PostgresStore(server.url(database))
    server.execute("CREATE TABLE lgov.format (mine text)", database=database)
    with pytest.raises(StoreError, match=r"did not make \(format\)"):
        PostgresStore(server.url(database))
    assert server.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 'lgov'::regnamespace", database=database)
    with PostgresStore(server.url(database), schema='More "than" one'.replace('"', "'")) as store:
        store.add_call(call("c1"))
        assert len(list(store.calls())) == 1


def test_a_user_who_may_only_use_the_tables(server: PostgresServer, database: str) -> None:
    server.execute("DROP ROLE IF EXISTS worker")
    server.execute("CREATE ROLE worker LOGIN")
    with pytest.raises(StoreError, match=r"permission denied.*\(let the user create a schema"):
        PostgresStore(server.url(database, user="worker"))
    PostgresStore(server.url(database)).close()
    with pytest.raises(StoreError, match=r"permission denied.*\(let the user"):
        PostgresStore(server.url(database, user="worker"))
    server.execute(
        "GRANT USAGE ON SCHEMA lgov TO worker; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lgov TO worker;"
        " GRANT USAGE ON ALL SEQUENCES IN SCHEMA lgov TO worker",
        database=database,
    )
    with PostgresStore(server.url(database, user="worker")) as store:
        store.enqueue([Rollout("r1", "t", "run", {})])
        (claim,) = store.claim("w", lease_s=10)
        store.add_call(call("c1"))
        store.add_spans([span(f"s{i}") for i in range(20)])
        store.finish_attempt("r1", claim.attempt.attempt, Outcome.SUCCEEDED)
        assert len(store.ended_since().entries) == 1
        store.ping()
        server.execute("REVOKE INSERT ON lgov.calls FROM worker", database=database)
        with pytest.raises(StoreError, match="permission denied for table calls"):
            store.ping()


def test_a_server_that_only_reads(server: PostgresServer, database: str) -> None:
    PostgresStore(server.url(database)).close()
    server.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with PostgresStore(server.url(database)) as store:
        store.ping()
        store.add_call(call("c1"))  # the setting is a default, and the store says what it needs


def test_more_connections_than_the_server_has(server: PostgresServer, address: str) -> None:
    server.execute("DROP ROLE IF EXISTS single")
    server.execute("CREATE ROLE single LOGIN CONNECTION LIMIT 1 SUPERUSER")
    server.execute("ALTER ROLE single NOSUPERUSER")
    with psycopg.connect(address.replace("lgov@", "single@")), pytest.raises(StoreError, match="too many connections"):
        PostgresStore(address.replace("lgov@", "single@"))


def test_a_server_that_cannot_be_reached(tmp_path: Path, server: PostgresServer) -> None:
    with pytest.raises(StoreError, match=r"trace store postgresql://u@/d\?host=.*\(see whether the server runs"):
        open_store(f"postgresql://u:{ESCAPED}@/d?host={tmp_path}")
    with pytest.raises(StoreError, match=r"trace store postgresql://127.0.0.1:1/d: .*\(see whether the server runs"):
        open_store("postgresql://127.0.0.1:1/d?connect_timeout=5")
    with pytest.raises(StoreError, match=r'database "nowhere" does not exist.*\(make the database'):
        open_store(server.url("nowhere"))


def test_a_password_works_and_is_never_shown(
    server: PostgresServer, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.execute("DROP ROLE IF EXISTS with_password")
    server.execute(f"CREATE ROLE with_password LOGIN SUPERUSER PASSWORD '{SECRET}'")
    plain = address.replace("lgov@", "with_password@")
    wrong = address.replace("lgov@", "with_password:swordfish@")
    given = address.replace("lgov@", f"with_password:{ESCAPED}@")
    for place, secret in ((wrong, "swordfish"), (plain, "no secret at all")):
        with pytest.raises(StoreError, match=r"\(check the user, and the password in PGPASSWORD") as caught:
            open_store(place)
        shown = "".join(traceback.format_exception(caught.value))
        assert secret not in shown + repr(caught.value)
    with PostgresStore(given) as store:
        assert SECRET not in (shown := repr(store) + repr(vars(store)))
        assert ESCAPED not in shown
        store.close()
        with pytest.raises(StoreError) as caught:
            store.rollouts()
        assert "hunter2" not in str(caught.value)
    passwords = tmp_path / "pgpass"
    passwords.write_text("*:*:*:with_password:" + SECRET.replace(":", "\\:") + "\n")
    passwords.chmod(0o600)
    for variable, value in (("PGPASSWORD", SECRET), ("PGPASSFILE", str(passwords))):
        with monkeypatch.context() as patched:
            patched.setenv(variable, value)
            PostgresStore(plain).close()


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://u:mel@lon@h/d",
        "postgresql://u:mel/lon@h/d",
        "postgresql://u:12/mellon@h/d",
        "postgresql://u:mellon/@h/d",
        "postgresql://u:%mellon@h/d",
        "postgresql://u:1/d?mellon@h/d",
        "postgresql://h:mellon/d",
        "postgresql://h/d?mellon=1",
        "postgresql://h:99999/mellon@h",
    ],
)
def test_an_address_that_is_none_is_refused_unseen(place: str) -> None:
    with pytest.raises(StoreError, match=r"the address of the PostgreSQL trace store .*PGPASSWORD") as caught:
        open_store(place)
    shown = "".join(traceback.format_exception_only(caught.value)) + repr(caught.value)
    assert "mel" not in shown
    assert "lon" not in shown
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_commands_that_look_make_nothing(server: PostgresServer, database: str) -> None:
    result = CliRunner().invoke(cli, ["traces", "list", server.url(database)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no trace store in postgresql://lgov@/" in result.stderr
    assert server.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'lgov'", database=database) == []
    with PostgresStore(server.url(database)) as store:
        store.add_rollouts([Rollout("r1", "t", "run", {})])
        store.start_attempt("r1", 1)
    result = CliRunner().invoke(cli, ["traces", "list", server.url(database)])
    assert result.exit_code == 0, result.stderr
    assert "r1" in result.stdout


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("traces.sqlite", "traces.sqlite"),
        ("sqlite:////tmp/a@b.sqlite", "sqlite:////tmp/a@b.sqlite"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("postgresql://u:mellon@h:1,[::1]:2/d?password=mellon", "postgresql://u:...@h:1,[::1]:2/d?..."),
        ("postgresql:///d", "postgresql:///d"),
        *(
            (f"postgresql://{wrong}", "postgresql://...")
            for wrong in ("u:m@llon@h/d", "u:m/llon@h", "mellon:m/d", "u:1/mellon@h")
        ),
    ],
)
def test_a_place_is_shown_without_its_password(place: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LGOV_STORE", place)
    assert without_password(place) == shown
    assert "mellon" not in repr(load_settings())
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    assert json.loads(result.stdout)["settings"]["store"]["value"] == shown


def test_without_the_extra() -> None:
    code = """
        import sys
        sys.modules["psycopg"] = None
        from lgov_core.store import open_store
        open_store("postgresql://h/d")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert "StoreError: a trace store in PostgreSQL needs psycopg" in done.stderr
    assert "(pip install 'lgov[postgres]')" in done.stderr
