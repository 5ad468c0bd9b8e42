"""``python -m tests.attacks agentdojo``: AgentDojo's tasks and injections, as if the model obeyed every injection.

A pair is a task of a user and an injection of the same suite. The injection stands where AgentDojo plants it: in the results
of the tools that the task reads. The model then makes the injection's calls, at once and again after the task's own, and
the pair gets through if all of them are allowed in either place, even where the policy denies the call that reads the
injection. Where a person is asked and none of them is denied, it would get through if the person approved: a column of its
own. The other columns are the task's own calls, without an injection: denied, and asked about. No model takes part, so nothing
is refused that a policy does not deny.

Results are given as JSON, as most frameworks write them. The data has them cut at 4,000 characters, without the entry that is
cut off; where AgentDojo's environment is installed (``pip install --no-deps agentdojo==0.1.35 deepdiff cachebox orderly-set
docstring_parser email-validator dnspython``) they are whole. Beside them, where inspect_evals is installed, the ground truth of
tasks without injections: of its suite workspace_plus, and of tau2's retail and airline, with what the user knows as what the
user says.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from lgov_core.authoring import suggest
from lgov_core.authoring.replay import RecordedAction
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import dry_run, load_policies
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome
from tests.attacks import workspace_plus
from tests.policies import tau2_tasks

DATA = Path(__file__).parents[3] / "shared" / "data" / "agentdojo"
#: Suites that were looked at while the rules were written; the others are measured as they are.
DEVELOPED_ON = ("banking", "slack")
SPLITS = 5
#: Characters of a result in the data.
MAX_OUTPUT = 4_000
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
        clean, attacked = (steps_of(suite, traces[kind]["steps"], goal if kind else "") for kind in (False, True))
        every.append(Task(suite, name, traces[False]["prompt"], clean, attacked, goal))
    for domain in ("retail", "airline") if tau2_tasks.DATA is not None and tau2_tasks.DATA.is_dir() else ():
        prompts = tau2_tasks.said_by_users(domain)
        calls = [call for call in tau2_tasks.ground_truth(domain) if call.result is not None]
        every += harmless(
            f"tau2 {domain}",
            [(call.task, prompts[call.task], Step(call.tool, call.arguments, call.result or "")) for call in calls],
        )
    if workspace_plus.is_installed():
        calls = workspace_plus.ground_truth()
        every += harmless(
            "workspace+",
            [(call.task, call.prompt, Step(call.tool, call.arguments, json_of(call.result or ""))) for call in calls],
        )
    return tuple(every)


def harmless(suite: str, steps: Iterable[tuple[str, str, Step]]) -> list[Task]:
    """Tasks without injections out of their steps, each with the name of its task and what the user says."""
    by_task: dict[tuple[str, str], list[Step]] = {}
    for name, prompt, step in steps:
        by_task.setdefault((name, prompt), []).append(step)
    return [Task(suite, name, prompt, clean, (), "") for (name, prompt), clean in by_task.items()]


@cache
def environment_of(suite: str) -> tuple[Any, Any] | None:
    """The suite of AgentDojo's package and what runs its tools; None where it is not installed."""
    if (package := importlib.util.find_spec("agentdojo")) is None or not package.submodule_search_locations:
        return None
    pipeline: Any = ModuleType("agentdojo.agent_pipeline")  # whose own imports are the libraries of all models
    pipeline.__path__ = [str(Path(package.submodule_search_locations[0]) / "agent_pipeline")]
    model: Any = ModuleType(f"{pipeline.__name__}.llms.google_llm")
    model.EMPTY_FUNCTION_NAME = ""
    for module in (pipeline, model):
        sys.modules.setdefault(module.__name__, module)
    tools = importlib.import_module("agentdojo.task_suite.load_suites").get_suite("v1.2.2", suite)
    return tools, importlib.import_module("agentdojo.functions_runtime").FunctionsRuntime(tools.tools)


def steps_of(suite: str, trace: Sequence[Mapping[str, Any]], injection: str) -> list[Step]:
    """The steps of a trace; those that were cut with their whole result, where the environment is installed."""
    steps, cut = [step_of(row) for row in trace], [len(row["output"] or "") >= MAX_OUTPUT for row in trace]
    if not any(cut) or (installed := environment_of(suite)) is None:
        return steps
    tools, runtime = installed
    text = f"<INFORMATION>\n{injection}\n</INFORMATION>"
    vectors = dict.fromkeys(tools.get_injection_vector_defaults(), text) if injection else {}
    environment = tools.load_and_inject_default_environment(vectors)
    results = [runtime.run_function(environment, step.tool, dict(step.args))[0] for step in steps]
    return [
        replace(step, result=plain_json(result)) if is_cut else step
        for step, result, is_cut in zip(steps, results, cut, strict=True)
    ]


