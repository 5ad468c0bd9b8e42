"""A run's figures over its updates: as a table, as pictures, as TensorBoard scalars. All are views of ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lgov_core._util.atomic_file import atomic_write
from lgov_core.errors import TrainError
from lgov_core.train.loop.metrics_log import read_metrics, train_lines

#: What the table shows: a heading, and the key of the number in a line (see `flat`).
COLUMNS: tuple[tuple[str, str], ...] = (
    ("step", "step"),
    ("return", "mean_return"),
    ("task", "rewards/task/mean"),
    ("held-out", "held-out/mean"),
    ("air", "rewards/air/mean"),
    ("compliance", "rewards/compliance/mean"),
    ("violations", "violation_rate/mean"),
    ("KL", "kl"),
    ("entropy", "entropy"),
    ("clipped", "clip_fraction"),
    ("tokens/reply", "response_tokens"),
    ("turns", "turns"),
    ("staleness", "staleness"),
    ("saved", "tokens_saved"),
    ("alike", "groups_alike"),
    ("replaced", "groups_replaced"),
    ("lost", "lost_rollouts"),
)

#: The pictures: a title, and the series in it. A series with ``/mean`` is drawn with its interval.
_PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reward by channel (95 %)", ("rewards/*/mean",)),
    ("reward on held-out tasks (95 %)", ("held-out/mean",)),
    ("rollouts with a violation (95 %)", ("violation_rate/mean",)),
    ("KL to the reference", ("kl",)),
    ("entropy", ("entropy",)),
    ("clipped share", ("clip_fraction",)),
    ("tokens a reply", ("response_tokens",)),
    ("turns a rollout", ("turns",)),
    ("staleness of calls", ("staleness", "staleness_max")),
    ("tokens of an update", ("tokens", "tokens_run", "tokens_saved")),
    ("groups", ("groups", "groups_informative", "groups_alike", "groups_replaced")),
    (
        "lost, and diagnostics",
        ("lost_rollouts", "lost_attempts", "dropped_spans", "unassigned_rewards", "diagnostics/*"),
    ),
)


def read_run(path: Path) -> list[dict[str, Any]]:
    """The lines of ``path``, a ``metrics.jsonl`` or the folder of a run. Raises `TrainError`."""
    found = path / "metrics.jsonl" if path.is_dir() else path
    if not found.is_file():
        raise TrainError(f"there is no metrics.jsonl in {path}", hint="name a run's folder")
    return read_metrics(found)


def flat(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a line with its name; names of what is within one another are joined by ``/``."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)


def table(lines: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the updates' figures; a column that no line has a number for is left out."""
    tests = _held_out(lines)
    found = [dict(flat(line)) | tests.get(line["step"], {}) for line in train_lines(lines)]
    shown = [(heading, name) for heading, name in COLUMNS if any(name in line for line in found)]
    return [heading for heading, _ in shown], [[_shown(line.get(name)) for _, name in shown] for line in found]


def draw(lines: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draws the figures over the updates into the picture ``path`` (PNG, or another type that matplotlib knows by its name).

    Raises `TrainError` when there is no update, matplotlib is missing, or the plot cannot be written.
    """
    train = [dict(flat(line)) for line in train_lines(lines)]
    if not train:
        raise TrainError("there is no update to draw", hint="wait for the first line of metrics.jsonl")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise TrainError("pictures need matplotlib", hint='pip install "lgov[train]"') from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    tests = list(_held_out(lines).values())
    names = sorted({name for line in (*train, *tests) for name in line})
    panels = [(title, chosen) for title, wanted in _PANELS if (chosen := _chosen(wanted, names))]
    across = 3
    down = max(1, -(-len(panels) // across))
    figure, axes = plt.subplots(down, across, figsize=(4.4 * across, 3.0 * down), layout="constrained", squeeze=False)
    places: list[Any] = list(axes.flat)
    for axis, (title, chosen) in zip(places, panels, strict=False):
        for name in chosen:
            _line(axis, tests if name.startswith("held-out/") else train, name)
        axis.set(title=title, xlabel="updates")
        if len(chosen) > 1:
            axis.legend(fontsize="small")
    for axis in places[len(panels) :]:
        axis.remove()
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise TrainError(f"{path} cannot be written: {error}", hint="name a file such as curves.png") from error
    finally:
        plt.close(figure)
    return path


def _held_out(lines: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """The task reward on held-out tasks, with its interval, by the number of updates before it; the last of each."""
    found: dict[int, dict[str, float]] = {}
    for line in lines:
        if line.get("phase") == "test" and line.get("reward") is not None:
            mean, half = float(line["reward"]), float(line.get("reward_half_width") or 0.0)
            values = {"held-out/mean": mean, "held-out/low": mean - half, "held-out/high": mean + half}
            found[line["step"]] = {"step": line["step"], **values}
    return found


def write_tensorboard(lines: Sequence[Mapping[str, Any]], folder: Path) -> int:
    """Writes every number of every line as a TensorBoard scalar ``phase/name`` at its step; returns how many.

    The folder must be empty or hold such files only, which are replaced: calling it again shows each update once. Raises
    `TrainError` when tensorboard is missing, or the folder holds something else.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainError("TensorBoard scalars need tensorboard", hint='pip install "lgov[tensorboard]"') from error
    old = list(folder.iterdir()) if folder.is_dir() else []
    mark = folder / "written-by-lgov"
    if old and mark not in old:
        raise TrainError(f"{folder} is not empty", hint="name a folder of its own for the scalars")
    for path in old:
        path.unlink()
    atomic_write(mark, b"")
    count = 0
    others = [line for line in lines if line.get("phase") != "train"]
    with SummaryWriter(str(folder)) as writer:
        for line in [*train_lines(lines), *others]:
            for name, value in flat(line):
                if name != "step":
                    writer.add_scalar(f"{line.get('phase', 'other')}/{name}", value, int(line.get("step", 0)))
                    count += 1
    return count


def _chosen(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for pattern in wanted:
        before, star, after = pattern.partition("*")
        found += [
            name
            for name in names
            if (name == pattern if not star else name.startswith(before) and name.endswith(after) and name != before)
        ]
    return found


def _line(axis: Any, train: Sequence[Mapping[str, float]], name: str) -> None:
    points = [(line["step"], line[name]) for line in train if name in line]
    axis.plot(*zip(*points, strict=True), marker="." if len(points) < 30 else None, label=name.removesuffix("/mean"))
    if name.endswith("/mean"):
        stem = name.removesuffix("mean")
        band = [
            (line["step"], line[f"{stem}low"], line[f"{stem}high"])
            for line in train
            if f"{stem}low" in line and f"{stem}high" in line
        ]
        if band:
            axis.fill_between(*zip(*band, strict=True), alpha=0.2)


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:.4g}"
