"""CreditRules: which scheme, which baseline, which bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lgov_core.types.errors import TransitionError

#: How the loss weights of `CreditRules.loss` count.
Loss = Literal["tokens", "rollouts", "rollout_tokens", "turns"]


@dataclass(frozen=True, slots=True)
class CreditRules:
    """How rewards become advantages.

    ``scheme`` is ``return_to_go`` (a turn gets the discounted rewards from it on), ``identical`` (the whole return: the
    Agent Lightning paper's choice), ``step`` (what the turn itself earned), ``gigpo``, ``flow_grpo``, ``gae`` (what a critic
    did not expect; ``gae_lambda`` is its λ, from 0 to 1), or a name that a plugin knows (hook ``lgov_assign_credit``);
    formulas, sources and biases are in `lgov_core.transitions.credit.schemes`.
    ``discount`` is γ, from 0 to 1. ``baseline`` is what a turn is compared with: ``turn`` the mean over the group's rollouts
    that reached it, ``rollout`` the mean return, ``none`` nothing; means count each rollout once, however many turns it
    has. ``leave_one_out`` leaves a rollout out of the mean that it is compared with: with γ = 1 and ``loss="rollouts"`` the
    gradient of ``return_to_go`` and ``identical`` is then unbiased.

    ``std_floor`` None divides by nothing; a number divides by the group's standard deviation of returns (where turns are
    compared, of those from each turn on), but never by less: dividing by a tiny deviation blows AIR noise up to full-size
    advantages, and runs collapsed. ``deviation`` is that of the ``population``, or of the ``sample`` (divided by G - 1, as
    verl and TRL do). Where it divides, each reward channel (``task``, ``air``, ``compliance``, ...) is credited and
    normalised on its own and the results are added, so that a large penalty cannot drown the task (GDPO, arXiv 2601.05242);
    ``apart=False`` normalises the sum. ``channel_weights`` multiply a channel's credit (1 unless given, 0 or more).
    ``normalise_batch`` then gives the advantages of all trained tokens of the batch mean 0 and deviation 1 (REINFORCE++,
    arXiv 2501.03262; PPO; the last step of GDPO).

    ``air_cap`` bounds the absolute sum of a rollout's ``air`` rewards, scaling them together, so that they never outweigh
    the task; None switches the bound off. ``caps`` does the same for other channels. ``min_group`` is the fewest rollouts
    that can be compared. ``state`` is what makes two turns of ``gigpo`` the same: all tokens of the prompt, or the
    ``observation``, those that came after what the agent last wrote; ``step_weight`` is its ω.

    ``loss`` is what the loss weights count. ``tokens``: every token the same, 1 / (all trained tokens). ``rollouts``:
    every token 1 / (rollouts), the policy gradient itself. ``rollout_tokens``: every rollout the same, 1 / (rollouts x its
    tokens). ``turns``: 1 / (rollouts x its turns x the turn's tokens). None: the scheme's own, which is ``turns`` for
    ``flow_grpo`` and else ``tokens``. ``loss_length`` divides all weights (Dr. GRPO's constant: in practice the longest reply).
    With ``skip_equal`` the rollouts of a group in which nothing is to be learnt are not counted in the weights (DAPO,
    arXiv 2503.14476: such groups are not part of the batch).

    Raises `TransitionError` for a value without meaning.
    """

    scheme: str = "return_to_go"
    discount: float = 1.0
    baseline: Literal["turn", "rollout", "none"] = "turn"
    std_floor: float | None = None
    air_cap: float | None = 0.1
    min_group: int = 2
    leave_one_out: bool = False
    apart: bool = True
    channel_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    caps: Mapping[str, float] = field(default_factory=dict[str, float])
    state: Literal["prompt", "observation"] = "prompt"
    step_weight: float = 1.0
    loss: Loss | None = None
    gae_lambda: float = 0.95
    deviation: Literal["population", "sample"] = "population"
    normalise_batch: bool = False
    loss_length: float = 1.0
    skip_equal: bool = False

    def __post_init__(self) -> None:
        if not self.scheme:
            raise TransitionError("a credit scheme needs a name")
        _one_of("baseline", self.baseline, ("turn", "rollout", "none"))
        _one_of("state", self.state, ("prompt", "observation"))
        _one_of("loss", self.loss, (None, "tokens", "rollouts", "rollout_tokens", "turns"))
        _number("discount", self.discount, 0.0)
        if self.discount > 1:
            raise TransitionError(f"discount is {self.discount:g}", hint="it is within 0 and 1")
        _number("step_weight", self.step_weight, 0.0)
        _one_of("deviation", self.deviation, ("population", "sample"))
        if _number("gae_lambda", self.gae_lambda, 0.0) > 1:
            raise TransitionError(f"gae_lambda is {self.gae_lambda:g}", hint="it is within 0 and 1")
        if _number("loss_length", self.loss_length, 0.0) == 0:
            raise TransitionError("loss_length is 0", hint="write a number above 0; 1 divides by nothing")
        if self.scheme == "gae" and self.std_floor is not None:
            raise TransitionError(
                "gae divides by no group's deviation",
                hint="leave std_floor out; normalise_batch divides by the batch's",
            )
        if self.std_floor is not None and _number("std_floor", self.std_floor, 0.0) == 0:
            raise TransitionError("std_floor is 0", hint="write a number above 0, or None to divide by nothing")
        if self.air_cap is not None:
            _number("air_cap", self.air_cap, 0.0)
        for name, mapping in (("channel_weights", self.channel_weights), ("caps", self.caps)):
            for channel, value in mapping.items():
                _number(f"{name}[{channel}]", value, 0.0)
        if self.air_cap is not None and "air" in self.caps:
            raise TransitionError("air is bounded twice", hint="by air_cap or by caps; air_cap=None leaves it to caps")
        if self.min_group < 1:
            raise TransitionError(f"min_group is {self.min_group}", hint="it is 1 or more")

    @property
    def bounds(self) -> dict[str, float]:
        """The bound of each channel that has one."""
        return dict(self.caps) if self.air_cap is None else {"air": self.air_cap, **self.caps}

    @property
    def weighting(self) -> Loss:
        """The loss whose weights count: ``loss``, or the scheme's own."""
        return self.loss or ("turns" if self.scheme == "flow_grpo" else "tokens")

    @property
    def normalises(self) -> bool:
        """True where advantages are divided by a deviation."""
        return self.std_floor is not None or self.scheme == "flow_grpo"


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if value not in choices:
        words = ", ".join(str(choice) for choice in choices)
        raise TransitionError(f"{name} is {value!r}", hint=f"write one of: {words}")


def _number(name: str, value: Any, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise TransitionError(f"{name} is {value!r}", hint=f"it is a finite number, {least:g} or more")
    return float(value)
