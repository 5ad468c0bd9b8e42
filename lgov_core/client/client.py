"""Client: uploads tasks to a training server, runs an agent on them while the server trains its model, and gives its result."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from lgov_core import air
from lgov_core.air import AirRules, RuleSet
from lgov_core.client.attempts import Agent, AgentRunner, check_agent
from lgov_core.client.tasks import load_agent, name_of, read_tasks
from lgov_core.client.wire import ENDED, PROTOCOL, Assignment, Report, ServerConnection
from lgov_core.client.workers import Done, ProcessWorkers, ThreadWorkers, Workers
from lgov_core.errors import ArgumentError, ClientError, LgovError, TaskError, TrainError, counted
from lgov_core.governance import Governance
from lgov_core.train.loop.figures import time_spent
from lgov_core.types import new_id


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished run.

    ``metrics`` are this run's lines of the server's ``metrics.jsonl``, in order: ``phase`` is ``train`` or ``test``.
    ``counts`` are this client's: attempts by outcome, violations, bad rewards. ``folder`` is the run's, on the server.
    """

    run_id: str
    metrics: Sequence[Mapping[str, Any]]
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    folder: str = ""

    @property
    def curves(self) -> dict[str, list[float]]:
        """Each figure of the updates as a list, one value an update; ``step`` among them."""
        return _columns([line for line in self.metrics if line.get("phase") == "train"])

    @property
    def test_curves(self) -> dict[str, list[float]]:
        """The same of the evaluations on held-out tasks."""
        return _columns([line for line in self.metrics if line.get("phase") == "test"])

    @property
    def updates(self) -> int:
        """How many updates were made."""
        return sum(line.get("phase") == "train" for line in self.metrics)

    def __str__(self) -> str:
        curves, tests = self.curves, self.test_curves
        parts = [counted(self.updates, "update")]
        for what, figures in (("training", curves), ("held-out", tests)):
            if rewards := [reward for reward in figures.get("reward", ()) if math.isfinite(reward)]:
                half = figures.get("reward_half_width", [math.nan])[-1]
                interval = f" ± {half:.3f}" if math.isfinite(half) else " (too few tasks for an interval)"
                parts.append(f"{what} reward {rewards[0]:.3f} -> {rewards[-1]:.3f}{interval}")
        return ", ".join(parts)


def _columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    names = {
        name: None
        for line in lines
        for name, value in line.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {
        name: [float(line[name]) if line.get(name) is not None else float("nan") for line in lines] for name in names
    }


class TrainingBar:
    """One bar over the updates of a run; a line now and then where standard error is not a terminal. Nothing when ``quiet``."""

    def __init__(self, *, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = Console(file=sys.stderr, quiet=quiet)
        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[note]}", markup=False),
        )
        self._progress = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task = self._progress.add_task("training", total=None, left="", note="")
        self._printed = 0.0
        self._shown = -1
        self._said: set[str] = set()
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def show(self, progress: Mapping[str, Any], new: Sequence[Mapping[str, Any]]) -> None:
        """Shows what the server said of the run, and the notes and warnings of the ``new`` lines of its figures.

        A warning is shown when it begins, and again when it comes back after an update without it.
        """
        if (note := progress.get("note")) and note not in self._said:
            self._said.add(note)
            self.say(f"NOTE: {note}")
        for line in new:
            if line.get("note"):
                self.say(f"update {line['step']}: {line['note']}")
            if line.get("phase") == "train":
                warnings: Mapping[str, str] = line.get("warnings") or {}
                for code in warnings.keys() - self._warned:
                    self.say(f"WARNING: update {line['step']}: {warnings[code]}")
                self._warned = set(warnings)
        step, steps = int(progress["step"]), int(progress["steps"])
        remaining = time_left(progress.get("seconds_left"))
        note = f"{progress['state']} {progress['done']}/{progress['total']}" if progress["total"] else progress["state"]
        reward = progress.get("reward")
        note += "" if reward is None else f"  reward {reward:.3f}"
        self._progress.update(self._task, completed=step, total=steps, left=remaining, note=note)
        now = time.monotonic()
        if not self._console.is_terminal and (step > self._shown or now - self._printed > 30):
            self._printed, self._shown = now, step
            self._console.print(
                f"{step} of {steps} updates made; {note}  {remaining}".rstrip(), highlight=False, soft_wrap=True
            )

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


