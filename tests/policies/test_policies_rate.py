"""RateLimitPolicy: so many calls in so much time, by a clock that the test moves."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from lgov_core.errors import PolicyError, PolicyFileError
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import PolicySet, RateLimitPolicy, ToolPolicy, load_policies
from lgov_core.types import Action, Decision, Effect, Point


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def call(agent: str | None = "a", name: str = "t", point: Point = Point.PRE_TOOL_CALL, **fields: Any) -> Action:
    return Action(point, name, agent=agent, **fields)


def allowed(policy: RateLimitPolicy, times: int, **fields: Any) -> int:
    return sum(policy.judge(call(**fields)) is None for _ in range(times))


def test_a_bucket_empties_and_fills_up_evenly() -> None:
    clock = Clock()
    policy = RateLimitPolicy(3, 60, clock=clock)
    assert allowed(policy, 10) == 3
    clock.now += 19.9
    assert allowed(policy, 10) == 0
    clock.now += 0.1
    assert allowed(policy, 10) == 1
    clock.now += 10_000
    assert allowed(policy, 10) == 3, "it holds no more than it holds"


def test_the_denial_says_when_to_try_again_and_is_right() -> None:
    clock = Clock()
    policy = RateLimitPolicy(2, 7, clock=clock)
    assert allowed(policy, 2) == 2
    clock.now += 1.234
    decision = policy.judge(call())
    assert decision is not None
    assert (decision.effect, decision.rule) == (Effect.DENY, "rate-limit")
    found = re.search(r"again in ([\d.]+) s", decision.reason)
    assert found is not None
    clock.now += float(found.group(1)) - 0.11
    assert policy.judge(call()) is not None
    clock.now += 0.11
    assert policy.judge(call()) is None


def test_a_burst_is_how_much_may_come_at_once() -> None:
    clock = Clock()
    policy = RateLimitPolicy(60, 60, burst=5, clock=clock)
    assert allowed(policy, 20) == 5
    total = 5
    for _ in range(600):
        clock.now += 0.1
        total += allowed(policy, 3)
    assert total == 65, "no call is lost or won by adding up small steps"


@pytest.mark.parametrize(
    ("per", "one", "other"),
    [
        ("agent", {"agent": "x"}, {"agent": "y"}),
        ("session", {"session_id": "x"}, {"session_id": "y"}),
        ("rollout", {"rollout_id": "x"}, {"rollout_id": "y"}),
        ("tool", {"name": "x"}, {"name": "y"}),
    ],
)
def test_each_has_a_bucket(per: Any, one: dict[str, Any], other: dict[str, Any]) -> None:
    policy = RateLimitPolicy(1, 60, per=per, clock=Clock())
    assert allowed(policy, 3, **one) == 1
    assert allowed(policy, 3, **other) == 1


def test_one_for_all_and_one_for_those_without_an_id() -> None:
    policy = RateLimitPolicy(2, 60, per="global", clock=Clock())
    assert sum(allowed(policy, 1, agent=str(number)) for number in range(9)) == 2
    assert allowed(RateLimitPolicy(2, 60, clock=Clock()), 9, agent=None) == 2


def test_points_do_not_use_up_each_others_calls_and_ends_are_passed_over() -> None:
    policy = RateLimitPolicy(1, 60, clock=Clock())
    for point in (Point.PRE_TOOL_CALL, Point.PRE_MODEL_CALL, Point.INPUT, Point.AGENT_STARTUP):
        assert allowed(policy, 3, point=point) == 1
    for point in (Point.POST_TOOL_CALL, Point.POST_MODEL_CALL, Point.OUTPUT, Point.AGENT_SHUTDOWN):
        assert allowed(policy, 3, point=point) == 3


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    clock = Clock()
    policy = RateLimitPolicy(2, 10, clock=clock)
    assert allowed(policy, 5) == 2
    clock.now -= 500
    assert allowed(policy, 5) == 0


def test_buckets_are_bounded_and_a_full_one_is_forgotten() -> None:
    clock = Clock()
    policy = RateLimitPolicy(1, 10, max_buckets=3, clock=clock)
    assert [allowed(policy, 1, agent=str(number)) for number in range(3)] == [1, 1, 1]
    decision = policy.judge(call("one more"))
    assert decision is not None
    assert decision.rule == "rate-buckets"
    assert allowed(policy, 1, agent="0") == 0, "a bucket in use is never dropped for another"
    clock.now += 10
    assert allowed(policy, 1, agent="one more") == 1


def test_under_a_governor_a_transform_costs_no_second_call() -> None:
    class Shortens:
        name = "shortens"
        bounded = True

        def judge(self, action: Action) -> Decision | None:
            if action.arguments.get("q") == "short":
                return Decision(Effect.ALLOW, self.name)
            return Decision(Effect.TRANSFORM, self.name, arguments={"q": "short"})

    def governors(policy: RateLimitPolicy) -> list[Governor]:
        manager = make_plugin_manager(builtin=(), third_party=False)
        plugin = make_plugin_manager([PolicySet.of(policy, Shortens())], builtin=(), third_party=False)
        return [Governor([policy, Shortens()], manager=manager), Governor(manager=plugin)]

    for number in range(2):
        subject = governors(RateLimitPolicy(2, 60, clock=Clock()))[number]
        effects = [subject.decide(call(arguments={"q": "long"})).effect for _ in range(3)]
        assert effects == [Effect.TRANSFORM, Effect.TRANSFORM, Effect.DENY]


def test_the_same_operation_id_for_every_call_gets_no_more_calls() -> None:
    policy = RateLimitPolicy(2, 60, clock=Clock())
    manager = make_plugin_manager(builtin=(), third_party=False)
    subject = Governor([policy, ToolPolicy(allow=["*"])], manager=manager)
    assert sum(not subject.decide(call(operation_id="same")).blocks for _ in range(5)) == 2


def test_threads_get_no_more_than_one_would() -> None:
    policy = RateLimitPolicy(100, 60, clock=Clock())
    got: list[int] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        got.append(allowed(policy, 50))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == 100


def test_it_goes_on_where_the_one_before_it_stopped() -> None:
    old = RateLimitPolicy(2, 60, clock=Clock())
    allowed(old, 2)
    new = RateLimitPolicy(2, 60)
    new.continue_from(old)
    assert allowed(new, 2) == 0
    new.reset()
    assert allowed(new, 3) == 2


def test_from_a_policy_file() -> None:
    document: dict[str, Any] = {
        "version": 1,
        "rules": [
            {"name": "all", "use": "allow"},
            {"name": "slowly", "use": "rate", "with": {"max_calls": 2, "per_seconds": 3600, "per": "tool"}},
        ],
    }
    subject = load_policies(document)
    assert [subject.judge(call()).effect.label for _ in range(3)] == ["allow", "allow", "deny"]
    assert subject.judge(call()).policy == "slowly"
    document["rules"][1]["with"] = {"max_calls": 2}
    with pytest.raises(PolicyFileError, match="per_seconds"):
        load_policies(document)


@pytest.mark.parametrize(
    "options",
    [
        {"max_calls": 0, "per_seconds": 1},
        {"max_calls": 1.5, "per_seconds": 1},
        {"max_calls": 1, "per_seconds": 0},
        {"max_calls": 1, "per_seconds": float("nan")},
        {"max_calls": 1, "per_seconds": 1, "per": "user"},
        {"max_calls": 1, "per_seconds": 1, "burst": 0},
        {"max_calls": 1, "per_seconds": 1, "clock": 5},
    ],
)
def test_settings_without_a_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        RateLimitPolicy(**options)
