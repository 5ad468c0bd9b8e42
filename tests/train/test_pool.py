"""Worker processes: what they are given comes back in order, and what happens to one of them loses nothing."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from episodes import Bench

from lgov_core.audit import verify
from lgov_core.errors import TrainError
from lgov_core.train.workers.pool import WorkerPool
from lgov_core.transitions import Finding, build_transitions
from lgov_core.types import Outcome

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals and pipes as POSIX has them")
pytest.importorskip("langchain", reason="a worker governs at least one framework")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made = Bench(tmp_path)
    yield made
    made.store.close()


def gone(pids: list[int]) -> bool:
    """Whether all of these children have ended and were waited for."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_results_come_in_the_order_of_the_jobs_from_several_workers(bench: Bench) -> None:
    jobs = bench.jobs(*({"do": "succeed", "number": n, "pause_s": (7 - n) * 0.05} for n in range(8)))
    seen: list[tuple[int, int]] = []
    with bench.pool(workers=2, concurrency=3) as pool:
        pids = pool.pids
        results = pool.collect(jobs, lambda done, total: seen.append((done, total)))
        again = pool.collect(bench.jobs({"do": "succeed", "number": 99}))
    assert [result.result["number"] for result in results] == list(range(8))
    assert [result.job for result in results] == jobs
    assert all(result.outcome is Outcome.SUCCEEDED for result in results)
    assert [result.result["number"] for result in again] == [99], "a pool serves many collections"
    assert seen[-1] == (8, 8)
    assert pool.deaths == 0
    assert len(set(pids)) == 2
    assert gone(pids)
    assert bench.outcomes(jobs[3]) == ["succeeded"]
    assert [reward.value for reward in bench.store.rewards([jobs[3].rollout_id])] == [1.0]


def test_no_jobs_are_no_results(bench: Bench) -> None:
    with bench.pool() as pool:
        assert pool.collect([]) == []


@pytest.mark.parametrize("how", ["die_once", "die_in_mid_line"])
def test_a_worker_that_is_killed_is_replaced_and_its_rollouts_are_tried_again(how: str, bench: Bench) -> None:
    quick, fatal = bench.jobs({"do": "succeed", "number": 1}, {"do": how})
    with bench.pool() as pool:
        first = pool.pids
        (one,) = pool.collect([quick])
        (other,) = pool.collect([fatal])
        second = pool.pids
    assert pool.deaths == 1
    assert first != second
    assert gone([*first, *second])
    assert one.job.attempt == 1
    assert (other.outcome, other.job.attempt, other.result["attempt"]) == (Outcome.SUCCEEDED, 2, 2)
    lost, done = bench.attempts(fatal)
    assert (lost.outcome, done.outcome) == (Outcome.INFRASTRUCTURE, Outcome.SUCCEEDED)
    assert lost.error is not None
    assert "-9" in lost.error
    # What the lost attempt was worth is not known, and nothing was written down in its place.
    assert [reward.attempt for reward in bench.store.rewards([fatal.rollout_id])] == [2]
    assert verify(bench.folder / "audit.sqlite").ok


def test_an_attempt_that_was_closed_before_the_worker_was_killed_is_not_made_again(bench: Bench) -> None:
    (job,) = bench.jobs({"do": "die_before_report", "number": 7})
    kept: list[int] = []
    with bench.pool() as pool:
        (result,) = pool.collect([job], keep=lambda one: kept.append(one.job.attempt))
    assert pool.deaths == 1
    assert (result.outcome, result.job.attempt, result.result["number"]) == (Outcome.SUCCEEDED, 1, 7)
    assert kept == [1]
    assert bench.outcomes(job) == ["succeeded"]
    assert [reward.attempt for reward in bench.store.rewards([job.rollout_id])] == [1]


def test_others_that_ran_in_the_killed_worker_are_tried_again_too(bench: Bench) -> None:
    jobs = bench.jobs({"do": "succeed", "pause_s": 0.5, "number": 0}, {"do": "die_once"})
    with bench.pool() as pool:
        results = pool.collect(jobs)
    assert [result.outcome for result in results] == [Outcome.SUCCEEDED] * 2
    assert [bench.outcomes(job) for job in jobs] == [["infrastructure", "succeeded"]] * 2


def test_a_rollout_that_loses_its_connection_is_infrastructure_and_never_a_reward(bench: Bench) -> None:
    lost, found = bench.jobs({"do": "lose_connection"}, {"do": "lose_connection_once"})
    with bench.pool(max_attempts=3) as pool:
        first, second = pool.collect([lost, found])
    assert (first.outcome, first.job.attempt) == (Outcome.INFRASTRUCTURE, 3)
    assert first.error is not None
    assert "ConnectionRefusedError" in first.error
    assert bench.outcomes(lost) == ["infrastructure"] * 3
    assert bench.store.rewards([lost.rollout_id]) == []
    assert (second.outcome, second.job.attempt) == (Outcome.SUCCEEDED, 2)
    # The trainer leaves it out and says so; there is no return of 0 for it.
    data = build_transitions(bench.store, [lost.rollout_id])
    assert data.transitions == ()
    assert data.counts() == {Finding.EXCLUDED_OUTCOME.value: 1}


