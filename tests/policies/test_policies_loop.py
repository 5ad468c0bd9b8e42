"""LoopPolicy: the same again, and round in circles."""

from __future__ import annotations

from typing import Any

import pytest

from lgov_core.errors import PolicyError, PolicyFileError
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import LoopPolicy, PolicySet, ToolPolicy, load_policies
from lgov_core.scope import RolloutScope
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome, new_id


def call(name: str, rollout: str | None = "ro_1", arguments: Any = None, **fields: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, name, arguments=arguments or {}, rollout_id=rollout, **fields)


def run(policy: LoopPolicy, names: str, **fields: Any) -> str:
    """One letter a call; those that are denied in capitals."""
    return "".join(name.upper() if policy.judge(call(name, **fields)) is not None else name for name in names)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("aaaa", "aaaA"),
        ("aaaaaa", "aaaAAA"),
        ("aabaab", "aabaab"),
        ("aaabaaa", "aaabaaa"),
        ("abababab", "abababAB"),
        ("abababababcab", "abababABABcab"),
        ("abcabcabcabc", "abcabcabcABC"),
        ("xyzabababa", "xyzabababA"),
        ("abcdefghabcdefghabcdefgha", "abcdefghabcdefghabcdefghA"),
        ("abcdefghij", "abcdefghij"),
        ("atbtctdtet", "atbtctdtet"),
    ],
)
def test_what_is_a_repetition_and_what_is_not(names: str, expected: str) -> None:
    assert run(LoopPolicy(3), names) == expected


def test_with_a_window_the_same_call_is_counted_whatever_stands_between() -> None:
    assert run(LoopPolicy(2, window=6), "axaya") == "axayA"
    assert run(LoopPolicy(2, window=6), "axuvwya") == "axuvwya"
    assert run(LoopPolicy(2, window=3), "axabca") == "axabca"
    assert run(LoopPolicy(1, window=1), "ab" * 4) == "abABABAB"
    assert run(LoopPolicy(2, window=4), "abaaca") == "abaAca", "what was denied was not made"


def test_one_repeat_means_never_twice_in_a_row() -> None:
    assert run(LoopPolicy(1), "aabb") == "aAbB"


def test_other_arguments_are_another_call_and_their_order_is_none() -> None:
    policy = LoopPolicy(1)
    assert policy.judge(call("t", arguments={"a": 1, "b": (1, 2)})) is None
    assert policy.judge(call("t", arguments={"b": [1, 2], "a": 1})) is not None
    for other in ({"a": 1}, {"a": "1"}, {"a": 1.0}, {"a": True}, {"a": None}, {1: "a"}, {"1": "a"}, {"a": {1}}):
        assert policy.judge(call("t", arguments=other)) is None, other
    assert policy.judge(call("t", arguments={"a": {1}})) is not None
    assert policy.judge(call("t", kind="handoff", arguments={"a": {1}})) is None


def test_arguments_that_hold_themselves_or_cannot_be_shown_repeat_too() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    endless: dict[str, Any] = {}
    endless["a"] = endless
    for arguments in (endless, {"a": Silent()}):
        policy = LoopPolicy(1)
        assert policy.judge(call("t", arguments=arguments)) is None
        assert policy.judge(call("t", arguments=arguments)) is not None


def test_rollouts_and_attempts_are_counted_apart_and_the_rest_by_session_or_agent() -> None:
    policy = LoopPolicy(1)
    for fields in (
        {"rollout": "a", "attempt": 1},
        {"rollout": "a", "attempt": 2},
        {"rollout": "b"},
        {"rollout": None, "session_id": "a"},
        {"rollout": None, "agent": "a"},
        {"rollout": None},
    ):
        assert run(policy, "tt", **fields) == "tT", fields


def test_ignored_tools_are_as_if_they_were_not_called() -> None:
    assert run(LoopPolicy(2, ignore=["w*"]), "wwwwwawawa") == "wwwwwawawA"


def test_the_model_is_told_what_it_does() -> None:
    policy = LoopPolicy(2)
    run(policy, "aa")
    decision = policy.judge(call("a"))
    assert decision is not None
    assert decision.rule == "loop"
    assert "repeating yourself" in decision.reason
    assert "2 times in a row" in decision.reason
    assert not decision.abort
    assert run(policy, "bcbc") == "bcbc"
    cycle = policy.judge(call("b"))
    assert cycle is not None
    assert "cycle of 2 calls, 2 times already" in cycle.reason


