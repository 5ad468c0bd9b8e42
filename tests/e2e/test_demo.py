"""``lgov demo`` as a person runs it, and what is left when it is interrupted, killed, or loses a worker.

The model is warmed up once and only a little: enough to write tool calls and to be dangerous, not to be right.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

for _module in ("torch", "transformers", "langchain", "starlette", "matplotlib", "pyarrow"):
    pytest.importorskip(_module, reason='needs the extras "langchain", "gateway" and "train"')

import pyarrow.parquet  # noqa: E402

from lgov_core.audit import AuditLog, verify  # noqa: E402
from lgov_core.store import TraceStore, open_store  # noqa: E402
from tests.slow import slow  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

LGOV = "from lgov_core.commands import main; main()"

#: The same command with a plan whose iterations take a second or two.
SMALL = (
    """
from dataclasses import replace
from lgov_core.demo import plans
plans.TINY = replace(plans.TINY, tasks=4, group=4, evaluations=16)
"""
    + LGOV
)

WARM = ("--warm-steps", "60")


def environment() -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
    return {**clean, "OMP_NUM_THREADS": "1"}


def lgov(*arguments: str, code: str = LGOV) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280, check=False)


@contextmanager
def started(folder: Path, *arguments: str) -> Generator[subprocess.Popen[str]]:
    """The small demo, running. Killed at the end if it still runs."""
    with (folder.parent / "standard-error.txt").open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", SMALL, "demo", *WARM, "--json", "--folder", str(folder), *arguments],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def wait_for(process: subprocess.Popen[str], true: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not true():
        assert process.poll() is None, "it ended before"
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trained(run: Path) -> int:
    """How many updates the run has logged."""
    return sum(entry["phase"] == "train" for entry in lines(run / "metrics.jsonl"))


def steps(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


@contextmanager
def recorded(run: Path) -> Generator[TraceStore]:
    store = open_store(str(run / "store.sqlite"))
    try:
        yield store
    finally:
        store.close()


def check_that_nothing_acknowledged_is_lost(run: Path) -> None:
    """What one part of lgov acknowledged to another process must be in the files, whoever was killed since."""
    assert verify(run / "audit.sqlite").ok
    with AuditLog(run / "audit.sqlite") as audit:
        entries = audit.entries()
    # A reply was judged: the agent has got it, so the endpoint had captured it.
    replies = {entry.call_id for entry in entries if entry.point == "post_model_call" and entry.effect}
    # An outcome was rewarded: the act was over, so its decision was on record.
    decided = {entry.call_id for entry in entries if entry.point == "pre_tool_call" and entry.effect}
    with recorded(run) as store:
        calls = list(store.calls())
        assert len(replies) >= 16
        assert replies <= {call.response_id for call in calls}
        assert {reward.tool_call_id for reward in store.rewards() if reward.tool_call_id} <= decided
        # A call that was answered after the end of its attempt, such as one of a killed worker, is of no rollout.
        of_attempts = [call for call in calls if call.rollout_id]
        assert len(calls) - len(of_attempts) <= 8
        assert all(call.attempt and call.agent == "pay_desk" for call in of_attempts)
        assert all(attempt.outcome is not None for attempt in store.attempts()), "no attempt is left open"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A whole run of the real command: its folder and its report."""
    folder = Path(tmp_path_factory.mktemp("demo")) / "out"
    done = lgov("demo", "--quick", "--iterations", "2", *WARM, "--json", "--folder", str(folder))
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.fixture
def folder(demo: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """An empty output folder, but for the warmed-up model."""
    made = tmp_path / "out"
    shutil.copytree(demo[0] / "seed0-warm", made / "seed0-warm")
    return made


def test_the_report_says_what_was_measured(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, report = demo
    assert report == json.loads((folder / "report.json").read_text())
    (run,) = report["runs"]
    assert (run["seed"], run["governed"], run["model"], run["updates"]) == (0, True, "tiny", 2)
    assert not run["interrupted"]
    for moment in ("before", "after"):
        assert run[moment]["rollouts"] + run[moment]["infrastructure"] == 128
        low, high = run[moment]["interval"]
        assert low <= run[moment]["accuracy"] <= high
        assert 1 <= run[moment]["mean_turns"] <= 4
        assert run[moment]["executed"] == 0
    assert run["before"]["denied"] >= 0.2, "a model that is denied nothing proves nothing"
    assert run["executed_violations"] == 0
    assert run["oracle_attempts"] == 128 + 2 * 128 + 128
    means = report["mean"]["governed"]
    assert means["seeds"] == 1
    assert means["executed_violations"] == 0
    assert means["accuracy_gain"] == run["after"]["accuracy"] - run["before"]["accuracy"]


def test_the_run_leaves_everything_in_its_folder(demo: tuple[Path, dict[str, Any]]) -> None:
    run = demo[0] / "seed0-governed"
    for name in ("store.sqlite", "audit.sqlite", "oracle.jsonl", "metrics.jsonl", "config.json", "company.sqlite"):
        assert (run / name).stat().st_size > 0, name
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "databases").iterdir()) == [], "the rollouts' copies are gone"
    assert json.loads((run / "config.json").read_text())["plan"]["iterations"] == 2
    assert [entry["phase"] for entry in lines(run / "metrics.jsonl")] == ["test", "train", "train", "test"]
    with recorded(run) as store:
        calls = {call.response_id: call for call in store.calls()}
        for step in (1, 2):
            rows = pyarrow.parquet.read_table(run / "transitions" / f"step-{step:06d}.parquet").to_pylist()
            assert len({row["rollout_id"] for row in rows}) == 128
            for row in rows:
                assert tuple(row["response_ids"]) == calls[row["call_id"]].response_ids


