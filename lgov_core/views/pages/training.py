"""A training's figures over its updates, and the transitions that it was given of a rollout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from lgov_core._util.containers import BoundedDict
from lgov_core.audit.lineage import read_attestation, read_lineage
from lgov_core.errors import LgovError
from lgov_core.store import TraceStore
from lgov_core.train.loop.run_files import data_file, flat, read_metrics, train_lines
from lgov_core.transitions import Diagnostic, Transition, assign_credit, build_transitions, read_parquet

#: What is drawn, in this order: title, unit, and the series. A star stands for the rest of a name.
_PANELS: Final = (
    ("Reward by channel", "", ("rewards/*",)),
    ("Rollouts with a violation", "share", ("violation_rate", "denied", "executed")),
    ("Success", "share", ("accuracy",)),
    ("KL to the reference", "nats", ("kl",)),
    ("Entropy", "nats", ("entropy",)),
    ("Clipped tokens", "share", ("clip_fraction",)),
    ("Tokens of a reply", "tokens", ("response_tokens",)),
    ("Model calls of a rollout", "calls", ("turns",)),
    ("Staleness", "versions", ("staleness", "staleness_max")),
    ("Tokens of an update", "tokens", ("tokens", "tokens_run", "tokens_saved")),
    ("Groups", "groups", ("groups", "groups_informative", "groups_alike", "groups_replaced")),
    ("Left out", "", ("lost_rollouts", "lost_attempts", "dropped_spans", "unassigned_rewards", "dropped/*")),
)
_ENDS: Final = {"/mean": "values", "/low": "low", "/high": "high"}


def run_figures(folder: Path | None, after: int) -> dict[str, Any]:
    """The series of the updates after ``after``; empty ones for a folder without metrics. Raises `TrainError`."""
    lines = _lines(folder)
    train = [line for line in train_lines(lines) if line["step"] > after]
    series = _series(train)
    return {
        "steps": [line["step"] for line in train],
        "series": series,
        "panels": [
            {"title": title, "unit": unit, "series": names}
            for title, unit, patterns in _PANELS
            if (names := _chosen(patterns, sorted(series)))
        ],
        "phases": _phases(lines),
        "settings": _settings(folder),
    }


def run_summary(folder: Path | None) -> dict[str, Any]:
    """The row of a folder in the list of runs. Raises `TrainError`."""
    lines = _lines(folder)
    train = train_lines(lines)
    latest = _series(train[-1:])
    statement = last_statement(_newest_checkpoint(folder)) if folder is not None else {}
    update = (statement.get("settings") or {}).get("training") or {}
    model = None if folder is None else start_model(_newest_checkpoint(folder))
    return {
        "steps": len(train),
        "model": None if model is None else Path(model).name,
        "algorithm": update.get("algorithm"),
        "policy": (statement.get("policy") or {}).get("file"),
        "latest": {name: series["values"][0] for name, series in latest.items()},
        "phases": _phases(lines),
    }


def _newest_checkpoint(folder: Path) -> Path:
    return max(folder.glob("checkpoints/step-*"), default=folder)


def _lines(folder: Path | None) -> list[dict[str, Any]]:
    path = None if folder is None else folder / "metrics.jsonl"
    return [] if path is None or not path.is_file() else read_metrics(path)


def _series(train: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every number of the lines by name; a mean with its interval is one series."""
    series: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(train):
        for full, value in flat(line):
            stem, end = _split(full)
            if stem == "step" or (end and full.endswith("/count")):
                continue
            column = series.setdefault(stem, {"values": [None] * len(train), "low": None, "high": None})
            if column[end or "values"] is None:
                column[end or "values"] = [None] * len(train)
            column[end or "values"][number] = value
    return {name: series[name] for name in sorted(series)}


def _split(name: str) -> tuple[str, str]:
    """A series and which of its columns a number is; a number by itself is a value."""
    for end, column in (*_ENDS.items(), ("/count", "count")):
        if name.endswith(end):
            return name.removesuffix(end), column
    return name, ""


