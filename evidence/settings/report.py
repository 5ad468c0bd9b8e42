"""What a setting's result looks like: tables in Markdown, and a plot. Only figures of the same tasks are compared."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intervals import detectable, difference, interval, shown, table, verdict

from lgov_core.train.loop.figures import wilson_interval

#: The questions that are compared, in words. ``held_out`` are those of all held-out splits.
SPLITS = {
    "train": "fixed training tasks",
    "held_out": "held out, all",
    "values": "held out: new values",
    "forms": "held out: new forms and values",
    "development": "development",
    "seeds": "held out: other seeds of the package",
}


def tables(result: dict[str, Any]) -> str:
    """The figures of one setting: before, after and gain by questions and seed; how training went; why attempts failed."""
    parts = (_gains(result), _sizes(result), _courses(result), _failures(result))
    return "\n\n".join(filter(None, parts))


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By split: score before and after and the gain, task by task, over the seeds of ``runs``."""
    found: dict[str, dict[str, Any]] = {}
    for split in ("train", "held_out", *_judged(runs[0])):
        before, after = ([_scores(one[moment], split) for one in runs] for moment in ("before", "after"))
        found[split] = {"before": interval(before), "after": interval(after), "gain": difference(after, before)}
    return found


def detectable_gain(runs: Sequence[dict[str, Any]], split: str) -> float | None:
    """How small a gain on ``split`` would have been seen over the seeds of ``runs``."""
    before, after = ([_scores(one[moment], split) for one in runs] for moment in ("before", "after"))
    return detectable(after, before)


def executed(run: dict[str, Any]) -> int:
    """Attempts in which something forbidden was really done, training included."""
    return sum(one["executed"] for one in (*run["before"].values(), *run["training"], *run["after"].values()))


