"""The work of clients: the queue of rollouts, tasks, runs, assignments and reports, and the addresses that tell attempts apart.

The key of an attempt is in the path of its address, for agents that say ``api_key="not-used"`` to whatever address they are
given.
"""

from __future__ import annotations

import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import lgov_core
from lgov_core._util.containers import BoundedDict
from lgov_core._util.files import atomic_write
from lgov_core.client.tasks import read_tasks
from lgov_core.client.wire import PROTOCOL, Assignment, Report
from lgov_core.errors import EndpointError, RewardError, StoreError, TaskError
from lgov_core.gateway.access import KeyRing
from lgov_core.server.run_state import RunState
from lgov_core.store import QueueEntry, RolloutConfig, RolloutQueue, RolloutState
from lgov_core.types import Attempt, Outcome, Rollout
from lgov_core.types.records import MOST_REWARD

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


#: ``/as/{key}/v1/...`` is ``/v1/...`` with that key.
PREFIX: Final = "/as/"
_REPLACED: Final = (b"authorization", b"x-api-key")
#: A key is valid this much longer than its attempt, so that a call at the very end is recorded.
_KEY_SPARE_S: Final = 60.0


def kept_keys(folder: Path) -> KeyRing:
    """Keys for attempts, on a server that requires none. Their secret stays in ``folder``, for its owner alone.

    So an agent whose server was killed and started again continues with the key that it has. Raises `OSError`.
    """
    path = folder / "keys.secret"
    if not path.exists():
        atomic_write(path, secrets.token_bytes(32))
    return KeyRing(path.read_bytes(), required=False)


def model_path(keys: KeyRing, rollout_id: str, attempt: int, timeout_s: float) -> str:
    """The path of the model for one attempt, with a new key for it."""
    key = keys.issue(rollout_id, attempt, expires_at=time.time() + timeout_s + _KEY_SPARE_S)
    return f"{PREFIX}{key}/v1"


class KeyInPath:
    """An application behind ``/as/{key}``: the key in the path replaces the key the client sent.

    ``/v1/v1/messages`` is understood as ``/v1/messages``: of one base URL some clients expect that it ends in ``/v1``, and
    others that it does not.
    """

    def __init__(self, app: Any) -> None:
        self._app: ASGIApp = app
        self.state = app.state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            key, _, rest = scope["path"].removeprefix(PREFIX).partition("/")
            path = f"/{rest}".replace("/v1/v1/", "/v1/", 1)
            headers = [(name, value) for name, value in scope["headers"] if name not in _REPLACED]
            headers.append((b"authorization", b"Bearer " + key.encode("latin-1", "replace")))
            scope = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await self._app(scope, receive, send)


#: How the last call of an attempt failed by the machines, by rollout and attempt: what the endpoint saw.
Failures: TypeAlias = BoundedDict[tuple[str | None, int | None], str]


def with_failure(report: Report, failure: str | None) -> Report:
    """``report``, or one of the machines where the agent raised after its last call had failed by them, whatever it raised."""
    if failure is None or not report.counts.get("raised"):
        return report
    error = f"{report.error} (after its last model call failed: {failure})"
    return replace(report, outcome=Outcome.INFRASTRUCTURE, rewards=(), error=error)


#: Seconds between two polls of the queue when no attempt is reported.
_LOOK_S: Final = 0.5


class Stopped(Exception):
    """The run was asked to end; nothing is wrong."""


