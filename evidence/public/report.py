"""What a public set's result looks like: the tables of a setting, what was solved before, and what could have been seen."""

from __future__ import annotations

from typing import Any

from intervals import shown_detectable, table
from settings.report import detectable_gain, draw
from settings.report import tables as setting_tables

__all__ = ["draw", "tables"]


def tables(result: dict[str, Any]) -> str:
    """The figures of one set."""
    return f"{setting_tables(result)}\n\n{_before(result)}"


def _before(result: dict[str, Any]) -> str:
    """Held-out tasks before training: pass@1 and pass@k; how small a gain would have been seen, and what training showed."""
    runs, plan = result["runs"], result["plan"]
    (split,) = plan["judged"]
    rows = [
        [
            str(one["seed"]),
            f"{one['before'][split]['solved']:.1%}",
            f"{one['before'][split]['solved_any']:.1%}",
            f"{one['after'][split]['solved']:.1%}",
            f"{one['after'][split]['solved_any']:.1%}",
            str(one["interruptions"]),
        ]
        for one in runs
    ]
    k = plan["held_out_group"]
    head = ("seed", "pass@1 before", f"pass@{k} before", "pass@1 after", f"pass@{k} after", "interruptions")
    seen = shown_detectable(detectable_gain(runs, split))
    return (
        f"Held-out tasks with score 1:\n\n{table(head, rows)}\n\nCould have been seen: a gain of {seen} "
        f"(seeds; '-' for one seed). Held-out entries whose text is that of a training entry: {result['shown']:.1%}."
    )
