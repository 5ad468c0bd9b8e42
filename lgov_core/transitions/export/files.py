"""Writes transitions where other programs can read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lgov_core._util.files import atomic_file
from lgov_core.errors import TransitionError
from lgov_core.types import SCHEMA_VERSION, Outcome, Transition

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
    return write_table(rows, _columns, path)


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
            _transition(row) for row in pq.read_table(path, schema=pa.schema(_columns(pa)), filters=only).to_pylist()
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


def _columns(pa: Any) -> list[tuple[str, Any]]:
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
