"""Advantages, losses and gradients are those of verl's ``core_algos``, to 1e-5; where verl has none, those of the formula.

``reference_verl.json`` holds what verl said (`verl_reference.py` makes it). Where verl is installed it is asked again.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')
pytest.importorskip("numpy", reason='needs the extra "train"')

import verl_reference as reference  # noqa: E402

from lgov_core.train.algorithms import losses  # noqa: E402
from lgov_core.train.algorithms.algorithms import (  # noqa: E402
    ALGORITHMS,
    REINFORCEMENT,
    UpdateConfig,
    algorithm,
)
from lgov_core.transitions import CreditRules, Transition, TransitionSet, assign_credit  # noqa: E402
from lgov_core.types import Outcome  # noqa: E402

KNOWN: dict[str, Any] = json.loads((Path(__file__).parent / "reference_verl.json").read_text())
GIVEN: dict[str, Any] = KNOWN["inputs"]
SAID: dict[str, Any] = KNOWN["outputs"]
LENGTHS: list[int] = GIVEN["lengths"]


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-5, abs=1e-5)


def turn(rollout: int, number: int, tokens: int, rewards: dict[str, float], value: float | None = None) -> Transition:
    return Transition(
        run_id="run",
        weights_version=0,
        model="m",
        task_id=GIVEN["groups"][rollout],
        rollout_id=f"r{rollout}",
        attempt=1,
        turn=number,
        response_id=f"r{rollout}-{number}",
        agent=None,
        prompt_ids=(1, number),
        response_ids=(2,) * tokens,
        response_mask=(1,) * tokens,
        logprobs=(-1.0,) * tokens,
        temperature=1.0,
        finish_reason="stop",
        outcome=Outcome.SUCCEEDED,
        rewards=rewards,
        value=value,
    )


def replies() -> TransitionSet:
    """A rollout is one reply, with a reward in two channels."""
    return TransitionSet(
        tuple(
            turn(one, 0, LENGTHS[one], {"task": GIVEN["task"][one], "air": GIVEN["air"][one]})
            for one in range(reference.ROLLOUTS)
        )
    )


def rules(name: str) -> CreditRules:
    """The algorithm's own rules, without the bound on AIR that verl has not."""
    if name == "reinforce++ with a group's mean":
        return algorithm("reinforce++", baseline="turn", min_group=2, air_cap=None).credit
    if name == "gdpo":
        return algorithm(name, air_cap=None, channel_weights={"air": 0.5}).credit
    return algorithm(name, air_cap=None).credit


def test_every_algorithm_of_the_table_is_there() -> None:
    assert list(ALGORITHMS) == list(REINFORCEMENT)
    for name in ALGORITHMS:
        assert algorithm(name).name == name
        document = ALGORITHMS[name].__doc__ or ""
        assert "Source" in document, name
        assert "iased" in document, name


@pytest.mark.parametrize("name", [name for name in SAID["advantages"] if name != "gae"])
def test_advantages_of_groups_are_verls(name: str) -> None:
    found = assign_credit(replies(), rules(name)).transitions
    for one, expected in zip(found, SAID["advantages"][name], strict=True):
        assert one.advantages is not None
        assert list(one.advantages) == close(expected[: len(one.advantages)])


@pytest.mark.parametrize("name", ["dapo", "gspo", "cispo"])
def test_advantages_of_those_that_take_grpos_are_grpos(name: str) -> None:
    found = assign_credit(replies(), rules(name)).transitions
    assert [one.credit for one in found] == [close(expected[0]) for expected in SAID["advantages"]["grpo"]]


def test_a_critics_advantages_and_targets_are_verls_with_a_turn_for_a_token() -> None:
    data = TransitionSet(
        tuple(
            turn(one, at, 1, {"task": GIVEN["rewards"][one][at]}, GIVEN["values"][one][at])
            for one in range(reference.ROLLOUTS)
            for at in range(LENGTHS[one])
        )
    )
    chosen = algorithm("ppo", discount=reference.DISCOUNT, gae_lambda=reference.LAMBDA).credit
    for one in assign_credit(data, chosen).transitions:
        place = int(one.rollout_id[1:]), one.turn
        assert one.credit == close(SAID["advantages"]["gae"][place[0]][place[1]])
        assert one.value_to_go == close(SAID["gae returns"][place[0]][place[1]])


def flat(name: str) -> torch.Tensor:
    rows = GIVEN[name]
    return torch.tensor([value for row, length in zip(rows, LENGTHS, strict=True) for value in row[:length]])


def sequences() -> torch.Tensor:
    return torch.tensor([number for number, length in enumerate(LENGTHS) for _ in range(length)])


FORMS = {
    "clip": UpdateConfig(loss="clip", clip_low=reference.LOW, clip_high=reference.HIGH, dual_clip=reference.DUAL),
    "sequence": UpdateConfig(loss="sequence", clip_low=reference.SEQUENCE_LOW, clip_high=reference.SEQUENCE_HIGH),
    "cispo": UpdateConfig(loss="cispo", clip_low=reference.LOW, clip_high=reference.HIGH),
    "plain": UpdateConfig(loss="plain"),
}
#: verl's ways to aggregate, as loss weights.
WEIGHTS = {
    "token-mean": CreditRules(loss="tokens"),
    "seq-mean-token-sum": CreditRules(loss="rollouts"),
    "seq-mean-token-sum-norm": CreditRules(loss="rollouts", loss_length=reference.LONGEST),
    "seq-mean-token-mean": CreditRules(loss="rollout_tokens"),
}


