"""Workers of a client: threads and processes, those that crash and hang, agents whose rewards are none."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.client.tasks import load_agent, name_of
from lgov_core.client.wire import Assignment
from lgov_core.client.workers import ProcessWorkers
from lgov_core.errors import ArgumentError, TrainError
from lgov_core.governance import Governance
from lgov_core.server.training import TrainingServer
from lgov_core.store import open_store
from lgov_core.types import Attempt, Outcome
from tests.pair import pair_agents as agents
from tests.pair.test_train_commands import until
from tests.slow import slow

Serve = Callable[..., TrainingServer]


def attempts(tmp_path: Path) -> list[Attempt]:
    store = open_store(tmp_path / "run" / "store.sqlite", make=False)
    try:
        return store.attempts()
    finally:
        store.close()


def train(server: TrainingServer, agent: Any, tasks: list[dict[str, Any]], **options: Any) -> Any:
    client = Client(server.url, quiet=True)
    client.upload_data(tasks)
    return client.train(agent, **{"nworkers": 2, **options})


@slow
def test_processes_run_agents_too(serve: Serve, tmp_path: Path) -> None:
    tasks = [{"question": "digits", "pids": str(tmp_path / "pids")}]
    result = train(serve(steps=2), agents.process_of, tasks, workers="processes", auto_instrumentation=False)
    assert result.updates == 2
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 8
    assert str(os.getpid()) not in pids


@pytest.mark.parametrize(
    ("agent", "workers"),
    [
        (agents.dies_once, "processes"),
        pytest.param(agents.hangs_once, "processes", marks=slow),
        (agents.hangs_once, "threads"),
    ],
    ids=["dies", "hangs in a process", "hangs in a thread"],
)
def test_an_attempt_whose_worker_crashed_or_hung_is_tried_again(
    serve: Serve, tmp_path: Path, agent: Any, workers: str
) -> None:
    tasks = [{"question": "digits", "marker": str(tmp_path / "tried")}]
    result = train(
        serve(steps=1, timeout_s=5.0 if agent is agents.hangs_once else 120.0, max_attempts=5),
        agent,
        tasks,
        workers=workers,
        nworkers=1,  # its place must be free again, or nothing goes on
        auto_instrumentation=False,
    )
    assert result.updates == 1
    assert not (tmp_path / "tried-waited-for").exists(), "what hangs is not waited for"
    ended = attempts(tmp_path)
    lost = [one for one in ended if not (one.outcome and one.outcome.trainable)]
    # On a slow machine others may be late too; the one that hung or died is in any case.
    assert {one.outcome for one in lost} == {Outcome.INFRASTRUCTURE if agent is agents.dies_once else Outcome.TIMEOUT}
    for one in lost:
        assert any((again.rollout_id, again.attempt) == (one.rollout_id, one.attempt + 1) for again in ended)
    # Nothing is learnt from the lost attempt, and no rollout is missing.
    assert result.curves["usable"] == [4.0]
    assert result.counts["died" if agent is agents.dies_once else "abandoned"] >= 1


def test_an_agent_that_raises_earns_nothing_and_is_counted(serve: Serve, tmp_path: Path) -> None:
    result = train(serve(steps=1), agents.raises, [{"question": "digits"}])
    assert result.counts["raised"] == 4
    assert result.curves["reward"] == [0.0]
    (error,) = {one.error for one in attempts(tmp_path)}
    assert re.fullmatch(r"ValueError: the agent cannot count \(pair_agents\.py, line \d+\)", str(error))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "returned nothing"),
        ("0.5", "'0.5', a str"),
        (float("nan"), "nan, a float"),
        ({"task": 1.0, "style": "good"}, "'style': 'good'"),
        ({}, "rewards are numbers up to 1e100"),
        ([1.0], "[1.0], a list"),
    ],
    ids=range(6),
)
def test_a_reward_of_the_wrong_type_is_an_error_and_never_a_zero(
    serve: Serve, tmp_path: Path, value: Any, said: str
) -> None:
    def agent(resource: Any, task: Any) -> Any:
        agents.ask(resource, task.question)
        return value

    with pytest.raises(TrainError, match="attempts in a row gave no reward") as caught:
        train(serve(group_size=8, steps=1), agent, [{"question": "digits"}])
    assert said in caught.value.message
    store = open_store(tmp_path / "run" / "store.sqlite", make=False)
    assert store.rewards() == []
    assert {one.outcome for one in store.attempts()} <= {Outcome.INFRASTRUCTURE, None}
    store.close()


def test_one_reward_that_is_none_is_counted_and_the_training_goes_on(serve: Serve, tmp_path: Path) -> None:
    def agent(resource: Any, task: Any) -> Any:
        return "a text" if agents.once(task) else agents.digits(resource, task)

    result = train(serve(steps=1), agent, [{"question": "digits", "marker": str(tmp_path / "tried")}])
    assert (result.counts["bad_reward"], result.counts["infrastructure"], result.updates) == (1, 1, 1)


def test_whole_numbers_truth_values_and_numbers_of_other_libraries_are_rewards(serve: Serve) -> None:
    import numpy as np
    import torch

    values = {"numpy": np.float32(0.5), "torch": torch.tensor(0.5), "whole": 1, "true": True}

    def agent(resource: Any, task: Any) -> Any:
        agents.ask(resource, "a")
        return values[task.kind]

    tasks = [{"kind": kind} for kind in values]
    assert train(serve(steps=1, batch_size=4, group_size=2), agent, tasks).curves["reward"] == [0.75]


def test_a_run_of_which_nothing_can_be_used_fails_and_says_why(serve: Serve) -> None:
    def agent(resource: Any, task: Any) -> float:
        raise ConnectionResetError("the warehouse hung up")

    with pytest.raises(TrainError, match="ConnectionResetError: the warehouse hung up"):
        train(serve(group_size=2, steps=4, max_attempts=1), agent, [{"question": "digits"}])


# ---------------------------------------------------------------------- agents by name


def test_a_process_finds_agents_of_modules_and_files_and_no_others(tmp_path: Path) -> None:
    assert name_of(agents.digits) == "tests.pair.pair_agents:digits"
    assert load_agent("tests.pair.pair_agents:digits") is agents.digits
    (tmp_path / "mine.py").write_text(
        "def agent(resource, task):\n    return 1.0\n\nif __name__ == '__main__':\n    raise SystemExit('not a program here')\n"
    )
    before = list(sys.path)
    found = load_agent(f"{tmp_path / 'mine.py'}:agent")
    assert found(None, None) == 1.0
    assert name_of(found) == f"{tmp_path / 'mine.py'}:agent"
    sys.path[:] = before
    with pytest.raises(ArgumentError, match="workers='threads'"):
        name_of(lambda resource, task: 1.0)
    for name, said in [
        ("agent", "names no agent"), ("no.such.module:agent", "no module no.such.module"),
        (f"{tmp_path / 'none.py'}:agent", "there is no file"), ("tests.pair.pair_agents:no_agent", "has no function no_agent"),
    ]:  # fmt: skip
        with pytest.raises(ArgumentError, match=said):
            load_agent(name)


def test_a_module_that_cannot_be_imported_is_told_instead_of_being_started_again_and_again(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_agent.py").write_text(
        "import os\n\ndef agent(resource, task):\n    return 1.0\n\nif 'LIGHTNING_CLIENT_WORKER' in os.environ:\n"
        "    raise RuntimeError('no database here')\n"
    )
    agent = load_agent(f"{tmp_path / 'broken_agent.py'}:agent")
    with pytest.raises(TrainError, match="RuntimeError: no database here"):
        train(
            serve(steps=1), agent, [{"question": "digits"}], workers="processes", nworkers=1, auto_instrumentation=False
        )


class Reports:
    """Processes that run an agent from a file, one at a time, and what they report."""

    def __init__(self, file: Path, code: str) -> None:
        file.write_text(code)
        self.told: list[tuple[tuple[str, int], Outcome]] = []
        options = {"endpoint": "http://127.0.0.1:9", "governance": Governance().as_json(), "instrument": False}
        self.workers = ProcessWorkers(
            {**options, "agent": f"{file}:agent", "rules": False},
            1,
            lambda given, report: self.told.append((given.key, report.outcome)),
        )

    def give(self, rollout_id: str, **task: Any) -> None:
        until(lambda: self.workers.free, "a process is ready")
        self.workers.give(Assignment(rollout_id, 1, "t", "train", task, "http://127.0.0.1:9/v1", "m", 600.0))


def test_a_process_that_hangs_is_killed_and_another_takes_its_place(tmp_path: Path) -> None:
    code = "import pathlib, time\n\ndef agent(resource, task):\n    if task.hangs:\n        pathlib.Path(task.hangs).touch()\n"
    found = Reports(tmp_path / "hanging_agent.py", f"{code}        time.sleep(1000)\n    return 1.0\n")
    workers = found.workers
    try:
        (pid,) = workers.pids
        found.give("ro_1", hangs=str(tmp_path / "begun"))
        until((tmp_path / "begun").exists, "it hangs")
        workers.abandon(("ro_1", 1))
        assert not workers.free or workers.pids != [pid], "a process that is being killed gets nothing to do"
        until(lambda: workers.pids != [pid], "another process is there")
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        found.give("ro_2", hangs="")
        until(lambda: found.told, "the next one is run")
        assert found.told == [(("ro_2", 1), Outcome.SUCCEEDED)], "what was given up is not reported"
    finally:
        workers.close()


def test_processes_that_cannot_begin_are_not_started_for_ever(tmp_path: Path) -> None:
    workers = Reports(tmp_path / "no_agent.py", "raise RuntimeError('no database here')\n").workers
    try:
        until(lambda: workers.failure or workers.deaths > 3, "enough of them have died")
        assert (workers.deaths, workers.pids) == (3, [])
        with pytest.raises(TrainError, match=r"no worker process became ready: .*RuntimeError: no database here"):
            _ = workers.free
    finally:
        workers.close()


def test_a_module_that_trains_when_it_is_imported_says_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_CLIENT_WORKER", "1")
    with pytest.raises(TrainError, match="__main__"):
        Client("http://127.0.0.1:9").train(agents.digits)
