"""GovernedEnvironment: a kernel as a Gymnasium environment. Needs the extra ``gym``."""

from __future__ import annotations

import copy
import inspect
import math
import random
import string
import threading
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from lgov_core.errors import ArgumentError, KernelError, PolicyDenied, suggest_name
from lgov_core.rl_governance.adapt import adapt_kernel
from lgov_core.rl_governance.execution import run_to_end
from lgov_core.rl_governance.reports import violation_as_json
from lgov_core.rl_governance.rollouts import Collected, RolloutWatch
from lgov_core.scope import RolloutScope, carry_into_threads, enter_scope
from lgov_core.types import PolicyViolation, Severity, new_id

try:
    import gymnasium
    import numpy as np
    from gymnasium import spaces
    from gymnasium.error import ResetNeeded
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"lgov_core.environment needs {missing.name}: pip install 'lgov[gym]'", name=missing.name
    ) from missing

_GLOBAL_RANDOM = threading.Lock()


def make_task_generator(function: Callable[..., Any] | None) -> Callable[[np.random.Generator, bool], Any]:
    """A function of the environment's random numbers, and whether they were seeded, that makes a task.

    Raises `ArgumentError` for a function that requires other arguments.
    """
    if function is None:
        return lambda _random, _seeded: None
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        parameters = {}
    for name in ("np_random", "rng"):
        if name in parameters:
            return lambda np_random, _seeded: function(**{name: np_random})
    if "seed" in parameters:
        return lambda np_random, _seeded: function(seed=int(np_random.integers(2**31)))
    needed = [
        parameter.name
        for parameter in parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in _VARIADIC
    ]
    if needed:
        raise ArgumentError(
            f"the task generator requires {', '.join(needed)}", hint="let it take nothing, np_random, rng or seed"
        )

    def from_global(np_random: np.random.Generator, seeded: bool) -> Any:
        if not seeded:
            return function()
        with _global_random(int(np_random.integers(2**31))):
            return function()

    return from_global


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@contextmanager
def _global_random(seed: int) -> Generator[None]:
    """``random`` and ``numpy.random`` seeded while the block runs, and then as they were before.

    Another thread that draws from them meanwhile draws from the seeded ones.
    """
    with _GLOBAL_RANDOM:
        python, numpy = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@dataclass(unsafe_hash=True)
