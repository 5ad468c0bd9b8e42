"""A job on verl: rows made of transitions, settings written for verl. No verl is needed for these."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.errors import TrainError, TransitionError
from lgov_core.integrations.verl.job import ESTIMATOR, MANAGER, VerlJob, VerlUpdate, overrides, settings
from lgov_core.integrations.verl.rows import queue_rows
from lgov_core.train.sections import VerlSection
from lgov_core.transitions import CreditRules, TransitionSet, assign_credit
from lgov_core.transitions.transition_set import Transition
from lgov_core.types import Outcome

SESSIONS = {"a": ("uid-1", 0), "b": ("uid-1", 1)}


def turn(rollout: str, number: int, prompt: list[int], reply: list[int], reward: float, **changes: Any) -> Transition:
    made = Transition(
        run_id="run",
        weights_version=4,
        model="m",
        task_id="task",
        rollout_id=rollout,
        attempt=1,
        turn=number,
        response_id=f"{rollout}-{number}",
        agent="clerk",
        prompt_ids=tuple(prompt),
        response_ids=tuple(reply),
        response_mask=(1,) * len(reply),
        logprobs=tuple(-0.5 - index for index in range(len(reply))),
        temperature=1.0,
        finish_reason="stop",
        outcome=Outcome.SUCCEEDED,
        rewards={"task": reward},
    )
    return replace(made, **changes)


def credited(*turns: Transition, **rules: Any) -> tuple[Transition, ...]:
    return assign_credit(TransitionSet(turns), CreditRules(**rules)).transitions


TWO_ROLLOUTS = (
    turn("a", 0, [1, 2], [3, 4], 0.0),
    turn("a", 1, [1, 2, 3, 4, 9], [5], 1.0),
    turn("b", 0, [1, 2], [6], 0.0),
    turn("b", 1, [7, 8], [6, 6], 0.25),
)


def made(turns: tuple[Transition, ...], **changes: Any) -> Any:
    return queue_rows(turns, SESSIONS, **{"temperature": 1.0, "context_tokens": 100, **changes})


def test_turns_that_extend_one_another_are_one_row_and_others_have_their_own() -> None:
    rows = made(credited(*TWO_ROLLOUTS)).rows
    assert [row.key for row in rows] == ["uid-1_0_0", "uid-1_1_0", "uid-1_1_1"]
    first = rows[0]
    assert (first.prompt_ids, first.response_ids) == ((1, 2), (3, 4, 9, 5))
    assert first.response_mask == (1, 1, 0, 1)
    assert first.logprobs == (-0.5, -1.5, 0.0, -0.5)
    assert (first.turns, first.versions) == (2, (4, 4))


def test_every_turn_keeps_the_credit_of_its_own_reward() -> None:
    """Nothing is summed over a row, taken from its last turn, or rounded to bfloat16."""
    near = tuple(replace(one, rewards={"task": -99.7 if one.rollout_id == "a" else -99.5}) for one in TWO_ROLLOUTS)
    turns = credited(*near, scheme="step", baseline="none")
    rows = made(turns).rows
    assert rows[0].advantages == pytest.approx((-99.7, -99.7, 0.0, -99.7), rel=1e-12)
    assert rows[1].advantages == pytest.approx((-99.5,), rel=1e-12)
    # Turn by turn: the first turn of b has another advantage than its second.
    rows = made(credited(*TWO_ROLLOUTS, scheme="step", baseline="none")).rows
    assert rows[0].advantages == (0.0, 0.0, 0.0, 1.0)
    assert [row.advantages for row in rows[1:]] == [(0.0,), (0.25, 0.25)]


@pytest.mark.parametrize("loss", ["tokens", "rollouts", "rollout_tokens", "turns"])
def test_the_mean_over_all_tokens_is_lgovs_weighted_sum(loss: Any) -> None:
    turns = credited(*TWO_ROLLOUTS, loss=loss)
    rows = made(turns).rows
    pull = {token: 0.1 * token for token in range(10)}  # stands for what a token's advantage is multiplied with
    theirs = sum(
        pull[token] * advantage * mask
        for row in rows
        for token, advantage, mask in zip(row.response_ids, row.advantages, row.response_mask, strict=True)
    ) / sum(sum(row.response_mask) for row in rows)
    ours = sum(
        pull[token] * advantage * one.loss_weight
        for one in turns
        for token, advantage in zip(one.response_ids, one.advantages or (), strict=True)
    )
    assert theirs == pytest.approx(ours, rel=1e-12)
    assert ours != 0


def test_what_verl_cannot_train_on_is_left_out_and_counted() -> None:
    turns = credited(
        *TWO_ROLLOUTS[:2],
        turn("b", 0, [1, 2], [6], 0.0, temperature=0.7),
        turn("b", 1, [1] * 98, [6, 6, 6], 0.0),
        turn("b", 2, [1], [6], 0.0, weights_version=None),
        turn("b", 3, [2], [6], 0.0, response_mask=(0,)),
    )
    found = made(turns)
    assert [row.key for row in found.rows] == ["uid-1_0_0"]
    assert found.left_out == {"other_temperature": 1, "too_long": 1, "unknown_weights": 1, "nothing_to_train_on": 1}


def test_rows_that_move_nothing_can_be_left_out_without_changing_the_update() -> None:
    turns = credited(*TWO_ROLLOUTS, scheme="step", baseline="none")
    every, some = made(turns), made(turns, all_of_them=False)
    assert [row.key for row in some.rows] == ["uid-1_0_0", "uid-1_1_0"], "the first turn of b earned nothing"
    assert some.left_out == {"no_advantage": 1}

    def mean(rows: Any) -> float:
        return sum(sum(row.advantages) for row in rows) / sum(sum(row.response_mask) for row in rows)

    assert mean(some.rows) == pytest.approx(mean(every.rows), rel=1e-12)


def test_every_call_can_be_a_row_of_its_own() -> None:
    rows = made(credited(*TWO_ROLLOUTS), apart=True).rows
    assert [row.key for row in rows] == ["uid-1_0_0", "uid-1_0_1", "uid-1_1_0", "uid-1_1_1"]
    assert [row.response_ids for row in rows] == [(3, 4), (5,), (6,), (6, 6)]
    assert rows[1].prompt_ids == (1, 2, 3, 4, 9)


def test_transitions_without_credit_or_logprobs_are_refused() -> None:
    with pytest.raises(TransitionError, match="has no credit"):
        made(TWO_ROLLOUTS)
    with pytest.raises(TransitionError, match="has no log-probabilities"):
        made(tuple(replace(one, logprobs=None) for one in credited(*TWO_ROLLOUTS)))


# ---------------------------------------------------------------------- the job


def job(**changes: Any) -> VerlJob:
    given: dict[str, Any] = {
        "run_id": "run",
        "folder": Path("/runs/one"),
        "model": "/models/m",
        "store": "store.sqlite",
        "host": "agents:open_host",
        "options": {"port": 8321},
        "steps": 10,
    }
    return VerlJob(**{**given, **changes})


def test_a_job_travels_as_json() -> None:
    one = job(
        credit=CreditRules(scheme="identical", caps={"compliance": 0.5}),
        update=VerlUpdate(learning_rate=1e-5, loss="gspo", kl=0.01),
        verl=VerlSection(
            nodes=2, gpus=8, tensor_parallel=4, address="auto", overrides=("trainer.logger=[console,wandb]",)
        ),
        agents=("writer",),
    )
    assert VerlJob.from_dict(json.loads(json.dumps(one.as_dict()))) == one


def test_settings_for_verl() -> None:
    one = job(
        tasks_per_step=4,
        group=6,
        update=VerlUpdate(learning_rate=1e-5, loss="cispo", kl=0.01, lora_rank=16),
        verl=VerlSection(nodes=2, gpus=8, tensor_parallel=4, address="auto", mini_batches=2),
    )
    found = settings(one, tasks=9)
    expected = {
        "algorithm.adv_estimator": ESTIMATOR,
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class": MANAGER,
        "data.train_batch_size": 4,
        "data.max_prompt_length": 8192 - 1024,
        "actor_rollout_ref.rollout.n": 6,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 4,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 2,
        "actor_rollout_ref.actor.policy_loss.loss_mode": "cispo",
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
        "actor_rollout_ref.actor.use_kl_loss": True,
        "actor_rollout_ref.actor.kl_loss_coef": 0.01,
        "actor_rollout_ref.model.lora_rank": 16,
        "actor_rollout_ref.model.lora_alpha": 32,
        "actor_rollout_ref.rollout.load_format": "auto",
        "trainer.nnodes": 2,
        "trainer.n_gpus_per_node": 8,
        "trainer.total_training_steps": 10,
        "+ray_kwargs.ray_init.address": "auto",
    }
    assert {name: found[name] for name in expected} == expected
    # 8 of the 9 tasks make 2 steps an epoch: verl must not run out of epochs before step 10.
    assert found["trainer.total_epochs"] >= 5
    assert "+ray_kwargs.ray_init.address" not in settings(job(), tasks=16)


def test_settings_as_hydra_writes_them() -> None:
    lines = overrides(job(verl=VerlSection(overrides=("trainer.logger=[console,wandb]",))), tasks=16)
    assert 'data.train_files="/runs/one/tasks.parquet"' in lines
    assert 'trainer.logger=["console","file"]' in lines
    assert "actor_rollout_ref.actor.use_kl_loss=false" in lines
    assert "actor_rollout_ref.actor.optim.lr=1e-06" in lines
    assert lines[-1] == "trainer.logger=[console,wandb]", "the job's own come last, and win"
    assert "algorithm.rollout_correction.rollout_is=null" in overrides(
        job(verl=VerlSection(max_ratio_weight=None)), tasks=16
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 0}, "VerlJob.steps must be a whole number at least 1, not 0"),
        ({"group": 1}, "VerlJob.group is 1"),
        ({"verl": {"temperature": 0.0}}, "temperature must be a number above 0"),
        ({"verl": {"context_tokens": 100}, "reply_tokens": 100}, "leave no room for a prompt"),
        ({"tasks_per_step": 5, "verl": {"mini_batches": 2}}, "2 mini_batches cannot be made of 5"),
        ({"verl": {"tokens_per_gpu": 4096}}, "does not fit tokens_per_gpu 4096"),
        ({"verl": {"gpus": 3, "tensor_parallel": 2}}, "does not divide 3 GPUs"),
        ({"verl": {"gpu_memory": 1.0}}, "gpu_memory must be a number above 0 and below 1"),
        ({"update": {"loss": "ppo"}}, "loss must be one of cispo, .*, not 'ppo'"),
        ({"update": {"kl": -1.0}}, "kl must be a number at least 0"),
        ({"update": {"dual_clip": 1.0}}, "dual_clip must be a number above 1"),
    ],
)
def test_values_without_meaning(changes: dict[str, Any], says: str) -> None:
    makers: dict[str, Any] = {"update": VerlUpdate, "verl": VerlSection}
    with pytest.raises(TrainError, match=says):
        job(**{name: makers[name](**value) if name in makers else value for name, value in changes.items()})


def test_fewer_tasks_than_a_step_takes() -> None:
    with pytest.raises(TrainError, match="there are 3 tasks, but a step takes 16"):
        settings(job(), tasks=3)


def test_without_verl_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from lgov_core.integrations.verl.run import check_verl

    def version(name: str) -> str:
        if (found := installed.get(name)) is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    installed: dict[str, str] = {}
    monkeypatch.setattr("importlib.metadata.version", version)
    with pytest.raises(TrainError, match=r"training on verl needs verl \(pip install 'lgov\[verl\]'"):
        check_verl()
    installed |= {"verl": "0.10.0", "ray": "2", "TransferQueue": "0.1", "hydra-core": "1"}
    with pytest.raises(TrainError, match=r"verl 0\.10\.0 is installed"):
        check_verl()
    installed["verl"] = "0.9.1"
    check_verl()


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, lgov_core.integrations.verl; print({'torch', 'verl', 'ray', 'hydra'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_tasks_as_verls_dataset(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason='needs the extra "train"')
    pytest.importorskip("torch", reason='needs the extra "train"')
    from lgov_core.integrations.verl.run import write_tasks
    from lgov_core.train.loop.loop import RolloutTask

    one = job(folder=tmp_path)
    rows = parquet.read_table(write_tasks(one, [RolloutTask("x", {"say": "é"}), RolloutTask("y", {})])).to_pylist()
    assert [json.loads(row["extra_info"]["payload"]) for row in rows] == [{"say": "é"}, {}]
    assert [row["extra_info"]["task_id"] for row in rows] == ["x", "y"]
    for tasks, says in (([], "there are no tasks"), ([RolloutTask("x", {})] * 2, "two tasks have the same id")):
        with pytest.raises(TrainError, match=says):
            write_tasks(one, tasks)


def test_both_files_of_versions_agree() -> None:
    """verl's environment is the other one, but for what verl itself needs otherwise."""

    def pins(name: str) -> dict[str, str]:
        lines = Path(__file__, "../../..", name).resolve().read_text().splitlines()
        return dict(line.split("==") for line in lines if "==" in line)

    common, verl = pins("constraints.txt"), pins("constraints-verl.txt")
    differ = {name for name in common.keys() & verl.keys() if common[name] != verl[name]}
    assert differ == {"transformers", "huggingface-hub", "tokenizers", "numpy"}
