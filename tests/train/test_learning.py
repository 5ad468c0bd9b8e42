"""Every algorithm finds the best policy of two small problems, by the real credit and the real update."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')

from tabular import BANDIT, TWO_TURNS, Problem, Table  # noqa: E402

from lgov_core.train.algorithms.algorithms import ALGORITHMS, algorithm  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.layout.rows import make_rows  # noqa: E402
from lgov_core.transitions import TransitionSet  # noqa: E402

TASKS, GROUP = 4, 8


def learn(name: str, problem: Problem, seed: int, *, updates: int = 24, **settings: Any) -> Table:
    """The policy after ``updates`` updates on ``TASKS`` groups of ``GROUP`` rollouts each."""
    torch.set_num_threads(1)
    chosen = algorithm(name, **{"learning_rate": 0.2, "seed": seed, **settings})
    table = Table()
    reference = copy.deepcopy(table).requires_grad_(False) if chosen.update.kl else None
    learner = PolicyUpdate(table, chosen.update, reference=reference)
    generator = torch.Generator().manual_seed(seed)
    for number in range(updates):
        names = {f"{number}-{task}-{one}": f"{number}-{task}" for task in range(TASKS) for one in range(GROUP)}
        found = problem.rollouts(table, names, generator)
        data = learner.credit(TransitionSet(tuple(found)), chosen.credit)
        learner.update(make_rows(data.transitions))
    return table


@pytest.mark.parametrize("problem", [BANDIT, TWO_TURNS], ids=lambda problem: problem.name)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_comes_within_five_percent_of_the_best_policy(name: str, problem: Problem) -> None:
    before = problem.value(Table())
    assert before < 0.5 * problem.best
    # RLOO makes one step of an update where the others make two.
    updates = 40 if name == "rloo" else 24
    reached = [problem.value(learn(name, problem, seed, updates=updates)) for seed in range(5)]
    assert min(reached) > 0.95 * problem.best, reached


def test_what_an_act_leads_to_is_learnt_only_where_it_is_credited() -> None:
    # The credit of each turn's own reward sees only that giving up pays at once: the tests above would notice.
    greedy = learn("grpo", TWO_TURNS, 0, scheme="step")
    assert TWO_TURNS.value(greedy) < 0.75 * TWO_TURNS.best


def test_a_penalty_that_is_always_paid_drowns_nothing() -> None:
    # Without any difference between acts, nothing is learnt: every group is alike.
    table = learn("dapo", Problem("flat", BANDIT.first, lambda prompt, act: (-100.0, None), best=-100.0), 0, updates=3)
    assert torch.equal(table.head.weight, Table().head.weight)
