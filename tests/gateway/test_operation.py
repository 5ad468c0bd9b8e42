"""What who runs the endpoint sees of it: readiness, outages, the log."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psycopg
import pytest

import lgov_core
from lgov_core.audit import AuditLog, make_key
from lgov_core.errors import AuditError, EndpointError, PolicyError
from lgov_core.gateway import operation
from lgov_core.gateway.access import AdminKeyFile, KeyRing, RevokedKeys, read_secrets
from lgov_core.gateway.app import create_app
from lgov_core.gateway.limits import Limits, retry_headers
from lgov_core.gateway.operation import UseCounts, logging_by
from lgov_core.gateway.policy_gate import open_gate
from lgov_core.gateway.protocol import Attribution
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.governance import Governance
from lgov_core.policies.budgets.ledger import Amount, BudgetLimits, Ledger
from lgov_core.policies.loader import load_policy_file
from lgov_core.settings import load_settings
from lgov_core.store import open_store
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace.rollout_spans import call_span
from tests.gateway.conftest import SECRET, until
from tests.postgres_server import PostgresServer

BODY = {"model": "m", "messages": [{"role": "user", "content": "my secret word is plover"}]}


def metric(url: str, name: str, key: str = "") -> float:
    lines = httpx.get(f"{url}/metrics", headers={"x-api-key": key}).text.splitlines()
    return float(next(line for line in lines if line.startswith(name) and line[len(name)] in " {").rpartition(" ")[2])


def test_an_endpoint_is_ready_while_one_upstream_answers_its_probes() -> None:
    with ScriptedModelServer(["Hello."]) as model:
        port = int(model.base_url.split(":")[2].split("/")[0])
        engine = UpstreamEngine(model.base_url, check_s=0.05)
        server = EndpointServer(create_app([engine], None, keys=KeyRing(required=False))).start()
        ready = httpx.get(f"{server.url}/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
        assert metric(server.url, "lgov_upstream_up") == 1
    try:
        until(lambda: metric(server.url, "lgov_upstream_up") == 0)
        ready = httpx.get(f"{server.url}/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": "not ready", "upstream": "none answers"})
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        with ScriptedModelServer(["Hello."], port=port):
            until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)
    finally:
        server.stop()


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (None, 0o600, "it cannot be read: No such file or directory"),
        ("# nobody\n", 0o600, "no line of it holds a key"),
        ("short\n", 0o600, "line 1 is too short for an admin key"),
        ("first-key-of-an-operator\n", 0o644, "other users can read it"),
    ],
)
def test_calls_go_on_without_admin_keys_and_the_log_says_why_they_cannot_be_checked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None, mode: int, why: str
) -> None:
    path = private(tmp_path / "admins", "first-key-of-an-operator\n")
    keys = KeyRing(SECRET, admin_keys=AdminKeyFile(path))
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], keys=keys) as server,
    ):
        state, ready = f"{server.url}/admin/state", f"{server.url}/readyz"
        operator, agent = {"x-api-key": "first-key-of-an-operator"}, {"x-api-key": keys.issue("ada", 1)}
        assert httpx.get(state, headers=operator).status_code == 200
        path.unlink()
        if text is not None:
            private(path, text).chmod(mode)
        for _ in range(2):
            assert httpx.get(ready).json() == {"status": "ready"}
        refused = httpx.get(state, headers=operator)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["message"].startswith("keys cannot be checked now")
        assert why not in refused.text
        assert str(tmp_path) not in refused.text
        failed = next(record for record in caplog.records if record.getMessage() == "request failed")
        assert why in vars(failed)["lgov_fields"]["cause"]
        assert httpx.post(f"{server.base_url}/chat/completions", json=BODY, headers=agent).status_code == 200
        private(path, "second-key-of-an-operator\n")
        assert httpx.get(state, headers=operator).status_code == 401
        assert httpx.get(ready).status_code == 200
        assert httpx.get(state, headers={"x-api-key": "second-key-of-an-operator"}).status_code == 200
    down, back = (record for record in caplog.records if "file of admin keys" in record.getMessage())
    assert (down.getMessage(), back.getMessage()) == ("file of admin keys is down", "file of admin keys is back")
    assert f"the keys in {path} cannot be used: {why}" in down.lgov_fields["cause"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("broken", ["typo", "mode", "removed"])
def test_revoked_keys_that_cannot_be_read_stop_calls_and_show_in_readiness_and_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    path = private(tmp_path / "revoked", "# nobody yet\n")
    keys = KeyRing(SECRET, is_revoked=RevokedKeys(path))
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], keys=keys) as server,
    ):
        ready, agent = f"{server.url}/readyz", {"x-api-key": keys.issue("ada", 1)}
        assert httpx.get(ready).status_code == 200
        assert metric(server.url, "lgov_keys_up", keys.admin) == 1
        {"typo": lambda: private(path, "ada\n"), "mode": lambda: path.chmod(0o644), "removed": path.unlink}[broken]()
        until(lambda: metric(server.url, "lgov_keys_up", keys.admin) == 0)
        refused = httpx.post(f"{server.base_url}/chat/completions", json=BODY, headers=agent)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        problem = {"status": "not ready", "keys": "the file of revoked keys cannot be used"}
        assert httpx.get(ready).json() == problem, "it names no file: everybody may ask"
        private(path, "")
        assert httpx.get(ready).status_code == 200
    down, back = (record for record in caplog.records if "file of revoked keys" in record.getMessage())
    assert str(path) in down.lgov_fields["cause"]  # type: ignore[attr-defined]
    assert back.getMessage() == "file of revoked keys is back"


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


def test_while_the_store_is_down_calls_are_refused_at_once_and_the_model_is_not_asked(postgres: PostgresServer) -> None:
    store = open_store(postgres.url(postgres.new_database()))
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], store) as server,
    ):
        url = f"{server.base_url}/chat/completions"
        assert httpx.post(url, json=BODY, timeout=30).status_code == 200
        postgres.kill()
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 503)
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        began = time.monotonic()
        refused = httpx.post(url, json=BODY)
        assert time.monotonic() - began < 2
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert str(postgres.folder) not in refused.text, "an agent learns nothing of the store"
        assert len(model.requests) == 1
        assert metric(server.url, "lgov_store_up") == 0
        postgres.start()
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)
        until(lambda: httpx.post(url, json=BODY, timeout=30).status_code == 200)
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_store_that_lost_its_tables_is_down_until_they_are_back(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    address = str(tmp_path / "runs.db")
    if kind == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        address = postgres.url(postgres.new_database())

    def change(in_postgres: str, in_sqlite: str) -> None:
        if kind == "postgres":
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(in_postgres.encode())
        else:
            with contextlib.closing(sqlite3.connect(address)) as file:
                file.executescript(in_sqlite)

    store = open_store(address)
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], store) as server,
    ):
        url, ready = f"{server.base_url}/chat/completions", f"{server.url}/readyz"
        assert httpx.post(url, json=BODY, timeout=30).status_code == 200
        assert httpx.get(ready).status_code == 200
        change("ALTER SCHEMA lgov RENAME TO away", "ALTER TABLE calls RENAME TO away")
        refused = httpx.post(url, json=BODY, timeout=30)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        server.app.state.endpoint.ready.down_until = 0.0  # only its probe is asked from here
        assert httpx.get(ready).json() == {"status": "not ready", "store": "it cannot be written"}
        assert metric(server.url, "lgov_store_up") == 0
        asked = len(model.requests)
        assert httpx.post(url, json=BODY).status_code == 503
        assert len(model.requests) == asked, "no model is asked for what cannot be recorded"
        change("ALTER SCHEMA away RENAME TO lgov", "ALTER TABLE away RENAME TO calls")
        until(lambda: httpx.get(ready).status_code == 200)
        assert httpx.post(url, json=BODY, timeout=30).status_code == 200
    store.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_runs_when_the_store_goes_down_is_answered_soon(postgres: PostgresServer, stream: bool) -> None:
    def reply(body: object) -> str:
        postgres.kill()
        return "Hello."

    store = open_store(postgres.url(postgres.new_database()))
    with ScriptedModelServer(reply) as model, EndpointServer([UpstreamEngine(model.base_url)], store) as server:
        began = time.monotonic()
        url = f"{server.base_url}/chat/completions"
        failed = httpx.post(url, json={**BODY, "stream": stream}, timeout=60)
        assert time.monotonic() - began < 12, "the store itself tries for 15 s"
        assert "may have been recorded" in failed.text, "the store may have been about to answer"
        assert str(postgres.folder) not in failed.text
        if not stream:  # of a stream the head was sent before
            assert (failed.status_code, failed.headers["retry-after"]) == (503, "5")
    store.close()


BUDGET = """
version: 1
rules:
  - {name: read, tools: [read_order], use: allow}
  - {name: budget, use: cost, with: {max_calls: 100, per: global, ledger: "LEDGER"}}
