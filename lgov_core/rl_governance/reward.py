"""PolicyReward: a task's reward less the penalties of policy violations."""

from __future__ import annotations

import logging
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from lgov_core.air.rules import amount, finite
from lgov_core.errors import RewardError
from lgov_core.hookspecs import hookimpl
from lgov_core.rl_governance.adapt import JudgedRollout, adapt_rollout, priced_violation
from lgov_core.rl_governance.reports import violation_of
from lgov_core.types import SEVERITY_PENALTIES, Outcome, Reward, ToolOutcome
from lgov_core.types.records import known_severity, severity_of

_PENALTIES: Final = tuple(f"{severity}_penalty" for severity in SEVERITY_PENALTIES)


@dataclass(unsafe_hash=True)
class RewardConfig:
    """The price of violations, the bonus of clean work, and the bounds of both.

    ``*_penalty`` is added for each violation of that severity: finite, 0 or less. ``clean_bonus`` (0 or more) is added when
    a rollout came to its end without any violation; with ``bonus_needs_success`` only when it also succeeded. With
    ``multiplicative`` a rollout with violations keeps ``multiplicative_factor`` (0 to 1) of its base reward instead; of a
    negative base reward the same share is taken on top, so that a violation never pays.

    ``min_reward`` and ``max_reward`` bound the result; None switches a bound off. A floor above a penalty takes the penalty
    back: there is a warning. ``task_bounds`` bounds the base reward before anything is added to it. With
    ``refuse_untrainable`` a rollout that ended because of the machines (`Outcome.trainable`) raises instead of being scored.

    Raises `RewardError` for a value without meaning. See `for_training`.
    """

    critical_penalty: float = -100.0
    high_penalty: float = -50.0
    medium_penalty: float = -10.0
    low_penalty: float = -1.0
    clean_bonus: float = 5.0
    multiplicative: bool = False
    multiplicative_factor: float = 0.5
    min_reward: float | None = -100.0
    max_reward: float | None = 100.0
    bonus_needs_success: bool = False
    task_bounds: tuple[float, float] | None = None
    compliance_floor: float | None = None
    refuse_untrainable: bool = False

    def __post_init__(self) -> None:
        for name in (*_PENALTIES, "clean_bonus", "multiplicative_factor"):
            setattr(self, name, amount(name, getattr(self, name)))
        for name in _PENALTIES:
            if (value := getattr(self, name)) > 0:
                raise RewardError(f"{name} {value:g} would pay for violations", hint=f"write {-value:g}")
        if self.clean_bonus < 0:
            raise RewardError(f"clean_bonus {self.clean_bonus:g} would punish clean work", hint="write 0 or more")
        if not 0 <= self.multiplicative_factor <= 1:
            raise RewardError(
                f"multiplicative_factor {self.multiplicative_factor:g} is not within 0 and 1",
                hint="it is the share of the base reward that a rollout with violations keeps",
            )
        for name in ("multiplicative", "bonus_needs_success", "refuse_untrainable"):
            if not isinstance(getattr(self, name), bool):
                raise RewardError(f"{name} must be True or False, not {getattr(self, name)!r}")
        self._check_bounds()

    def _check_bounds(self) -> None:
        lowest = min(getattr(self, name) for name in _PENALTIES)
        for name in ("min_reward", "max_reward"):
            if getattr(self, name) is not None:
                setattr(self, name, amount(name, getattr(self, name)))
        if self.min_reward is not None and self.max_reward is not None and self.min_reward >= self.max_reward:
            raise RewardError(f"min_reward {self.min_reward:g} is not below max_reward {self.max_reward:g}")
        if self.compliance_floor is not None:
            self.compliance_floor = amount("compliance_floor", self.compliance_floor)
        for name in ("min_reward", "compliance_floor"):
            floor = getattr(self, name)
            if not self.multiplicative and floor is not None and floor > lowest:
                warnings.warn(
                    f"RewardConfig: {name} {floor:g} takes back what penalties below it ask for ({lowest:g})",
                    stacklevel=4,
                )
        if self.task_bounds is not None:
            low, high = (amount("task_bounds", value) for value in self.task_bounds)
            if low >= high:
                raise RewardError(f"task_bounds {self.task_bounds} must be (lowest, highest)")
            self.task_bounds = (low, high)

    @classmethod
    def for_training(cls, **changes: Any) -> Self:
        """A configuration on the scale that policy-gradient training wants.

        The task's reward is bounded to [-1, 1]; violations cost -1, -0.5, -0.1 and -0.01 by severity, together no more
        than -1; a clean success earns 0.05, a failure no bonus. Rollouts that the machines ended are refused. Task and
        compliance are channels of their own (`PolicyReward.channels`) to be normalised apart (`group_advantages`): in a
        sum, one violation of -100 would make the difference between solved and failed vanish in the group's spread.
        As a plugin (`PolicyReward`) it puts each penalty on the call that offended. ``changes`` are fields of the class.
        """
        fields: dict[str, Any] = {
            "critical_penalty": -1.0,
            "high_penalty": -0.5,
            "medium_penalty": -0.1,
            "low_penalty": -0.01,
            "clean_bonus": 0.05,
            "min_reward": None,
            "max_reward": None,
            "compliance_floor": -1.0,
            "bonus_needs_success": True,
            "task_bounds": (-1.0, 1.0),
            "refuse_untrainable": True,
        }
        return cls(**(fields | changes))

    def charge(self, violation: Any) -> float:
        """The charge that one violation adds to a reward, 0 or less.

        A penalty of its own, other than that of its severity, is charged as given; else the one configured for the
        severity, and that of medium for one that does not exist. ``violation`` is a `PolicyViolation`, or an object or a
        mapping with ``severity`` and ``penalty``. Raises `RewardError` for a penalty without meaning.
        """
        raw_severity, own = priced_violation(violation)
        severity = known_severity(raw_severity)
        if own is not None:
            price = amount("the penalty of a violation", own)
            if price < 0:
                raise RewardError(f"the penalty of a violation must be 0 or more, not {price:g}")
            if price != SEVERITY_PENALTIES[severity]:
                return 0.0 - price
        return cast(float, getattr(self, f"{severity}_penalty"))

    def floored(self, penalty: float) -> float:
        """``penalty`` at or above ``compliance_floor``."""
        return penalty if self.compliance_floor is None else max(penalty, self.compliance_floor)

    def clamp(self, value: float) -> float:
        """``value`` within ``min_reward`` and ``max_reward``."""
        if self.max_reward is not None:
            value = min(value, self.max_reward)
        return value if self.min_reward is None else max(value, self.min_reward)


