"""What is PostgreSQL's own about its trace store: how it is opened, what goes wrong with it, processes and forks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from lgov_core.cli import cli
from lgov_core.errors import StoreError
from lgov_core.settings import load_settings, without_password
from lgov_core.store import RolloutConfig, RolloutState, open_store
from lgov_core.store.postgres.schema import FORMAT
from lgov_core.store.postgres.store import PostgresStore
from lgov_core.store.postgres.transaction import _END, PostgresTransaction
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span
from tests.postgres_server import PROCESSES, PostgresServer, shared_server

SECRET = "hunter2:/@?"
ESCAPED = "hunter2%3A%2F%40%3F"


@pytest.fixture
def server() -> PostgresServer:
    return shared_server()


@pytest.fixture
def address(server: PostgresServer) -> str:
    """The address of a store in which nothing is."""
    return server.empty_store()


@pytest.fixture
def database(server: PostgresServer) -> Any:
    """The name of a database in which nothing is, not even tables."""
    name = server.new_database()
    yield name
    server.drop(name)


def call(response_id: str, **changes: Any) -> CapturedCall:
    ids = tuple(range(5))
    values: dict[str, Any] = {"prompt_ids": ids, "response_ids": ids, "logprobs": (-0.5,) * 5, "rollout_id": "r1"}
    values["request"] = {"messages": []}
    return CapturedCall(
        response_id, "tiny", response={}, finish_reason="stop", weights_version=0, temperature=1.0, top_p=1.0,
        started_at=1.0, ended_at=2.0, **{**values, **changes},
    )  # fmt: skip


def span(span_id: str, **attributes: Any) -> Span:
    return Span("chat tiny", span_id, 1.0, 2.0, attributes, "r1", 1)


# ------------------------------------------------------------------ opening


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
    server.execute("ALTER TABLE lgov.rewards DROP choice; UPDATE lgov.format SET number = 1", database=database)
    with PostgresStore(server.url(database)) as store:
        assert [one.response_id for one in store.calls()] == ["c1"]
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


def test_a_server_that_only_reads(server: PostgresServer, database: str) -> None:
    PostgresStore(server.url(database)).close()
    server.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    with PostgresStore(server.url(database)) as store:
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


# ------------------------------------------------------------------ rows


def test_a_bad_write_of_a_batch_fails_alone(address: str) -> None:
    with PostgresStore(address) as store:
        store.add_call(call("taken"))
        store.add_spans([span("s3")])
        wait = threading.Event()
        first = store._submit(lambda _: wait.wait(30))  # what follows waits together
        calls = [store.submit_call(call("taken" if i in (7, 70) else f"c{i}")) for i in range(100)]
        rewards = [store.submit_rewards([Reward(i, source="a\tb\\\n"), Reward(i)]) for i in range(30)]
        many = store.submit_spans([span(f"s{i}", text="\t\\N\n") for i in range(30)] + [span("s3"), span("s3")])
        bad = store.submit_spans([span("good"), span("nul\x00")])
        for i in range(30):
            store.add_span(span(f"q{i}"))
        wait.set()
        assert first.result()
        failed = {i: str(one.exception()) for i, one in enumerate(calls) if one.exception()}
        assert failed.keys() == {7, 70}
        assert all(text.startswith("call taken exists already") for text in failed.values())
        assert not any(one.exception() for one in rewards)
        assert many.result() == 30
        with pytest.raises(StoreError, match="NUL"):
            bad.result()
        store.flush()
        assert [one.response_id for one in store.calls()] == [
            "taken",
            *(f"c{i}" for i in range(100) if i not in (7, 70)),
        ]
        assert [one.value for one in store.rewards()] == [float(i) for i in range(30) for _ in range(2)]
        assert store.rewards()[0].source == "a\tb\\\n"
        spans = store.spans()
        assert Counter(one.span_id for one in spans) == Counter(
            [*(f"s{i}" for i in range(30)), "s3", *(f"q{i}" for i in range(30))]
        )
        assert store.dropped_spans == 0


def test_text_that_postgresql_cannot_hold(address: str) -> None:
    with PostgresStore(address) as store:
        store.add_rollouts([Rollout("r1", "t", "run", {"text": "\x00 \ud800"})])
        assert store.rollouts()[0].input == {"text": "\x00 \ud800"}
        store.start_attempt("r1", 1)
        assert store.finish_attempt("r1", 1, Outcome.FAILED, error="\x00 \ud800").error == "\\x00 \\ud800"
        for changes in ({"agent": "a\x00"}, {"agent": "\ud800"}, {"attempt": 2**63}):
            with pytest.raises(StoreError):
                store.add_call(call("c1", **changes))
        assert list(store.calls()) == []
        with pytest.raises(StoreError):
            store.rollouts(ids=["\ud800"])
        assert len(store.rollouts()) == 1


def test_a_full_queue_drops_spans_and_counts_them(address: str) -> None:
    with PostgresStore(address, span_queue=5) as store:
        wait = threading.Event()
        store._submit(lambda _: wait.wait(30))
        for i in range(20):
            store.add_span(span(f"s{i}"))
        wait.set()
        store.flush()
        assert len(store.spans()) + store.dropped_spans == 20
        assert store.dropped_spans >= 14


async def test_calls_from_tasks(address: str) -> None:
    with PostgresStore(address) as store:
        await asyncio.gather(*(store.add_call_async(call(f"c{i}")) for i in range(50)))
        with pytest.raises(StoreError, match="call c7 exists"):
            await store.add_call_async(call("c7"))
        assert len(list(store.calls())) == 50


# ------------------------------------------------------------------ calls are folded


def turns(tag: str, count: int, *, rollout: str = "r1") -> list[CapturedCall]:
    """A conversation, each call of which sends all that was said before."""
    tokens: tuple[int, ...] = tuple(range(300))
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are careful. " * 30}]
    calls: list[CapturedCall] = []
    for turn in range(count):
        tokens = (*tokens, *(1000 * len(tag) + 10 * turn + i % 7 for i in range(40)))
        response = tuple(9_000 + turn + i for i in range(15))
        messages = [*messages, {"role": "user", "content": f"{tag} {turn} " * 9}]
        request = {"messages": messages, "seed": turn, "tools": ["t" * 2000]}
        calls.append(
            call(
                f"{tag}-{turn}",
                request=request,
                prompt_ids=tokens,
                response_ids=response,
                logprobs=None,
                attempt=1,
                rollout_id=rollout,
            )
        )
        tokens = (*tokens, *response)
    return calls


def stored(server: PostgresServer, address: str) -> tuple[int, int, int]:
    """How many bytes are stored of token ids, how many of requests, and how many calls are stored whole."""
    name = str(conninfo_to_dict(address)["dbname"])
    ((ids, requests, whole),) = server.execute(
        "SELECT coalesce(sum(length(prompt_rest) + length(response_ids)), 0), coalesce(sum(length(request)), 0),"
        " count(*) FILTER (WHERE base IS NULL) FROM lgov.calls",
        database=name,
    )
    return ids, requests, whole


def test_twenty_turns_cost_no_more_than_what_is_new_in_them(server: PostgresServer, address: str) -> None:
    calls = turns("a", 20)
    with PostgresStore(address) as store:
        for one in calls:
            store.add_call(one)
        assert list(store.calls()) == calls
    ids, requests, whole = stored(server, address)
    distinct = len(calls[-1].prompt_ids or ()) + 15
    assert ids == 4 * distinct
    assert whole == 1
    assert requests < 2 * len(str(calls[-1].request))
    with PostgresStore(address) as again:
        assert list(again.calls(["r1"])) == calls


def test_stores_that_take_turns_find_what_the_others_wrote(server: PostgresServer, address: str) -> None:
    calls = [one for pair in zip(turns("a", 10), turns("bb", 10), strict=True) for one in pair]
    with PostgresStore(address) as first, PostgresStore(address) as second, PostgresStore(address) as third:
        for i, one in enumerate(calls):
            (first, second, third)[i % 3].add_call(one)
        assert list(first.calls()) == list(second.calls()) == calls
    assert stored(server, address)[2] <= 2


def test_calls_that_go_together_refer_to_each_other(server: PostgresServer, address: str) -> None:
    calls = [one for pair in zip(turns("a", 15), turns("bb", 15, rollout="r2"), strict=True) for one in pair]
    with PostgresStore(address) as store:
        wait = threading.Event()
        store._submit(lambda _: wait.wait(30))
        futures = [store.submit_call(one) for one in calls]
        again = store.submit_call(calls[3])  # it fails, and everything is written one by one
        more = [store.submit_call(one) for one in turns("a", 18)[15:]]
        wait.set()
        assert [future.result() for future in futures + more] == [None] * 33
        with pytest.raises(StoreError, match="call bb-1 exists"):
            again.result()
        assert list(store.calls()) == calls + turns("a", 18)[15:]
    assert stored(server, address)[2] == 2


def test_a_call_that_was_deleted_is_not_referred_to(server: PostgresServer, address: str) -> None:
    calls = turns("a", 6)
    with PostgresStore(address) as store, PostgresStore(address) as other:
        for one in calls[:3]:
            store.add_call(one)
        assert other.prune(run_id="nobody").calls == 0
        assert other.prune(keep_last=0).calls == 3
        for one in calls[3:]:
            store.add_call(one)
        assert list(other.calls()) == calls[3:]
        assert stored(server, address)[2] == 1
        other.prune(keep_last=0)
        other.add_call(calls[0])
        store.add_call(calls[5])
        assert list(other.calls()) == [calls[0], calls[5]]


def test_who_deletes_keeps_others_from_writing(address: str) -> None:
    with PostgresStore(address) as store, PostgresStore(address) as other:
        begun, go_on = threading.Event(), threading.Event()

        def delete(_: Any) -> bool:
            begun.set()
            return go_on.wait(30)

        deleting = other._submit(delete, alone=True)
        assert begun.wait(30)
        written = store.submit_call(call("c1"))
        with psycopg.connect(address) as watch:
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'"
            while watch.execute(waits).fetchone() == (0,) and not written.done():
                watch.rollback()  # what it sees changes between transactions
                time.sleep(0.01)
        assert not written.done()
        go_on.set()
        assert deleting.result()
        assert written.result(30) is None


def test_nobody_writes_while_somebody_deletes(server: PostgresServer, address: str) -> None:
    calls = turns("a", 40)
    stop = threading.Event()
    pruned: list[int] = []

    def delete(store: PostgresStore) -> None:
        while not stop.is_set():
            pruned.append(store.prune(keep_last=0).calls)

    with PostgresStore(address) as store, PostgresStore(address) as other:
        thread = threading.Thread(target=delete, args=(other,))
        thread.start()
        for one in calls:
            store.add_call(one)
        stop.set()
        thread.join()
        left = list(store.calls())  # one that refers to a call which is not there would raise
        assert left == calls[len(calls) - len(left) :]
        assert sum(pruned) == len(calls) - len(left)


def test_only_the_owner_gives_space_back(server: PostgresServer, database: str) -> None:
    with PostgresStore(server.url(database)) as store:
        for one in turns("a", 5):
            store.add_call(one)
        assert store.statistics().size_bytes > 0
        store.prune(keep_last=0)
        store.vacuum()
    server.execute("DROP ROLE IF EXISTS janitor")
    server.execute("CREATE ROLE janitor LOGIN")
    server.execute(
        "GRANT USAGE ON SCHEMA lgov TO janitor; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lgov TO janitor",
        database=database,
    )
    with (
        PostgresStore(server.url(database, user="janitor")) as store,
        pytest.raises(StoreError, match=r"vacuum.*\(do it as the owner"),
    ):
        store.vacuum()


# ------------------------------------------------------------------ many who work at once


def _worker(address: str, name: str, threads: int, out: Any) -> None:
    """Claims and finishes until nothing waits, on several threads; sends what it got."""
    with PostgresStore(address) as store:
        got: list[tuple[str, int]] = []

        def work(thread: int) -> None:
            while claims := store.claim(f"{name}{thread}", 3, lease_s=60):
                for claim in claims:
                    got.append((claim.rollout.rollout_id, claim.attempt.attempt))
                    store.finish_attempt(
                        claim.rollout.rollout_id, claim.attempt.attempt, Outcome.SUCCEEDED, rewards=[Reward(1.0)]
                    )

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        out.send(got)


def test_no_two_of_many_claimers_in_two_processes_get_the_same(address: str) -> None:
    rollouts = [Rollout(f"r{i}", "t", "run", {}) for i in range(150)]
    with PostgresStore(address) as store:
        store.enqueue(rollouts)
        pipes = [PROCESSES.Pipe(duplex=False) for _ in range(2)]
        children = [
            PROCESSES.Process(target=_worker, args=(address, f"p{i}-", 8, out)) for i, (_, out) in enumerate(pipes)
        ]
        for child in children:
            child.start()
        seen: list[str] = []
        cursor = 0
        while len(seen) < len(rollouts):  # everyone who ends is seen once, while two processes end them
            ended = store.ended_since(cursor, limit=50)
            seen += [entry.rollout_id for entry in ended.entries]
            cursor = ended.cursor
            assert any(child.is_alive() for child in children) or ended.entries
        got = [pipe.recv() for pipe, _ in pipes]
        for child in children:
            child.join(30)
            assert child.exitcode == 0
        assert Counter(seen) == Counter(rollout.rollout_id for rollout in rollouts)
        assert Counter(got[0] + got[1]) == Counter((rollout.rollout_id, 1) for rollout in rollouts)
        assert {entry.state for entry in store.queue_entries()} == {RolloutState.SUCCEEDED}
        assert len(store.rewards()) == len(rollouts)


def test_an_ending_is_not_seen_before_those_that_came_before_it(address: str) -> None:
    with PostgresStore(address) as store, psycopg.connect(address) as other:
        store.enqueue([Rollout(name, "t", "run", {}) for name in ("r1", "r2")])
        store.claim("w", 2, lease_s=60)
        # Another store ends r1, and its commit takes a while.
        other.execute("SET search_path TO lgov")
        other.execute("UPDATE queue SET state = 'failed' WHERE rollout_id = 'r1'")
        PostgresTransaction(other).change(_END, (["r1"],))
        with ThreadPoolExecutor(1) as pool, psycopg.connect(address) as watch:
            ending = pool.submit(store.finish_attempt, "r2", 1, Outcome.SUCCEEDED)
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'"
            while watch.execute(waits).fetchone() == (0,) and not ending.done():
                watch.rollback()
                time.sleep(0.01)
            first = store.ended_since()
            other.commit()
            ending.result(30)
        second = store.ended_since(first.cursor)
        assert [entry.rollout_id for entry in first.entries + second.entries] == ["r1", "r2"]


def test_what_another_holds_is_passed_over(server: PostgresServer, address: str) -> None:
    with PostgresStore(address) as store, psycopg.connect(address) as other:
        store.enqueue([Rollout("r1", "t", "run", {}), Rollout("r2", "t", "run", {})])
        other.execute("SELECT 1 FROM lgov.queue WHERE rollout_id = 'r1' FOR UPDATE")
        assert [claim.rollout.rollout_id for claim in store.claim("w", 5, lease_s=60)] == ["r2"]
        other.rollback()
        assert [claim.rollout.rollout_id for claim in store.claim("w", 5, lease_s=60)] == ["r1"]


def test_leases_go_by_the_servers_clock(server: PostgresServer, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with PostgresStore(address) as store:
        store.enqueue([Rollout("r1", "t", "run", {}, created_at=0.0)], RolloutConfig(max_attempts=2, timeout_s=1000))
        monkeypatch.setattr("time.time", lambda: 12.0)  # this machine's clock is wrong
        (claim,) = store.claim("w", lease_s=100)
        ((now,),) = server.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        assert claim.attempt.started_at <= now < claim.lease_until <= now + 100
        assert claim.deadline == claim.attempt.started_at + 1000
        assert store.expire() == []
        (held,) = store.heartbeat("w", lease_s=100)
        assert held == claim.attempt
        assert store.finish_attempt("r1", 1, Outcome.INFRASTRUCTURE).ended_at >= claim.attempt.started_at  # type: ignore[operator]


# ------------------------------------------------------------------ processes


def test_what_is_queued_when_the_program_ends_is_written(address: str) -> None:
    code = """
        import sys
        from lgov_core.store import open_store
        from lgov_core.types import Span
        store = open_store(sys.argv[1])
        for i in range(500):
            store.add_span(Span("x", f"s{i}", 1.0, 2.0, {}))
    """
    done = _in_child(code, address)
    assert (done.returncode, done.stderr) == (0, "")
    with PostgresStore(address) as store:
        assert len(store.spans()) == 500


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_must_open_its_own(address: str) -> None:
    code = """
        import os, sys
        from lgov_core.store import open_store
        from lgov_core.errors import StoreError
        from lgov_core.types import Reward
        store = open_store(sys.argv[1])
        store.add_rewards([Reward(1.0)])
        assert len(store.rewards()) == 1
        pid = os.fork()
        if pid == 0:
            try:
                store.add_rewards([Reward(2.0)])
            except StoreError as error:
                assert "opened by the parent" in str(error)
                store.close()
                own = open_store(sys.argv[1])
                own.add_rewards([Reward(3.0)])
                own.close()
                sys.exit(7)  # with everything that Python does at the end
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 7, status
        store.add_rewards([Reward(4.0)])
        assert [r.value for r in store.rewards()] == [1.0, 3.0, 4.0]
        store.close()
        print("done")
    """
    done = _in_child(code, address)
    assert done.stdout == "done\n", done.stderr


def test_a_forgotten_store_ends_its_thread_and_keeps_what_was_queued(server: PostgresServer, address: str) -> None:
    store = PostgresStore(address)
    thread = store._writer._thread
    store.add_rollouts([Rollout("r1", "t", "run", {})])
    store.add_span(span("s1"))
    del store
    thread.join(30)
    assert not thread.is_alive()
    with PostgresStore(address) as again:
        assert [one.span_id for one in again.spans()] == ["s1"]
    name = str(conninfo_to_dict(address)["dbname"])
    assert server.execute("SELECT count(*) FROM lgov.writers", database=name) == [(0,)]


def _in_child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, timeout=60
    )
