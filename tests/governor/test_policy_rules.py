"""A rule made of a policy: which actions it reaches, and what it takes over from its policy."""

from __future__ import annotations

import inspect
from types import MappingProxyType
from typing import Any

import pytest

from lgov_core.errors import PolicyError
from lgov_core.governor.rules import OrderedRules, Rule, own_rule
from lgov_core.policies import BoundedPolicy, PolicySet
from lgov_core.types import Action, Decision, Effect, Point, Severity


class Plain:
    """A policy that says nothing of itself but its name."""

    name = "plain"

    def judge(self, action: Action) -> Decision | None:
        return None


def saying(**promises: Any) -> Any:
    policy = Plain()
    vars(policy).update(promises)
    return policy


def test_a_policy_that_says_nothing_of_itself_is_asked_everywhere_and_in_a_thread() -> None:
    rule = Rule(Plain())
    facts = (rule.name, rule.on, rule.tools, rule.agents, rule.severity, rule.condition, rule.timeout_s, rule.members)
    assert facts == ("plain", tuple(Point), ("*",), ("*",), None, None, None, None)
    assert (rule.listens_at, rule.reads_replies, rule.permits) == (frozenset(), True, True)
    assert (rule.bounded, rule.deferred, rule.in_place, rule.waits, rule.standalone) == (
        False,
        False,
        False,
        True,
        False,
    )
    assert all(type(value) is bool for value in (rule.bounded, rule.deferred, rule.permits, rule.reads_replies))


def test_a_policy_that_is_nothing_but_rules_shows_them() -> None:
    inner = PolicySet([Rule(Plain(), "inner")])
    members = Rule(inner).members
    assert members is not None
    assert [rule.name for rule in members().rules] == ["inner"]
    assert Rule(Plain()).members is None


def test_what_a_rule_takes_over_from_its_policy_cannot_be_said_of_it() -> None:
    assert list(inspect.signature(Rule).parameters) == [
        "policy", "name", "on", "tools", "agents", "severity", "when", "permits",
    ]  # fmt: skip


def test_a_rule_takes_over_what_its_policy_says() -> None:
    on = (Point.OUTPUT, Point.PRE_TOOL_CALL)
    policy = saying(
        default_points=on, listens_at=(Point.OUTPUT, Point.INPUT), bounded=True, permits=0, deferred=1, timeout_s=3
    )
    rule = Rule(policy, "rule")
    assert (rule.name, rule.on, rule.listens_at) == ("rule", on, {Point.OUTPUT})
    assert (rule.bounded, rule.permits, rule.deferred, rule.in_place, rule.waits) == (True, False, True, True, False)
    assert (rule.timeout_s, type(rule.timeout_s)) == (3.0, float)
    assert Rule(policy, permits=True).permits is True
    assert Rule(policy, on=[Point.INPUT]).on == (Point.INPUT,)
    assert Rule(saying(timeout_s="long")).timeout_s is None


@pytest.mark.parametrize(
    ("on", "promises", "reads"),
    [
        ([Point.OUTPUT], {}, True),
        ([Point.POST_MODEL_CALL], {}, True),
        ([Point.OUTPUT], {"reads_replies": False}, False),
        ([Point.OUTPUT], {"listens_at": (Point.OUTPUT,)}, False),
        ([Point.OUTPUT, Point.POST_MODEL_CALL], {"listens_at": (Point.OUTPUT,)}, True),
        ([Point.PRE_TOOL_CALL], {}, False),
    ],
)
def test_a_rule_reads_replies_where_it_judges_the_texts_of_models(
    on: Any, promises: dict[str, Any], reads: bool
) -> None:
    assert Rule(saying(**promises), on=on).reads_replies is reads


