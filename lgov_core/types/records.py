"""Records of agents at work (outcomes, rewards, spans, rollouts, attempts, model calls, violations), and the rows and credit of
training on it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast

from lgov_core.types.actions import Action, Decision, JSONValue, Severity, new_id
from lgov_core.types.errors import RewardError, TransitionError


class Outcome(StrEnum):
    """How an attempt ended. ``infrastructure`` and ``timeout`` never become a training reward.

    In a training an attempt has ``succeeded`` when its task reward is above 0.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    BLOCKED = "blocked"
    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"

    @property
    def trainable(self) -> bool:
        """True where the attempt says something about the policy rather than about the machines."""
        return self not in (Outcome.INFRASTRUCTURE, Outcome.TIMEOUT)


ToolStatus: TypeAlias = Literal["ok", "error", "denied", "timeout", "invalid_args", "unknown_tool", "paused"]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of one tool call. ``action`` is the call as the model proposed it; ``error_type`` is a class name."""

    action: Action
    status: ToolStatus
    result: str | None = None
    error_type: str | None = None
    error: str | None = None
    decision: Decision | None = None
    started_at: float = field(default_factory=time.time)
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelCallFailed:
    """A model call that was allowed and returned no reply. ``action`` is the call; ``error_type`` is a class name.

    ``refused`` is true when the model certainly did not run: the server answered with an error, or could not be
    reached. After a timeout or a lost connection that is unknown.
    """

    action: Action
    error_type: str
    refused: bool = False


#: Rewards beyond this cannot be compared: their squares are no longer numbers.
MOST_REWARD: Final = 1e100


@dataclass(frozen=True, slots=True)
class Reward:
    """One number on one target.

    The target is explicit, never guessed: a tool call (``tool_call_id``: credited to the model call that proposed it), a
    model call (``response_id``), or, with neither set, the attempt as a whole. ``dimension`` keeps channels apart
    (``task``, ``air``, ``compliance``). ``value`` must be finite. ``choice`` (from 0) is the choice of a reply with
    several (``n`` > 1); None means the one that the attempt continued with.
    """

    value: float
    dimension: str = "task"
    rollout_id: str | None = None
    attempt: int | None = None
    response_id: str | None = None
    tool_call_id: str | None = None
    source: str = ""
    reward_id: str = field(default_factory=lambda: new_id("rwd"))
    choice: int | None = None


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event at one moment of a span; ``at`` is in Unix seconds."""

    name: str
    at: float
    attributes: Mapping[str, JSONValue] = field(default_factory=dict[str, "JSONValue"])


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that happened, in GenAI semantic-convention names plus ``lgov.*`` (see ``lgov_core.trace``).

    ``span_id`` is unique in a store; ``trace_id`` is the OpenTelemetry trace of a span that came from one, else None.
    ``claimed`` is true for a span received from another program: it may feed training, and is not evidence of what a
    policy decided.
    """

    name: str
    span_id: str
    started_at: float
    ended_at: float | None
    attributes: Mapping[str, JSONValue]
    rollout_id: str | None = None
    attempt: int | None = None
    parent_id: str | None = None
    trace_id: str | None = None
    events: tuple[SpanEvent, ...] = ()
    claimed: bool = False


#: The ``mode`` of rollouts to train on. With any other they measure a model: agent-lightning writes ``val``, a
#: `GovernedRunner` ``eval``, the trainer ``test``.
TRAIN_MODE: Final = "train"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One task handed to an agent. ``task_id`` names the group: rollouts of one task are compared with each other.

    ``input`` holds the task and what the rollout is for: ``mode``, or agent-lightning's ``is_train``.
    """

    rollout_id: str
    task_id: str
    run_id: str
    input: Mapping[str, JSONValue]
    created_at: float = field(default_factory=time.time)

    @property
    def mode(self) -> str | None:
        """The purpose of the rollout; None where ``input`` does not say."""
        mode = self.input.get("mode")
        return mode if isinstance(mode, str) else "val" if self.input.get("is_train") is False else None

    @property
    def held_out(self) -> bool:
        """True where the rollout measures the model, so that nothing is trained on it."""
        return self.mode not in (None, TRAIN_MODE)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a rollout. ``outcome`` is None while it runs; ``error`` is a message for people.

    ``result`` is what its runner kept of it, under ``counts`` the governor's counts. ``task_id`` is that of its rollout where a
    training collected the attempt, else empty.
    """

    rollout_id: str
    attempt: int
    started_at: float
    ended_at: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    result: JSONValue = None
    task_id: str = ""

    @property
    def trainable(self) -> bool:
        """It has ended, and by the agent's doing: not by a machine's failure or a timeout."""
        return self.outcome is not None and self.outcome.trainable

    @property
    def counts(self) -> Mapping[str, int]:
        """The governor's counts: ``model_calls``, ``tool_calls``, ``denied``, ``violations``; empty where none are kept."""
        kept: Any = self.result.get("counts") if isinstance(self.result, Mapping) else None
        return kept if isinstance(kept, Mapping) else {}


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """One model call exactly as the endpoint served it.

    ``prompt_ids`` and ``response_ids`` are token ids (int); ``logprobs`` are the behaviour log-probabilities of
    ``response_ids`` at the temperature sampled, same length, or None when the upstream returned none; both id lists are
    None when the upstream returned none. ``weights_version`` counts the weights published so far (0 = as loaded;
    None = unknown upstream). ``tool_call_ids`` are the ids of the tool calls parsed from the reply, by which a
    tool's reward is attributed to the call that proposed it. ``request`` and ``response`` are the JSON bodies.

    A reply of several choices (``n`` > 1) is one call per ``choice`` (from 0), all with the same ``response_id``.
    ``route`` is the API: ``chat``, ``responses``, ``messages`` or ``completions``.
    """

    response_id: str
    model: str
    request: Mapping[str, Any]
    response: Mapping[str, Any]
    prompt_ids: tuple[int, ...] | None
    response_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    finish_reason: str
    weights_version: int | None
    temperature: float
    top_p: float
    started_at: float
    ended_at: float
    rollout_id: str | None = None
    attempt: int | None = None
    agent: str | None = None
    tool_call_ids: tuple[str, ...] = ()
    engine: str = ""
    choice: int = 0
    route: str = "chat"


SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True)
class Transition:
    """One model call as training data.

    ``prompt_ids`` (int, length P) and ``response_ids`` (int, length R) are the exact tokens; ``response_mask`` (length R) is
    1 where the model chose the token and may be trained on it; 0 where a demanded form (a grammar) decided it. ``logprobs``
    (length R) are the behaviour log-probabilities at the temperature sampled, None where they were not recorded.
    ``weights_version`` is None where unknown, and ``outcome`` where the end of the attempt was not recorded. ``rewards``
    maps a dimension to what this turn earned. Until credit is assigned ``value_to_go``, ``credit`` and ``advantages`` are
    None; then ``value_to_go`` is the return that the scheme gives this turn, ``credit`` the advantage of the turn as one
    number, ``advantages`` (length R) that of each response token, and ``loss_weight`` multiplies this transition's summed
    token loss: the weights of one rollout's tokens do not change when the rollout is split into more transitions.

    ``turn`` counts the transitions of one attempt in its `TransitionSet`, from 0, in the order in which the calls began.
    A call is identified by ``response_id`` and ``choice`` (from 0, for replies of several choices). ``tool_call_ids`` are
    the tool calls that it proposed; ``parent_response_id`` is the call that proposed the tool call inside which this call
    was made (an agent that runs as a tool), None for a call that no tool made.

    Choices of one reply are alternatives. ``set_aside`` are those that the attempt did not go on with: the others are its
    line (`line_of`), of which credit is assigned. ``own_rewards`` is what names this choice itself, where ``rewards`` holds
    also what the attempt as a whole earned; None where they are the same. ``held_out`` marks a call of a rollout that
    measures the model (`Rollout.held_out`): there is none unless it was asked for.
    """

    run_id: str
    weights_version: int | None
    model: str
    task_id: str
    rollout_id: str
    attempt: int
    turn: int
    response_id: str
    agent: str | None
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    response_mask: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    temperature: float
    finish_reason: str
    outcome: Outcome | None
    rewards: Mapping[str, float]
    value_to_go: float | None = None
    advantages: tuple[float, ...] | None = None
    loss_weight: float = 0.0
    truncated: bool = False
    credit: float | None = None
    choice: int = 0
    tool_call_ids: tuple[str, ...] = ()
    parent_response_id: str | None = None
    value: float | None = None
    set_aside: bool = False
    own_rewards: Mapping[str, float] | None = None
    held_out: bool = False

    @property
    def reward(self) -> float:
        """The sum over all dimensions of what this turn earned."""
        return sum(self.rewards.values())

    def as_row(self) -> dict[str, Any]:
        """The transition as one row of the data contract (plain JSON types).

        ``call_id`` and ``response_id`` are one id under the contract's two names, as are ``policy_version`` and
        ``weights_version``.
        """
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "rollout_id": self.rollout_id,
            "attempt": self.attempt,
            "task_id": self.task_id,
            "turn": self.turn,
            "agent": self.agent,
            "model": self.model,
            "response_id": self.response_id,
            "call_id": self.response_id,
            "choice": self.choice,
            "set_aside": self.set_aside,
            "held_out": self.held_out,
            "parent_call_id": self.parent_response_id,
            "prompt_ids": list(self.prompt_ids),
            "response_ids": list(self.response_ids),
            "response_mask": list(self.response_mask),
            "logprobs": None if self.logprobs is None else list(self.logprobs),
            "weights_version": self.weights_version,
            "policy_version": self.weights_version,
            "sampling": {"temperature": self.temperature},
            "finish_reason": self.finish_reason,
            "truncated": self.truncated,
            "rewards": dict(self.rewards),
            "return": self.value_to_go,
            "credit": self.credit,
            "value": self.value,
            "advantages": None if self.advantages is None else list(self.advantages),
            "loss_weight": self.loss_weight,
            "outcome": None if self.outcome is None else self.outcome.value,
        }