"""


def test_what_was_answered_while_store_and_ledger_were_down_is_spent_once_they_are_back(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    ledger, goes_on = postgres.new_database(), threading.Event()
    (tmp_path / "policy.yaml").write_text(BUDGET.replace("LEDGER", postgres.url(ledger)))
    gate = open_gate(Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db"))

    def reply(body: object) -> str:
        assert goes_on.wait(60)
        return "Hello."

    def rows(table: str) -> list[tuple[int, ...]]:
        columns = "reserved_calls, calls" if table == "budgets" else "calls"
        return postgres.execute(f"SELECT {columns} FROM lgov_budgets.{table}", database=ledger)

    with (
        open_store(postgres.url(postgres.new_database())) as store,
        ScriptedModelServer(reply) as model,
        EndpointServer([UpstreamEngine(model.base_url)], store, gate=gate) as server,
        ThreadPoolExecutor() as thread,
    ):
        asked = thread.submit(httpx.post, f"{server.base_url}/chat/completions", json=BODY, timeout=60)
        until(lambda: bool(model.requests))
        assert rows("budgets") == [(1, 0)]
        postgres.kill()
        goes_on.set()
        assert asked.result().status_code == 503
        postgres.start()
        until(lambda: rows("reservations") == [])
        assert rows("budgets") == [(0, 1)]
    gate.close()


def test_a_record_that_is_gone_and_a_ledger_that_is_down_are_not_ready(
    postgres: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_key(tmp_path / "audit.key")
    (tmp_path / "policy.yaml").write_text(BUDGET.replace("LEDGER", postgres.url(postgres.new_database())))
    settings = {"policy": tmp_path / "policy.yaml", "audit": tmp_path / "audit.db", "audit_key": tmp_path / "audit.key"}
    gate = open_gate(Governance.from_settings(load_settings(settings, folder=tmp_path, environ={})))
    heads = tmp_path / "audit.db.heads.jsonl"
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], gate=gate) as server,
    ):
        url, ready = f"{server.base_url}/chat/completions", f"{server.url}/readyz"
        assert httpx.post(url, json=BODY, timeout=30).status_code == 200
        assert httpx.get(ready).status_code == 200
        postgres.kill()
        until(lambda: "policy" in httpx.get(ready).json())
        assert httpx.get(ready).json() == {
            "status": "not ready",
            "policy": "what its rules count or ask in cannot be written",
        }
        refused = httpx.post(url, json=BODY, timeout=30)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        postgres.start()
        until(lambda: httpx.get(ready).status_code == 200)
        heads.rename(tmp_path / "kept")
        until(lambda: metric(server.url, "lgov_heads_up") == 0)
        assert httpx.get(ready).status_code == 200
        (audit,) = gate._owns
        audit.sign_after_s = 0
        assert httpx.post(url, json=BODY, timeout=30).status_code == 200, "what is decided is on record all the same"
        lines = len((tmp_path / "kept").read_text().splitlines())
        (tmp_path / "kept").rename(heads)
        until(lambda: metric(server.url, "lgov_heads_up") == 1)
        assert len(heads.read_text().splitlines()) > lines, "the heads that it was owed are there at once"
        for end in ("", "-wal", "-shm"):
            (tmp_path / f"audit.db{end}").unlink()
        assert httpx.get(ready).json() == {"status": "not ready", "audit": "it cannot be written"}
        assert metric(server.url, "lgov_audit_up") == 0
    with contextlib.suppress(AuditError):
        gate.close()
    said = [record.getMessage() for record in caplog.records]
    for event in (
        "policy is down",
        "policy is back",
        "second place for heads is down",
        "second place for heads is back",
        "audit record is down",
    ):
        assert said.count(event) == 1, event


def test_a_user_of_the_database_may_use_the_ledger_with_the_rights_on_the_page_and_is_not_ready_without(
    postgres: PostgresServer,
) -> None:
    database = postgres.new_database()
    address, worker = postgres.url(database), postgres.url(database, user="worker")
    page = (Path(__file__).parents[2] / "docs/how-to/deploy.md").read_text()
    grants = [line for line in page.splitlines() if line.startswith("GRANT ")]
    with open_store(address), psycopg.connect(address, autocommit=True) as admin:
        Ledger(address, "budget").close()  # the first process makes the tables
        admin.execute("CREATE ROLE worker LOGIN")
        for line in grants:
            admin.execute(line.replace(", lgov_budgets", "").encode())
        ledger = Ledger(worker, "budget")
        with pytest.raises(PolicyError, match='relation "budgets" does not exist'):
            ledger.ping()
        for line in grants:
            admin.execute(line.encode())
        ledger.ping()
        open_store(worker).close()
        ledger.reserve("all", "op", Amount(calls=1), BudgetLimits(calls=1), 0.0)
        admin.execute("REVOKE INSERT ON lgov_budgets.reservations FROM worker")
        with pytest.raises(PolicyError, match="permission denied for table reservations"):
            ledger.ping()
        ledger.close()


KEPT = {
    "approval": "{name: kept, tools: [pay], use: approval, with: {store: kept.db}}",
    "flow": "{name: kept, tools: [pay], use: flow, with: {argument: to, otherwise: approve, store: kept.db}}",
    "pinned": "{name: kept, use: pinned, with: {store: kept.db}}",
}


@pytest.mark.parametrize("use", KEPT)
def test_a_policy_that_fails_is_a_503_of_which_only_the_log_has_the_cause(
    use: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "policy.yaml").write_text(f"version: 1\ndefault: allow\nrules:\n  - {KEPT[use]}\n")
    gate = open_gate(Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db"))
    pay = {"type": "function", "function": {"name": "pay", "parameters": {"type": "object"}}}
    call = ScriptedReply("", [ScriptedCall("pay", {"to": "mallory@evil.example"}, "c1")])
    with (
        ScriptedModelServer(lambda _: call) as model,
        EndpointServer([UpstreamEngine(model.base_url)], gate=gate) as server,
    ):
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        with contextlib.closing(sqlite3.connect(tmp_path / "kept.db")) as store, store:
            store.execute(f"DROP TABLE {'pins' if use == 'pinned' else 'requests'}")
        problem = {"status": "not ready", "policy": "what its rules count or ask in cannot be written"}
        until(lambda: httpx.get(f"{server.url}/readyz").json() == problem)
        refused = httpx.post(f"{server.base_url}/chat/completions", json={**BODY, "tools": [pay]}, timeout=30)
    gate.close()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "kept failed: " in caplog.text
    for cause in ("kept.db", "no such table"):
        assert cause in caplog.text
        assert cause not in refused.text


def test_a_record_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        log.ping()
        full = shutil.disk_usage(tmp_path)._replace(free=1024)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
        with pytest.raises(AuditError, match="the disk is full or read-only"):
            log.ping()


class ForeignStore:
    """A store that is not lgov's, and fails in a way of its own."""

    dropped_spans = 0
    error: Exception | None = None

    def has_ended(self, rollout_id: str, attempt: int | None) -> bool:
        return False

    def ping(self) -> None:
        if self.error is not None:
            raise self.error

    def add_call(self, call: object) -> None:
        self.ping()


