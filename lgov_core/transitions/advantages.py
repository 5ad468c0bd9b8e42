"""Credit: what each turn's tokens are worth. Pure functions of transitions; a trainer only executes the result."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from lgov_core.errors import TransitionError
from lgov_core.transitions.schemes import (
    SCHEMES,
    SMALLEST_DEVIATION,
    Channel,
    Scheme,
    Turns,
    check_known,
    own_scheme,
    returns_to_go,
    step,
)
from lgov_core.transitions.transition_set import (
    INTERMEDIATE,
    DataFinding,
    Diagnostic,
    TransitionSet,
    alternatives_of,
    by_rollout,
    line_of,
)
from lgov_core.types import CreditRules, Transition

Rollouts: TypeAlias = Sequence[Sequence[Transition]]
#: By rollout and turn: the credit, and the advantage of each response token.
Scores: TypeAlias = list[list[tuple[float, tuple[float, ...]]]]
#: Added to the batch's variance, as verl does: a batch that is all but equal is not blown up without bound.
_SMALLEST_VARIANCE = 1e-8
#: An advantage up to this is what sums of the same rewards in another order differ by.
_ROUNDING = 1e-9


def assign_credit(data: TransitionSet, rules: CreditRules | None = None) -> TransitionSet:
    """Fills ``value_to_go``, ``credit``, ``advantages`` and ``loss_weight`` of every transition.

    Credit is that of each rollout's line. A choice that the attempt set aside is worth what the rewards that name it say,
    less the mean over the choices of its reply that rewards name (scheme ``step``, as if each were a rollout of its own);
    where they name fewer than two, 0. Groups are compared per rollout, never per row: a long rollout does not weigh more
    in the mean than a short one. A group with fewer than ``min_group`` rollouts gets advantages of 0 and a diagnostic, for
    there is nothing to compare; so does one in which all rollouts are alike (``normalise_batch`` then shifts those as it
    does all others). Rollouts that differ in ``air`` alone are alike, unless nothing else was earned at all or ``air_cap``
    is None. Tokens whose mask is 0 get an advantage of 0. The loss weights of a rollout's tokens do not change when it is
    split into more transitions (for ``turns``: their sum does not).

    A bounded channel is divided by no deviation, which would undo its bound: its credit is added to what was normalised.

    Raises `TransitionError` for an unknown scheme, for one that answers with what does not fit (naming it), and for a
    reward that is not finite: nothing is filled in.
    """
    rules = rules or CreditRules()
    check_known(rules)  # also where no group is compared
    diagnostics = list(data.diagnostics)
    others = {name for turn in data.transitions for name in turn.rewards} - {INTERMEDIATE}
    telling = others if others and rules.compares_groups and rules.air_cap is not None else None
    scored = [
        rollout
        for task, rollouts in data.groups().items()
        for rollout in _score_group(task, rollouts, rules, telling, diagnostics)
    ]
    counted = sum(rollout.counted for rollout in scored)
    tokens = sum(_tokens(rollout.turns) for rollout in scored if rollout.counted)
    normal = _batch_normal(scored, rules) if rules.normalise_batch else None
    filled = [turn for rollout in scored for turn in _filled(rollout, rules, normal, max(counted, 1), tokens)]
    return TransitionSet(tuple(filled), tuple(diagnostics), data.unassigned)


@dataclass(frozen=True, slots=True)
class _ScoredRollout:
    """A rollout with the return of each turn, and its credit and advantages: ``bounded`` is what nothing divides.

    ``compared``: with others of its task; ``counted``: among the rollouts over which the loss is a mean.
    """

    turns: Sequence[Transition]
    returns: Sequence[float]
    scores: Sequence[tuple[float, tuple[float, ...]]]
    bounded: Sequence[tuple[float, tuple[float, ...]]]
    compared: bool
    counted: bool


def _score_group(
    task: str,
    rollouts: Sequence[list[Transition]],
    rules: CreditRules,
    telling: Collection[str] | None,
    diagnostics: list[Diagnostic],
) -> list[_ScoredRollout]:
    """Compares the rollouts of one task. ``telling`` are the channels that can tell them apart; None: all."""
    lines = [line for rollout in rollouts if (line := line_of(rollout))]
    compared = len(lines) >= rules.min_group
    returns: list[list[float]] = []
    for rollout in rollouts:
        own = iter(_returns(line_of(rollout), rules))  # of what was set aside, what it earned itself
        returns.append([_returns([turn], rules)[0] if turn.set_aside else next(own) for turn in rollout])
    scores = bounded = _spread([[0.0] * len(rollout) for rollout in rollouts], rollouts)
    equal = not compared or not any(
        abs(value) > _ROUNDING
        for rollout in _scores(_with_channels(rollouts, telling), rules)
        for _, tokens in rollout
        for value in tokens
    )
    if not equal:
        divided, others = _by_division(rollouts, rules)
        scores = _scores(divided, rules)
        if others:
            bounded = _scores(others, _undivided(rules))
    else:
        finding = DataFinding.EQUAL_GROUP if compared else DataFinding.SMALL_GROUP
        diagnostics.append(Diagnostic(finding, task, f"{len(lines)} rollouts"))
    counted = not (equal and rules.skip_equal)
    return [_ScoredRollout(*row, compared, counted) for row in zip(rollouts, returns, scores, bounded, strict=True)]


def _with_channels(rollouts: Rollouts, names: Collection[str] | None, value: float | None = None) -> Rollouts:
    """The rollouts with the rewards of some channels alone (None: of all), and with ``value`` for the critic's if given."""
    if names is None:
        return rollouts
    return [
        [
            replace(
                turn,
                rewards={name: reward for name, reward in turn.rewards.items() if name in names},
                value=turn.value if value is None else value,
            )
            for turn in rollout
        ]
        for rollout in rollouts
    ]


