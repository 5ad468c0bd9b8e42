"""Whatever the policies, the record and the input do: no allow that the policies would not give.

Random sets of well-behaved and broken policies are judged by the governor, synchronously and asynchronously, and compared
with a model of what their answers amount to, written down independently below.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lgov_core.audit import AuditLog
from lgov_core.errors import AuditError
from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import ApprovalPolicy, BoundedPolicy, CostControlPolicy, PolicySet, RateLimitPolicy, Rule
from lgov_core.types import Action, Decision, Effect, Point, Severity
from tests.slow import examples

#: Longer than any answer takes; what hangs is tested apart.
TIMEOUT_S = 60.0

SAYS = {"allow": Effect.ALLOW, "warn": Effect.WARN, "escalate": Effect.ESCALATE, "deny": Effect.DENY}
#: What a broken policy does. Each is a deny in its place, whatever it wanted to say.
BREAKS = (
    "raises",
    "raises a timeout",
    "ends the program",
    "closes a generator",
    "recurses for ever",
    "answers true",
    "answers text",
    "answers an effect",
    "answers a number",
    "answers a decision without a real effect",
    "answers a decision with a severity of its own",
    "answers a transform into nothing",
    "answers a transform into a list",
    "answers parts that are none",
    "answers a class",
    "answers an exception",
)
HARMLESS = ("silent", "mutates and is silent", *SAYS, "mutates and allows")
#: Late answers make the test slow, so there are few.
LATE = "hangs"
AWAITS = "answers an awaitable"


@dataclass(frozen=True)
class Voice:
    """One policy of an example: what it does, and the rule around it."""

    does: str
    bounded: bool
    tools: tuple[str, ...]
    when: Mapping[str, Any] | None
    placed: str


def answer(does: str, action: Action, stop: threading.Event) -> Any:
    """What the policy does when it is asked."""
    if does.startswith("mutates"):
        for own in (action.arguments, action.context):
            if isinstance(own, dict):
                own.clear()
                own["forged"] = True
    does = {"mutates and is silent": "silent", "mutates and allows": "allow"}.get(does, does)
    if does in SAYS:
        return Decision(SAYS[does], policy="voice", reason="because")
    if does == LATE:
        stop.wait()
        return Decision(Effect.ALLOW, policy="voice")
    if does == "raises":
        raise ValueError("allow")
    if does == "raises a timeout":
        raise TimeoutError
    if does == "ends the program":
        raise SystemExit(0)
    if does == "closes a generator":
        raise GeneratorExit
    if does == "recurses for ever":
        return answer(does, action, stop)
    return {
        "silent": None,
        AWAITS: soon(),
        "answers true": True,
        "answers text": "allow",
        "answers an effect": Effect.ALLOW,
        "answers a number": 0,
        "answers a decision without a real effect": Decision("allow", policy="voice"),  # type: ignore[arg-type]
        "answers a decision with a severity of its own": Decision(Effect.ALLOW, "voice", severity="none"),  # type: ignore[arg-type]
        "answers a transform into nothing": Decision(Effect.TRANSFORM, policy="voice"),
        "answers a transform into a list": Decision(Effect.TRANSFORM, "voice", arguments=["x"]),  # type: ignore[arg-type]
        "answers parts that are none": Decision(Effect.ALLOW, policy="voice", parts=(True,)),  # type: ignore[arg-type]
        "answers a class": Decision,
        "answers an exception": ValueError("allow"),
    }[does]


class soon:
    """An awaitable that comes to an allow."""

    def __await__(self) -> Iterator[Any]:
        yield from asyncio.sleep(0).__await__()
        return Decision(Effect.ALLOW, policy="voice")


def policy_of(voice: Voice, stop: threading.Event) -> Any:
    class Unbounded:
        name = "voice"

        def judge(self, action: Action) -> Any:
            return answer(voice.does, action, stop)

    class Bounded(BoundedPolicy):
        name = "voice"
        default_points = tuple(Point)
        permits = True

        def judge(self, action: Action) -> Any:
            return answer(voice.does, action, stop)

    class Plugin:
        @hookimpl
        def lgov_pre_tool_call(self, action: Action) -> Any:
            return answer(voice.does, action, stop)

    class AsyncPlugin:
        @hookimpl
        async def lgov_pre_tool_call(self, action: Action) -> Any:
            await asyncio.sleep(0)
            if voice.does == LATE:
                await asyncio.sleep(3600)
            return answer(voice.does, action, stop)

    made = {"plugin": Plugin, "async plugin": AsyncPlugin}.get(voice.placed)
    return (made or (Bounded if voice.bounded else Unbounded))()


# ---------------------------------------------------------------------- the model

ALLOWS, BLOCKS, NOTHING = "allows", "blocks", None


def condition_says(when: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> bool | None:
    """True, false, or None for "cannot be told", of the one shape of condition that examples have."""
    if when is None:
        return True
    value = arguments.get("n")
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        return None
    return value > when["gt"]


def voice_says(voice: Voice) -> str | None:
    if voice.does in ("silent", "mutates and is silent"):
        return NOTHING
    if voice.does in ("allow", "warn", "mutates and allows"):
        return ALLOWS
    if voice.does == AWAITS and voice.placed in ("plugin", "policy"):
        return ALLOWS  # the governor awaits what it asks itself; a set does not
    return BLOCKS


def set_says(voices: list[Voice], default: str, tool: str, arguments: Mapping[str, Any]) -> str:
    said: list[str | None] = []
    for voice in voices:
        if not any(glob in ("*", tool) or (glob == "ru*" and tool.startswith("ru")) for glob in voice.tools):
            continue
        holds = condition_says(voice.when, arguments)
        said.append(BLOCKS if holds is None else voice_says(voice) if holds else NOTHING)
        if holds and voice.bounded and voice.does.startswith("mutates"):
            arguments = {}  # it is trusted with the real ones, which the conditions after it read
    said = [one for one in said if one is not NOTHING]
    if not said:
        return ALLOWS if default == "allow" else BLOCKS
    return BLOCKS if BLOCKS in said else ALLOWS


def governor_says(voices: list[Voice], default: str, tool: str, arguments: Mapping[str, Any]) -> str:
    in_set = [voice for voice in voices if voice.placed == "rule"]
    said = [set_says(in_set, default, tool, arguments)] if in_set else []
    said += [voice_says(voice) for voice in voices if voice.placed != "rule"]
    said = [one for one in said if one is not NOTHING]
    return ALLOWS if said and BLOCKS not in said else BLOCKS


# ---------------------------------------------------------------------- examples

behaviours = st.one_of(st.sampled_from(HARMLESS), st.sampled_from(HARMLESS), st.sampled_from((*BREAKS, AWAITS)))
places = st.sampled_from(("rule", "rule", "rule", "policy", "plugin", "async plugin"))
globs = st.lists(st.sampled_from(("*", "run", "ru*", "other")), min_size=1, max_size=2).map(tuple)
conditions = st.one_of(st.none(), st.none(), st.integers(-1, 1).map(lambda n: {"field": "arguments.n", "gt": n}))
voices = st.builds(Voice, behaviours, st.booleans(), globs, conditions, places)
values = st.one_of(
    st.integers(-2, 2), st.booleans(), st.none(), st.text(max_size=5), st.floats(), st.lists(st.integers(), max_size=2)
)
argument_maps = st.dictionaries(st.sampled_from(("n", "query", "x")), values, max_size=3)
tools = st.sampled_from(("run", "rub", "other", "Run", "", "x" * 300))


def govern(
    voices: list[Voice], default: str, stop: threading.Event, *, audit: Any = None, timeout_s: float = TIMEOUT_S
) -> Governor:
    rules = [
        Rule(policy_of(voice, stop), name=f"rule{n}", tools=voice.tools, when=voice.when)
        for n, voice in enumerate(voices)
        if voice.placed == "rule"
    ]
    direct = [policy_of(voice, stop) for voice in voices if voice.placed == "policy"]
    plugins = [policy_of(voice, stop) for voice in voices if "plugin" in voice.placed]
    sets = [PolicySet(rules, default=default)] if rules else []  # type: ignore[arg-type]
    manager = make_plugin_manager(builtin=(), third_party=False)
    return Governor([*sets, *direct], plugins=plugins, manager=manager, audit=audit, timeout_s=timeout_s)


def check(decision: Decision, expected: str) -> None:
    assert type(decision) is Decision
    assert decision.blocks == (expected == BLOCKS), decision
    assert decision.reason
    assert decision.rule
    if decision.blocks:
        assert decision.effect in (Effect.ESCALATE, Effect.DENY)
        assert decision.arguments is None
        assert decision.text is None
    assert isinstance(decision.severity, Severity)


def judged(governor: Governor, act: Action) -> Generator[Decision]:
    """The decisions of both ways, one after the other: a policy that is trusted may have changed what the second is about."""
    try:
        yield governor.decide(act)
        yield asyncio.run(governor.adecide(act))
    finally:
        governor.close()


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(voices, max_size=4), st.sampled_from(("deny", "allow")), tools, argument_maps)
@example(
    [Voice("mutates and allows", True, ("*",), {"field": "arguments.n", "gt": 0}, "rule")], "deny", "run", {"n": 1}
)
def test_no_allow_that_the_policies_do_not_give(
    voices: list[Voice], default: str, tool: str, arguments: dict[str, Any]
) -> None:
    expected = governor_says(voices, default, tool, dict(arguments))
    stop = threading.Event()
    act = Action(Point.PRE_TOOL_CALL, tool, arguments=arguments)
    given_out = json.dumps(arguments)
    trusted = any(voice.bounded and voice.placed in ("rule", "policy") for voice in voices)
    for decision in judged(govern(voices, default, stop), act):
        check(decision, expected)
        if not trusted:
            assert json.dumps(arguments) == given_out, "the arguments that will be used are not those that were judged"
        arguments.clear()
        arguments.update(json.loads(given_out))


@pytest.mark.parametrize("placed", ["rule", "policy", "plugin", "async plugin"])
@pytest.mark.parametrize("does", [*BREAKS, AWAITS, "deny", "escalate"])
def test_each_way_to_break_is_a_deny_beside_an_allow(does: str, placed: str) -> None:
    fine = Voice("allow", True, ("*",), None, "rule")
    for bounded in (True, False):
        broken = Voice(does, bounded, ("*",), None, placed)
        for order in ([fine, broken], [broken, fine]):
            governor = govern(order, "allow", threading.Event())
            for decision in judged(governor, Action(Point.PRE_TOOL_CALL, "run")):
                check(decision, governor_says(order, "allow", "run", {}))
                assert decision.fault == (decision.blocks and does not in SAYS)


@pytest.mark.parametrize("placed", ["rule", "policy", "plugin", "async plugin"])
def test_a_policy_that_ends_the_program_is_a_denial_on_record(placed: str, tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.db") as audit:
        governor = govern(
            [Voice("ends the program", False, ("*",), None, placed)], "allow", threading.Event(), audit=audit
        )
        for decision in judged(governor, Action(Point.PRE_TOOL_CALL, "run")):
            assert (decision.rule, "raised SystemExit" in decision.reason) == ("policy-error", True)
        assert [entry.effect for entry in audit.entries() if entry.kind == "decision"] == ["deny", "deny"]


def test_an_interrupt_of_the_program_is_none_of_the_policy() -> None:
    class Interrupted(BoundedPolicy):
        name = "interrupted"

        def judge(self, action: Action) -> Decision:
            raise KeyboardInterrupt  # as Ctrl-C does wherever the program is

    with pytest.raises(KeyboardInterrupt):
        Governor([PolicySet([Rule(Interrupted())])]).decide(Action(Point.PRE_TOOL_CALL, "run"))


@pytest.mark.parametrize("placed", ["rule", "policy", "plugin", "async plugin"])
@pytest.mark.parametrize("default", ["deny", "allow"])
def test_a_policy_that_hangs_is_a_deny_beside_any_others(placed: str, default: str) -> None:
    stop = threading.Event()
    late = Voice(LATE, False, ("*",), None, placed)
    fine = Voice("allow", True, ("*",), None, "rule")
    try:
        for decision in judged(govern([fine, late], default, stop, timeout_s=0.05), Action(Point.PRE_TOOL_CALL, "run")):
            check(decision, BLOCKS)
            assert decision.rule == "policy-timeout"
            assert decision.fault
    finally:
        stop.set()


class Broken:
    """A record that cannot be written."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def commit(self, action: Action, decision: Decision) -> str:
        raise self.error

    def commit_outcome(self, outcome: Any, decision_id: str | None) -> str:
        raise self.error


