"""Clients and servers that die, and connections that break: what was acknowledged is there, once."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from lgov_core.errors import StoreError
from lgov_core.store.postgres import PostgresStore
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span
from tests.postgres_server import PROCESSES, PostgresServer

ROUNDS = 20


def call(response_id: str, rollout_id: str | None = None) -> CapturedCall:
    ids = tuple(range(30))
    return CapturedCall(
        response_id, "tiny", {"x": "x" * 500}, {}, ids, ids, (-0.5,) * 30, "stop", 0, 1.0, 1.0, 1.0, 2.0, rollout_id, 1
    )


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# ------------------------------------------------------------------ those who die


def write_for_ever(
    store: PostgresStore, tag: str, acknowledge: Callable[[str, str], None], stop: threading.Event
) -> None:
    """One rollout after another, from its beginning to its end."""
    for i in itertools.count():
        if stop.is_set():
            return
        name = f"{tag}-{i}"
        store.enqueue([Rollout(name, "t", tag, {})])
        (claim,) = store.claim(tag, lease_s=600, run_id=tag)
        assert claim.rollout.rollout_id == name
        store.add_call(call(name, name))
        acknowledge("call", name)
        store.add_spans([Span("x", f"{name}-{k}", 1.0, 2.0, {"x": "x" * 500}, name) for k in range(15)])
        acknowledge("spans", name)
        # Three rewards and an ending: all of it, or nothing.
        store.finish_attempt(name, 1, Outcome.SUCCEEDED, rewards=[Reward(float(k), source=name) for k in range(3)])
        acknowledge("attempt", name)


def be_killed(address: str, tag: str, out: int) -> None:
    store = PostgresStore(address)
    stop = threading.Event()

    def say(kind: str, name: str) -> None:
        os.write(out, f"{kind} {name}\n".encode())  # so short that it is written whole or not at all

    for number in range(2):
        arguments = (store, f"{tag}.{number}", say, stop)
        threading.Thread(target=write_for_ever, args=arguments, daemon=True).start()
    stop.wait()


def require_all_of(acknowledged: list[tuple[str, str]], address: str) -> None:
    """What was acknowledged is there, once, and nothing is there by half."""
    said = {kind: {name for of, name in acknowledged if of == kind} for kind in ("call", "spans", "attempt")}
    with PostgresStore(address) as store:
        calls = Counter(one.response_id for one in store.calls())
        assert said["call"] <= calls.keys()
        assert set(calls.values()) <= {1}
        assert all(one.request == {"x": "x" * 500} for one in store.calls())
        spans = Counter(one.rollout_id for one in store.spans())
        assert said["spans"] <= spans.keys()
        assert set(spans.values()) <= {15}
        succeeded = {one.rollout_id for one in store.attempts() if one.outcome is Outcome.SUCCEEDED}
        assert said["attempt"] <= succeeded
        paid: dict[str | None, list[float]] = {}
        for reward in store.rewards():
            paid.setdefault(reward.rollout_id, []).append(reward.value)
        assert paid.keys() == succeeded
        assert all(values == [0.0, 1.0, 2.0] for values in paid.values())


def test_clients_that_are_killed_lose_nothing(address: str) -> None:
    acknowledged: list[tuple[str, str]] = []
    open_before = 0
    with PostgresStore(address) as store:
        for number in range(ROUNDS):
            pipe, out = PROCESSES.Pipe(duplex=False)
            child = PROCESSES.Process(target=_be_killed, args=(address, f"k{number}", out))
            child.start()
            out.close()
            with os.fdopen(os.dup(pipe.fileno()), "rb") as lines:
                pipe.close()
                # Another point in the writer's work each time.
                seen = [lines.readline() for _ in range(4 + 2 * number)]
                os.kill(child.pid, signal.SIGKILL)  # type: ignore[arg-type]
                seen += lines.readlines()  # what was said between the last line read and the kill
            child.join(30)
            assert child.exitcode == -signal.SIGKILL
            acknowledged += [tuple(line.decode().split()) for line in seen]  # type: ignore[misc]
            # What the dead client had in hand is failed with a reason, and none of it stays open.
            open_before += store.fail_open_attempts(f"client {number} was killed")
            assert all(one.outcome is not None for one in store.attempts())
        failed = [one for one in store.attempts() if one.outcome is Outcome.INFRASTRUCTURE]
        assert len(failed) == open_before
    require_all_of(acknowledged, address)


def _be_killed(address: str, tag: str, out: Any) -> None:
    be_killed(address, tag, out.fileno())


def test_a_server_that_is_killed_loses_nothing_and_the_store_goes_on(server: PostgresServer, address: str) -> None:
    acknowledged: list[tuple[str, str]] = []
    failed: list[BaseException] = []
    stop = threading.Event()

    def write(store: PostgresStore, tag: str) -> None:
        try:
            write_for_ever(store, tag, lambda kind, name: acknowledged.append((kind, name)), stop)
        except BaseException as error:
            failed.append(error)

    with PostgresStore(address, reconnect_s=60) as store, PostgresStore(address, reconnect_s=60) as other:
        threads = [threading.Thread(target=write, args=(one, f"t{i}")) for i, one in enumerate([store, other, store])]
        for thread in threads:
            thread.start()
        until(lambda: len(acknowledged) > 40, "nothing is written")
        server.kill()
        before = len(acknowledged)
        server.start()
        until(lambda: len(acknowledged) > before + 20, "nothing is written after the server came back")
        stop.set()
        for thread in threads:
            thread.join(60)
        assert failed == []
        assert store.fail_open_attempts("") == 0
    require_all_of(acknowledged, address)


def test_a_server_that_does_not_come_back_is_an_error_and_one_that_does_is_none(
    server: PostgresServer, address: str
) -> None:
    with PostgresStore(address, reconnect_s=0.2) as store:
        store.add_call(call("c1"))
        assert len(store.rollouts()) == 0
        server.kill()
        try:
            store.add_span(Span("x", "s1", 1.0, 2.0, {}))  # returns at once, whatever the server does
            with pytest.raises(StoreError, match=r"\(see whether the server runs"):
                store.add_call(call("c2"))
            with pytest.raises(StoreError, match=r"\(see whether the server runs"):
                store.rollouts()
            with pytest.raises(StoreError, match=r"\(see whether the server runs"):
                store.flush()
            assert store.dropped_spans == 1
        finally:
            server.start()
        store.add_call(call("c3"))
        assert [one.response_id for one in store.calls()] == ["c1", "c3"]


# ------------------------------------------------------------------ a connection that breaks at the worst moment


class Line:
    """A Unix socket between a store and the server, which breaks once, when the store commits.

    ``how`` says when: ``before`` the server reads it, ``after`` the server answered it, or ``between``: the store is cut
    off, and the server reads it once the store asks what became of it.
    """

    def __init__(self, server: PostgresServer, database: str, how: str) -> None:
        self._server = server
        self._database = database
        self.how = how
        self._armed = False
        self.done_when_cut: bool | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="lgov-line-"))
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.folder / ".s.PGSQL.5432"))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"postgresql://lgov@/{self._database}?host={self.folder}"

    def arm(self) -> None:
        self._armed = True

    def close(self) -> None:
        self.cut_off()
        (self.folder / ".s.PGSQL.5432").unlink()
        self.folder.rmdir()

    def cut_off(self) -> None:
        """Lets nobody connect any more."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(str(self._server.folder / ".s.PGSQL.5432"))
                deaf = threading.Event()
                threading.Thread(target=self._down, args=(upstream, client, deaf), daemon=True).start()
                threading.Thread(target=self._up, args=(client, upstream, deaf), daemon=True).start()

    def _up(self, client: socket.socket, upstream: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._armed and b"COMMIT\0" in data:
                    self._armed = False
                    deaf.set()
                    if self.how == "after":
                        upstream.sendall(data)
                        until(lambda: not self._writing(), "the server does not commit")
                    self.done_when_cut = self._done()
                    client.shutdown(socket.SHUT_RDWR)
                    if self.how == "between":
                        until(self._waits, "the store does not ask")
                        upstream.sendall(data)
                        until(lambda: not self._waits(), "the server does not commit")
                    break
                upstream.sendall(data)
        for one in (client, upstream):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _down(self, upstream: socket.socket, client: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := upstream.recv(65536):
                if not deaf.is_set():
                    client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)

    def _writing(self) -> bool:
        return self._count("backend_xid IS NOT NULL")

    def _waits(self) -> bool:
        return self._count("wait_event_type = 'Lock'")

    def _done(self) -> bool:
        return self._server.execute("SELECT count(*) FROM lgov.attempts", database=self._database) != [(0,)]

    def _count(self, condition: str) -> bool:
        return self._server.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {condition}") != [(0,)]


@pytest.fixture
def line(request: pytest.FixtureRequest, server: PostgresServer, address: str) -> Iterator[Line]:
    line = Line(server, str(conninfo_to_dict(address)["dbname"]), request.param)
    yield line
    line.close()


@pytest.mark.parametrize("line", ["before", "after", "between"], indirect=True)
def test_a_commit_that_nobody_heard_of_is_looked_up_and_not_made_twice(
    server: PostgresServer, address: str, line: Line
) -> None:
    with PostgresStore(line.address) as store:
        store.add_rollouts([Rollout("r1", "t", "run", {})])
        line.arm()
        opened = store.start_attempt("r1", 1)  # made twice, it would say that the attempt exists
        assert line.done_when_cut is (line.how == "after")
        store.add_call(call("c1"))
        with pytest.raises(StoreError, match="call c1 exists"):
            store.add_call(call("c1"))
    with PostgresStore(address) as store:
        assert store.attempts() == [opened]
        assert len(list(store.calls())) == 1


@pytest.mark.parametrize("line", ["before"], indirect=True)
def test_a_commit_of_which_nobody_can_be_asked_is_an_error_that_says_so(
    server: PostgresServer, address: str, line: Line
) -> None:
    with PostgresStore(line.address, reconnect_s=0.2) as store:
        store.flush()  # connects
        line.arm()
        line.cut_off()
        with pytest.raises(StoreError, match=r"it is unknown whether it was written"):
            store.add_call(call("c1"))
        with pytest.raises(StoreError):
            store.add_call(call("c2"))


def test_a_connection_that_is_cut_between_two_writes_is_made_anew(server: PostgresServer, address: str) -> None:
    with PostgresStore(address) as store:
        for i in range(5):
            store.add_call(call(f"c{i}"))
            assert len(list(store.calls())) == i + 1
            server.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                f" WHERE datname = '{conninfo_to_dict(address)['dbname']}'"
            )
        assert len(list(store.calls())) == 5
