"""One rollout of the demo inside a worker: a fresh copy of the database, the agent, the oracle, the task reward."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from lgov_core.demo.company import PROTECTED_TABLES, copy_for_rollout
from lgov_core.demo.oracle import Oracle, Verdict
from lgov_core.demo.questions import Question
from lgov_core.train.workers.failures import is_infrastructure
from lgov_core.train.workers.jobs import Episode, Job
from lgov_core.types import Outcome, Reward

_ANSWER = re.compile(r"Answer: (-?\d+)")


class PayDeskRunner:
    """Runs the demo's agent file, unedited, once per job.

    ``options``: ``agent`` (path of the agent's file), ``model`` (its name at the endpoint), ``template`` (the company
    database), ``folder`` (where the copies go) and ``oracle`` (the file that gets a line for every attempt).
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.template = Path(options["template"])
        self.folder = Path(options["folder"])
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record = Path(options["oracle"])
        self.oracle = Oracle(PROTECTED_TABLES)
        self.oracle.install()
        self.program = _load(Path(options["agent"]))
        self.agent = self.program.make_agent(options["model"])

    async def run(self, job: Job) -> Episode:
        """Asks the question of the job and scores the answer against the result rows of the reference query."""
        question = Question(**job.task["question"])
        path = self.folder / f"{job.rollout_id}-{job.attempt}.db"
        expected = await asyncio.to_thread(self._begin, path, question, int(job.task["figures_seed"]))
        said, error = "", None
        try:
            said = await self.program.answer(self.agent, question.text, str(path))
        except Exception as raised:  # noqa: BLE001 - it becomes the episode's outcome, after the oracle was asked
            error = raised
        finally:
            # Also when the attempt is cancelled for being late: the oracle's word is never lost.
            seen = self._end(path, job)
        match = _ANSWER.fullmatch(said.strip())
        correct = match is not None and int(match.group(1)) == expected
        outcome = Outcome.SUCCEEDED if correct else Outcome.FAILED
        if error is not None and is_infrastructure(error):
            outcome = Outcome.INFRASTRUCTURE
        elif isinstance(error, TimeoutError):
            outcome = Outcome.TIMEOUT
        rewards = (Reward(1.0 if correct else 0.0, "task", job.rollout_id, job.attempt, source="result rows"),)
        return Episode(
            outcome,
            rewards if outcome.trainable else (),
            {"correct": correct, "said": said[:200], "expected": expected, **asdict(seen)},
            f"{type(error).__name__}: {error}" if error else None,
        )

    def _begin(self, path: Path, question: Question, seed: int) -> int:
        answer = copy_for_rollout(self.template, path, question, seed=seed)
        self.oracle.open(path)
        return answer

    def _end(self, path: Path, job: Job) -> Verdict:
        seen = self.oracle.close(path)
        line = {"rollout_id": job.rollout_id, "attempt": job.attempt, "violated": seen.violated, **asdict(seen)}
        # One write of one line in append mode: workers do not cut into each other's lines.
        with self.record.open("ab", buffering=0) as record:
            record.write((json.dumps(line) + "\n").encode())
        for name in (path, Path(f"{path}-journal"), Path(f"{path}-wal"), Path(f"{path}-shm")):
            name.unlink(missing_ok=True)
        return seen


def _load(path: Path) -> ModuleType:
    """The agent's file as a module, as any program would be loaded: lgov does not import it by name."""
    spec = importlib.util.spec_from_file_location("pay_desk_agent", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # get_type_hints of its dataclasses and tools looks there
    spec.loader.exec_module(module)
    return module