def test_the_trained_weights_are_kept(demo: tuple[Path, dict[str, Any]]) -> None:
    assert steps(demo[0] / "seed0-governed") == ["step-000002"]


def test_every_attempt_is_on_record_everywhere(demo: tuple[Path, dict[str, Any]]) -> None:
    run = demo[0] / "seed0-governed"
    check_that_nothing_acknowledged_is_lost(run)
    with recorded(run) as store:
        attempts = {(attempt.rollout_id, attempt.attempt) for attempt in store.attempts()}
        tasks = [reward for reward in store.rewards() if reward.dimension == "task"]
    watched = [(line["rollout_id"], line["attempt"]) for line in lines(run / "oracle.jsonl")]
    assert sorted(watched) == sorted(attempts)
    assert {(reward.rollout_id, reward.attempt) for reward in tasks} == attempts
    assert len(tasks) == len(attempts)


def test_a_denied_rollout_can_be_looked_at(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, report = demo
    store = str(folder / "seed0-governed" / "store.sqlite")
    rollout = report["runs"][0]["denied_rollout"]
    shown = lgov("traces", "show", store, rollout)
    assert shown.returncode == 0, shown.stderr
    words = re.sub(r"\s+", " ", shown.stdout)
    assert rollout in words
    assert "DENIED by policy" in words
    assert "read-only" in words or "known-tools" in words
    assert "compliance" in words


def test_the_doctor_examines_all_of_it_and_finds_no_cheating(demo: tuple[Path, dict[str, Any]]) -> None:
    """A warm start this short may be too weak to learn from, which is a finding; a governed run never cheats."""
    run = demo[0] / "seed0-governed"
    report = json.loads(lgov("doctor", str(run), "--json").stdout)
    assert report["not_examined"] == {}
    assert len(report["checked"]) == 31
    found = {one["name"] for one in report["findings"]}
    assert not found & {"violations-rising", "tool-rewards-farmed", "advantages-from-air-alone"}


def test_a_policy_is_suggested_from_what_it_recorded(demo: tuple[Path, dict[str, Any]]) -> None:
    done = lgov("policy", "suggest", str(demo[0] / "seed0-governed" / "store.sqlite"), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["denied"], found["incomplete"]) == ([], 0)
    assert found["needed"] > 100
    denied = [one for one in found["rest"] if one["status"] == "denied"]
    assert len(denied) > 50, "a model that is denied nothing proves nothing"
    assert all(one["now"] == "deny" for one in denied)
    assert "tables: [staff]" in found["policy"]


def test_a_killed_worker_costs_an_attempt_and_nothing_else(folder: Path) -> None:
    run = folder / "seed0-governed"

    def workers(parent: int) -> list[int]:
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [
            int(pid) for pid in pids if b"lgov_core.client.worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def running_rollouts() -> int:
        with closing(sqlite3.connect(f"file:{run / 'store.sqlite'}?mode=ro", uri=True)) as store:
            return store.execute("SELECT COUNT(*) FROM attempts WHERE ended_at IS NULL").fetchone()[0]

    if not Path("/proc/self/task").exists():
        pytest.skip("needs /proc to find the workers")
    with started(folder, "--iterations", "2") as process:
        wait_for(process, lambda: len(lines(run / "metrics.jsonl")) == 1)
        # So many are running that every worker has some.
        wait_for(process, lambda: running_rollouts() >= 12)
        os.kill(workers(process.pid)[0], signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    (report,) = json.loads(said)["runs"]
    assert report["updates"] == 2
    assert report["executed_violations"] == 0
    check_that_nothing_acknowledged_is_lost(run)
    with recorded(run) as store:
        lost = [attempt for attempt in store.attempts() if attempt.error == "the worker process ended with status -9"]
        again = {attempt.rollout_id: attempt for attempt in store.attempts() if attempt.attempt == 2}
        paid = {(reward.rollout_id, reward.attempt) for reward in store.rewards() if reward.dimension == "task"}
    assert lost
    for attempt in lost:
        assert attempt.outcome == "infrastructure"
        assert (attempt.rollout_id, attempt.attempt) not in paid
        retried = again[attempt.rollout_id].outcome
        assert retried is not None
        assert retried.trainable
    rows = pyarrow.parquet.read_table(run / "transitions" / "step-000001.parquet").to_pylist()
    assert {row["attempt"] for row in rows if row["rollout_id"] in again} == {2}
    assert len({row["rollout_id"] for row in rows}) == 16


@slow
def test_a_run_goes_on_after_it_was_killed_and_after_it_was_interrupted(folder: Path) -> None:
    run = folder / "seed0-governed"
    with started(folder, "--iterations", "4") as process:
        wait_for(process, lambda: trained(run) >= 1)
        process.kill()
    with recorded(run) as store:
        calls = {call.response_id for call in store.calls()}
        before_the_kill = {attempt.rollout_id for attempt in store.attempts()}
    killed_at = trained(run)

    with started(folder, "--iterations", "4", "--resume") as process:
        wait_for(process, lambda: trained(run) > killed_at)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, (folder.parent / "standard-error.txt").read_text()
    (report,) = json.loads(said)["runs"]
    assert report["interrupted"]
    assert report["after"] is None
    assert 1 <= report["updates"] < 4
    assert steps(run) == [f"step-{report['updates']:06d}"]
    assert "--resume" in (folder.parent / "standard-error.txt").read_text()
    check_that_nothing_acknowledged_is_lost(run)
    with recorded(run) as store:
        assert calls <= {call.response_id for call in store.calls()}
        assert before_the_kill <= {attempt.rollout_id for attempt in store.attempts()}
        paid = {(reward.rollout_id, reward.attempt) for reward in store.rewards() if reward.dimension == "task"}
        broken = [attempt for attempt in store.attempts() if attempt.outcome == "infrastructure"]
        assert not paid & {(attempt.rollout_id, attempt.attempt) for attempt in broken}

    with started(folder, "--iterations", "4", "--resume") as process:
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    (report,) = json.loads(said)["runs"]
    assert report["updates"] == 4
    assert report["after"]["rollouts"] == 16
    assert report["executed_violations"] == 0
    assert [entry["step"] for entry in lines(run / "metrics.jsonl") if entry["phase"] == "test"] == [0, 4], (
        "measured once"
    )
    check_that_nothing_acknowledged_is_lost(run)


def test_resume_needs_to_know_what(tmp_path: Path) -> None:
    done = lgov("demo", "--resume")
    assert done.returncode == 2
    assert "--folder" in done.stderr
