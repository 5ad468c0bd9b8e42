"""``lgov train --backend verl``: verl and its client for one run, and the server from which clients take its rollouts.

`CoordinatorHost` is a `lgov_core.integrations.verl.Host`: it runs in the process of verl's task runner and serves what a
`lgov_core.server.training.TrainingServer` serves, so that the same `lgov_core.Client` works with either.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from lgov_core.audit import default_signer
from lgov_core.audit.signing import default_key_path
from lgov_core.client import Client
from lgov_core.client.tasks import load_agent, read_tasks
from lgov_core.errors import ClientError, LgovError, SettingsError, TrainError
from lgov_core.gateway.access import KeyRing, read_secrets
from lgov_core.gateway.app import create_app
from lgov_core.gateway.door import is_loopback
from lgov_core.gateway.protocol import Engine
from lgov_core.gateway.server import EndpointServer
from lgov_core.integrations.verl.checkpoints import Steps
from lgov_core.integrations.verl.job import VerlJob, VerlUpdate, check_overrides
from lgov_core.integrations.verl.run import VerlReport, check_verl, run_verl
from lgov_core.models.load import model_place
from lgov_core.server.command import interrupted
from lgov_core.server.coordinator import Coordinator, KeyInPath, QueueCollector, Stopped, Tasks
from lgov_core.server.recipe import agent_name_of, algorithm_for, client_options, extra_groups_for, task_file
from lgov_core.server.routes import train_routes
from lgov_core.server.run_state import RunState, only_trainer
from lgov_core.store import RolloutConfig, RolloutQueue
from lgov_core.train.algorithms.algorithms import REINFORCEMENT, UpdateConfig, algorithm_name, read_parts
from lgov_core.train.loop.run_files import MetricsLog
from lgov_core.train.sections import TrainingSection
from lgov_core.train.settings import TrainingJob, TrainSettings
from lgov_core.types import Attempt, CreditRules, Rollout

_FORMS: Final[Mapping[str, Any]] = {"clip": "clip", "sequence": "gspo", "cispo": "cispo", "plain": "plain"}
_AS_IN_UPDATE: Final = ("clip_low", "clip_high", "kl", "entropy", "epochs", "max_grad_norm")
#: A bound that never applies: verl cannot switch the second bound off.
_NO_DUAL_CLIP: Final = 1e9


def verl_job(settings: TrainSettings, *, run_id: str, folder: Path, tasks: int, port: int) -> VerlJob:
    """The job for the given tasks. The server listens on ``port`` of this machine unless the section ``verl`` says where.

    Raises `SettingsError` for a key that there is not, and for what verl cannot do.
    """
    section, training = settings.verl, settings.training
    if settings.model.name is None:
        raise SettingsError("no model is named", hint="--model FOLDER, model.name, or LIGHTNING_MODEL_PATH")
    if settings.model.engine != "embedded":
        raise SettingsError(
            "verl keeps its own servers", hint="leave model.engine out; verl.server names vllm or sglang"
        )
    if training.max_staleness:
        raise SettingsError("on verl each step waits for its rollouts", hint="leave max_staleness out")
    if training.max_extra_groups:
        raise SettingsError("on verl no groups are collected in place of alike ones", hint="leave max_extra_groups out")
    _check_parts(training)
    algorithm = algorithm_name(training.algorithm)
    chosen = algorithm_for(settings)
    batch = min(training.batch_size or 32, tasks)
    steps = training.epochs * (tasks // batch)
    host, asked_port = listening(settings, port)
    secret = section.key_secret_file
    if not is_loopback(host) and secret is None:
        raise SettingsError(
            f"{host} can be reached from other machines and no keys are required", hint="give verl.key_secret_file"
        )
    check_overrides(section.overrides)
    return VerlJob(
        run_id=run_id,
        folder=folder,
        model=model_place(settings.model.name),
        store=str(folder / "store.sqlite"),
        **coordinator_options(
            host=host,
            port=asked_port,
            algorithm=algorithm,
            timeout_s=settings.runtime.timeout_s,
            max_attempts=settings.runtime.max_attempts,
            key_secret_file=None if secret is None else Path(secret).absolute(),
        ),
        steps=steps if training.steps is None else min(steps, training.steps),
        tasks_per_step=batch,
        group=training.group_size,
        seed=training.seed,
        agents=training.agents,
        credit=chosen.credit,
        update=verl_update(algorithm, chosen.update, settings),
        verl=section,
        reply_tokens=settings.model.max_new_tokens,
        tool_format=settings.model.tool_format,
        served_as=settings.model.served_as,
        checkpoint_every=training.checkpoint_every,
    )


def _check_parts(training: TrainingSection) -> None:
    """Raises `SettingsError` for parts of a training that verl does not have."""
    overrides, sampler, callbacks = read_parts(training)
    names = [part.__name__ for part in (*overrides.values(), sampler, *callbacks) if callable(part)]
    names += ["training.policies"] * bool(training.policies) + ["training.curriculum"] * (sampler == "curriculum")
    has = {*_AS_IN_UPDATE, "loss_form", "loss_weighting", "dual_clip", *CreditRules.__dataclass_fields__}
    names += [f"training.algorithm_options.{key}" for key in training.algorithm_options if key not in has]
    if names:
        hint = "leave --backend verl out; what verl has itself is set by the section verl, or verl.overrides"
        raise SettingsError(f"{' and '.join(names)}: only for the backend torch", hint=hint)


def listening(settings: TrainSettings, port: int) -> tuple[str, int]:
    """Where the server listens: ``verl.listen``, or the given port of this machine. Raises `SettingsError`."""
    listen = settings.verl.listen
    if listen is None:
        return "127.0.0.1", port
    host, _, number = listen.rpartition(":")
    if not host or not number.isdigit():
        raise SettingsError(f"verl.listen is {listen!r}", hint="write an address and a port, as 0.0.0.0:8321")
    return host, int(number)


def verl_update(name: str, update: UpdateConfig, settings: TrainSettings) -> VerlUpdate:
    """The update of the algorithm ``name`` as verl executes it. Raises `SettingsError` for what it cannot."""
    if update.critic:
        raise SettingsError(
            f"{name} trains a critic beside the policy, which lgov does not do on verl",
            hint=f"--backend torch, or one of {', '.join(other for other in REINFORCEMENT if other != name)}",
        )
    form = update.loss
    if not isinstance(form, str):
        raise SettingsError(f"verl does not know {form.__name__}", hint=f"verl has {', '.join(_FORMS)}")
    if form == "plain" and (update.epochs > 1 or settings.verl.mini_batches > 1):
        raise SettingsError(f"{name} makes one step an update: nothing corrects for a second", hint="update_epochs: 1")
    rank = settings.model.lora_rank or 0
    return VerlUpdate(
        learning_rate=settings.training.learning_rate or (1e-5 if rank else 1e-6),
        loss=_FORMS[form],
        dual_clip=update.dual_clip or _NO_DUAL_CLIP,
        lora_rank=rank,
        **{name: getattr(update, name) for name in _AS_IN_UPDATE},
    )


#: What a training leaves in its folder once it has begun.
_BEGUN = ("checkpoints", "transitions", "metrics.jsonl")
#: Seconds between two looks whether the server is there.
_LOOK_S = 0.5


def run_on_verl(job: TrainingJob) -> Mapping[str, Any]:
    """Trains with the agent of ``job`` on Ray and returns the result's figures. Raises `LgovError`.

    The agent runs in this process, or in processes of its own, as a client of the server in verl's task runner; clients on
    other machines may join. Held-out tasks are not run. Ctrl-C becomes a KeyboardInterrupt that says what is kept and how to
    continue.
    """
    settings = job.settings
    name, tasks = agent_name_of(job), read_tasks(task_file(job))
    agent = load_agent(name)
    folder = job.folder.absolute()
    on_verl = verl_job(settings, run_id=f"verl-{folder.name}", folder=folder, tasks=len(tasks), port=_free_port())
    check_verl()
    on_verl = replace(on_verl, stated=_stated(settings))
    if not job.resume and any((folder / name).exists() for name in _BEGUN):
        raise SettingsError(
            f"{folder} holds a training already", hint="continue with --resume, or choose another --folder"
        )
    if settings.data.test is not None:
        job.say("note: held-out tasks are not run on verl")
    from lgov_core.integrations.verl.checkpoints import left_by
    from lgov_core.train.loop.loop import RolloutTask

    numbered = [
        RolloutTask(f"train-{number:06d}", {"task": task, "mode": "train"}) for number, task in enumerate(tasks)
    ]
    earlier = left_by(on_verl, numbered)
    if extra_groups_for(settings, algorithm_for(settings)):
        name = settings.training.algorithm
        job.say(f"note: on verl {name} leaves groups out that are alike, and collects none in their place")
    if on_verl.update.kl > 0 and on_verl.credit.weighting != "tokens":
        job.say(f"note: on verl the KL counts every token the same, not {on_verl.credit.weighting} as the loss does")
    if earlier.step == on_verl.steps:
        job.say(f"all {earlier.step} steps are done")
        return _figures(folder, run_verl(on_verl, numbered))
    keep_tasks(folder, tasks)
    if earlier.begun:
        job.say(f"going on from step {earlier.step}, with the batches of {earlier.replayed} steps after it")
    job.say(f"starting Ray; everything goes to {folder}")
    with only_trainer(on_verl.store), _client(agent, on_verl, settings, folder) as trouble:
        try:
            report = run_verl(on_verl, numbered)
        except TrainError as error:
            raise next((problem for problem in trouble if not isinstance(problem, ClientError)), error) from error
        except KeyboardInterrupt:
            begun = any((folder / name).exists() for name in _BEGUN)
            raise KeyboardInterrupt(interrupted(folder, len(Steps(folder).acknowledged()) if begun else None)) from None
    return _figures(folder, report)


def _stated(settings: TrainSettings) -> Mapping[str, Any]:
    """The facts that the checkpoints state of the run. Raises `PolicyError`, and `AuditError` for a key that cannot be used."""
    from lgov_core.models.load import pinned
    from lgov_core.train.loop.lineage import policy_facts

    rules = settings.runtime.policy
    return {
        "model": pinned(str(settings.model.name)),
        "settings": settings.as_json(),
        "policy": None if rules is None else policy_facts(rules),
        "key": None if default_signer() is None else str(default_key_path().absolute()),
    }


def _figures(folder: Path, report: VerlReport) -> Mapping[str, Any]:
    return {
        "folder": str(folder),
        "updates": len(report.verl),
        "reward": [line.get("reward") for line in report.steps],
        "model": None if report.model is None else str(report.model),
    }


@contextlib.contextmanager
def _client(
    agent: Callable[..., Any], on_verl: VerlJob, settings: TrainSettings, folder: Path
) -> Generator[list[LgovError]]:
    """Runs the agent from the moment at which the server answers to the end of the block; yields what went wrong."""
    host, port = on_verl.options["host"], int(on_verl.options["port"])
    secret = on_verl.options["key_secret_file"]
    key = None if secret is None else KeyRing(read_secrets(secret)).admin
    address = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    over = threading.Event()
    trouble: list[LgovError] = []

    def run() -> None:
        while True:
            try:
                socket.create_connection((address, port), timeout=2.0).close()
                break
            except OSError:
                if over.wait(_LOOK_S):
                    return
        client = Client(f"http://{address}:{port}", key=key, patience_s=20.0)
        try:
            client.train(agent, **client_options(settings, folder))
        except LgovError as error:
            trouble.append(error)
            with contextlib.suppress(LgovError):
                client.stop()  # no client runs rollouts any more: the job must not wait for them

    thread = threading.Thread(target=run, name="lgov-client", daemon=True)
    thread.start()
    try:
        yield trouble
    finally:
        over.set()
        thread.join(timeout=30.0)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


COORDINATOR_HOST: Final = "lgov_core.integrations.verl.training:CoordinatorHost"


def coordinator_options(
    *, host: str, port: int, algorithm: str, timeout_s: float, max_attempts: int, key_secret_file: Path | None = None
) -> Mapping[str, Any]:
    """The fields ``host`` and ``options`` of a `VerlJob` whose rollouts are run by clients.

    The server listens on ``host`` and ``port``; with ``key_secret_file`` clients need an admin key made from it.
    """
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "algorithm": algorithm,
        "timeout_s": timeout_s,
        "max_attempts": max_attempts,
        "key_secret_file": None if key_secret_file is None else str(key_secret_file),
    }
    return {"host": COORDINATOR_HOST, "options": options}


def keep_tasks(folder: Path, tasks: Sequence[Mapping[str, Any]]) -> None:
    """Writes the tasks to the server's folder, so that a client that starts a run learns whether there are any."""
    kept = Tasks(folder)
    kept.add_part("verl", "train", [dict(task) for task in tasks])
    kept.commit("verl", {"train": len(tasks), "test": 0})


