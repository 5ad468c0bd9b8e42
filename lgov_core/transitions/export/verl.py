"""Transitions as verl's rows: what an agent loop puts into verl's TransferQueue, as lists, tensors or a Parquet file.

Written for verl 0.9.1 (``verl/experimental/agent_loop/agent_loop_tq.py``: keys, fields and tags of a row). No verl is
needed to make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core.errors import TransitionError
from lgov_core.transitions.export.files import pairs_type, reward_pairs, write_table
from lgov_core.transitions.transition_set import Transition, TransitionSet

if TYPE_CHECKING:
    import torch

_INTEGERS: Final = ("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids")
_FLOATS: Final = ("rollout_log_probs", "rm_scores", "lgov_advantages")


@dataclass(frozen=True, slots=True)
class VerlRow:
    """One model call as verl sees it.

    ``key`` is ``{task}_{session}_{i}``: the group, the rollout in it (counted from 0) and the call in that (from 0). The
    lists of ``fields``, with P prompt and R response tokens: ``prompts`` (P), ``responses`` (R), ``input_ids`` and
    ``position_ids`` (P + R), ``response_mask`` and ``loss_mask`` (R; 1 = trained on), ``rollout_log_probs`` (R),
    ``rm_scores`` (R; the turn's reward over all dimensions, on its last trained token, 0 elsewhere: their sum over a
    rollout's rows is the rollout's reward), ``lgov_advantages`` (R). Single numbers: ``lgov_loss_weight``, ``lgov_return``,
    ``session_id``; ``uid`` is the task, ``lgov_rewards`` the rewards by dimension, ``lgov_held_out``
    marks a held-out task. ``tag`` is verl's own of a finished row.
    """

    key: str
    fields: Mapping[str, Any]
    tag: Mapping[str, Any]


def verl_rows(data: TransitionSet) -> list[VerlRow]:
    """One row per transition. Raises `TransitionError` for transitions without credit or log-probabilities."""
    rows: list[VerlRow] = []
    for task, rollouts in data.groups().items():
        for session, turns in enumerate(rollouts):
            rows += [_row(task, session, place, turn) for place, turn in enumerate(turns)]
    return rows


def verl_tensors(rows: Sequence[VerlRow]) -> dict[str, torch.Tensor]:
    """The lists of all rows as jagged nested tensors: ids and masks int64, the others float32 (never bfloat16).

    ``lgov_loss_weight`` and ``lgov_return`` are plain tensors (one number a row, float32). Raises
    `TransitionError` without rows. Needs the extra ``train``.
    """
    import torch

    if not rows:
        raise TransitionError("there are no rows to make tensors of", hint="see what the diagnostics say was left out")

    tensors: dict[str, torch.Tensor] = {}
    for names, dtype in ((_INTEGERS, torch.int64), (_FLOATS, torch.float32)):
        for name in names:
            values = [torch.tensor(row.fields[name], dtype=dtype) for row in rows]
            tensors[name] = torch.nested.nested_tensor(values, layout=torch.jagged)
    for name in ("lgov_loss_weight", "lgov_return"):
        tensors[name] = torch.tensor([row.fields[name] for row in rows], dtype=torch.float32)
    return tensors


def transfer_queue_batch(
    rows: Sequence[VerlRow],
) -> tuple[list[str], list[dict[str, Any]], list[dict[str, Any]]]:
    """Keys, fields (tensors as in `verl_tensors`, one dictionary a row) and tags.

    ``transfer_queue.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train")``
    takes them (``list_of_dict_to_tensordict`` is verl's).
    """
    import torch

    fields: list[dict[str, Any]] = []
    for row in rows:
        given = dict(row.fields)
        for names, dtype in ((_INTEGERS, torch.int64), (_FLOATS, torch.float32)):
            given |= {name: torch.tensor(given[name], dtype=dtype) for name in names}
        given["multi_modal_inputs"] = {}
        fields.append(given)
    return [row.key for row in rows], fields, [dict(row.tag) for row in rows]


def write_verl_parquet(data: TransitionSet, path: str | Path) -> Path:
    """Writes `verl_rows` to a Parquet file, one column a field, whole or not at all. Raises `TransitionError`."""
    rows: list[dict[str, Any]] = []
    for row in verl_rows(data):
        pairs = reward_pairs(row.fields["lgov_rewards"])
        rows.append({"key": row.key, **row.fields, "lgov_rewards": pairs, "tag": dict(row.tag)})
    return write_table(rows, _columns, path)


def _columns(pa: Any) -> list[tuple[str, Any]]:
    return [
        ("key", pa.string()),
        ("uid", pa.string()),
        ("session_id", pa.int32()),
        *((name, pa.list_(pa.int64())) for name in _INTEGERS),
        *((name, pa.list_(pa.float32())) for name in _FLOATS),
        ("lgov_loss_weight", pa.float32()),
        ("lgov_return", pa.float32()),
        ("lgov_rewards", pairs_type(pa, pa.float32())),
        ("lgov_held_out", pa.bool_()),
        (
            "tag",
            pa.struct(
                [("status", pa.string())]
                + [(name, pa.int64()) for name in ("prompt_len", "response_len", "seq_len")]
                + [(name, pa.int64()) for name in ("global_steps", "min_global_steps", "max_global_steps")]
            ),
        ),
    ]


def _row(task: str, session: int, place: int, turn: Transition) -> VerlRow:
    if turn.advantages is None or turn.value_to_go is None:
        raise TransitionError(f"transition {turn.response_id} has no credit", hint="call assign_credit first")
    if turn.logprobs is None:
        raise TransitionError(f"transition {turn.response_id} has no log-probabilities: verl needs them")
    prompt, response = list(turn.prompt_ids), list(turn.response_ids)
    scores = [0.0] * len(response)
    trained = [position for position, mask in enumerate(turn.response_mask) if mask]
    if trained:
        scores[trained[-1]] = turn.reward
    elif turn.reward:
        raise TransitionError(f"transition {turn.response_id} has a reward and no token that could carry it")
    length, version = len(prompt) + len(response), turn.weights_version
    fields = {
        "uid": task,
        "session_id": session,
        "prompts": prompt,
        "responses": response,
        "response_mask": list(turn.response_mask),
        "loss_mask": list(turn.response_mask),
        "input_ids": prompt + response,
        "position_ids": list(range(length)),
        "rollout_log_probs": list(turn.logprobs),
        "rm_scores": scores,
        "lgov_advantages": list(turn.advantages),
        "lgov_loss_weight": turn.loss_weight,
        "lgov_return": turn.value_to_go,
        "lgov_rewards": dict(turn.rewards),
        "lgov_held_out": turn.held_out,
    }
    tag = {
        "status": "success",
        "prompt_len": len(prompt),
        "response_len": len(response),
        "seq_len": length,
        "global_steps": version,
        "min_global_steps": version,
        "max_global_steps": version,
    }
    return VerlRow(f"{task}_{session}_{place}", fields, tag)
