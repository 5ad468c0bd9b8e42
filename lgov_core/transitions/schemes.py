"""Credit schemes: what each turn of each rollout is worth, within one group and one channel of rewards.

Written for one group of G rollouts of one task. r[i][t] is what turn t of rollout i earned, T[i] its number of turns,
R[i] = Σ_t γ^t r[i][t] its return and g[i][t] = Σ_{k≥t} γ^(k-t) r[i][k] the return from turn t on. A scheme gives A[i][t],
the advantage of the tokens of that turn. "Unbiased" is said of the estimate

    ĝ = (1/G) Σ_i Σ_t A[i][t] ∇ log π(tokens of turn t | prompt of turn t)

of the gradient of the expected undiscounted return, that is of the loss weighting ``rollouts`` with γ = 1 and without
division by a deviation. ``python -m tests.bench.credit_bias`` prints how far each is off on a small problem of which all
groups can be enumerated; `tests/transitions/test_credit_mdp.py` holds the claims to 1e-12.

A baseline keeps ĝ unbiased if it does not depend on what rollout i did: the mean over the *others* (``leave_one_out``).
The mean over all G, of which rollout i is one, scales ĝ by (G-1)/G where it is over all rollouts; where it is over those
that reached a turn or a state, the factor differs from turn to turn, and the direction is off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lgov_core.errors import TransitionError
from lgov_core.transitions.transition_set import Transition
from lgov_core.types import CreditRules

#: One number for each turn of each rollout.
Turns: TypeAlias = list[list[float]]
#: Flow-GRPO and its like divide by the deviation; below this a group counts as one in which all are alike.
SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True, slots=True)
class Channel:
    """The rewards of one channel in one group: ``rewards[i][t]``; ``states[i][t]`` says which state a turn began in.

    ``values[i][t]`` is what a critic expected from turn t on; None where there is no critic.
    """

    rewards: Sequence[Sequence[float]]
    states: Sequence[Sequence[Hashable]]
    values: Sequence[Sequence[float]] | None = None

    def returns(self, discount: float) -> Turns:
        """g: the return from each turn on."""
        return [returns_to_go(rewards, discount) for rewards in self.rewards]


Scheme: TypeAlias = "Callable[[Channel, CreditRules], Turns]"


def returns_to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """The discounted sum of ``rewards`` from each turn on, for one rollout."""
    value, values = 0.0, [0.0] * len(rewards)
    for turn in range(len(rewards) - 1, -1, -1):
        value = rewards[turn] + discount * value
        values[turn] = value
    return values


def identical(channel: Channel, rules: CreditRules) -> Turns:
    """Every turn gets what its rollout earned: A[i][t] = R[i] - mean(R).

    Source: Agent Lightning, arXiv 2508.03680, section 3.3 (the return of the rollout is assigned to each call), with the
    group mean of GRPO (arXiv 2402.03300) taken over rollouts, not over calls. Unbiased with ``leave_one_out``; without it
    up to the factor (G-1)/G. Variance grows with the number of turns, because a turn also answers for earlier rewards.
    """
    values = channel.returns(rules.discount)
    firsts = [row[0] for row in values]
    baselines = _means(firsts, rules.leave_one_out) if rules.baseline != "none" else [0.0] * len(values)
    divisor = _divisor(firsts, rules.std_floor, rules)
    return [[(row[0] - base) / divisor] * len(row) for row, base in zip(values, baselines, strict=True)]


def return_to_go(channel: Channel, rules: CreditRules) -> Turns:
    """A turn gets what came from it on: A[i][t] = g[i][t] - b[i][t].

    b is the mean return (``baseline="rollout"``), or the mean of g[·][t] over the rollouts that reached turn t (``turn``,
    each rollout once), or 0 (``none``). Source: Williams 1992 (REINFORCE) and Sutton et al. 2000 for the returns; the
    baselines are those of GRPO and of RLOO (arXiv 2402.14740). With ``leave_one_out`` unbiased for either baseline; a
    turn that no other rollout reached is then compared with the mean return of the others. Without: ``rollout`` is
    unbiased up to (G-1)/G, ``turn`` is biased (a turn that n rollouts reached is scaled by (n-1)/n). With γ below 1
    biased: γ^t is left out, as everywhere (Thomas 2014).
    """
    values = channel.returns(rules.discount)
    firsts = [row[0] for row in values]
    scores = _less_baseline(values, firsts, _means(firsts, True), rules)
    return _divided(scores, _turns_divisor(values, rules))


def step(channel: Channel, rules: CreditRules) -> Turns:
    """A turn gets what it earned itself: A[i][t] = r[i][t] - b[t].

    b is the mean of r[·][t] over the rollouts that reached turn t, or with ``baseline="rollout"`` the mean over rollouts
    of their mean reward a turn. Biased: a turn does not answer for what it leads to. Of use for process rewards, or for
    one channel of which that is the meaning; a final reward reaches the last turn only.
    """
    rewards = [list(row) for row in channel.rewards]
    scores = _less_baseline(rewards, [sum(row) / len(row) for row in rewards], [0.0] * len(rewards), rules)
    return _divided(scores, _turns_divisor(channel.returns(1.0), rules))


def gigpo(channel: Channel, rules: CreditRules) -> Turns:
    """Groups within the group: A[i][t] = (R[i] - mean(R))/F + ω (g[i][t] - mean of g over the turns in the same state)/F'.

    ω is ``step_weight``; F and F' are 1, or with ``std_floor`` the deviations of the group and of the state's group.
    Source: GiGPO, arXiv 2505.10978, eq. 3 (episodes), 5 (discounted returns), 6 (groups of equal states), 7 and 8; R is
    undiscounted there and here. A state is the same if agent and tokens are equal (`CreditRules.state`). Each visit
    counts in a state's mean, as in the paper; the mean of episodes counts rollouts. With ``leave_one_out`` both means are
    over other rollouts. Biased: a turn whose state no other rollout reached gets nothing from the second term, so states
    weigh as they happen to be shared.
    """
    returns = channel.returns(rules.discount)
    totals = [row[0] for row in channel.returns(1.0)]
    baselines = _means(totals, rules.leave_one_out)
    divisor = _divisor(totals, rules.std_floor, rules)
    visits: dict[Hashable, list[tuple[int, float]]] = {}
    for at, (row, states) in enumerate(zip(returns, channel.states, strict=True)):
        for value, state in zip(row, states, strict=True):
            visits.setdefault(state, []).append((at, value))
    scores: Turns = []
    for at, (row, states) in enumerate(zip(returns, channel.states, strict=True)):
        episode = (totals[at] - baselines[at]) / divisor
        scores.append(
            [
                episode + rules.step_weight * _among(visits[state], at, value, rules)
                for value, state in zip(row, states, strict=True)
            ]
        )
    return scores


def flow_grpo(channel: Channel, rules: CreditRules) -> Turns:
    """One outcome for every turn, in units of the group's deviation: A[i][t] = (R[i] - mean(R)) / std(R).

    Source: Flow-GRPO of AgentFlow, arXiv 2510.05592, section 3.2. Its objective averages over rollouts, then over the
    turns of a rollout, then over the tokens of a turn, which is the loss weighting ``turns`` (this scheme's own). R is the
    undiscounted return, the deviation that of the population and never below ``std_floor`` (1e-6 unless given). Biased:
    by the deviation, and by 1/T[i], which makes the turns of long rollouts count less.
    """
    totals = [row[0] for row in channel.returns(1.0)]
    baselines = _means(totals, rules.leave_one_out)
    divisor = _divisor(totals, SMALLEST_DEVIATION if rules.std_floor is None else rules.std_floor, rules)
    return [
        [(total - base) / divisor] * len(row)
        for total, base, row in zip(totals, baselines, channel.rewards, strict=True)
    ]


def gae(channel: Channel, rules: CreditRules) -> Turns:
    """The gain over the critic's values: A[i][t] = Σ_{k≥t} (γλ)^(k-t) δ[i][k], δ[i][t] = r[i][t] + γ V[i][t+1] - V[i][t].

    V[i][t] is the value of turn t's prompt, V[i][T[i]] = 0; λ is ``gae_lambda``; A + V is what the critic learns. Source: GAE,
    Schulman et al. 2016, arXiv 1506.02438, eq. 16; one step is one turn, not one token, as in turn-level PPO
    (arXiv 2512.17008). Needs no group. Unbiased with λ = 1 and γ = 1, whatever the critic says, as long as its values were
    made before these rollouts were learnt from; with λ below 1 biased by as much as the critic is wrong.
    """
    if channel.values is None:
        raise TransitionError("scheme gae has no values", hint="let a critic fill them in: PolicyUpdate.credit")
    scores: Turns = []
    for rewards, values in zip(channel.rewards, channel.values, strict=True):
        row, ahead, following = [0.0] * len(rewards), 0.0, 0.0
        for turn in range(len(rewards) - 1, -1, -1):
            surprise = rewards[turn] + rules.discount * following - values[turn]
            ahead = surprise + rules.discount * rules.gae_lambda * ahead
            row[turn], following = ahead, values[turn]
        scores.append(row)
    return scores


#: The schemes by name.
SCHEMES: dict[str, Scheme] = {
    "identical": identical,
    "return_to_go": return_to_go,
    "step": step,
    "gigpo": gigpo,
    "flow_grpo": flow_grpo,
    "gae": gae,
}


def _mean(values: Sequence[float]) -> float:
    # Equal values have exactly that mean: a group in which all are alike must not learn from rounding.
    first = values[0]
    return first if all(value == first for value in values) else sum(values) / len(values)


def _means(values: Sequence[float], leave_one_out: bool) -> list[float]:
    """For each rollout what it is compared with: the mean of all, or of the others (of one alone: 0)."""
    if not leave_one_out:
        return [_mean(values)] * len(values)
    if len(values) == 1:
        return [0.0]
    return [_mean([*values[:at], *values[at + 1 :]]) for at in range(len(values))]


def _less_baseline(values: Turns, of_rollouts: Sequence[float], alone: Sequence[float], rules: CreditRules) -> Turns:
    """``values`` less the baseline of ``rules``: none, the mean of ``of_rollouts``, or the mean over a turn's rollouts."""
    if rules.baseline == "none":
        return values
    if rules.baseline == "rollout":
        baselines = _means(of_rollouts, rules.leave_one_out)
        return [[value - base for value in row] for row, base in zip(values, baselines, strict=True)]
    return _minus_turn_means(values, alone if rules.leave_one_out else None)


def _minus_turn_means(values: Turns, alone: Sequence[float] | None) -> Turns:
    """``values`` less the mean over the rollouts that reached the turn.

    ``alone`` None: over all of them. Else over the others; where there is none, less ``alone[i]``.
    """
    longest = max(len(row) for row in values)
    reached = [[row[turn] for row in values if len(row) > turn] for turn in range(longest)]
    if alone is None:
        means = [_mean(column) for column in reached]
        return [[value - means[turn] for turn, value in enumerate(row)] for row in values]
    scores: Turns = []
    for at, row in enumerate(values):
        others = [
            [other[turn] for n, other in enumerate(values) if n != at and len(other) > turn] for turn in range(len(row))
        ]
        scores.append(
            [value - (_mean(column) if column else alone[at]) for value, column in zip(row, others, strict=True)]
        )
    return scores


def _among(visits: Sequence[tuple[int, float]], at: int, value: float, rules: CreditRules) -> float:
    """How a turn's return compares with the others in its state; 0 where there is nothing to compare."""
    compared = [seen for visitor, seen in visits if visitor != at or not rules.leave_one_out]
    if len(visits) < 2 or not compared:
        return 0.0
    return (value - _mean(compared)) / _divisor([seen for _, seen in visits], rules.std_floor, rules)


def _divisor(values: Sequence[float], floor: float | None, rules: CreditRules) -> float:
    """The deviation of ``values``, never below ``floor``; 1 where nothing is divided by."""
    if floor is None:
        return 1.0
    mean = _mean(values)
    return max(math.sqrt(sum((value - mean) ** 2 for value in values) / _degrees(len(values), rules)), floor)


def _turns_divisor(values: Turns, rules: CreditRules) -> float:
    """The deviation of ``values`` over the turns of the group, each rollout weighing the same.

    Where only the outcome pays, that of the returns. They may be alike where those from a later turn on are not: AIR is
    taken back when an attempt ends.
    """
    if rules.std_floor is None:
        return 1.0
    mean = _mean([_mean(row) for row in values])
    spreads = [_mean([(value - mean) ** 2 for value in row]) for row in values]
    return max(math.sqrt(sum(spreads) / _degrees(len(values), rules)), rules.std_floor)


def _degrees(rollouts: int, rules: CreditRules) -> int:
    """The number that the squares are divided by."""
    return rollouts - 1 if rules.deviation == "sample" and rollouts > 1 else rollouts


def _divided(scores: Turns, divisor: float) -> Turns:
    return scores if divisor == 1.0 else [[score / divisor for score in row] for row in scores]


def check_known(rules: CreditRules) -> None:
    """Raises `TransitionError` for a name that no scheme has."""
    if isinstance(rules.scheme, str) and rules.scheme not in SCHEMES:
        hint = f"there are {', '.join(SCHEMES)}, and those of plugins (hook lgov_training)"
        raise TransitionError(f"there is no credit scheme {rules.scheme!r}", hint=hint)


def own_scheme(
    scheme: Callable[..., Any], rollouts: Sequence[Sequence[Transition]], rules: CreditRules
) -> list[list[list[float]]]:
    """The advantage of each response token of each turn, by a ``scheme`` of somebody's own.

    Raises `TransitionError` where its answer does not fit the rollouts.
    """
    answer = scheme(rollouts, rules)

    def wrong(what: str) -> TransitionError:
        hint = "a scheme returns a list of rollouts, of a number (or one for each response token) a turn"
        return TransitionError(f"{getattr(scheme, '__name__', scheme)} returned {what}", hint=hint)

    rows = _listed(answer)
    if rows is None or len(rows) != len(rollouts):
        raise wrong(f"{_size(rows, answer)} for {len(rollouts)} rollouts")
    checked: list[list[list[float]]] = []
    for row, rollout in zip(rows, rollouts, strict=True):
        name = rollout[0].rollout_id
        turns = _listed(row)
        if turns is None or len(turns) != len(rollout):
            raise wrong(f"{_size(turns, row)} for the {len(rollout)} turns of rollout {name}")
        credit: list[list[float]] = []
        for value, turn in zip(turns, rollout, strict=True):
            tokens = _listed(value)
            if tokens is None:
                tokens = [value] * len(turn.response_ids)
            elif len(tokens) != len(turn.response_ids):
                raise wrong(f"{len(tokens)} for the {len(turn.response_ids)} tokens of turn {turn.turn} of {name}")
            if not all(map(_is_number, tokens)):
                raise wrong(f"{value!r:.60} for turn {turn.turn} of rollout {name}, which is not a finite number")
            credit.append([float(number) for number in tokens])
        checked.append(credit)
    return checked


def _listed(value: Any) -> list[Any] | None:
    """``value`` as a list if it is a sequence (or an array), else None."""
    if isinstance(value, str | bytes | dict) or not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
        return None
    return list(value)


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _size(listed: list[Any] | None, value: Any) -> str:
    return f"a {type(value).__name__}" if listed is None else f"{len(listed)} values"
