"""Transitions as rows that other programs read: JSON lines, Parquet, and the rows of verl and TRL.

verl's rows, one a call, are what an agent loop puts into its TransferQueue, as lists, tensors or a Parquet file; TRL's, one a
rollout, what ``rollout_func`` returns (TRL 1.x, ``GRPOTrainer``). Written for verl 0.9.1
(``verl/experimental/agent_loop/agent_loop_tq.py``: keys, fields and tags of a row). No verl is needed to make them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core._util.files import atomic_file
from lgov_core.errors import TransitionError
from lgov_core.transitions.tokens import make_chains
from lgov_core.transitions.transition_set import TransitionSet, by_rollout, line_of
from lgov_core.types import SCHEMA_VERSION, Outcome, Transition

if TYPE_CHECKING:
    import torch


#: Fields of a `Transition` that have their name and value in a row.
_SAME: Final = (
    *("run_id", "weights_version", "model", "task_id", "rollout_id", "attempt", "turn", "response_id", "agent"),
    *("finish_reason", "loss_weight", "truncated", "credit", "choice"),
)


def write_jsonl(records: Iterable[Mapping[str, Any]], path: str | Path) -> Path:
    """Writes one JSON object a line, as a `atomic_file` in a folder that is made if need be. Raises `TransitionError`."""
    with _file(Path(path)) as partial, partial.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n")
    return Path(path)


def write_parquet(transitions: Sequence[Transition], path: str | Path) -> Path:
    """Writes one row per transition (`Transition.as_row`) to a Parquet file, as `write_jsonl` does.

    Rewards, logprobs and advantages are written as 64-bit floats, never rounded. Raises `TransitionError`. Needs
    the extra ``train`` (pyarrow).
    """
    rows = [{**transition.as_row(), "rewards": reward_pairs(transition.rewards)} for transition in transitions]
    return write_table(rows, _transition_columns, path)


def reward_pairs(rewards: Mapping[str, float]) -> list[dict[str, Any]]:
    """Rewards by dimension for a column of `pairs_type`."""
    return [{"dimension": name, "value": value} for name, value in sorted(rewards.items())]


def pairs_type(pa: Any, value: Any) -> Any:
    """The type of a column of rewards by dimension, each of type ``value``.

    A struct with a field for each dimension would differ from file to file, and Hugging Face's ``datasets`` reads no map.
    """
    return pa.list_(pa.struct([("dimension", pa.string()), ("value", value)]))


def read_parquet(path: str | Path, rollout_id: str | None = None) -> list[Transition]:
    """The transitions that `write_parquet` wrote, number by number; but for ``tool_call_ids`` and ``own_rewards``, which
    are not in a row. With ``rollout_id`` those of one rollout.

    Raises `TransitionError` when the file cannot be read, is no such file, or is of another schema version. Needs the
    extra ``train`` (pyarrow).
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise TransitionError("Parquet needs pyarrow", hint='pip install "lgov[train]"') from error
    try:
        only = None if rollout_id is None else [("rollout_id", "=", rollout_id)]
        return [
            _transition(row)
            for row in pq.read_table(path, schema=pa.schema(_transition_columns(pa)), filters=only).to_pylist()
        ]
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise TransitionError(f"{path} cannot be read as transitions: {error}") from error