@pytest.mark.parametrize("error", [OSError(113, "No route to host"), RuntimeError("shard 7 lost")])
def test_a_foreign_store_that_fails_in_any_way_is_an_outage(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    store = ForeignStore()
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], store) as server,  # type: ignore[arg-type]
    ):
        url = f"{server.base_url}/chat/completions"
        assert httpx.post(url, json=BODY).status_code == 200
        store.error = error
        failed = httpx.post(url, json=BODY)
        assert (failed.status_code, failed.headers["retry-after"]) == (503, "5")
        assert str(error) not in failed.text
        until(lambda: any("store is down" in record.getMessage() for record in caplog.records))  # by its probe, too
        asked = len(model.requests)
        assert httpx.get(f"{server.url}/readyz").json()["store"] == "it cannot be written"
        assert httpx.post(url, json=BODY).status_code == 503
        assert len(model.requests) == asked, "no model is asked for what cannot be recorded"
        store.error = None
        until(lambda: httpx.get(f"{server.url}/readyz").status_code == 200)


class SlowStore(ForeignStore):
    """A store whose probes and writes each wait until the test lets them go on."""

    def __init__(self) -> None:
        self.answers, self.writes = threading.Event(), threading.Event()
        self.asked = self.began = 0

    def ping(self) -> None:
        self.asked += 1
        assert self.answers.wait(60)

    def add_call(self, call: object) -> None:
        self.began += 1
        assert self.writes.wait(60)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> float:
    """Probes come twenty times as fast, and what does not answer hangs after the returned seconds."""
    for name, seconds in {"_PROBE_S": 0.1, "_PROBE_LIMIT_S": 0.1, "_HANGS_S": 1.0}.items():
        monkeypatch.setattr(operation, name, seconds)
    return 1.0