def time_left(seconds: float | None) -> str:
    """A time for people; nothing where it is not known."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min left"
    return f"{whole // 60} min {whole % 60:02d} s left" if whole >= 60 else f"{whole} s left"


#: Bytes of tasks in one request, about: servers take bodies of 8 MiB.
_PART: Final = 2 * 1024 * 1024
#: Seconds without a heartbeat after which a worker loses its attempts.
_LEASE_S: Final = 30.0
#: Number of consecutive attempts without a numeric reward after which training stops.
_MOST_BAD_REWARDS: Final = 8

TaskFile = str | os.PathLike[str] | Sequence[Mapping[str, Any]]


class Client:
    """The agent's side of a training pair. For one thread; several clients may work for one server.

    ``url`` is the server's address (default: the variable ``AGENT_LIGHTNING_SERVER_URL``), ``key`` its admin key where it
    wants one (default: ``LIGHTNING_SERVER_KEY``). ``patience_s`` is how long a server may be away. Nothing is sent before
    it is needed. ``exit_on_interrupt``: see `train`. ``first_hand`` is `TrainingServer.first_hand_key`, for the program that
    started the server: spans of its rollouts are then kept with their content, as what happened and not as claims.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        patience_s: float = 60.0,
        quiet: bool = False,
        exit_on_interrupt: bool = True,
        first_hand: str | None = None,
    ) -> None:
        address = url or os.environ.get("AGENT_LIGHTNING_SERVER_URL")
        if not address:
            raise ClientError(
                "no server is named", hint="Client('http://localhost:8000'), or set AGENT_LIGHTNING_SERVER_URL"
            )
        self._connection = ServerConnection(
            address, key=key or os.environ.get("LIGHTNING_SERVER_KEY"), patience_s=patience_s, first_hand=first_hand
        )
        self._quiet = quiet
        self._exit_on_interrupt = exit_on_interrupt
        self._greeted, self._first_hand = False, first_hand is not None

    @property
    def url(self) -> str:
        """The server's address."""
        return self._connection.url

    def upload_data(self, train: TaskFile, test_file: TaskFile | None = None) -> dict[str, int]:
        """Gives the server tasks to train on and, if there are any, held-out ones; those it had before are forgotten.

        Each is a file of JSON lines, or a list of mappings. Returns how many there are of each. While a training goes on
        only the tasks that it has are accepted, so that a program that was interrupted can be run again. Raises `TaskError`
        for a file that is wrong: nothing is uploaded then.
        """
        splits = {"train": read_tasks(train), "test": [] if test_file is None else read_tasks(test_file)}
        self._greet()
        upload = new_id("upload")
        for split, tasks in splits.items():
            for chunk in _parts(tasks):
                self._connection.post("/train/data", {"upload": upload, "split": split, "tasks": chunk})
        counts = {split: len(tasks) for split, tasks in splits.items()}
        self._connection.post("/train/data/commit", {"upload": upload, **counts})
        return counts

    def train(
        self,
        agent: Agent | str,
        nworkers: int = 4,
        *,
        workers: Literal["threads", "processes", "confined"] | int = "threads",
        policy: str | os.PathLike[str] | None = None,
        audit: str | os.PathLike[str] | None = None,
        air_enabled: bool = True,
        auto_instrumentation: bool = True,
    ) -> TrainResult:
        """Runs ``agent(resource, task)`` on the uploaded tasks until the server has trained its model.

        The agent returns its reward, a finite number (or several by name: ``{"task": 1.0, "style": 0.2}``), or a
        `lgov_core.client.wire.Report`; it may be a coroutine function, or the name of one, as ``module:function`` or
        ``file.py:function``. ``nworkers`` rollouts run at a time, in threads or in processes (the agent must then be found by
        name). A number of ``workers`` is that of processes that share them, each running its part in threads; ``confined``
        are processes each in a box of its own, by the rules of the policy file, or the preset ``workspace`` without one,
        with their record outside (`docs/how-to/confinement.md`). ``policy`` is a policy file under which installed
        frameworks are governed; without one agents are only watched. ``audit`` is the record. What the settings
        (``lgov.toml``) say about the record, its key, redaction and timeouts holds here too. With ``air_enabled`` the AIR
        rules in use (`lgov_core.air`), or those of the setting ``air``, or the built-in values, reward single calls.

        Continues the server's unfinished run if there is one. An attempt whose worker crashed or hung is tried again.
        Raises `TrainError` when the server cannot continue or the agent returns no rewards, `ClientError` when the
        server is gone. On Ctrl-C attempts are handed back, the server waits for another client, and `TrainingInterrupted` is
        raised: a KeyboardInterrupt that ends a program which does not catch it with one line and status 130. Running the
        program again continues. Without ``exit_on_interrupt`` it is a plain KeyboardInterrupt, and nothing is written.
        """
        if os.environ.get("LIGHTNING_CLIENT_WORKER"):
            raise TrainError(
                "the agent's module starts a training when a worker imports it",
                hint='put client.train(...) under if __name__ == "__main__":',
            )
        if nworkers < 1:
            raise ArgumentError(f"nworkers is {nworkers}", hint="1 is the least")
        processes = _processes(workers, nworkers)
        if not isinstance(agent, str):
            check_agent(agent)
        elif not processes:
            agent = load_agent(agent)
        governance = Governance.from_settings().under(
            None if policy is None else Path(policy), None if audit is None else Path(audit)
        )
        rules = rules_in_use(governance) if air_enabled else None
        options: dict[str, Any] = {"endpoint": self.url, "instrument": auto_instrumentation}
        name = agent if isinstance(agent, str) else name_of(agent) if processes else ""

        def opened(open_things: contextlib.ExitStack, done: Done) -> Workers:
            content = self._first_hand  # what else the server needs of it, its endpoint has
            if processes:
                governing = replace(governance, store=None).as_json()
                settings = {**options, "governance": governing, "agent": name, "rules": air_enabled, "content": content}
                return ProcessWorkers(settings, nworkers, done, processes=processes, confine=workers == "confined")
            runner = AgentRunner(cast("Agent", agent), governance=governance, rules=rules, content=content, **options)
            open_things.callback(runner.close)
            return ThreadWorkers(runner, nworkers, done)

        return self.train_with(opened)

    def train_with(self, open_workers: Callable[[contextlib.ExitStack, Done], Workers]) -> TrainResult:
        """As `train`, with workers of the caller's own: what they need beside themselves goes onto the stack."""
        try:
            return self._train_with(open_workers)
        except KeyboardInterrupt:
            if not self._exit_on_interrupt:
                raise
            sys.stderr.write("interrupted; the server keeps every update: run the same program again to continue\n")
            raise TrainingInterrupted(130) from None

    def _train_with(self, open_workers: Callable[[contextlib.ExitStack, Done], Workers]) -> TrainResult:
        self._greet()
        run_id = str(self._connection.post("/train/start", {"client": new_id("client")})["run"])
        with contextlib.ExitStack() as open_things:
            session = _Session(self._connection, run_id)
            chosen = open_workers(open_things, session.finish)
            open_things.callback(session.release)
            open_things.callback(chosen.close)
            open_things.enter_context(session.heartbeats(chosen))
            display = open_things.enter_context(TrainingBar(quiet=self._quiet))
            return _run(session, chosen, display)

    def stop(self) -> None:
        """Asks the server to end its run after the update in progress, with a checkpoint."""
        self._greet()
        self._connection.post("/train/stop", {})

    def _greet(self) -> None:
        """Finds out once whether the server is one of this kind. Raises `ClientError`."""
        if self._greeted:
            return
        about = self._connection.get("/train/about")
        if about.get("protocol") != PROTOCOL:
            raise ClientError(
                f"the server is lgov {about.get('version')} and speaks protocol {about.get('protocol')}, "
                f"this client protocol {PROTOCOL}",
                hint="install the same version of lgov on both sides",
            )
        self._greeted = True