def _by_division(rollouts: Rollouts, rules: CreditRules) -> tuple[Rollouts, Rollouts | None]:
    """The rollouts with what a deviation divides, and with what it must not: the channels with a bound; None for neither."""
    if rules.scheme not in SCHEMES or not (rules.normalises or rules.normalise_batch):
        return rollouts, None
    names = {name for rollout in rollouts for turn in rollout for name in turn.rewards}
    bounded = names & rules.bounds.keys()
    # The critic learns what the rest is worth, and expects nothing of these.
    return (
        (_with_channels(rollouts, names - bounded), _with_channels(rollouts, bounded, 0.0))
        if bounded
        else (rollouts, None)
    )


def _undivided(rules: CreditRules) -> CreditRules:
    """``rules`` without a division: those of flow_grpo are ``identical`` with its own baseline and discount."""
    if rules.scheme == "flow_grpo":
        rules = replace(rules, scheme="identical", discount=1.0, baseline="rollout")
    return replace(rules, std_floor=None)


def _filled(
    rollout: _ScoredRollout, rules: CreditRules, normal: tuple[float, float, float] | None, rollouts: int, tokens: int
) -> Iterator[Transition]:
    """The turns with what they are worth; ``normal`` is what the batch's advantages are normalised by, if they are."""
    weights = _loss_weights(rollout.turns, rules, rollouts, tokens)
    for turn, value, (credit, advantages), (added, added_tokens), weight in zip(
        rollout.turns, rollout.returns, rollout.scores, rollout.bounded, weights, strict=True
    ):
        if rules.scheme == "gae" and turn.value is not None:
            # What the critic should have said: it learns from the advantage as it was before the batch's normalisation,
            # and nothing from what was set aside.
            value = turn.value if turn.set_aside else credit + turn.value
        if normal is not None and rollout.compared:
            mean, deviation, mean_added = normal
            middle, middle_added = (0.0, 0.0) if turn.set_aside else (mean, mean_added)
            credit = (credit - middle) / deviation - middle_added if any(turn.response_mask) else 0.0
            advantages = tuple(
                (advantage - middle) / deviation - middle_added if kept else 0.0
                for advantage, kept in zip(advantages, turn.response_mask, strict=True)
            )
        if added:
            credit, advantages = credit + added, tuple(map(operator.add, advantages, added_tokens))
        yield replace(turn, value_to_go=value, credit=credit, advantages=advantages, loss_weight=weight)


def rollout_returns(
    transitions: Sequence[Transition], rules: CreditRules | None = None
) -> dict[tuple[str, int], float]:
    """The undiscounted return of each (rollout, attempt) along its line, with the bounds of the channels applied."""
    rules = replace(rules or CreditRules(), discount=1.0, scheme="return_to_go")
    lines = {key: line_of(rollout) for key, rollout in by_rollout(transitions).items()}
    return {key: _returns(line, rules)[0] for key, line in lines.items() if line}


def _scores(rollouts: Rollouts, rules: CreditRules) -> Scores:
    """The credit of each turn, and the advantage of each of its tokens; of choices that were set aside too."""
    lines = [line for rollout in rollouts if (line := line_of(rollout))]
    return _with_set_aside(rollouts, _line_scores(lines, rules), rules)