def test_a_probe_waits_behind_no_call(soon: float) -> None:
    store, count = SlowStore(), min(32, (os.cpu_count() or 1) + 4) + 2  # more than the threads that calls share
    store.answers.set()
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], store) as server,  # type: ignore[arg-type]
        ThreadPoolExecutor(count) as callers,
    ):
        url = f"{server.base_url}/chat/completions"
        calls = [callers.submit(httpx.post, url, json=BODY, timeout=60) for _ in range(count)]
        until(lambda: len(model.requests) == count)
        asked = store.asked
        until(lambda: store.asked > asked + 5)
        time.sleep(soon)
        assert store.began < count, "the others wait for a thread"
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        store.writes.set()
        assert {call.result().status_code for call in calls} == {200}


def test_a_late_probe_is_no_outage_while_calls_are_recorded_and_ends_none(
    soon: float, caplog: pytest.LogCaptureFixture
) -> None:
    store = SlowStore()
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], store) as server,  # type: ignore[arg-type]
        ThreadPoolExecutor(1) as callers,
    ):
        url, ready = f"{server.base_url}/chat/completions", f"{server.url}/readyz"
        until(lambda: store.asked == 1)
        running = callers.submit(httpx.post, url, json=BODY, timeout=60)
        until(lambda: store.began == 1)
        time.sleep(soon / 2)
        store.writes.set()
        assert running.result().status_code == 200, "its record took longer than a probe may"
        end = time.monotonic() + 2 * soon
        while time.monotonic() < end:
            assert httpx.post(url, json=BODY).status_code == 200
            assert httpx.get(ready).status_code == 200
        assert not [record for record in caplog.records if "store is" in record.getMessage()]
        # It hangs: nothing answers, and nothing is recorded.
        until(lambda: httpx.get(ready).json() == {"status": "not ready", "store": "it cannot be written"})
        asked = len(model.requests)
        assert httpx.post(url, json=BODY).status_code == 503
        assert len(model.requests) == asked, "no model is asked for what cannot be recorded"
        assert store.asked == 1, "one thread waits for the answer, however long"
        store.answers.set()
        until(lambda: httpx.get(ready).status_code == 200)
        assert httpx.post(url, json=BODY).status_code == 200


