"""Trainer: trains a model from what a runner's rollouts earn, on one machine, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import http.client
import inspect
import json
import os
import queue
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack, cast

from lgov_core.air import AirRules
from lgov_core.client import Client, Resource, Task, TrainResult, read_tasks
from lgov_core.client.attempts import AgentRunner, check_agent, environment_variable
from lgov_core.client.client import Done, TaskFile, rules_in_use
from lgov_core.client.wire import Report
from lgov_core.client.workers import ThreadWorkers, Workers
from lgov_core.errors import ArgumentError, KernelError, SettingsError, TaskError
from lgov_core.governance import Governance
from lgov_core.governor import Governor
from lgov_core.governor.options import require_declared
from lgov_core.rl_governance.kernel import KernelSpace
from lgov_core.scope import current_scope, enter_scope
from lgov_core.train.settings import TrainSettings, load_train_settings
from lgov_core.types import Outcome, Reward

if TYPE_CHECKING:
    from lgov_core.rl_governance.runner import GovernedRollout

#: The default settings file.
CONFIG_FILE: Final = "config.yaml"
#: Fields of a task that hold its text; the first that is set counts.
_PROMPTS: Final = ("input", "question", "prompt", "task")

_RESOURCE: contextvars.ContextVar[Resource | None] = contextvars.ContextVar("lgov_resource", default=None)


def current_resource() -> Resource:
    """Where the agent that is running finds its model. Raises `KernelError` outside a rollout of a `Trainer`."""
    resource = _RESOURCE.get()
    if resource is None:
        raise KernelError("no trainer runs this code", hint="call current_resource() in the agent")
    return resource


class TrainerOptions(TypedDict, total=False):
    """Further options of a `Trainer`; see there."""

    test_tasks: TaskFile | Sequence[str] | None
    config: str | os.PathLike[str] | None
    folder: str | os.PathLike[str] | None
    quiet: bool


class Trainer:
    """Trains ``model`` with the rewards of ``reward_fn`` for the rollouts of ``runner``.

    For each task ``runner.step`` is called, within a rollout of the training: so the policies of its kernel apply.
    ``agent`` is what the runner runs: ``agent(task)``, or ``agent(resource, task)`` where ``resource.model_api`` is the
    model's address (`current_resource` gives the same); clients of the supported frameworks find it in OPENAI_BASE_URL.
    Without an agent, here and at the runner, the model is the agent: it gets the task's text, and its reply is the action
    that the kernel judges and runs. Without a runner the agent is ``agent(resource, task)`` and
    returns its reward, as for `Client.train`.

    ``reward_fn(rollout)`` gives the reward (default: the runner's success); of one with ``channels``, as `PolicyReward`,
    each channel is a reward of its own. A rollout whose outcome is not trainable is not rewarded and is tried again.

    ``num_workers`` rollouts run at a time, each worker with ``runner.init_worker`` once. ``tasks`` and ``test_tasks`` are
    files of JSON lines or lists (of mappings, or of texts); ``model`` a name or a folder. What is not given is taken from
    ``config`` (default: ``config.yaml`` in the working folder, if there is one) and from the variables of
    `lgov_core.train.settings`. ``folder`` gets everything (default: a new one below ``runs/``).

    For one thread. Raises `SettingsError` for what is missing or has no meaning.
    """

    def __init__(
        self,
        runner: Any = None,
        reward_fn: Callable[[Any], float] | None = None,
        algorithm: str | None = None,
        num_workers: int | None = None,
        agent: Callable[..., Any] | None = None,
        tasks: TaskFile | Sequence[str] | None = None,
        model: str | os.PathLike[str] | None = None,
        **options: Unpack[TrainerOptions],
    ) -> None:
        require_declared("Trainer", options, TrainerOptions)
        if runner is None and agent is None:
            raise ArgumentError("there is nothing to run", hint="pass runner=GovernedRunner(kernel), or agent=")
        if runner is None:
            check_agent(agent)
            if reward_fn is not None:
                raise ArgumentError("reward_fn scores the rollouts of a runner", hint="pass runner=, or leave it out")
        elif not callable(getattr(runner, "step", None)):
            raise ArgumentError(
                f"a {type(runner).__name__} is not a runner: it has no step", hint="pass a GovernedRunner"
            )
        self.runner, self.reward_fn, self.agent = runner, reward_fn, agent
        self._given = (tasks, options.get("test_tasks"))
        config = options.get("config")
        config_file = CONFIG_FILE if config is None and Path(CONFIG_FILE).exists() else config
        self._config: Path | None = None if config_file is None else Path(config_file)
        self._flags: dict[tuple[str, str], Any] = {
            ("training", "algorithm"): algorithm,
            ("runtime", "nworkers"): num_workers,
            ("model", "name"): None if model is None else str(model),
        }
        self._folder, self._quiet = options.get("folder"), options.get("quiet", False)
        self.settings = load_train_settings(self._config, flags=self._flags)

    def train(self, num_epochs: int | None = None, *, num_steps: int | None = None) -> TrainResult:
        """Trains for ``num_epochs`` passes over the tasks, at most ``num_steps`` updates; returns the figures.

        Raises `TrainError` as `Client.train` does. On Ctrl-C a checkpoint is written and KeyboardInterrupt goes on.
        """
        from lgov_core.server.local import serving

        flags = {**self._flags, ("training", "epochs"): num_epochs, ("training", "steps"): num_steps}
        settings = load_train_settings(self._config, flags=flags)
        settings.runtime.refuse_confinement()
        train = self._tasks(0, settings.data.train)
        if not train:
            raise SettingsError("there are no tasks", hint=f"pass tasks=, or set data.train in {CONFIG_FILE}")
        fresh = time.strftime("trainer-%Y%m%d-%H%M%S") + f"-{os.getpid()}-{os.urandom(2).hex()}"
        folder = Path("runs", fresh) if self._folder is None else Path(self._folder)
        with (
            serving(settings, folder) as server,
            # For agents that take the address of their model from the environment.
            environment_variable("OPENAI_BASE_URL", f"{server.url}/v1"),
            environment_variable("OPENAI_API_KEY", os.environ.get("OPENAI_API_KEY", "not-used")),
        ):
            client = Client(server.url, quiet=self._quiet, exit_on_interrupt=False)
            client.upload_data(train, test_file=self._tasks(1, settings.data.test) or None)
            return client.train_with(
                lambda opened, done: self._workers(opened, done, settings, server.url, server.store)
            )

    def _tasks(self, index: int, configured: Path | None) -> list[dict[str, Any]]:
        tasks = self._given[index]
        if tasks is None:
            return [] if configured is None else read_tasks(configured)
        if isinstance(tasks, str | os.PathLike):
            return read_tasks(tasks)
        return read_tasks([{"input": task} if isinstance(task, str) else task for task in tasks])

    def _workers(
        self, opened: contextlib.ExitStack, done: Done, settings: TrainSettings, url: str, store: Any
    ) -> Workers:
        runtime = settings.runtime
        governance = Governance.from_settings().under(runtime.policy)
        kernel = getattr(self.runner, "kernel", None)
        governor: Governor | None = kernel.governor if isinstance(kernel, KernelSpace) else None
        if self.runner is None:
            assert self.agent is not None
            agent, rules = self.agent, rules_in_use(governance)
        else:
            # A denial is charged by the reward function; AIR charges it only by a rule.
            rules = rules_in_use(governance, AirRules(denied=0.0) if self.reward_fn is not None else None)
            agent = opened.enter_context(_RunnerAgent(self.runner, self.reward_fn, self.agent, runtime.nworkers, store))
        runner = AgentRunner(
            agent,
            endpoint=url,
            governance=governance,
            rules=rules if runtime.air_enabled else None,
            instrument=runtime.auto_instrumentation,
            governor=governor,
        )
        opened.callback(runner.close)
        return ThreadWorkers(runner, runtime.nworkers, done)


class _RunnerAgent:
    """An agent of the client's kind around a runner. A context manager: its workers begin and end with it."""

    def __init__(self, runner: Any, reward_fn: Any, agent: Any, workers: int, store: Any) -> None:
        self._runner, self._reward_fn, self._store = runner, reward_fn, store
        self._agent = agent if agent is not None else getattr(runner, "agent", None)
        self._before = getattr(runner, "agent", None)
        #: A worker is a context: what `init_worker` set there is there in every rollout of that worker.
        self._workers: list[contextvars.Context] = [contextvars.copy_context() for _ in range(workers)]
        self._free: queue.SimpleQueue[contextvars.Context] = queue.SimpleQueue()

    def __enter__(self) -> _RunnerAgent:
        self._runner.init(None if self._agent is None else _of_one_input(self._agent))
        for number, worker in enumerate(self._workers):
            worker.run(self._runner.init_worker, number, self._store)
            self._free.put(worker)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, worker in enumerate(self._workers):
            worker.run(self._runner.teardown_worker, number)
        self._runner.init(self._before)

    def __call__(self, resource: Resource, task: Task) -> Report:
        """Runs one task in a worker that is free. There are as many as threads, except for those that were left behind."""
        scope = current_scope()
        try:
            worker = self._free.get_nowait()
        except queue.Empty:
            worker = contextvars.copy_context()
        try:
            return worker.run(self._step, scope, resource, task)
        finally:
            if worker in self._workers:
                self._free.put(worker)

    def _step(self, scope: Any, resource: Resource, task: Task) -> Report:
        token = _RESOURCE.set(resource)
        try:
            with enter_scope(scope):
                task_input: Any = task
                if self._agent is None:
                    task_input = _ask_model(resource, _prompt(task))
                elif set(task) == {"input"}:
                    task_input = task["input"]
                rollout = asyncio.run(
                    self._runner.step(task_input, mode="eval" if resource.mode == "test" else "train")
                )
                return self._scored(rollout)
        finally:
            _RESOURCE.reset(token)

    def _scored(self, rollout: GovernedRollout) -> Report:
        outcome = rollout.outcome or Outcome.FAILED
        if not outcome.trainable:
            return Report(outcome, error=rollout.error)
        if self._reward_fn is None:
            rewards = {"task": 1.0 if rollout.success else 0.0}
        else:
            value = self._reward_fn(rollout)
            channels: Any = getattr(self._reward_fn, "channels", None)
            rewards = cast("Mapping[str, float]", channels(rollout) if callable(channels) else {"task": value})
        scored = [Reward(float(value), name, source="reward_fn") for name, value in rewards.items() if name != "air"]
        return Report(outcome, tuple(scored), error=rollout.error)


def _of_one_input(agent: Any) -> Any:
    """``agent`` as a runner calls it; one of two parameters gets the resource first."""
    if not (inspect.isroutine(agent) or inspect.isfunction(agent)):
        return agent
    try:
        inspect.signature(agent).bind(None, None)
    except (TypeError, ValueError):
        return agent
    if inspect.iscoroutinefunction(agent):

        async def awaited(task: Any) -> Any:
            return await agent(current_resource(), task)

        return awaited
    return lambda task: agent(current_resource(), task)


def _prompt(task: Task) -> str:
    for name in _PROMPTS:
        if isinstance(text := task.get(name), str):
            return text
    texts = [value for value in task.values() if isinstance(value, str)]
    if len(texts) != 1:
        raise TaskError(
            f"which field of the task is its text is unclear: it has {', '.join(task)}", hint="name a field input"
        )
    return texts[0]


def _ask_model(resource: Resource, text: str) -> str:
    """The reply of the model under training to ``text``."""
    body = json.dumps({"model": resource.model, "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(
        f"{resource.model_api}/chat/completions", body, {"content-type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=600) as answer:
            return json.load(answer)["choices"][0]["message"]["content"] or ""
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f"the model did not answer: {error}") from error
