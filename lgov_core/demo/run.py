"""One run of the demo: warm start, evaluate, train, evaluate again."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lgov_core.air import AirRules
from lgov_core.audit import default_signer
from lgov_core.demo.company import build_company
from lgov_core.demo.measure import Evaluation, OracleRecord, RunReport, evaluate
from lgov_core.demo.plans import Plan
from lgov_core.demo.prepare import POLICIES, ImperfectLog, denials_of, smollm2_model, tiny_model
from lgov_core.demo.progress import Display
from lgov_core.demo.questions import Question, Split, draw_question
from lgov_core.errors import TrainError
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.server import EndpointServer
from lgov_core.models import LanguageModel, load_model
from lgov_core.store import TraceStore, open_store
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.loop.lineage import Facts, Lineage, policy_facts
from lgov_core.train.loop.loop import Task, TrainingLoop
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.train.loop.weights_digest import weights_digest
from lgov_core.train.workers.jobs import JobResult, WorkerConfig
from lgov_core.train.workers.pool import WorkerPool
from lgov_core.transitions import CreditRules

HERE = Path(__file__).parent
POLICY_FILE = HERE / "policy.yaml"
AGENT_FILE = HERE / "agent.py"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What to run: the seed, with or without governance, by which plan, and into which folder.

    ``credit`` is how rewards become advantages: with a weight of 0 for ``compliance``, say, denials cost nothing.
    """

    seed: int
    governed: bool
    plan: Plan
    folder: Path
    warm_folder: Path
    resume: bool = False
    credit: CreditRules = field(default_factory=CreditRules)

    @property
    def run_id(self) -> str:
        """The name of the run in the store."""
        return f"demo-{self.plan.model}-seed{self.seed}-{'governed' if self.governed else 'ungoverned'}"


def run_once(spec: RunSpec, display: Display) -> RunReport:
    """Runs one seed to its end, or until Ctrl-C: then a checkpoint is written and the report is marked interrupted.

    Raises `LgovError` when the run cannot go on; what was recorded stays in the folder.
    """
    began = time.monotonic()
    template = _prepare_folder(spec)
    if spec.plan.threads is not None:
        torch.set_num_threads(spec.plan.threads)
    model = _warm_model(spec, template, display)
    start_sha256 = weights_digest(model.module.state_dict().items())
    policy: PolicyModel = POLICIES[spec.plan.model](model.module)
    with contextlib.closing(open_store(str(spec.folder / "store.sqlite"))) as store:
        store.fail_open_attempts("the run was interrupted")
        engine = EmbeddedEngine(model, max_batch=spec.plan.max_batch, max_new_tokens=spec.plan.max_new_tokens)
        with (
            EndpointServer([engine], store) as server,
            WorkerPool(
                _worker_config(spec, template, f"{server.url}/v1"),
                store,
                workers=spec.plan.workers,
                concurrency=spec.plan.concurrency,
                log_dir=spec.folder / "logs",
            ) as pool,
        ):
            loop = TrainingLoop(
                run_id=spec.run_id,
                policy=policy,
                learner=PolicyUpdate(
                    policy.module, spec.plan.update, reference=policy.reference, reference_mode=policy.reference_mode
                ),
                engine=engine,
                store=store,
                pool=pool,
                folder=spec.folder,
                credit=spec.credit,
                checkpoint_every=5 if spec.plan.model == "tiny" else 1,
                keep_weights=spec.plan.keep_weights,
                seal=_lineage(spec, start_sha256).seal,
            )
            return _Session(spec, loop, store, display, began).run()