def test_a_rollout_waits_before_it_tries_the_machines_again_and_holds_up_no_other(bench: Bench) -> None:
    again, other = bench.jobs({"do": "lose_connection_once"}, {"do": "succeed", "number": 1})
    with bench.pool(concurrency=1, retry_delay_s=0.5) as pool:
        pool.collect([again, other])
    lost, done = bench.attempts(again)
    assert lost.ended_at is not None
    assert done.started_at - lost.ended_at >= 0.45
    (between,) = bench.attempts(other)
    assert between.ended_at is not None
    assert between.ended_at < done.started_at


def test_what_the_agent_does_wrong_is_a_failure_and_not_tried_again(bench: Bench) -> None:
    jobs = bench.jobs({"do": "raise_value_error"}, {"do": "miss_file"})
    with bench.pool() as pool:
        results = pool.collect(jobs)
    assert [result.outcome for result in results] == [Outcome.FAILED] * 2
    assert [str(result.error).partition(":")[0] for result in results] == ["ValueError", "FileNotFoundError"]
    assert [bench.outcomes(job) for job in jobs] == [["failed"]] * 2


def test_an_attempt_that_takes_too_long_is_a_timeout(bench: Bench) -> None:
    slow, own = bench.jobs({"do": "be_slow"}, {"do": "time_out_itself"})
    with bench.pool(config=bench.config(timeout_s=0.5), max_attempts=2) as pool:
        late, tool = pool.collect([slow, own])
    assert (late.outcome, late.error) == (Outcome.TIMEOUT, "not done after 0.5 s")
    assert (tool.outcome, tool.error) == (Outcome.TIMEOUT, "TimeoutError: the warehouse did not answer")
    assert bench.outcomes(slow) == ["timeout", "timeout"]
    assert bench.store.rewards() == []


def test_a_worker_that_hangs_is_replaced(bench: Bench) -> None:
    (job,) = bench.jobs({"do": "hang_once"})
    with bench.pool(config=bench.config(timeout_s=0.5), grace_s=0.5, max_attempts=5) as pool:
        (result,) = pool.collect([job])
    assert result.outcome is Outcome.SUCCEEDED
    assert pool.deaths >= 1
    assert bench.outcomes(job)[0] == "infrastructure"


def test_what_the_agent_prints_or_reads_does_not_touch_the_protocol(bench: Bench) -> None:
    jobs = bench.jobs({"do": "print_much"}, {"do": "read_input"}, {"do": "succeed", "number": 3})
    with bench.pool() as pool:
        results = pool.collect(jobs)
    assert [result.outcome for result in results] == [Outcome.SUCCEEDED] * 3
    assert (results[1].result["read"], results[1].result["read_by_child"]) == ("", "")
    for text in ('{"ready": false}', "printed by the agent", "written by the agent", "printed by a child"):
        assert text in bench.logged()


def test_a_reward_that_is_no_number_is_not_stored_and_the_attempt_says_why(bench: Bench) -> None:
    (job,) = bench.jobs({"do": "earn_nan"})
    with bench.pool(max_attempts=1) as pool:
        (result,) = pool.collect([job])
    assert result.outcome is Outcome.INFRASTRUCTURE
    assert "finite" in str(result.error)
    assert bench.outcomes(job) == ["infrastructure"]
    assert bench.store.rewards() == []


@pytest.mark.parametrize("broken", ["policy", "no policy", "factory", "audit"])
def test_a_worker_that_cannot_start_is_an_error_that_names_its_log(broken: str, bench: Bench) -> None:
    config, reason = bench.config(), ""
    if broken == "policy":
        bench.policy.write_text("version: 1\nrules: [\n")
        reason = "PolicyFileError"
    elif broken == "no policy":
        bench.policy.unlink()
        reason = "PolicyFileError"
    elif broken == "factory":
        config, reason = bench.config(factory="episodes:nobody"), "AttributeError"
    else:
        config, reason = bench.config(audit=str(bench.folder / "policy.yaml" / "audit")), "AuditError"
    (job,) = bench.jobs({"do": "succeed"})
    pool = bench.pool(config=config)
    pids = pool.pids
    with pool, pytest.raises(TrainError, match="before it was ready") as raised:
        pool.collect([job])
    log = bench.logs / "worker-0.log"
    assert str(log) in str(raised.value)
    assert reason in log.read_text()
    assert gone(pids)
    assert bench.attempts(job) == []