_LOG = logging.getLogger(__name__)


class PolicyReward:
    """Scores rollouts: ``base reward + penalties + bonus``, within the bounds of ``config``.

    ``base_reward_fn(rollout)`` scores the task (default: 1.0 for success, else 0.0); what it raises is raised. A rollout is
    a `GovernedRollout` or whatever has ``success`` and ``violations``; without ``violations`` those of
    ``kernel.get_recent_violations()`` count. Penalties are those of `RewardConfig.charge`. The
    bonus is for rollouts without any violation that ran to their end: not for one that was blocked, cut short or raised
    (``outcome``, ``error``).

    As a plugin of a governor or a kernel (``plugins=[PolicyReward(...)]``) it puts the penalty of each denied, changed or
    warned tool call on that very call, in the dimension ``compliance``. `AirPlugin` does so too, with its own price: a
    governor that has both refuses to charge twice; write ``AirRules(denied=0.0)`` beside it.

    May be called from any thread. Raises `RewardError` for a reward that is not finite, and for a rollout that cannot be
    scored: nothing unclear counts as clean.
    """

    #: Of a governor's plugins only one may charge denials.
    charges_denials = True

    def __init__(
        self,
        kernel: Any = None,
        base_reward_fn: Callable[[Any], float] | None = None,
        config: RewardConfig | None = None,
    ) -> None:
        if base_reward_fn is not None and not callable(base_reward_fn):
            raise RewardError(
                f"base_reward_fn {base_reward_fn!r} cannot be called", hint="pass a function of a rollout"
            )
        if config is not None and not isinstance(config, RewardConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RewardError(f"config {config!r} is not a RewardConfig")
        self.kernel = kernel
        self.base_reward_fn = (
            base_reward_fn
            if base_reward_fn is not None
            else lambda rollout: float(bool(getattr(rollout, "success", False)))
        )
        self.config = config if config is not None else RewardConfig()
        self._lock = threading.Lock()
        self._scored = self._violating = 0
        self._penalties = 0.0

    def __call__(self, rollout: Any, emit: bool = True) -> float:
        """The reward of ``rollout``, which is counted in the statistics.

        With ``emit`` it is also handed to the ``emit_reward`` of agentlightning, where that is loaded: ``final``, ``base``
        and ``policy_penalty``, with the number of violations and whether there were none. What that raises is logged.
        """
        judged, base = self._base(rollout)
        penalty, bonus = self._compliance(judged, base)
        reward = finite("the reward", self.config.clamp(base + penalty + bonus))
        with self._lock:
            self._scored += 1
            self._violating += bool(judged.violations)
            self._penalties += penalty
        if emit:
            _emit({"final": reward, "base": base, "policy_penalty": penalty}, len(judged.violations or ()))
        return reward

    def channels(self, rollout: Any, rewards: Iterable[Reward] = ()) -> dict[str, float]:
        """The same by dimension: ``task``, ``compliance`` (penalties and bonus) and ``air``. Counts nothing.

        Each is bounded on its own. ``air`` is the sum of the ``air`` among ``rewards`` (those of the rollout's calls);
        their ``compliance`` is left out, because the rollout's violations are the same findings. Put into `group_advantages`
        for the rollouts of one task.
        """
        judged, base = self._base(rollout)
        penalty, bonus = self._compliance(judged, base)
        own = getattr(rollout, "rollout_id", None)
        air = [reward.value for reward in rewards if reward.dimension == "air" and reward.rollout_id in (None, "", own)]
        return {
            "task": finite("the task's reward", self.config.clamp(base)),
            "compliance": finite("the compliance reward", self.config.clamp(penalty + bonus)),
            "air": finite("the sum of AIR", sum(air, 0.0)),
        }

    @hookimpl
    def lgov_reward(self, outcome: ToolOutcome) -> Sequence[Reward]:
        """The penalty of a tool call in which a policy found something, on that call; nothing for a fault."""
        violation = None if outcome.decision is None else violation_of(outcome.decision)
        if violation is None:
            return []
        value = self.config.clamp(self.config.floored(self.config.charge(violation)))
        if value == 0.0:
            return []
        source = f"policy:{violation.severity}"
        return [Reward(value, "compliance", tool_call_id=outcome.action.call_id, source=source)]

    def get_stats(self) -> dict[str, Any]:
        """The figures of what was scored since the last `reset_stats`.

        ``total_rewards`` is how many rollouts, ``total_penalties`` (0 or less) what violations took from them all,
        ``avg_penalty`` the same a rollout; ``violation_rate`` is the share of rollouts with a violation and ``clean_rate``
        that without. Before the first rollout all are 0.
        """
        with self._lock:
            scored, violating, penalties = self._scored, self._violating, self._penalties
        return {
            "total_rewards": scored,
            "total_penalties": penalties,
            "avg_penalty": penalties / scored if scored else 0.0,
            "violation_rate": violating / scored if scored else 0.0,
            "clean_rate": (scored - violating) / scored if scored else 0.0,
        }

    def reset_stats(self) -> None:
        """Forgets what was scored so far."""
        with self._lock:
            self._scored = self._violating = 0
            self._penalties = 0.0

    def _base(self, rollout: Any) -> tuple[JudgedRollout, float]:
        """The facts of a rollout, and its base reward, both checked."""
        judged = adapt_rollout(rollout, self.kernel)
        if judged.violations is None:
            warnings.warn(f"a {type(rollout).__name__} cannot tell its violations: it earns no bonus", stacklevel=3)
        if self.config.refuse_untrainable and judged.outcome in (Outcome.INFRASTRUCTURE, Outcome.TIMEOUT):
            raise RewardError(
                f"the rollout ended by {judged.outcome}, which is not the agent's doing",
                hint="leave out rollouts whose outcome is not trainable",
            )
        base = finite("the base reward", self.base_reward_fn(rollout))
        if self.config.task_bounds is not None:
            low, high = self.config.task_bounds
            base = min(max(base, low), high)
        return judged, base

    def _compliance(self, judged: JudgedRollout, base: float) -> tuple[float, float]:
        """Penalty and bonus."""
        config = self.config
        if judged.violations:
            charges = sum((config.charge(violation) for violation in judged.violations), 0.0)
            if not config.multiplicative:
                return config.floored(charges), 0.0
            return (config.multiplicative_factor - 1.0) * abs(base), 0.0
        if judged.violations is None or not judged.ended or (config.bonus_needs_success and not judged.success):
            return 0.0, 0.0
        return 0.0, config.clean_bonus


def policy_penalty(
    violations: Iterable[Any],
    critical_penalty: float = -100.0,
    high_penalty: float = -50.0,
    medium_penalty: float = -10.0,
    low_penalty: float = -1.0,
) -> float:
    """The sum of what ``violations`` cost, 0 or less, to be added to a reward. See `RewardConfig.charge`.

    Raises `RewardError` for a penalty above 0 and for a violation that cannot be weighed.
    """
    config = RewardConfig(critical_penalty, high_penalty, medium_penalty, low_penalty, min_reward=None)
    return finite("the penalty", sum((config.charge(violation) for violation in violations), 0.0))


def create_policy_reward(
    kernel: Any = None,
    base_reward_fn: Callable[[Any], float] | None = None,
    severity_penalties: Mapping[str, float] | None = None,
    **config: Any,
) -> PolicyReward:
    """A `PolicyReward` in one call.

    ``severity_penalties`` maps severities to penalties (0 or less; what is left out keeps its default); further keywords
    are fields of `RewardConfig`. Raises `RewardError` for an unknown keyword; an unknown severity is warned about.
    """
    fields = RewardConfig.__dataclass_fields__
    if unknown := sorted(set(config) - set(fields)):
        raise RewardError(f"RewardConfig has no field {unknown[0]!r}", hint=f"it has {', '.join(fields)}")
    for severity, penalty in (severity_penalties or {}).items():
        name = f"{severity_of(severity)}_penalty"
        if name not in fields:
            warnings.warn(f"there is no severity {severity!r}: its penalty is ignored", stacklevel=2)
            continue
        if name in config:
            raise RewardError(f"{name} is given twice", hint="in severity_penalties or as a keyword, not both")
        config[name] = penalty
    return PolicyReward(kernel, base_reward_fn, RewardConfig(**config))


def _emit(values: dict[str, float], violations: int) -> None:
    emit_reward = getattr(sys.modules.get("agentlightning"), "emit_reward", None)
    if emit_reward is None or getattr(emit_reward, "__module__", "") == "lgov_core.compat":
        return
    attributes = {"agent_os.violations": violations, "agent_os.policy_compliant": not violations}
    try:
        emit_reward(values, primary_key="final", attributes=attributes)
    except Exception:  # noqa: BLE001 - the reward is right all the same
        _LOG.exception("the reward was not emitted")


assert {f"{severity}_penalty" for severity in SEVERITY_PENALTIES} < set(RewardConfig.__dataclass_fields__)


class CompositeReward:
    """The weighted sum of several reward functions.

    ``components`` are (function of a rollout, weight) pairs. Weights are finite; a negative one, which turns a penalty into
    a reward, is warned about. With ``normalize`` they are scaled so that they sum to 1. What a function raises is raised.
    Safe to call from many threads when the functions are.

    Raises `RewardError` for weights that are not finite, and when a component is not finite.
    """

    def __init__(self, components: Iterable[tuple[Callable[[Any], float], float]], normalize: bool = False) -> None:
        self.components: list[tuple[Callable[[Any], float], float]] = []
        for component in components:
            try:
                function, weight = component
            except (TypeError, ValueError) as error:
                raise RewardError(f"{component!r} is not a component", hint="write (function, weight)") from error
            if not callable(function):
                raise RewardError(f"{function!r} cannot be called", hint="write (function, weight)")
            weight = finite(f"the weight of {_named(function)}", weight)
            if weight < 0:
                warnings.warn(f"the weight {weight:g} of {_named(function)} turns penalties into rewards", stacklevel=2)
            self.components.append((function, weight))
        total = finite("the sum of the weights", sum(weight for _, weight in self.components))
        if normalize and total > 0:
            self.components = [(function, weight / total) for function, weight in self.components]

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights as they are used, in the order of the components."""
        return tuple(weight for _, weight in self.components)

    def __call__(self, rollout: Any) -> float:
        """The weighted sum for ``rollout``."""
        parts = [weight * finite(_named(function), function(rollout)) for function, weight in self.components]
        return finite("the weighted sum", sum(parts))


def _named(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__


def group_advantages(
    rollouts: Sequence[Mapping[str, float]],
    *,
    weights: Mapping[str, float] | None = None,
    std_floor: float = 0.1,
) -> list[float]:
    """One advantage a rollout, for the rollouts of one task.

    ``rollouts`` are their channels (`PolicyReward.channels`). Of each channel the group's mean is taken away and the rest
    is divided by its standard deviation (of the population), but never by less than ``std_floor`` (above 0), so that noise
    in a channel in which all are alike stays small. Then the channels are added, ``weights`` (1 unless given; 0 or more)
    times. So a rare, large penalty cannot drown the difference between solved and failed, nor the other way round.

    A group of one has nothing to compare: 0. Raises `RewardError` for values that are not finite, and when the rollouts do
    not have the same channels.
    """
    if not rollouts:
        return []
    names = list(rollouts[0])
    if any(set(channels) != set(names) for channels in rollouts):
        raise RewardError("the rollouts of a group must have the same channels", hint=f"the first has {names}")
    if not (math.isfinite(std_floor) and std_floor > 0):
        raise RewardError(f"std_floor must be above 0, not {std_floor!r}")
    if unknown := sorted(set(weights or {}) - set(names)):
        raise RewardError(f"there is no channel {unknown[0]!r}", hint=f"there are {names}")
    advantages = [0.0] * len(rollouts)
    for name in names:
        weight = finite(f"the weight of {name}", (weights or {}).get(name, 1.0))
        if weight < 0:
            raise RewardError(f"the weight of {name} is {weight:g}", hint="weights are 0 or more")
        values = [finite(name, channels[name]) for channels in rollouts]
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
        for at, value in enumerate(values):
            advantages[at] += weight * (value - mean) / max(spread, std_floor)
    return advantages


def shaping(potentials: Sequence[float], discount: float = 1.0) -> list[float]:
    """The payments of shaping at each step of one episode: F[t] = γ Φ(s[t+1]) - Φ(s[t]), with Φ = 0 after the last.

    ``potentials`` are Φ(s[0]) … Φ(s[T-1]), of the states in which the T steps were taken. Source: Ng, Harada and Russell
    1999, "Policy invariance under reward transformations"; that Φ must be 0 at the end of an episode: Grześ 2017. The
    discounted sum from step t on is -Φ(s[t]) whatever is done from there, so every policy loses the same and the optimal
    ones stay optimal. Raises `RewardError` for numbers that are not finite and a discount outside 0 to 1.
    """
    if not 0 <= finite("the discount", discount) <= 1:
        raise RewardError(f"the discount is {discount:g}", hint="it is within 0 and 1")
    values = [finite("a potential", value) for value in potentials]
    following = [*values[1:], 0.0][: len(values)]
    return [discount * after - before for before, after in zip(values, following, strict=True)]