class QueueCollector:
    """A `Collector` over the queue of ``store``.

    When ``stopped`` says so while it waits, what has not ended is cancelled and `Stopped` is raised. `wake` may be
    called from any thread, the others from the thread of the loop.
    """

    def __init__(self, store: RolloutQueue, config: RolloutConfig, stopped: Callable[[], bool]) -> None:
        self._store, self._config, self._stopped = store, config, stopped
        self._woken = threading.Event()
        #: Grows with everything that is put into the queue: clients that wait for work then claim again.
        self.enqueued = 0

    def wake(self) -> None:
        """Something ended, or a stop was asked for."""
        self._woken.set()

    def gone(self, rollout_ids: Sequence[str]) -> set[str]:
        """Those that ended without anything to train on, and cannot be begun again. See `Collector`."""
        ended = {entry.rollout_id for entry in self._entries(rollout_ids) if entry.state.ended}
        attempts = self._store.attempts(sorted(ended)) if ended else ()
        return ended - {attempt.rollout_id for attempt in attempts if attempt.trainable}

    def collect_rollouts(
        self,
        rollouts: Sequence[Rollout],
        progress: Callable[[int, int], None] | None = None,
        keep: Callable[[Attempt], None] | None = None,
    ) -> list[Attempt]:
        """See `Collector`. Those that the queue has already, from a process that was killed, are waited for."""
        there = {entry.rollout_id for entry in self._entries([rollout.rollout_id for rollout in rollouts])}
        self._store.enqueue([rollout for rollout in rollouts if rollout.rollout_id not in there], self._config)
        self.enqueued += 1
        open_ones = {rollout.rollout_id for rollout in rollouts}
        if progress is not None:
            progress(0, len(rollouts))
        while open_ones:
            self._woken.clear()
            self._store.expire()
            entries = self._store.queue_entries(ids=sorted(open_ones))
            ended = {entry.rollout_id for entry in entries if entry.state.ended}
            open_ones -= ended
            if ended and keep is not None:
                for result in self._results([rollout for rollout in rollouts if rollout.rollout_id in ended]):
                    keep(result)
            if ended and progress is not None:
                progress(len(rollouts) - len(open_ones), len(rollouts))
            if self._stopped():
                self._cancel(open_ones)
                raise Stopped
            if open_ones:
                self._woken.wait(_LOOK_S)
        return self._results(rollouts)

    def cancel_left(self, run_id: str, but: Collection[str] = ()) -> None:
        """Cancels what an earlier process of the same run left in the queue, ``but`` for these."""
        waiting = (RolloutState.QUEUED, RolloutState.REQUEUED, RolloutState.RUNNING)
        ids = {entry.rollout_id for entry in self._store.queue_entries(run_id=run_id, states=waiting)} - set(but)
        self._cancel(ids)

    def _entries(self, rollout_ids: Sequence[str]) -> list[QueueEntry]:
        return self._store.queue_entries(ids=list(rollout_ids)) if rollout_ids else []

    def _cancel(self, rollout_ids: set[str]) -> None:
        for rollout_id in rollout_ids:
            try:
                self._store.cancel(rollout_id, "the training was stopped")
            except StoreError:  # it ended in the meantime
                continue

    def _results(self, rollouts: Sequence[Rollout]) -> list[Attempt]:
        """The last attempt at each rollout, with its task and an outcome."""
        last: dict[str, Attempt] = {}
        for attempt in self._store.attempts([rollout.rollout_id for rollout in rollouts]):
            if attempt.rollout_id not in last or attempt.attempt > last[attempt.rollout_id].attempt:
                last[attempt.rollout_id] = attempt
        results: list[Attempt] = []
        for rollout in rollouts:
            never_begun = Attempt(rollout.rollout_id, 1, rollout.created_at, error="it was never begun")
            attempt = last.get(rollout.rollout_id, never_begun)
            outcome = attempt.outcome or Outcome.INFRASTRUCTURE
            results.append(replace(attempt, task_id=rollout.task_id, outcome=outcome))
        return results


_SPLITS: Final = ("train", "test")
_MOST_LEASE_S: Final = 3600.0
#: Number of departed clients to remember, so that a pending claim of theirs gets nothing.
_MOST_GONE: Final = 1000
#: Number of unfinished uploads to keep; the least recently used is dropped.
_MOST_UPLOADS: Final = 8


