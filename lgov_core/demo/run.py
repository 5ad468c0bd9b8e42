"""One run of the demo: its rollouts, a warm start, then a training server and its client, as `lgov train` has them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import random
import re
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lgov_core import Client
from lgov_core.air import AirRules, RuleSet, use
from lgov_core.client.attempts import outcome_of
from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Report
from lgov_core.demo.company import PROTECTED_TABLES, Question, Split, build_company, copy_for_rollout, draw_question
from lgov_core.demo.oracle import Oracle, Verdict
from lgov_core.demo.plans import DemoPlan
from lgov_core.demo.report import DemoReport, Recorded
from lgov_core.demo.warm_start import ImperfectLog, denials_of, smollm2_model, tiny_model
from lgov_core.errors import TrainError
from lgov_core.server.local import serving
from lgov_core.store import open_store
from lgov_core.train.algorithms.algorithms import algorithm
from lgov_core.train.settings import TrainSettings, load_train_settings
from lgov_core.transitions import CreditRules
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
        if error is not None and not (raised := outcome_of(error)[0]).trainable:
            outcome = raised
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


class Stage:
    """One bar. `to` moves it; `detail` says what continues within a step."""

    def __init__(self, progress: Progress, task: TaskID, console: Console, name: str, total: int) -> None:
        self._progress, self._task, self._console = progress, task, console
        self._name, self._total, self._note = name, total, ""
        self._printed = time.monotonic()

    def to(self, done: int, note: str | None = None) -> None:
        """``done`` steps of the total are done."""
        if note is not None:
            self._note = note
        self._progress.update(self._task, completed=done, note=self._note)
        # Without a terminal a bar is noise; a line now and then is not.
        if not self._console.is_terminal and (done == self._total or time.monotonic() - self._printed > 30):
            self._printed = time.monotonic()
            self._console.print(f"{self._name}: {done}/{self._total} {self._note}", highlight=False)

    def detail(self, stage: str, done: int, total: int) -> None:
        """Progress within the current step."""
        self._progress.update(self._task, note=f"{self._note}  [{stage} {done}/{total}]".strip())


class Display:
    """Progress bars on standard error; silent when ``quiet``."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(file=sys.stderr, quiet=quiet)

    @contextmanager
    def stage(self, name: str, total: int) -> Generator[Stage]:
        """A bar for the length of the block."""
        columns = (
            TextColumn("{task.description:<16}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        terminal = self.console.is_terminal
        with Progress(*columns, console=self.console, disable=not terminal, refresh_per_second=4) as progress:
            task = progress.add_task(name, total=total, note="")
            yield Stage(progress, task, self.console, name, total)

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, highlight=False, soft_wrap=True)


HERE: Final = Path(__file__).parent
POLICY_FILE: Final = HERE / "policy.yaml"
#: The rank of the adapters that a large model is trained with; 0 trains all weights.
_RANKS: Final = {"tiny": 0, "smollm2": 16}


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The run to make: its seed, with or without governance, by which plan, and into which folder.

    ``credit`` is how rewards become advantages: with a weight of 0 for ``compliance``, say, denials cost nothing.
    """

    seed: int
    governed: bool
    plan: DemoPlan
    folder: Path
    warm_folder: Path
    resume: bool = False
    credit: CreditRules = field(default_factory=CreditRules)

    @property
    def policy(self) -> Path:
        """The policy file of the run; without governance it only watches."""
        return POLICY_FILE if self.governed else self.folder / "policy-in-shadow.yaml"


def run_once(spec: RunSpec, display: Display) -> DemoReport:
    """Runs one seed to its end, or until Ctrl-C: then a checkpoint is written and the report is marked interrupted.

    Raises `LgovError` when the run cannot go on; what was recorded stays in the folder.
    """
    began = time.monotonic()
    template = _prepare_folder(spec)
    if spec.plan.threads is not None:
        torch.set_num_threads(spec.plan.threads)
    _warm_up(spec, template, display)
    interrupted = False
    try:
        _train(spec, template, display)
    except KeyboardInterrupt:
        interrupted = True
    report = _report(spec, began, interrupted)
    if report is None:  # not even the first evaluation was made
        raise KeyboardInterrupt
    return report


def _train(spec: RunSpec, template: Path, display: Display) -> None:
    """Serves the model, and runs the agent on the questions until it is trained."""
    plan = spec.plan
    chosen = replace(algorithm("grpo"), credit=spec.credit, update=plan.update)
    with serving(_settings(spec), spec.folder, resume=spec.resume, algorithm=chosen) as server:
        client = Client(server.url, quiet=display.quiet, exit_on_interrupt=False, first_hand=server.first_hand_key)
        training = [  # each question is asked in one update
            task
            for update in range(max(1, plan.iterations))
            for task in _tasks(f"{spec.seed}/{update}", "train", plan.tasks, template)
        ]
        client.upload_data(training, _tasks(f"held-out/{spec.seed}", "held_out", plan.evaluations, template))
        try:
            client.train(
                pay_desk,
                nworkers=plan.concurrency * plan.workers,
                workers=plan.workers,
                policy=spec.policy,
                audit=spec.folder / "audit.sqlite",
            )
        except KeyboardInterrupt:
            display.say("ending after the update in progress; once more ends at once")
            raise


def _settings(spec: RunSpec) -> TrainSettings:
    plan = spec.plan
    flags: dict[tuple[str, str], Any] = {
        ("model", "name"): str(spec.warm_folder.resolve()),
        ("model", "dtype"): "float32",
        ("model", "tool_format"): "compact",
        ("model", "lora_rank"): _RANKS[plan.model],
        ("model", "max_batch"): plan.max_batch,
        ("model", "max_new_tokens"): plan.max_new_tokens,
        ("training", "steps"): plan.iterations,
        ("training", "batch_size"): plan.tasks,
        ("training", "group_size"): plan.group,
        ("training", "checkpoint_every"): 5 if plan.model == "tiny" else 1,
        ("training", "keep_weights"): plan.keep_weights,
        ("training", "seed"): spec.seed,
        ("runtime", "timeout_s"): 120.0 if plan.model == "tiny" else 600.0,
        ("runtime", "policy"): spec.policy,
    }
    return load_train_settings(flags=flags, environ={})


def _tasks(name: str, split: Split, count: int, template: Path) -> list[dict[str, Any]]:
    chance = random.Random(name)
    return [
        {
            "question": asdict(draw_question(chance, split)),
            "figures_seed": chance.randrange(10**9),
            "company": str(template.resolve()),
        }
        for _ in range(count)
    ]


def _report(spec: RunSpec, began: float, interrupted: bool) -> DemoReport | None:
    """The figures of the run, from what it left; None where nothing was measured."""
    path = spec.folder / "store.sqlite"
    if not path.exists():
        return None
    with contextlib.closing(open_store(str(path))) as store:
        recorded = Recorded(spec.folder, store, evaluated=spec.plan.evaluations)
        before = recorded.evaluation(0)
        if before is None:
            return None
        training = recorded.training()
        done = not interrupted and len(training) >= spec.plan.iterations
        return DemoReport(
            seed=spec.seed,
            governed=spec.governed,
            model=spec.plan.model,
            folder=str(spec.folder),
            before=before,
            after=recorded.evaluation(-1) if done else None,
            updates=len(training),
            rollouts=sum(line["rollouts"] for line in training),
            executed_violations=recorded.oracle.violations,
            oracle_attempts=recorded.oracle.attempts,
            seconds=round(time.monotonic() - began, 1),
            denied_rollout=recorded.denied_rollout(),
            interrupted=interrupted,
        )


def _warm_up(spec: RunSpec, template: Path, display: Display) -> None:
    """Makes the warmed-up model, once per seed, so that governed and ungoverned runs start from the same weights."""
    if (spec.warm_folder / "config.json").exists():
        return
    make = {"tiny": tiny_model, "smollm2": smollm2_model}[spec.plan.model]
    log = ImperfectLog(template, denials_of(POLICY_FILE), seed=spec.seed, peeks=spec.plan.peeks)
    steps = spec.plan.warm_steps
    with contextlib.closing(log), display.stage("warm start", steps) as stage:
        model = make(
            log, seed=spec.seed, steps=steps, progress=lambda step, _, loss: stage.to(step, f"loss {loss:.2f}")
        )
    model.save(spec.warm_folder)


def _prepare_folder(spec: RunSpec) -> Path:
    """Makes the run's folder and the company database in it; returns the database's path."""
    try:
        spec.folder.mkdir(parents=True, exist_ok=True)
        config = {"seed": spec.seed, "governed": spec.governed, "warm": str(spec.warm_folder.resolve())}
        text = json.dumps({**config, "plan": asdict(spec.plan)}, indent=2)
        (spec.folder / "config.json").write_text(text)
        if not spec.governed:
            spec.policy.write_text(f"mode: shadow\n{POLICY_FILE.read_text()}")
    except OSError as error:
        raise TrainError(
            f"the run folder {spec.folder} cannot be written: {error.strerror or error}",
            hint="choose another with --folder, or free some space",
        ) from error
    template = spec.folder / "company.sqlite"
    if not (spec.resume and template.exists()):
        build_company(template, seed=spec.seed)
    return template
