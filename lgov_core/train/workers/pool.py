"""Worker processes, as many as asked for, replaced when they die."""

from __future__ import annotations

import bisect
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import StoreError, TrainError
from lgov_core.process.governed import CANNOT_GOVERN
from lgov_core.store import TraceStore
from lgov_core.train.workers.jobs import Job, JobResult, WorkerConfig
from lgov_core.train.workers.lines import close_input, write_line
from lgov_core.types import Attempt, Outcome, Rollout

#: Number of consecutive workers killed before they were ready after which no more are started.
_MOST_FALSE_STARTS: Final = 3


@dataclass(eq=False)
class _Process:
    number: int
    popen: subprocess.Popen[bytes]
    jobs: dict[tuple[str, int], Job] = field(default_factory=dict)
    ready: bool = False
    #: Killed here because it did not respond.
    silent: bool = False


class _Waiting:
    """Jobs by the time from which they may run."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = [(0.0, job) for job in jobs]  # in the order in which they are due

    def add(self, job: Job, delay_s: float) -> None:
        due = time.monotonic() + delay_s if delay_s else 0.0
        bisect.insort(self._jobs, (due, job), key=lambda one: one[0])

    def take(self) -> Job | None:
        """The next job whose time has come."""
        return self._jobs.pop(0)[1] if self._jobs and self._jobs[0][0] <= time.monotonic() else None

    def patience_s(self) -> float:
        """Seconds until the next job becomes due; at most one."""
        now = time.monotonic()
        return min([1.0, *(due - now for due, _ in self._jobs[:1] if due > now)])


@dataclass(eq=False)
class WorkerPool:
    """Runs jobs in worker processes. Any thread may call it; collections run one after the other.

    A worker that dies or hangs (nothing reported for ``grace_s`` seconds longer than an attempt may take) is replaced;
    one that cannot start by its own fault is an error at once. Its open attempts end as infrastructure. An attempt that
    ended by infrastructure or timeout is tried again, at most ``max_attempts`` times a rollout in one `collect`; after
    infrastructure it waits ``retry_delay_s`` seconds, then four times as long each time. ``log_dir`` gets the standard
    error of each worker.
    """

    config: WorkerConfig
    store: TraceStore
    _: KW_ONLY
    workers: int = 1
    concurrency: int = 64
    max_attempts: int = 3
    max_deaths: int = 20
    log_dir: Path
    start_timeout_s: float = 180.0
    grace_s: float = 30.0
    retry_delay_s: float = 1.0

    def __post_init__(self) -> None:
        self.deaths = 0
        self._false_starts = 0
        self._first: dict[str, int] = {}
        self._collecting = threading.Lock()
        self._closing = False
        self._events: queue.Queue[tuple[_Process, dict[str, Any] | None]] = queue.Queue()
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._processes = [self._start(number) for number in range(self.workers)]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers at this moment."""
        return [process.popen.pid for process in self._processes]

    def gone(self, rollout_ids: Sequence[str]) -> set[str]:
        """None: a rollout can be given one attempt more. See `lgov_core.train.loop.loop.Collector`."""
        return set()

    def collect_rollouts(
        self,
        rollouts: Sequence[Rollout],
        progress: Callable[[int, int], None] | None = None,
        keep: Callable[[JobResult], None] | None = None,
    ) -> list[JobResult]:
        """Adds rollouts to the store and runs them. See `collect`.

        Those already in the store are resumed: a trainable attempt is the result (without counts, which are not
        stored); otherwise there is one more attempt.
        """
        ids = [one.rollout_id for one in rollouts]
        stored = {one.rollout_id for one in self.store.rollouts(ids=ids)}
        self.store.add_rollouts([one for one in rollouts if one.rollout_id not in stored])
        ended: dict[str, JobResult] = {}
        first = dict.fromkeys(ids, 1)
        tasks = {one.rollout_id: one for one in rollouts}
        for attempt in self.store.attempts(sorted(stored)) if stored else ():
            first[attempt.rollout_id] = max(first[attempt.rollout_id], attempt.attempt + 1)
            if attempt.outcome is not None and attempt.outcome.trainable:
                rollout = tasks[attempt.rollout_id]
                job = Job(rollout.rollout_id, rollout.task_id, attempt.attempt, rollout.input)
                ended.setdefault(rollout.rollout_id, _stored_result(job, attempt, attempt.outcome))
        if keep is not None:
            for result in ended.values():
                keep(result)
        jobs = [Job(one.rollout_id, one.task_id, first[one.rollout_id], one.input) for one in rollouts]
        report = progress or (lambda done, total: None)
        made = self.collect(
            [job for job in jobs if job.rollout_id not in ended],
            lambda done, _: report(len(ended) + done, len(rollouts)),
            keep,
        )
        results = ended | {result.job.rollout_id: result for result in made}
        return [results[rollout_id] for rollout_id in ids]

    def collect(
        self,
        jobs: Sequence[Job],
        progress: Callable[[int, int], None] | None = None,
        keep: Callable[[JobResult], None] | None = None,
    ) -> list[JobResult]:
        """Runs all jobs and returns one result per rollout, in the order of ``jobs``.

        ``progress(done, total)`` is called after each, and ``keep`` with each result as soon as it is final. Raises
        `TrainError` when workers keep dying, and when the pool is closed meanwhile.
        """
        with self._collecting:
            return self._collect(jobs, progress or (lambda done, total: None), keep or (lambda result: None))

    def _collect(
        self, jobs: Sequence[Job], progress: Callable[[int, int], None], keep: Callable[[JobResult], None]
    ) -> list[JobResult]:
        waiting = _Waiting(jobs)
        self._first = {job.rollout_id: job.attempt for job in jobs}
        reported: set[str] = set()
        results: dict[str, JobResult] = {}
        last_sign = time.monotonic()
        while len(results) < len(jobs):
            if self._closing:
                raise TrainError("the workers were ended while rollouts went on")
            if self._hand_out(waiting):
                last_sign = time.monotonic()
            try:
                process, message = self._events.get(timeout=waiting.patience_s())
            except queue.Empty:
                self._kill_silent(time.monotonic() - last_sign)
                continue
            last_sign = time.monotonic()
            if message is None:
                for left in self._replace(process):
                    if left.job.rollout_id in self._first:
                        self._again(left, waiting, results, at_once=True)
            elif message.get("ready"):
                process.ready, self._false_starts = True, 0
            else:
                job = process.jobs.pop((message["job"]["rollout_id"], message["job"]["attempt"]), None)
                if job is not None and job.rollout_id in self._first:  # not one of a collection that was interrupted
                    outcome, counts = Outcome(message["outcome"]), message["counts"]
                    result = JobResult(job, outcome, message["result"], message["error"], counts)
                    self._again(result, waiting, results)
            for rollout_id in results.keys() - reported:
                reported.add(rollout_id)
                keep(results[rollout_id])
            progress(len(results), len(jobs))
        return [results[job.rollout_id] for job in jobs]

    def close(self) -> None:
        """Ends the workers; open attempts are closed as infrastructure. A `collect` in another thread then raises
        `TrainError`.
        """
        self._closing = True
        with self._collecting:
            for process in self._processes:
                close_input(process.popen)
            for process in self._processes:
                try:
                    process.popen.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.popen.kill()
                    process.popen.wait()
                self._close_attempts(process, "the run ended before the attempt did")
            self._processes = []

    def _again(
        self, result: JobResult, waiting: _Waiting, results: dict[str, JobResult], *, at_once: bool = False
    ) -> None:
        """Keeps a result, or puts the rollout back in line for another attempt when the machines were to blame."""
        job = result.job
        tried = job.attempt - self._first.get(job.rollout_id, job.attempt)
        if result.outcome.trainable or tried + 1 >= self.max_attempts:
            results[job.rollout_id] = result
            return
        at_once = at_once or result.outcome is not Outcome.INFRASTRUCTURE
        delay_s = 0.0 if at_once else self.retry_delay_s * 4**tried
        waiting.add(replace(job, attempt=job.attempt + 1), delay_s)

    def _hand_out(self, waiting: _Waiting) -> bool:
        """Gives the workers what they can take; returns whether that was anything."""
        ready = [process for process in self._processes if process.ready]
        given = False
        while ready:
            process = min(ready, key=lambda process: len(process.jobs))
            if len(process.jobs) >= self.concurrency or (job := waiting.take()) is None:
                break
            process.jobs[job.rollout_id, job.attempt] = job
            given = True
            write_line(process.popen, asdict(job))  # if it has died, the event queue says so
        return given

    def _start(self, number: int) -> _Process:
        log = self.log_dir / f"worker-{number}.log"
        with log.open("ab") as stderr:
            popen = subprocess.Popen(
                [sys.executable, "-m", "lgov_core.train.workers.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        process = _Process(number, popen)
        write_line(popen, asdict(self.config))
        threading.Thread(target=self._read, args=(process,), daemon=True, name=f"lgov-worker-{number}").start()
        return process

    def _read(self, process: _Process) -> None:
        if process.popen.stdout is not None:
            for line in process.popen.stdout:
                if line.endswith(b"\n"):  # a worker that is killed may leave half a line
                    self._events.put((process, json.loads(line)))
            process.popen.stdout.close()
        self._events.put((process, None))

    def _replace(self, process: _Process) -> list[JobResult]:
        """Starts another worker in the dead one's place; returns how the jobs ended that it had."""
        if process not in self._processes:
            return []
        code = process.popen.wait()
        close_input(process.popen)
        self.deaths += 1
        self._false_starts += not process.ready
        # What kills one before it is ready may be gone in a moment; what it ends of by itself, or hangs in, is not. Nor is a
        # framework that cannot be governed, whenever the agent imports it.
        in_vain = not process.ready and (code >= 0 or process.silent or self._false_starts >= _MOST_FALSE_STARTS)
        in_vain = in_vain or code == CANNOT_GOVERN
        if self.deaths > self.max_deaths or in_vain:
            log = self.log_dir / f"worker-{process.number}.log"
            last = next((line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")
            when = "" if process.ready else " before it was ready"
            raise TrainError(
                f"worker {process.number} ended with status {code}{when}" + (f": {last.strip()}" if last else ""),
                hint=f"see {log}",
            )
        left = self._close_attempts(process, f"worker ended with status {code}")
        self._processes[self._processes.index(process)] = self._start(process.number)
        return left

    def _close_attempts(self, process: _Process, reason: str) -> list[JobResult]:
        """Closes in the store what an ended worker left open; returns how its jobs ended.

        One that the worker closed itself, and could not report, ended as the store has it: it is not run again.
        """
        jobs = list(process.jobs.values())
        process.jobs.clear()
        left: list[JobResult] = []
        for job in jobs:
            result = JobResult(job, Outcome.INFRASTRUCTURE, {}, reason)
            try:
                self.store.finish_attempt(job.rollout_id, job.attempt, result.outcome, error=reason)
            except StoreError:
                # It died before it opened the attempt, or after it closed it; either way the store is right.
                for attempt in self.store.attempts([job.rollout_id]):
                    if attempt.attempt == job.attempt and attempt.outcome is not None:
                        result = _stored_result(job, attempt, attempt.outcome)
            left.append(result)
        return left

    def _kill_silent(self, silence_s: float) -> None:
        """Kills workers that hold jobs for longer than an attempt may take; their death is then seen as any other."""
        for process in self._processes:
            limit = self.config.timeout_s + self.grace_s if process.ready else self.start_timeout_s
            if silence_s > limit and (process.jobs or not process.ready):
                process.silent = True
                process.popen.kill()


def _stored_result(job: Job, attempt: Attempt, outcome: Outcome) -> JobResult:
    """The result of an attempt whose worker is gone; it has no counts, which only the worker's governor knew."""
    said = attempt.result if isinstance(attempt.result, Mapping) else {}
    return JobResult(job, outcome, said, attempt.error)
