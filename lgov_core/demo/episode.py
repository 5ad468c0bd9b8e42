"""One rollout of the demo: a fresh copy of the database, the agent, the oracle, the task reward.

`pay_desk` is what `Client.train` is given. The agent itself, ``agent.py``, is run as it is.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Final

from lgov_core.air import AirRules, RuleSet, use
from lgov_core.client.attempts import is_infrastructure
from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Report
from lgov_core.demo.company import PROTECTED_TABLES, Question, copy_for_rollout
from lgov_core.demo.oracle import Oracle, Verdict
from lgov_core.types import Outcome, Reward

AGENT_FILE: Final = Path(__file__).parent / "agent.py"
_ANSWER = re.compile(r"Answer: (-?\d+)")
_OPENING: Final = threading.Lock()

# Calls are paid one by one, within `CreditRules.air_cap`: worker processes import this module before they pay any.
use(RuleSet(base=AirRules(shaped=False)))


def pay_desk(resource: Resource, task: Task) -> Report:
    """Has the agent answer a question, and scores the answer against the result rows of the reference query.

    ``task`` has ``question``, ``figures_seed`` and ``company``, the path of the company database. Beside that are
    ``databases``, the folder of the copies, and ``oracle.jsonl``, which gets a line for every attempt.
    """
    with _OPENING:
        desk = _desk(str(task.company), resource.model)
    return desk.attempt(resource, task)


@functools.cache
def _desk(company: str, model: str) -> PayDesk:
    return PayDesk(Path(company), model)


class PayDesk:
    """The agent and the oracle of one process. Attempts may run in several threads."""

    def __init__(self, company: Path, model: str) -> None:
        self.company = company
        self.folder = company.parent / "databases"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.record = company.parent / "oracle.jsonl"
        self.oracle = Oracle(PROTECTED_TABLES)
        self.oracle.install()
        self.program = _load(AGENT_FILE)
        self.agent = self.program.make_agent(model)

    def attempt(self, resource: Resource, task: Task) -> Report:
        """One attempt: an agent that raises has failed, a machine that fails is not the agent's doing."""
        path = self.folder / f"{resource.rollout_id}-{resource.attempt}.db"
        question = Question(**task.question)
        expected = copy_for_rollout(self.company, path, question, seed=int(task.figures_seed))
        self.oracle.open(path)
        text, error = "", None
        try:
            text = self.program.answer(self.agent, question.text, str(path))
        except Exception as raised:  # noqa: BLE001 - it becomes the attempt's outcome, after the oracle was asked
            error = raised
        finally:
            verdict = self._close(path, resource)
        match = _ANSWER.fullmatch(text.strip())
        correct = match is not None and int(match.group(1)) == expected
        outcome = Outcome.SUCCEEDED if correct else Outcome.FAILED
        if error is not None and is_infrastructure(error):
            outcome = Outcome.INFRASTRUCTURE
        elif isinstance(error, TimeoutError):
            outcome = Outcome.TIMEOUT
        reward = Reward(1.0 if correct else 0.0, "task", source="result rows")
        return Report(
            outcome,
            (reward,) if outcome.trainable else (),
            error=f"{type(error).__name__}: {error}" if error else None,
            result={"correct": correct, "said": text[:200], "expected": expected, **asdict(verdict)},
        )

    def _close(self, path: Path, resource: Resource) -> Verdict:
        verdict = self.oracle.close(path)
        about = {"rollout_id": resource.rollout_id, "attempt": resource.attempt, "violated": verdict.violated}
        # One write of one line in append mode: processes do not cut into each other's lines.
        with self.record.open("ab", buffering=0) as record:
            record.write((json.dumps({**about, **asdict(verdict)}) + "\n").encode())
        for name in (path, Path(f"{path}-journal"), Path(f"{path}-wal"), Path(f"{path}-shm")):
            name.unlink(missing_ok=True)
        return verdict


def _load(path: Path) -> ModuleType:
    """The agent's file as a module, as any program would be loaded: lgov does not import it by name."""
    spec = importlib.util.spec_from_file_location("pay_desk_agent", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # get_type_hints of its dataclasses and tools looks there
    spec.loader.exec_module(module)
    return module
