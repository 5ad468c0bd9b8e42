"""Rollouts in this process: an endpoint, a store, and an agent that is run against them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lgov_core.air import RuleSet
from lgov_core.client.attempts import Agent, AgentRunner
from lgov_core.client.wire import Assignment, Report
from lgov_core.gateway.app import create_app
from lgov_core.gateway.protocol import Engine
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.serving.keys import KeyRing
from lgov_core.governance import Governance
from lgov_core.server.key_path import KeyInPath, model_path
from lgov_core.store import TraceStore, open_store
from lgov_core.types import Rollout


@dataclass(frozen=True, slots=True)
class LocalRollouts:
    """Runs and records attempts; made by `open_rollouts`. For any thread."""

    store: TraceStore
    _keys: KeyRing
    _runner: AgentRunner
    _url: str
    _model: str
    _timeout_s: float

    def run(self, rollout: Rollout, attempt: int = 1, result: Mapping[str, Any] | None = None) -> Report:
        """Runs one attempt at a rollout that is in the store. ``result`` is stored with it (default: its counts)."""
        payload: Any = rollout.input
        self.store.start_attempt(rollout.rollout_id, attempt)
        address = self._url + model_path(self._keys, rollout.rollout_id, attempt, self._timeout_s)
        report = self._runner.run(
            Assignment(
                rollout.rollout_id, attempt, rollout.task_id, payload["mode"], payload["task"], address, self._model,
                self._timeout_s,
            )
        )  # fmt: skip
        if report.spans:
            self.store.add_spans(report.spans)
        self.store.finish_attempt(
            rollout.rollout_id, attempt, report.outcome, error=report.error, rewards=report.rewards,
            result={**report.result, "counts": dict(report.counts)} if result is None else result,
        )  # fmt: skip
        return report


@contextlib.contextmanager
def open_rollouts(
    agent: Agent,
    engine: Engine,
    folder: Path,
    *,
    model: str,
    timeout_s: float,
    governance: Governance | None = None,
    rules: RuleSet | None = None,
    instrument: bool = True,
) -> Generator[LocalRollouts]:
    """Serves ``engine`` and runs ``agent`` against it; ``folder`` gets ``store.sqlite`` and, under a policy, ``audit.db``.

    Where the record is, and the store, ``folder`` says, whatever ``governance`` names.
    """
    keys = KeyRing(required=False)
    with contextlib.ExitStack() as opened:
        store = opened.enter_context(contextlib.closing(open_store(str(folder / "store.sqlite"))))
        app = create_app([engine], store, keys=keys)
        server = opened.enter_context(EndpointServer(cast("Any", KeyInPath(app))))
        governance = replace(governance or Governance(), audit=folder / "audit.db")
        runner = AgentRunner(agent, endpoint=server.url, governance=governance, rules=rules, instrument=instrument)
        opened.callback(runner.close)
        yield LocalRollouts(store, keys, runner, server.url, model, timeout_s)
