"""An agent whose prompt is tuned."""

from __future__ import annotations

from typing import Any

from tests.pair.pair_agents import ask


def polite(resource: Any, task: Any) -> float:
    """Is paid when the model answers as the task wants."""
    return float(ask(resource, resource.prompts["greeting"].format(name=task.name)) == task.wanted)