def _transition(row: Mapping[str, Any]) -> Transition:
    if row["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"schema version {row['schema_version']}, not {SCHEMA_VERSION}")

    lists: dict[str, Any] = {
        name: None if row[name] is None else tuple(row[name])
        for name in ("prompt_ids", "response_ids", "response_mask", "logprobs", "advantages")
    }
    return Transition(
        **{name: row[name] for name in _SAME},
        **lists,
        temperature=row["sampling"]["temperature"],
        outcome=None if row["outcome"] is None else Outcome(row["outcome"]),
        rewards={pair["dimension"]: pair["value"] for pair in row["rewards"]},
        value_to_go=row["return"],
        value=row.get("value"),
        set_aside=bool(row["set_aside"]),
        held_out=bool(row.get("held_out")),
        parent_response_id=row["parent_call_id"],
    )


def write_table(
    rows: Sequence[Mapping[str, Any]], columns: Callable[[Any], list[tuple[str, Any]]], path: str | Path
) -> Path:
    """Writes ``rows`` to a Parquet file, as `write_jsonl` does. ``columns`` gets pyarrow and says names and types.

    Raises `TransitionError`. Needs the extra ``train`` (pyarrow).
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise TransitionError("Parquet needs pyarrow", hint='pip install "lgov[train]"') from error
    table = pa.Table.from_pylist(rows, schema=pa.schema(columns(pa)))
    with _file(Path(path)) as partial:
        pq.write_table(table, partial)
    return Path(path)


@contextmanager
def _file(target: Path) -> Generator[Path]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TransitionError(f"{target} cannot be written: {error}", hint="name another place") from error
    with atomic_file(target, TransitionError) as partial:
        yield partial


def _transition_columns(pa: Any) -> list[tuple[str, Any]]:
    return [
        ("schema_version", pa.int32()),
        ("run_id", pa.string()),
        ("rollout_id", pa.string()),
        ("attempt", pa.int32()),
        ("task_id", pa.string()),
        ("turn", pa.int32()),
        ("agent", pa.string()),
        ("model", pa.string()),
        ("response_id", pa.string()),
        ("call_id", pa.string()),
        ("choice", pa.int32()),
        ("set_aside", pa.bool_()),
        ("held_out", pa.bool_()),
        ("parent_call_id", pa.string()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("response_ids", pa.list_(pa.int32())),
        ("response_mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float64())),
        ("weights_version", pa.int64()),
        ("policy_version", pa.int64()),
        ("sampling", pa.struct([("temperature", pa.float64())])),
        ("finish_reason", pa.string()),
        ("truncated", pa.bool_()),
        ("rewards", pairs_type(pa, pa.float64())),
        ("return", pa.float64()),
        ("credit", pa.float64()),
        ("value", pa.float64()),
        ("advantages", pa.list_(pa.float64())),
        ("loss_weight", pa.float64()),
        ("outcome", pa.string()),
    ]


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
    return [
        _row(task, session, number, turn)
        for task, rollouts in data.groups().items()
        for session, turns in enumerate(rollouts)
        for number, turn in enumerate(turns)
    ]


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
        values = dict(row.fields)
        for names, dtype in ((_INTEGERS, torch.int64), (_FLOATS, torch.float32)):
            values |= {name: torch.tensor(values[name], dtype=dtype) for name in names}
        values["multi_modal_inputs"] = {}
        fields.append(values)
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


def _row(task: str, session: int, number: int, turn: Transition) -> VerlRow:
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
    return VerlRow(f"{task}_{session}_{number}", fields, tag)


@dataclass(frozen=True, slots=True)
class TrlRollouts:
    """Columns of equal length, one place a rollout, and how many rollouts have no place for which reason.

    ``columns``: ``prompt_ids`` (the first prompt), ``completion_ids`` (all that follows), ``env_mask`` (of the completion's
    length; 1 = the model's own token, 0 = a tool's or the surroundings'), ``logprobs`` (same length, 0.0 where the mask
    is 0), and what reward functions get as further fields: ``task_id``, ``rollout_id``, ``held_out`` and, for
    every dimension that occurs, ``reward_{dimension}`` (the rollout's sum, 0.0 where it earned none).
    """

    columns: dict[str, list[Any]]
    left_out: Counter[str] = field(default_factory=Counter[str])


def trl_rollouts(data: TransitionSet) -> TrlRollouts:
    """The rollouts that are one sequence of tokens.

    TRL has one row and one number a rollout: a rollout of several chains (other agents, a rewritten context) has no
    place in it and is counted as ``several_chains``, one without log-probabilities as ``no_logprobs``; rewards of single
    turns are summed, since TRL cannot tell turns apart. Choices that an attempt set aside are not in its row.
    """
    rows: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    for (rollout_id, _), turns in by_rollout(data.transitions).items():
        chains = make_chains(line_of(turns))
        if len(chains) != 1:
            left_out["several_chains"] += 1
            continue
        row = chains[0].as_row()
        if row["logprobs"] is None:
            left_out["no_logprobs"] += 1
            continue
        rows.append(
            {
                "prompt_ids": row["prompt_ids"],
                "completion_ids": row["response_ids"],
                "env_mask": row["response_mask"],
                "logprobs": row["logprobs"],
                "task_id": row["task_id"],
                "rollout_id": rollout_id,
                "held_out": row["held_out"],
                **{f"reward_{name}": value for name, value in row["rewards"].items()},
            }
        )
    fixed = ("prompt_ids", "completion_ids", "env_mask", "logprobs", "task_id", "rollout_id", "held_out")
    earned = sorted({name for row in rows for name in row} - {*fixed})
    columns = {name: [row[name] for row in rows] for name in fixed}
    return TrlRollouts(columns | {name: [row.get(name, 0.0) for row in rows] for name in earned}, left_out)
