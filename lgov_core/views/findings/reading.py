"""Reads the evidence of a run folder or of a trace store; what is not there is left out, never guessed.

Of a long run only some updates are read: the first and the last quarter, at most ten each, and the last ten; from the
store at most 512 rollouts of either end. So time and memory do not grow with the length of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from lgov_core.errors import LgovError, TransitionError
from lgov_core.store import TraceStore, open_store
from lgov_core.train.loop.metrics_log import read_metrics, train_lines
from lgov_core.transitions.reading.reward_targets import INTERMEDIATE
from lgov_core.views.findings.evidence import Evidence, RecordedRollout, TrainedRollout
from lgov_core.views.findings.recorded import recorded_rollouts, trained_rollouts

_UPDATES: Final = 10
_ROLLOUTS: Final = 512
#: Rollouts whose calls are held in memory at a time.
_AT_ONCE: Final = 32
_COLUMNS: Final = ("rollout_id", "attempt", "task_id", "rewards", "credit", "truncated", "set_aside")


def read_evidence(place: str) -> Evidence:
    """The evidence in ``place``: the folder of a run, or a trace store (a path or an address).

    Raises `StoreError`, `TrainError` or `TransitionError` for what is not there or cannot be read.
    """
    folder = Path(place)
    if not folder.is_dir():
        with closing(open_store(place, make=False)) as store:
            return _of_store(store)
    if not any((folder / name).exists() for name in ("metrics.jsonl", "transitions", "store.sqlite")):
        raise LgovError(f"there is no run in {folder}", hint="name a folder with a metrics.jsonl, or a trace store")
    lines = read_metrics(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    file = folder / "store.sqlite"
    batches = {int(path.stem.removeprefix("step-")): path for path in (folder / "transitions").glob("step-*.json")}
    if not file.exists():
        return _of_run(lines, batches, None, {})
    with closing(open_store(file, make=False)) as store:
        if not batches:
            return _of_store(store, lines)
        return _of_run(lines, batches, store, _violated(folder / "oracle.jsonl"))


def _of_run(
    lines: Sequence[Mapping[str, Any]],
    batches: Mapping[int, Path],
    store: TraceStore | None,
    oracle: Mapping[str, bool],
) -> Evidence:
    steps = sorted(batches)
    quarter = max(1, min(_UPDATES, len(steps) // 4))
    first, last = (steps[:quarter] if len(steps) > 1 else []), steps[-quarter:]
    recent = steps[-_UPDATES:]
    read = {step: _batch(step, batches[step].with_suffix(".parquet")) for step in {*first, *last, *recent}}

    def rollouts(chosen: Sequence[int]) -> list[TrainedRollout]:
        return [one for step in chosen for one in read[step]]

    early, late = rollouts(first), rollouts(recent)
    recorded: dict[str, RecordedRollout] = {}
    if store is not None:
        ids = [one.rollout_id for one in (*early[:_ROLLOUTS], *late[-_ROLLOUTS:])]
        for _, found in _portions(store, ids, oracle):
            recorded |= found
    return Evidence(train_lines(lines), _failed(lines), early, rollouts(last), late, recorded)


def _of_store(store: TraceStore, lines: Sequence[Mapping[str, Any]] = ()) -> Evidence:
    rollouts = sorted(store.rollouts(), key=lambda one: (one.created_at, one.rollout_id))
    every = [one.rollout_id for one in rollouts if not one.held_out]
    quarter = min(_ROLLOUTS, len(every) // 4)
    recent = every[-_ROLLOUTS:]
    trained: dict[str, TrainedRollout] = {}
    recorded: dict[str, RecordedRollout] = {}
    for portion, found in _portions(store, list(dict.fromkeys([*every[:quarter], *recent])), {}):
        trained |= {one.rollout_id: one for one in portion}
        recorded |= found

    def chosen(ids: Sequence[str]) -> list[TrainedRollout]:
        return [trained[one] for one in ids if one in trained]

    late = every[-quarter:] if quarter else []
    return Evidence(train_lines(lines), _failed(lines), chosen(every[:quarter]), chosen(late), chosen(recent), recorded)


def _portions(
    store: TraceStore, ids: Sequence[str], oracle: Mapping[str, bool]
) -> Iterator[tuple[list[TrainedRollout], dict[str, RecordedRollout]]]:
    for start in range(0, len(ids), _AT_ONCE):
        portion = ids[start : start + _AT_ONCE]
        rollouts, attempts = store.rollouts(ids=portion), store.attempts(portion)
        calls, rewards, spans = list(store.calls(portion)), store.rewards(portion), store.spans(portion)
        yield (
            trained_rollouts(rollouts, attempts, calls, rewards),
            recorded_rollouts(rollouts, calls, rewards, spans, oracle),
        )


def _batch(step: int, path: Path) -> list[TrainedRollout]:
    """The rollouts of one update. Only the columns that are needed are read: no tokens."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        raise TransitionError("Parquet needs pyarrow", hint='pip install "lgov[train]"') from error
    try:
        rows: list[dict[str, Any]] = pq.read_table(path, columns=list(_COLUMNS)).to_pylist()
    except (OSError, ValueError, LookupError, pa.ArrowException) as error:
        raise TransitionError(f"{path} cannot be read as transitions: {error}") from error
    by_rollout: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_rollout[row["rollout_id"]].append(row)
    return [_rollout(step, rollout_id, turns) for rollout_id, turns in by_rollout.items()]


def _rollout(step: int, rollout_id: str, turns: Sequence[Mapping[str, Any]]) -> TrainedRollout:
    rewards: dict[str, float] = defaultdict(float)
    air: list[float] = []
    for turn in turns:
        for pair in () if turn["set_aside"] else turn["rewards"]:
            rewards[pair["dimension"]] += pair["value"]
            if pair["dimension"] == INTERMEDIATE:
                air.append(pair["value"])
    credits = [turn["credit"] for turn in turns if turn["credit"] is not None]
    return TrainedRollout(
        rollout_id,
        (step, turns[0]["task_id"]),
        dict(rewards),
        tuple(air),
        any(credits) if credits else None,
        len(turns),
        sum(turn["truncated"] for turn in turns),
    )


def _failed(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The failed updates that no later line made good."""
    made = max((line["step"] for line in train_lines(lines)), default=0)
    return [line for line in lines if line.get("phase") == "failed_update" and line.get("step", 0) > made]


def _violated(path: Path) -> dict[str, bool]:
    """What an ``oracle.jsonl`` says of rollouts, over their attempts."""
    found: dict[str, bool] = {}
    for entry in read_metrics(path) if path.exists() else ():
        name = str(entry.get("rollout_id"))
        found[name] = found.get(name, False) or bool(entry.get("violated"))
    return found
