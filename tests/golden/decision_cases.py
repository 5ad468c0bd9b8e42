"""Random policy sets and actions, made from numbers: the same number is always the same case.

A case is a governor (policy sets, nested ones among them, policies given directly, plug-ins, one of them perhaps a set) and
one to four actions. Policies allow, warn, transform, escalate, deny, are silent, raise, answer nonsense, answer late, keep
count; some are deferred, some promise bounded cost. `recorded` judges a case and returns everything that it came to as JSON:
decisions with all their parts, what the audit record would hold, what `explain` says, and what each policy was asked.

``python tests/golden/decision_cases.py FILE`` writes all cases as JSON lines, to compare two versions of the code.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lgov_core.audit.entry import EntryWriter
from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import (
    ConstantPolicy,
    CostControlPolicy,
    LoopPolicy,
    PIIPolicy,
    PolicySet,
    RateLimitPolicy,
    Rule,
    SecretsPolicy,
    ToolPolicy,
)
from lgov_core.policies.policy_set import explain
from lgov_core.types import Action, Decision, Effect, Point, Severity

CASES = 20_000
BLOCK = 200
#: Cases whose results are kept in full, to be read.
SAMPLED_EVERY = 400
#: Longer than any answer takes that is not meant to be late, and long enough for a busy machine.
PATIENCE_S = 60.0
LATE_S = 0.03

PLAIN = ("silent", "silent", *("allow",) * 6, "warn", "warn", "escalate", "deny", "abort", "bare allow", "bare deny")
TRANSFORMS = ("adds", "adds", "cleans", "redacts", "redacts and cleans")
SECOND_ROUNDS = ("raw escalates", "raw denies", "clean denies", "clean escalates", "restless")
BROKEN = (
    "raises", "raises a timeout", "recurses", "answers true", "answers text", "answers an effect", "answers a class",
    "answers no effect", "answers no severity", "transforms into nothing", "transforms into a list",
    "transforms into itself", "answers parts that are none", "answers an awaitable",
)  # fmt: skip
TOOLS = (*("run",) * 8, *("read_file", "send") * 3, "Run", "", "two\nlines", "x" * 120)
POINTS = (*(Point.PRE_TOOL_CALL,) * 5, *Point)


class Soon:
    """An awaitable that comes to an allow."""

    def __await__(self) -> Iterator[Any]:
        yield from asyncio.sleep(0).__await__()
        return Decision(Effect.ALLOW, policy="soon")


def _itself() -> dict[str, Any]:
    looped: dict[str, Any] = {}
    looped["itself"] = looped
    return looped


class Voice:
    """A policy that does one thing. ``heard`` is what it was asked, in order, shared by all voices of a case."""

    def __init__(self, does: str, name: str, stop: threading.Event, heard: list[Any], **flags: Any) -> None:
        self.does = does
        self.name = name
        self.stop = stop
        self.heard = heard
        for flag, value in flags.items():
            setattr(self, flag, value)

    def judge(self, action: Action) -> Any:
        self.heard.append([self.name, action.point.value, plain(dict(action.arguments)), action.text])
        return self.answer(action)

    def answer(self, action: Action) -> Any:
        does, name = self.does, self.name
        arguments = dict(action.arguments)
        if does == "silent":
            return None
        if does in ("allow", "warn", "escalate", "deny"):
            return Decision(Effect[does.upper()], name, f"{does}-rule", f"{name} says {does}.", Severity.MEDIUM)
        if does == "abort":
            return Decision(Effect.DENY, name, "abort", "End the run.", Severity.CRITICAL, abort=True)
        if does.startswith("bare"):
            return Decision(Effect[does.split()[1].upper()], policy="" if "allow" in does else name)
        if does == "adds":
            words = [*arguments.get("words", ()), name]
            return Decision(Effect.TRANSFORM, name, arguments={**arguments, "words": list(dict.fromkeys(words))})
        if does in ("cleans", "redacts", "redacts and cleans"):
            cleaned = {key: value for key, value in arguments.items() if key != "raw"} if "cleans" in does else None
            text = (action.text or "").replace("secret", "***") if "redacts" in does else None
            return Decision(Effect.TRANSFORM, name, does.replace(" ", "-"), "Rewritten.", arguments=cleaned, text=text)
        if does in ("raw escalates", "raw denies", "clean denies", "clean escalates"):
            if ("raw" in arguments) != does.startswith("raw"):
                return None
            effect = Effect.ESCALATE if "escalates" in does else Effect.DENY
            return Decision(effect, name, does.replace(" ", "-"), f"The form is {does.split()[0]}.")
        if does == "restless":
            return Decision(Effect.TRANSFORM, name, arguments={**arguments, "n": arguments.get("n", 0) + 1})
        if does == "answers late":
            self.stop.wait()
            return None
        return self.broken(action)

    def broken(self, action: Action) -> Any:
        if self.does == "raises":
            raise KeyError("allow")
        if self.does == "raises a timeout":
            raise TimeoutError
        if self.does == "recurses":
            return self.broken(action)
        return {
            "answers true": True,
            "answers text": "allow",
            "answers an effect": Effect.ALLOW,
            "answers a class": Decision,
            "answers no effect": Decision("allow", policy=self.name),  # type: ignore[arg-type]
            "answers no severity": Decision(Effect.ALLOW, self.name, severity="none"),  # type: ignore[arg-type]
            "transforms into nothing": Decision(Effect.TRANSFORM, policy=self.name),
            "transforms into a list": Decision(Effect.TRANSFORM, self.name, arguments=["x"]),  # type: ignore[arg-type]
            "transforms into itself": Decision(Effect.TRANSFORM, self.name, arguments=_itself()),
            "answers parts that are none": Decision(Effect.ALLOW, self.name, parts=(True,)),  # type: ignore[arg-type]
            "answers an awaitable": Soon(),
        }[self.does]


class PlugIn:
    """A plug-in whose decision hooks are one voice."""

    def __init__(self, voice: Voice) -> None:
        self.voice = voice
        for flag in ("bounded", "deferred", "timeout_s"):
            if hasattr(voice, flag):
                setattr(self, flag, getattr(voice, flag))


class Everywhere(PlugIn):
    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Any:
        return self.voice.judge(action)

    lgov_input = lgov_output = lgov_post_tool_call = lgov_pre_tool_call


class Elsewhere(PlugIn):
    @hookimpl
    async def lgov_pre_tool_call(self, action: Action) -> Any:
        await asyncio.sleep(0)
        return self.voice.judge(action)


class Without(PlugIn):
    @hookimpl
    def lgov_pre_tool_call(self) -> Any:
        return self.voice.judge(Action(Point.PRE_TOOL_CALL, "nothing"))


class Record(EntryWriter):
    """Keeps the fields of entries."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Any] = []

    def append_entry(self, fields: Mapping[str, Any], arguments: Any, content: Any, prefix: str) -> str:
        kept = {name: value for name, value in fields.items() if name != "latency_us"}
        self.entries.append(
            [prefix, plain(kept), *(None if one is None else one.stored for one in (arguments, content))]
        )
        return f"{prefix}_{len(self.entries)}"


