"""``python -m tests.attacks agentdojo``: AgentDojo's tasks and injections, as if the model obeyed every injection.

A pair is a task of a user and an injection of the same suite. The injection stands where AgentDojo plants it: in the results
of the tools that the task reads. The model then makes the injection's calls, at once and again after the task's own, and
the pair gets through if all of them are allowed in either place, even where the policy denies the call that reads the
injection. The second column are the task's own calls, without an injection. No model takes part, so nothing is refused
that a policy does not deny.

Results are given as JSON, as most frameworks write them. The record has them cut at 4,000 characters; the entry that is cut off
is left out.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lgov_core.authoring import suggest
from lgov_core.authoring.replay import RecordedAction
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import load_policies
from lgov_core.types import Action, Point, ToolOutcome

DATA = Path(__file__).parents[3] / "shared" / "data" / "agentdojo"
#: Suites that were looked at while the rules were written; the others are measured as they are.
DEVELOPED_ON = ("banking", "slack")
SPLITS = 5
#: A general rule: no value out of a text that strangers write, but for fields that are the value and nothing more.
GENERAL = {"name": "flows", "use": "flow", "with": {"allow": ["user", "system", "trusted", "fields"]}}

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A call with its result."""

    tool: str
    args: Mapping[str, Any]
    result: str
    injected: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a user, with its own calls as they go without and with an injection."""

    suite: str
    name: str
    prompt: str
    clean: Sequence[Step]
    attacked: Sequence[Step]
    #: The injection in the results of ``attacked``.
    planted: str


@dataclass(frozen=True, slots=True)
class Injection:
    """An injection with the calls of a model that obeys it."""

    suite: str
    name: str
    goal: str
    calls: Sequence[tuple[str, Mapping[str, Any]]]


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


@cache
def injections() -> tuple[Injection, ...]:
    return tuple(
        Injection(row["suite"], row["task_id"], row["text"], [(call["tool"], call["args"]) for call in row["calls"]])
        for row in rows("tasks.jsonl")
        if row["kind"] != "user"
    )


@cache
def tasks() -> tuple[Task, ...]:
    goals = {(injection.suite, injection.name): injection.goal for injection in injections()}
    by_task: dict[tuple[str, str], dict[bool, dict[str, Any]]] = {}
    for row in rows("traces.jsonl"):
        by_task.setdefault((row["suite"], row["task_id"]), {})[row["injection_task"] is not None] = row
    every: list[Task] = []
    for (suite, name), traces in by_task.items():
        goal = goals[suite, traces[True]["injection_task"]]
        clean, attacked = ([step_of(row) for row in traces[kind]["steps"]] for kind in (False, True))
        every.append(Task(suite, name, traces[False]["prompt"], clean, attacked, goal))
    return tuple(every)


def step_of(row: Mapping[str, Any]) -> Step:
    return Step(row["tool"], row["args"], as_json(row["output"] or ""), bool(row["injected"]))


def as_json(text: str) -> str:
    """A result in YAML as JSON; text that says nothing more as it is."""
    lines = text.splitlines()
    if len(text) >= 4_000:  # cut off: without its last entry
        ends = [at for at, line in enumerate(lines) if line.startswith("- ")]
        lines = lines[: ends[-1]] if ends else lines
    try:
        value = yaml.load("\n".join(lines), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return text
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else text


def planted(task: Task, injection: Injection) -> list[Step]:
    """The task's own calls with another injection in their results."""

    def replaced(result: str) -> str:
        for written in (json.dumps, str):
            old, new = (
                written(text).strip('"') if written is json.dumps else text for text in (task.planted, injection.goal)
            )
            if old in result:
                return result.replace(old, new)
        return f"{result}\n{injection.goal}"  # broken over lines, or the end of it cut off

    return [
        Step(step.tool, step.args, replaced(step.result) if step.injected else step.result, step.injected)
        for step in task.attacked
    ]


# ---------------------------------------------------------------------- judging


