"""Transitions as verl's rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.errors import TransitionError
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.transitions import TransitionSet, assign_credit
from lgov_core.transitions.rows import transfer_queue_batch, verl_rows, verl_tensors, write_jsonl, write_verl_parquet
from lgov_core.transitions.transition_set import Transition
from lgov_core.types import Outcome


def turn(rollout: str, number: int, rewards: dict[str, float], *, response: tuple[int, ...] = (7, 8, 9)) -> Transition:
    return Transition(
        run_id="run",
        weights_version=3,
        model="m",
        task_id="task",
        rollout_id=rollout,
        attempt=1,
        turn=number,
        response_id=f"{rollout}-{number}",
        agent="a",
        prompt_ids=(1, 2),
        response_ids=response,
        response_mask=(1, 1, 0)[: len(response)],
        logprobs=(-0.123456, -0.25, 0.0)[: len(response)],
        temperature=1.0,
        finish_reason="stop",
        outcome=Outcome.SUCCEEDED,
        rewards=rewards,
    )


DATA = assign_credit(
    TransitionSet(
        (
            turn("r1", 0, {"air": 0.05}),
            turn("r1", 1, {"task": 100.3, "compliance": -0.3}, response=(7,)),
            turn("r2", 0, {"task": 0.5}),
        )
    )
)


def test_rows_keep_every_reward_and_the_credit_of_each_token() -> None:
    rows = verl_rows(DATA)
    assert [row.key for row in rows] == ["task_0_0", "task_0_1", "task_1_0"]
    first = rows[0].fields
    assert first["rm_scores"] == [0.0, 0.05, 0.0]  # on the last token that is trained, not on the last one
    assert first["input_ids"] == [1, 2, 7, 8, 9]
    assert first["position_ids"] == [0, 1, 2, 3, 4]
    assert first["response_mask"] == first["loss_mask"] == [1, 1, 0]
    assert first["lgov_advantages"][2] == 0.0
    assert first["lgov_advantages"][0] == first["lgov_advantages"][1] != 0.0
    earned = sum(sum(row.fields["rm_scores"]) for row in rows[:2])
    assert earned == pytest.approx(0.05 + 100.3 - 0.3)
    assert rows[1].tag == {
        "status": "success",
        "prompt_len": 2,
        "response_len": 1,
        "seq_len": 3,
        "global_steps": 3,
        "min_global_steps": 3,
        "max_global_steps": 3,
    }


def test_tensors_are_jagged_and_rewards_are_float32() -> None:
    torch = pytest.importorskip("torch")
    tensors = verl_tensors(verl_rows(DATA))
    assert tensors["responses"].is_nested
    assert [len(one) for one in tensors["responses"].unbind()] == [3, 1, 3]
    assert tensors["prompts"].dtype == torch.int64
    assert tensors["rm_scores"].dtype == torch.float32
    assert tensors["rm_scores"].unbind()[1].tolist() == [pytest.approx(100.0)]
    assert tensors["lgov_loss_weight"].shape == (3,)
    keys, fields, tags = transfer_queue_batch(verl_rows(DATA))
    assert (len(keys), len(fields), len(tags)) == (3, 3, 3)
    assert fields[0]["rollout_log_probs"].dtype == torch.float32


def test_the_parquet_file_holds_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table: list[dict[str, Any]] = parquet.read_table(
        write_verl_parquet(DATA, tmp_path / "new" / "v.parquet")
    ).to_pylist()
    assert [row["key"] for row in table] == ["task_0_0", "task_0_1", "task_1_0"]
    assert table[0]["responses"] == [7, 8, 9]
    assert table[1]["lgov_rewards"] == [
        {"dimension": "compliance", "value": pytest.approx(-0.3)},
        {"dimension": "task", "value": pytest.approx(100.3)},
    ]
    assert table[1]["tag"]["seq_len"] == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"advantages": None}, "has no credit"),
        ({"logprobs": None}, "no log-probabilities"),
        ({"response_mask": (0, 0, 0)}, "no token that could carry it"),
    ],
)
def test_what_verl_cannot_be_given_is_an_error(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TransitionError, match=said):
        verl_rows(TransitionSet((replace(DATA.transitions[0], **change),)))
    with pytest.raises(TransitionError, match="no rows"):
        verl_tensors([])


def test_lines_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write_jsonl([{"a": 1}, {"b": "ü"}], tmp_path / "x" / "lines.jsonl")
    assert path.read_text("utf-8") == '{"a":1}\n{"b":"ü"}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_jsonl([{"a": 1}, {"a": float("nan")}], path)
    assert path.read_text("utf-8") == '{"a":1}\n{"b":"ü"}\n'
    assert [one.name for one in path.parent.iterdir()] == ["lines.jsonl"]
    (tmp_path / "file").write_text("")
    with pytest.raises(TransitionError, match="cannot be written"):
        write_jsonl([], tmp_path / "file" / "lines.jsonl")


def test_what_is_no_ordinary_file_is_not_written_over(tmp_path: Path) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "lines.jsonl")
    database = tmp_path / "store.jsonl"
    SQLiteStore(database).close()
    was = database.read_bytes()
    for path, said in ((link, "a symbolic link"), (database, "a database")):
        with pytest.raises(TransitionError, match=said):
            write_jsonl([{"a": 1}], path)
    assert link.is_symlink()
    assert database.read_bytes() == was
