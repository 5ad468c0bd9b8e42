"""Rollouts of this process without a training (``lgov models eval``, prompts), and addresses that tell attempts apart.

The key of an attempt is in the path of its address, for agents that say ``api_key="not-used"`` to whatever address they are
given.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from lgov_core._util.files import atomic_write
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.wire import Assignment, Report
from lgov_core.client.workers import ThreadWorkers
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.protocol import Engine
from lgov_core.gateway.server import EndpointServer
from lgov_core.store import TraceStore, open_store
from lgov_core.types import Rollout

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


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """How rollouts run: ``workers`` at a time, each attempt for ``timeout_s`` seconds, at most ``max_attempts`` times."""

    workers: int
    timeout_s: float
    max_attempts: int = 1


class LocalRollouts:
    """Has rollouts run by threads of this process, without a training; made by `open_rollouts`. For one thread.

    ``store`` has every attempt.
    """

    def __init__(
        self, store: TraceStore, runner: AgentRunner, plan: RolloutPlan, model: str, url: str, keys: KeyRing
    ) -> None:
        self.store = store
        self._runner, self._plan, self._model, self._url, self._keys = runner, plan, model, url, keys

    def run(
        self, rollouts: Sequence[Rollout], result: Mapping[str, Any] | None = None
    ) -> Generator[tuple[Rollout, Report, int]]:
        """Yields each rollout with its last report and the number of its last attempt, in the order in which they end.

        ``result`` is stored with each attempt. One that cannot be used, because of a machine or a time limit, is tried again.
        Once the generator is closed, or has raised, nothing more is begun; what runs goes on in a daemon thread, and nothing
        of it is kept.
        """
        self.store.add_rollouts(rollouts)
        by_id = {rollout.rollout_id: rollout for rollout in rollouts}
        ended: queue.SimpleQueue[tuple[Assignment, Report]] = queue.SimpleQueue()
        workers = ThreadWorkers(self._runner, self._plan.workers, lambda *report: ended.put(report))
        waiting = deque((rollout, 1) for rollout in rollouts)
        running = 0
        try:
            while waiting or running:
                while waiting and running < self._plan.workers:
                    workers.give(self._begin(*waiting.popleft()))
                    running += 1
                assignment, report = ended.get()
                running -= 1
                self._end(assignment, report, result or {})
                rollout, attempt = by_id[assignment.rollout_id], assignment.attempt
                if report.outcome.trainable or attempt >= self._plan.max_attempts:
                    yield rollout, report, attempt
                else:
                    waiting.appendleft((rollout, attempt + 1))
        finally:
            workers.close()

    def _begin(self, rollout: Rollout, attempt: int) -> Assignment:
        payload: Any = rollout.input
        timeout_s = self._plan.timeout_s
        self.store.start_attempt(rollout.rollout_id, attempt)
        address = self._url + model_path(self._keys, rollout.rollout_id, attempt, timeout_s)
        return Assignment(
            rollout.rollout_id, attempt, rollout.task_id, payload["mode"], payload["task"], address, self._model, timeout_s
        )  # fmt: skip

    def _end(self, assignment: Assignment, report: Report, result: Mapping[str, Any]) -> None:
        if report.spans:
            self.store.add_spans(report.spans)
        self.store.finish_attempt(
            assignment.rollout_id, assignment.attempt, report.outcome, error=report.error, rewards=report.rewards,
            result={**report.result, "counts": dict(report.counts), **result},
        )  # fmt: skip


@contextlib.contextmanager
def open_rollouts(
    engine: Engine, folder: Path, open_runner: Callable[[str], AgentRunner], *, model: str, plan: RolloutPlan
) -> Generator[LocalRollouts]:
    """Serves ``engine`` in this process and opens the runner of an agent for its address; ``folder`` gets ``store.sqlite``."""
    keys = KeyRing(required=False)
    with contextlib.ExitStack() as opened:
        store = opened.enter_context(contextlib.closing(open_store(str(folder / "store.sqlite"))))
        app = create_app([engine], store, keys=keys)
        server = opened.enter_context(EndpointServer(cast("Any", KeyInPath(app))))
        runner = opened.enter_context(contextlib.closing(open_runner(server.url)))
        yield LocalRollouts(store, runner, plan, model, server.url, keys)
