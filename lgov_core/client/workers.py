"""Runs attempts for a client: in threads of its process, or in worker processes."""

from __future__ import annotations

import contextlib
import contextvars
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from lgov_core.client.attempts import AgentRunner
from lgov_core.client.wire import Assignment, Report
from lgov_core.errors import TrainError
from lgov_core.governance import Governance
from lgov_core.process.confined import command_in_box
from lgov_core.process.governed import CANNOT_GOVERN
from lgov_core.types import Outcome

#: Called from any thread when an attempt has ended.
Done = Callable[[Assignment, Report], None]
#: Number of consecutive processes that die before running anything after which no more are started.
_MOST_FALSE_STARTS = 3
_PROGRAM = ("-m", "lgov_core.client.worker_process")


class ThreadWorkers:
    """Runs assignments, each in a thread, ``count`` at a time. `give`, `abandon` and `close` are for one thread each.

    An attempt that hangs cannot be ended: it is abandoned. Agents have the context variables of the thread that made
    this.
    """

    def __init__(self, runner: AgentRunner, count: int, done: Done) -> None:
        self._runner, self._count, self._done = runner, count, done
        self._context = contextvars.copy_context()
        self._running: dict[tuple[str, int], Assignment] = {}
        self._reporting: dict[tuple[str, int], Assignment] = {}  # these cannot be abandoned any more
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """How many more assignments can be given now."""
        with self._lock:
            return self._count - len(self._running) - len(self._reporting)

    def give(self, assignment: Assignment) -> None:
        """Starts an attempt; `Done` is called when it has ended."""
        with self._lock:
            self._running[assignment.key] = assignment
        context = self._context.copy()
        name = f"lgov-agent-{assignment.rollout_id}"
        threading.Thread(target=context.run, args=(self._run, assignment), name=name, daemon=True).start()

    def _run(self, assignment: Assignment) -> None:
        try:
            report = self._runner.run(assignment)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like end this attempt, not the client
            report = Report(Outcome.FAILED, error=f"{type(error).__name__}: {error}", counts={"raised": 1})
        with self._lock:
            if self._running.get(assignment.key) is not assignment:
                return
            self._reporting[assignment.key] = self._running.pop(assignment.key)
        try:
            self._done(assignment, report)
        finally:
            with self._lock:
                self._reporting.pop(assignment.key, None)

    def abandon(self, key: tuple[str, int]) -> None:
        """Gives up an attempt: its slot is free again, and it is not reported."""
        with self._lock:
            self._running.pop(key, None)

    def running(self) -> list[Assignment]:
        """The attempts that run."""
        with self._lock:
            return list(self._running.values())

    def close(self) -> None:
        """Ends everything; what was still running is not reported."""
        with self._lock:
            self._running.clear()


@dataclass(eq=False)
class _Process:
    """A worker process: ``running`` are its attempts, ``reporting`` of them cannot be abandoned any more."""

    popen: subprocess.Popen[bytes]
    ready: bool = False
    ended: bool = False
    running: dict[tuple[str, int], Assignment] = field(default_factory=dict[tuple[str, int], Assignment])
    reporting: int = 0

    def free(self, threads: int) -> int:
        """How many more attempts it can be given."""
        return threads - len(self.running) - self.reporting if self.ready and not self.ended else 0