def draw(result: dict[str, Any], path: Path) -> None:
    """Before and after with intervals, a panel for each kind of question; pale, the rollouts of training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    splits = ("train", *_judged(result["runs"][0]))
    figure, panels = pyplot.subplots(
        1, len(splits), figsize=(3.2 * len(splits), 3.4), sharey=True, layout="constrained"
    )
    for axes, split in zip(panels, splits, strict=True):
        for number, one in enumerate(result["runs"]):
            if split == "train":
                course = one["training"]
                axes.plot([p["updates"] for p in course], [p["score"] for p in course], f"C{number}", alpha=0.3)
            found = summary([one])[split]
            ends = [found["before"], found["after"]]
            axes.errorbar(
                [0, len(one["training"])],
                [end["mean"] for end in ends],
                yerr=[[end["mean"] - end["low"] for end in ends], [end["high"] - end["mean"] for end in ends]],
                color=f"C{number}",
                marker="o",
                markersize=4,
                capsize=2,
                label=f"seed {one['seed']}",
            )
        axes.set_title(SPLITS[split], fontsize=9)
        axes.set_xlabel("updates")
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("score")
    panels[-1].legend(fontsize=8)
    title = f"{result['title']} ({result['framework']})"
    figure.suptitle(textwrap.fill(title, 32 * len(splits)), fontsize=10)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _judged(run: dict[str, Any]) -> list[str]:
    return [split for split in run["before"] if split != "train"]


def _scores(moment: dict[str, Any], split: str) -> list[float | None]:
    """The mean score of each task."""
    if split != "held_out":
        return moment[split]["scores"]
    return [score for name, found in moment.items() if name != "train" for score in found["scores"]]


def _gains(result: dict[str, Any]) -> str:
    rows: list[list[str]] = []
    every = [(str(one["seed"]), summary([one])) for one in result["runs"]]
    if len(every) > 1:
        every.append(("all", result["summary"]))
    for split in every[0][1]:
        for seed, found in every:
            one = found[split]
            gain = one["gain"]
            rows.append(
                [
                    SPLITS[split],
                    seed,
                    shown(one["before"]),
                    shown(one["after"]),
                    shown(gain, signed=True),
                    verdict(gain),
                ]
            )
    return table(("questions", "seed", "before", "after", "gain", "shows"), rows)


def _sizes(result: dict[str, Any]) -> str:
    plan, before = result["plan"], result["runs"][0]["before"]
    train, judged = (len(before[split]["scores"]) for split in ("train", _judged(result["runs"][0])[0]))
    return (
        f"Score: {result['score']}. Model `{plan['model']}`, {plan['warm_steps']} steps of warm start, {plan['updates']} "
        f"updates of {plan['tasks']} tasks x {plan['group']} rollouts; {train} fixed training tasks x "
        f"{plan['fixed_group']} rollouts and {judged} x {plan['held_out_group']} of each held-out kind, "
        f"before and after. {_agents(result)}"
    )


def _courses(result: dict[str, Any]) -> str:
    """How training went, a column a seed."""
    runs = result["runs"]

    def mean(run: dict[str, Any], name: str) -> float:
        return sum(point[name] for point in run["training"]) / len(run["training"])

    def attempted(run: dict[str, Any], moment: str) -> str:
        judged = [run[moment][split] for split in _judged(run)]
        return _share(
            sum(round(one["violations"] * one["rollouts"]) for one in judged), sum(one["rollouts"] for one in judged)
        )

    def solved(run: dict[str, Any]) -> str:
        tasks = sum(score is not None for score in run["before"]["train"]["scores"])
        return _share(round(run["gate"]["train_any"] * tasks), tasks)

    rows = {
        "training tasks solved in any rollout, before": [solved(one) for one in runs],
        "groups alike by the task's score": [f"{mean(one, 'alike'):.0%}" for one in runs],
        "groups trained on": [f"{mean(one, 'groups_informative') / mean(one, 'groups'):.0%}" for one in runs],
        "clipped tokens": [f"{mean(one, 'clip_fraction'):.2%}" for one in runs],
        "drift of log-probabilities": [
            f"{max(point['logprob_drift'] for point in one['training']):.5f}" for one in runs
        ],
        "held-out rollouts with a violation attempted": [
            f"{attempted(one, 'before')} to {attempted(one, 'after')}" for one in runs
        ],
        "violations executed": [str(executed(one)) for one in runs],
        "minutes by the clock, warm start included": [f"{one['seconds'] / 60:.0f}" for one in runs],
        "minutes of CPU time": [f"{one['cpu_seconds'] / 60:.0f}" for one in runs],
    }
    head = ("", *(f"seed {one['seed']}" for one in runs))
    return table(head, [[name, *values] for name, values in rows.items()])


def _share(part: int, whole: int) -> str:
    """A share with its 95 % interval (Wilson)."""
    low, high = wilson_interval(part, max(whole, 1))
    return f"{part / max(whole, 1):.1%} [{low:.1%}, {high:.1%}]"


def _failures(result: dict[str, Any]) -> str:
    """Why held-out attempts failed, shares of all rollouts, all seeds together; nothing where no class is known."""

    def share(moment: str, kind: str) -> str:
        judged = [one[moment][split] for one in result["runs"] for split in _judged(one)]
        return f"{sum(one['failures'][kind] for one in judged) / max(sum(one['rollouts'] for one in judged), 1):.1%}"

    kinds = list(result["runs"][0]["before"]["train"]["failures"])
    known = (one[moment][split] for one in result["runs"] for moment in ("before", "after") for split in _judged(one))
    if not any(figures["failures"][kind] for figures in known for kind in kinds):
        return ""
    rows = [[moment, *(share(moment, kind) for kind in kinds)] for moment in ("before", "after")]
    return f"Why held-out rollouts failed, by the first step that was wrong:\n\n{table(('', *kinds), rows)}"


def _agents(result: dict[str, Any]) -> str:
    """Whose calls were recorded, and whose were trained on."""
    parts: list[str] = []
    for agent in sorted({name for one in result["runs"] for name in one["calls"]}):
        recorded = sum(one["calls"].get(agent, {}).get("calls", 0) for one in result["runs"])
        trained = sum(one["trained_transitions"].get(agent, 0) for one in result["runs"])
        parts.append(f"{agent} {recorded:,} ({trained:,} trained on)")
    return f"Recorded calls by agent: {', '.join(parts)}."