class Maker:
    """Makes what one case consists of, in one order, from one source of numbers."""

    def __init__(self, number: int, *, late: bool = False) -> None:
        self.random = random.Random(number)
        self.number = number
        self.stop = threading.Event()
        self.heard: list[Any] = []
        self.names = 0
        self.late = late
        self.slow = False

    def chance(self, of: float) -> bool:
        return self.random.random() < of

    def choice(self, options: Any) -> Any:
        return options[self.random.randrange(len(options))]

    def does(self) -> str:
        if self.late and self.chance(0.5):
            self.late, self.slow = False, True
            return "answers late"
        kind = self.random.random()
        return self.choice(
            PLAIN if kind < 0.6 else TRANSFORMS if kind < 0.8 else SECOND_ROUNDS if kind < 0.94 else BROKEN
        )

    def voice(self) -> Voice:
        self.names += 1
        does, flags = self.does(), {}
        if self.chance(0.15):
            flags["deferred"] = True
        if self.chance(0.6) and does not in ("answers late",):
            flags["bounded"] = True
        if self.chance(0.3):
            flags["permits"] = self.chance(0.5)
        if self.chance(0.2):
            flags["default_points"] = (Point.PRE_TOOL_CALL, Point.OUTPUT)
        if self.chance(0.05):
            flags["listens_at"] = (Point.PRE_TOOL_CALL,)
        return Voice(does, f"v{self.names}", self.stop, self.heard, **flags)

    def leaf(self) -> Any:
        kind = self.random.random()
        if kind < 0.75:
            return self.voice()
        return self.choice((
            lambda: ToolPolicy(allow=["run", "read_file"]),
            lambda: ConstantPolicy(self.choice((Effect.ALLOW, Effect.WARN, Effect.ESCALATE, Effect.DENY))),
            lambda: RateLimitPolicy(self.choice((1, 2)), 3600.0, clock=lambda: 0.0),
            lambda: LoopPolicy(self.choice((1, 2))),
            lambda: CostControlPolicy(max_calls=self.choice((1, 2)), clock=lambda: 0.0),
            lambda: PIIPolicy(action=self.choice(("deny", "redact"))),
            lambda: SecretsPolicy(),
        ))()  # fmt: skip

    def condition(self) -> Any:
        return self.choice((
            {"field": "arguments.n", "gt": self.random.randrange(3)},
            {"field": "arguments.n", "exists": True},
            {"field": "agent", "glob": "clerk-*"},
            {"not": {"field": "arguments.raw", "exists": True}},
            {"any": [{"field": "text", "contains": "secret"}, {"field": "name", "eq": "run"}]},
        ))  # fmt: skip

    def rule(self, depth: int) -> Any:
        policy = self.set_of_rules(depth + 1) if depth < 2 and self.chance(0.1) else self.leaf()
        if self.chance(0.3):
            return policy
        self.names += 1
        more: dict[str, Any] = {}
        if self.chance(0.3):
            more["on"] = [self.choice(POINTS) for _ in range(2)]
        if self.chance(0.4):
            more["tools"] = self.choice((["run"], ["run", "send"], ["r*"], ["*"], ["send"]))
        if self.chance(0.15):
            more["agents"] = ["clerk-*"]
        if self.chance(0.2):
            more["severity"] = self.choice(tuple(Severity))
        if self.chance(0.2):
            more["when"] = self.condition()
        if self.chance(0.15):
            more["permits"] = self.chance(0.5)
        return Rule(policy, name=f"r{self.names}", **more)

    def set_of_rules(self, depth: int = 0) -> PolicySet:
        rules = [self.rule(depth) for _ in range(self.random.randrange(1 if self.chance(0.1) else 2, 6))]
        self.names += 1
        name = f"set{self.names}"
        mode = "shadow" if self.chance(0.12) else "enforce"
        default = "allow" if self.chance(0.3) else "deny"
        return PolicySet(rules, default=default, mode=mode, name=name, digest=f"digest-{name}")  # type: ignore[arg-type]

    def governor(self, record: Record) -> Governor:
        policies: list[Any] = [self.set_of_rules()] if self.chance(0.85) else []
        if self.chance(0.15):
            policies.append(self.leaf())
        if self.chance(0.1):
            policies.append(self.set_of_rules())
        if self.chance(0.1):
            policies.insert(0, self.voice())
        plugins: list[Any] = []
        for kind in (Everywhere, Elsewhere, Without):
            if self.chance(0.12):
                plugins.append(kind(self.voice()))
        if self.chance(0.05):
            plugins.append(self.set_of_rules())
        if self.chance(0.03):
            plugins.append(self.voice())
        return Governor(
            policies,
            plugins=plugins,
            manager=make_plugin_manager(builtin=(), third_party=False),
            audit=record,
            timeout_s=LATE_S if self.slow else PATIENCE_S,
        )

    def action(self, at: int) -> Action:
        arguments: dict[str, Any] = {}
        if self.chance(0.5):
            arguments["n"] = self.choice((0, 1, 2, 5, "five", None, True, 1.5))
        if self.chance(0.4):
            arguments["raw"] = {"rows": [1, [2, 3]], "mail": "ann@example.com"}
        if self.chance(0.2):
            arguments["key"] = "AKIAIOSFODNN7EXAMPLE"
        point = self.choice(POINTS)
        text = self.choice((None, "a secret word", "call +41 44 668 18 00", "plain"))
        return Action(
            point,
            self.choice(TOOLS),
            arguments=arguments,
            text=text if point not in (Point.PRE_TOOL_CALL, Point.PRE_MODEL_CALL) else None,
            agent=self.choice((None, "clerk-1", "boss")),
            framework="golden",
            session_id="s1",
            rollout_id=self.choice((None, "ro_1")),
            call_id=f"call_{at}",
            operation_id=f"op_{self.number}_{at}",
        )


