"""The loop with everything real: agents in threads, HTTP, the embedded engine, a store, and a very small model."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from episodes import Asker, Bench, named

torch = pytest.importorskip("torch", reason='needs the extra "train"')
parquet = pytest.importorskip("pyarrow.parquet", reason='needs the extra "train"')
pytest.importorskip("transformers", reason='needs the extra "train"')
pytest.importorskip("langchain", reason="a worker governs at least one framework")

from lgov_core.errors import TrainError  # noqa: E402
from lgov_core.gateway.engine.embedded import EmbeddedEngine  # noqa: E402
from lgov_core.gateway.server import EndpointServer  # noqa: E402
from lgov_core.models import build_tiny  # noqa: E402
from lgov_core.train.algorithms.algorithms import UpdateConfig  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.loop.checkpoint import latest_checkpoint  # noqa: E402
from lgov_core.train.loop.loop import TrainingLoop  # noqa: E402
from lgov_core.train.loop.policy_model import full_policy  # noqa: E402
from lgov_core.train.loop.run_files import read_metrics  # noqa: E402
from lgov_core.transitions import Selection  # noqa: E402
from lgov_core.types import Outcome  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")

TASKS = [named("hello", say="hello"), named("count", say="one two three")]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    torch.set_num_threads(1)
    made = Bench(tmp_path)
    yield made
    made.store.close()


@contextmanager
def running(bench: Bench, checkpoint_every: int = 1, **options: Any) -> Generator[TrainingLoop]:
    model = build_tiny(["hello", "one two three"], seed=0, hidden=32, layers=2, heads=2, intermediate=64)
    policy = full_policy(model.module)
    engine = EmbeddedEngine(model, max_new_tokens=6, threads=1)
    config = UpdateConfig(learning_rate=1e-3)
    with EndpointServer([engine], bench.store) as endpoint, bench.collecting(Asker(), endpoint.url) as pool:
        yield TrainingLoop(
            run_id="run",
            policy=policy,
            learner=PolicyUpdate(policy.module, config, reference=policy.reference),
            engine=engine,
            store=bench.store,
            pool=pool,
            folder=bench.folder,
            checkpoint_every=checkpoint_every,
            **options,
        )


def same(first: Any, second: Any) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_one_turn_collects_updates_publishes_and_leaves_everything_on_record(bench: Bench) -> None:
    stages: list[tuple[str, int, int]] = []
    with running(bench) as loop:
        before = loop.policy.weights()
        first = loop.iterate(TASKS, 4, lambda *stage: stages.append(stage))
        assert not same(before, loop.policy.weights())
        second = loop.iterate(TASKS, 4)
        served = loop.engine.weights_version
    assert (first.step, second.step, loop.done) == (1, 2, 2)
    assert [result.task_id for result in first.results] == ["hello"] * 4 + ["count"] * 4
    assert first.mean_return == pytest.approx(0.5)
    assert first.diagnostics == {} or set(first.diagnostics) <= {"truncated_reply"}
    assert first.update.rows == 8
    # The engine and the trainer agree on what the weights say about the tokens that were sampled.
    assert first.update.logprob_drift < 1e-3
    assert second.update.logprob_drift < 1e-3
    assert ("rollouts", 8, 8) in stages
    assert stages[-1][0] == "update"
    assert stages[-1][1] == stages[-1][2]

    by_run = [
        {call.weights_version for call in bench.store.calls([result.rollout_id for result in turn.results])}
        for turn in (first, second)
    ]
    assert by_run[0] == {0}
    assert len(by_run[1]) == 1, "one iteration is served by one set of weights"
    assert by_run[0] < by_run[0] | by_run[1]
    assert all(version is not None and version <= served for version in by_run[1])

    rows = parquet.read_table(bench.folder / "transitions" / "step-000001.parquet").to_pylist()
    assert len(rows) == 8
    assert {row["policy_version"] for row in rows} == {0}
    assert {row["agent"] for row in rows} == {"asker"}
    calls = {call.response_id: call for call in bench.store.calls()}
    for row in rows:
        call = calls[row["call_id"]]
        assert tuple(row["prompt_ids"]) == call.prompt_ids
        assert tuple(row["response_ids"]) == call.response_ids
        assert row["logprobs"] == pytest.approx(call.logprobs, abs=1e-6)
        assert len(row["advantages"]) == len(row["response_ids"])


def test_the_calls_of_an_agent_that_is_not_selected_are_recorded_and_not_trained_on(bench: Bench) -> None:
    with running(bench, selection=Selection(agents=("somebody_else",))) as loop:
        before = loop.policy.weights()
        turn = loop.iterate(TASKS, 2)
        assert same(before, loop.policy.weights())
    assert (turn.update.rows, len(turn.results)) == (0, 4)
    assert {call.agent for call in bench.store.calls()} == {"asker"}


def test_what_the_machines_broke_is_left_out_and_not_a_return_of_0(bench: Bench) -> None:
    broken = [named("broken", do="lose_connection"), named("once", do="lose_connection_once")]
    with running(bench) as loop:
        turn = loop.iterate([*TASKS[:1], broken[0]], 4)
        assert turn.mean_return == pytest.approx(0.5), "the mean is over what is usable"
        assert turn.diagnostics["excluded_outcome"] == 4
        assert {result.outcome for result in turn.results[4:]} == {Outcome.INFRASTRUCTURE}
        # What machines break once costs time and nothing else.
        turn = loop.iterate([*TASKS[:1], broken[1]], 2)
        assert "excluded_outcome" not in turn.diagnostics
    attempts = bench.store.attempts()
    lost = [attempt for attempt in attempts if "ConnectionRefusedError" in (attempt.error or "")]
    assert {attempt.outcome for attempt in lost} == {Outcome.INFRASTRUCTURE}
    assert len(lost) == 4 * 2 + 2, "each was tried twice, and what came back once"


def test_an_iteration_without_anything_usable_changes_nothing(bench: Bench) -> None:
    with running(bench) as loop:
        before = loop.policy.weights()
        turn = loop.iterate([named("broken", do="lose_connection")], 2)
        assert same(before, loop.policy.weights())
    assert turn.update.rows == 0
    assert turn.mean_return is None
    assert turn.step == 1


def test_a_run_that_is_resumed_goes_on_behind_its_last_update(bench: Bench) -> None:
    with running(bench, checkpoint_every=2) as loop:
        assert loop.resume().step == 0, "there is nothing to resume"
        loop.iterate(TASKS, 2)
        assert latest_checkpoint(bench.folder / "checkpoints") is None
        loop.iterate(TASKS, 2)
        loop.iterate(TASKS, 2)  # in no checkpoint, but its batch is on record
        weights, state = loop.policy.weights(), copy.deepcopy(loop.learner.state_dict()["optimizer"])
        served = loop.engine.weights_version
    used = {call.weights_version for call in bench.store.calls()}
    with running(bench, checkpoint_every=2) as loop:
        assert not same(weights, loop.policy.weights())
        resumed = loop.resume()
        assert (resumed.checkpoint, resumed.step, resumed.replayed, resumed.differing) == (2, 3, 1, 0)
        assert same(weights, loop.policy.weights())
        again = loop.learner.state_dict()["optimizer"]
        assert again["state"].keys() == state["state"].keys()
        for number, values in state["state"].items():
            assert same(values, again["state"][number])
        turn = loop.iterate(TASKS, 2)
        assert turn.step == 4
        # What the engine serves is what was loaded: its samples agree with the trainer, under the version that they had.
        assert turn.update.logprob_drift < 1e-3
        ids = [result.rollout_id for result in turn.results]
        assert {call.weights_version for call in bench.store.calls(ids)} == {served}
        assert served not in used
    lines = read_metrics(bench.folder / "metrics.jsonl")
    assert [(line["phase"], line["step"]) for line in lines] == [
        ("train", 1),
        ("train", 2),
        ("train", 3),
        ("resume", 3),
        ("train", 4),
    ]


def test_a_run_that_was_killed_while_it_collected_goes_on_with_what_it_had(bench: Bench) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    with running(bench) as loop, pytest.raises(KeyboardInterrupt):
        loop.iterate(TASKS, 4, interrupt)
    bench.store.fail_open_attempts("the run was killed")
    ended = {attempt.rollout_id for attempt in bench.store.attempts() if attempt.outcome in ("succeeded", "failed")}
    calls = {call.response_id for call in bench.store.calls(sorted(ended))}
    with running(bench) as loop:
        loop.resume()
        turn = loop.iterate(TASKS, 4)
    assert len(ended) >= 3
    assert turn.recovered >= 3
    assert len(turn.results) == len({result.rollout_id for result in turn.results}) == 8
    assert ended <= {result.rollout_id for result in turn.results}
    assert len(bench.store.rollouts()) == 8, "nothing was begun anew"
    assert [result.task_id for result in turn.results] == ["hello"] * 4 + ["count"] * 4
    rows = parquet.read_table(bench.folder / "transitions" / "step-000001.parquet").to_pylist()
    assert len(rows) == 8
    assert calls <= {row["call_id"] for row in rows}
    assert list((bench.folder / "open").iterdir()) == []


def test_other_tasks_after_a_kill_begin_anew(bench: Bench) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done >= 1:
            raise KeyboardInterrupt

    with running(bench) as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.iterate(TASKS, 2, interrupt)
        bench.store.fail_open_attempts("the run was killed")
        turn = loop.iterate(TASKS[::-1], 2)
    assert turn.recovered == 0
    assert len(bench.store.rollouts()) == 8


def test_a_folder_that_holds_a_run_is_not_begun_again(bench: Bench) -> None:
    with running(bench) as loop:
        loop.iterate(TASKS, 2)
    with running(bench) as loop, pytest.raises(TrainError, match="holds a run already"):
        loop.iterate(TASKS, 2)
    assert len(bench.store.rollouts()) == 4


def test_rollouts_go_on_while_the_model_updates_and_no_call_is_lost(bench: Bench) -> None:
    with running(bench, max_staleness=1) as loop:
        update = loop.learner.update

        def late(*rows: Any, **more: Any) -> Any:
            """Waits, the first time, until a call of the next step has been answered."""
            deadline = time.monotonic() + 120
            while loop.done == 0 and len(list(bench.store.calls())) <= 8:
                assert time.monotonic() < deadline, "nothing was collected while the update was made"
                time.sleep(0.01)
            return update(*rows, **more)

        loop.learner.update = late  # type: ignore[method-assign]
        first = loop.iterate(TASKS, 4, upcoming=[TASKS, TASKS])
        second = loop.iterate(TASKS, 4, upcoming=[TASKS[:1]])
        third = loop.iterate(TASKS[:1], 4)
        served = loop.engine.weights_version
    assert (first.staleness, first.staleness_max) == (0.0, 0)
    assert second.staleness_max == 1, "part of it was made with the weights before the update"
    assert 0 < second.staleness <= 1
    assert third.staleness_max <= 1
    turns = (first, second, third)
    assert [len(turn.results) for turn in turns] == [8, 8, 4]
    assert [turn.update.rows + turn.update.tokens > 0 for turn in turns] == [True] * 3
    for number, turn in enumerate(turns):
        calls = list(bench.store.calls([result.rollout_id for result in turn.results]))
        assert len(calls) == len(turn.results), "every rollout was answered, and once"
        assert {call.weights_version for call in calls} <= {max(0, number - 1), number}
        assert {result.outcome for result in turn.results} <= {Outcome.SUCCEEDED, Outcome.FAILED}
    assert {attempt.attempt for attempt in bench.store.attempts()} == {1}
    assert len(bench.store.rollouts()) == 20, "no more is begun ahead than may be"
    assert served == 3
    lines = [line for line in read_metrics(bench.folder / "metrics.jsonl") if line["phase"] == "train"]
    assert [line["staleness_max"] for line in lines] == [turn.staleness_max for turn in turns]
    assert list((bench.folder / "open").iterdir()) == []


def test_what_was_collected_ahead_when_the_run_ended_is_gone_on_with(bench: Bench) -> None:
    with running(bench, max_staleness=1) as loop:
        loop.iterate(TASKS, 4, upcoming=[TASKS])
        # The workers are ended while they collect: nobody waits for the rest.
    with running(bench, max_staleness=1) as loop:
        assert loop.resume().step == 1
        turn = loop.iterate(TASKS, 4)
    assert len(bench.store.rollouts()) == 16
    assert turn.step == 2
    assert turn.update.rows > 0
    assert {result.outcome for result in turn.results} <= {Outcome.SUCCEEDED, Outcome.FAILED}
    with pytest.raises(TrainError, match="max_staleness"), running(bench, max_staleness=-1):
        pass
