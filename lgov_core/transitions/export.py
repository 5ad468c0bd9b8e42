"""Writes transitions where other programs can read them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lgov_core.errors import TransitionError
from lgov_core.transitions.values import Transition


def write_jsonl(records: Iterable[Mapping[str, Any]], path: str | Path) -> Path:
    """Writes one JSON object a line, whole or not at all. Raises `TransitionError`."""
    target = Path(path)

    def write(partial: Path) -> None:
        with partial.open("w", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n")

    return _whole(target, write)


def write_parquet(transitions: Sequence[Transition], path: str | Path) -> Path:
    """Writes one row per transition (`Transition.as_row`) to a Parquet file, whole or not at all.

    Rewards, logprobs and advantages are written as 64-bit floats, never rounded. Raises `TransitionError`. Needs
    the extra ``train`` (pyarrow).
    """
    # A struct column whose keys vary from row to row would grow fields full of nulls; pairs say what is there.
    rows = [{**one.as_row(), "rewards": sorted(one.rewards.items())} for one in transitions]
    return write_table(rows, _columns, path)


def write_table(
    rows: Sequence[Mapping[str, Any]], columns: Callable[[Any], list[tuple[str, Any]]], path: str | Path
) -> Path:
    """Writes ``rows`` to a Parquet file, whole or not at all. ``columns`` gets pyarrow and says names and types.

    Raises `TransitionError`. Needs the extra ``train`` (pyarrow).
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise TransitionError("Parquet needs pyarrow", hint='pip install "lgov[train]"') from error
    table = pa.Table.from_pylist(rows, schema=pa.schema(columns(pa)))
    return _whole(Path(path), lambda partial: pq.write_table(table, partial))


def _whole(target: Path, write: Callable[[Path], None]) -> Path:
    partial = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(partial)
            os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise TransitionError(
            f"{target} could not be written: {error}", hint="free some space or choose another place"
        ) from error
    return target


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
        ("rewards", pa.map_(pa.string(), pa.float64())),
        ("return", pa.float64()),
        ("credit", pa.float64()),
        ("advantages", pa.list_(pa.float64())),
        ("loss_weight", pa.float64()),
        ("outcome", pa.string()),
    ]
