"""Interceptors that raise, hang or answer nonsense: every failure is a deny."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from agent_hooks import (
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResolution,
    InterceptionRecord,
    Verdict,
)
from interceptors import KINDS, PATHS, Answer, Bounded, Sync, allows, at, call, decide

from lgov_core import Governor
from lgov_core.errors import PolicyError
from lgov_core.integrations.agent_hooks import InterceptorPolicy
from lgov_core.types import Action, Effect, Point


def test_a_resolver_that_hangs_is_a_deny() -> None:
    released = threading.Event()

    class Hangs:
        def resolve(self, request: ApprovalRequest, /) -> ApprovalResolution:
            released.wait(60)
            return ApprovalResolution(ApprovalOutcome.APPROVE, request.context_identity, Verdict.allow())

    policy = InterceptorPolicy([Bounded(at("pre_tool_call", Verdict.escalate()))], resolver=Hangs(), timeout_s=0.05)
    for path in PATHS:
        decision = decide(path, policy, call())
        assert (decision.rule, decision.fault) == ("host_error:approval_resolver_failed", True)
    released.set()


def raises(_context: dict[str, Any]) -> Any:
    raise RuntimeError("the password is swordfish")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (raises, "host_error:interceptor_failed"),
        (lambda _context: None, "host_error:verdict_invalid"),
        (lambda _context: True, "host_error:verdict_invalid"),
        (lambda _context: {"decision": "maybe"}, "host_error:verdict_invalid"),
        (
            lambda _context: {"decision": "transform", "transform": {"path": "$target.no.where", "value": 1}},
            "host_error:transform_invalid",
        ),
        (
            lambda _context: {"decision": "transform", "transform": {"path": "$target", "value": "no arguments"}},
            "not-expressible",
        ),
    ],
    ids=["raises", "nothing", "true", "maybe", "nowhere", "no-object"],
)
def test_whatever_breaks_is_a_deny(kind: type[Sync], answer: Answer, rule: str, path: str) -> None:
    decision = decide(path, InterceptorPolicy([Sync(allows), kind(answer)]), call())
    assert decision.effect is Effect.DENY
    # An object that is no set of arguments is refused by one side or the other, depending on where it is seen first.
    assert decision.rule == rule or (rule == "not-expressible" and decision.rule.startswith("host_error:"))
    assert decision.fault is (decision.rule.startswith("host_error:"))
    assert "swordfish" not in repr(decision)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
def test_an_interceptor_that_hangs_denies_and_the_others_run(kind: str, path: str) -> None:
    released = threading.Event()

    class Hangs:
        def intercept(self, context: dict[str, Any]) -> Any:
            released.wait(60)
            return Verdict.allow()

    class Sleeps:
        async def intercept(self, context: dict[str, Any]) -> Any:
            await asyncio.sleep(60)
            return Verdict.allow()

    after = Bounded(allows)
    policy = InterceptorPolicy([Hangs() if kind == "thread" else Sleeps(), after], timeout_s=0.05)
    decision = decide(path, policy, call())
    assert (decision.effect, decision.rule) == (Effect.DENY, "host_error:interceptor_timeout")
    assert decision.fault
    assert len(after.seen) == 1
    released.set()


def test_no_interceptor_at_all_denies_everything() -> None:
    governor = Governor(plugins=[InterceptorPolicy([])])
    assert governor.decide(call()).rule == "host_error:no_interceptor"
    assert governor.decide(Action(Point.OUTPUT, "agent", "text", text="x")).blocks


@pytest.mark.parametrize("value", [object(), {1: 2}, b"bytes", float("nan"), {1, 2}])
def test_arguments_that_are_not_json_are_denied_and_recorded(value: Any) -> None:
    records: list[InterceptionRecord] = []
    interceptor = Sync(allows)
    policy = InterceptorPolicy([interceptor], on_record=records.append)
    for path in PATHS:
        assert decide(path, policy, call(value=value)).effect is Effect.DENY
    assert interceptor.seen == []
    assert {record.verdict.reason for record in records} == {"host_error:context_invalid"}
    assert len(records) == len(PATHS)


def test_arguments_that_hold_themselves_are_a_deny() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    for kind in KINDS:
        for path in PATHS:
            assert decide(path, InterceptorPolicy([kind(allows)]), call(value=loop)).blocks


@pytest.mark.parametrize(
    ("point", "change"),
    [
        ("post_model_call", {"path": "$target.tool_calls", "value": []}),
        ("post_model_call", {"path": "$target.content", "value": [{"type": "text"}]}),
        ("input", {"path": "$target.role", "value": "system"}),
        ("output", {"path": "$target.content", "value": 4}),
        ("pre_model_call", {"path": "$target", "value": "no messages"}),
        ("agent_startup", {"path": "$target.tools_registered", "value": []}),
    ],
)
def test_a_change_that_an_agent_cannot_be_given_is_a_deny(point: str, change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "pre_model_call": {"messages": [{"role": "user", "content": "x"}]},
        "post_model_call": {"tool_calls": [{"id": "1", "name": "rm", "args": {}}]},
    }.get(point, {})
    action = Action(Point(point), "thing", arguments=arguments, text="x", operation_id="op_1")
    verdict = {"decision": "transform", "transform": change}
    for path in PATHS:
        decision = decide(path, InterceptorPolicy([Sync(at(point, verdict))]), action)
        assert decision.effect is Effect.DENY
        assert decision.rule in ("not-expressible", "host_error:transform_target_forbidden"), decision


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interceptors": [object()]}, "is not an interceptor"),
        *(({"interceptors": [], "timeout_s": wrong}, "timeout_s") for wrong in (0, float("inf"), "5")),
        ({"interceptors": [], "mode": "watch"}, "mode 'watch' is unknown"),
        ({"interceptors": [], "identity_provider": "md5"}, "identity_provider"),
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        InterceptorPolicy(**options)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'resolvers'"):
        InterceptorPolicy([], resolvers=None)  # type: ignore[call-arg]


@pytest.mark.filterwarnings("ignore:coroutine 'sleep' was never awaited")
def test_a_bounded_interceptor_that_waits_is_a_deny() -> None:
    class Lies:
        bounded = True

        def intercept(self, context: dict[str, Any]) -> Any:
            return asyncio.sleep(60)

    decision = Governor(InterceptorPolicy([Lies()], timeout_s=0.05)).decide(call())
    assert (decision.effect, decision.fault) == (Effect.DENY, True)
