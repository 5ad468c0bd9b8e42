"""A rollout of each public set: what the agent says in the end, scored by the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from settings.episodes import SettingRunner, run_attempt
from settings.maths import agent as maths_agent

from lgov_core.client.tasks import Resource, Task
from lgov_core.client.wire import Report
from public import equation_agent, path_agent
from public.tasks import Entry, answered, entry

#: So many turns an agent has.
TURNS, PATH_TURNS = 6, 12


class Calculator(maths_agent.Calculator):
    """The calculator, which keeps what it answered too."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[str] = []

    async def calculate(self, expression: str) -> str:
        """Work out an expression."""
        self.results.append(await super().calculate(expression))
        return self.results[-1]


class LegsRunner(SettingRunner):
    """``options``: ``model`` (its name at the endpoint)."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.client = maths_agent.make_client(options["model"])

    async def attempt(self, resource: Resource, work: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        asked, calculator = entry("legs", work["number"]), Calculator()
        text = await maths_agent.answer(self.client, asked.question, calculator, TURNS)
        return _judged(asked, text, failed_calculation(calculator, text, TURNS))


class EquationsRunner(SettingRunner):
    """``options``: ``model`` (its name at the endpoint)."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.agent = equation_agent.make_agent(options["model"])

    async def attempt(self, resource: Resource, work: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        asked, calculator = entry("equations", work["number"]), Calculator()
        text = await equation_agent.answer(self.agent, asked.question, calculator, TURNS)
        return _judged(asked, text, failed_calculation(calculator, text, TURNS))


class PathsRunner(SettingRunner):
    """``options``: ``model`` (its name at the endpoint)."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.agent = path_agent.make_agent(options["model"])

    async def attempt(self, resource: Resource, work: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        asked = entry("paths", work["number"])
        walk = path_agent.Walk(asked.metadata["matrix"])
        text = await path_agent.answer(self.agent, asked.question, walk, PATH_TURNS)
        return _judged(asked, text, failed_walk(walk.taken, text, asked, PATH_TURNS))


def failed_calculation(calculator: Calculator, text: str, turns: int) -> str:
    """The class of a failed calculation, if it failed (`settings.failures.CLASSES`)."""
    number = answered(text)
    if number is None:
        return "late stop" if len(calculator.expressions) >= turns else "format"
    if not calculator.expressions:
        return "early stop"
    if not calculator.results or number != calculator.results[-1]:
        return "copying"
    return "operator"


def failed_walk(taken: Sequence[str], text: str, asked: Entry, turns: int) -> str:
    """The class of a failed walk, if it failed (`settings.failures.CLASSES`)."""
    way = answered(text)
    if way is None:
        return "late stop" if len(taken) >= turns - 2 else "format"
    if (way == "infeasible") != (asked.answer == "infeasible"):
        return "relation"
    if way.split() != list(taken):
        return "copying"
    return "early stop" if asked.score(way) == 0.0 else "late stop"


def _judged(asked: Entry, text: str, failure: str) -> tuple[float, dict[str, Any]]:
    score = asked.score(answered(text))
    kept = {"said": text[:200], "expected": asked.answer, "failure": "" if score == 1.0 else failure}
    return score, kept


def run_legs(resource: Resource, task: Task) -> Report:
    """The agent of the legs that `Client.train` is given."""
    return run_attempt(LegsRunner, resource, task)


def run_equations(resource: Resource, task: Task) -> Report:
    """The agent of the equations that `Client.train` is given."""
    return run_attempt(EquationsRunner, resource, task)


def run_paths(resource: Resource, task: Task) -> Report:
    """The agent of the paths that `Client.train` is given."""
    return run_attempt(PathsRunner, resource, task)