def plain(value: Any) -> Any:
    """What JSON can say of a value."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else f"<{type(value).__name__}>"


def decision_fields(decision: Decision | None) -> Any:
    """A decision with all its parts, without its time."""
    if decision is None:
        return None
    fields: dict[str, Any] = {"is": "/".join((decision.effect.label, decision.policy, decision.rule))}
    fields |= {"reason": decision.reason, "severity": str(decision.severity)}
    flags = [flag for flag in ("abort", "shadowed", "fault", "blocks") if getattr(decision, flag)]
    fields |= {"flags": flags} if flags else {}
    for name in ("arguments", "text", "decision_id", "policy_digest", "approval"):
        value = getattr(decision, name)
        if value not in (None, ""):
            fields[name] = plain(value)
    if decision.parts:
        fields["parts"] = [decision_fields(part) for part in decision.parts]
    return fields


def recorded(number: int) -> dict[str, Any]:
    """Everything that case ``number`` comes to."""
    maker, record = Maker(number, late=number % 100 == 7), Record()
    governor = maker.governor(record)
    actions = [maker.action(at) for at in range(maker.random.randrange(1, 5))]
    result: dict[str, Any] = {"case": number}
    try:
        flow = asyncio.run(_awaited(governor, actions)) if number % 5 == 0 else map(governor.decide, actions)
        result["decisions"] = [decision_fields(decision) for decision in flow]
        result["evaluates"] = [point.value for point in Point if governor.evaluates(point)]
        result["reads_replies"] = governor.reads_replies()
    finally:
        maker.stop.set()
        governor.close()
    result["audit"] = record.entries
    result["heard"] = [] if maker.slow else maker.heard
    if not maker.slow:
        result["sets"], result["explained"] = alone(number)
    return result


async def _awaited(governor: Governor, actions: list[Action]) -> list[Decision]:
    return [await governor.adecide(action) for action in actions]


def alone(number: int) -> tuple[list[Any], list[Any]]:
    """The verdicts of the first set of a case without a governor, and what `explain` says of it to the first action."""
    judged, explained = Maker(number), Maker(number)
    policies, same = judged.set_of_rules(), explained.set_of_rules()
    actions = [judged.action(at) for at in range(2)]
    decisions = [decision_fields(policies.judge(action)) for action in actions]
    explanation = explain(same, actions[0])
    verdicts = [
        [verdict.rule, verdict.covers, decision_fields(verdict.decision), plain(verdict.arguments), verdict.text]
        for verdict in explanation.verdicts
    ]
    return decisions, [verdicts, decision_fields(explanation.decision)]


def line(number: int) -> str:
    """The result of a case as one line of JSON."""
    return json.dumps(recorded(number), sort_keys=True, ensure_ascii=True, separators=(",", ":"))


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w") as out:
        for case in range(int(sys.argv[2]) if len(sys.argv) > 2 else CASES):
            out.write(line(case) + "\n")
