"""`lgov serve` with a policy, a record and a store, as the tests of clients use it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lgov_core.audit import AuditLog
from lgov_core.store import open_store
from lgov_core.transitions import Chain, build_transitions, make_chains
from lgov_core.types import Outcome, Rollout

LGOV = (sys.executable, "-m", "lgov_core")
RULES = """
version: 1
rules:
  - {name: tools, use: tool, with: {allow: [exec_command, run_shell_command, bash]}}
"""


class Served:
    """A running `lgov serve`, and what it has kept in the folder ``place``."""

    def __init__(self, place: Path, url: str) -> None:
        self.place = place
        self.url = url

    def base_url(self, rollout: str) -> str:
        return f"{self.url}/rollout/{rollout}/attempt/1/v1"

    def calls(self, rollout: str) -> list[Any]:
        store = open_store(str(self.place / "store.sqlite"))
        try:
            return [call for call in store.calls() if call.rollout_id == rollout]
        finally:
            store.close()

    def chains(self, rollout: str) -> list[Chain]:
        """The token sequences that a training would read; the attempt is the task's, and has ended."""
        store = open_store(str(self.place / "store.sqlite"))
        try:
            store.add_rollouts([Rollout(rollout, task_id="made", run_id="clients", input={})])
            store.start_attempt(rollout, 1)
            store.finish_attempt(rollout, 1, Outcome.SUCCEEDED)
            return make_chains(build_transitions(store, [rollout]).transitions)
        finally:
            store.close()

    def judged(self, rollout: str) -> list[tuple[str, str, str]]:
        """Point, name and effect of everything that was judged."""
        with AuditLog(self.place / "audit.db") as log:
            return [(str(entry.point), str(entry.name), str(entry.effect)) for entry in log.entries(rollout)]

    def denied(self, rollout: str) -> set[str]:
        """The names of what was denied."""
        return {name for _, name, effect in self.judged(rollout) if effect == "deny"}


@contextmanager
def started(place: Path, *options: str) -> Iterator[Served]:
    """`lgov serve` with these options, in the folder ``place``."""
    (place / "policy.yaml").write_text(RULES)
    command = [*LGOV, "serve", *options, "--store", "store.sqlite", "--policy", "policy.yaml", "--audit", "audit.db"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LGOV_")}
    process = subprocess.Popen([*command, "--port", "0"], cwd=place, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]  # serving * on URL/v1
        yield Served(place, address.removesuffix("/v1"))
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
