"""Runs attempts for a client: in threads of its process, or in worker processes."""

from __future__ import annotations

import contextvars
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from lgov_core.client.attempts import AgentRunner
from lgov_core.client.wire import Assignment, Report
from lgov_core.errors import TrainError
from lgov_core.governance import Governance
from lgov_core.process.confined import command_in_box
from lgov_core.process.governed import CANNOT_GOVERN
from lgov_core.train.workers.lines import close_input, write_line
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

    def give(self, given: Assignment) -> None:
        """Starts an attempt; `Done` is called when it has ended."""
        with self._lock:
            self._running[given.key] = given
        context = self._context.copy()
        name = f"lgov-agent-{given.rollout_id}"
        threading.Thread(target=context.run, args=(self._run, given), name=name, daemon=True).start()

    def _run(self, given: Assignment) -> None:
        try:
            report = self._runner.run(given)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like end this attempt, not the client
            report = Report(Outcome.FAILED, error=f"{type(error).__name__}: {error}", counts={"raised": 1})
        with self._lock:
            if self._running.get(given.key) is not given:
                return
            self._reporting[given.key] = self._running.pop(given.key)
        try:
            self._done(given, report)
        finally:
            with self._lock:
                self._reporting.pop(given.key, None)

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
    popen: subprocess.Popen[bytes]
    ready: bool = False
    given: Assignment | None = None
    reporting: bool = False
    given_up: bool = False

    @property
    def free(self) -> bool:
        return self.ready and self.given is None and not self.reporting and not self.given_up


class ProcessWorkers:
    """As `ThreadWorkers`, in processes with one attempt at a time. One that dies or hangs is replaced; its attempt
    ends as ``infrastructure``.

    ``options`` is passed to `lgov_core.client.worker_process`. When processes keep dying before they are ready,
    `failure` says why. With ``confine`` each process is in a box of its own, and its record outside of that.
    """

    def __init__(self, options: dict[str, Any], count: int, done: Done, *, confine: bool = False) -> None:
        self._options, self._done, self._confine = options, done, confine
        #: What is private to the boxes: they are killed, and leave it.
        self._temporary = tempfile.TemporaryDirectory(prefix="lgov-workers-", ignore_cleanup_errors=True)
        self._lock = threading.Lock()
        self._closing = False
        self._false_starts = 0
        #: Processes that ended by themselves.
        self.deaths = 0
        self.failure: TrainError | None = None
        self._processes = [self._start() for _ in range(count)]

    @property
    def free(self) -> int:
        """See `ThreadWorkers`. Raises `TrainError` when processes cannot be started."""
        with self._lock:
            if self.failure is not None:
                raise self.failure
            return sum(process.free for process in self._processes)

    @property
    def pids(self) -> list[int]:
        """Process ids at this moment."""
        with self._lock:
            return [process.popen.pid for process in self._processes]

    def give(self, given: Assignment) -> None:
        """See `ThreadWorkers`."""
        with self._lock:
            process = next(one for one in self._processes if one.free)
            process.given = given
        write_line(process.popen, asdict(given))  # if it has died, its reader says so

    def abandon(self, key: tuple[str, int]) -> None:
        """See `ThreadWorkers`."""
        with self._lock:
            for process in self._processes:
                if process.given is not None and process.given.key == key:
                    process.given, process.given_up = None, True
                    process.popen.kill()  # its reader puts another in its place

    def running(self) -> list[Assignment]:
        """See `ThreadWorkers`."""
        with self._lock:
            return [process.given for process in self._processes if process.given is not None]

    def close(self) -> None:
        """See `ThreadWorkers`."""
        with self._lock:
            self._closing = True
            processes, self._processes = self._processes, []
            for process in processes:
                process.given = None
        for process in processes:
            process.popen.kill()
        for process in processes:
            process.popen.wait()
            close_input(process.popen)
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
        write_line(popen, self._options)
        threading.Thread(target=self._read, args=(process,), name=f"lgov-client-{popen.pid}", daemon=True).start()
        return process

    def _read(self, process: _Process) -> None:
        said: dict[str, Any] = {}
        assert process.popen.stdout is not None
        with process.popen.stdout as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # it was killed while it wrote
                said = json.loads(line)
                if said.get("ready"):
                    with self._lock:
                        process.ready, self._false_starts = True, 0
                elif "report" in said:
                    self._reported(process, said)
        self._died(process, process.popen.wait(), said)

    def _reported(self, process: _Process, said: dict[str, Any]) -> None:
        with self._lock:
            given = process.given
            if given is None or [given.rollout_id, given.attempt] != said["key"]:
                return
            process.given, process.reporting = None, True  # it cannot be abandoned any more
        try:
            self._done(given, Report.of_json(said["report"]))
        finally:
            with self._lock:
                process.reporting = False

    def _died(self, process: _Process, status: int, said: dict[str, Any]) -> None:
        with self._lock:
            if self._closing or process not in self._processes:
                return
            given, process.given = process.given, None
            self.deaths += 1
            self._false_starts += not process.ready
            in_vain = self._false_starts >= _MOST_FALSE_STARTS or (status == CANNOT_GOVERN and not process.ready)
            if in_vain and self.failure is None:
                why = said.get("error") or f"ended with status {status}, and standard error says why"
                self.failure = TrainError(f"no worker process became ready: {why}", hint=said.get("hint"))
            if self.failure is None:
                self._processes[self._processes.index(process)] = self._start()
            else:
                self._processes.remove(process)
        close_input(process.popen)
        if given is not None:
            error = f"the worker process ended with status {status}"
            self._done(given, Report(Outcome.INFRASTRUCTURE, error=error, counts={"died": 1}))


Workers: TypeAlias = ThreadWorkers | ProcessWorkers
