"""On verl an algorithm's name means what it means everywhere: what is written for verl, name by name. No verl is needed.

`tests/integrations/verl/test_losses_on_verl.py` gives the same settings to verl itself and compares gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason='needs the extra "train"')

from lgov_core.errors import SettingsError
from lgov_core.integrations.verl.job import VerlJob, settings
from lgov_core.integrations.verl.rows import mini_batch_tasks
from lgov_core.integrations.verl.training import verl_job
from lgov_core.train.algorithms.algorithms import ALGORITHMS, REINFORCEMENT, algorithm, find_run
from lgov_core.train.settings import load_train_settings

#: Of each: the loss, the clip range downwards and upwards, and the weight of the KL (0: no reference), by the papers.
MEANS: dict[str, tuple[str, float, float, float]] = {
    "grpo": ("vanilla", 0.2, 0.2, 0.02),
    "dr_grpo": ("vanilla", 0.2, 0.2, 0.0),
    "dapo": ("vanilla", 0.2, 0.28, 0.0),
    "gspo": ("gspo", 3e-4, 4e-4, 0.0),
    "cispo": ("cispo", 1.0, 4.0, 0.0),
    "rloo": ("gpg", 0.2, 0.28, 0.02),
    "reinforce++": ("vanilla", 0.2, 0.2, 0.02),
    "gdpo": ("vanilla", 0.2, 0.2, 0.02),
}
ACTOR = "actor_rollout_ref.actor"


def job(folder: Path, name: str, text: str = "") -> VerlJob:
    path = folder / "config.yaml"
    path.write_text(text)
    given = {("model", "name"): str(folder), ("training", "algorithm"): name}
    read = load_train_settings(path, flags=given, environ={})
    return verl_job(read, run_id="run", folder=folder, tasks=64, port=4321)


def test_every_algorithm_is_written_or_refused() -> None:
    assert MEANS.keys() | {"ppo"} == set(REINFORCEMENT)


@pytest.mark.parametrize("name", MEANS)
def test_what_is_written_for_verl(name: str, tmp_path: Path) -> None:
    made = job(tmp_path, name)
    loss, low, high, kl = MEANS[name]
    found = settings(made, tasks=64)
    expected: dict[str, Any] = {
        "algorithm.adv_estimator": "lgov_precomputed",
        "algorithm.use_kl_in_reward": False,
        f"{ACTOR}.policy_loss.loss_mode": loss,
        f"{ACTOR}.loss_agg_mode": "token-mean",
        f"{ACTOR}.clip_ratio_low": low,
        f"{ACTOR}.clip_ratio_high": high,
        f"{ACTOR}.use_kl_loss": kl > 0,
        f"{ACTOR}.kl_loss_coef": kl,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ACTOR}.ppo_epochs": algorithm(name).update.epochs,
    }
    assert {key: found[key] for key in expected} == expected
    assert found[f"{ACTOR}.clip_ratio_c"] >= 1e6, "verl's second bound is on unless it is out of reach"
    assert made.credit == algorithm(name).credit, "who earned what is the algorithm's own rules, and no other's"


def test_no_two_algorithms_are_the_same_on_verl(tmp_path: Path) -> None:
    """Nothing trains as another under its own name."""
    made = {name: job(tmp_path, name) for name in MEANS}
    differ = {(str(one.credit), str(one.update)) for one in made.values()}
    assert len(differ) == len(MEANS)


def test_what_the_settings_change_is_changed_on_verl(tmp_path: Path) -> None:
    found = settings(job(tmp_path, "dapo", "training: {kl_coef: 0.5, update_epochs: 3, max_grad_norm: 0.25}"), tasks=64)
    changed = (f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.ppo_epochs", f"{ACTOR}.optim.clip_grad")
    assert [found[name] for name in changed] == [True, 0.5, 3, 0.25]


def test_what_verl_cannot_do_is_refused_with_what_it_can(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        job(tmp_path, "ppo")
    assert "ppo trains a critic" in refused.value.message
    assert all(name in (refused.value.hint or "") for name in MEANS)
    for text in ("training: {update_epochs: 2}", "verl: {mini_batches: 2}"):
        with pytest.raises(SettingsError, match="rloo makes one step an update"):
            job(tmp_path, "rloo", text)
    for name in ("sft", "prompt"):
        with pytest.raises(SettingsError, match=f"{name} is not reinforcement learning, and verl runs no other"):
            find_run(name, "verl")


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.adv_estimator=grpo",
        "++algorithm.adv_estimator=grpo",
        "~algorithm.adv_estimator",
        "algorithm={adv_estimator: grpo}",
        "algorithm.rollout_correction.rollout_is=sequence",
        "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla",
        "actor_rollout_ref.actor={clip_ratio: 0.1}",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
        "actor_rollout_ref.actor.clip_ratio_high=0.5",
        "actor_rollout_ref.actor.use_kl_loss=false",
        "actor_rollout_ref.rollout.n=1",
        "actor_rollout_ref.model.lora_alpha=16",
        "actor_rollout_ref.model.target_modules=[q_proj]",
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=other.Manager",
        "trainer.v1.trainer_mode=separate_async",
        "trainer.resume_mode=disable",
        "trainer.checkpoint_callback_class=null",
        "critic.enable=true",
    ],
)
def test_an_override_cannot_make_another_algorithm_of_it(override: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="which is lgov's"):
        job(tmp_path, "gspo", f"verl: {{overrides: ['{override}']}}")


def test_other_overrides_are_the_users(tmp_path: Path) -> None:
    given = ["trainer.logger=[console,wandb]", "+actor_rollout_ref.model.override_config.attn_implementation=sdpa"]
    assert job(tmp_path, "grpo", f"verl: {{overrides: {given}}}").verl.overrides == tuple(given)


@pytest.mark.parametrize(
    ("rows", "group", "mini_batches", "shards"),
    [(64, 8, 1, 1), (65, 8, 1, 1), (3, 8, 1, 1), (1, 8, 1, 16), (200, 8, 4, 8), (7, 3, 2, 4), (1, 1, 1, 6)],
)
def test_however_many_rows_a_step_has_it_makes_as_many_optimiser_steps_as_asked(
    rows: int, group: int, mini_batches: int, shards: int
) -> None:
    size = group * mini_batch_tasks(rows, group=group, mini_batches=mini_batches, shards=shards)
    assert size % shards == 0, "verl gives every shard as many rows"
    assert -(-rows // size) <= mini_batches
    assert size < rows // mini_batches + 1 + group * shards, "and no more padding than that takes"


def test_the_algorithms_of_the_table_are_those_of_lgov() -> None:
    assert set(ALGORITHMS) == set(REINFORCEMENT)
