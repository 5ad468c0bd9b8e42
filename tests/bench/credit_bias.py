"""How far each credit scheme is off the true policy gradient, on a problem small enough to be enumerated.

    python -m tests.bench.credit_bias            # a table
    python -m tests.bench.credit_bias --json

An agent sees one of three observations and has two or three actions; a rollout ends after at most three calls. The policy
is a softmax over a table of logits by observation, so that the calls of a rollout share parameters. Rewards are in three
channels, the environment is partly random, actions differ in length, and one observation can come twice. Every group of
rollouts is gone through with its probability, and credited as training would do it; so the expectation of the gradient
estimate is exact, and so is the gradient of the expected return that it is compared with.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lgov_core.transitions import CreditRules, Transition, TransitionSet, assign_credit
from lgov_core.types import Outcome

#: Logits by observation: the policy whose gradient is looked at.
LOGITS = ((0.3, -0.4, 0.1), (0.2, -0.1), (-0.3, 0.4))
#: Per observation and action: the outcomes (probability, next observation or None, rewards) and the length in tokens.
WORLD: tuple[tuple[tuple[tuple[tuple[float, int | None, dict[str, float]], ...], int], ...], ...] = (
    (
        (((1.0, 1, {"air": 0.3}),), 1),
        (((1.0, 2, {"air": -0.2}),), 2),
        (((1.0, None, {"task": 0.4}),), 3),
    ),
    (
        (((1.0, None, {"task": 1.0}),), 2),
        (((1.0, 0, {"compliance": -0.5}),), 1),
    ),
    (
        (((0.3, None, {"task": 1.5}), (0.7, None, {"task": 0.0})), 1),
        (((1.0, 1, {"air": 0.1}),), 1),
    ),
)
MOST_CALLS = 3


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what was seen, what was chosen, what it earned."""

    seen: int
    chosen: int
    rewards: dict[str, float]


@dataclass(frozen=True, slots=True)
class Path:
    """One possible rollout and its probability."""

    calls: tuple[Call, ...]
    probability: float

    @property
    def earned(self) -> float:
        return sum(value for call in self.calls for value in call.rewards.values())


def policy(logits: Sequence[Sequence[float]], seen: int) -> list[float]:
    """The probabilities of the actions."""
    weights = [math.exp(value) for value in logits[seen]]
    return [weight / sum(weights) for weight in weights]


def paths(logits: Sequence[Sequence[float]] = LOGITS) -> list[Path]:
    """Every rollout that can happen."""

    def further(seen: int | None, before: tuple[Call, ...], probability: float) -> Iterator[Path]:
        if seen is None or len(before) == MOST_CALLS:
            yield Path(before, probability)
            return
        for chosen, chance in enumerate(policy(logits, seen)):
            outcomes, _ = WORLD[seen][chosen]
            for odds, following, rewards in outcomes:
                yield from further(following, (*before, Call(seen, chosen, rewards)), probability * chance * odds)

    return list(further(0, (), 1.0))


def flat(table: Sequence[Sequence[float]]) -> list[float]:
    return [value for row in table for value in row]


def score(seen: int, chosen: int) -> list[float]:
    """The gradient of log π(chosen | seen) by all logits."""
    chances = policy(LOGITS, seen)
    return flat(
        [
            [(action == chosen) - chances[action] if row == seen else 0.0 for action in range(len(logits))]
            for row, logits in enumerate(LOGITS)
        ]
    )


def expected_return(logits: Sequence[Sequence[float]]) -> float:
    return math.fsum(path.probability * path.earned for path in paths(logits))


def exact_gradient() -> list[float]:
    """The gradient of the expected return, by going through every rollout (the likelihood ratio)."""
    total = [0.0] * len(flat(LOGITS))
    for path in paths():
        for call in path.calls:
            for at, value in enumerate(score(call.seen, call.chosen)):
                total[at] += path.probability * path.earned * value
    return total


@functools.cache
def transitions_of(path_number: int, rollout: str) -> tuple[Transition, ...]:
    """A rollout as it would come out of a store: the first token of a reply is the choice, the others follow from it."""
    path = paths()[path_number]
    return tuple(
        Transition(
            run_id="run",
            weights_version=0,
            model="table",
            task_id="task",
            rollout_id=rollout,
            attempt=1,
            turn=turn,
            response_id=f"{rollout}-{turn}",
            agent="agent",
            prompt_ids=(100 + call.seen,),
            response_ids=(call.chosen, *([9] * (WORLD[call.seen][call.chosen][1] - 1))),
            response_mask=(1,) * WORLD[call.seen][call.chosen][1],
            logprobs=(
                math.log(policy(LOGITS, call.seen)[call.chosen]),
                *([0.0] * (WORLD[call.seen][call.chosen][1] - 1)),
            ),
            temperature=1.0,
            finish_reason="stop",
            outcome=Outcome.FAILED,
            rewards=call.rewards,
        )
        for turn, call in enumerate(path.calls)
    )


def estimate(group: Sequence[int], rules: CreditRules) -> list[float]:
    """The gradient that a trainer would take from one group: Σ weight x advantage x ∇ log π, over all tokens."""
    data = TransitionSet(tuple(turn for n, path in enumerate(group) for turn in transitions_of(path, f"r{n}")))
    total = [0.0] * len(flat(LOGITS))
    for turn in assign_credit(data, rules).transitions:
        assert turn.advantages is not None
        # Tokens after the first are certain: their log-probability has no gradient.
        factor = turn.loss_weight * turn.advantages[0]
        if factor:
            for at, value in enumerate(score(turn.prompt_ids[0] - 100, turn.response_ids[0])):
                total[at] += factor * value
    return total


