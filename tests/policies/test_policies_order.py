"""OrderPolicy: what happened before in a rollout decides whether a tool may be called.

A story is what happens in one rollout, in order: ``read(7)=pending`` is a call of ``read`` with ``id: 7`` that is allowed and
returns ``pending``; in capitals the call is denied. ``!`` returns an error, ``~`` has not returned yet, ``-`` has a result that
is withheld, ``/`` is denied by another rule, and ``|`` is a call of the model.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lgov_core.errors import PolicyError, PolicyFileError
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import ConstantPolicy, OrderPolicy, PolicySet, Rule, ToolPolicy, load_policies
from lgov_core.policies.order import MAX_RESULT, MAX_VALUES
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome, ToolStatus, new_id

PENDING = {"field": "text", "eq": "pending"}
STATUSES: dict[str, ToolStatus] = {"": "ok", "!": "error", "-": "ok"}
STEP = re.compile(r"([A-Za-z_]+)(?:\((.*?)\))?(?:=(\S+?))?([!~/-]?)")


class Play:
    """A rollout under a governor."""

    def __init__(self, *rules: Rule, rollout: str | None = "r") -> None:
        elsewhere = Rule(ConstantPolicy(Effect.DENY, name="other"), when={"field": "context.elsewhere", "exists": True})
        is_hidden = {"field": "text", "ends_with": "-"}
        hides = Rule(ConstantPolicy(Effect.DENY, name="hides"), on=[Point.POST_TOOL_CALL], when=is_hidden)
        policies = PolicySet([Rule(ToolPolicy(allow=["*"])), *rules, elsewhere, hides])
        self.governor = Governor(policies, manager=make_plugin_manager(builtin=(), third_party=False))
        self.rollout = rollout
        self.last: Decision | None = None

    def step(self, step: str, **ids: Any) -> bool:
        """Takes one step of a story; returns whether its call was allowed."""
        ids = {"rollout_id": self.rollout, **ids}
        if step == "|":
            return not self.governor.decide(Action(Point.PRE_MODEL_CALL, "m", "model", **ids)).blocks
        match = STEP.fullmatch(step)
        assert match, step
        name, value, result, how = match[1].lower(), match[2], match[3] or "done", match[4]
        arguments = {} if value is None else {"id": value}
        context = {"elsewhere": True} if how == "/" else {}
        ids = {"operation_id": new_id("op"), "arguments": arguments, **ids}
        action = Action(Point.PRE_TOOL_CALL, name, context=context, **ids)
        self.last = self.governor.decide(action)
        if not self.last.blocks and how in STATUSES:
            self.governor.record(ToolOutcome(action, STATUSES[how], result=result, decision=self.last))
            self.governor.decide(action.changed(point=Point.POST_TOOL_CALL, text=result + how))
        return not self.last.blocks

    def tell(self, story: str) -> str:
        """The story as it went."""
        return " ".join(step if self.step(step) or step.endswith("/") else _loud(step) for step in story.split())


def _loud(step: str) -> str:
    match = STEP.fullmatch(step)
    assert match
    return match[1].upper() + step[len(match[1]) :]


def order(tools: str = "pay", **options: Any) -> Rule:
    return Rule(OrderPolicy(**options), tools=tools.split())


ASK = {"tool": "ask"}
READ = {"tool": "read", "same": "id"}

CASES = [
    # after
    (order(after=ASK), "PAY ask pay pay"),
    (order(after=ASK), "other PAY ask other pay"),
    (order(after=ASK), "ask! PAY ask pay"),
    (order(after=ASK), "ask~ PAY"),
    (order(after=ASK), "ask/ PAY ask pay"),
    (order(after=ASK), "ask- PAY ask pay"),
    (order(after=ASK), "ask=no pay"),
    (order(after=ASK), "ask pay ask! pay"),
    (order(after=ASK), "ask ask- pay"),
    # of a turn
    (order(after=ASK), "| ask PAY | pay"),
    (order(after=ASK), "| ask | pay | pay"),
    (order(after=READ), "| read(7) | read(7) pay(7)"),
    (order(after={**READ, "result": PENDING}), "| read(7)=pending | read(7)=closed pay(7) | PAY(7)"),
    # within
    (order(after={**ASK, "within": 1}), "ask pay PAY"),
    (order(after={**ASK, "within": 2}), "ask pay pay PAY"),
    (order(after={**ASK, "within": 2}), "ask other pay PAY ask pay"),
    (order(after={**ASK, "within": 2}), "ask pay/ pay/ pay/ pay"),
    # several tools
    (order(after={"tool": ["ask", "call"]}), "PAY call pay"),
    (order(after={"tool": "ask_*"}), "ask PAY ask_user pay"),
    (order(after=[ASK, {"tool": "check"}]), "ask PAY check pay"),
    (order("pay send", after=ASK), "SEND ask send pay"),
    (order("*_order", after=ASK), "pay PAY_ORDER ask pay_order"),
    # the same argument as the call that read it
    (order(after=READ), "PAY(7) read(7) pay(7) PAY(8)"),
    (order(after=READ), "read(7) read(8) pay(7) pay(8)"),
    (order(after=READ), "read(7) PAY"),
    (order(after=READ), "read PAY(7)"),
    (order(after={"tool": "read", "same": ["id"]}), "read(7) pay(7) PAY(8)"),
    (order(after={"tool": "read", "same": {"id": "id"}}), "read(7) pay(7) PAY(8)"),
    (order(after={"tool": "read", "same": {"id": "number"}}), "read(7) PAY(7)"),
    # only if the last result was
    (order(after={**ASK, "result": {"field": "text", "contains": "yes"}}), "ask=no PAY ask=yes pay ask=no PAY"),
    (order(after={**READ, "result": PENDING}), "read(7)=pending read(8)=closed pay(7) PAY(8)"),
    (order(after={**READ, "result": PENDING}), "read(7)=pending read(7)! PAY(7)"),
    (order(after={**READ, "result": PENDING}), "read(7)=pending! PAY(7)"),
    (order(after={**ASK, "result": {"field": "context.result.ok", "eq": True}}), 'ask=yes PAY ask={"ok":true} pay'),
    (order(after={**ASK, "result": "context.result.ok == true"}), 'ask={"ok":false} PAY ask={"ok":true} pay'),
    # never after
    (order(never_after={"tool": "read"}), "pay read PAY PAY"),
    (order(never_after={"tool": "read"}), "read~ PAY"),
    (order(never_after={"tool": "read"}), "read/ pay read! PAY"),
    (order(never_after=READ), "read(7) PAY(7) pay(8) PAY"),
    (order(never_after=READ), "read PAY(7)"),
    (order(never_after={"tool": "pay"}), "pay PAY"),
    # at most
    (order(at_most=1), "pay PAY PAY"),
    (order(at_most=2), "pay pay PAY"),
    (order(at_most=1), "pay/ pay PAY"),
    (order(at_most=1), "pay! PAY"),
    (order("pay send", at_most=2), "pay send PAY SEND"),
    (order(at_most=1, per="id"), "pay(7) PAY(7) pay(8) PAY(8) pay PAY"),
    # together
    (order(after=ASK, never_after={"tool": "read"}, at_most=1), "PAY ask pay PAY read PAY"),
    (order(after=ASK, at_most=1), "PAY ask pay PAY"),
]  # fmt: skip


def fresh(rule: Rule) -> Rule:
    return Rule(OrderPolicy(**rule.policy.made_with), tools=rule.tools)


@pytest.mark.parametrize(("rule", "story"), CASES, ids=[f"{case[0].policy.sentence} {case[1]}" for case in CASES])
def test_a_story_under_a_rule(rule: Rule, story: str) -> None:
    assert Play(fresh(rule)).tell(story.lower()) == story


@pytest.mark.parametrize(
    ("rule", "story", "slug", "reason"),
    [
        (order(after=ASK), "pay", "order-after", "Call ask first, and pay once you have read the result."),
        (
            order(after=ASK),
            "| ask pay",
            "order-after",
            "Read the result of ask before you call pay: do not call both in one turn.",
        ),
        (
            order(after={**ASK, "within": 1}),
            "ask other pay",
            "order-after",
            "Call ask again first: its result is older than the last 1 call.",
        ),
        (
            order(after=READ),
            "read(7) pay(8)",
            "order-after",
            "Call read with the same id first, and pay once you have read the result.",
        ),
        (order(after=READ), "read(7) pay", "order-after", "Give id: it must be that of an earlier call of read."),
        (
            order(after={**READ, "result": PENDING}),
            "read(7)=closed pay(7)",
            "order-after",
            'The last result of read with the same id does not permit this (needed: text eq "pending").',
        ),
        (
            order(never_after={"tool": "read"}),
            "read pay",
            "order-never",
            "pay may not be called any more, because read was called.",
        ),
        (
            order(at_most=1, per="id"),
            "pay(7) pay(7)",
            "order-limit",
            "pay may be called only 1 time with this id, and was already.",
        ),
    ],
)
def test_a_denial_says_what_to_do(rule: Rule, story: str, slug: str, reason: str) -> None:
    play = Play(fresh(rule))
    play.tell(story)
    assert play.last is not None
    assert (play.last.effect, play.last.rule, play.last.reason) == (Effect.DENY, slug, reason)


@pytest.mark.parametrize(
    ("rules", "story", "then"),
    [
        ([order(after=ASK)], "pay", "do that first, then make the same call again."),
        ([order(after=ASK)], "| ask pay", "do that first, then make the same call again."),
        ([order(after={**ASK, "within": 1})], "ask other pay", "do that first, then make the same call again."),
        ([order(after=READ)], "read(7) pay", "do not repeat it."),
        ([order(after={**READ, "result": PENDING})], "read(7)=closed pay(7)", "do not repeat it."),
        ([order(never_after={"tool": "read"})], "read pay", "do not repeat it."),
        ([order(at_most=1)], "pay pay", "do not repeat it."),
        ([order(after=ASK), order(never_after={"tool": "read"})], "read pay", "do not repeat it."),
    ],
)
def test_a_call_that_came_too_early_is_made_again_and_no_other(rules: list[Rule], story: str, then: str) -> None:
    play = Play(*map(fresh, rules))
    play.tell(story)
    assert play.last is not None
    assert play.last.denial_message().endswith(f". It was not run; {then}")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"after": {"tool": ["a", "b_*"], "within": 5}}, "Only after a or b_* has returned within the last 5 calls."),
        (
            {"after": {"tool": "a", "same": {"order": "id"}}},
            "Only after a has returned with the same order (there id).",
        ),
        (
            {"never_after": READ, "at_most": 2},
            "Never after read was called with the same id; at most 2 calls a rollout.",
        ),
        ({"at_most": 1, "per": ["a", "b"]}, "At most 1 call a rollout for each a and b."),
        (
            {
                "after": {
                    **ASK,
                    "result": {"all": [{"field": "text", "ne": "no"}, {"not": {"field": "text", "in": ["a"]}}]},
                }
            },
            'Only after ask has returned (last result: text ne "no" and not (text in ["a"])).',
        ),
    ],
)
def test_a_rule_reads_as_english(options: dict[str, Any], sentence: str) -> None:
    assert OrderPolicy(**options).sentence == sentence


# ---------------------------------------------------------------------- whose past


def test_rollouts_sessions_and_attempts_have_pasts_of_their_own() -> None:
    play = Play(order(after=ASK))
    play.step("ask", attempt=1)
    play.step("ask", rollout_id=None, session_id="s")
    play.step("ask", rollout_id=None, run_id="run", span_id="a")
    assert play.step("pay", attempt=1)
    assert play.step("pay", rollout_id=None, session_id="s", run_id="another")
    assert play.step("pay", rollout_id=None, run_id="run", span_id="b")
    assert not play.step("pay", attempt=2)
    assert not play.step("pay", attempt=1, session_id="s")
    assert not play.step("pay", rollout_id="other")
    assert not play.step("pay", rollout_id=None, run_id="another", span_id="b")


def test_a_call_that_belongs_to_nothing_comes_after_nothing_and_shares_its_limits() -> None:
    play = Play(order(after=ASK), order("send", at_most=1), rollout=None)
    assert play.tell("ask pay send send") == "ask PAY send SEND"
    assert not play.step("pay", run_id="alone", span_id="alone"), "the span of a call by itself is no run"
    assert play.last is not None
    assert "names no rollout, session or run" in play.last.reason


def test_a_rollout_that_ends_is_forgotten_in_all_its_sessions() -> None:
    policy = OrderPolicy(after=ASK, at_most=1)
    play = Play(Rule(policy))
    play.step("ask", session_id="a")
    play.step("ask", session_id="b")
    play.governor.decide(Action(Point.AGENT_SHUTDOWN, "agent", "agent", rollout_id="r"))
    assert policy._pasts._by_key == {}


def test_where_a_limit_would_be_forgotten_no_more_rollouts_are_opened() -> None:
    play = Play(order(at_most=1, max_rollouts=2))
    assert [play.step("pay", rollout_id=rollout) for rollout in "aabbc"] == [True, False, True, False, False]
    assert play.last is not None
    assert play.last.rule == "order-rollouts"
    play.governor.decide(Action(Point.AGENT_SHUTDOWN, "agent", "agent", rollout_id="a"))
    assert play.step("pay", rollout_id="c")


def test_where_nothing_but_results_would_be_forgotten_the_quietest_rollout_is() -> None:
    play = Play(order(after=ASK, max_rollouts=2))
    assert [play.step(step, rollout_id=rollout) for step, rollout in zip(("ask",) * 3, "abc", strict=True)] == [
        True
    ] * 3
    assert [play.step("pay", rollout_id=rollout) for rollout in "bc"] == [True, True]
    assert not play.step("pay", rollout_id="a")


# ---------------------------------------------------------------------- what a framework does


def test_a_call_that_is_paused_and_repeated_is_one_call() -> None:
    play = Play(order("pay", after={**ASK, "within": 1}), order("ask", at_most=1))
    ask = Action(Point.PRE_TOOL_CALL, "ask", rollout_id="r", operation_id="op", call_id="c")
    first = play.governor.decide(ask)
    play.governor.record(ToolOutcome(ask, "paused", decision=first))
    assert not play.step("pay")
    again = play.governor.take(ask, first)
    play.governor.record(ToolOutcome(ask, "ok", result="yes", decision=again))
    assert play.step("pay")
    assert not play.step("ask"), "it was made once"


def test_a_repetition_counts_neither_as_a_call_nor_as_a_result_before_it_has_one() -> None:
    play = Play(order(after={**ASK, "within": 2, "result": {"field": "text", "eq": "yes"}}))
    play.tell("ask=yes")
    other = Action(Point.PRE_TOOL_CALL, "other", rollout_id="r", operation_id="op")
    play.governor.take(other, play.governor.decide(other))
    again = Action(Point.PRE_TOOL_CALL, "ask", rollout_id="r", operation_id="another")
    assert play.step("pay")
    play.tell("ask=yes")
    play.governor.record(ToolOutcome(again, "paused", decision=play.governor.decide(again)))
    assert play.step("pay"), "the last result is that of the call before"


def test_a_result_that_is_too_long_to_be_looked_at_permits_nothing() -> None:
    play = Play(order(after={**ASK, "result": {"field": "text", "contains": "y"}}))
    assert play.tell(f"ask={'y' * MAX_RESULT} pay") == f"ask={'y' * MAX_RESULT} pay"
    play.step(f"ask={'y' * MAX_RESULT}y")
    assert not play.step("pay")


def test_a_call_that_was_never_made_gives_its_place_back() -> None:
    play = Play(order(at_most=1))
    pay = Action(Point.PRE_TOOL_CALL, "pay", rollout_id="r", operation_id="op")
    play.governor.record(ToolOutcome(pay, "invalid_args", decision=play.governor.decide(pay)))
    assert play.tell("pay pay") == "pay PAY"


def test_a_result_that_is_read_in_a_request_counts_if_its_call_was_allowed() -> None:
    play = Play(order(after=READ))
    read = Action(Point.PRE_TOOL_CALL, "read", arguments={"id": "7"}, rollout_id="r", call_id="c1")
    play.governor.decide(read)
    assert not play.step("pay(7)")
    for call_id, name in (("c2", "read"), ("c1", "look")):
        play.governor.decide(read.changed(point=Point.POST_TOOL_CALL, text="x", call_id=call_id, name=name))
        assert not play.step("pay(7)"), (call_id, name)
    play.governor.decide(read.changed(point=Point.POST_TOOL_CALL, text="x", context={"tool_status": "error"}))
    assert not play.step("pay(7)")
    play.governor.decide(read.changed(point=Point.POST_TOOL_CALL, text="x"))
    assert play.step("pay(7)")


def test_arguments_count_as_a_policy_left_them() -> None:
    class Trims:
        name, bounded = "trims", True

        def judge(self, action: Action) -> Decision | None:
            text = str(action.arguments.get("id", ""))
            arguments = {"id": text.strip("#")}
            return Decision(Effect.TRANSFORM, self.name, "trim", "", arguments=arguments) if "#" in text else None

    play = Play(Rule(Trims(), on=[Point.PRE_TOOL_CALL]), order(after=READ, never_after={"tool": "close", "same": "id"}))
    assert play.tell("read(#7) pay(7) pay(#7) close(#7)") == "read(#7) pay(7) pay(#7) close(#7)"
    assert not play.step("pay(7)")
    limited = Play(Rule(Trims(), on=[Point.PRE_TOOL_CALL]), order(at_most=1, per="id"))
    assert limited.tell("pay(#7) pay(7) pay(8)") == "pay(#7) PAY(7) pay(8)"


def test_calls_at_the_same_time_do_not_exceed_a_limit_together() -> None:
    play, start = Play(order(at_most=5)), threading.Barrier(16)

    def calls(_: int) -> list[bool]:
        start.wait()
        return [play.step("pay") for _ in range(8)]

    with ThreadPoolExecutor(16) as threads:
        allowed = [each for several in threads.map(calls, range(16)) for each in several]
    assert sum(allowed) == 5


def test_a_changed_rule_goes_on_with_what_happened() -> None:
    before, now = (
        OrderPolicy(after=[ASK, {"tool": "read"}], at_most=2),
        OrderPolicy(after=[ASK, {"tool": "check"}], at_most=1),
    )
    Play(Rule(before, tools=["pay"])).tell("ask read pay")
    now.continue_from(before)
    play = Play(Rule(now, tools=["pay"]))
    assert play.tell("pay check pay") == "PAY check PAY"
    assert play.last is not None
    assert play.last.rule == "order-limit"
    for other in (OrderPolicy(at_most=1, per="id"), ToolPolicy(allow=[])):
        with pytest.raises(PolicyError, match="not counted in this way"):
            now.continue_from(other)


# ---------------------------------------------------------------------- properties

STORIES = st.lists(
    st.builds(
        lambda name, value, how: f"{name}{value}{how}",
        st.sampled_from(["ask", "read", "pay", "send"]),
        st.sampled_from(["", "(7)", "(8)"]),
        st.sampled_from(["", "", "!", "~", "-", "/", "=pending"]),
    ).filter(lambda step: not step.endswith(("=pending-", "=pending!")))
    | st.just("|"),
    max_size=25,
)
RULES = st.lists(st.sampled_from([rule for rule, _ in CASES]), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(STORIES, RULES)
def test_a_further_rule_never_turns_a_denial_into_an_allow(story: list[str], rules: list[Rule]) -> None:
    *rules, further = map(fresh, rules)
    play = Play(*rules)
    more = PolicySet([*play.governor.policies[0].rules, further])  # type: ignore[attr-defined]
    judge, observe = play.governor.decide, play.governor.observe

    def decide(action: Action) -> Decision:
        wider = more.judge(action)
        decision = judge(action)
        assert wider.blocks or not decision.blocks, action
        return decision

    def observed(event: Any) -> None:
        observe(event)
        further.policy.observe(event)  # type: ignore[attr-defined]

    play.governor.decide, play.governor.observe = decide, observed  # type: ignore[method-assign]
    for step in story:
        play.step(step)


@settings(max_examples=50, deadline=None)
@given(STORIES, RULES)
def test_an_order_permits_nothing(story: list[str], rules: list[Rule]) -> None:
    play = Play(*map(fresh, rules))
    alone = PolicySet(play.governor.policies[0].rules[1:-2])  # type: ignore[attr-defined]
    for step in story:
        play.step(step)
    assert alone.judge(Action(Point.PRE_TOOL_CALL, "pay", rollout_id="r", operation_id="op")).blocks


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_size(key) + _size(item) for key, item in value.items()) + len(value)
    if isinstance(value, list):
        return sum(map(_size, value)) + len(value)
    return len(value) if isinstance(value, str) else 1


def test_the_memory_of_a_rollout_is_bounded() -> None:
    policy = OrderPolicy(after=[READ, ASK], never_after=READ, at_most=MAX_VALUES, per="id")
    play = Play(Rule(policy, tools=["pay"]))

    def remembered(calls: range) -> int:
        for number in calls:
            text = f"{number}" * 50
            for name in ("read", "ask", "other", "pay"):
                ids = {"operation_id": f"{name}{text}", "call_id": f"{name} {text}"}
                play.step(f"{name}({text})", **ids)
            play.step("|")
        (past,) = policy._pasts._by_key.values()
        return sum(_size(getattr(past, name)) for name in ("open", "results", "called", "granted"))

    first = remembered(range(100_000, 100_000 + MAX_VALUES + 50))
    assert remembered(range(200_000, 200_000 + MAX_VALUES)) <= first
    assert first < 2_000_000


def test_beyond_what_can_be_remembered_everything_may_have_been_called() -> None:
    play = Play(order(never_after=READ))
    for number in range(MAX_VALUES + 1):
        play.step(f"read({number})")
    assert not play.step("pay(another)")
    limited = Play(order(at_most=1, per="id"))
    assert all(limited.step(f"pay({number})") for number in range(MAX_VALUES))
    assert not limited.step("pay(another)")
    assert limited.last is not None
    assert limited.last.rule == "order-values"


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is no order"),
        ({"per": "id"}, "per is given without at_most"),
        ({"at_most": 0}, "at_most is 0"),
        ({"at_most": MAX_VALUES + 1}, "at_most is 1001"),
        ({"after": "ask"}, "after is 'ask'"),
        ({"after": {"tool": []}}, "tool is empty"),
        ({"after": {"tol": "ask"}}, "after: tol holds 'ask'"),
        ({"after": {"tool": "ask", "within": 0}}, "after: within holds 0"),
        ({"after": {"tool": "ask", "result": {"field": "nothing", "eq": 1}}}, "there is no field nothing"),
        ({"after": {"tool": "ask", "result": {"field": "text", "equals": 1}}}, "there is no comparison 'equals'"),
        ({"never_after": {"tool": "ask", "within": 2}}, "never_after: within holds 2"),
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(message)):
        OrderPolicy(**options)
    with pytest.raises(PolicyFileError, match=re.escape(message)):
        load_policies({"version": 1, "rules": [{"use": "order", "with": options}]})