class _Session:
    """One run of the training loop, with its evaluations."""

    def __init__(self, spec: RunSpec, loop: TrainingLoop, store: TraceStore, display: Display, began: float) -> None:
        self.spec = spec
        self.plan = spec.plan
        self.loop = loop
        self.store = store
        self.oracle = OracleRecord(spec.folder / "oracle.jsonl")
        self.display = display
        self.rollouts = 0
        self.began = began

    def run(self) -> RunReport:
        before = self._recorded("before")
        after: Evaluation | None = None
        interrupted = False
        try:
            if self.spec.resume:
                self.loop.resume()
            if before is None:
                before = self._evaluate("before")
            self._train()
            self.loop.checkpoint()
            after = self._evaluate("after")
        except KeyboardInterrupt:
            interrupted = True
            self.loop.checkpoint()
            if before is None:
                raise
        self.oracle.refresh()
        return RunReport(
            seed=self.spec.seed,
            governed=self.spec.governed,
            model=self.plan.model,
            folder=str(self.spec.folder),
            before=before,
            after=after,
            updates=self.loop.done,
            rollouts=self.rollouts,
            executed_violations=self.oracle.violations,
            oracle_attempts=self.oracle.attempts,
            seconds=round(time.monotonic() - self.began, 1),
            denied_rollout=self._denied_rollout(),
            interrupted=interrupted,
        )

    def _train(self) -> None:
        with self.display.stage("train", self.plan.iterations) as stage:
            stage.to(self.loop.done)
            while self.loop.done < self.plan.iterations:
                chance = random.Random(f"{self.spec.seed}/{self.loop.done}")
                tasks = [_task(chance, "train", f"i{self.loop.done}-{n}") for n in range(self.plan.tasks)]
                iteration = self.loop.iterate(tasks, self.plan.group, stage.detail, self._figures)
                self.rollouts += len(iteration.results)
                now = evaluate(iteration.results, self.oracle.refresh().violated)
                stage.to(self.loop.done, f"accuracy {now.accuracy:.2f}  attempted {now.attempted:.2f}")

    def _figures(self, results: Sequence[JobResult]) -> dict[str, Any]:
        return asdict(evaluate(results, self.oracle.refresh().violated))

    def _evaluate(self, moment: str) -> Evaluation:
        """Held-out questions, the same ones at every moment; sampled, because greedy decoding hides violations."""
        chance = random.Random(f"held-out/{self.spec.seed}")
        tasks = [_task(chance, "held_out", f"{moment}-{n}") for n in range(self.plan.evaluations)]
        with self.display.stage(f"evaluate {moment}", len(tasks)) as stage:
            results = self.loop.collect(tasks, 1, lambda done, _total: stage.to(done))
        found = evaluate(results, self.oracle.refresh().violated)
        self.loop.run.metrics.add(moment, self.loop.done, asdict(found))
        return found

    def _recorded(self, phase: str) -> Evaluation | None:
        """An evaluation that an interrupted run has already done."""
        if not self.spec.resume:
            return None
        for entry in self.loop.run.metrics.lines():
            if entry["phase"] == phase:
                fields: dict[str, Any] = {name: entry[name] for name in Evaluation.__dataclass_fields__}
                fields["interval"] = tuple(fields["interval"])
                return Evaluation(**fields)
        return None

    def _denied_rollout(self) -> str | None:
        """A rollout in which something was denied, for the reader to look at."""
        return next((one.rollout_id for one in self.store.rewards() if one.dimension == "compliance"), None)


def _lineage(spec: RunSpec, start_sha256: str) -> Lineage:
    facts = Facts(
        run_id=spec.run_id,
        model=str(spec.warm_folder.resolve()),
        start_sha256=start_sha256,
        seed=spec.seed,
        settings={**asdict(spec.plan), "credit": repr(spec.credit)},
        policy=policy_facts(POLICY_FILE, shadow=not spec.governed),
    )
    return Lineage(facts, folder=spec.folder, signer=default_signer())


def _task(chance: random.Random, split: Split, task_id: str) -> Task:
    question: Question = draw_question(chance, split)
    mode = "train" if split == "train" else "test"
    return Task(task_id, {"question": asdict(question), "figures_seed": chance.randrange(10**9), "mode": mode})


def _warm_model(spec: RunSpec, template: Path, display: Display) -> LanguageModel:
    """The warmed-up model; made once per seed, so that governed and ungoverned runs start from the same weights."""
    if (spec.warm_folder / "config.json").exists():
        return load_model(str(spec.warm_folder), dtype="float32", tool_format="compact")
    make = {"tiny": tiny_model, "smollm2": smollm2_model}[spec.plan.model]
    log = ImperfectLog(template, denials_of(POLICY_FILE), seed=spec.seed, peeks=spec.plan.peeks)
    steps = spec.plan.warm_steps
    with contextlib.closing(log), display.stage("warm start", steps) as stage:
        model = make(
            log, seed=spec.seed, steps=steps, progress=lambda step, _, loss: stage.to(step, f"loss {loss:.2f}")
        )
    model.save(spec.warm_folder)
    return model


def _worker_config(spec: RunSpec, template: Path, url: str) -> WorkerConfig:
    return WorkerConfig(
        factory="lgov_core.demo.episode:PayDeskRunner",
        options={
            "agent": str(AGENT_FILE),
            "model": spec.plan.model,
            "template": str(template),
            "folder": str(spec.folder / "databases"),
            "oracle": str(spec.folder / "oracle.jsonl"),
        },
        policy=str(POLICY_FILE),
        audit=str(spec.folder / "audit.sqlite"),
        store=str(spec.folder / "store.sqlite"),
        endpoint=url,
        shadow=not spec.governed,
        air=asdict(AirRules(shaped=False)),  # paid per call, within CreditRules.air_cap
        timeout_s=120.0 if spec.plan.model == "tiny" else 600.0,
    )


def _prepare_folder(spec: RunSpec) -> Path:
    """Makes the run's folder and the company database in it; returns the database's path."""
    try:
        spec.folder.mkdir(parents=True, exist_ok=True)
        config = {"seed": spec.seed, "governed": spec.governed, "warm": str(spec.warm_folder.resolve())}
        text = json.dumps({**config, "plan": asdict(spec.plan)}, indent=2)
        (spec.folder / "config.json").write_text(text)
    except OSError as error:
        raise TrainError(
            f"the run folder {spec.folder} cannot be written: {error.strerror or error}",
            hint="choose another with --folder, or free some space",
        ) from error
    template = spec.folder / "company.sqlite"
    if not (spec.resume and template.exists()):
        build_company(template, seed=spec.seed)
    return template