#: How the loss weights of `CreditRules.loss` count.
Loss = Literal["tokens", "rollouts", "rollout_tokens", "turns"]


@dataclass(frozen=True, slots=True)
class CreditRules:
    """How rewards become advantages.

    ``scheme`` is ``return_to_go`` (a turn gets the discounted rewards from it on), ``identical`` (the whole return: the
    Agent Lightning paper's choice), ``step`` (what the turn itself earned), ``gigpo``, ``flow_grpo``, ``gae`` (what a critic
    did not expect; ``gae_lambda`` is its λ, from 0 to 1), or a function of the rollouts of a task and these rules, which gives
    the advantage of each turn of each, a number or one for each response token;
    formulas, sources and biases are in `lgov_core.transitions.schemes`.
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
    the task, and leaves a group alone whose rollouts differ in ``air`` only; None does neither. ``caps`` bounds other
    channels. A channel with a bound is divided by no deviation, so the bound holds for advantages too: two rollouts differ
    by at most twice as much, in deviations where the rest is divided. ``min_group`` is the fewest rollouts
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

    scheme: str | Callable[..., Any] = "return_to_go"
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
    def compares_groups(self) -> bool:
        """True where an advantage says how a rollout did beside others of its group: only then can a group be alike."""
        return self.scheme != "gae" and self.baseline != "none"

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


#: What a violation costs by its severity, as a positive number.
SEVERITY_PENALTIES: Final[Mapping[str, float]] = MappingProxyType(
    {"critical": 100.0, "high": 50.0, "medium": 10.0, "low": 1.0}
)


class PolicyViolationType(StrEnum):
    """The policy's treatment of the act: blocked, changed, allowed with a warning, or stopped by a signal."""

    BLOCKED = "blocked"
    MODIFIED = "modified"
    WARNED = "warned"
    SIGNAL_SENT = "signal_sent"


@dataclass(unsafe_hash=True)
class PolicyViolation:
    """One call in which a policy found a violation.

    ``severity`` is critical, high, medium or low, in any case; it is kept in lower case. Another one costs as much as
    medium. ``penalty`` is 100, 50, 10 or 1 by severity unless it is given; it is what the violation costs, finite and 0
    or more. ``blocks`` is True for an act that was blocked, by ``action_blocked`` or by the type. The timestamp does not
    count when violations are compared. May be shared between threads.

    Raises `RewardError` for another type or penalty.
    """

    violation_type: PolicyViolationType
    policy_name: str
    description: str
    severity: str
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC), compare=False)
    action_blocked: bool = False
    penalty: float = cast(float, None)  # None: by the severity; set in __post_init__

    def __post_init__(self) -> None:
        try:
            kind = PolicyViolationType(self.violation_type)
        except ValueError as error:
            names = ", ".join(PolicyViolationType)
            raise RewardError(f"violation type {self.violation_type!r} is unknown", hint=f"write {names}") from error
        self.violation_type = kind
        self.severity = severity_of(self.severity)
        price: Any = default_penalty(self.severity) if cast(Any, self.penalty) is None else self.penalty
        if isinstance(price, bool) or not isinstance(price, int | float) or not math.isfinite(price) or price < 0:
            raise RewardError(
                f"the penalty of a violation must be a finite number, 0 or more, not {price!r}",
                hint="it is what the violation costs; rewards subtract it",
            )
        self.penalty = float(price)

    @property
    def blocks(self) -> bool:
        """True where the act was blocked."""
        return bool(self.action_blocked) or self.violation_type is PolicyViolationType.BLOCKED


def severity_of(severity: object) -> str:
    """The severity as text, in lower case."""
    return str(getattr(severity, "value", severity)).strip().lower()


def known_severity(severity: object) -> str:
    """The severity that ``severity`` is weighed as: one that does not exist as medium."""
    written = severity_of(severity)
    return written if written in SEVERITY_PENALTIES else Severity.MEDIUM.value


def default_penalty(severity: object) -> float:
    """The cost of a violation of this severity."""
    return SEVERITY_PENALTIES[known_severity(severity)]