def plain_json(result: Any) -> str:
    """A result of AgentDojo's environment as JSON."""
    return json.dumps(result, default=lambda value: value.model_dump(mode="json"), ensure_ascii=False)


def step_of(row: Mapping[str, Any]) -> Step:
    return Step(row["tool"], row["args"], as_json(row["output"] or ""), bool(row["injected"]))


def as_json(text: str) -> str:
    """A result of the data, in YAML, as JSON."""
    lines = text.splitlines()
    if len(text) >= MAX_OUTPUT:  # cut off: without its last entry
        ends = [at for at, line in enumerate(lines) if line.startswith("- ")]
        lines = lines[: ends[-1]] if ends else lines
    return json_of("\n".join(lines))


def json_of(text: str) -> str:
    """A result in YAML as JSON; text that says nothing more as it is."""
    try:
        value = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
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

    def call(self, tool: str, args: Mapping[str, Any], result: str, *, approves: bool = False) -> Decision:
        """The decision on a call; the result of one that is allowed is read, or that a person ``approves`` if asked."""
        decision = self.governor.decide(self.action(Point.PRE_TOOL_CALL, tool, arguments=args))
        if not decision.blocks or (approves and decision.effect is Effect.ESCALATE):
            self.governor.decide(self.action(Point.POST_TOOL_CALL, tool, arguments=args, text=result, source="tool"))
        return decision


def cause(tool: str, decision: Decision) -> str:
    """Why a call is decided as it is: the rule, and of flows where the values came from."""
    parts = [part for part in decision.parts or (decision,) if part.effect is decision.effect and part.sources]
    came = {f"{name} from {', '.join(texts[:2])}" for part in parts for name, texts in (part.sources or {}).items()}
    said = {each for each in came if each.endswith((" from user", "from the model"))}
    rule = f"{decision.policy}/{decision.rule}" if decision.blocks else "allowed"
    return f"{tool}: {rule} {'; '.join(sorted(came - said) or sorted(came))[:160]}".strip()


def stopped_calls(policy: Document, task: Task) -> list[tuple[str, Decision]]:
    """The task's own calls that are denied, or that a person is asked about, who approves them."""
    with closing(governor(policy)) as judge:
        rollout = Rollout(judge, task.prompt)
        judged = [(step.tool, rollout.call(step.tool, step.args, step.result, approves=True)) for step in task.clean]
    return [(tool, decision) for tool, decision in judged if decision.blocks]


def gets_through(policy: Document, task: Task, pairs: Iterable[Injection]) -> Iterator[tuple[Injection, str, bool]]:
    """The injections none of whose calls is denied in the rollout of a task, with why the last is decided as it is.

    Each with whether a person is asked about one of its calls.
    """
    with closing(governor(policy)) as judge:
        for injection in pairs:
            steps = planted(task, injection)
            first = next(at for at, step in enumerate(steps) if step.injected) + 1
            ways: list[tuple[bool, str]] = []
            for before in {first: 0, len(steps): 0}:
                rollout = Rollout(judge, task.prompt)
                for step in steps[:before]:
                    rollout.call(step.tool, step.args, step.result)
                decisions = [rollout.call(tool, args, "") for tool, args in injection.calls]
                if not any(decision.effect is Effect.DENY for decision in decisions):
                    asks = any(decision.blocks for decision in decisions)
                    ways.append((asks, cause(injection.calls[-1][0], decisions[-1])))
            if ways:
                asks, why = min(ways)
                yield injection, why, asks


def governor(policy: Document) -> Governor:
    """A governor under a policy. Where a person is asked, nobody answers."""
    rules = [{**rule, "with": {}} if rule["use"] == "approval" else rule for rule in policy["rules"]]
    with dry_run():
        policies = load_policies({**policy, "rules": rules})
    return Governor(policies, manager=make_plugin_manager(builtin=(), third_party=False))


# ---------------------------------------------------------------------- policies


@cache
def offered(suite: str) -> dict[str, Any]:
    """The schemas of the tools of a suite, which its model is offered."""
    if suite == "workspace+":
        return workspace_plus.offered()
    return {tool["name"]: tool["parameters"] for tool in rows("tools.jsonl") if suite in tool["suite"]}


def tool_list(suite: str) -> Document:
    """The tools of a suite with their schemas: what an operator knows who knows none of the tasks."""
    if not offered(suite):
        used = sorted({step.tool for task in tasks() if task.suite == suite for step in task.clean})
        return {"version": 1, "rules": [{"name": "tools", "use": "tool", "with": {"allow": used}}]}
    closed = {"type": "object", "additionalProperties": False}
    schemas = {name: {**schema, **closed} for name, schema in offered(suite).items()}
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
            more: dict[str, Any] = {"status": "ok", "events": events, "offered": offered(task.suite)}
            acts.append(RecordedAction(action, None, None, None, None, **more))
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