@settings(max_examples=40, deadline=None)
@given(
    st.lists(voices, max_size=3),
    st.sampled_from(("deny", "allow")),
    st.sampled_from((AuditError("full"), OSError("gone"), ValueError("cannot"), RecursionError())),
)
def test_what_cannot_be_recorded_is_denied(voices: list[Voice], default: str, error: Exception) -> None:
    stop = threading.Event()
    governor = govern(voices, default, stop, audit=Broken(error))
    for decision in judged(governor, Action(Point.PRE_TOOL_CALL, "run", arguments={"n": 1})):
        assert (decision.effect, decision.rule, decision.fault) == (Effect.DENY, "audit-failed", True)


def test_a_real_record_that_is_closed_denies(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.sqlite")
    governor = govern([Voice("allow", True, ("*",), None, "rule")], "allow", threading.Event(), audit=audit)
    assert not governor.decide(Action(Point.PRE_TOOL_CALL, "run")).blocks
    audit.close()
    for decision in judged(governor, Action(Point.PRE_TOOL_CALL, "run")):
        assert decision.rule == "audit-failed"


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from([None, 3, b"run", ["run"], {"a": 1}, object()]), st.sampled_from(("deny", "allow")), globs)
def test_an_action_that_makes_no_sense_is_denied(name: Any, default: str, tools: tuple[str, ...]) -> None:
    voice = Voice("allow", True, tools, None, "rule")
    for decision in judged(govern([voice], default, threading.Event()), Action(Point.PRE_TOOL_CALL, name)):
        check(decision, BLOCKS)