def test_a_call_whose_record_hangs_is_answered(postgres: PostgresServer, soon: float) -> None:
    address = postgres.url(postgres.new_database())
    store = open_store(address)
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], store) as server,
        psycopg.connect(address) as other,
    ):
        url, ready = f"{server.base_url}/chat/completions", f"{server.url}/readyz"
        assert httpx.post(url, json=BODY, timeout=30).status_code == 200
        other.execute("LOCK TABLE lgov.calls")
        began = time.monotonic()
        failed = httpx.post(url, json=BODY, timeout=30)
        assert soon <= time.monotonic() - began < 8, "the store itself waits 10 s for a lock"
        assert (failed.status_code, failed.headers["retry-after"]) == (503, "5")
        assert "the call was answered and may have been recorded" in failed.json()["error"]["message"]
        assert httpx.get(ready).json() == {"status": "not ready", "store": "it cannot be written"}
        other.rollback()
        until(lambda: httpx.get(ready).status_code == 200)
        assert len(list(store.calls())) == 2, "the answer that its client did not get, too"
        assert httpx.post(url, json=BODY, timeout=30).status_code == 200
    store.close()


POLICY = """
version: 1
name: desk
default: deny
rules:
  - {name: read, tools: [read_order], use: allow}
"""


def lines_of(folder: Path, **more: str) -> list[dict[str, object]]:
    """What an endpoint logs, of a reply with a denied call, a wrong key, and an upstream that is gone."""
    log = folder / "serve.log"
    texts = {"log_level": "info", "log_file": str(log), "log_json": "true", **more}
    (folder / "policy.yaml").write_text(POLICY)
    keys = KeyRing(SECRET)
    call = ScriptedReply("", [ScriptedCall("delete_order", {"order": "plover-17"}, "c1")])
    with logging_by(load_settings(texts=texts, folder=folder, environ={})):
        gate = open_gate(Governance(policy=folder / "policy.yaml", audit=folder / "audit.db"))
        with ScriptedModelServer([call]) as model:
            engine = UpstreamEngine(model.base_url)
            server = EndpointServer([engine], keys=keys, gate=gate).start()
            client = openai.OpenAI(base_url=server.base_url, api_key=keys.issue("ada", 1), max_retries=0)
            client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        assert metric(server.url, 'lgov_denials_total{rule="desk/default"}', keys.admin) == 1
        with pytest.raises(openai.APIStatusError):
            client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        assert httpx.post(f"{server.base_url}/chat/completions", json=BODY).status_code == 401
        server.stop()
        gate.close()
    text = log.read_text()
    assert client.api_key not in text
    assert keys.admin not in text
    return [json.loads(line) for line in text.splitlines()]


