"""Actions and decisions: their names, their defaults, and the texts that a model reads."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from lgov_core.types import ALLOW, Action, Decision, Effect, Point, Severity, new_id
from lgov_core.types.actions import BLOCKING


def test_an_id_has_its_prefix_and_96_random_bits() -> None:
    ids = {new_id("call") for _ in range(100)}
    assert len(ids) == 100
    for one in ids:
        prefix, _, digits = one.partition("_")
        assert (prefix, len(digits)) == ("call", 24)
        assert int(digits, 16) >= 0


def test_a_decisions_question_is_no_part_of_its_value() -> None:
    asked, plain = Decision(Effect.DENY, "p", question="who?"), Decision(Effect.DENY, "p")
    assert (asked, repr(asked)) == (plain, repr(plain))
    assert (asked.question, plain.question) == ("who?", None)


def test_the_points_effects_and_severities_have_these_names() -> None:
    assert [(point.name, point.value) for point in Point] == [
        ("AGENT_STARTUP", "agent_startup"),
        ("INPUT", "input"),
        ("PRE_MODEL_CALL", "pre_model_call"),
        ("POST_MODEL_CALL", "post_model_call"),
        ("PRE_TOOL_CALL", "pre_tool_call"),
        ("POST_TOOL_CALL", "post_tool_call"),
        ("OUTPUT", "output"),
        ("AGENT_SHUTDOWN", "agent_shutdown"),
    ]
    assert [(effect.name, effect.value, effect.label) for effect in Effect] == [
        ("ALLOW", 0, "allow"),
        ("WARN", 1, "warn"),
        ("TRANSFORM", 2, "transform"),
        ("ESCALATE", 3, "escalate"),
        ("DENY", 4, "deny"),
    ]
    assert [(severity.name, severity.value) for severity in Severity] == [
        ("LOW", "low"),
        ("MEDIUM", "medium"),
        ("HIGH", "high"),
        ("CRITICAL", "critical"),
    ]
    assert sorted(BLOCKING) == ["deny", "escalate"]


def test_what_an_action_does_not_say_is_not_known() -> None:
    action = Action(Point.INPUT, "x")
    fields = {name: getattr(action, name) for name in Action.__dataclass_fields__}
    assert (fields.pop("point"), fields.pop("name"), fields.pop("kind")) == (Point.INPUT, "x", "function")
    for name in ("arguments", "context"):
        value = fields.pop(name)
        assert value == {}
        assert isinstance(value, MappingProxyType), "nobody can change what all actions share"
    assert set(fields.values()) == {None}
    assert sorted(fields) == [
        "agent", "attempt", "call_id", "framework", "native", "operation_id", "parent_id", "rollout_id", "run_id", "session_id",
        "source", "span_id", "text",
    ]  # fmt: skip


def test_an_action_is_compared_and_shown_without_what_says_nothing_of_the_act() -> None:
    action = Action(Point.INPUT, "x", native="n", span_id="s", run_id="r")
    assert action == Action(Point.INPUT, "x")
    assert "native" not in repr(action)
    assert "span_id='s'" in repr(action)
    for changes in ({"text": "t"}, {"agent": "a"}, {"context": {"a": 1}}, {"arguments": {"a": 1}}):
        assert action != action.changed(**changes)
    with pytest.raises(AttributeError):
        action.other = 1  # type: ignore[attr-defined]


def test_an_action_at_no_point_is_refused() -> None:
    with pytest.raises(ValueError, match="later"):
        Action("later", "x")  # type: ignore[arg-type]
    assert Action("input", "x").point is Point.INPUT  # type: ignore[arg-type]


def test_what_a_decision_does_not_say() -> None:
    decision = Decision(Effect.DENY, "p")
    fields = {name: getattr(decision, name) for name in Decision.__dataclass_fields__}
    assert fields == {
        "effect": Effect.DENY,
        "policy": "p",
        "rule": "",
        "reason": "",
        "severity": Severity.LOW,
        "abort": False,
        "arguments": None,
        "text": None,
        "parts": (),
        "decision_id": None,
        "latency_us": 0.0,
        "shadowed": False,
        "fault": False,
        "policy_digest": "",
        "approval": "",
        "question": None,
        "sources": None,
        "premature": False,
        "request": "",
    }
    assert (decision.abort, decision.shadowed, decision.fault) == (False, False, False)
    assert all(value is False for value in (decision.abort, decision.shadowed, decision.fault))
    assert type(decision.latency_us) is float
    with pytest.raises(AttributeError):
        decision.other = 1  # type: ignore[attr-defined]


def test_a_copy_has_what_is_given_and_keeps_what_is_none() -> None:
    action = Action(Point.INPUT, "x", agent="a").changed(name="y", agent=None, text="")
    assert (action.name, action.agent, action.text) == ("y", "a", "")
    decision = Decision(Effect.DENY, "p", "r").changed(rule=None, policy="q", abort=True)
    assert (decision.rule, decision.policy, decision.abort) == ("r", "q", True)


@pytest.mark.parametrize(("effect", "blocks"), list(zip(Effect, [False, False, False, True, True], strict=True)))
def test_a_denial_and_an_escalation_block(effect: Effect, blocks: bool) -> None:
    assert Decision(effect, "p").blocks is blocks


def test_the_most_severe_part_that_was_not_enforced_is_shown() -> None:
    def part(effect: Effect, rule: str, *, shadowed: bool = True) -> Decision:
        return Decision(effect, "p", rule, shadowed=shadowed)

    warn, deny, last = part(Effect.WARN, "w"), part(Effect.DENY, "d"), part(Effect.DENY, "e")
    enforced = part(Effect.DENY, "f", shadowed=False)
    assert Decision(Effect.ALLOW, "p", parts=(warn, deny, last, enforced)).unenforced is deny
    assert Decision(Effect.ALLOW, "p", parts=(enforced,)).unenforced is None
    assert Decision(Effect.WARN, "p", parts=(warn,)).unenforced is None
    assert Decision(Effect.ALLOW, "p", parts=(warn,)).unenforced is warn


def test_a_model_reads_who_blocked_why_and_what_to_do() -> None:
    denial = Decision(Effect.DENY, "p", "r", "not now.")
    assert denial.denial_message() == "DENIED by policy p/r: not now. It was not run; do not repeat it."
    fault = denial.changed(fault=True).denial_message()
    assert fault.endswith("It was not run; this is a failure, so it may be tried again later.")
    assert denial.changed(reason="").denial_message() == Decision(Effect.DENY, "p", "r").denial_message()
    assert (
        Decision(Effect.DENY, "p").denial_message()
        == "DENIED by policy p: not allowed. It was not run; do not repeat it."
    )
    assert "p: at most MAX. It was" in Decision(Effect.DENY, "p", reason="at most MAX").denial_message()
    too_early = denial.changed(premature=True).denial_message()
    assert too_early == "DENIED by policy p/r: not now. It was not run; do that first, then make the same call again."
    after = "DENIED by policy p/r: not now. It was run, but its result is withheld; do not repeat it."
    assert denial.denial_message(after=True) == after
    escalation = Decision(Effect.ESCALATE, "p", "r", "ask")
    assert escalation.denial_message() == (
        "NOT RUN YET, needs approval by policy p/r: ask. Do something else meanwhile, or say that you are"
        " waiting; once it is approved, make exactly the same call again."
    )
    assert escalation.denial_message(after=True).startswith("DENIED by policy p/r: ask. It was run")


def test_what_nothing_speaks_against_is_allowed_by_default() -> None:
    expected = Decision(Effect.ALLOW, policy="lgov", rule="default", reason="Nothing speaks against it.")
    assert expected == ALLOW
