"""TrainingServer: the endpoint, the queue of rollouts and the training loop, in one process."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from msgspec import to_builtins

from lgov_core._util.json_text import finite
from lgov_core.audit import default_signer
from lgov_core.errors import LgovError, SettingsError, TrainError, counted
from lgov_core.gateway.access import KeyRing, require_keys
from lgov_core.gateway.app import create_app
from lgov_core.gateway.limits import Limits
from lgov_core.gateway.protocol import Engine
from lgov_core.gateway.server import EndpointServer, MountedApp
from lgov_core.models.load import SMALL
from lgov_core.server.coordinator import Coordinator, KeyInPath, QueueCollector, Stopped, kept_keys
from lgov_core.server.recipe import (
    Sampling,
    algorithm_for,
    device_for,
    extra_groups_for,
    load,
    open_engine,
    with_exact_model,
)
from lgov_core.server.routes import train_routes
from lgov_core.server.run_state import (
    SAMPLERS,
    NextUpdate,
    RunStart,
    RunState,
    batch_of,
    begin,
    earlier_results,
    further_of,
    in_turn,
    numbered,
    only_trainer,
    read_start,
    task_rewards,
    updates_of,
)
from lgov_core.store import RolloutConfig, RolloutQueue, open_store, store_of, without_secret
from lgov_core.train.algorithms.algorithms import Algorithm, algorithm_name, read_parts
from lgov_core.train.diagnosis.evidence import held_out_overlap
from lgov_core.train.loop.checkpoint import best_checkpoint
from lgov_core.train.loop.collecting import UsableSteps
from lgov_core.train.loop.figures import earned_figures
from lgov_core.train.loop.lineage import Facts, Lineage, policy_facts, weights_digest
from lgov_core.train.loop.loop import RolloutTask, TrainingLoop
from lgov_core.train.loop.run_files import file_sha256, train_lines
from lgov_core.train.settings import TrainSettings
from lgov_core.transitions import Selection
from lgov_core.types import Attempt


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where a training server listens, and what it has beside its folder.

    ``store`` is a trace store (default: ``store.sqlite`` in the folder). ``keys`` must be required on an address that other
    machines can reach. ``gpus`` as in `lgov_core.server.recipe.device_for`. ``mounted`` is served beside the endpoint.
    ``allowed_hosts`` as in `Limits`. With ``extends`` a resumed run is continued to the number of updates that the settings
    ask for now. ``agent`` is the file of the agent, where it is known: a resumed run must find it unchanged.
    """

    host: str = "127.0.0.1"
    port: int = 0
    store: str | None = None
    keys: KeyRing | None = None
    gpus: int | None = None
    mounted: MountedApp | None = None
    allowed_hosts: tuple[str, ...] = ()
    extends: bool = False
    agent: Path | None = None