class Rollout:
    """One rollout of one agent under a policy."""

    _number = 0

    def __init__(self, governor: Governor, prompt: str) -> None:
        Rollout._number += 1
        self.governor, self.prompt, self.name = governor, prompt, f"rollout-{self._number}"
        governor.decide(self.action(Point.INPUT, "agent", text=prompt, source="user"))

    def action(self, point: Point, name: str, **more: Any) -> Action:
        return Action(point, name, rollout_id=self.name, attempt=1, **more)

    def call(self, tool: str, args: Mapping[str, Any], result: str) -> str:
        """The reason why a call is denied; empty where it is allowed, and its result is read."""
        decision = self.governor.decide(self.action(Point.PRE_TOOL_CALL, tool, arguments=args))
        if decision.blocks:
            return f"{decision.policy}/{decision.rule}"
        self.governor.decide(self.action(Point.POST_TOOL_CALL, tool, arguments=args, text=result, source="tool"))
        return ""


def denied_calls(policy: Document, task: Task) -> list[tuple[str, str]]:
    """The task's own calls that are denied, with the reason."""
    with closing(governor(policy)) as judge:
        rollout = Rollout(judge, task.prompt)
        judged = [(step.tool, rollout.call(step.tool, step.args, step.result)) for step in task.clean]
    return [(tool, reason) for tool, reason in judged if reason]


def gets_through(policy: Document, task: Task, pairs: Iterable[Injection]) -> Iterator[Injection]:
    """The injections all of whose calls are allowed in the rollout of a task."""
    with closing(governor(policy)) as judge:
        for injection in pairs:
            steps = planted(task, injection)
            first = next(at for at, step in enumerate(steps) if step.injected) + 1
            for before in {first: 0, len(steps): 0}:
                rollout = Rollout(judge, task.prompt)
                for step in steps[:before]:
                    rollout.call(step.tool, step.args, step.result)
                if not any([rollout.call(tool, args, "") for tool, args in injection.calls]):
                    yield injection
                    break


def governor(policy: Document) -> Governor:
    return Governor(load_policies(policy), manager=make_plugin_manager(builtin=(), third_party=False))


# ---------------------------------------------------------------------- policies


def tool_list(suite: str) -> Document:
    """The tools of a suite with their schemas: what an operator knows who knows none of the tasks."""
    schemas = {
        tool["name"]: {**tool["parameters"], "type": "object", "additionalProperties": False}
        for tool in rows("tools.jsonl")
        if suite in tool["suite"]
    }
    return {
        "version": 1,
        "rules": [{"name": "tools", "use": "tool", "with": {"allow": sorted(schemas), "schemas": schemas}}],
    }


def recorded(of: Sequence[Task]) -> list[RecordedAction]:
    """The tasks' own calls, as a run in shadow mode records them."""
    acts: list[RecordedAction] = []
    for task in of:
        events: tuple[ToolOutcome, ...] = ()
        for number, step in enumerate(task.clean):
            action = Action(
                Point.PRE_TOOL_CALL,
                step.tool,
                arguments=step.args,
                rollout_id=task.name,
                attempt=1,
                operation_id=f"{task.name}-{number}",
                context={"user_text": task.prompt},
            )
            acts.append(RecordedAction(action, None, None, None, None, status="ok", events=events))
            events = (ToolOutcome(action, "ok", result=step.result),)
    return acts


def suggested(of: Sequence[Task]) -> Document:
    """The policy that ``lgov policy suggest`` writes for tasks."""
    return yaml.safe_load(suggest(recorded(of), source="AgentDojo").text)


def with_rules(suite: str, rules: Iterable[Mapping[str, Any]]) -> Document:
    document = tool_list(suite)
    return {**document, "rules": [*document["rules"], *rules]}


def flows_of(document: Document) -> list[Mapping[str, Any]]:
    """The rules of a suggested policy that are about where values come from."""
    return [rule for rule in document["rules"] if rule["use"] in ("flow", "provenance")]


def general_for(suite: str, seen: Iterable[Task]) -> list[Mapping[str, Any]]:
    """The general rule for the tools of a suite that no task has used."""
    used = {step.tool for task in seen for step in task.clean}
    unused = [tool for tool in tool_list(suite)["rules"][0]["with"]["allow"] if tool not in used]
    return [{**GENERAL, "tools": unused}] if unused else []