def _chosen(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    chosen: list[str] = []
    for pattern in patterns:
        stem = pattern.removesuffix("*")
        chosen += [name for name in names if name == pattern or (stem != pattern and name.startswith(stem))]
    return chosen


def _phases(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations before, during and after the training."""
    return [
        {"phase": line.get("phase"), "step": line.get("step"), "figures": dict(flat(line))}
        for line in lines
        if line.get("phase") not in ("train", "resume", "failed_update")
    ]


def _settings(folder: Path | None) -> Any:
    if folder is None:
        return None
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return last_statement(_newest_checkpoint(folder)).get("settings")


#: Updates after the weights of a rollout in which it is looked for, and step files whose rollouts are remembered.
_LATER: Final = 12
_REMEMBERED: Final = 256
#: Rollouts of a group for which credit is worked out again.
_MOST: Final = 64


@dataclass(frozen=True, slots=True)
class Trained:
    """The transitions of one attempt by call, where they come from, and what is wrong with the data."""

    source: Literal["trainer", "recomputed"] | None
    of_call: Mapping[tuple[str, int], Transition]
    step: int | None = None
    diagnostics: Sequence[Diagnostic] = ()


class TrainedBatches:
    """The batches in the folder of a run. Callable from any thread. ``folder`` None, or without pyarrow: there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._rollouts: BoundedDict[Path, frozenset[str]] = BoundedDict(_REMEMBERED)

    def of_attempt(self, store: TraceStore, rollout_id: str, attempt: int, group: Sequence[str]) -> Trained:
        """The transitions that were trained on, or else those that the default rules make of ``group``, its task's rollouts.

        Raises `StoreError` when the store cannot be read.
        """
        own = build_transitions(store, [rollout_id], need_logprobs=False)
        versions = [
            transition.weights_version for transition in own.transitions if transition.weights_version is not None
        ]
        for step in _steps(versions):
            trained = {
                (transition.response_id, transition.choice): transition
                for transition in self._read(step, rollout_id)
                if transition.attempt == attempt and transition.advantages is not None
            }
            if trained:
                return Trained("trainer", trained, step, own.diagnostics)
        if not 1 < len(group) <= _MOST:
            return Trained(None, {}, None, own.diagnostics)
        try:
            credited = assign_credit(build_transitions(store, group, need_logprobs=False))
        except LgovError:
            return Trained(None, {}, None, own.diagnostics)
        mine = [
            transition
            for transition in credited.transitions
            if (transition.rollout_id, transition.attempt) == (rollout_id, attempt)
        ]
        by_call = {(transition.response_id, transition.choice): transition for transition in mine}
        return Trained("recomputed" if by_call else None, by_call, None, own.diagnostics)

    def _read(self, step: int, rollout_id: str) -> Iterable[Transition]:
        """The transitions of a rollout in the batch of an update; none where the file is missing or not whole."""
        if self._folder is None or not (path := data_file(self._folder, step)).is_file():
            return ()
        try:
            if (rollout_ids := self._rollouts.get(path)) is None:
                import pyarrow.parquet as parquet

                rollout_ids = frozenset(parquet.read_table(path, columns=["rollout_id"]).column(0).to_pylist())
                self._rollouts.put(path, rollout_ids)
            return read_parquet(path, rollout_id) if rollout_id in rollout_ids else ()
        except (ImportError, OSError, ValueError, LgovError):  # without the extra, or while the file is written
            return ()


def _steps(versions: Sequence[int]) -> range:
    """The updates that can have trained on calls of these weights: version 0 is first trained on by update 1."""
    return range(min(versions) + 1, max(versions) + 1 + _LATER) if versions else range(0)


def start_model(checkpoint: Path) -> str | None:
    """The model that training began with, as the checkpoint's own statement names it, unverified."""
    statement = last_statement(checkpoint)
    model = (statement.get("start") or {}).get("model")
    return model if isinstance(model, str) and model else None


def last_statement(checkpoint: Path) -> dict[str, Any]:
    """Reads the last statement in a checkpoint; empty where there is none."""
    try:
        return dict(read_attestation(read_lineage(checkpoint)[-1]).statement["predicate"])
    except (LgovError, OSError, ValueError, LookupError, TypeError):
        return {}