def expected_estimate(rules: CreditRules, size: int) -> list[float]:
    """The expectation of `estimate` over every group of ``size`` rollouts."""
    known = paths()
    sums: list[list[float]] = [[] for _ in flat(LOGITS)]
    for group in itertools.combinations_with_replacement(range(len(known)), size):
        # Groups that differ only in order give the same estimate: counted once, as often as they occur.
        orders = math.factorial(size)
        for path in set(group):
            orders //= math.factorial(group.count(path))
        probability = orders * math.prod(known[path].probability for path in group)
        for at, value in enumerate(estimate(group, rules)):
            sums[at].append(probability * value)
    return [math.fsum(values) for values in sums]


def sampled_estimate(rules: CreditRules, size: int, groups: int, seed: int) -> tuple[list[float], list[float]]:
    """Mean and standard error of `estimate` over groups that were drawn."""
    chance, known = random.Random(seed), paths()
    weights = [path.probability for path in known]
    drawn = [estimate(sorted(chance.choices(range(len(known)), weights, k=size)), rules) for _ in range(groups)]
    columns = list(zip(*drawn, strict=True))
    means = [math.fsum(column) / groups for column in columns]
    errors = [
        math.sqrt(math.fsum((value - mean) ** 2 for value in column) / (groups - 1) / groups)
        for column, mean in zip(columns, means, strict=True)
    ]
    return means, errors


@dataclass(frozen=True, slots=True)
class Bias:
    """What a scheme's expected gradient is, as a multiple of the true one, and what part of it points elsewhere.

    ``scale`` is the multiple of the true gradient that comes closest; ``off`` the length of what is left, as a share of
    that multiple: 0 is the right direction.
    """

    scheme: str
    options: str
    loss: str
    group: int
    scale: float
    off: float


def bias(rules: CreditRules, size: int) -> Bias:
    """Measures ``rules`` on groups of ``size`` rollouts."""
    true, expected = exact_gradient(), expected_estimate(rules, size)
    scale = math.fsum(map(float.__mul__, expected, true)) / math.fsum(value * value for value in true)
    left = math.dist(expected, [scale * value for value in true])
    default = asdict(PLAIN)
    changed = {name: value for name, value in asdict(rules).items() if value != default[name]}
    changed.pop("scheme", None)
    changed.pop("loss", None)
    options = ", ".join(f"{name}={value}" for name, value in changed.items())
    return Bias(rules.scheme, options, rules.weighting, size, scale, left / abs(scale * math.hypot(*true)))


#: Rewards as they are: no bound on AIR, which would be another objective.
PLAIN = CreditRules(air_cap=None, loss="rollouts")
#: Unbiased: the expectation is the gradient itself.
UNBIASED = (
    replace(PLAIN, scheme="identical", leave_one_out=True),
    replace(PLAIN, scheme="return_to_go", leave_one_out=True),
    replace(PLAIN, scheme="return_to_go", leave_one_out=True, baseline="rollout"),
    replace(PLAIN, scheme="identical", baseline="none"),
    replace(PLAIN, scheme="return_to_go", baseline="none"),
)
#: Unbiased up to the factor (G-1)/G: the direction is right.
SHRUNK = (
    replace(PLAIN, scheme="identical"),
    replace(PLAIN, scheme="return_to_go", baseline="rollout"),
)
#: Biased, and documented as such.
BIASED = (
    replace(PLAIN, scheme="return_to_go"),
    replace(PLAIN, scheme="return_to_go", leave_one_out=True, discount=0.9),
    replace(PLAIN, scheme="return_to_go", leave_one_out=True, loss="tokens"),
    replace(PLAIN, scheme="return_to_go", leave_one_out=True, loss="rollout_tokens"),
    replace(PLAIN, scheme="return_to_go", leave_one_out=True, std_floor=0.1),
    replace(PLAIN, scheme="identical", std_floor=0.1, apart=False),
    replace(PLAIN, scheme="identical", std_floor=0.1),
    replace(PLAIN, scheme="step"),
    replace(PLAIN, scheme="step", leave_one_out=True),
    replace(PLAIN, scheme="gigpo"),
    replace(PLAIN, scheme="gigpo", leave_one_out=True),
    replace(PLAIN, scheme="flow_grpo", loss=None),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table, or with ``--json`` the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--group", type=int, default=2, help="rollouts in a group (2 or 3)")
    options = parser.parse_args(arguments)
    kinds = (("unbiased", UNBIASED), ("up to (G-1)/G", SHRUNK), ("biased", BIASED))
    found: list[dict[str, Any]] = [
        {"claim": claim, **asdict(bias(rules, options.group))} for claim, many in kinds for rules in many
    ]
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        return
    print(f"{'scheme':<13} {'options':<44} {'loss':<15} {'claim':<14} {'scale':>7} {'off':>9}")
    for row in found:
        print(
            f"{row['scheme']:<13} {row['options']:<44} {row['loss']:<15} {row['claim']:<14}"
            f" {row['scale']:>7.3f} {row['off']:>9.1e}"
        )


if __name__ == "__main__":
    main()