def test_a_worker_that_is_killed_before_it_is_ready_is_replaced(bench: Bench) -> None:
    begun = bench.folder / "begun"
    config = bench.config(factory="episodes:make_runner_late", options={"begun": str(begun), "ready": 3})
    jobs = bench.jobs({"do": "succeed", "number": 1}, {"do": "die_once"})
    with bench.pool(config=config) as pool:
        results = pool.collect(jobs)
    assert [result.outcome for result in results] == [Outcome.SUCCEEDED] * 2
    assert len(begun.read_text()) == 4
    assert pool.deaths == 3


def test_workers_of_which_none_gets_ready_are_an_error(bench: Bench) -> None:
    begun = bench.folder / "begun"
    config = bench.config(factory="episodes:make_runner_late", options={"begun": str(begun), "ready": 99})
    with bench.pool(config=config) as pool, pytest.raises(TrainError, match="status -9 before it was ready"):
        pool.collect(bench.jobs({"do": "succeed"}))
    assert len(begun.read_text()) == 3


@pytest.mark.parametrize("silent", [False, True])
def test_a_framework_that_cannot_be_governed_ends_the_collection(bench: Bench, silent: bool) -> None:
    folder = bench.folder / "odd"
    (folder / "langchain_core").mkdir(parents=True)
    (folder / "langchain_core" / "__init__.py").write_text("")
    config = bench.config(factory="episodes:make_importer", options={"folder": str(folder), "silent": silent})
    with bench.pool(config=config) as pool, pytest.raises(TrainError, match="status 78"):
        pool.collect(bench.jobs({}))
    assert pool.deaths == 1
    assert silent or "langchain cannot be governed" in (bench.logs / "worker-0.log").read_text()


def test_a_worker_that_hangs_before_it_is_ready_is_an_error_and_is_not_waited_for_again(bench: Bench) -> None:
    config = bench.config(factory="episodes:make_runner_never")
    pool = bench.pool(config=config, start_timeout_s=1.0)
    with pool, pytest.raises(TrainError, match="status -9 before it was ready"):
        pool.collect(bench.jobs({"do": "succeed"}))
    assert pool.deaths == 1


def test_workers_that_keep_dying_are_an_error(bench: Bench) -> None:
    jobs = bench.jobs(*({"do": "die"} for _ in range(2)))
    with bench.pool(max_deaths=1, max_attempts=10) as pool, pytest.raises(TrainError, match="status -9"):
        pool.collect(jobs)
    assert all(attempt.outcome is Outcome.INFRASTRUCTURE for attempt in bench.store.attempts())


def test_a_rollout_that_kills_every_worker_ends_as_infrastructure(bench: Bench) -> None:
    (job,) = bench.jobs({"do": "die"})
    with bench.pool(max_attempts=2) as pool:
        (result,) = pool.collect([job])
    assert (result.outcome, result.job.attempt) == (Outcome.INFRASTRUCTURE, 2)
    assert bench.outcomes(job) == ["infrastructure"] * 2


def test_closing_in_mid_run_closes_the_attempts_and_leaves_no_process(bench: Bench) -> None:
    lock = bench.folder / "lock"
    (job,) = bench.jobs({"do": "hang_in_thread", "lock": str(lock)})
    pool = bench.pool()
    pids = pool.pids

    class Enough(Exception):
        pass

    def interrupt(done: int, total: int) -> None:
        if pool._processes[0].jobs:
            wait_for(lambda: Path(f"{lock}.held").exists())
            raise Enough

    # The progress of another collection is where a Ctrl-C would come.
    with pool, pytest.raises(Enough):
        pool.collect([*bench.jobs({"do": "succeed"}), job], interrupt)
    assert gone(pids)
    (attempt,) = bench.attempts(job)
    assert attempt.outcome is Outcome.INFRASTRUCTURE
    assert attempt.error == "the run ended before the attempt did"


PARENT = """
import sys
from pathlib import Path
from episodes import Bench
bench = Bench(Path(sys.argv[1]))
pool = bench.pool()
pool.collect(bench.jobs({"do": "hang_in_thread", "lock": sys.argv[2]}))
"""


def wait_for(true: object, seconds: float = 60.0) -> None:
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), str(lock)], env=environment)
    try:
        wait_for(lambda: Path(f"{lock}.held").exists())
    finally:
        parent.kill()
        parent.wait()

    def free() -> bool:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    wait_for(free)


def test_a_pool_is_closed_however_its_block_is_left(bench: Bench) -> None:
    pool: WorkerPool = bench.pool(workers=2)
    pids = pool.pids
    with pytest.raises(KeyboardInterrupt), pool:
        raise KeyboardInterrupt
    assert gone(pids)
    assert pool.pids == []
    pool.close()  # again