def test_the_log_names_requests_denials_and_causes_and_neither_keys_nor_content(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    assert "plover" not in json.dumps(lines)
    assert [line["event"] for line in lines if line["event"] in ("started", "stopped")] == ["started", "stopped"]
    (denied,) = (line for line in lines if line["event"] == "denied")
    assert {denied[name] for name in ("level", "policy", "name", "rollout")} >= {"warning", "delete_order", "ada"}
    assert str(denied["decision"]).startswith("aud_")
    assert "reason" not in denied, "it may quote what the model wrote"
    failed, refused = (line for line in lines if line["event"] == "request failed")
    assert (failed["level"], failed["status"], failed["rollout"]) == ("error", 502, "ada")
    assert "127.0.0.1" in str(failed["upstream"])
    assert "Connect" in str(failed["cause"])
    assert (refused["level"], refused["status"], refused["error"]) == ("warning", 401, "no key was given")
    calls = [line for line in lines if line["event"] == "request" and line["route"] != "/metrics"]
    assert [(line["route"], line["status"]) for line in calls] == [("/v1/chat/completions", s) for s in (200, 502, 401)]
    assert (calls[0]["rollout"], calls[0]["attempt"]) == ("ada", 1)
    assert calls[2].get("rollout") is None


def test_content_is_logged_where_it_is_asked_for_and_requests_only_from_info_on(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, log_content="true", log_level="warning")
    assert {line["event"] for line in lines} == {"denied", "request failed"}
    (denied,) = (line for line in lines if line["event"] == "denied")
    assert "delete_order" in str(denied["reason"])


def test_one_id_leads_from_a_request_to_its_lines_and_its_recorded_call_and_a_line_says_what_took_the_time(
    tmp_path: Path, store: SQLiteStore
) -> None:
    texts = {"log_level": "info", "log_file": str(tmp_path / "serve.log"), "log_json": "true"}
    (tmp_path / "policy.yaml").write_text(POLICY)
    gate = open_gate(Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db"))
    keys = KeyRing(SECRET)
    headers = {"x-api-key": keys.issue("r1", 1)}
    body = b'{"id": "c1", "choices": [{"message": {"content": "Hello."}}]}'
    again, other = ScriptedReply(body=body, delay_s=0.1), ScriptedReply("Hello.", delay_s=0.1)
    with (
        logging_by(load_settings(texts=texts, folder=tmp_path, environ={})),
        ScriptedModelServer([again, other, other, again]) as model,
        EndpointServer([UpstreamEngine(model.base_url)], store, keys=keys, gate=gate) as server,
    ):
        url = f"{server.base_url}/chat/completions"
        for name, more in (("ticket-4711", {}), ("ticket-4712", {"stream": True}), (None, {}), ("ticket-4713", {})):
            named = {} if name is None else {"x-request-id": name}
            assert httpx.post(url, json={**BODY, **more}, headers={**headers, **named}).status_code == 200
        httpx.get(f"{server.base_url}/left_out", headers=headers)
    gate.close()
    lines = [json.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]
    *calls, no_call = (line for line in lines if line["event"] == "request")
    assert ("call" in no_call, "waited_ms" in no_call) == (False, False)
    spans = [call_span(call) for call in store.calls()]
    recorded = [(span.attributes["gen_ai.response.id"], span.attributes.get("lgov.request_id")) for span in spans]
    assert (recorded[0][0], recorded[3][0] == "c1") == ("c1", False), "the store had the second c1 already"
    assert [request_id for _, request_id in recorded] == ["ticket-4711", "ticket-4712", None, "ticket-4713"]
    assert [line["call"] for line in calls] == [name for name, _ in recorded]
    assert store.pages.containing(["r1", "r2"], "ticket-4711") == {"r1"}, "the window finds it"
    for line in calls:
        assert line["upstream_ms"] >= 90
        assert line["judged_ms"] > 0
        assert line["waited_ms"] + line["judged_ms"] + line["upstream_ms"] <= line["ms"] + 0.3


def test_a_call_that_got_no_place_says_how_long_it_waited(tmp_path: Path) -> None:
    texts = {"log_level": "info", "log_file": str(tmp_path / "serve.log"), "log_json": "true"}
    with (
        logging_by(load_settings(texts=texts, folder=tmp_path, environ={})),
        ScriptedModelServer([]) as model,
        EndpointServer([UpstreamEngine(model.base_url)], limits=Limits(wait_s=0.1)) as server,
    ):
        httpx.post(f"{server.url}/admin/pause", json={"reason": "version 7"})
        assert httpx.post(f"{server.base_url}/chat/completions", json=BODY).status_code == 503
    lines = map(json.loads, (tmp_path / "serve.log").read_text().splitlines())
    (call,) = (line for line in lines if line["event"] == "request" and line["route"] == "/v1/chat/completions")
    assert 90 <= call["waited_ms"] <= call["ms"]
    assert "upstream_ms" not in call


def test_the_log_says_who_sent_a_request_and_why_it_was_refused(tmp_path: Path) -> None:
    texts = {"log_level": "info", "log_file": str(tmp_path / "serve.log"), "log_json": "true"}
    keys = KeyRing(SECRET)
    ada, late = keys.issue("ada", 1), keys.issue("ada", 1, expires_at=1)
    admin = f"admin {hashlib.sha256(keys.admin.encode()).hexdigest()[:12]}"
    with (
        logging_by(load_settings(texts=texts, folder=tmp_path, environ={})),
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], keys=keys) as server,
    ):

        def post(path: str, key: str, body: object = BODY, request_id: str = "") -> httpx.Response:
            named = {"x-request-id": request_id} if request_id else {}
            return httpx.post(f"{server.url}{path}", json=body, headers={"x-api-key": key, **named})

        answers = [
            post("/v1/chat/completions", ada, request_id="mine-1"),
            post("/rollout/bob/attempt/1/v1/chat/completions", ada, request_id="mine-2"),
            post("/v1/chat/completions", late, request_id="two words"),
            post("/v1/chat/completions", "wrong", request_id="x" * 129),
            post("/admin/keys", keys.admin, {"rollout_id": "eve"}),
            post("/admin/pause", keys.admin, {"reason": "version 7"}),
            post("/admin/resume", keys.admin, {}),
        ]
        for probe in ("/healthz", "/readyz", "/metrics"):
            assert httpx.get(f"{server.url}{probe}", headers={"x-api-key": keys.admin}).status_code == 200
    text = (tmp_path / "serve.log").read_text()
    assert not any(key in text for key in (ada, late, keys.admin))
    lines = [line for line in map(json.loads, text.splitlines()) if line["event"] not in ("started", "stopped")]
    assert {line["peer"] for line in lines} == {"127.0.0.1"}
    # A client's own id is kept where it can be printed and is short.
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert ids[:2] == ["mine-1", "mine-2"]
    assert len(set(ids)) == 7
    assert all(name.startswith("req_") for name in ids[2:])
    of_ids = [
        [(line["event"], line.get("key_of"), line.get("error")) for line in lines if line["request_id"] == name]
        for name in ids
    ]
    assert sum(map(len, of_ids)) == len(lines), "a probe has no line"
    not_for_bob = "the key is for rollout 'ada', not for 'bob'"
    assert of_ids == [
        [("request", "ada", None)],
        [("request", "ada", None), ("request failed", "ada", not_for_bob)],
        [("request", "ada", None), ("request failed", "ada", "the key has expired")],
        [("request", None, None), ("request failed", None, "the key is not one of this endpoint's")],
        [("key issued", admin, None), ("request", admin, None)],
        [("paused", admin, None), ("request", admin, None)],
        [("resumed", admin, None), ("request", admin, None)],
    ]


