"""A training server is killed at once and started again on its folder: client and rollouts go on where they were."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.client.client import TrainResult
from lgov_core.client.wire import ServerConnection
from lgov_core.server.run_state import RunState
from lgov_core.server.training import TrainingServer
from lgov_core.store import QueueEntry, open_store
from lgov_core.train.loop.run_files import read_batch
from lgov_core.types import Attempt
from tests.pair.conftest import settings
from tests.pair.pair_agents import ask
from tests.pair.test_train_commands import until
from tests.pair.warm_process import Warm

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")

CONFIG = """\
model: {max_new_tokens: 4}
training: {batch_size: 2, group_size: 3, steps: 1, epochs: 20, learning_rate: 0.005, kl_coef: 0.0}
"""
TASKS = [{"question": "digits 1"}, {"question": "digits 2"}]


class Server:
    """``lgov train --serve`` on one folder; every start but the first is with ``--resume``, at the address of the first."""

    def __init__(self, folder: Path, warm: Warm, model: Path) -> None:
        self.folder, self._warm, self._model = folder, warm, model
        self.url, self._port, self._pid, self._starts = "", "0", 0, 0
        (folder / "config.yaml").write_text(CONFIG)

    def start(self) -> None:
        log = self.folder / f"log-{self._starts}.txt"
        argv = ["lgov", "train", "config.yaml", "--folder", "run", "--serve", f"127.0.0.1:{self._port}"]
        given = {"argv": argv + ["--resume"] * bool(self._starts), "cwd": str(self.folder), "log": str(log)}
        self._pid = self._warm.ask({**given, "env": {"LIGHTNING_MODEL_PATH": str(self._model)}, "hold": None})
        self._starts += 1

        def find() -> Any:
            said = log.read_text() if log.exists() else ""
            assert not re.search("error:|Traceback", said), said
            return re.search(r"training server on (http://\S+:(\d+)),", said)

        found = until(find, "the server is up")
        self.url, self._port = found[1], found[2]

    def kill(self) -> None:
        pid, self._pid = self._pid, 0
        if pid:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            self._warm.ask({"wait": pid})

    def left(self) -> tuple[list[QueueEntry], list[Attempt]]:
        """What is in the queue of the store, and the attempts there."""
        store = open_store(self.folder / "run" / "store.sqlite", make=False)
        try:
            return store.queue_entries(), store.attempts()
        finally:
            store.close()


class Held:
    """An agent that asks the model. Attempts of ``mode``, but for the first ``few``, then wait, and ask again."""

    def __init__(self, mode: str, few: int) -> None:
        self._mode, self._few = mode, few
        self._lock, self._go = threading.Lock(), threading.Event()
        self.asked: Counter[tuple[str, str]] = Counter()
        self.held: set[str] = set()

    def __call__(self, resource: Any, task: Any) -> float:
        said = ask(resource, task.question)
        with self._lock:
            self.asked[resource.mode, resource.rollout_id] += 1
            wait = resource.mode == self._mode and sum(mode == self._mode for mode, _ in self.asked) > self._few
            if wait:
                self.held.add(resource.rollout_id)
        if wait:
            self._go.wait()
            said = ask(resource, task.question)
        return 0.5 + sum(one.isdigit() for one in said) / 4

    def let_go(self) -> None:
        self._go.set()


class Training:
    """A client that trains in a thread, with two workers."""

    def __init__(self, url: str, agent: Held) -> None:
        self._client, self.agent = Client(url, quiet=True), agent
        self._found: list[TrainResult | Exception] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._client.train(self.agent, nworkers=2, auto_instrumentation=False))
        except Exception as error:
            self._found.append(error)

    def result(self) -> TrainResult:
        self.thread.join()
        (found,) = self._found
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def server(tmp_path: Path, warm: Warm, model_folder: Path) -> Iterator[Server]:
    found = Server(tmp_path, warm, model_folder)
    found.start()
    yield found
    found.kill()


@pytest.fixture
def train(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Held], Training]]:
    """Begins to train with an agent."""
    # However long the server takes to start again, no attempt runs out meanwhile.
    monkeypatch.setattr("lgov_core.client.client._LEASE_S", 3600.0)
    begun: list[Training] = []

    def begin(agent: Held) -> Training:
        begun.append(Training(server.url, agent))
        return begun[-1]

    yield begin
    server.kill()
    for one in begun:
        one.agent.let_go()
        one.thread.join()


def states(entries: Sequence[QueueEntry]) -> Counter[str]:
    return Counter(entry.state.value for entry in entries)


def test_a_server_that_is_killed_while_it_collects_goes_on_with_the_same_rollouts(
    server: Server, train: Callable[[Held], Training]
) -> None:
    Client(server.url, quiet=True).upload_data(TASKS)
    training = train(agent := Held("train", few=2))
    until(lambda: len(agent.held) == 2, "two have ended, two run and two wait")
    server.kill()
    before, attempts = server.left()
    assert states(before) == {"succeeded": 2, "running": 2, "queued": 2}
    assert {one.rollout_id for one in attempts if one.outcome is None} == agent.held
    server.start()
    agent.let_go()
    result = training.result()
    # The update is made of the rollouts that were there, and each of them was run once.
    ids = {entry.rollout_id for entry in before}
    after, attempts = server.left()
    assert {entry.rollout_id for entry in after} == ids
    assert states(after) == {"succeeded": 6}
    once = sorted((one, 1) for one in ids)
    assert sorted((one.rollout_id, one.attempt) for one in attempts) == once
    assert agent.asked == {("train", one): 1 for one in ids}
    # Of those that ran, the call before the kill and the one after it belong to one attempt.
    batch = read_batch(server.folder / "run" / "transitions", 1)
    assert batch is not None
    calls = Counter((one.rollout_id, one.attempt) for one in batch[1])
    assert calls == {(one, 1): 2 if one in agent.held else 1 for one in ids}
    (line,) = result.metrics
    assert (line["step"], line["rollouts"], line["usable"], result.counts["succeeded"]) == (1, 6, 6, 6)


def test_held_out_tasks_of_a_server_that_was_killed_are_run_anew_and_nobody_runs_the_old_rollouts(
    server: Server, train: Callable[[Held], Training]
) -> None:
    Client(server.url, quiet=True).upload_data(TASKS, [{"question": "digits please"}] * 3)
    training = train(agent := Held("test", few=0))
    until(lambda: len(agent.held) == 2, "two run and one waits")
    server.kill()
    before, _ = server.left()
    assert states(before) == {"running": 2, "queued": 1}
    server.start()
    agent.let_go()
    result = training.result()
    assert [(line["phase"], line["step"]) for line in result.metrics] == [("test", 0), ("train", 1), ("test", 1)]
    after, _ = server.left()
    old = {entry.rollout_id for entry in before}
    assert states([entry for entry in after if entry.rollout_id in old]) == {"cancelled": 3}
    assert states([entry for entry in after if entry.rollout_id not in old]) == {"succeeded": 3 + 6 + 3}
    assert old & {rollout_id for _, rollout_id in agent.asked} == agent.held & old
    assert all(line["usable"] == line["rollouts"] for line in result.metrics)
    assert (server.folder / "run" / "keys.secret").stat().st_mode & 0o077 == 0


def test_a_client_finds_its_run_as_soon_as_the_server_is_there(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run = RunState(tmp_path / "run", first=0, steps=1)
    body = {"worker_id": "client_1", "limit": 1, "lease_s": 30.0, "wait_s": 0.0, "run": run.run_id, "after": 0}
    with TrainingServer(settings(model_folder), folder=tmp_path / "run", resume=True) as server:  # it trains not yet
        answer = ServerConnection(server.url, patience_s=0.0).post("/train/claim", body)
    assert (answer["assignments"], answer["progress"]["state"]) == ([], "starting")