class EnvironmentConfig:
    """How steps are rewarded and when episodes end. Raises `ArgumentError` (a ValueError) for a value out of range.

    A violation costs ``violation_penalty`` times 10 (critical), 5 (high) or 1 (medium, low); every step earns
    ``step_penalty``, and one that succeeded without violation ``success_bonus`` too. The penalties are 0 or negative:
    no violation ever pays. ``terminate_on_critical`` ends the episode on a critical violation; ``max_steps`` truncates
    it. ``reset_kernel_state`` calls the kernel's ``reset`` at the beginning of each episode.
    """

    max_steps: int = 100
    violation_penalty: float = -10.0
    terminate_on_critical: bool = True
    step_penalty: float = -0.1
    success_bonus: float = 10.0
    reset_kernel_state: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.max_steps, bool) or not isinstance(self.max_steps, int) or self.max_steps < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"max_steps must be a whole number, 1 or more, not {self.max_steps!r}")
        for name, sign in (("violation_penalty", -1), ("step_penalty", -1), ("success_bonus", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ArgumentError(f"{name} must be a finite number, not {value!r}")
            if value * sign < 0:
                what = "0 or less" if sign < 0 else "0 or more"
                raise ArgumentError(f"{name} must be {what}, not {value!r}", hint=f"write {-value!r}")
        for name in ("terminate_on_critical", "reset_kernel_state"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name} must be True or False, not {getattr(self, name)!r}")


T_state = TypeVar("T_state")
T_action = TypeVar("T_action")

#: Characters of the longest text that the default spaces hold.
MAX_TEXT: Final = 20_000

_SCALES: Final = {Severity.CRITICAL: 10.0, Severity.HIGH: 5.0, Severity.MEDIUM: 1.0, Severity.LOW: 1.0}


class FreeText(spaces.Text):
    """Any text of up to ``max_length`` characters, of any alphabet; samples are printable ASCII of up to 64.

    ``optional`` admits None too, the state of an environment without tasks.
    """

    def __init__(self, max_length: int = MAX_TEXT, *, seed: Any = None, optional: bool = False) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable, seed=seed)
        self.optional = optional

    def contains(self, x: Any) -> bool:
        """Returns whether ``x`` is such a text."""
        return (self.optional and x is None) or (isinstance(x, str) and len(x) <= self.max_length)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random text."""
        if mask is not None or probability is not None:
            return super().sample(mask=mask, probability=probability)
        length = int(self.np_random.integers(0, min(64, self.max_length) + 1))
        return "".join(self.np_random.choice(list(string.printable), size=length))


@dataclass
class EnvironmentState:
    """An episode so far. ``violations`` are all of it; ``info`` is what the last step answered."""

    step_count: int = 0
    total_reward: float = 0.0
    violations: list[PolicyViolation] = field(default_factory=lambda: [])
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=lambda: {})


@dataclass(slots=True)
class _Episode:
    scope: RolloutScope
    collected: Collected
    state: EnvironmentState
    successes: int = 0
    violations: int = 0
    signals: int = 0

    @property
    def ended(self) -> bool:
        return self.state.terminated or self.state.truncated


@dataclass(slots=True)
class _Totals:
    episodes: int = 0
    steps: int = 0
    violations: int = 0
    successful: int = 0


class GovernedEnvironment(gymnasium.Env[T_state, T_action]):
    """A gymnasium environment whose actions run through ``kernel.execute(action)``; violations lower the reward.

    ``kernel`` is a `KernelSpace`, usually with an ``executor`` (without one actions are judged and not run), or any other
    object, a test double too. Of one without ``on_policy_violation`` the environment reads ``get_recent_violations()`` after
    each action; one without ``execute`` runs nothing, with a warning.

    ``task_generator`` makes the observation of an episode; without one it is None. It may take the environment's random
    generator (``np_random`` or ``rng``) or a ``seed``. One that takes neither and uses ``random`` or ``numpy.random`` is
    repeatable too after `reset` with a seed: both are seeded while it runs, and restored. ``reward_fn(state, action, result)``
    scores actions that ran and returned (default: 1.0 if the result is not None); an action that was blocked or raised earns 0.
    ``observation_space`` and ``action_space`` are texts unless given.

    An episode is one rollout. It ends on a critical violation, by a signal, or after ``max_steps``: the attribute
    ``terminated`` is then true, after truncation too, and `step` raises ``ResetNeeded``. One environment serves one thread at a
    time; several may share a kernel. Fails closed.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self,
        kernel: Any,
        task_generator: Callable[..., Any] | None = None,
        reward_fn: Callable[[Any, Any, Any], float] | None = None,
        config: EnvironmentConfig | None = None,
        *,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        for name, function in (("task_generator", task_generator), ("reward_fn", reward_fn)):
            if function is not None and not callable(function):
                raise ArgumentError(f"{name} {function!r} cannot be called", hint="pass a function")
        if config is not None and not isinstance(config, EnvironmentConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"config {config!r} is not an EnvironmentConfig")
        self.kernel = kernel
        self.config = config if config is not None else EnvironmentConfig()
        self._any_task = observation_space is None
        self.observation_space = (
            observation_space if observation_space is not None else FreeText(optional=task_generator is None)
        )
        self.action_space = action_space if action_space is not None else FreeText()
        self._reward_fn = reward_fn if reward_fn is not None else lambda *results: float(results[2] is not None)
        self._generate = make_task_generator(task_generator)
        self._kernel = adapt_kernel(kernel)
        self._watch = RolloutWatch(self._kernel, report=lambda *_: None)
        self._seeded = False
        self._closed = False
        self._state: Any = None
        self._episode: _Episode | None = None
        #: The current episode, or the last one.
        self.state = EnvironmentState()
        self._totals = _Totals()
        carry_into_threads()

    # ------------------------------------------------------------------ the Gymnasium interface

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode. Returns its task and ``{"episode": number from 1, "kernel_policies": names}``.

        With ``seed`` the tasks from here on are always the same. ``options`` may hold ``task``, to be used instead of
        a generated one. Raises `ArgumentError` for another option and for a task outside the observation space, and
        `PolicyDenied` when a policy does not let the episode begin.
        """
        self._require_open()
        if unknown := set(options or ()) - {"task"}:
            raise ArgumentError(f"reset has no option {sorted(unknown)[0]!r}", hint="the only one is task")
        super().reset(seed=seed)
        self._seeded = self._seeded or seed is not None
        self._finish_episode()
        if self.config.reset_kernel_state:
            self._kernel.reset()
        state = options["task"] if options else self._generate(self.np_random, self._seeded)
        if not self._any_task and not self.observation_space.contains(state):
            raise ArgumentError(
                f"the task {state!r:.200} is not in the observation space {self.observation_space}",
                hint="pass the observation_space that the tasks belong to",
            )
        scope = RolloutScope(new_id("episode"))
        decision = self._kernel.begin_rollout(scope)
        if decision is not None and decision.blocks:
            raise PolicyDenied(decision)
        collected = self._watch.begin(scope.rollout_id)
        assert collected is not None, "the id is new"
        self._totals.episodes += 1
        self.state = EnvironmentState(violations=collected.violations)
        self._state, self._episode = state, _Episode(scope, collected, self.state)
        return _own_copy(state), {"episode": self._totals.episodes, "kernel_policies": self._kernel.policy_names()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Has the kernel judge and run one act. Returns state, reward, terminated, truncated, info.

        ``info``: ``violations`` (mappings, see `violation_as_json`) and ``signals`` of this step, ``step`` (from 1),
        ``total_reward`` of the episode, this step included, ``success``, ``error`` (None, or what the act raised) and
        ``governed``. Raises ``ResetNeeded`` when no episode is running, and `ArgumentError` when ``reward_fn`` answers
        something that is not a finite number.
        """
        self._require_open()
        episode = self._episode
        if episode is None or episode.ended:
            raise ResetNeeded("no episode is running: call reset() before step()")
        now = episode.state
        now.step_count += 1
        self._totals.steps += 1
        result, error = self._run(action, episode)
        violations = episode.collected.violations[episode.violations :]
        signals = episode.collected.signals[episode.signals :]
        episode.violations += len(violations)
        episode.signals += len(signals)
        self._totals.violations += len(violations)
        blocked = any(violation.blocks for violation in violations)
        # Before the reward function, which may raise.
        now.terminated = any(
            (self.config.terminate_on_critical and _severity(violation) == Severity.CRITICAL)
            or (violation.violation_type == "signal_sent" and violation.blocks)
            for violation in violations
        )
        now.truncated = now.step_count >= self.config.max_steps
        success = error is None and result is not None and not blocked
        clean = success and not violations
        episode.successes += clean
        base = 0.0 if blocked or error is not None else _finite(self._reward_fn(self._state, action, result))
        reward = base + self.config.step_penalty + (self.config.success_bonus if clean else 0.0)
        for violation in violations:
            reward += self.config.violation_penalty * _SCALES.get(_severity(violation), 1.0)
        now.total_reward += reward
        now.info = {
            "violations": [violation_as_json(violation) for violation in violations],
            "signals": signals,
            "step": now.step_count,
            "total_reward": now.total_reward,
            "success": success,
            "error": error,
            "governed": self._kernel.governed,
        }
        return _own_copy(self._state), reward, now.terminated, now.truncated, now.info

    def close(self) -> None:
        """Ends the episode and stops listening to the kernel, which stays open. Calling it again does nothing."""
        if self._closed:
            return
        self._finish_episode()
        self._watch.stop()
        self._closed = True
        super().close()

    # ------------------------------------------------------------------ state

    @property
    def terminated(self) -> bool:
        """True where the episode is over: terminated or truncated. False before the first `reset`."""
        return self._episode is not None and self._episode.ended

    def get_metrics(self) -> dict[str, Any]:
        """Counts over all episodes so far, the running one included.

        ``total_episodes``, ``total_steps``, ``total_violations``; ``successful_episodes``, those with a successful step
        and no violation; ``success_rate``, their share of all episodes (0 to 1); ``violations_per_episode`` and
        ``steps_per_episode``. Rates are 0.0 before the first episode.
        """
        totals = self._totals
        successful = totals.successful + _succeeded(self._episode)
        episodes = max(1, totals.episodes)
        return {
            "total_episodes": totals.episodes,
            "total_steps": totals.steps,
            "total_violations": totals.violations,
            "successful_episodes": successful,
            "success_rate": successful / episodes,
            "violations_per_episode": totals.violations / episodes,
            "steps_per_episode": totals.steps / episodes,
        }

    def _run(self, action: Any, episode: _Episode) -> tuple[Any, str | None]:
        with enter_scope(episode.scope):
            try:
                execute = self._kernel.method("execute")
                if execute is None:
                    return None, f"nothing was run: a {self._kernel.name} has no execute"
                return run_to_end(execute, action, f"{self._kernel.name}.execute"), None
            except KernelError:
                raise
            except Exception as error:  # noqa: BLE001 - an act that failed is a result
                return None, f"{type(error).__name__}: {error}"
            finally:
                if not self.config.terminate_on_critical:
                    # The kernel asks a rollout to end on a critical violation; this one was configured to go on.
                    self._kernel.forget_signals(episode.scope.rollout_id)
                episode.collected.violations += self._kernel.polled_violations()

    def _finish_episode(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            self._totals.successful += _succeeded(episode)
            self._watch.end(episode.scope.rollout_id)
            self._kernel.end_rollout(episode.scope)

    def _require_open(self) -> None:
        if self._closed:
            raise KernelError("the environment is closed", hint="make a new one")


def create_governed_env(kernel: Any, **options: Any) -> GovernedEnvironment[Any, Any]:
    """An environment from keywords: those of `EnvironmentConfig` and those of `GovernedEnvironment`.

    An unknown keyword is warned about and has no effect.
    """
    configuring = {setting.name for setting in fields(EnvironmentConfig)}
    making = {"task_generator", "reward_fn", "config", "observation_space", "action_space"}
    for name in options:
        if name not in configuring | making:
            hint = suggest_name(name, sorted(configuring | making))
            warnings.warn(f"create_governed_env has no option {name!r} ({hint}): it is ignored", stacklevel=2)
    config = options.get("config")
    config = replace(
        config if config is not None else EnvironmentConfig(),
        **{name: value for name, value in options.items() if name in configuring},
    )
    others = {name: value for name, value in options.items() if name in making and name != "config"}
    return GovernedEnvironment(kernel, config=config, **others)


def _own_copy(observation: Any) -> Any:
    """A copy for the agent, which may keep or change it; the observation itself where it cannot be copied."""
    try:
        return copy.deepcopy(observation)
    except Exception:  # noqa: BLE001 - an observation may be anything, such as an open connection
        return observation


def _severity(violation: PolicyViolation) -> Any:
    severity = getattr(violation.severity, "value", violation.severity)
    return Severity(severity) if severity in tuple(Severity) else Severity.MEDIUM


def _succeeded(episode: _Episode | None) -> bool:
    return episode is not None and episode.successes > 0 and not episode.collected.violations


def _finite(reward: Any) -> float:
    try:
        if isinstance(reward, str | bytes | bytearray):
            raise TypeError("a text is not a number")
        value = float(reward)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"reward_fn answered {reward!r:.100} instead of a number") from error
    if not math.isfinite(value):
        raise ArgumentError(f"reward_fn answered {value}", hint="a reward must be a finite number")
    return value