def test_a_replica_says_which_policy_and_version_it_runs(tmp_path: Path) -> None:
    lines = lines_of(tmp_path)
    digest = load_policy_file(tmp_path / "policy.yaml").digest
    (started,) = (line for line in lines if line["event"] == "started")
    assert (started["version"], started["policy_digest"]) == (lgov_core.__version__, digest)
    gate = open_gate(Governance(policy=tmp_path / "policy.yaml", audit=tmp_path / "audit.db"))
    with (
        ScriptedModelServer(["Hello."]) as model,
        EndpointServer([UpstreamEngine(model.base_url)], gate=gate) as server,
    ):
        labels = f'{{policy_digest="{digest}",version="{lgov_core.__version__}"}}'
        assert metric(server.url, f"lgov_info{labels}") == 1
        state = httpx.get(f"{server.url}/admin/state").json()
        assert (state["version"], state["policy_digest"]) == (lgov_core.__version__, digest)
    gate.close()


@pytest.mark.parametrize("json_lines", ["true", "false"])
def test_a_log_that_cannot_be_written_is_one_line_on_standard_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], json_lines: str
) -> None:
    texts = {"log_file": "/dev/full", "log_json": json_lines}
    with logging_by(load_settings(texts=texts, folder=tmp_path, environ={})):
        for _ in range(3):
            logging.getLogger("lgov.gateway").warning("upstream is down")
    (line,) = capfd.readouterr().err.splitlines()
    assert "the log cannot be written" in line
    assert "No space left on device" in line
    assert line.startswith("{") == (json_lines == "true")


