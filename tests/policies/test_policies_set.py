"""PolicySet: which rules are asked, how their answers become one, and that it fails closed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lgov_core.errors import PolicyError
from lgov_core.governor import Governor
from lgov_core.hookspecs import DECISION_HOOKS
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import (
    ConstantPolicy,
    EgressPolicy,
    Policy,
    PolicySet,
    Rule,
    SecretsPolicy,
    SQLPolicy,
    ToolPolicy,
    load_policies,
)
from lgov_core.types import Action, Decision, Effect, Point, Severity


@dataclass
class Judging:
    """A policy made of a function; remembers what it was asked."""

    answer: Callable[[Action], Any]
    name: str = "judging"

    def __post_init__(self) -> None:
        self.asked: list[Action] = []

    def judge(self, action: Action) -> Decision | None:
        self.asked.append(action)
        return self.answer(action)


def says(effect: Effect, **more: Any) -> Judging:
    return Judging(lambda _action: Decision(effect, policy="says", **more))


def act(name: str = "run_sql", point: Point = Point.PRE_TOOL_CALL, **more: Any) -> Action:
    return Action(point, name, **more)


def adds(word: str) -> Judging:
    def answer(action: Action) -> Decision:
        words = [*action.arguments.get("words", []), word]
        return Decision(Effect.TRANSFORM, policy=word, arguments={**action.arguments, "words": words})

    return Judging(answer, word)


def test_an_empty_set_denies_every_act_and_nothing_else() -> None:
    for kind in ("function", "handoff", "agent", "mcp"):
        decision = PolicySet().judge(act(kind=kind))
        assert (decision.effect, decision.rule) == (Effect.DENY, "default")
    for point in Point:
        assert PolicySet().judge(act(point=point)).blocks == (point is Point.PRE_TOOL_CALL)


def test_the_default_answers_when_nobody_has_an_opinion() -> None:
    silent = Judging(lambda _action: None)
    assert PolicySet.of(silent).judge(act()).rule == "default"
    assert PolicySet.of(silent).judge(act()).blocks
    assert not PolicySet.of(silent, default="allow").judge(act()).blocks
    assert not PolicySet.of(silent, says(Effect.ALLOW)).judge(act()).blocks
    assert PolicySet.of(silent, says(Effect.DENY), default="allow").judge(act()).blocks


def test_a_rule_covers_points_tools_and_agents() -> None:
    policy = says(Effect.DENY)
    rule = Rule(policy, on=(Point.PRE_TOOL_CALL, Point.OUTPUT), tools=("run_*",), agents=("clerk-*",))
    judges = PolicySet([rule], default="allow")
    assert judges.judge(act(agent="clerk-1")).blocks
    assert judges.judge(act(agent="clerk-1", point=Point.OUTPUT)).blocks
    assert not judges.judge(act(agent="clerk-1", point=Point.INPUT)).blocks
    assert not judges.judge(act("Run_sql", agent="clerk-1")).blocks
    assert not judges.judge(act(agent="Clerk-1")).blocks
    assert not judges.judge(act()).blocks
    assert len(policy.asked) == 2


class AtOutput(Judging):
    default_points = (Point.OUTPUT,)


def test_a_name_with_a_line_end_is_no_name_that_a_glob_means() -> None:
    policies = PolicySet([Rule(ConstantPolicy(Effect.ALLOW), tools=["read_*"])], default="allow")
    judged = [policies.judge(Action(Point.PRE_TOOL_CALL, name)) for name in ("read_file", "read_file\n", "read_\0file")]
    assert [decision.rule for decision in judged] == ["allow", "action-unclear", "action-unclear"]
    assert [decision.blocks for decision in judged] == [False, True, True]
    assert {decision.policy for decision in judged[1:]} == {policies.name}


@pytest.mark.parametrize(("kind", "points"), [(Judging, tuple(Point)), (AtOutput, (Point.OUTPUT,))])
def test_a_rule_without_points_uses_the_policys_own(kind: type[Judging], points: tuple[Point, ...]) -> None:
    for make in (lambda p: PolicySet.of(p), lambda p: PolicySet([Rule(p)]), lambda p: PolicySet.of(PolicySet.of(p))):
        policy = kind(lambda _action: None)
        judges = make(policy)
        for point in Point:
            judges.judge(act(point=point))
        assert tuple(action.point for action in policy.asked) == points
    document = {"version": 1, "rules": [{"use": "mine"}]}
    policy = kind(lambda _action: None)
    (rule,) = load_policies(document, registry={"mine": lambda *, name: policy}).rules
    assert rule.on == points
    assert Rule(ConstantPolicy(Effect.DENY)).on == (Point.PRE_TOOL_CALL,)


def test_a_point_in_plain_words_is_the_point() -> None:
    assert PolicySet.of(ToolPolicy(allow=["search"])).judge(Action("pre_tool_call", "rm")).blocks  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pre_tool_cal"):
        Action("pre_tool_cal", "rm")  # type: ignore[arg-type]


def test_the_most_severe_effect_wins() -> None:
    decision = PolicySet.of(
        says(Effect.WARN),
        says(Effect.DENY, rule="first"),
        says(Effect.ALLOW),
        says(Effect.DENY, rule="second", abort=True),
    ).judge(act())
    assert (decision.effect, decision.rule) == (Effect.DENY, "first")
    assert [part.effect.label for part in decision.parts] == ["warn", "deny", "allow", "deny"]
    assert decision.abort
    assert PolicySet.of(says(Effect.WARN), says(Effect.ESCALATE)).judge(act()).effect is Effect.ESCALATE


def test_transforms_fold_in_order() -> None:
    last = Judging(lambda _action: None)
    decision = PolicySet.of(adds("one"), adds("two"), last).judge(act(arguments={"n": 1}))
    assert decision.effect is Effect.TRANSFORM
    assert decision.arguments == {"n": 1, "words": ["one", "two"]}
    assert last.asked[0].arguments == decision.arguments


def test_a_blocked_act_carries_no_new_arguments() -> None:
    decision = PolicySet.of(adds("one"), says(Effect.DENY)).judge(act())
    assert decision.blocks
    assert decision.arguments is None


def test_text_is_folded_too() -> None:
    redact = Judging(lambda a: Decision(Effect.TRANSFORM, "redact", text=(a.text or "").replace("secret", "***")))
    shout = Judging(lambda a: Decision(Effect.TRANSFORM, "shout", text=(a.text or "").upper()))
    decision = PolicySet.of(redact, shout).judge(act(point=Point.OUTPUT, text="the secret word"))
    assert decision.text == "THE *** WORD"


async def later(_action: Action) -> Decision:
    return Decision(Effect.ALLOW, policy="later")


def boom(action: Action) -> Decision:
    raise KeyError("password=hunter2")


@pytest.mark.parametrize(
    "answer",
    [
        boom,
        later,
        lambda _action: True,
        lambda _action: "allow",
        lambda _action: Effect.ALLOW,
        lambda _action: Decision("allow", policy="x"),  # type: ignore[arg-type]
        lambda _action: Decision(Effect.TRANSFORM, policy="x"),
    ],
)
def test_a_broken_policy_is_a_deny_in_its_slot(answer: Callable[[Action], Any]) -> None:
    after = says(Effect.ALLOW)
    decision = PolicySet.of(Judging(answer, "broken"), after, default="allow").judge(
        act(arguments={"query": "hunter2"})
    )
    assert (decision.effect, decision.policy, decision.rule) == (Effect.DENY, "broken", "policy-error")
    assert decision.severity is Severity.CRITICAL
    assert "broken" in decision.reason
    assert "hunter2" not in decision.reason
    assert len(after.asked) == 1, "the verdicts of the others must still be taken"
    assert len(decision.parts) == 2


def test_the_class_of_the_error_is_named() -> None:
    assert "KeyError" in PolicySet.of(Judging(boom)).judge(act()).reason


def test_shadow_judges_and_records_but_does_nothing() -> None:
    judges = PolicySet(
        [Rule(adds("one")), Rule(says(Effect.DENY, rule="no", abort=True)), Rule(Judging(boom))], mode="shadow"
    )
    decision = judges.judge(act(arguments={}))
    assert (decision.effect, decision.shadowed, decision.abort) == (Effect.ALLOW, True, False)
    assert decision.arguments is None
    assert [part.effect.label for part in decision.parts] == ["transform", "deny", "deny"]
    assert all(part.shadowed for part in decision.parts)
    uncovered = PolicySet(mode="shadow").judge(act())
    assert uncovered.effect is Effect.ALLOW
    assert [part.effect.label for part in uncovered.parts] == ["deny"]


def test_a_rule_may_set_the_severity_of_denials() -> None:
    judges = PolicySet([Rule(says(Effect.DENY, severity=Severity.LOW), severity=Severity.CRITICAL)])
    assert judges.judge(act()).severity is Severity.CRITICAL
    assert PolicySet([Rule(says(Effect.WARN), severity=Severity.CRITICAL)]).judge(act()).severity is Severity.LOW


def test_it_is_bounded_when_all_its_policies_are() -> None:
    assert PolicySet.of(ToolPolicy(allow=[]), SQLPolicy(dialect="sqlite")).bounded
    assert not PolicySet.of(ToolPolicy(allow=[]), says(Effect.ALLOW)).bounded
    assert not PolicySet.of(PolicySet.of(says(Effect.ALLOW))).bounded


def test_sets_nest() -> None:
    inner = PolicySet.of(ToolPolicy(allow=["run_sql"]), SQLPolicy(dialect="sqlite"))
    decision = PolicySet.of(adds("one"), inner).judge(act(arguments={"query": "DROP TABLE t"}))
    assert decision.rule == "sql-denied-statement"
    assert [part.policy for part in decision.parts] == ["one", "tool", "SQLPolicy"]


def test_a_set_is_a_policy_and_a_plugin_for_a_governor() -> None:
    judges = PolicySet.of(ToolPolicy(allow=["run_sql"]), SQLPolicy(dialect="sqlite", tools=["run_sql"]))
    assert isinstance(judges, Policy)
    manager = make_plugin_manager([judges], builtin=(), third_party=False)
    for hook in DECISION_HOOKS:
        assert [impl.plugin.policy for impl in getattr(manager.hook, hook).get_hookimpls()] == [judges]
    as_plugin = Governor(manager=manager)
    as_policy = Governor(judges, manager=make_plugin_manager(builtin=(), third_party=False))
    for governor in (as_plugin, as_policy):
        assert governor.decide(act(arguments={"query": "SELECT 1"})).effect is Effect.ALLOW
        assert governor.decide(act(arguments={"query": "DROP TABLE t"})).rule == "sql-denied-statement"
        assert governor.decide(act("rm")).rule == "tool-unknown"
        assert governor.decide(act(point=Point.OUTPUT, text="done")).effect is Effect.ALLOW
        governor.close()


def test_each_hook_judges() -> None:
    judges = PolicySet([Rule(ConstantPolicy(Effect.DENY), on=tuple(Point))])
    manager = make_plugin_manager([judges], builtin=(), third_party=False)
    for point in Point:
        (decision,) = getattr(manager.hook, f"lgov_{point.value}")(action=act(point=point))
        assert decision.blocks


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(PolicyError, match="deny, allow"):
        PolicySet(default="block")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="enforce, shadow"):
        PolicySet(mode="audit")  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="not a policy"):
        PolicySet.of(print)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="constant"):
        ConstantPolicy(Effect.TRANSFORM)


def test_judging_leaves_the_action_as_it_was() -> None:
    action = act(arguments={"n": 1})
    before = replace(action)
    PolicySet.of(adds("one")).judge(action)
    assert action == before


def test_every_part_has_a_rule_a_slug_and_a_reason() -> None:
    silent = Judging(lambda _action: None, "silent")
    nameless = [says(effect) for effect in (Effect.ALLOW, Effect.WARN, Effect.ESCALATE, Effect.DENY)]
    rules = [
        Rule(ToolPolicy(allow=["run_sql"]), name="known-tools"),
        Rule(adds("one"), name="adds-one"),
        Rule(Judging(boom), name="broken"),
        Rule(ConstantPolicy(Effect.ALLOW), name="limit", when={"field": "arguments.n", "gt": 1}),
        *(Rule(policy, name=f"nameless-{n}") for n, policy in enumerate(nameless)),
    ]
    for judges in (PolicySet([rule]) for rule in [*rules, Rule(silent)]):
        for act_ in (act(), act("rm"), act(point=Point.OUTPUT), act(arguments={"n": 2})):
            for decision in (judges.judge(act_), judges.in_shadow().judge(act_)):
                for part in (decision, *decision.parts):
                    assert part.policy
                    assert part.rule
                    assert part.reason
                    assert not part.reason.startswith(" ")
    parts = PolicySet(rules).judge(act(arguments={"n": 2})).parts
    assert [part.policy for part in parts] == [rule.name for rule in rules]


def test_only_a_denial_that_is_all_fault_is_one() -> None:
    broken, denies = Judging(boom, "broken"), says(Effect.DENY)
    assert PolicySet.of(broken).judge(act()).fault
    assert PolicySet.of(broken, says(Effect.ALLOW), says(Effect.WARN)).judge(act()).fault
    assert PolicySet.of(PolicySet.of(broken)).judge(act()).fault
    assert not PolicySet.of(denies).judge(act()).fault
    for order in ([broken, denies], [denies, broken], [PolicySet.of(broken), denies], [broken, says(Effect.ESCALATE)]):
        decision = PolicySet.of(*order).judge(act())
        assert decision.blocks
        assert not decision.fault, "the agent did what is not allowed, whatever else broke"
    assert not PolicySet.of().judge(act()).fault
    shadowed = PolicySet.of(broken).in_shadow().judge(act())
    assert (shadowed.fault, [part.fault for part in shadowed.parts]) == (False, [True])


def digests(*sets: PolicySet) -> set[str]:
    found = {judges.digest for judges in sets}
    assert all(len(digest) == 64 for digest in found)
    return found


def test_sets_made_alike_have_one_digest() -> None:
    def make() -> PolicySet:
        tool = ToolPolicy(allow=["search"], schemas={"search": {"type": "object"}})
        return PolicySet([Rule(tool, when={"field": "agent", "exists": True}), SQLPolicy(dialect="sqlite")])

    assert len(digests(make(), make(), make())) == 1


def test_whatever_a_set_is_made_of_changes_its_digest() -> None:
    def rule(**more: Any) -> PolicySet:
        return PolicySet([Rule(ToolPolicy(allow=["a"]), **more)])

    @dataclass
    class Mine:
        limit: int
        name: str = "mine"

        def judge(self, action: Action) -> Decision | None:
            return None

    sets = [
        PolicySet(),
        PolicySet(default="allow"),
        PolicySet(mode="shadow"),
        PolicySet(name="other"),
        rule(),
        rule(name="other"),
        rule(on=(Point.OUTPUT,)),
        rule(tools=("a",)),
        rule(agents=("a",)),
        rule(severity=Severity.LOW),
        rule(when={"field": "agent", "eq": "a"}),
        rule(when={"field": "agent", "eq": "b"}),
        rule(when="agent == 'b'"),
        PolicySet.of(ToolPolicy(allow=["b"])),
        PolicySet.of(ToolPolicy(allow=["a"], schemas={"a": {"type": "object"}})),
        PolicySet.of(SQLPolicy(dialect="sqlite")),
        PolicySet.of(SQLPolicy(dialect="mysql")),
        PolicySet.of(SQLPolicy(dialect="sqlite"), ToolPolicy(allow=["a"])),
        PolicySet.of(ToolPolicy(allow=["a"]), SQLPolicy(dialect="sqlite")),
        PolicySet.of(EgressPolicy(domains=["a.example"])),
        PolicySet.of(EgressPolicy(domains=["b.example"])),
        PolicySet.of(ConstantPolicy(Effect.DENY)),
        PolicySet.of(ConstantPolicy(Effect.ALLOW)),
        PolicySet.of(Mine(1)),
        PolicySet.of(Mine(2)),
        PolicySet.of(PolicySet.of(Mine(2))),
    ]
    assert len(digests(*sets)) == len(sets)
    document: Any = {"version": 1, "rules": [{"use": "deny"}]}
    assert load_policies(document).digest not in digests(*sets, PolicySet.of(ConstantPolicy(Effect.DENY, name="deny")))


def test_a_list_of_tools_keeps_all_others_out() -> None:
    key = {"body": "use AKIAQ7RNYV2MHXP3TUKD"}
    covers_all = PolicySet([Rule(ToolPolicy(allow=["send"])), Rule(SecretsPolicy())])
    assert covers_all.judge(Action(Point.PRE_TOOL_CALL, "send", arguments={"body": "hello"})).effect is Effect.ALLOW
    assert covers_all.judge(Action(Point.PRE_TOOL_CALL, "send", arguments=key)).effect is Effect.DENY
    assert covers_all.judge(Action(Point.PRE_TOOL_CALL, "run_code", arguments={"code": "1"})).effect is Effect.DENY


@pytest.mark.parametrize(
    "tools", [("run_sql",), ("run_*",), ("other", "run_sql"), ("[r]un_sql",), ("run_sq?",), ("*",)]
)
@pytest.mark.parametrize("others", [0, 3])
def test_a_rule_is_asked_however_it_names_its_tools(tools: tuple[str, ...], others: int) -> None:
    rules = [Rule(ConstantPolicy(Effect.ALLOW), name=f"other-{number}") for number in range(others)]
    rules.append(Rule(ConstantPolicy(Effect.DENY), name="never", tools=tools))
    policies = PolicySet(rules, default="allow")
    assert policies.judge(Action(Point.PRE_TOOL_CALL, "run_sql")).policy == "never"
    expected = Effect.DENY if tools == ("*",) else Effect.ALLOW
    assert policies.judge(Action(Point.PRE_TOOL_CALL, "walk")).effect is expected


def test_making_a_set_takes_time_in_proportion_to_its_rules() -> None:
    policy = ConstantPolicy(Effect.ALLOW)

    def seconds(count: int) -> float:
        rules = [Rule(policy, f"r{number}", tools=(f"tool_{number}",)) for number in range(count)]
        began = time.process_time()
        PolicySet(rules, digest="-")
        return time.process_time() - began

    assert min(seconds(8000) for _ in range(3)) < 12 * min(seconds(1000) for _ in range(3))


def test_a_rule_of_globs_keeps_its_place_among_those_of_a_name() -> None:
    order = [("first", "run_*"), ("second", "run_sql"), ("third", "*_sql"), ("fourth", "other"), ("fifth", "run_sql")]
    policies = [says(Effect.ALLOW) for _ in order]
    rules = [Rule(policy, name, tools=(tool,)) for policy, (name, tool) in zip(policies, order, strict=True)]
    decision = PolicySet(rules).judge(act("run_sql"))
    assert [part.policy for part in decision.parts] == ["first", "second", "third", "fifth"]
    assert [part.policy for part in PolicySet(rules).judge(act("a_sql")).parts] == ["third"]
