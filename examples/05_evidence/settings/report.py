"""What a setting's result looks like: tables in Markdown, and a plot of the curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intervals import difference, interval, shown, table, verdict


def tables(result: dict[str, Any]) -> str:
    """The figures of one setting: held-out tasks before and after, by seed and over seeds; whose calls were trained on."""
    rows: list[tuple[str, ...]] = []
    for one in result["runs"]:
        before, after = one["held_out"][0], one["held_out"][-1]
        happened = str(executed(one)) if result["counts_executed"] else "not counted"
        violations = f"{before['violations']:.1%} and {after['violations']:.1%}"
        rows.append((str(one["seed"]), _score(before), _score(after), violations, happened))
    found = result["summary"]
    rows.append(("all", shown(found["before"]), shown(found["after"]), "", ""))
    head = ("seed", "held out before", "held out after", "rollouts with a violation attempted", "executed")
    plan = result["plan"]
    sizes = (
        f"Score: {result['score']}. Model `{plan['model']}`, {plan['warm_steps']} steps of warm start, {plan['updates']} "
        f"updates of {plan['tasks']} tasks x {plan['group']} rollouts, {plan['evaluations']} held-out tasks. "
        f"Gain: {shown(found['gain'], signed=True)}, {verdict(found['gain'])}. {_training(result)} {_agents(result)}"
    )
    return f"{table(head, rows)}\n\n{sizes}"


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The first and the last held-out score and the gain, question by question, over all seeds."""
    first = [one["held_out"][0]["scores"] for one in runs]
    last = [one["held_out"][-1]["scores"] for one in runs]
    return {"before": interval(first), "after": interval(last), "gain": difference(last, first)}


def executed(run: dict[str, Any]) -> int:
    """Attempts in which something forbidden really happened, training included."""
    return sum(one.get("executed", 0) for one in (*run["held_out"], *run["training"]))


def draw(result: dict[str, Any], path: Path) -> None:
    """Training and held-out curves, one pair a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.8), layout="constrained")
    for number, one in enumerate(result["runs"]):
        colour = f"C{number}"
        train, held_out = one["training"], one["held_out"]
        axes.plot([p["updates"] for p in train], [p["score"] for p in train], color=colour, alpha=0.3, linewidth=1)
        low = [p["score"] - p["interval"][0] for p in held_out]
        high = [p["interval"][1] - p["score"] for p in held_out]
        axes.errorbar(
            [p["updates"] for p in held_out],
            [p["score"] for p in held_out],
            yerr=[low, high],
            color=colour,
            marker="o",
            markersize=4,
            capsize=2,
            label=f"held out, seed {one['seed']}",
        )
    axes.set_xlabel("updates (pale: training rollouts)")
    axes.set_ylabel("score")
    axes.set_ylim(0, 1)
    axes.set_title(f"{result['title']} ({result['framework']})", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _score(one: dict[str, Any]) -> str:
    low, high = one["interval"]
    return f"{one['score']:.3f} [{low:.3f}, {high:.3f}]"


def _training(result: dict[str, Any]) -> str:
    """What the rollouts of training scored in the first and in the last quarter of the updates."""
    parts: list[str] = []
    for one in result["runs"]:
        scores = [point["score"] for point in one["training"]]
        quarter = max(len(scores) // 4, 1)
        first, last = scores[:quarter], scores[-quarter:]
        parts.append(f"{sum(first) / quarter:.2f} to {sum(last) / quarter:.2f} (seed {one['seed']})")
    return f"Training rollouts, first to last quarter of the updates: {', '.join(parts)}."


def _agents(result: dict[str, Any]) -> str:
    """Whose calls were recorded, and whose were trained on."""
    parts: list[str] = []
    for agent in sorted({name for one in result["runs"] for name in one["calls"]}):
        recorded = sum(one["calls"].get(agent, {}).get("calls", 0) for one in result["runs"])
        trained = sum(one["trained_transitions"].get(agent, 0) for one in result["runs"])
        parts.append(f"{agent} {recorded:,} ({trained:,} trained on)")
    return f"Recorded calls by agent: {', '.join(parts)}."