@pytest.mark.parametrize("mode", reference.MODES)
@pytest.mark.parametrize("form", FORMS)
def test_losses_and_their_gradients_are_verls(form: str, mode: str) -> None:
    credited = assign_credit(replies(), WEIGHTS[mode]).transitions
    weights = torch.tensor([one.loss_weight for one in credited for _ in one.response_ids])
    logprobs = flat("new").requires_grad_(True)
    found = losses.policy_loss(FORMS[form], logprobs, flat("old"), flat("advantages"), sequences())
    loss = (found.loss * weights).sum()
    loss.backward()
    said = SAID["losses"][f"{form}, {mode}"]
    assert float(loss.detach()) == close(said["loss"])
    expected = [value for row, length in zip(said["gradient"], LENGTHS, strict=True) for value in row[:length]]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == close(expected)
    if form != "plain":
        # Random numbers on both sides of the clip range, or nothing was compared.
        assert 0 < int(found.clipped.sum()) < len(logprobs)


def test_kl_importance_value_loss_and_entropy_are_verls() -> None:
    def rows(name: str) -> list[float]:
        return [value for row, length in zip(SAID[name], LENGTHS, strict=True) for value in row[:length]]

    assert losses.kl_to_reference(flat("new"), flat("reference")).tolist() == close(rows("kl"))
    weights = losses.importance_weights(flat("new"), flat("old"), reference.CAP)
    assert weights.tolist() == close(rows("importance"))
    assert float(weights.max()) == reference.CAP
    values, _ = losses.value_loss(flat("predictions"), flat("values"), flat("rewards"), reference.VALUE_CLIP)
    assert float(values.mean()) == close(SAID["value loss"])
    from types import SimpleNamespace

    from lgov_core.train.layout.rows import TrainRow, head_scores

    logits = torch.tensor(GIVEN["logits"])
    identity = torch.nn.Identity()
    module = SimpleNamespace(get_output_embeddings=lambda: identity)
    row = TrainRow((0, 1, 2, 3), (0, 1, 1, 1), (0.0,) * 4, (0.0,) * 4, (0.0,) * 4, 1.0)
    _, entropy = head_scores(module, logits, [row], entropy=True)
    assert entropy is not None
    assert entropy.tolist() == close(SAID["entropy"])


# ------------------------------------------------------------------ what verl has not, by its formula


def test_without_a_bound_below_cispo_weighs_every_token_by_its_ratio() -> None:
    made = algorithm("cispo").update
    logprobs = torch.tensor([-3.0, -1.0, -0.1], requires_grad=True)
    old = torch.tensor([-1.0, -1.0, -4.0])
    advantages = torch.tensor([1.0, -2.0, 0.5])
    losses.policy_loss(made, logprobs, old, advantages, torch.zeros(3, dtype=torch.long)).loss.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == close([-math.exp(-2.0), 2.0, -5.0 * 0.5])


def test_gspo_counts_calls_not_tokens() -> None:
    # Two calls of one and three tokens in one rollout: each call's tokens have half of the rollout's weight.
    data = TransitionSet((turn(0, 0, 1, {"task": 1.0}), turn(0, 1, 3, {"task": 0.0}), turn(1, 0, 2, {"task": 0.0})))
    found = assign_credit(data, algorithm("gspo").credit).transitions
    assert [one.loss_weight * len(one.response_ids) for one in found] == close([0.25, 0.25, 0.5])


def test_groups_that_are_alike_are_not_counted_by_dapo() -> None:
    alike = [turn(0, 0, 4, {"task": 1.0}), replace(turn(0, 0, 4, {"task": 1.0}), rollout_id="r0b")]
    differing = [turn(4, 0, 3, {"task": 1.0}), replace(turn(4, 0, 2, {"task": 0.0}), rollout_id="r4b")]
    data = TransitionSet((*alike, *differing))
    dapo = assign_credit(data, algorithm("dapo").credit).transitions
    grpo = assign_credit(data, algorithm("dapo", skip_equal=False).credit).transitions
    assert [one.loss_weight for one in dapo[2:]] == close([1 / 5, 1 / 5])
    assert [one.loss_weight for one in grpo[2:]] == close([1 / 13, 1 / 13])
    assert [one.credit for one in dapo] == close([0.0, 0.0, math.sqrt(0.5), -math.sqrt(0.5)])


def test_a_penalty_of_any_size_weighs_the_same_in_gdpo_and_drowns_the_task_in_grpo() -> None:
    def credits(name: str, size: float) -> list[float]:
        data = TransitionSet(
            tuple(
                replace(turn(0, 0, 1, {"task": task, "compliance": size * penalty}), rollout_id=f"r{number}")
                for number, (task, penalty) in enumerate(((1.0, 0.0), (0.0, 0.0), (1.0, -1.0), (0.0, 0.0)))
            )
        )
        return [one.credit or 0.0 for one in assign_credit(data, algorithm(name).credit).transitions]

    assert credits("gdpo", 1.0) == close(credits("gdpo", 100.0))
    grpo = credits("grpo", 100.0)
    assert abs(grpo[0] - grpo[1]) < 0.05 < 0.5 < credits("gdpo", 100.0)[0] - credits("gdpo", 100.0)[1]


def _installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not _installed("verl"), reason="verl is not installed")
def test_verl_still_says_what_is_on_file() -> None:
    again = json.loads(json.dumps(reference.outputs(reference.inputs())))

    def compare(first: Any, second: Any) -> None:
        if isinstance(first, dict):
            assert first.keys() == second.keys()
            for name in first:
                compare(first[name], second[name])
        elif isinstance(first, list):
            assert len(first) == len(second)
            for left, right in zip(first, second, strict=True):
                compare(left, right)
        else:
            assert first == close(second)

    compare(SAID, again)