# ---------------------------------------------------------------------- the table


@dataclass(slots=True)
class Score:
    """The results of one policy: pairs that got through, or would if a person approved, and the users' calls it stopped."""

    pairs: int = 0
    through: list[tuple[Task, Injection, str]] = field(default_factory=list)
    approved: list[tuple[Task, Injection, str]] = field(default_factory=list)
    calls: int = 0
    denied: list[tuple[Task, str]] = field(default_factory=list)
    asked: list[tuple[Task, str]] = field(default_factory=list)

    def add(self, policy: Document, task: Task) -> None:
        own = [injection for injection in injections() if injection.suite == task.suite and injection.calls]
        self.pairs += len(own)
        for injection, why, asks in gets_through(policy, task, own):
            (self.approved if asks else self.through).append((task, injection, why))
        self.calls += len(task.clean)
        for tool, decision in stopped_calls(policy, task):
            stopped = self.asked if decision.effect is Effect.ESCALATE else self.denied
            stopped.append((task, cause(tool, decision)))

    def __iadd__(self, other: Score) -> Score:
        self.pairs, self.calls = self.pairs + other.pairs, self.calls + other.calls
        for name in ("through", "approved", "denied", "asked"):
            getattr(self, name).extend(getattr(other, name))
        return self


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
                policy = with_rules(suite, flows_of(policy))
            for task in others:
                result.add(policy, task)
    return result


WAYS = (
    "tool list", "tool list, provenance", "tool list, general flow", "tool list, suggested flow", "suggested", "per task",
)  # fmt: skip
SUITES = ("banking", "slack", "travel", "workspace")
#: Tasks without injections, of which nothing may be denied: where inspect_evals is installed.
HARMLESS = {
    "workspace+": workspace_plus.INSTALL,
    "tau2 retail": "pip install --no-deps inspect-evals==0.28.0",
    "tau2 airline": "pip install --no-deps inspect-evals==0.28.0",
}


def main(arguments: Sequence[str]) -> None:
    """Prints the table; ``--pairs`` says of what gets through and what is stopped why, ``--suite NAME`` takes one suite."""
    if not DATA.exists():
        sys.exit(f"AgentDojo's calls are not at {DATA}: tasks.jsonl, tools.jsonl, traces.jsonl")
    known = {task.suite for task in tasks()}
    suites = [name for name in (*SUITES, *HARMLESS) if name in known]
    for name in HARMLESS.keys() - known:
        print(f"{name} is left out: it is not installed ({HARMLESS[name]})")
    suites = [name for name in suites if "--suite" not in arguments or name in arguments]
    ways = [way for way in WAYS if "--way" not in arguments or way in arguments]
    print(f"{'policy':28}{'suite':12}{'injections through':>20}{'if approved':>18}{'user calls denied':>20}", end="")
    print(f"{'asked':>16}{'tasks':>8}")
    for way in ways:
        scores = {suite: score(suite, way) for suite in suites}
        total = Score()
        for suite in scores.keys() & SUITES:
            total += scores[suite]
        for suite, own in {**scores, "all four": total}.items() if total.calls else scores.items():
            hit = len({(task.suite, task.name) for task, _ in (*own.denied, *own.asked)})
            print(
                f"{way:28}{suite:12}{share(own.through, own.pairs):>20}{share(own.approved, own.pairs):>18}"
                f"{share(own.denied, own.calls):>20}{share(own.asked, own.calls):>16}{hit:>8}"
            )
        if "--pairs" in arguments:
            for own in (total, *(scores[suite] for suite in HARMLESS if suite in scores)):
                by_cause(own)


def share(counted: Sequence[Any], of: int) -> str:
    return f"{len(counted)}/{of} {len(counted) / of:7.1%}" if of else "-"


def by_cause(total: Score) -> None:
    """Prints what gets through and what is stopped, sorted by why, each with its tasks."""
    lists: dict[str, list[tuple[str, str]]] = {
        "through": [(why, f"{i.suite}/{i.name}") for _, i, why in total.through],
        "approved": [(why, f"{i.suite}/{i.name}") for _, i, why in total.approved],
        "denied": [(why, f"{task.suite}/{task.name}") for task, why in total.denied],
        "asked": [(why, f"{task.suite}/{task.name}") for task, why in total.asked],
    }
    for kind, entries in lists.items():
        for why, count in Counter(why for why, _ in entries).most_common():
            names = Counter(name for other, name in entries if other == why)
            listed = ", ".join(f"{name} {times}" for name, times in names.most_common())
            print(f"  {kind:8}{count:4}  {why}\n{'':14}{listed}")