def _line_scores(rollouts: Rollouts, rules: CreditRules) -> Scores:
    if isinstance(rules.scheme, str):
        try:
            credit = _credit(rollouts, rules, SCHEMES[rules.scheme])
        except OverflowError:
            credit = [[math.inf]]
        if not all(math.isfinite(value) for row in credit for value in row):
            raise TransitionError(
                f"the rewards of task {rollouts[0][0].task_id} are too large to be compared",
                hint="a difference or a deviation of them is not finite; look for the rule that made them",
            )
        return _spread(credit, rollouts)
    scores: Scores = []
    for answered, rollout in zip(own_scheme(rules.scheme, rollouts, rules), rollouts, strict=True):
        scores.append([])
        for tokens, turn in zip(answered, rollout, strict=True):
            kept = [value for value, mask in zip(tokens, turn.response_mask, strict=True) if mask]
            masked = tuple(value * mask for value, mask in zip(tokens, turn.response_mask, strict=True))
            scores[-1].append((sum(kept) / len(kept) if kept else 0.0, masked))
    return scores


def _with_set_aside(rollouts: Rollouts, scores: Scores, rules: CreditRules) -> Scores:
    """``scores``, which are of the rollouts' lines, with those of the choices that were set aside, in order of turns."""
    if rules.normalises and rules.std_floor is None:
        rules = replace(rules, std_floor=SMALLEST_DEVIATION)  # flow_grpo's own, so that all credit is in deviations
    lines = iter(scores)
    merged: Scores = []
    for rollout in rollouts:
        line = iter(next(lines) if line_of(rollout) else ())
        beside: dict[tuple[str, int], float] = {}
        for choices in alternatives_of(rollout):
            if len(choices) > 1:
                credit = _credit([[choice] for choice in choices], rules, step)
                beside |= {
                    (choice.response_id, choice.choice): row[0] for choice, row in zip(choices, credit, strict=True)
                }
        merged.append(
            [
                _on_tokens(beside.get((turn.response_id, turn.choice), 0.0), turn) if turn.set_aside else next(line)
                for turn in rollout
            ]
        )
    return merged


def _on_tokens(value: float, turn: Transition) -> tuple[float, tuple[float, ...]]:
    return value, tuple(value * mask for mask in turn.response_mask)


def _spread(credit: Turns, rollouts: Rollouts) -> Scores:
    """Each turn's credit on all of its tokens; 0 where the mask is 0."""
    return [
        [_on_tokens(value, turn) for value, turn in zip(values, rollout, strict=True)]
        for values, rollout in zip(credit, rollouts, strict=True)
    ]


def _credit(rollouts: Rollouts, rules: CreditRules, scheme: Scheme) -> Turns:
    """The credit of each turn, over all channels."""
    states = [_states(rollout, rules) for rollout in rollouts]
    scales = [_scales(rollout, rules) for rollout in rollouts]
    if not (rules.normalises and rules.apart):
        # Without a deviation to divide by every scheme is linear: the sum of the credits is the credit of the sum.
        rewards = [
            _rewards(rollout, scale, rules.channel_weights) for rollout, scale in zip(rollouts, scales, strict=True)
        ]
        values = [[turn.value for turn in rollout if turn.value is not None] for rollout in rollouts]
        # Where the critic missed a turn it counts for none.
        critic = values if list(map(len, values)) == list(map(len, rollouts)) else None
        return scheme(Channel(rewards, states, critic), rules)
    total = [[0.0] * len(rollout) for rollout in rollouts]
    names = sorted({name for rollout in rollouts for turn in rollout for name in turn.rewards})
    for name in names:
        rewards = [
            [turn.rewards.get(name, 0.0) * scale.get(name, 1.0) for turn in rollout]
            for rollout, scale in zip(rollouts, scales, strict=True)
        ]
        weight = rules.channel_weights.get(name, 1.0)
        for row, credit in zip(total, scheme(Channel(rewards, states), rules), strict=True):
            for turn, value in enumerate(credit):
                row[turn] += weight * value
    return total


def _returns(rollout: Sequence[Transition], rules: CreditRules) -> list[float]:
    """The return of each turn: from it on, or the whole return for the schemes that give every turn the same."""
    discount = 1.0 if rules.scheme == "flow_grpo" else rules.discount  # its returns are undiscounted
    values = returns_to_go(_rewards(rollout, _scales(rollout, rules)), discount)
    if not all(map(math.isfinite, values)):
        raise TransitionError(
            f"rollout {rollout[0].rollout_id} earned {values[0]}, which is not a finite number",
            hint="a reward must be finite; look for the rule that made it",
        )
    return values[:1] * len(values) if rules.scheme in ("identical", "flow_grpo") else values