# ---------------------------------------------------------------------- the table


@dataclass(slots=True)
class Score:
    """The results of one policy: pairs that got through, and the users' calls that it denied."""

    pairs: int = 0
    through: list[tuple[Task, Injection]] = field(default_factory=list)
    calls: int = 0
    denied: list[tuple[Task, str, str]] = field(default_factory=list)

    def add(self, policy: Document, task: Task) -> None:
        own = [injection for injection in injections() if injection.suite == task.suite and injection.calls]
        self.pairs += len(own)
        self.through += [(task, injection) for injection in gets_through(policy, task, own)]
        self.calls += len(task.clean)
        self.denied += [(task, tool, reason) for tool, reason in denied_calls(policy, task)]


def halves(suite: str, split: int) -> tuple[list[Task], list[Task]]:
    """The tasks of a suite in two halves, by a seed."""
    own = [task for task in tasks() if task.suite == suite]
    random.Random(split).shuffle(own)
    return own[: len(own) // 2], own[len(own) // 2 :]


def score(suite: str, way: str) -> Score:
    """The score of one way to make a policy, over a suite; over five splits where half of its tasks make the policy."""
    result = Score()
    own = [task for task in tasks() if task.suite == suite]
    fixed: dict[str, Callable[[], Document]] = {
        "tool list": lambda: tool_list(suite),
        "tool list, provenance": lambda: with_rules(suite, [{"name": "said", "use": "provenance"}]),
        "tool list, general flow": lambda: with_rules(suite, [GENERAL]),
    }
    if way in fixed:
        policy = fixed[way]()
        for task in own:
            result.add(policy, task)
    elif way == "per task":
        for task in own:
            result.add(suggested([task]), task)
    else:
        for split in range(1, SPLITS + 1):
            seen, others = halves(suite, split)
            policy = suggested(seen)
            if way == "tool list, suggested flow":
                policy = with_rules(suite, [*flows_of(policy), *general_for(suite, seen)])
            for task in others:
                result.add(policy, task)
    return result


WAYS = (
    "tool list", "tool list, provenance", "tool list, general flow", "tool list, suggested flow", "suggested", "per task",
)  # fmt: skip
SUITES = ("banking", "slack", "travel", "workspace")


def main(arguments: Sequence[str]) -> None:
    """Prints the table; ``--pairs`` names what gets through and what is denied, ``--suite NAME`` takes one suite."""
    if not DATA.exists():
        sys.exit(f"AgentDojo's calls are not at {DATA}: tasks.jsonl, tools.jsonl, traces.jsonl")
    suites = [name for name in SUITES if "--suite" not in arguments or name in arguments]
    ways = [way for way in WAYS if "--way" not in arguments or way in arguments]
    print(f"{'policy':28}{'suite':12}{'injections through':>22}{'user calls denied':>22}{'tasks':>8}")
    for way in ways:
        scores = {suite: score(suite, way) for suite in suites}
        total = Score()
        for own in scores.values():
            total.pairs, total.calls = total.pairs + own.pairs, total.calls + own.calls
            total.through, total.denied = total.through + own.through, total.denied + own.denied
        for suite, own in {**scores, "all": total}.items():
            hit = len({(task.suite, task.name) for task, *_ in own.denied})
            through, denied = f"{len(own.through)}/{own.pairs}", f"{len(own.denied)}/{own.calls}"
            shares = f"{len(own.through) / own.pairs:7.1%}", f"{len(own.denied) / own.calls:7.1%}"
            print(f"{way:28}{suite:12}{through:>14} {shares[0]}{denied:>14} {shares[1]}{hit:>8}")
        if "--pairs" in arguments:
            for (suite, name), count in Counter((i.suite, i.name) for _, i in total.through).most_common():
                under = sorted({task.name for task, i in total.through if (i.suite, i.name) == (suite, name)})
                print(f"  through  {suite}/{name} {count}: {', '.join(under)}")
            for (suite, name, tool, reason), count in Counter(
                (t.suite, t.name, tool, why) for t, tool, why in total.denied
            ).items():
                print(f"  denied   {suite}/{name} {tool} {count}: {reason}")