class TrainingInterrupted(SystemExit, KeyboardInterrupt):
    """Ctrl-C during `Client.train`. Uncaught, it ends the program with status 130 and without a traceback."""


class _Session:
    """The requests of a client in training to its server."""

    def __init__(self, connection: ServerConnection, run_id: str) -> None:
        self.connection = connection
        self.run_id = run_id
        self.worker_id = new_id("client")
        self.counts: Counter[str] = Counter()
        self.metrics: list[dict[str, Any]] = []
        self.ended = threading.Condition()
        self.trouble: LgovError | None = None
        #: The run has ended: no attempt is left.
        self.over = False
        self._bad_in_a_row = 0

    def claim(self, limit: int, wait_s: float) -> tuple[list[Assignment], dict[str, Any]]:
        """At most ``limit`` assignments, and the state of the run."""
        body = {
            "worker_id": self.worker_id, "limit": limit, "lease_s": _LEASE_S, "wait_s": wait_s,
            "run": self.run_id, "after": len(self.metrics),
        }  # fmt: skip
        answer = self.connection.post("/train/claim", body, timeout_s=wait_s + 30.0)
        self.metrics += answer["progress"].pop("metrics")
        assignments = [Assignment(**raw) for raw in answer["assignments"]]
        # The server says the path: under which address it can be reached, only this side knows.
        return [
            replace(assignment, model_api=f"{self.connection.url}{assignment.model_api}") for assignment in assignments
        ], answer["progress"]

    def finish(self, assignment: Assignment, report: Report) -> None:
        """Reports an attempt. Called in any thread; errors are passed to the training thread."""
        identity = {"worker_id": self.worker_id, "rollout_id": assignment.rollout_id, "attempt": assignment.attempt}
        try:
            answer = self.connection.post("/train/finish", {**identity, **report.as_json()})
            accepted, trouble = bool(answer.get("accepted")), None
        except LgovError as error:
            accepted, trouble = False, error
        except ValueError as error:  # a reward that is not a JSON number; it was checked before, so this is a bug here
            accepted, trouble = False, ClientError(f"a report cannot be sent: {error}")
        with self.ended:
            self.counts[report.outcome.value if accepted else "not accepted"] += 1
            for name, count in report.counts.items():
                self.counts[name] += count
            self._bad_in_a_row = self._bad_in_a_row + 1 if report.counts.get("bad_reward") else 0
            if self._bad_in_a_row >= _MOST_BAD_REWARDS:
                trouble = TrainError(f"{self._bad_in_a_row} attempts in a row gave no reward: {report.error}")
            self.trouble = self.trouble or trouble
            self.ended.notify_all()

    def release(self) -> None:
        """Hands back all attempts, also those whose assignment never arrived here; on failure their lease expires."""
        if self.over:
            return
        with contextlib.suppress(LgovError):
            body = {"worker_id": self.worker_id, "reason": "the client was interrupted"}
            self.connection.post("/train/release", body, timeout_s=5.0, patience_s=0.0)

    @contextlib.contextmanager
    def heartbeats(self, workers: Workers) -> Generator[None]:
        """Reports the running attempts to the server until the block ends; abandons those that it has given up."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(1.0):
                running = workers.running()
                if not running:
                    continue
                body = {
                    "worker_id": self.worker_id, "lease_s": _LEASE_S,
                    "attempts": [[assignment.rollout_id, assignment.attempt] for assignment in running],
                }  # fmt: skip
                try:
                    held = self.connection.post("/train/heartbeat", body, timeout_s=10.0, patience_s=0.0)["attempts"]
                except LgovError:
                    continue  # the next one may get through; the lease bounds how long that may take
                kept = {(str(rollout_id), int(attempt)) for rollout_id, attempt in held}
                for assignment in running:
                    if assignment.key not in kept and any(assignment is current for current in workers.running()):
                        workers.abandon(assignment.key)
                        with self.ended:
                            self.counts["abandoned"] += 1
                            self.ended.notify_all()

        thread = threading.Thread(target=beat, name="lgov-client-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=15.0)


def _run(session: _Session, workers: Workers, display: TrainingBar) -> TrainResult:
    """Hands work to the workers until the run has ended."""
    seen = 0
    while True:
        if session.trouble is not None:
            raise session.trouble
        free = workers.free
        assignments, progress = session.claim(free, 1.0 if free else 0.0)
        for assignment in assignments:
            workers.give(assignment)
        display.show(progress, session.metrics[seen:])
        seen = len(session.metrics)
        state = progress["state"]
        if state in ENDED:
            session.over = True
            break
        if not workers.free:
            with session.ended:
                session.ended.wait(timeout=0.5)
        elif not assignments and not free:
            time.sleep(0.05)
    if state == "failed":
        raise TrainError(f"the server could not continue: {progress['error']}", hint=progress.get("hint"))
    if state == "stopped":
        raise TrainError("the training was stopped at the server", hint="train again to continue")
    result = TrainResult(session.run_id, tuple(session.metrics), dict(session.counts), str(progress.get("folder", "")))
    display.say(str(result))
    if (spent := time_spent(result.metrics)) is not None:
        display.say(str(spent))
    return result


def _processes(workers: str | int, nworkers: int) -> int:
    """The number of worker processes that ``workers`` of `Client.train` asks for; 0 for threads."""
    if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1:
        return min(workers, nworkers)
    if workers not in ("threads", "processes", "confined"):
        raise ArgumentError(
            f"workers is {workers!r}", hint="write threads, processes, confined, or a number of processes"
        )
    return 0 if workers == "threads" else nworkers


def rules_in_use(governance: Governance, default: AirRules | None = None) -> RuleSet:
    """The AIR rules in use (`lgov_core.air`); where there are none `Governance.reward_rules`, with the base ``default``."""
    rules = air.current()
    return rules if rules.rules or rules.base is not None else governance.reward_rules(default)


def _parts(tasks: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    parts: list[list[dict[str, Any]]] = []
    size = _PART
    for task in tasks:
        length = len(json.dumps(task))
        if length > 2 * _PART:
            raise TaskError(f"a task of {length} bytes is too large", hint=f"{2 * _PART} bytes are the most")
        if size + length > _PART:
            parts.append([])
            size = 0
        parts[-1].append(task)
        size += length
    return parts
