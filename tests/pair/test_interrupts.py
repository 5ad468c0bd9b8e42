"""Ctrl-C at every moment of the commands that train, measure and hand on: what it says, what is left, and how it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.store import open_store
from lgov_core.train.loop.checkpoint import complete_checkpoints, read_checkpoint
from tests.pair import pair_agents as agents
from tests.pair.test_train_commands import until
from tests.pair.warm_process import Warm
from tests.slow import slow

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")

AGENT = '''
import os
import time
from pathlib import Path

from tests.pair.pair_agents import ask

HERE = Path(__file__).parent


def wait(name):
    """Waits where the test wants it to, until it lets go."""
    if (HERE / f"hold-{name}").exists():
        (HERE / f"held-{name}").touch()
        while not (HERE / f"go-{name}").exists():
            time.sleep(0.02)


def agent(resource, task):
    with (HERE / "pids").open("a") as file:
        file.write(f"{os.getpid()}\\n")
    wait(resource.mode)
    return sum(one.isdigit() for one in ask(resource, task.question)) / 4


wait("import")
'''
CONFIG = """\
model: {max_new_tokens: 4}
training: {batch_size: 2, group_size: 2, steps: 3, epochs: 20, learning_rate: 0.005, kl_coef: 0.0, checkpoint_every: 1}
data: {train: tasks.jsonl, test: tasks.jsonl}
runtime: {auto_instrumentation: false, nworkers: 2}
"""


class Session:
    """A folder with an agent, tasks and settings, and the commands that run there, one at a time."""

    def __init__(self, folder: Path, warm: Warm, model: Path) -> None:
        self.folder, self._warm, self._model = folder, warm, model
        self.log = folder / "log.txt"
        self.pid = 0
        (folder / "agent.py").write_text(AGENT)
        (folder / "tasks.jsonl").write_text('{"question": "digits 1"}\n{"question": "digits 2"}\n')
        (folder / "config.yaml").write_text(CONFIG)

    def begin(self, *argv: str, at: str | None = None) -> None:
        """Begins a command; ``at`` is where it waits."""
        for old in (self.log, *self.folder.glob("*-here")):
            old.unlink(missing_ok=True)
        hold = {"at": at, "held": str(self.folder / "held-here"), "go": str(self.folder / "go-here")} if at else None
        environment = {"LIGHTNING_MODEL_PATH": str(self._model), "LGOV_CACHE": str(self.folder)}
        self.pid = self._warm.ask(
            {"argv": argv, "cwd": str(self.folder), "env": environment, "log": str(self.log), "hold": hold}
        )

    def train(self, *more: str, at: str | None = None) -> None:
        self.begin("lgov", "train", "config.yaml", "--agent", "agent.py:agent", "--folder", "run", *more, at=at)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        os.kill(self.pid, number)

    def ended(self) -> int:
        """The exit status."""
        pid, self.pid = self.pid, 0
        return self._warm.ask({"wait": pid})

    def kill(self) -> None:
        if self.pid:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self.ended()

    @property
    def said(self) -> str:
        """What the command wrote to either output."""
        return self.log.read_text() if self.log.exists() else ""

    def until_held(self, name: str = "here") -> None:
        try:
            until((self.folder / f"held-{name}").exists, f"it waits for {name}")
        except AssertionError as error:
            raise AssertionError(self.said) from error

    def until_said(self, text: str) -> None:
        until(lambda: text in self.said, text)

    def hold(self, name: str) -> None:
        """The agent waits when it comes there: ``import``, ``train`` (a task) or ``test``."""
        (self.folder / f"hold-{name}").touch()

    def let_go(self, name: str = "here") -> None:
        (self.folder / f"hold-{name}").unlink(missing_ok=True)
        (self.folder / f"go-{name}").touch()

    def lines(self, phase: str) -> list[Any]:
        path = self.folder / "run" / "metrics.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line["step"] for line in found if line["phase"] == phase]

    def assert_interrupted(self, *, lines: int | None = None) -> str:
        """It ended by Ctrl-C as it should: the last line, which is returned, is all that it says of it."""
        assert self.ended() == 130, self.said
        assert "Traceback" not in self.said
        assert "Exception" not in self.said
        *_, last = self.said.splitlines()
        assert last.startswith("interrupted")
        if (self.folder / "run" / "checkpoints").exists():
            checkpoints = self.folder / "run" / "checkpoints"
            assert {path.name for path in checkpoints.iterdir()} - {"best.json"} == {
                path.name for path in complete_checkpoints(checkpoints)
            }
            for path in complete_checkpoints(checkpoints):
                read_checkpoint(path)
        assert not [path for path in self.folder.rglob("*.partial")]
        return last


@pytest.fixture
def session(tmp_path: Path, warm: Warm, model_folder: Path) -> Iterator[Session]:
    found = Session(tmp_path, warm, model_folder)
    yield found
    found.kill()


def test_a_training_ended_by_sigterm_goes_on_to_its_end_and_further_and_no_further_than_that(session: Session) -> None:
    """As a queue of jobs does it: SIGTERM at the limit of time, and the same command with --resume again and again."""
    session.train(at="step")
    session.until_held()
    session.interrupt(signal.SIGTERM)
    session.until_said("ending after the update in progress; once more ends at once")
    session.let_go()
    assert "kept, continue with --resume --folder run" in session.assert_interrupted()
    assert complete_checkpoints(session.folder / "run" / "checkpoints")
    for _ in range(2):
        session.train("--resume")
        assert session.ended() == 0, session.said
        assert session.lines("train") == [1, 2, 3]
    assert "nothing left to do: 3 of 3 updates" in session.said
    kept = [path.name for path in complete_checkpoints(session.folder / "run" / "checkpoints")]
    # More is an extension; less, and other tasks, contradict what was done.
    session.train("--resume", "--steps", "2")
    assert session.ended() == 1
    assert "3 updates are made, and the settings ask for 2" in session.said
    program = (session.folder / "agent.py").read_text()
    (session.folder / "agent.py").write_text(f"{program}\n# it earns by another rule now\n")
    session.train("--resume", "--steps", "4")
    assert session.ended() == 1
    assert "agent.py (agent) is not as it was when the run in run began" in session.said
    (session.folder / "agent.py").write_text(program)
    (session.folder / "other.jsonl").write_text('{"question": "digits 1"}\n{"question": "digits 7"}\n')
    session.train("--resume", "--tasks", "other.jsonl")
    assert session.ended() == 1
    assert "the training in run has another task 2 in its train tasks" in session.said
    assert [path.name for path in complete_checkpoints(session.folder / "run" / "checkpoints")] == kept
    more = (session.folder / "tasks.jsonl").read_text() + '{"question": "digits 3"}\n'
    (session.folder / "more.jsonl").write_text(more)
    session.train("--resume", "--steps", "4", "--tasks", "more.jsonl")
    assert session.ended() == 0, session.said
    assert session.lines("train") == [1, 2, 3, 4]
    best = json.loads((session.folder / "run" / "checkpoints" / "best.json").read_text())
    assert best["what"] == "held_out_reward"


@slow
def test_lgov_train_is_interrupted_at_every_moment_and_each_time_goes_on(session: Session) -> None:
    # While it imports what it needs, of which the agent is a part.
    session.hold("import")
    session.train()
    session.until_held("import")
    session.interrupt()
    assert session.assert_interrupted() == "interrupted"
    assert not (session.folder / "run").exists()
    session.let_go("import")
    # While the model is loaded.
    session.train(at="open:config.json")
    session.until_held()
    session.interrupt()
    assert "run the same command again" in session.assert_interrupted()
    # While the tasks go to the server.
    session.train(at="rename:train.jsonl")
    session.until_held()
    session.interrupt()
    session.let_go()
    assert "0 updates are kept, continue with --resume --folder run" in session.assert_interrupted()
    # While held-out tasks are run.
    session.hold("test")
    session.train("--resume")
    session.until_held("test")
    session.interrupt()
    assert "0 updates are kept" in session.assert_interrupted()
    session.let_go("test")
    # While rollouts are collected.
    session.hold("train")
    session.train("--resume")
    session.until_held("train")
    session.interrupt()
    assert "0 updates are kept" in session.assert_interrupted()
    session.let_go("train")
    store = open_store(session.folder / "run" / "store.sqlite", make=False)
    assert all(attempt.outcome is not None for attempt in store.attempts())
    store.close()
    # In the middle of an update, which is finished first.
    session.train("--resume", at="step")
    session.until_held()
    session.interrupt()
    session.until_said("ending after the update in progress; once more ends at once")
    session.let_go()
    assert "1 update is kept" in session.assert_interrupted()
    # While a checkpoint is written.
    session.train("--resume", at="open:.step-000002.partial")
    session.until_held()
    session.interrupt()
    session.until_said("ending after")
    session.let_go()
    assert "2 updates are kept" in session.assert_interrupted()
    assert [path.name for path in complete_checkpoints(session.folder / "run" / "checkpoints")][-1] == "step-000002"
    # In the middle of an update, twice: that update is not finished now.
    session.train("--resume", at="step")
    session.until_held()
    session.interrupt()
    session.until_said("ending after")
    session.interrupt()
    session.let_go()
    last = session.assert_interrupted()
    assert "2 updates are kept" in last or "3 updates are kept" in last, "it was in its last pass"
    session.train("--resume")
    assert session.ended() == 0, session.said
    assert session.lines("train") == [1, 2, 3]
    assert session.lines("test")[0] == 0
    assert session.lines("test")[-1] == 3


def test_a_server_is_interrupted_while_it_loads_and_twice_in_an_update(session: Session) -> None:
    command = ("server", "--config", "config.yaml", "--folder", "run", "--port", "0")
    session.begin(*command, at="open:config.json")
    session.until_held()
    session.interrupt()
    assert "run the same command again" in session.assert_interrupted()
    session.begin(*command, at="step")
    url = str(until(lambda: re.search(r"training server on (http://\S+),", session.said), "the server is up")[1])
    client = Client(url, quiet=True, patience_s=0.0)
    client.upload_data([{"question": "digits"}])
    failed: list[Exception] = []

    def train() -> None:
        try:
            client.train(agents.digits, nworkers=2, auto_instrumentation=False)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    session.until_held()
    session.interrupt()
    session.until_said("ending after")
    session.interrupt()
    assert "0 updates are kept, continue with --resume --folder run" in session.assert_interrupted()
    thread.join()
    assert failed, "the client was not told"
    # The update that was given up is made from its batch when it goes on, before anybody asks.
    session.begin(*command, "--resume")
    session.until_said("training server on")
    session.interrupt()
    assert "1 update is kept" in session.assert_interrupted()
    assert session.lines("train") == [1]


@slow
def test_a_measurement_and_a_hand_over_are_interrupted(session: Session) -> None:
    session.train("--steps", "1")
    assert session.ended() == 0, session.said
    command = ("lgov", "models", "eval", "run", "tasks.jsonl", "--agent", "agent.py:agent", "--folder", "measured")
    session.begin(*command, at="open:config.json")
    session.until_held()
    session.interrupt()
    assert "without a result" in session.assert_interrupted()
    # The agent hangs, and is not waited for.
    session.hold("test")
    session.begin(*command)
    session.until_held("test")
    session.interrupt()
    assert "the finished rollouts are in measured" in session.assert_interrupted()
    session.let_go("test")
    session.begin("lgov", "models", "export", "run", "handed-on", at="open:config.json")
    session.until_held()
    session.interrupt()
    assert "run the same command again" in session.assert_interrupted()
    session.begin("lgov", "models", "export", "run", "handed-on", at="rename:handed-on")
    session.until_held()
    session.interrupt()
    assert "handed-on was not made, run the same command again" in session.assert_interrupted()
    assert not (session.folder / "handed-on").exists()
    session.begin("lgov", "models", "export", "run", "handed-on")
    assert session.ended() == 0, session.said
    sft = (
        "lgov",
        "train",
        "--algorithm",
        "sft",
        "--store",
        "run/store.sqlite",
        "--folder",
        "imitated",
        "--steps",
        "1",
    )
    session.begin(*sft, at="rename:sft.json")
    session.until_held()
    session.interrupt()
    assert "nothing of it is kept" in session.assert_interrupted()
    assert not (session.folder / "imitated" / "model").exists()
    session.begin(*sft)
    assert session.ended() in (0, 1), session.said
    assert (
        "nothing in run/store.sqlite is worth imitating" in session.said
        or (session.folder / "imitated" / "model").exists()
    )
