"""Everything in a store, as JSON lines or as Parquet: for other programs, and to keep what is going to be deleted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from lgov_core._util.files import atomic_file
from lgov_core.errors import ExportError
from lgov_core.store import rows
from lgov_core.store.trace_store import TraceStore
from lgov_core.types import Attempt, CapturedCall, Reward, Rollout, Span

#: What is exported, in this order, and the fields of each.
KINDS: Final[dict[str, type[Any]]] = {
    "rollout": Rollout,
    "attempt": Attempt,
    "call": CapturedCall,
    "reward": Reward,
    "span": Span,
}
#: Fields whose values are JSON of any shape: text in a Parquet file.
_JSON: Final = {"input", "result", "request", "response", "attributes", "events"}
_NUMBERS: Final = {"started_at", "ended_at", "created_at", "value", "temperature", "top_p"}
_INTEGERS: Final = {"attempt", "choice", "weights_version"}
#: Of an attempt, what a store does not keep: it is the rollout's.
_ELSEWHERE: Final = {"task_id"}
_ROWS_A_GROUP: Final = 1000


def values_of(
    store: TraceStore, kind: str, *, run_id: str | None = None, rollout_ids: Sequence[str] | None = None
) -> Iterator[Any]:
    """The values of one kind, in the order of writing: all of them, or those of a run, or those of some rollouts."""
    if run_id is not None:
        rollout_ids = [rollout.rollout_id for rollout in store.rollouts(run_id=run_id, ids=rollout_ids)]
    if kind == "rollout":
        return iter(store.rollouts(ids=rollout_ids))
    read = {"attempt": store.attempts, "call": store.calls, "reward": store.rewards, "span": store.spans}[kind]
    return iter(read(rollout_ids))


def json_lines(
    store: TraceStore, *, run_id: str | None = None, rollout_ids: Sequence[str] | None = None
) -> Iterator[str]:
    """One JSON object a value: its fields, and ``kind``."""
    for kind in KINDS:
        for value in values_of(store, kind, run_id=run_id, rollout_ids=rollout_ids):
            yield rows.stored_text({"kind": kind, **_fields(value)}, kind)


def write_parquet(
    folder: Path, store: TraceStore, *, run_id: str | None = None, rollout_ids: Sequence[str] | None = None
) -> int:
    """Writes ``rollouts.parquet``, ``attempts.parquet`` and so on to ``folder``, made if need be; returns how many rows.

    Each file is written whole or not at all, a thousand rows at a time. Values of any JSON shape are JSON texts; token
    ids are lists of int32, logprobs lists of float64. Raises `ExportError`. Needs pyarrow (the extra ``train``).
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExportError("Parquet needs pyarrow", hint="pip install 'lgov[train]'") from error
    count = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExportError(f"{folder} cannot be created: {error.strerror}", hint="name another folder") from error
    for kind, shape in KINDS.items():
        schema = pa.schema([(name, _column(pa, name)) for name in _columns(shape)])
        path = folder / f"{kind}s.parquet"
        try:
            with atomic_file(path, ExportError) as beside, pq.ParquetWriter(beside, schema) as writer:
                values = values_of(store, kind, run_id=run_id, rollout_ids=rollout_ids)
                while group := list(itertools.islice(values, _ROWS_A_GROUP)):
                    writer.write_table(pa.Table.from_pylist([_flat(value) for value in group], schema=schema))
                    count += len(group)
        except pa.ArrowException as error:
            raise ExportError(f"{path} cannot be written: {error}", hint="name another folder") from error
    return count


def _columns(shape: type[Any]) -> list[str]:
    """The names of the fields of a kind that are exported."""
    return [field.name for field in fields(shape) if shape is not Attempt or field.name not in _ELSEWHERE]


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _columns(type(value))} | (
        {"events": [asdict(event) for event in value.events]} if isinstance(value, Span) else {}
    )


def _flat(value: Any) -> dict[str, Any]:
    return {
        name: (None if value_ is None else rows.stored_text(value_, name)) if name in _JSON else value_
        for name, value_ in _fields(value).items()
    }


def _column(pa: Any, name: str) -> Any:
    if name in ("prompt_ids", "response_ids"):
        return pa.list_(pa.int32())
    if name == "logprobs":
        return pa.list_(pa.float64())
    if name == "tool_call_ids":
        return pa.list_(pa.string())
    if name == "claimed":
        return pa.bool_()
    if name in _INTEGERS:
        return pa.int64()
    return pa.float64() if name in _NUMBERS else pa.string()