class CoordinatorHost:
    """An endpoint, a queue of rollouts, and the routes by which clients take from it. See `Host`.

    The run is done, as clients see it, once the rollouts of the last step are in: what is left is the trainer's. Raises
    `EndpointError` for an address that cannot be used.
    """

    def __init__(self, job: VerlJob, engine: Engine, store: RolloutQueue) -> None:
        options = job.options
        secret = options["key_secret_file"]
        keys = KeyRing(required=False) if secret is None else KeyRing(read_secrets(secret))
        lines = MetricsLog(job.folder / "metrics.jsonl").lines()
        self._known = {int(line["step"]) for line in lines if line.get("phase") == "train"}
        before = RunState.unfinished(job.folder)
        # The run that was killed is resumed: who waited for it finds it again.
        self._run = before if before is not None and before.steps == job.steps else RunState(job.folder, 0, job.steps)
        self._run.lines(lines)
        self._run.at(max(self._known, default=0))
        config = RolloutConfig(max_attempts=options["max_attempts"], timeout_s=options["timeout_s"], retry_delay_s=0.5)
        self._collector = QueueCollector(store, config, self._run.stop_asked.is_set)
        self._collector.cancel_left(job.run_id)
        about = {"model": engine.models[0], "algorithm": options["algorithm"], "folder": str(job.folder)}
        coordinator = Coordinator(
            job.folder, store, keys, self._collector, loop_id=job.run_id, about=about, timeout_s=options["timeout_s"]
        )
        coordinator.begin(self._run)
        app = create_app([engine], store, keys=keys, more=train_routes(coordinator))
        self._server = EndpointServer(cast(Any, KeyInPath(app)), host=options["host"], port=options["port"]).start()
        self._steps = job.steps

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return self._server.url

    def collect_rollouts(
        self, rollouts: Sequence[Rollout], progress: Callable[[int, int], None] | None = None
    ) -> list[Attempt]:
        """Waits for clients to run them. Raises `TrainError` when a client asked for the run to stop."""

        def report_stage(done: int, total: int) -> None:
            self._run.stage("rollouts", done, total)
            if progress is not None:
                progress(done, total)

        try:
            results = self._collector.collect_rollouts(rollouts, report_stage)
        except Stopped as stopped:
            self._run.end("stopped")
            raise TrainError("a client asked for the training to stop") from stopped
        except LgovError as error:
            self._run.end("failed", error)
            raise
        self._run.stage("update")
        return results

    def report(self, figures: Mapping[str, Any]) -> None:
        """See `Host`. A repeated step has already reported its metrics."""
        step = int(figures["step"])
        if step not in self._known:
            self._known.add(step)
            self._run.add(figures)
        self._run.at(step)
        if step >= self._steps:
            self._run.end("done")

    def close(self) -> None:
        """Ends the server."""
        self._server.stop()