def test_a_line_of_text_has_one_word_a_field(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with logging_by(load_settings(texts={"log_file": str(log)}, folder=tmp_path, environ={})):
        fields = {"lgov_fields": {"upstream": "a:1", "cause": "no\nroute", "none": None}}
        logging.getLogger("lgov.gateway").warning("upstream is down", extra=fields)
        logging.getLogger("lgov.gateway").info("request", extra=fields)
        log.rename(tmp_path / "rotated")
        logging.getLogger("lgov.gateway").warning("again")
    assert (
        (tmp_path / "rotated")
        .read_text()
        .endswith('warning lgov.gateway upstream is down upstream=a:1 cause="no\\nroute"\n')
    )
    assert "again" in log.read_text(), "a file that was moved away is opened again"
    assert log.stat().st_mode & 0o777 == 0o600


def test_two_secrets_open_while_keys_are_rotated_and_one_key_is_revoked(tmp_path: Path) -> None:
    old, new, revoked = SECRET, b"f" * 32, tmp_path / "revoked"
    secret = tmp_path / "secret"
    private(secret, f"# rotated in November\n{new.decode()}\n\n{old.decode()}\n")
    revoked.touch(mode=0o600)
    keys = KeyRing(read_secrets(secret), is_revoked=RevokedKeys(revoked))
    ada, eve = KeyRing(old).issue("ada"), keys.issue("eve")
    assert eve == KeyRing(new).issue("eve"), "the first secret makes new keys"
    assert {keys.check(key).rollout_id for key in (ada, eve)} == {"ada", "eve"}
    assert keys.check(KeyRing(old).admin).admin
    with pytest.raises(EndpointError, match="issued elsewhere"):
        keys.check(KeyRing(b"g" * 32).issue("ada"))
    revoked.write_text("# left the company\n" + hashlib.sha256(ada.encode()).hexdigest() + "\n")
    with pytest.raises(EndpointError, match="revoked"):
        keys.check(ada)
    with pytest.raises(EndpointError, match="was revoked") as refused:
        KeyRing(old, is_revoked=RevokedKeys(revoked)).issue("ada")  # it would be the same
    assert refused.value.status == 409
    assert keys.check(eve).rollout_id == "eve"
    # A list that cannot be read opens nothing, and says nothing about the key.
    revoked.write_text("eve@example.com\n")
    with pytest.raises(EndpointError, match="cannot be checked now") as refused:
        keys.check(eve)
    assert (refused.value.status, retry_headers(refused.value)) == (503, {"retry-after": "5"})
    with pytest.raises(EndpointError, match="line 1 is neither a whole key as it was issued nor the SHA-256"):
        RevokedKeys(revoked)
    revoked.unlink()
    with pytest.raises(EndpointError, match="cannot be checked now"):
        keys.check(eve)
    assert KeyRing(read_secrets(secret)).check(ada).rollout_id == "ada"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no line of it holds a key"),
        (b"\n\n", "no line of it holds a key"),
        (b"# rotated 2026-11\n", "no line of it holds a key"),
        (b"f" * 32 + b"\nplover\n" + b"g" * 32, "line 2 has 6 bytes, and a secret 16 or more"),
        (bytes(range(128, 160)), "it is not text"),
    ],
)
def test_a_file_without_a_secret_on_each_line_is_refused_and_never_shown(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(EndpointError) as refused:
        read_secrets(path)
    assert refused.value.message == f"the keys in {path} cannot be used: {why}"
    with pytest.raises(EndpointError, match="the key secret has 0 bytes"):
        KeyRing(())


@pytest.mark.parametrize("command", ["serve --upstream http://127.0.0.1:9/v1", "train --serve --model tiny"])
def test_no_server_starts_with_a_file_of_secrets_that_has_none(tmp_path: Path, command: str) -> None:
    private(tmp_path / "secret", "\n")
    arguments = [sys.executable, "-m", "lgov_core", *command.split(), "--key-secret-file", "secret"]
    result = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "secret cannot be used: no line of it holds a key\n" in result.stderr


def test_calls_and_tokens_are_counted_by_agent_and_key_where_that_is_asked_for() -> None:
    keys = KeyRing(SECRET)
    limits = Limits(metrics_by=("agent", "key"))
    with (
        ScriptedModelServer(lambda body: "Hello.") as model,
        EndpointServer([UpstreamEngine(model.base_url)], open_store("memory://"), keys=keys, limits=limits) as server,
    ):
        for rollout, agent in (("ada", "desk"), ("eve", "desk")):
            headers = {"authorization": f"Bearer {keys.issue(rollout, 1)}", "x-lgov-agent": agent}
            assert httpx.post(f"{server.base_url}/chat/completions", json=BODY, headers=headers).status_code == 200
        text = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {keys.admin}"}).text
    assert 'lgov_calls_by_agent_total{agent="desk"} 2.0' in text
    assert 'lgov_calls_by_key_total{key="eve"} 1.0' in text
    assert 'lgov_tokens_by_key_total{key="ada"}' in text


def test_names_beyond_the_bound_are_counted_together() -> None:
    use = UseCounts(("agent",))
    for number in range(300):
        use.add(Attribution(None, None, f"agent-{number}"), 1, 10)
    calls = next(iter(use.readings()))[4]
    assert (len(calls), calls["(others)"]) == (201, 100)


def test_the_endpoint_speaks_https_with_a_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    limits = Limits(tls=(str(certificate), str(key)))
    with (
        ScriptedModelServer(["Hello."]) as model,
        EndpointServer([UpstreamEngine(model.base_url)], limits=limits) as server,
        httpx.Client(verify=ssl.create_default_context(cafile=str(certificate))) as http,
    ):
        assert server.base_url.startswith("https://127.0.0.1:")
        client = openai.OpenAI(base_url=server.base_url, api_key="any", http_client=http)
        stream = client.chat.completions.create(**BODY, stream=True)  # type: ignore[call-overload]
        assert "".join(piece.choices[0].delta.content or "" for piece in stream if piece.choices) == "Hello."
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http") + "/healthz")
    with pytest.raises(EndpointError, match="cannot be used"):
        EndpointServer([UpstreamEngine("http://127.0.0.1:1/v1")], limits=Limits(tls=(str(key), str(key)))).start()