class ProcessWorkers:
    """As `ThreadWorkers`, in ``processes`` processes that share ``count`` attempts, by default one each. One that dies or
    hangs is replaced; its attempts end as ``infrastructure``.

    A process with one attempt at a time is killed when that is abandoned; one with several abandons it as `ThreadWorkers`
    does. ``options`` is passed to `lgov_core.client.worker_process`. When processes keep dying before they are ready, or
    a framework cannot be governed there, `failure` says why. With ``confine`` each process is in a box of its own, and
    its record outside of that.
    """

    def __init__(
        self, options: dict[str, Any], count: int, done: Done, *, processes: int | None = None, confine: bool = False
    ) -> None:
        chosen = min(processes or count, count)
        self._threads = math.ceil(count / chosen)
        self._options: dict[str, Any] = {**options, "threads": self._threads}
        self._done, self._confine = done, confine
        #: What is private to the boxes: they are killed, and leave it.
        self._temporary = tempfile.TemporaryDirectory(prefix="lgov-workers-", ignore_cleanup_errors=True)
        self._lock = threading.Lock()
        self._closing = False
        self._false_starts = 0
        #: Processes that ended by themselves.
        self.deaths = 0
        self.failure: TrainError | None = None
        self._processes = [self._start() for _ in range(chosen)]

    @property
    def free(self) -> int:
        """See `ThreadWorkers`. Raises `TrainError` when processes cannot be started."""
        with self._lock:
            if self.failure is not None:
                raise self.failure
            return sum(process.free(self._threads) for process in self._processes)

    @property
    def pids(self) -> list[int]:
        """Process ids at this moment."""
        with self._lock:
            return [process.popen.pid for process in self._processes]

    def give(self, assignment: Assignment) -> None:
        """See `ThreadWorkers`."""
        with self._lock:
            process = max(self._processes, key=lambda process: process.free(self._threads), default=None)
            # The process that was free may have died since: its place is taken by one that is not ready yet.
            lost = process is None or not process.free(self._threads)
            if process is not None and not lost:
                process.running[assignment.key] = assignment
        if lost or process is None:
            self._done(assignment, Report(Outcome.INFRASTRUCTURE, error="the worker process ended", counts={"died": 1}))
        else:
            _write_line(process.popen, asdict(assignment))  # if it has died, its reader says so

    def abandon(self, key: tuple[str, int]) -> None:
        """See `ThreadWorkers`."""
        with self._lock:
            process = next((process for process in self._processes if key in process.running), None)
            if process is None:
                return
            del process.running[key]
            if self._threads == 1:
                process.ended = True
                process.popen.kill()  # its reader puts another in its place
                return
        _write_line(process.popen, {"abandon": list(key)})

    def running(self) -> list[Assignment]:
        """See `ThreadWorkers`."""
        with self._lock:
            return [assignment for process in self._processes for assignment in process.running.values()]

    def close(self) -> None:
        """See `ThreadWorkers`."""
        with self._lock:
            self._closing = True
            processes, self._processes = self._processes, []
            for process in processes:
                process.running.clear()
        for process in processes:
            process.popen.kill()
        for process in processes:
            process.popen.wait()
            _close_input(process.popen)
        self._temporary.cleanup()

    def _start(self) -> _Process:
        command, environment = [sys.executable, *_PROGRAM], None
        if self._confine:
            command = command_in_box(
                _PROGRAM,
                governance=Governance.of_json(self._options["governance"]),
                endpoint=self._options["endpoint"],
            )
            environment = {**os.environ, "TMPDIR": self._temporary.name}
        popen = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the client, which then decides
        )
        process = _Process(popen)
        _write_line(popen, self._options)
        threading.Thread(target=self._read, args=(process,), name=f"lgov-client-{popen.pid}", daemon=True).start()
        return process

    def _read(self, process: _Process) -> None:
        message: dict[str, Any] = {}
        assert process.popen.stdout is not None
        with process.popen.stdout as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # it was killed while it wrote
                message = json.loads(line)
                if message.get("ready"):
                    with self._lock:
                        process.ready, self._false_starts = True, 0
                elif "report" in message:
                    self._reported(process, message)
        self._died(process, process.popen.wait(), message)

    def _reported(self, process: _Process, message: dict[str, Any]) -> None:
        rollout_id, attempt = message["key"]
        with self._lock:
            assignment = process.running.pop((rollout_id, attempt), None)
            if assignment is None:
                return
            process.reporting += 1
        try:
            self._done(assignment, Report.of_json(message["report"]))
        finally:
            with self._lock:
                process.reporting -= 1

    def _died(self, process: _Process, status: int, message: dict[str, Any]) -> None:
        with self._lock:
            if self._closing or process not in self._processes:
                return
            unfinished = list(process.running.values())
            process.running.clear()
            self.deaths += 1
            self._false_starts += not process.ready
            # A framework that cannot be governed ends the process whenever the agent imports it: another would end too.
            in_vain = self._false_starts >= _MOST_FALSE_STARTS or status == CANNOT_GOVERN
            if in_vain and self.failure is None:
                why = message.get("error") or f"ended with status {status}, and standard error says why"
                when = "stays ready" if process.ready else "became ready"
                self.failure = TrainError(f"no worker process {when}: {why}", hint=message.get("hint"))
            if self.failure is None:
                self._processes[self._processes.index(process)] = self._start()
            else:
                self._processes.remove(process)
        _close_input(process.popen)
        for assignment in unfinished:
            error = f"the worker process ended with status {status}"
            self._done(assignment, Report(Outcome.INFRASTRUCTURE, error=error, counts={"died": 1}))


Workers: TypeAlias = ThreadWorkers | ProcessWorkers


def _write_line(popen: subprocess.Popen[bytes], value: Mapping[str, Any]) -> None:
    """Writes one line to a worker process. One that has died is reported by its reader."""
    if popen.stdin is not None:
        with contextlib.suppress(OSError):
            popen.stdin.write(json.dumps(value, default=str).encode() + b"\n")
            popen.stdin.flush()


def _close_input(popen: subprocess.Popen[bytes]) -> None:
    """Tells a worker process to end; what it can no longer read is lost."""
    if popen.stdin is not None:
        with contextlib.suppress(OSError):
            popen.stdin.close()
