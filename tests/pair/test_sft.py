"""``lgov train --algorithm sft``: what is imitated of recorded rollouts, what is not, and what the model learns."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from lgov_core.commands import cli
from lgov_core.models import LanguageModel, load_model
from lgov_core.store import open_store
from lgov_core.train.algorithms.supervised import choose, imitation_rows, mean_loss
from lgov_core.transitions import make_transitions, read_store
from lgov_core.transitions.messages import Keep
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout

GOOD, BAD = "7 7 7 7", "a b c d e f"


def recorded(place: Path, model: LanguageModel, attempts: list[tuple[str, str, Outcome, dict[str, float]]]) -> Path:
    """A store with rollouts ``(task, reply, outcome, rewards)`` of one call each."""
    with contextlib.closing(open_store(str(place))) as store:
        for number, (task, reply, outcome, rewards) in enumerate(attempts):
            rollout_id = f"ro_{number}"
            store.add_rollouts([Rollout(rollout_id, task, "run", {"question": task})])
            store.start_attempt(rollout_id, 1)
            prompt = tuple(model.render([{"role": "user", "content": task}]))
            said = tuple(model.encode_reply({"role": "assistant", "content": reply}))
            store.add_call(
                CapturedCall(
                    f"call_{number}", model.name, {}, {}, prompt, said, None, "stop", 0, 1.0, 1.0, 1.0 + number, 2.0 + number,
                    rollout_id, 1,
                )
            )  # fmt: skip
            earned = [Reward(value, name, rollout_id, 1) for name, value in rewards.items()]
            store.finish_attempt(rollout_id, 1, outcome, rewards=earned)
    return place


def attempts() -> list[tuple[str, str, Outcome, dict[str, float]]]:
    found: list[tuple[str, str, Outcome, dict[str, float]]] = []
    for task in ("digits please", "please digits", "digits", "please"):
        found += [
            (task, GOOD, Outcome.SUCCEEDED, {"task": 1.0}),
            (task, GOOD, Outcome.SUCCEEDED, {"task": 1.0}),
            (task, BAD, Outcome.SUCCEEDED, {"task": 0.2}),
            (task, BAD, Outcome.FAILED, {"task": 0.0}),
            (task, BAD, Outcome.SUCCEEDED, {"task": 1.0, "compliance": -1.0}),
            (task, BAD, Outcome.INFRASTRUCTURE, {}),
        ]
    return found


def train(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["train", "--algorithm", "sft", *arguments])


def test_good_rollouts_become_likelier_and_bad_ones_do_not(model_folder: Path, tmp_path: Path) -> None:
    before = load_model(str(model_folder))
    place = recorded(tmp_path / "store.sqlite", before, attempts())
    config = tmp_path / "config.yaml"
    config.write_text(
        "training: {learning_rate: 3e-3, batch_size: 2, epochs: 12}\nsft: {min_reward: 0.5, held_out: 0.25}\n"
    )
    run = train(
        str(config), "--model", str(model_folder), "--store", str(place), "--folder", str(tmp_path / "run"), "--json"
    )
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    assert report["kept_attempts"] == 8
    # Of six attempts at a task: the infrastructure's is no transition at all, one failed, one earned too little, one was
    # denied something, and of the two good ones one says what the other says.
    assert report["left_out"] == {"outcome": 4, "reward": 4, "not_compliant": 4, "repeated": 4}
    assert (report["rows"], report["held_out_rows"], report["steps"]) == (3, 1, 24)
    first, last = report["loss"]
    assert last < first - 1  # nats per token
    after = load_model(str(tmp_path / "run" / "model"))
    with contextlib.closing(open_store(str(place))) as store:
        data = make_transitions(read_store(store), need_logprobs=False)
    gained: dict[str, float] = {}
    for reply in (GOOD, BAD):
        said = tuple(before.encode_reply({"role": "assistant", "content": reply}))
        rows = imitation_rows([turn for turn in data.transitions if turn.response_ids == said])
        old, new = (mean_loss(model.module, rows, 512) or 0.0 for model in (before, after))
        gained[reply] = old - new
    assert gained[GOOD] > 1
    assert gained[BAD] < gained[GOOD] / 4  # it ends as the good one does: that much is learnt for both
    assert json.loads((tmp_path / "run" / "sft.json").read_text())["settings"]["sft"]["min_reward"] == 0.5


def test_the_same_seed_gives_the_same_weights(model_folder: Path, tmp_path: Path) -> None:
    place = recorded(tmp_path / "store.sqlite", load_model(str(model_folder)), attempts())
    states: list[dict[str, torch.Tensor]] = []
    for name in ("one", "two"):
        run = train(
            "--model", str(model_folder), "--store", str(place), "--folder", str(tmp_path / name), "--steps", "2"
        )
        assert run.exit_code == 0, run.output
        states.append(load_model(str(tmp_path / name / "model")).module.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_best_share_of_each_task_whatever_the_order(model_folder: Path, tmp_path: Path) -> None:
    model = load_model(str(model_folder))
    rows = [("t", f"{n} {n}", Outcome.SUCCEEDED, {"task": n / 10}) for n in range(6)]
    with contextlib.closing(open_store(str(recorded(tmp_path / "s.sqlite", model, rows)))) as store:
        data = make_transitions(read_store(store), need_logprobs=False)
    chosen = choose(data, Keep(), denied={}, top_share=0.4)
    assert [turn.rewards["task"] for turn in chosen.transitions] == [0.5, 0.4, 0.3]  # 2.4 rounded up
    assert chosen.left_out == {"not_among_best": 3}
    turned = type(data)(tuple(reversed(data.transitions)))
    assert choose(turned, Keep(), denied={}, top_share=0.4) == chosen
    assert choose(data, Keep(), denied={("ro_5", 1): ["sql: denied"]}).left_out == {"not_compliant": 1}


def test_held_out_rollouts_are_not_imitated_unless_asked(model_folder: Path, tmp_path: Path) -> None:
    model = load_model(str(model_folder))
    place = recorded(tmp_path / "s.sqlite", model, [("t", GOOD, Outcome.SUCCEEDED, {"task": 1.0})])
    with contextlib.closing(open_store(str(place))) as store:
        store.add_rollouts([Rollout("ro_test", "u", "run", {"mode": "test"})])
        store.start_attempt("ro_test", 1)
        call = next(iter(store.calls(["ro_0"])))
        store.add_call(replace(call, response_id="call_test", rollout_id="ro_test", response_ids=(7, 7)))
        store.finish_attempt("ro_test", 1, Outcome.SUCCEEDED, rewards=[Reward(1.0, "task", "ro_test", 1)])
    kept: list[tuple[int, dict[str, int]]] = []
    for flags in ([], ["--set", "sft.include_held_out=true"]):
        folder = tmp_path / str(len(kept))
        run = train(
            "--model",
            str(model_folder),
            "--store",
            str(place),
            "--folder",
            str(folder),
            "--steps",
            "1",
            "--json",
            *flags,
        )
        assert run.exit_code == 0, run.output
        said = json.loads(run.stdout)
        kept.append((said["kept_attempts"], said["left_out"]))
    assert kept == [(1, {"held_out": 1}), (2, {})]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "no recorded rollouts to learn from"),
        (["--store", "nowhere.sqlite"], "there is no store nowhere.sqlite"),
        (["--store", "STORE"], "nothing in"),
    ],
)
def test_what_cannot_be_learnt_from(more: list[str], said: str, model_folder: Path, tmp_path: Path) -> None:
    rows = [("t", BAD, Outcome.FAILED, {"task": 0.0})]
    place = recorded(tmp_path / "s.sqlite", load_model(str(model_folder)), rows)
    given = [str(place) if one == "STORE" else one for one in more]
    run = train("--model", str(model_folder), "--folder", str(tmp_path / "run"), *given)
    assert run.exit_code != 0
    assert said in run.output
    assert not (tmp_path / "run" / "model").exists()


def test_tokens_of_another_model_are_refused(model_folder: Path, tmp_path: Path) -> None:
    model = load_model(str(model_folder))
    with contextlib.closing(open_store(str(tmp_path / "s.sqlite"))) as store:
        store.add_rollouts([Rollout("ro", "t", "run", {})])
        store.start_attempt("ro", 1)
        call = CapturedCall("c", "other", {}, {}, (1, 2), (49_000,), None, "stop", 0, 1.0, 1.0, 1.0, 2.0, "ro", 1)
        store.add_call(call)
        store.finish_attempt("ro", 1, Outcome.SUCCEEDED, rewards=[Reward(1.0, "task", "ro", 1)])
    run = train("--model", str(model_folder), "--store", str(tmp_path / "s.sqlite"), "--folder", str(tmp_path / "run"))
    assert run.exit_code != 0
    assert f"token 49000, and {model.name} knows" in run.output