def test_the_run_is_ended_when_it_does_not_listen() -> None:
    policy = LoopPolicy(1, abort_after=3)
    policy.judge(call("a"))
    aborts = []
    for _ in range(4):
        decision = policy.judge(call("a"))
        assert decision is not None
        aborts.append(decision.abort)
    assert aborts == [False, False, True, True]


@pytest.mark.parametrize("as_plugin", [False, True])
def test_under_a_governor(as_plugin: bool) -> None:
    class Shortens:
        name = "shortens"
        bounded = True

        def judge(self, action: Action) -> Decision | None:
            if action.point is not Point.PRE_TOOL_CALL or action.arguments.get("q") == "short":
                return None
            return Decision(Effect.TRANSFORM, self.name, arguments={"q": "short"})

    policies = [LoopPolicy(2), Shortens(), ToolPolicy(allow=["*"])]
    manager = make_plugin_manager([PolicySet.of(*policies)] if as_plugin else [], builtin=(), third_party=False)
    subject = Governor(() if as_plugin else policies, manager=manager)
    with subject.rollout(RolloutScope("ro_1")):
        effects = [subject.decide(call("t", None, {"q": "long"})).effect.label for _ in range(3)]
        assert effects == ["transform", "transform", "deny"], "a transform is no repetition"
        assert subject.decide(call("t", None, {"q": "short"})).blocks, "what would have run is what is compared"
    with subject.rollout(RolloutScope("ro_1")):
        assert not subject.decide(call("t", None, {"q": "long"})).blocks, "the rollout before this one is over"


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (["20 %", "40 %", "60 %", "80 %", "100 %"], "aaaaa"),
        (["20 %", "40 %", "40 %", "40 %", "60 %"], "aaaaA"),
        (["40 %", None, "40 %", "40 %"], "aaaA"),
        ([None, None, None, None], "aaaA"),
    ],
)
def test_the_same_call_with_a_new_result_is_progress(results: list[str | None], expected: str) -> None:
    subject = Governor([LoopPolicy(3), ToolPolicy(allow=["a"])], manager=make_plugin_manager())
    decided = ""
    for result in results:
        action = call("a").changed(operation_id=new_id("op"))
        blocks = subject.decide(action).blocks
        decided += "A" if blocks else "a"
        if blocks or result is not None:
            subject.record(ToolOutcome(action, "denied" if blocks else "ok", result=result))
    assert decided == expected


def test_a_denied_repetition_is_no_new_result() -> None:
    subject = Governor([LoopPolicy(2), ToolPolicy(allow=["a"])], manager=make_plugin_manager())
    decided = ""
    for _ in range(5):
        action = call("a").changed(operation_id=new_id("op"))
        decision = subject.decide(action)
        decided += "A" if decision.blocks else "a"
        subject.record(
            ToolOutcome(action, "denied" if decision.blocks else "ok", result=None if decision.blocks else "r")
        )
    assert decided == "aaAAA"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgov_core.policies.budgets.counting.MAX_ROLLOUTS", 3)
    policy = LoopPolicy(1)
    for number in range(10):
        policy.judge(call("t", f"ro_{number}"))
    assert len(policy._histories._by_key) == 3
    assert policy.judge(call("t", "ro_9")) is not None


def test_it_goes_on_where_the_one_before_it_stopped() -> None:
    old, new = LoopPolicy(1), LoopPolicy(1)
    old.judge(call("a"))
    new.continue_from(old)
    assert new.judge(call("a")) is not None
    new.reset()
    assert new.judge(call("a")) is None


def test_from_a_policy_file() -> None:
    def document(**options: Any) -> dict[str, Any]:
        return {"version": 1, "rules": [{"use": "allow"}, {"name": "circles", "use": "loop", "with": options}]}

    subject = load_policies(document(max_repeats=1, ignore=["read"]))
    assert [subject.judge(call("t")).effect.label for _ in range(2)] == ["allow", "deny"]
    assert [subject.judge(call("read")).effect.label for _ in range(2)] == ["allow", "allow"]
    assert subject.judge(call("t")).policy == "circles"
    for wrong in ({"max_repeats": 0}, {"window": 0}, {"ignore": "read"}, {"abort_after": True}):
        with pytest.raises(PolicyFileError):
            load_policies(document(**wrong))
        with pytest.raises(PolicyError):
            LoopPolicy(**wrong)  # type: ignore[arg-type]


def test_numbers_too_long_to_write_out_are_repetitions_too() -> None:
    policy = LoopPolicy(max_repeats=2)
    call = Action(Point.PRE_TOOL_CALL, "t", arguments={"n": 10**5000}, rollout_id="r")
    assert [policy.judge(call) is None for _ in range(3)] == [True, True, False]
