"""The update against the formula written out by hand, and the settings that are known to collapse."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')
transformers = pytest.importorskip("transformers", reason='needs the extra "train"')

from lgov_core.errors import TrainError, TransitionError  # noqa: E402
from lgov_core.train.algorithms.algorithms import UpdateConfig  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.layout.rows import TrainRow, make_rows  # noqa: E402
from lgov_core.train.loop.policy_model import full_policy, lora_policy  # noqa: E402
from lgov_core.transitions import CreditRules, Transition, TransitionSet, assign_credit  # noqa: E402
from lgov_core.types import Outcome  # noqa: E402

VOCABULARY = 32


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def small_model(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config).eval()


def transition(rollout: str, turn: int, prompt: list[int], reply: list[int], **changes: Any) -> Transition:
    made = Transition(
        run_id="run",
        weights_version=0,
        model="m",
        task_id="t",
        rollout_id=rollout,
        attempt=1,
        turn=turn,
        response_id=f"{rollout}-{turn}",
        agent=None,
        prompt_ids=tuple(prompt),
        response_ids=tuple(reply),
        response_mask=(1,) * len(reply),
        logprobs=(-1.0,) * len(reply),
        temperature=1.0,
        finish_reason="stop",
        outcome=Outcome.FAILED,
        rewards={"task": 0.0},
    )
    return replace(made, **changes)


def credited(rollout: str, turn: int, prompt: list[int], reply: list[int], advantage: float) -> Transition:
    return transition(
        rollout, turn, prompt, reply, advantages=(advantage,) * len(reply), loss_weight=0.125, value_to_go=0.0
    )


def chain() -> list[Transition]:
    """A rollout of two turns whose tokens extend one another, and one of a turn with another context."""
    return [
        credited("a", 0, [1, 2, 3], [4, 5], 0.7),
        credited("a", 1, [1, 2, 3, 4, 5, 6, 7], [8, 9, 10], -0.4),
        credited("b", 0, [1, 2, 9], [4, 6, 2], 0.3),
    ]


def one_row_each(transitions: list[Transition]) -> list[TrainRow]:
    return [row for one in transitions for row in make_rows([replace(one, rollout_id=one.response_id)])]


def test_calls_that_extend_one_another_share_a_row_and_keep_their_own_credit() -> None:
    rows = make_rows(chain())
    assert [row.ids for row in rows] == [(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (1, 2, 9, 4, 6, 2)]
    assert rows[0].mask == (0, 0, 0, 1, 1, 0, 0, 1, 1, 1)
    assert rows[0].advantages == (0, 0, 0, 0.7, 0.7, 0, 0, -0.4, -0.4, -0.4)
    with pytest.raises(TransitionError, match="no credit"):
        make_rows([transition("a", 0, [1], [2])])


def test_loss_and_gradient_are_those_of_the_formula_with_one_row_per_call() -> None:
    config = UpdateConfig(epochs=1, kl=0.1, max_grad_norm=1e9, learning_rate=1e-9)
    reference = small_model(seed=1)
    expected_model = small_model()
    total = torch.zeros(())
    for call in chain():
        ids = torch.tensor([[*call.prompt_ids, *call.response_ids]])
        start = len(call.prompt_ids)
        now = expected_model(ids).logits[0].log_softmax(-1)
        with torch.no_grad():
            then = reference(ids).logits[0].log_softmax(-1)
        for offset, token in enumerate(call.response_ids):
            here = now[start + offset - 1, token]
            ratio = (here - call.logprobs[offset]).exp()
            assert call.advantages is not None
            advantage = call.advantages[offset]
            clipped = ratio.clamp(0.8, 1.28)
            gap = then[start + offset - 1, token] - here
            total = total - call.loss_weight * torch.min(ratio * advantage, clipped * advantage)
            total = total + call.loss_weight * 0.1 * (gap.exp() - gap - 1)
    total.backward()
    expected = torch.nn.utils.get_total_norm([p.grad for p in expected_model.parameters() if p.grad is not None])
    for rows in (make_rows(chain()), one_row_each(chain())):
        subject = PolicyUpdate(small_model(), config, reference=reference)
        metrics = subject.update(rows)
        assert metrics.loss == pytest.approx(float(total.detach()), rel=1e-5)
        assert metrics.grad_norm == pytest.approx(float(expected), rel=1e-5)
        assert metrics.tokens == 8


def test_rows_without_any_advantage_cost_nothing() -> None:
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    metrics = PolicyUpdate(model, UpdateConfig(kl=0)).update(make_rows([credited("a", 0, [1], [2], 0.0)]))
    assert metrics.rows == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_update_that_is_not_finite_is_refused_and_changes_nothing() -> None:
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = make_rows([credited("a", 0, [1, 2], [3, 4], math.inf)])
    with pytest.raises(TrainError, match="not finite"):
        PolicyUpdate(model, UpdateConfig(kl=0)).update(rows)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_kl_needs_a_reference() -> None:
    with pytest.raises(TrainError, match="reference"):
        PolicyUpdate(small_model(), UpdateConfig(kl=0.1))


def test_merged_adapters_compute_what_the_adapters_compute() -> None:
    base = small_model()
    policy = lora_policy(base, rank=4)
    optimizer = torch.optim.SGD([p for p in policy.module.parameters() if p.requires_grad], lr=5.0)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    for _ in range(3):  # the first step moves B, only then does A have a gradient
        optimizer.zero_grad()
        policy.module(ids).logits.square().mean().backward()
        optimizer.step()
    served = small_model()
    missing = served.load_state_dict(policy.served(), strict=False)
    assert missing.unexpected_keys == []
    with torch.no_grad():
        assert torch.allclose(served(ids).logits, policy.module(ids).logits, atol=1e-5)
        assert not torch.allclose(base(ids).logits, policy.module(ids).logits, atol=1e-3)
        with policy.reference_mode():  # type: ignore[misc]
            assert torch.allclose(base(ids).logits, policy.module(ids).logits, atol=1e-6)


# ------------------------------------------------------------------ learning, and what makes it collapse


def bandit(
    config: UpdateConfig, rules: CreditRules, *, task: bool, steps: int = 40, seed: int = 0
) -> tuple[float, float]:
    """Trains on a one-token task: token 7 earns 1 (if ``task``), every token earns noise of ±0.05 (AIR).

    Returns the probability of token 7 and the entropy in nats at the end.
    """
    chance = random.Random(seed)
    policy = full_policy(small_model(seed))
    learner = PolicyUpdate(policy.module, config, reference=policy.reference if config.kl else None)
    prompt = torch.tensor([[1, 2]])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        with torch.no_grad():
            logprobs = policy.module(prompt).logits[0, -1].log_softmax(-1)
        found: list[Transition] = []
        for group in range(4):
            tokens = torch.multinomial(logprobs.exp(), 8, replacement=True, generator=generator).tolist()
            for number, token in enumerate(tokens):
                rewards = {"task": float(task and token == 7), "air": chance.choice((-0.05, 0.05))}
                found.append(
                    transition(
                        f"{group}-{number}",
                        0,
                        [1, 2],
                        [token],
                        task_id=f"t{group}",
                        logprobs=(float(logprobs[token]),),
                        rewards=rewards,
                    )
                )
        learner.update(make_rows(assign_credit(TransitionSet(tuple(found)), rules).transitions))
    with torch.no_grad():
        final = policy.module(prompt).logits[0, -1].log_softmax(-1)
    return float(final[7].exp()), float(-(final.exp() * final).sum())


def test_the_defaults_learn_the_task_through_the_noise() -> None:
    solved, _ = bandit(replace(UpdateConfig(), learning_rate=3e-3), CreditRules(), task=True)
    assert solved > 0.8


@pytest.mark.parametrize(
    ("config", "rules"),
    [
        pytest.param(UpdateConfig(), CreditRules(std_floor=1e-4, air_cap=None), id="divided by a tiny deviation"),
        pytest.param(UpdateConfig(kl=0.0), CreditRules(air_cap=None), id="no KL to the reference"),
        pytest.param(UpdateConfig(kl=0.0), CreditRules(std_floor=1e-4, air_cap=None), id="both"),
    ],
)
def test_settings_that_collapse_on_noise_where_the_defaults_hold(config: UpdateConfig, rules: CreditRules) -> None:
    # Nothing but AIR noise to learn from, which must be asked for, at a rate that makes the difference show within 60 updates.
    uniform = math.log(VOCABULARY)
    _, held = bandit(replace(UpdateConfig(), learning_rate=1e-2), CreditRules(air_cap=None), task=False, steps=60)
    _, collapsed = bandit(replace(config, learning_rate=1e-2), rules, task=False, steps=60)
    assert held > 0.9 * uniform
    assert collapsed < 0.7 * uniform
