"""The list of rules of a governor: which are asked, in whose name they answer, and when their answers count."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from types import MappingProxyType
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.governor.judging import caller_gone, private_copy
from lgov_core.governor.options import SHADOW
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import PolicyPlugin, make_plugin_manager, register
from lgov_core.policies import BoundedPolicy, ConstantPolicy, PIIPolicy, PolicySet, Rule, ToolPolicy
from lgov_core.policies.policy_set import explain
from lgov_core.types import Action, Decision, Effect, Point, Severity
from tests.cells import Seen
from tests.governor.governors import ALLOW, DENY, Says, both, call, governor


class Counts(BoundedPolicy):
    """Changes ``n`` until it is ``last``."""

    name = "counts"

    def __init__(self, last: int) -> None:
        self.last = last

    def judge(self, action: Action) -> Decision | None:
        number = action.arguments["n"]
        return None if number == self.last else Decision(Effect.TRANSFORM, "counts", arguments={"n": number + 1})


def test_transforms_may_change_an_action_three_times_and_no_more() -> None:
    settled = governor(Says(ALLOW), policies=[Counts(3)])
    for decision in both(settled, call(n=0)):
        assert decision.effect is Effect.TRANSFORM
        assert decision.arguments == {"n": 3}
    for decision in both(governor(Says(ALLOW), policies=[Counts(4)]), call(n=0)):
        assert (decision.effect, decision.policy, decision.rule) == (Effect.DENY, "lgov", "transform-unsettled")
        assert decision.reason == "The transforms of this action did not settle in 4 rounds."
        assert decision.fault
        assert decision.arguments is None


def test_a_set_that_changes_an_action_twice_allows_what_it_judged_last() -> None:
    rules = PolicySet([Counts(2), ToolPolicy(allow=["*"])])
    for decision in both(Governor(rules), call(n=0)):
        assert decision.effect is Effect.TRANSFORM
        assert decision.arguments == {"n": 2}
        assert [part.policy for part in decision.parts] == ["counts", "tool"]


def test_the_rules_beside_a_set_that_changes_an_action_count_too() -> None:
    rules = PolicySet([Counts(1), ToolPolicy(allow=["*"])])
    for decision in both(Governor([rules, ToolPolicy(allow=["*"], name="beside")]), call(n=0)):
        assert decision.arguments == {"n": 1}
        assert [part.policy for part in decision.parts] == ["counts", "tool", "beside"]


def test_a_decision_has_its_parts_and_a_policys_own_is_left_as_it_is() -> None:
    for decision in both(governor(Says(ALLOW)), call()):
        assert [(part.policy, part.rule) for part in decision.parts] == [("p", "fine")]
        assert decision is not ALLOW
    assert ALLOW.latency_us == 0


def test_an_act_that_nothing_answers_is_denied_and_no_ones_fault() -> None:
    for decision in both(governor(Says(None)), call()):
        assert (decision.effect, decision.policy, decision.rule) == (Effect.DENY, "lgov", "no-policy")
        assert decision.severity == "critical"
        assert not decision.fault


def test_the_default_answers_beside_rules_that_only_restrict_and_not_beside_a_denial() -> None:
    class Warns(BoundedPolicy):
        name = "warns"

        def judge(self, action: Action) -> Decision:
            return Decision(Effect.WARN, self.name)

    class Denies(BoundedPolicy):
        name = "denies"

        def judge(self, action: Action) -> Decision:
            return self.deny("no", "Not now.")

    for rules, parts, why in (
        ([Warns()], ["warns", "desk"], "No policy allows run_sql: the rules that cover it only restrict."),
        ([], ["desk"], "No policy allows run_sql."),
        ([Denies()], ["denies"], None),
    ):
        for decision in both(Governor(PolicySet(rules, name="desk")), call()):
            assert decision.effect is Effect.DENY
            assert [part.policy for part in decision.parts] == parts
            assert why is None or decision.reason == why


def test_later_rules_with_a_condition_see_where_the_values_of_a_call_are_from() -> None:
    contexts: list[Any] = []

    class Sees(BoundedPolicy):
        name = "sees"

        def judge(self, action: Action) -> None:
            contexts.append(action.context)

    class Tells(BoundedPolicy):
        name = "tells"
        permits = True

        def __init__(self, sources: Any) -> None:
            self.sources = sources

        def judge(self, action: Action) -> Decision:
            return Decision(Effect.ALLOW, self.name, sources=self.sources)

    asked = call(n=1).changed(context={"tenant": "t"})
    when = {"field": "arguments.n", "eq": 1}
    for sources, condition, seen in (
        ({"n": ["inbox"]}, when, {"tenant": "t", "sources": {"n": ["inbox"]}}),
        ({"n": ["inbox"]}, None, {"tenant": "t"}),
        (None, when, {"tenant": "t"}),
    ):
        contexts.clear()
        Governor(PolicySet([Rule(Tells(sources), "tells"), Rule(Sees(), "sees", when=condition)])).decide(asked)
        assert contexts == [seen]


def test_a_policy_learns_that_its_set_is_in_shadow_mode() -> None:
    contexts: list[dict[str, Any]] = []

    class Notes(BoundedPolicy):
        name = "notes"

        def judge(self, action: Action) -> None:
            contexts.append(dict(action.context))

    for mode in ("shadow", "enforce"):
        Governor(PolicySet([Notes()], mode=mode)).decide(call().changed(context={"tenant": "t"}))
    assert contexts == [{"tenant": "t", SHADOW: True}, {"tenant": "t"}]


def test_a_plugin_that_is_registered_later_is_asked_once_the_governor_was_told() -> None:
    subject = governor(Says(ALLOW))
    assert not subject.decide(call()).blocks
    register(subject.manager, Says(DENY))
    assert not subject.decide(call()).blocks
    subject.plugins_changed()
    assert subject.decide(call()).blocks


def test_a_decision_has_the_name_of_the_policy_or_of_the_plugin() -> None:
    class Nameless(BoundedPolicy):
        name = "its-own"

        def judge(self, action: Action) -> Decision:
            return Decision(Effect.DENY, "", "no", "Not now.")

    assert governor(policies=[Nameless()]).decide(call()).policy == "its-own"
    manager = make_plugin_manager([], builtin=(), third_party=False)
    manager.register(Says(Decision(Effect.DENY, "", "no", "Not now.")), name="a-plugin")
    assert Governor(manager=manager).decide(call()).policy == "a-plugin"


def test_a_policy_that_breaks_is_named_as_a_policy_and_as_a_plugin(caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(BoundedPolicy):
        name = "fragile"

        def judge(self, action: Action) -> Decision:
            raise OSError("/etc/shadow")

    manager = make_plugin_manager([], builtin=(), third_party=False)
    manager.register(PolicyPlugin(Breaks()), name="a-plugin")
    for subject, name in ((Governor(Breaks()), "fragile"), (Governor(manager=manager), "a-plugin")):
        decision = subject.decide(call())
        assert (decision.effect, decision.policy, decision.rule) == (Effect.DENY, name, "policy-error")
        assert "/etc/shadow" not in decision.denial_message()
        assert f"rule {name} failed" in caplog.text
    assert "/etc/shadow" in caplog.text


def test_a_decision_says_how_many_microseconds_the_judgement_took() -> None:
    def judge(action: Action) -> Decision:
        time.sleep(0.02)
        return ALLOW

    began = time.perf_counter()
    decision = governor(Says(judge)).decide(call())
    assert 20_000 <= decision.latency_us <= (time.perf_counter() - began) * 1e6
    assert 0 < Governor(PolicySet([ToolPolicy(allow=["*"])])).decide(call()).latency_us < 1e6


def test_a_set_that_is_a_plugin_is_asked_rule_by_rule() -> None:
    slow = threading.Event()

    class Slow(BoundedPolicy):
        name, bounded = "slow", False

        def judge(self, action: Action) -> Decision:
            slow.wait(20)
            return self.allow()

    rules = PolicySet([Rule(Slow(), "slow"), Rule(ToolPolicy(allow=["other"]), "tools")])
    subject = Governor(manager=make_plugin_manager([rules], builtin=(), third_party=False), timeout_s=0.1)
    decision = subject.decide(call())
    slow.set()
    subject.close()
    assert [(part.policy, part.rule) for part in decision.parts] == [
        ("slow", "policy-timeout"),
        ("tools", "tool-unknown"),
    ]


@pytest.mark.parametrize(("is_bounded", "here"), [(True, True), (False, False)])
def test_a_policy_that_promises_bounded_cost_judges_in_the_thread_of_the_caller(is_bounded: bool, here: bool) -> None:
    class Where(BoundedPolicy):
        name, bounded = "where", is_bounded

        def judge(self, action: Action) -> Decision:
            threads.append(threading.get_ident())
            return self.allow()

    threads: list[int] = []
    subject = Governor(Where())
    both(subject, call())
    subject.close()
    assert [thread == threading.get_ident() for thread in threads] == [here, here]


def test_a_plugin_says_what_its_hooks_cost_and_when_they_are_asked() -> None:
    class Plugin:
        def __init__(self, **promises: Any) -> None:
            vars(self).update(promises)
            self.threads: list[int] = []

        @hookimpl
        def lgov_pre_tool_call(self, action: Action) -> Decision:
            self.threads.append(threading.get_ident())
            time.sleep(0.05)
            return ALLOW

        @hookimpl
        def lgov_output(self, action: Action) -> None:
            return None

    quick, slow, last = Plugin(bounded=True), Plugin(timeout_s=20.0), Plugin(deferred=True)
    subject = governor(last, quick, slow, timeout_s=0.01)
    decision = subject.decide(call())
    assert decision.effect is Effect.DENY  # of the one that is asked last, whose time is the governor's
    assert sorted(part.rule for part in decision.parts) == ["fine", "fine", "policy-timeout"]
    assert quick.threads == [threading.get_ident()]
    assert slow.threads != [threading.get_ident()]
    assert len(slow.threads) == 1
    subject.close()
    denied = governor(last := Plugin(deferred=True), Says(DENY))
    assert denied.decide(call()).effect is Effect.DENY
    assert last.threads == []
    assert governor(first := Plugin(bounded=True), Says(DENY)).decide(call()).blocks
    assert len(first.threads) == 1, "it did not say that it is asked last"
    assert governor(Plugin()).reads_replies()
    assert not governor(Plugin(reads_replies=False)).reads_replies()


def test_a_hundred_judgements_wait_at_the_same_time() -> None:
    together = threading.Barrier(100, timeout=20)

    class Waits(BoundedPolicy):
        name, bounded, timeout_s = "waits", False, 30.0

        def judge(self, action: Action) -> Decision:
            together.wait()
            return self.allow()

    subject = Governor(Waits())
    decisions: list[Decision] = []
    threads = [threading.Thread(target=lambda: decisions.append(subject.decide(call()))) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    subject.close()
    assert [decision.effect for decision in decisions] == [Effect.ALLOW] * 100


def test_a_policy_that_waits_learns_that_its_time_is_over() -> None:
    class Waits(BoundedPolicy):
        name, bounded = "waits", False

        def judge(self, action: Action) -> Decision:
            gone = caller_gone()
            learnt.append((gone.is_set(), gone.wait(20)))
            names.append(threading.current_thread().name)
            ended.set()
            return self.allow()

    learnt: list[tuple[bool, bool]] = []
    names: list[str] = []
    ended = threading.Event()
    subject = Governor(Waits(), timeout_s=0.1)
    assert subject.decide(call()).rule == "policy-timeout"
    assert ended.wait(20)
    subject.close()
    assert learnt == [(False, True)]
    assert names[0].startswith("lgov-policy_")
    assert not caller_gone().is_set()


def test_a_policy_that_raises_a_timeout_error_of_its_own_was_not_late() -> None:
    class GivesUp(BoundedPolicy):
        name, bounded = "gives-up", False

        def judge(self, action: Action) -> Decision:
            raise TimeoutError

    subject = Governor(GivesUp(), timeout_s=20)
    for decision in both(subject, call()):
        assert (decision.rule, decision.reason) == ("policy-error", "The policy gives-up raised TimeoutError.")
    subject.close()


def test_a_closed_governor_keeps_no_thread_and_waits_for_none_that_hangs() -> None:
    class Waits(BoundedPolicy):
        name, bounded = "waits", False

        def judge(self, action: Action) -> Decision:
            released.wait(20)
            return self.allow()

    released = threading.Event()
    before = {thread for thread in threading.enumerate() if thread.name.startswith("lgov-policy")}
    subject = Governor(Waits(), timeout_s=0.05)
    assert subject.decide(call()).rule == "policy-timeout"
    own = {thread for thread in threading.enumerate() if thread.name.startswith("lgov-policy")} - before
    began = time.perf_counter()
    subject.close()
    assert time.perf_counter() - began < 10
    released.set()
    for thread in own:
        thread.join(20)
    assert len(own) == 1
    assert not any(thread.is_alive() for thread in own)


def test_a_coroutine_that_blocks_its_loop_is_late_too() -> None:
    class Blocks:
        @hookimpl
        async def lgov_pre_tool_call(self, action: Action) -> Decision:
            released.wait(20)
            return ALLOW

    released = threading.Event()
    subject = governor(Blocks(), timeout_s=0.1)
    began = time.perf_counter()
    assert subject.decide(call()).rule == "policy-timeout"
    assert time.perf_counter() - began < 10
    released.set()
    subject.close()


def test_a_policy_that_may_be_slow_sees_the_context_and_changes_it_for_itself_only() -> None:
    class Changes(BoundedPolicy):
        name, bounded = "changes", False

        def judge(self, action: Action) -> Decision:
            seen.append(action.context["groups"].copy())
            action.context["groups"].append("admin")
            return self.allow()

    seen: list[list[str]] = []
    action = call().changed(context={"groups": ["clerk"]})
    subject = Governor([Changes(), Changes()])
    both(subject, action)
    subject.close()
    assert seen == [["clerk"]] * 4
    assert action.context == {"groups": ["clerk"]}


@pytest.mark.parametrize(
    ("effect", "severity"),
    [(Effect.ALLOW, "low"), (Effect.WARN, "low"), (Effect.ESCALATE, "critical"), (Effect.DENY, "critical")],
)
def test_the_severity_of_a_rule_is_that_of_what_blocks(effect: Effect, severity: str) -> None:
    class Answers(BoundedPolicy):
        name, permits = "answers", True

        def judge(self, action: Action) -> Decision:
            return Decision(effect, "answers", "so", "Because.", Severity.LOW)

    for name in ("rule", "answers"):
        rules = PolicySet([Rule(Answers(), name, severity=Severity.CRITICAL)])
        assert Governor(rules).decide(call()).severity == severity


@pytest.mark.parametrize(
    ("answer", "rule", "reason"),
    [
        (Decision(Effect.ALLOW, "p"), "allow", "p has nothing against it."),
        (Decision(Effect.ALLOW, "p", "fine"), "fine", "p answers allow."),
        (Decision(Effect.ALLOW, "p", parts=(ALLOW,)), "allow", "p answers allow."),
        (Decision(Effect.DENY, "p"), "deny", "p answers deny."),
        (Decision(Effect.DENY, "p", "no"), "no", "p answers deny."),
        (Decision(Effect.DENY, "p", reason="Why."), "deny", "Why."),
    ],
)
def test_what_a_policy_does_not_say_is_said_for_it(answer: Decision, rule: str, reason: str) -> None:
    decision = governor(Says(answer)).decide(call())
    assert (decision.policy, decision.rule, decision.reason) == ("p", rule, reason)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Decision(4, "p"), "an effect that does not exist"),  # type: ignore[arg-type]
        (Decision("deny", "p"), "an effect that does not exist"),  # type: ignore[arg-type]
        (Decision(Effect.DENY, "p", severity="high"), "a severity that does not exist"),  # type: ignore[arg-type]
        (Decision(Effect.ALLOW, "p", parts=("p",)), "parts that are not decisions"),  # type: ignore[arg-type]
        (Decision(Effect.TRANSFORM, "p"), "a transform without saying into what"),
        (Decision(Effect.TRANSFORM, "p", arguments=[1]), "a transform into what is not an argument mapping or no text"),  # type: ignore[arg-type]
    ],
)
def test_a_decision_without_a_meaning_is_a_denial_that_says_why(answer: Decision, problem: str) -> None:
    for decision in both(governor(Says(answer)), call()):
        assert (decision.effect, decision.rule, decision.fault) == (Effect.DENY, "policy-error", True)
        assert f" answered {problem}." in decision.reason


def test_what_a_policy_does_with_the_arguments_that_it_put_in_place_changes_nothing() -> None:
    class Keeps(BoundedPolicy):
        name = "keeps"

        def judge(self, action: Action) -> Decision | None:
            return None if action.arguments else self.transform("fills", "Filled.", arguments=own)

    own: dict[str, Any] = {"paths": ["a"]}
    for decision in both(governor(Says(ALLOW), policies=[Keeps()]), call()):
        own["paths"].append("b")
        assert decision.arguments == {"paths": ["a"]}
        own["paths"].remove("b")


def test_a_decision_has_a_text_where_one_takes_the_place_of_the_actions_and_nothing_blocks() -> None:
    asked = Action(Point.OUTPUT, "reply", text="old")
    masks = PIIPolicy(action="redact")
    mail = asked.changed(text="write to ann@example.org")

    def texts(*policies: Any, action: Action) -> list[str | None]:
        return [decision.text for decision in both(Governor(policies), action)]

    assert texts(masks, action=asked) == [None, None]
    assert all(text is not None and "ann@" not in text for text in texts(masks, action=mail))
    assert texts(masks, ConstantPolicy(Effect.DENY), action=mail) == [None, None]


@pytest.mark.parametrize("effect", [Effect.ESCALATE, Effect.DENY])
def test_what_blocks_may_end_the_run(effect: Effect) -> None:
    ends = Decision(effect, "p", "stop", "The end.", abort=True)
    assert governor(Says(ends), Says(ALLOW)).decide(call()).abort
    assert not governor(Says(ends.changed(abort=False))).decide(call()).abort


def test_a_policy_may_answer_with_the_decisions_that_it_is_made_of() -> None:
    of_two = Decision(Effect.WARN, "p", "two", "Of two.", parts=(ALLOW, Decision(Effect.WARN, "q", "odd", "Odd.")))
    decision = governor(Says(of_two)).decide(call())
    assert [(part.policy, part.rule) for part in decision.parts] == [("p", "fine"), ("q", "odd")]


def test_a_text_is_only_rewritten_to_text() -> None:
    decision = governor(Says(Decision(Effect.TRANSFORM, "p", "number", "A number.", text=5))).decide(call())  # type: ignore[arg-type]
    assert (decision.rule, decision.fault) == ("policy-error", True)


def test_a_coroutine_where_none_may_be_is_closed() -> None:
    async def later() -> None: ...

    class Later(BoundedPolicy):
        name = "later"

        def judge(self, action: Action) -> Any:
            return answer

    answer = later()
    assert Governor(PolicySet([Later()])).decide(call()).parts[0].rule == "policy-error"
    assert inspect.getcoroutinestate(answer) == inspect.CORO_CLOSED


def test_a_copy_for_a_policy_shares_no_container_with_the_original() -> None:
    value = {
        "list": [[1]],
        "tuple": ([1],),
        "set": {1},
        "frozen": frozenset({1}),
        "bytes": bytearray(b"x"),
        "text": "x",
    }
    copy = private_copy(MappingProxyType(value))
    assert copy == value
    assert {key: type(item) for key, item in copy.items()} == {key: type(item) for key, item in value.items()}
    copy["list"][0].append(2)
    copy["tuple"][0].append(2)
    copy["set"].add(2)
    copy["bytes"].extend(b"y")
    assert value == {
        "list": [[1]], "tuple": ([1],), "set": {1}, "frozen": frozenset({1}), "bytes": bytearray(b"x"), "text": "x"
    }  # fmt: skip


def test_a_policy_without_a_name_is_called_by_its_class() -> None:
    class Unnamed(BoundedPolicy):
        name = ""

        def judge(self, action: Action) -> Decision:
            raise OSError

    assert Governor(Unnamed()).decide(call()).policy == "Unnamed"


def test_what_a_set_in_shadow_mode_decides_is_marked_and_what_others_decide_is_not() -> None:
    allows, denies = ToolPolicy(allow=["*"], name="allows"), ToolPolicy(allow=["other"], name="denies")
    for rules, rule in (([allows, allows], "allow"), ([allows, denies], "shadow")):
        shadow = PolicySet(rules, mode="shadow")
        for decision in both(Governor(shadow), call()):
            assert (decision.effect, decision.rule) == (Effect.ALLOW, rule)
            assert [(part.policy, part.shadowed) for part in decision.parts] == [(one.name, True) for one in rules]
        for subject, shadowed in ((Governor([shadow, allows]), True), (Governor([allows, allows]), False)):
            decision = subject.decide(call())
            assert (decision.shadowed, decision.abort, decision.fault) == (shadowed, False, False)
            assert decision.shadowed is shadowed
            assert decision.abort is decision.fault is False


# ---------------------------------------------------------------------- what a governor says of its rules


class At:
    """A plugin that answers at the end of a model call."""

    @hookimpl
    def lgov_post_model_call(self, action: Action) -> Any:
        return None


def test_a_governor_covers_the_points_that_a_rule_names() -> None:
    rules = PolicySet(
        [Rule(ToolPolicy(allow=["a"]), "tools", on=[Point.PRE_TOOL_CALL]), Rule(PIIPolicy(), on=[Point.INPUT])]
    )
    subject = governor(At(), policies=[PolicySet([], name="empty"), rules])
    covered = {point for point in Point if subject.covers(point)}
    assert covered == {Point.PRE_TOOL_CALL, Point.INPUT, Point.POST_MODEL_CALL}
    for policy in (PIIPolicy(), Counts(0)):
        assert {point for point in Point if governor(policies=[policy]).covers(point)} == set(Point)


@pytest.mark.parametrize(
    ("policies", "plugins", "reads"),
    [
        ([], [], False),
        ([PolicySet([ToolPolicy(allow=["a"])])], [], False),
        ([PolicySet([Rule(PIIPolicy(), on=[Point.POST_MODEL_CALL])])], [], True),
        ([PolicySet([Rule(PIIPolicy(), on=[Point.OUTPUT])])], [], True),
        ([PolicySet([Rule(PIIPolicy(), on=[Point.INPUT])])], [], False),
        ([Counts(0)], [], True),
        ([], [At()], True),
        ([], [Says(ALLOW)], False),
    ],
)
def test_a_governor_reads_replies_where_a_rule_judges_the_texts_of_models(
    policies: list[Any], plugins: list[Any], reads: bool
) -> None:
    assert governor(*plugins, policies=policies).reads_replies() is reads


# ---------------------------------------------------------------------- conditions, and rules that are asked last


class BreaksOff:
    """A condition that raises what no condition should."""

    source = "breaks"

    def holds(self, action: Action) -> bool:
        raise OSError("a secret")


def test_a_condition_that_breaks_denies_in_the_name_of_its_rule() -> None:
    rule = Rule(ToolPolicy(allow=["*"]), "tools")
    rule.condition = BreaksOff()  # type: ignore[assignment]
    for decision in both(Governor(PolicySet([rule, Rule(ToolPolicy(allow=["*"]), "others")])), call()):
        assert (decision.effect, decision.policy, decision.rule) == (Effect.DENY, "tools", "condition-error")
        assert decision.reason == "The condition of rule tools raised OSError."
        assert decision.fault


class Last(BoundedPolicy):
    """A policy that is asked last, such as an approval."""

    name, deferred = "last", True

    def judge(self, action: Action) -> Decision:
        return self.allow()


@pytest.mark.parametrize(
    ("allowed", "tools", "covers", "skipped"),
    [("other", ["run_sql"], True, True), ("other", ["other"], False, False), ("run_sql", ["run_sql"], True, False)],
)
def test_a_rule_that_is_asked_last_is_skipped_where_another_denies(
    allowed: str, tools: list[str], covers: bool, skipped: bool
) -> None:
    rules = PolicySet([Rule(Last(), "last", tools=tools), Rule(ToolPolicy(allow=[allowed]), "tools")])
    first, last = explain(rules, call()).verdicts
    assert (first.rule, first.covers, first.skipped) == ("tools", True, False)
    assert (last.rule, last.covers, last.skipped) == ("last", covers, skipped)
    assert (last.decision is None) is (skipped or not covers)


def test_a_condition_that_breaks_does_not_take_the_place_of_the_denial_that_skips_its_rule() -> None:
    last = Rule(Last(), "last")
    last.condition = BreaksOff()  # type: ignore[assignment]
    for decision in both(Governor(PolicySet([last, Rule(ToolPolicy(allow=["other"]), "tools")])), call()):
        assert [(part.policy, part.rule) for part in decision.parts] == [("tools", "tool-unknown")]


def test_a_verdict_has_what_the_rule_was_asked_about() -> None:
    rules = PolicySet([Rule(Counts(1), "counts"), Rule(ToolPolicy(allow=["*"]), "tools")])
    verdicts = explain(rules, call(n=0).changed(text="t")).verdicts
    asked = [(verdict.rule, verdict.arguments, verdict.text) for verdict in verdicts]
    assert asked == [("counts", {"n": 0}, "t"), ("tools", {"n": 1}, "t")]
    unclear = call(n=0).changed(name="run\nsql", text="t")
    verdicts = explain(rules, unclear).verdicts
    asked = [(verdict.rule, verdict.arguments, verdict.text) for verdict in verdicts]
    assert asked == [("counts", {"n": 0}, "t"), ("tools", {"n": 0}, "t")]
    assert [(verdict.covers, verdict.decision, verdict.skipped) for verdict in verdicts] == [(False, None, False)] * 2


def test_a_policy_takes_note_at_its_points_of_what_its_rule_does_not_cover() -> None:
    class Notes(BoundedPolicy):
        name, default_points, listens_at = "notes", (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL), (Point.POST_TOOL_CALL,)

        def judge(self, action: Action) -> None:
            noted.append((str(action.point), action.name))

    noted: list[tuple[str, str]] = []
    notes = Rule(Notes(), tools=["other"], when={"field": "arguments.n", "gt": 1})
    subject = Governor(PolicySet([notes, ToolPolicy(allow=["*"])]))
    for point in (Point.PRE_TOOL_CALL, Point.POST_TOOL_CALL):
        subject.decide(call(n=0).changed(point=point))
    assert noted == [("post_tool_call", "run_sql")]


def test_a_policy_that_may_wait_takes_note_in_the_thread_of_the_caller() -> None:
    class Notes(BoundedPolicy):
        name, bounded, permits = "notes", False, True
        default_points, listens_at = (Point.PRE_TOOL_CALL, Point.INPUT), (Point.INPUT,)

        def judge(self, action: Action) -> Decision | None:
            in_place[action.point] = threading.current_thread() is threading.main_thread()
            return ALLOW if action.point is Point.PRE_TOOL_CALL else None

    in_place: dict[Point, bool] = {}
    subject = Governor(PolicySet([Notes()]))
    for point in (Point.PRE_TOOL_CALL, Point.INPUT):
        assert not subject.decide(call(n=0).changed(point=point)).blocks
    assert in_place == {Point.PRE_TOOL_CALL: False, Point.INPUT: True}


async def test_a_coroutine_of_a_plugin_runs_on_the_loop_of_an_asynchronous_caller() -> None:
    class OnLoop:
        @hookimpl
        async def lgov_pre_tool_call(self, action: Action) -> Decision:
            loops.append(asyncio.get_running_loop())
            return ALLOW

    loops: list[asyncio.AbstractEventLoop] = []
    assert not (await governor(OnLoop()).adecide(call())).blocks
    assert loops == [asyncio.get_running_loop()]


def test_an_answer_that_is_no_decision_is_named_and_one_with_parts_keeps_its_name() -> None:
    class Answers(BoundedPolicy):
        name, permits = "answers", True

        def judge(self, action: Action) -> Any:
            return action.arguments["answer"]

    subject = Governor(PolicySet([Rule(Answers(), "rule")]))
    for decision in both(subject, call(answer="allow")):
        assert (decision.policy, decision.reason) == ("rule", "The policy rule answered str instead of a Decision.")
    of_parts = Decision(Effect.DENY, "inner", "no", "Not now.", parts=(DENY,))
    for decision in both(subject, call(answer=of_parts)):
        assert (decision.policy, [part.policy for part in decision.parts]) == ("inner", ["p"])


# ---------------------------------------------------------------------- who recognises an action


class Keeps:
    """A plugin that keeps the ids of what it is asked about."""

    def __init__(self, **promises: Any) -> None:
        vars(self).update(promises)
        self.ids: list[str | None] = []

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision:
        self.ids.append(action.operation_id)
        return ALLOW


@pytest.mark.parametrize(
    ("promises", "identified"), [({"stateful": True}, True), ({"stateful": 1}, False), ({}, False)]
)
def test_an_action_gets_an_id_where_somebody_has_to_recognise_it(promises: dict[str, Any], identified: bool) -> None:
    plugin = Keeps(**promises)
    governor(plugin).decide(call())
    assert [operation_id is not None for operation_id in plugin.ids] == [identified]


def test_a_call_that_is_refused_unasked_has_an_id_too() -> None:
    seen = Seen()
    governor(seen, Keeps(stateful=True)).refuse(call(), "unreadable", "It cannot be read.")
    (decided,) = seen.decisions()
    assert str(decided.action.operation_id).startswith("op_")
