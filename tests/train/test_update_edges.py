"""What goes wrong in an update: the weights stay as they were, and the message says what to change. And its settings."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason='needs the extra "train"')

from tabular import BANDIT, LEFT, RIGHT, START, TWO_TURNS, Problem, Table  # noqa: E402

from lgov_core.errors import SettingsError, TrainError, TransitionError  # noqa: E402
from lgov_core.gateway.protocol import paused  # noqa: E402
from lgov_core.models.load import computes_bfloat16  # noqa: E402
from lgov_core.train.algorithms.algorithms import MOST_MOVED, SupervisedConfig, UpdateConfig, algorithm  # noqa: E402
from lgov_core.train.algorithms.supervised import supervised  # noqa: E402
from lgov_core.train.algorithms.update import PolicyUpdate  # noqa: E402
from lgov_core.train.layout.layouts import PaddedRows  # noqa: E402
from lgov_core.train.layout.rows import RowCall, TrainRow, make_rows  # noqa: E402
from lgov_core.train.loop.several_policies import JointControl, JointUpdate  # noqa: E402
from lgov_core.transitions import CreditRules, TransitionSet, assign_credit  # noqa: E402
from lgov_core.transitions.advantages import penalise_length  # noqa: E402

PLAIN = UpdateConfig(kl=0.0, epochs=1, learning_rate=0.1)


def row(
    act: int, advantage: float, *, logprob: float = -math.log(8), version: int | None = None, **more: Any
) -> TrainRow:
    """One call of one token."""
    given: dict[str, Any] = {"rollout_id": f"r{act}", "task_id": "t", **more}
    calls = (RowCall(1, 2, version),)
    return TrainRow((START, act), (0, 1), (0.0, logprob), (0.0, advantage), (0.0, 0.5), 1.0, calls, **given)


ROWS = [row(1, 1.0), row(2, -1.0)]


def unchanged(table: Table) -> bool:
    return torch.equal(table.head.weight, Table().head.weight)


def test_when_one_of_several_policies_fails_all_stay_as_they_were() -> None:
    tables = {"writer": Table(), "checker": Table()}
    joint = JointUpdate({name: PolicyUpdate(table, PLAIN) for name, table in tables.items()})
    bad = [replace(ROWS[0], model="checker"), replace(ROWS[1], model="checker", advantages=(0.0, math.nan))]
    with pytest.raises(TrainError, match="advantages of rollout r2 are not finite"):
        joint.update([*(replace(one, model="writer") for one in ROWS), *bad])
    assert all(map(unchanged, tables.values()))
    assert [learner.updates for learner in joint.learners.values()] == [0, 0]


class Exploding(PaddedRows):
    """A layout whose pass asks for more memory than there is."""

    def logprobs(self, module: Any, rows: Any) -> Any:
        torch.empty(1 << 55, dtype=torch.uint8)
        return super().logprobs(module, rows)


def test_out_of_memory_names_the_setting_to_lower_and_keeps_the_weights() -> None:
    table = Table()
    learner = PolicyUpdate(table, PLAIN, layout=Exploding())
    with pytest.raises(TrainError, match=r"out of memory in a pass of 2 rows, 4 tokens") as caught:
        learner.update(ROWS)
    assert "tokens_per_batch, which is 2048" in (caught.value.hint or "")
    assert unchanged(table)
    assert learner.updates == 0


@pytest.mark.parametrize("name", ["advantages", "weights", "logprobs"])
def test_numbers_that_are_not_finite_name_the_rollout(name: str) -> None:
    table = Table()
    bad = replace(ROWS[1], **{name: (0.0, math.nan)})
    with pytest.raises(TrainError, match=rf"{name} of rollout r2 are not finite"):
        PolicyUpdate(table, PLAIN).update([ROWS[0], bad])
    assert unchanged(table)


def test_a_loss_that_is_not_finite_is_no_step() -> None:
    table = Table()
    with torch.no_grad():
        table.head.weight[3, START] = math.nan
    before = table.head.weight.detach().clone()
    with pytest.raises(TrainError, match="not finite"):
        PolicyUpdate(table, PLAIN).update(ROWS)
    assert torch.equal(table.head.weight.nan_to_num(9.0), before.nan_to_num(9.0))


def test_kl_is_null_without_a_reference_not_zero() -> None:
    table, reference = Table(), Table()
    assert PolicyUpdate(table, PLAIN).update(ROWS).kl is None
    assert PolicyUpdate(table, replace(PLAIN, kl=0.01), reference=reference).update(ROWS).kl is not None
    both = JointUpdate({name: PolicyUpdate(Table(), PLAIN) for name in ("writer", "checker")})
    assert both.update([replace(row, model="writer") for row in ROWS]).kl is None


def test_a_policy_that_left_its_reference_is_an_error_before_the_step() -> None:
    table, reference = Table(), Table()
    with torch.no_grad():
        reference.head.weight[1, START] = -9.0  # what the policy does all the time, the reference hardly ever does
        table.head.weight[1, START] = 9.0
    before = table.head.weight.detach().clone()
    learner = PolicyUpdate(table, replace(PLAIN, kl=0.01), reference=reference)
    with pytest.raises(TrainError, match=r"nats a token from its reference, more than max_kl 5"):
        learner.update([row(1, 1.0, logprob=0.0)])
    assert torch.equal(table.head.weight, before)
    PolicyUpdate(table, replace(PLAIN, kl=0.01, max_kl=100.0), reference=reference).update([row(1, 1.0, logprob=0.0)])
    assert not torch.equal(table.head.weight, before)


def test_nothing_to_learn_from_is_no_step() -> None:
    table = Table()
    learner = PolicyUpdate(table, PLAIN)
    assert learner.update([]).steps == 0
    assert learner.update([row(1, 0.0)]).steps == 0
    assert unchanged(table)
    assert learner.updates == 0


def test_drift_is_measured_before_the_first_step() -> None:
    chosen = algorithm("ppo", learning_rate=0.5, minibatches=4, kl=0.0)
    table = Table()
    learner = PolicyUpdate(table, chosen.update)
    generator = torch.Generator().manual_seed(0)
    names = {f"{one}": f"{one % 3}" for one in range(16)}
    data = learner.credit(TransitionSet(tuple(TWO_TURNS.rollouts(table, names, generator))), chosen.credit)
    found = learner.update(make_rows(data.transitions))
    assert found.steps >= 4
    assert found.logprob_drift < 1e-5
    assert found.moved > 1e-3, "later mini-batches are far from what was recorded"


def test_the_same_rows_settings_and_seed_give_the_same_weights_also_after_a_pause() -> None:
    chosen = algorithm("ppo", learning_rate=0.1, minibatches=2, kl=0.0, seed=3)

    def run(pause: bool) -> Table:
        table = Table()
        learner = PolicyUpdate(table, chosen.update)
        generator = torch.Generator().manual_seed(0)
        for number in range(4):
            names = {f"{number}-{one}": f"{number}-{one % 3}" for one in range(9)}
            data = learner.credit(TransitionSet(tuple(TWO_TURNS.rollouts(table, names, generator))), chosen.credit)
            learner.update(make_rows(data.transitions))
            if pause and number == 1:
                state = copy.deepcopy(learner.state_dict())
                learner = PolicyUpdate(table, chosen.update)
                learner.load_state_dict(state)
        return table

    first, again, resumed = run(False), run(False), run(True)
    assert torch.equal(first.head.weight, again.head.weight)
    assert torch.equal(first.head.weight, resumed.head.weight)
    with pytest.raises(TrainError, match="does not fit"):
        PolicyUpdate(Table(), PLAIN).load_state_dict(PolicyUpdate(Table(), chosen.update).state_dict())


def test_gradients_do_not_depend_on_how_many_passes_they_are_accumulated_over() -> None:
    rows = [row(act, advantage) for act, advantage in ((0, 1.0), (1, -0.5), (2, 2.0), (3, -1.0), (4, 0.3))]
    tables = []
    for tokens in (2, 4, 2048):
        table = Table()
        metrics = PolicyUpdate(table, replace(PLAIN, tokens_per_batch=tokens, packing="rows")).update(rows)
        assert metrics.steps == 1
        tables.append(table.head.weight.detach())
    assert torch.allclose(tables[0], tables[2], atol=1e-7)
    assert torch.allclose(tables[1], tables[2], atol=1e-7)


def test_tokens_of_older_weights_are_weighed_by_what_changed_and_left_out_when_too_old() -> None:
    def change(rows: list[TrainRow], **settings: Any) -> tuple[Any, float]:
        table = Table()
        metrics = PolicyUpdate(table, replace(PLAIN, loss="plain", **settings)).update(rows, version=5)
        return metrics, float(table.head.weight.detach().abs().sum())

    # The old weights gave the act a chance of 1/16, these give 1/8: it counts twice; and one that had 1/80 as often as the cap.
    metrics, _ = change([row(1, 1.0, logprob=-math.log(16), version=4), row(2, -1.0, version=5)])
    assert (metrics.stale_tokens, metrics.importance) == (1, pytest.approx(2.0))
    assert metrics.logprob_drift < 1e-5, "what older weights sampled has moved with them"
    metrics, _ = change([row(1, 1.0, logprob=-math.log(80), version=3)], importance_cap=3.0)
    assert metrics.importance == pytest.approx(3.0)
    assert change([row(1, 1.0, logprob=-math.log(80), version=3)], correction="never")[0].importance == 1.0
    metrics, moved = change([row(1, 1.0, version=2)], drop_older_than=2)
    assert (metrics.dropped_tokens, metrics.steps, moved) == (1, 0, 0.0)
    assert change([row(1, 1.0, version=3)], drop_older_than=2)[0].dropped_tokens == 0


def test_a_clip_is_around_the_weights_at_the_start_for_tokens_of_older_ones() -> None:
    # Recorded at 1/80: without the correction the ratio of 10 is outside the clip range, and nothing is learnt.
    for correction, learnt in (("stale", True), ("never", False)):
        table = Table()
        PolicyUpdate(table, replace(PLAIN, correction=correction)).update(
            [row(1, 1.0, logprob=-math.log(80), version=3)], version=4
        )
        assert unchanged(table) is not learnt


def test_rates_rise_then_stay_or_fall() -> None:
    constant = UpdateConfig(warmup_steps=3)
    assert [constant.rate_at(step) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    linear = UpdateConfig(schedule="linear", total_steps=10, final_rate=0.2)
    assert [linear.rate_at(step) for step in (0, 5, 10, 99)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    cosine = UpdateConfig(schedule="cosine", total_steps=10, final_rate=0.0)
    assert [cosine.rate_at(step) for step in (0, 5, 10)] == pytest.approx([1.0, 0.5, 0.0])
    table = Table()
    assert PolicyUpdate(table, replace(PLAIN, warmup_steps=1)).update(ROWS).learning_rate == pytest.approx(0.05)


def test_an_entropy_bonus_keeps_the_policy_from_settling() -> None:
    def entropy(weight: float) -> float:
        table = Table()
        learner = PolicyUpdate(table, replace(PLAIN, entropy=weight))
        for _ in range(10):
            learner.update([row(1, 1.0, logprob=float(table.logprobs((START,))[1])), row(2, -1.0)])
        chances = table.logprobs((START,)).exp()
        return float(-(chances * chances.log()).sum())

    assert entropy(5.0) > entropy(0.0) + 0.1


def test_a_policy_that_moved_far_enough_is_not_moved_on() -> None:
    many = replace(PLAIN, epochs=20, loss="cispo", clip_low=1.0, clip_high=9.0, learning_rate=0.3)
    free = PolicyUpdate(Table(), many).update(ROWS)
    held = PolicyUpdate(Table(), replace(many, stop_kl=0.05)).update(ROWS)
    assert free.steps == 20
    assert 0 < held.steps < 20
    assert held.moved > 0.05


def test_an_update_that_moves_the_policy_too_far_halves_the_rate_of_the_next_also_after_a_resume() -> None:
    far = replace(PLAIN, epochs=20, loss="cispo", clip_low=1.0, clip_high=9.0, learning_rate=1.0)
    learner, resumed = PolicyUpdate(Table(), far), PolicyUpdate(Table(), far)
    first = learner.update(ROWS)
    assert first.moved > MOST_MOVED
    assert first.learning_rate == 1.0
    resumed.load_state_dict(learner.state_dict())
    assert [each.update(ROWS).learning_rate for each in (learner, resumed)] == [0.5, 0.5]
    calm = PolicyUpdate(Table(), replace(far, learning_rate=1e-3))
    assert [calm.update(ROWS).learning_rate for _ in range(2)] == [1e-3, 1e-3]


def test_bfloat16_passes_come_close_to_float32_and_leave_the_weights_what_they_are() -> None:
    tables = [Table(), Table()]
    for table, precision in zip(tables, ("float32", "bfloat16"), strict=True):
        PolicyUpdate(table, replace(PLAIN, precision=precision)).update(ROWS)  # type: ignore[arg-type]
        assert table.head.weight.dtype == torch.float32
    assert torch.allclose(tables[0].head.weight, tables[1].head.weight, atol=1e-2)


def test_imitation_computes_in_bfloat16_only_where_the_processor_has_it_unless_it_is_told_to() -> None:
    def loss(precision: str) -> float:
        config = SupervisedConfig(steps=3, batch=len(ROWS), learning_rate=0.3, precision=precision)  # type: ignore[arg-type]
        return supervised(Table(), lambda _: [*ROWS], config)

    assert loss("auto") == loss("bfloat16" if computes_bfloat16("cpu") else "float32")
    assert loss("bfloat16") != loss("float32")


def _fork(prompt: tuple[int, ...], act: int) -> tuple[float, tuple[int, ...] | None]:
    """The first act decides what the second earns, whatever that is."""
    if prompt[-1] == START:
        return 0.0, (*prompt, act, LEFT if act % 2 else RIGHT)
    return (-1.0 if prompt[-1] == LEFT else 1.0), None


def test_the_critic_learns_what_turns_earn_and_does_not_touch_the_policy() -> None:
    table, problem = Table(), Problem("fork", (START, START), _fork, best=1.0)
    chosen = algorithm("ppo", learning_rate=1e-12, value_rate=0.01, kl=0.0, value_clip=None)
    learner = PolicyUpdate(table, chosen.update)
    generator = torch.Generator().manual_seed(0)
    found = TransitionSet(tuple(problem.rollouts(table, {str(one): "t" for one in range(32)}, generator)))
    for _ in range(30):
        metrics = learner.update(make_rows(learner.credit(found, chosen.credit).transitions))
    assert torch.allclose(table.head.weight, Table().head.weight, atol=1e-6)
    values = [turn for turn in learner.credit(found, chosen.credit).transitions if turn.turn]
    assert all(turn.value == pytest.approx(turn.reward, abs=0.2) for turn in values)
    assert len({turn.reward for turn in values}) == 2
    # Of the first turn nothing can be foreseen, of the second all.
    assert 0.4 < metrics.explained_variance < 0.8
    assert metrics.value_loss > 0


def test_without_a_critic_gae_has_no_values() -> None:
    data = TransitionSet(tuple(BANDIT.rollouts(Table(), {"a": "t"}, torch.Generator().manual_seed(0))))
    with pytest.raises(TransitionError, match="no values"):
        assign_credit(data, CreditRules(scheme="gae", min_group=1))


def test_settings_without_meaning_and_names_that_there_are_not() -> None:
    for bad in ({"learning_rate": 0.0}, {"epochs": 0}, {"dual_clip": 0.5}, {"beta2": 1.0}, {"kl": math.nan}):
        with pytest.raises(TrainError, match=next(iter(bad))):
            UpdateConfig(**bad)
    with pytest.raises(TrainError, match="total_steps"):
        UpdateConfig(schedule="cosine")
    with pytest.raises(SettingsError, match=r"no setting clip_hgh") as caught:
        algorithm("grpo", clip_hgh=0.3)
    assert caught.value.hint == "did you mean clip_high?"
    with pytest.raises(SettingsError, match="no algorithm") as caught:
        algorithm("grpo2")
    assert caught.value.hint == "did you mean grpo?"
    assert algorithm("Dr.GRPO", loss_weighting="tokens", loss_form="cispo").update.loss == "cispo"


def test_long_replies_lose_up_to_the_whole_penalty() -> None:
    made = BANDIT.rollouts(Table(), {"a": "t"}, torch.Generator().manual_seed(0))[0]
    sizes = [replace(made, response_ids=(1,) * size, rewards={"task": 1.0}) for size in (6, 8, 9, 10, 12)]
    found = penalise_length(TransitionSet(tuple(sizes)), limit=10, margin=4)
    assert [one.rewards.get("length", 0.0) for one in found.transitions] == [0.0, -0.5, -0.75, -1.0, -1.0]
    with pytest.raises(TransitionError, match="margin"):
        penalise_length(found, limit=4, margin=5)


class Counted:
    """An engine that counts its pauses, and cannot be paused where it is ``lost``."""

    def __init__(self, version: int, *, lost: bool = False) -> None:
        self.weights_version, self.lost, self.pauses = version, lost, 0
        self.weights: Any = None

    def pause(self) -> None:
        if self.lost:
            raise TrainError("it is lost")
        self.pauses += 1

    def publish(self, weights: Any, version: int | None = None) -> int:
        assert version is not None
        self.weights, self.weights_version = dict(weights), version
        return version

    def resume(self) -> None:
        self.pauses -= 1


def test_policies_on_one_model_are_paused_together_or_not_at_all_and_have_one_version() -> None:
    writer, checker = Counted(2), Counted(4)
    both = JointControl({"writer": writer, "checker": checker})
    with paused(both):
        assert (writer.pauses, checker.pauses) == (1, 1)
    assert (writer.pauses, checker.pauses) == (0, 0)
    checker.lost = True
    with pytest.raises(TrainError, match="it is lost"):
        both.pause()
    assert writer.pauses == 0, "nothing would resume it"
    assert both.publish({"writer/a": torch.zeros(1), "checker/b": torch.ones(1)}) == 5
    assert (writer.weights_version, checker.weights_version, both.weights_version) == (5, 5, 5)
    assert (list(writer.weights), list(checker.weights)) == (["a"], ["b"])