def test_a_coroutine_is_called_in_place_and_waited_for() -> None:
    class Later(Plain):
        async def judge(self, action: Action) -> None:  # type: ignore[override]
            return None

    rule = Rule(Later())
    assert (rule.in_place, rule.waits) == (True, True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"policy": object()}, "is not a policy"),
        ({"policy": saying(name="")}, "a rule's name is ''"),
        ({"name": 5}, "a rule's name is 5"),
        ({"on": "input"}, "rule plain: on must be a list of points, not 'input'"),
        ({"on": 5}, "rule plain: on must be a list of points, not 5"),
        ({"on": ["later"]}, "rule plain: there is no point 'later' .*agent_startup, input, .*, agent_shutdown"),
        ({"tools": "x"}, "rule plain|plain: tools"),
        ({"agents": 5}, "plain: agents|rule plain"),
        ({"when": {"field": "arguments.n", "later": 1}}, "rule plain"),
    ],
)
def test_a_rule_without_a_meaning_is_refused_by_its_name(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(PolicyError, match=problem):
        Rule(**{"policy": Plain(), **options})


def test_a_point_may_be_written_by_its_name() -> None:
    assert Rule(Plain(), on=["input"]).on == (Point.INPUT,)  # type: ignore[list-item]


def test_a_rule_reaches_the_actions_of_its_points_tools_and_agents() -> None:
    def reaches(rule: Rule, **changes: Any) -> bool:
        return rule.reaches(Action(**{"point": Point.PRE_TOOL_CALL, "name": "run", "agent": "clerk", **changes}))

    narrow = Rule(Plain(), on=[Point.PRE_TOOL_CALL], tools=["ru*", "other"], agents=["cl*", "boss"])
    assert reaches(narrow)
    assert reaches(narrow, name="other", agent="boss")
    assert not reaches(narrow, point=Point.INPUT)
    assert not reaches(narrow, name="walk")
    assert not reaches(narrow, agent="guest")
    assert not reaches(narrow, agent=None)
    assert not reaches(narrow, agent=5)
    assert reaches(Rule(Plain(), agents=["x", "*"]), agent=None)


def test_a_policy_that_is_given_to_a_governor_is_asked_about_everything() -> None:
    class Own(BoundedPolicy):
        name = ""

        def judge(self, action: Action) -> None:
            return None

    rule = own_rule(Own(), "")
    assert (rule.name, rule.on, rule.standalone, rule.waits) == ("Own", tuple(Point), True, True)
    assert own_rule(Own(), "given").name == "given"


def test_the_rules_of_a_name_are_those_that_may_cover_it_in_their_order() -> None:
    rules = [
        Rule(saying(deferred=True), "last"),
        Rule(Plain(), "exact", tools=["run"]),
        Rule(Plain(), "glob", tools=["r[u]n"]),
        Rule(Plain(), "question", tools=["ru?"]),
        Rule(Plain(), "other", tools=["walk"]),
        Rule(saying(listens_at=(Point.PRE_TOOL_CALL,)), "listens", tools=["walk"]),
        Rule(Plain(), "elsewhere", on=[Point.INPUT]),
    ]
    ordered = OrderedRules(rules, default="deny", shadow=False, name="set")
    assert (ordered.default, ordered.shadow, ordered.name, ordered.in_force()) == ("deny", False, "set", ordered)
    assert [rule.name for rule in ordered.rules][-1] == "last"
    at_call = Point.PRE_TOOL_CALL
    assert [rule.name for rule in ordered.named(at_call, "run")] == ["exact", "glob", "question", "listens", "last"]
    assert [rule.name for rule in ordered.named(at_call, "walk")] == ["glob", "question", "other", "listens", "last"]
    assert [rule.name for rule in ordered.named(at_call, "fly")] == ["glob", "question", "listens", "last"]


def test_the_default_of_a_set_is_its_own_answer() -> None:
    def answer(default: Any, point: Point, *, covered: bool) -> Any:
        ordered = OrderedRules([], default=default, shadow=False, name="set")
        decisions = ordered.by_default(Action(point, "n" * 100), covered=covered)
        return [(one.effect, one.policy, one.rule, one.reason, one.severity) for one in decisions]

    name = "n" * 80
    call, text = Point.PRE_TOOL_CALL, Point.INPUT
    denied = (Effect.DENY, "set", "default", f"No policy allows {name}.", Severity.MEDIUM)
    assert answer("deny", call, covered=False) == [denied]
    only = f"No policy allows {name}: the rules that cover it only restrict."
    assert answer("deny", call, covered=True) == [(*denied[:3], only, Severity.MEDIUM)]
    allowed = (Effect.ALLOW, "set", "default", "No rule covers this; only tool calls need one.", Severity.LOW)
    assert answer("deny", text, covered=False) == [allowed]
    assert answer("deny", text, covered=True) == answer("allow", call, covered=True) == []
    assert answer("allow", call, covered=False) == [
        (*allowed[:3], "No rule covers this; the default is allow.", Severity.LOW)
    ]


# ---------------------------------------------------------------------- the base of the built-in policies


class Built(BoundedPolicy):
    name = "built"

    def __init__(self, first: int, second: int = 2, *, third: int = 3) -> None:
        pass


def test_a_policy_remembers_what_it_was_made_with() -> None:
    made = Built(1, third=4).made_with
    assert made == {"first": 1, "third": 4}
    assert isinstance(made, MappingProxyType)
    assert (BoundedPolicy.bounded, BoundedPolicy.permits, BoundedPolicy.default_points) == (
        True,
        False,
        (Point.PRE_TOOL_CALL,),
    )


def test_a_policy_answers_in_its_own_name() -> None:
    policy = Built(1)
    assert policy.allow() == Decision(Effect.ALLOW, "built")
    assert policy.allow("r") == Decision(Effect.ALLOW, "built", "r", "")
    assert policy.deny("r", "why") == Decision(Effect.DENY, "built", "r", "why", Severity.HIGH)
    assert policy.deny("r", "why", Severity.LOW).severity is Severity.LOW
    assert policy.escalate("r", "why") == Decision(Effect.ESCALATE, "built", "r", "why", Severity.HIGH)
    assert policy.escalate("r", "why", Severity.LOW).severity is Severity.LOW
    arguments = {"x": 1}
    expected = Decision(Effect.TRANSFORM, "built", "r", "why", arguments=arguments, text="t")
    assert policy.transform("r", "why", arguments=arguments, text="t") == expected
    bare = policy.transform("r", "why")
    assert (bare.arguments, bare.text) == (None, None)