class Tasks:
    """The tasks of a server, in ``data/`` of its folder. For any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "data"
        self._lock = threading.Lock()
        self._uploads: BoundedDict[str, dict[str, list[dict[str, Any]]]] = BoundedDict(_MOST_UPLOADS)
        self._tasks: dict[str, list[dict[str, Any]]] = {split: [] for split in _SPLITS}
        for split in _SPLITS:
            path = self._folder / f"{split}.jsonl"
            if path.exists() and path.stat().st_size:
                self._tasks[split] = read_tasks(path)

    def of(self, split: str) -> list[dict[str, Any]]:
        """The tasks to train on (``train``), or the held-out ones (``test``)."""
        with self._lock:
            return self._tasks[split]

    def add_part(self, upload: str, split: str, tasks: Sequence[Any]) -> None:
        """A part of an upload. Nothing counts before `commit`. Raises `EndpointError` (422)."""
        if split not in _SPLITS:
            raise EndpointError(f"there is no split {split!r}", status=422, hint="train or test")
        if not all(isinstance(task, dict) and task for task in tasks):
            raise EndpointError("each task is an object with at least one field", status=422)
        with self._lock:
            parts = self._uploads.get(upload) or {name: [] for name in _SPLITS}
            parts[split] += tasks
            self._uploads.put(upload, parts)

    def commit(self, upload: str, counts: Mapping[str, int], *, same: bool = False) -> None:
        """Makes an upload the server's tasks, on disk first.

        Raises `EndpointError` (409) when parts are missing, or with ``same`` when it holds other tasks than before.
        """
        with self._lock:
            uploaded = self._uploads.pop(upload)
            if uploaded is None or {split: len(uploaded[split]) for split in _SPLITS} != dict(counts):
                raise EndpointError("parts of the upload are missing", status=409, hint="upload the data again")
            if same and uploaded != self._tasks:
                raise EndpointError(
                    "a training on other tasks is going on",
                    status=409,
                    hint="Client.stop() ends it, or wait until it is done",
                )
            for split in _SPLITS:
                lines = "".join(json.dumps(task) + "\n" for task in uploaded[split])
                atomic_write(self._folder / f"{split}.jsonl", lines.encode())
            self._tasks = uploaded


def take_further_tasks(
    folder: Path, train: Sequence[Mapping[str, Any]], test: Sequence[Mapping[str, Any]] | None
) -> None:
    """Takes the tasks of a training that is resumed in ``folder``: those that it has, and more to train on behind them.

    Raises `TaskError`, by which task contradicts it.
    """
    for split, tasks in (("train", train), ("test", test)):
        path = folder / "data" / f"{split}.jsonl"
        before = read_tasks(path) if path.exists() and path.stat().st_size else []
        if tasks is None or not before:
            continue
        pairs = itertools.zip_longest(before, tasks if split == "test" else tasks[: len(before)])
        if (differs := next((at for at, (old, new) in enumerate(pairs, 1) if old != new), None)) is not None:
            raise TaskError(
                f"the training in {folder} has another task {differs} in its {split} tasks",
                hint="give the tasks that it began with; more to train on may follow them; or choose another --folder",
            )
        atomic_write(path, "".join(json.dumps(task) + "\n" for task in tasks).encode())


class Coordinator:
    """Does what the routes are asked for. All methods block and may be called from any thread; raises `EndpointError`.

    ``folder`` holds the tasks, ``timeout_s`` bounds an attempt. ``first_hand_key`` never leaves this process but with the
    reports of a client in it.
    """

    def __init__(
        self,
        folder: Path,
        store: RolloutQueue,
        keys: KeyRing,
        collector: QueueCollector,
        *,
        loop_id: str,
        about: Mapping[str, Any],
        timeout_s: float,
    ) -> None:
        self.tasks = Tasks(folder)
        self.first_hand_key = secrets.token_urlsafe(32)
        self._store, self._keys, self._collector = store, keys, collector
        self._loop_id, self._about, self._timeout_s = loop_id, about, timeout_s
        self._changed = threading.Condition()
        self._run: RunState | None = None
        self._unclaimed: RunState | None = None
        self._asked = False
        self._last_seen: dict[str, float] = {}
        self._claiming = threading.Lock()
        self._gone: BoundedDict[str, bool] = BoundedDict(_MOST_GONE)
        #: Those of the endpoint, once there is one.
        self.failures: Failures = BoundedDict(1)

    # ------------------------------------------------------------------ for the loop

    def asked(self, stop: threading.Event) -> bool:
        """Blocks until a client wants a run that is not there (True), or ``stop`` is set (False)."""
        with self._changed:
            while not self._asked and not stop.is_set():
                self._changed.wait(0.2)
            requested, self._asked = self._asked, False
            return requested and not stop.is_set()

    def begin(self, run: RunState, *, resumed: bool = False) -> None:
        """Makes ``run`` the current run. A ``resumed`` run goes to the next client, even if it has ended by then."""
        with self._changed:
            self._run, self._asked = run, False
            self._unclaimed = run if resumed else None
            self._changed.notify_all()

    @property
    def run(self) -> RunState | None:
        """The run that is, or was last."""
        return self._run

    def clients(self) -> int:
        """How many clients asked for work within the last minute."""
        now = time.monotonic()
        with self._changed:
            return sum(now - seen < 60.0 for seen in self._last_seen.values())

    # ------------------------------------------------------------------ for the routes

    def about(self) -> dict[str, Any]:
        """Which server this is."""
        return {"version": lgov_core.__version__, "protocol": PROTOCOL, **self._about}

    def add_data(self, upload: str, split: str, tasks: Sequence[Any]) -> dict[str, Any]:
        """A part of an upload."""
        self.tasks.add_part(upload, split, tasks)
        return {}

    def commit_data(self, upload: str, counts: Mapping[str, int]) -> dict[str, Any]:
        """The end of an upload. Refused (409) while a run continues, unless the tasks are those it has."""
        self.tasks.commit(upload, counts, same=self._run is not None and not self._run.ended)
        return {}

    def start(self) -> dict[str, Any]:
        """The run that continues, or a new one. Refused (409) without tasks."""
        if not self.tasks.of("train"):
            raise EndpointError("there are no tasks to train on", status=409, hint="call upload_data first")
        with self._changed:
            before = self._run
            if before is None or (before.ended and before is not self._unclaimed):
                self._asked = True
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._run is not before, timeout=60.0):
                    raise EndpointError("the server is not ready", status=503, hint="try again in a moment")
            run, self._unclaimed = self._run, None
        assert run is not None
        return {"run": run.run_id, "steps": run.steps}

    def claim(self, worker_id: str, limit: int, lease_s: float) -> list[dict[str, Any]]:
        """At most ``limit`` attempts for a client, each with the path of its endpoint."""
        with self._changed:
            self._last_seen[worker_id] = time.monotonic()
        if limit < 1:
            return []
        lease = min(max(lease_s, 1.0), _MOST_LEASE_S)
        assignments: list[dict[str, Any]] = []
        with self._claiming:
            gone = worker_id in self._gone
            claims = () if gone else self._store.claim(worker_id, limit, lease_s=lease, run_id=self._loop_id)
        for claim in claims:
            rollout, attempt = claim.rollout, claim.attempt.attempt
            path = model_path(self._keys, rollout.rollout_id, attempt, self._timeout_s)
            payload: Any = rollout.input
            model = str(self._about["model"])
            assignment = Assignment(
                rollout.rollout_id,
                attempt,
                rollout.task_id,
                payload["mode"],
                payload["task"],
                path,
                model,
                self._timeout_s,
            )
            assignments.append(asdict(assignment))
        return assignments

    def heartbeat(self, worker_id: str, lease_s: float, attempts: Sequence[tuple[str, int]]) -> dict[str, Any]:
        """Those of ``attempts`` that the client still has."""
        self._store.expire()
        lease = min(max(lease_s, 1.0), _MOST_LEASE_S)
        held = self._store.heartbeat(worker_id, lease_s=lease, attempts=attempts)
        self._collector.wake()
        return {"attempts": [[attempt.rollout_id, attempt.attempt] for attempt in held]}

    def finish(
        self, worker_id: str, rollout_id: str, attempt: int, report: Report, *, first_hand: bool = False
    ) -> dict[str, Any]:
        """Ends an attempt with its rewards. ``accepted`` is false for one that had been closed for another reason.

        With ``first_hand`` its spans are kept as what happened: the program that runs this server saw it.
        """
        report = with_failure(report, self.failures.get((rollout_id, attempt)))
        for reward in report.rewards:
            if (reward.rollout_id or rollout_id, reward.attempt or attempt) != (rollout_id, attempt):
                raise EndpointError(f"reward {reward.reward_id} is of another attempt", status=422)
            if not abs(reward.value) <= MOST_REWARD:  # not a number, either
                raise EndpointError(
                    f"reward {reward.reward_id} is {reward.value}; {MOST_REWARD:g} is the most", status=422
                )
        spans = [
            replace(span, claimed=not first_hand)
            for span in report.spans
            if (span.rollout_id, span.attempt) == (rollout_id, attempt)
        ]
        result = {**report.result, "counts": dict(report.counts), "worker": worker_id}
        try:
            stored = self._attempt(rollout_id, attempt)
            if spans and stored is not None and stored.outcome is None:
                self._store.add_spans(spans)
            self._store.finish_attempt(
                rollout_id, attempt, report.outcome, error=report.error, result=result, rewards=report.rewards
            )
        except (StoreError, RewardError) as error:
            ended = self._attempt(rollout_id, attempt)
            if ended is None or ended.outcome is None:
                raise EndpointError(f"the report cannot be kept: {error}", status=422) from error
            # The same report again, whose answer was lost, or one of an attempt that was given up.
            return {"accepted": ended.result == result and ended.outcome is report.outcome}
        self._collector.wake()
        return {"accepted": True}

    def release(self, worker_id: str, reason: str) -> dict[str, Any]:
        """Takes back all attempts that a client holds, also those whose assignment never reached it; it gets no more."""
        with self._claiming:
            self._gone.put(worker_id, True)
            held = self._store.heartbeat(worker_id, lease_s=1.0)
        for attempt in held:
            try:
                self._store.finish_attempt(attempt.rollout_id, attempt.attempt, Outcome.INFRASTRUCTURE, error=reason)
            except StoreError:  # it has ended
                continue
        self._collector.wake()
        return {}

    def progress(self, run_id: str | None, after: int) -> dict[str, Any]:
        """The state of a run. Raises `EndpointError` (409) for an unknown one."""
        run = self._run
        if run is None or (run_id is not None and run.run_id != run_id):
            raise EndpointError("this server has no such run any more", status=409, hint="train again")
        if run_id is not None:
            self._unclaimed = None  # a client that knew it before the server was started again
        return run.progress(after)

    def stop(self) -> dict[str, Any]:
        """Asks the run to end after the update in progress."""
        if self._run is not None:
            self._run.stop_asked.set()
            self._collector.wake()
        return {}

    @property
    def enqueued(self) -> int:
        """Grows when there is something new to claim."""
        return self._collector.enqueued

    def _attempt(self, rollout_id: str, attempt: int) -> Attempt | None:
        return next((stored for stored in self._store.attempts([rollout_id]) if stored.attempt == attempt), None)
