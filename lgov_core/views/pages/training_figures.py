"""A training's figures over its updates, from the ``metrics.jsonl`` of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lgov_core.train.loop.curves import flat
from lgov_core.train.loop.metrics_log import read_metrics, train_lines
from lgov_core.views.pages.token_texts import last_statement, start_model

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
            for title, unit, wanted in _PANELS
            if (names := _chosen(wanted, sorted(series)))
        ],
        "phases": _phases(lines),
        "settings": _settings(folder),
    }


def run_summary(folder: Path | None) -> dict[str, Any]:
    """What the list of runs shows of a folder. Raises `TrainError`."""
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
        "latest": {name: one["values"][0] for name, one in latest.items()},
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
    for place, line in enumerate(train):
        for full, value in flat(line):
            stem, end = _split(full)
            if stem == "step" or (end and full.endswith("/count")):
                continue
            one = series.setdefault(stem, {"values": [None] * len(train), "low": None, "high": None})
            if one[end or "values"] is None:
                one[end or "values"] = [None] * len(train)
            one[end or "values"][place] = value
    return {name: series[name] for name in sorted(series)}


def _split(name: str) -> tuple[str, str]:
    """A series and which of its columns a number is; a number by itself is a value."""
    for end, column in (*_ENDS.items(), ("/count", "count")):
        if name.endswith(end):
            return name.removesuffix(end), column
    return name, ""


def _chosen(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for pattern in wanted:
        stem = pattern.removesuffix("*")
        found += [name for name in names if name == pattern or (stem != pattern and name.startswith(stem))]
    return found


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