class TrainingServer:
    """A training server; a context manager.

    ``folder`` gets ``store.sqlite`` (unless ``options.store`` names another place), ``data/``, ``metrics.jsonl``,
    ``checkpoints/``, ``transitions/``. ``resume`` continues the newest checkpoint and the unfinished run, with its
    clients and rollouts, at the same address. ``algorithm`` takes the place of ``training.algorithm`` and what the settings
    change of it. ``engines`` serve further models, which are not trained, beside the one that is.

    Entering loads the model and starts the endpoint; `serve` then trains in the calling thread whenever a client asks,
    until ``stop`` is set. ``store`` is open meanwhile. `url` may be read from any thread. Raises `TrainError` when
    another trainer works on the store.
    """

    def __init__(
        self,
        settings: TrainSettings,
        *,
        folder: Path,
        options: ServerOptions | None = None,
        resume: bool = False,
        algorithm: Algorithm | None = None,
        engines: Sequence[Engine] = (),
    ) -> None:
        options = options or ServerOptions()
        require_keys(options.host, options.keys)
        folder = folder.absolute()  # an agent in a thread may change the working folder
        self.settings, self.folder, self.options = settings, folder, options
        self._resume, self._algorithm, self._engines = resume, algorithm, tuple(engines)
        self._own = str(folder / "store.sqlite")
        self._place = options.store or (store_of(folder) if resume and read_start(folder).store else self._own)
        self._open = contextlib.ExitStack()
        self._given_up = threading.Event()

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return self._endpoint.url

    @property
    def first_hand_key(self) -> str:
        """For a `Client` in this process (``first_hand``), which then reports what it saw itself."""
        return self.coordinator.first_hand_key

    @property
    def updates(self) -> int:
        """How many updates are done; none of them is lost, whatever happens now."""
        return self._loop.done

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            self._start(opened)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def _start(self, opened: contextlib.ExitStack) -> None:
        device = device_for(self.options.gpus)
        start = read_start(self.folder)
        self._loop_id = start.id
        if self._resume and start.dtype is not None and self.settings.model.dtype == "auto":
            self.settings = self.settings.with_values("model", dtype=start.dtype)
        self.settings = settings = with_exact_model(self.settings, device)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._resume and (self.folder / "checkpoints").exists():
            raise SettingsError(
                f"{self.folder} holds a training already", hint="continue with --resume, or choose another --folder"
            )
        chosen = self._algorithm or algorithm_for(settings)
        self._extra_groups = extra_groups_for(settings, chosen)
        _, sampler, self._callbacks = read_parts(settings.training)
        self._sampler, self._failures = SAMPLERS[sampler] if isinstance(sampler, str) else sampler, 0
        training = settings.training
        learns = {"algorithm_options": dict(training.algorithm_options), "sampler": training.sampled_by}
        learns["algorithm"] = algorithm_name(training.algorithm)
        if training.algorithm_options or training.sampler:  # of callbacks alone nothing depends
            learns["plugins"] = self._plugins()
        if (agent := self.options.agent) is not None:
            learns["agent"] = {agent.name: file_sha256(agent)}
        opened.enter_context(only_trainer(self._place))
        self.store: RolloutQueue = opened.enter_context(contextlib.closing(open_store(self._place)))
        model = load(settings, device)
        chosen = self._algorithm or algorithm_for(settings, model)
        self._scheduled = chosen.update.schedule != "constant"
        start_sha256 = weights_digest(model.module.state_dict().items())
        name, dtype = str(settings.model.name), settings.model.dtype
        elsewhere = None if self._place in (self._own, "memory://") else without_secret(self._place)
        now = RunStart(start.id, name, dtype, start_sha256, learns, elsewhere)
        begin(self.folder, start, now, resume=self._resume)
        sampling = open_engine(settings, model, self.folder, opened)
        self._engine_figures = sampling.figures
        self._small = model.module.num_parameters() < SMALL
        self._stop = threading.Event()
        runtime = settings.runtime
        config = RolloutConfig(max_attempts=runtime.max_attempts, timeout_s=runtime.timeout_s, retry_delay_s=0.5)
        self._collector = QueueCollector(self.store, config, self._is_stopped)
        self._loop = self._new_loop(chosen, sampling, start_sha256)
        keys = self.options.keys or kept_keys(self.folder)
        self.coordinator = Coordinator(
            self.folder,
            self.store,
            keys,
            self._collector,
            loop_id=self._loop_id,
            about={"model": model.name, "algorithm": chosen.name, "folder": str(self.folder)},
            timeout_s=runtime.timeout_s,
        )
        self._continue()
        self._start_endpoint(opened, sampling.engine, keys)

    def _new_loop(self, chosen: Algorithm, sampling: Sampling, start_sha256: str) -> TrainingLoop:
        settings, training = self.settings, self.settings.training
        return TrainingLoop(
            run_id=self._loop_id,
            policy=sampling.policy,
            learner=sampling.learner(chosen.update),
            engine=sampling.control,
            store=self.store,
            pool=self._collector,
            folder=self.folder,
            credit=chosen.credit,
            selection=Selection(agents=training.agents, models=tuple(sampling.policies)),
            checkpoint_every=training.checkpoint_every,
            keep_weights=training.keep_weights,
            pause_updates=settings.vllm.sleep and settings.model.engine == "vllm",
            max_staleness=settings.max_staleness,
            max_extra_groups=self._extra_groups,
            seal=self._lineage(start_sha256).seal,
        )

    def _continue(self) -> None:
        """Takes up what an earlier process left, before clients can ask: they find the run again, and no cancelled work."""
        if self._resume:
            self._loop.resume()
        # Rollouts collected for the update in progress are kept; the rest are cancelled.
        self._collector.cancel_left(self._loop_id, self._loop.open_rollouts() if self._resume else ())
        target = self._steps()[0] if self.options.extends and self.coordinator.tasks.of("train") else None
        self._left = RunState.unfinished(self.folder, target) if self._resume else None
        #: A training was resumed of which nothing is left to do.
        self.is_complete = self._resume and self._left is None and self.updates > 0
        if self._left is not None:
            self.coordinator.begin(self._left, resumed=True)

    def _start_endpoint(self, opened: contextlib.ExitStack, engine: Engine, keys: KeyRing) -> None:
        limits = Limits(allowed_hosts=self.options.allowed_hosts)
        routes = train_routes(self.coordinator)
        app = create_app([engine, *self._engines], self.store, keys=keys, limits=limits, more=routes)
        self.coordinator.failures = app.state.failures
        self._endpoint = EndpointServer(cast(Any, KeyInPath(app)), host=self.options.host, port=self.options.port)
        mounted = self.options.mounted
        if mounted is not None:
            app.mount(mounted.path, mounted.app(keys))
        opened.enter_context(self._endpoint)
        if mounted is not None:
            mounted.started(self._endpoint.url)

    def _plugins(self) -> dict[str, str]:
        """The SHA-256 of each plugin file of the settings, as it is now."""
        return {str(path): file_sha256(path) for path in self.settings.training.plugins}

    def _lineage(self, start_sha256: str) -> Lineage:
        settings = self.settings
        rules = settings.runtime.policy
        own: dict[str, Any] = (
            {} if self._algorithm is None else {"own_algorithm": to_builtins(self._algorithm, enc_hook=repr)}
        )
        if plugins := self._plugins():
            own["plugins_sha256"] = plugins
        facts = Facts(
            run_id=self._loop_id,
            model=str(settings.model.name),
            start_sha256=start_sha256,
            seed=settings.training.seed,
            settings={**settings.as_json(), **own},
            policy=None if rules is None else policy_facts(rules),
        )
        return Lineage(facts, folder=self.folder, signer=default_signer())

    # ------------------------------------------------------------------ training

    def give_up(self) -> None:
        """Ends `serve` without the update in progress, at its next pass; it is made again with ``resume``. For any thread."""
        self._given_up.set()

    def serve(self, stop: threading.Event) -> None:
        """Trains whenever a client asks, until ``stop`` is set: then the update in progress is finished and kept."""
        self._stop = stop
        run, self._left = self._left, None
        while not stop.is_set():
            if run is None:
                if not self.coordinator.asked(stop):
                    return
                run = self._next_run()
                self.coordinator.begin(run)
            with _few_threads(self._small):
                self._train(run)
            run = None

    def _next_run(self) -> RunState:
        """The run that was stopped, or a new one."""
        before = self.coordinator.run or RunState.unfinished(self.folder)
        steps, note = self._steps()
        if before is not None and before.stopped and not self._complete(before):
            return RunState(self.folder, before.first, before.steps, skip=before.skip, run_id=before.run_id)
        return RunState(self.folder, self._loop.done, steps, skip=len(self._loop.run.metrics.lines()), note=note)

    def _complete(self, run: RunState) -> bool:
        return self._loop.done - run.first >= run.steps and not self._test_due(run)

    def _steps(self) -> tuple[int, str]:
        """How many updates a run makes, and what to say when that is fewer than the settings ask for."""
        training = self.settings.training
        each = updates_of(self.coordinator.tasks.of("train"), training.update_tasks)
        steps = training.epochs * each
        if training.steps is None or training.steps <= steps:
            return steps if training.steps is None else training.steps, self._overlap()
        passes, needed = counted(training.epochs, "epoch"), math.ceil(training.steps / each)
        return steps, f"{passes} of the tasks are {steps} updates, not {training.steps}: --epochs {needed} makes those"

    def _overlap(self) -> str:
        """Says how many held-out tasks are trained on."""
        count, total = held_out_overlap(self.folder / "data") or (0, 0)
        return f"held-out tasks that are trained on too: {count} of {total}" if count else ""

    def _train(self, run: RunState) -> None:
        try:
            self._updates(run)
            self._loop.checkpoint()
            run.end("done")
        except Stopped:
            with contextlib.suppress(LgovError):
                self._loop.checkpoint()
            run.end("stopped")
        except LgovError as error:
            run.end("failed", error)
        except Exception as error:
            run.end("failed", TrainError(f"{type(error).__name__}: {error}"))
            raise

    def _updates(self, run: RunState) -> None:
        training, usable = self.settings.training, UsableSteps()
        run.lines(self._loop.run.metrics.lines())
        run.goes_on(self._loop.done - run.first)
        self._loop.run.total = run.first + run.steps if self._scheduled else None
        if training.stop_after_evaluations and not self.coordinator.tasks.of("test"):
            raise SettingsError("training.stop_after_evaluations needs held-out tasks", hint="--test, or data.test")
        while not self._complete(run) and not self._ends_early(run):
            if self._is_stopped():
                raise Stopped
            if self._test_due(run):
                self._evaluate(run)
                continue
            step = self._loop.done - run.first
            later = range(step + 1, min(step + self.settings.max_staleness + 1, run.steps))
            batch, seed = self._batch(run, step), f"{training.seed}/{run.first}"
            iteration = self._loop.iterate(
                batch,
                training.group_size,
                self._stage,
                self._train_figures,
                [self._batch(run, number) for number in later],
                further_of(self.coordinator.tasks.of("train"), batch, step, seed, self._extra_groups),
            )
            self._report(run, self._loop.run.line)
            run.at(self._loop.done - run.first)
            usable.check(iteration.results, iteration.used)

    def _test_due(self, run: RunState) -> bool:
        """Returns whether held-out tasks are to be run now, as they are before the first update and after the last."""
        if not self.coordinator.tasks.of("test") or run.tested(self._loop.done):
            return False
        step, every = self._loop.done - run.first, self.settings.training.evaluate_every
        return step == 0 or step >= run.steps or bool(every and step % every == 0)

    def _stage(self, state: str, done: int, total: int) -> None:
        if self._given_up.is_set():
            raise Stopped
        if self.coordinator.run is not None:
            self.coordinator.run.stage(state, done, total)

    def _batch(self, run: RunState, step: int) -> list[RolloutTask]:
        training, tasks = self.settings.training, self.coordinator.tasks.of("train")
        # What is known where rollouts are collected ahead, too: a step always gets the same tasks.
        last = run.first + step - self.settings.max_staleness
        lines = train_lines(self._loop.run.metrics.lines()) if self._sampler is not in_turn else ()
        results = earlier_results(line for line in lines if run.first < line["step"] <= last)
        seed = f"{training.seed}/{run.first}"
        return batch_of(NextUpdate(tasks, training.update_tasks, step, seed, results), self._sampler)

    def _report(self, run: RunState, line: Mapping[str, Any]) -> None:
        """Gives ``line``, once it is in ``metrics.jsonl``, to callbacks and clients. Each callback gets it once or, where the
        process is killed, not at all. One that raises is warned of and counted, in ``metrics.jsonl`` by a line with the phase
        ``callback_failed``: the training goes on.
        """
        for callback in self._callbacks:
            try:
                callback(finite(line))
            except Exception as error:  # noqa: BLE001 - a training does not depend on who watches it
                self._failures += 1
                failure = {"error": str(error), "failures": self._failures}
                self._loop.run.metrics.add("callback_failed", line["step"], failure)
                warning = f"{error}; failures of callbacks so far: {self._failures}"
                line = {**line, "warnings": {**line.get("warnings", {}), "callback-failed": warning}}
        run.add(line)

    def _ends_early(self, run: RunState) -> bool:
        """True once the policy has collapsed, or as many evaluations as the settings say brought no gain of the held-out
        reward. The run's note says so.
        """
        training, step = self.settings.training, self._loop.done
        collapsed = self._loop.run.line.get("warnings", {}).get("policy-collapsed")
        if training.stop_on_collapse and collapsed and step > run.first:
            self._loop.checkpoint()
            kept = best_checkpoint(self._loop.run.checkpoints)
            best_of = "no checkpoint is left from before (training.checkpoint_every)"
            if kept is not None and kept.step < step:
                best_of = f"the best checkpoint is that of update {kept.step}"
            run.note = f"ended after update {step}: {collapsed}; {best_of}"
            return True
        patience = training.stop_after_evaluations
        lines = self._loop.run.metrics.lines()[run.skip :] if patience else ()
        tests = [line for line in lines if line["phase"] == "test" and line.get("reward") is not None]
        best = max(tests, key=lambda line: line["reward"], default=None)
        if not patience or best is None or len(tests) - 1 - tests.index(best) < patience:
            return False
        gain = f"no gain of the held-out reward in {counted(patience, 'evaluation')}"
        best_of = f"the best is {best['reward']:.3f}, of update {best['step']}"
        run.note = f"ended after update {step}: {gain}; {best_of}"
        return True

    def _evaluate(self, run: RunState) -> None:
        """Every held-out task, sampled as in training: greedy decoding hides what a policy would do."""
        tasks = [numbered("test", number, task) for number, task in enumerate(self.coordinator.tasks.of("test"))]
        count = self.settings.training.rollouts_per_test_task
        results = self._loop.collect(tasks, count, lambda done, total: run.stage("testing", done, total))
        line = {"phase": "test", "step": self._loop.done, **self._figures(results)}
        self._loop.run.metrics.add("test", self._loop.done, line)
        self._report(run, line)
        if isinstance(reward := line.get("reward"), float):
            self._loop.run.score("held_out_reward", reward)

    def _figures(self, results: Sequence[Attempt]) -> dict[str, Any]:
        """See `earned_figures`: of the attempts that can be trained on, with the rewards that the store has of them."""
        usable = [(result.rollout_id, result.attempt) for result in results if result.trainable]
        rewards = self.store.rewards([rollout_id for rollout_id, _ in usable]) if usable else ()
        earned = (
            ((reward.rollout_id or "", reward.attempt or 0), reward.dimension, reward.value) for reward in rewards
        )
        figures = earned_figures(results, usable, earned)
        return {**figures, **self._engine_figures()}

    def _train_figures(self, results: Sequence[Attempt]) -> dict[str, Any]:
        figures = self._figures(results)
        if self._sampler is in_turn:
            return figures
        rewards = self.store.rewards([result.rollout_id for result in results])
        return {**figures, "task_rewards": task_rewards(results, rewards)}

    def _is_stopped(self) -> bool:
        run = self.coordinator.run
        return self._stop.is_set() or (run is not None and run.stop_asked.is_set())


@contextlib.contextmanager
def _few_threads(small: bool) -> Generator[None]:
    """Threads of a small model would wait for each other longer than they work."""
    import torch

    before = torch.get_num_threads()
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