def test_a_policy_cannot_change_what_another_one_judges_or_what_is_done() -> None:
    """One policy forges the arguments, another would allow only the forged ones, or only the true ones."""

    class Forges:
        name = "forges"

        def judge(self, action: Action) -> Decision | None:
            arguments: Any = action.arguments
            arguments["query"] = "SELECT 1"
            arguments["inner"]["list"].append("forged")
            return None

    class Looks:
        name = "looks"

        def judge(self, action: Action) -> Decision:
            good = action.arguments == {"query": "SELECT 1", "inner": {"list": ["forged"]}}
            return Decision(Effect.ALLOW if good else Effect.DENY, "looks", "seen", str(action.arguments))

    mine = {"query": "DROP TABLE t", "inner": {"list": []}}
    for policies in ([PolicySet.of(Forges(), Looks())], [Forges(), Looks()]):
        governor = Governor(policies, manager=make_plugin_manager(builtin=(), third_party=False))
        for decision in judged(governor, Action(Point.PRE_TOOL_CALL, "run", arguments=mine)):
            assert decision.blocks
    assert mine == {"query": "DROP TABLE t", "inner": {"list": []}}


def test_a_transform_is_what_it_was_when_it_was_answered() -> None:
    class Later:
        name = "later"

        def __init__(self) -> None:
            self.mine = {"query": "SELECT 1"}

        def judge(self, action: Action) -> Decision:
            return Decision(Effect.TRANSFORM, "later", "safer", "made safe", arguments=self.mine)

    for nested in (False, True):
        later = Later()
        policies = PolicySet.of(later) if nested else later
        governor = Governor(policies, manager=make_plugin_manager(builtin=(), third_party=False))
        decision = governor.decide(Action(Point.PRE_TOOL_CALL, "run", arguments={"query": "DROP TABLE t"}))
        later.mine["query"] = "DROP TABLE t"
        assert decision.arguments == {"query": "SELECT 1"}
        governor.close()


@pytest.mark.parametrize("says", [math.nan, math.inf, None, "noon"], ids=str)
@pytest.mark.parametrize(
    "limited",
    [
        lambda clock: CostControlPolicy(max_seconds=10, clock=clock),
        lambda clock: RateLimitPolicy(100, 10, clock=clock),
        lambda clock: ApprovalPolicy(clock=clock, approver=lambda _request: True),
    ],
    ids=["cost", "rate", "approval"],
)
def test_a_clock_that_says_no_time_denies(limited: Any, says: Any) -> None:
    said = [1000.0, 1001.0]
    policies = PolicySet([limited(lambda: said.pop(0) if said else says)], default="allow")
    effects = [policies.judge(Action(Point.PRE_TOOL_CALL, "pay", operation_id=str(n))).effect for n in range(3)]
    assert effects == [Effect.ALLOW, Effect.ALLOW, Effect.DENY]