def _scales(rollout: Sequence[Transition], rules: CreditRules) -> dict[str, float]:
    """By what each bounded channel is scaled so that its absolute sum over the rollout stays within its bound."""
    return {
        name: bound / total
        for name, bound in rules.bounds.items()
        if (total := sum(abs(transition.rewards.get(name, 0.0)) for transition in rollout)) > bound
    }


def _rewards(
    rollout: Sequence[Transition], scales: Mapping[str, float], weights: Mapping[str, float] | None = None
) -> list[float]:
    """Each turn's reward over all channels, within their bounds and weighted."""
    weights = weights or {}
    return [
        sum(value * scales.get(name, 1.0) * weights.get(name, 1.0) for name, value in turn.rewards.items())
        for turn in rollout
    ]


def _states(rollout: Sequence[Transition], rules: CreditRules) -> list[Hashable]:
    """The state that each turn began in: agent and exact tokens, no digest, so that no two states are taken for one."""
    if rules.scheme != "gigpo":
        return [None] * len(rollout)
    states: list[Hashable] = []
    before: tuple[int, ...] = ()
    for turn in rollout:
        seen = turn.prompt_ids
        if rules.state == "observation" and before and seen[: len(before)] == before:
            seen = seen[len(before) :]
        states.append((turn.agent, seen))
        before = (*turn.prompt_ids, *turn.response_ids)
    return states


def _batch_normal(scored: Sequence[_ScoredRollout], rules: CreditRules) -> tuple[float, float, float]:
    """Mean and deviation of the advantages of all trained tokens (of a sample, as in verl), and the mean of what is added.

    What was set aside is compared with its own alternatives only, and is not part of the mean. Where groups are compared
    what is added has lost its mean already.
    """
    rows = [
        (value, added)
        for rollout in scored
        if rollout.compared
        for turn, (_, tokens), (_, more) in zip(rollout.turns, rollout.scores, rollout.bounded, strict=True)
        if not turn.set_aside
        for value, added, kept in zip(tokens, more, turn.response_mask, strict=True)
        if kept
    ]
    values = [value for value, _ in rows]
    mean_added = 0.0 if rules.compares_groups or not rows else math.fsum(added for _, added in rows) / len(rows)
    if len(values) < 2 or all(value == values[0] for value in values):
        # Nothing to compare: all are the mean.
        return values[0] if values else 0.0, 1.0, mean_added
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(variance + _SMALLEST_VARIANCE), mean_added


def _loss_weights(rollout: Sequence[Transition], rules: CreditRules, rollouts: int, tokens: int) -> list[float]:
    """The loss weight of each turn by `CreditRules.loss`; ``rollouts`` and ``tokens`` are those that count."""
    if rules.weighting == "tokens":
        counts = [tokens] * len(rollout)
    elif rules.weighting == "rollouts":
        counts = [rollouts] * len(rollout)
    elif rules.weighting == "rollout_tokens":
        counts = [rollouts * _tokens(rollout)] * len(rollout)
    else:
        turns = sum(any(turn.response_mask) for turn in rollout)
        counts = [rollouts * turns * sum(turn.response_mask) for turn in rollout]
    return [1.0 / count / rules.loss_length if count else 0.0 for count in counts]


def _tokens(rollout: Sequence[Transition]) -> int:
    """How many tokens of a rollout are trained on."""
    return sum(sum(turn.response_mask) for turn in rollout)


def penalise_length(
    data: TransitionSet, *, limit: int, margin: int, weight: float = 1.0, channel: str = "length"
) -> TransitionSet:
    """Adds to each transition of R response tokens a reward in ``channel``: ``weight`` times

        0 for R ≤ limit - margin;   (limit - margin - R) / margin up to R = limit;   -1 beyond.

    So a reply is not paid for being cut off, and gets a warning before it is. Source: DAPO's soft overlong punishment, Yu et
    al. 2025, arXiv 2503.14476, eq. 13. Call it before `assign_credit`. Raises `TransitionError` unless 0 < margin ≤ limit, and
    where a transition has that channel already.
    """
    if not 0 < margin <= limit:
        raise TransitionError(f"limit is {limit} and margin {margin}", hint="margin is above 0 and at most limit")
    transitions = []
    for transition in data.transitions:
        if channel in transition.rewards:
            raise TransitionError(
                f"transition {transition.response_id} has a reward {channel!r} already", hint="name another"
            )
        penalty = max(-1.0, min(0.0, (limit - margin - len(transition.response_ids)) / margin))
        if penalty:
            added = {channel: weight * penalty}
            own = None if transition.own_rewards is None else {**transition.own_rewards, **added}
            transition = replace(transition, rewards={**transition.rewards, **added}, own_rewards=own)
        transitions.append(transition)
    return replace(data, transitions=tuple(transitions))
