"""Interceptors under lgov's governor: every verdict, every way of failing, on the synchronous and asynchronous paths."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from agent_hooks import (
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResolution,
    CompositionConfig,
    InterceptionRecord,
    Verdict,
)

from lgov_core import AuditLog, Governor, PolicySet
from lgov_core.agent_hooks import InterceptorPolicy, LgovInterceptor
from lgov_core.agent_hooks.sessions import MAX_REMEMBERED, Remembered
from lgov_core.errors import PolicyError
from lgov_core.policies import ConstantPolicy, Rule
from lgov_core.policies.base import BoundedPolicy
from lgov_core.scope import RolloutScope
from lgov_core.types import Action, Decision, Effect, Point

Answer = Callable[[dict[str, Any]], Any]


class Sync:
    """An interceptor that is no coroutine function: it runs in a thread."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[dict[str, Any]] = []
        self.threads: list[int] = []

    def intercept(self, context: dict[str, Any]) -> Any:
        self.seen.append(context)
        self.threads.append(threading.get_ident())
        return self.answer(context)


class Bounded(Sync):
    bounded = True


class Async(Sync):
    async def intercept(self, context: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return Sync.intercept(self, context)


KINDS = (Sync, Bounded, Async)
PATHS = ("plugin", "policy", "set", "async plugin", "async policy")


def allows(_context: dict[str, Any]) -> Any:
    return Verdict.allow()


def at(point: str, verdict: Any) -> Answer:
    return lambda context: verdict if context["interception_point"] == point else Verdict.allow()


def redirect(context: dict[str, Any]) -> Any:
    if context["interception_point"] != "pre_tool_call":
        return Verdict.allow()
    return {"decision": "transform", "transform": {"path": "$target.url", "value": "https://safe"}}


def call(**arguments: Any) -> Action:
    arguments = arguments or {"url": "https://x"}
    return Action(Point.PRE_TOOL_CALL, "get", arguments=arguments, agent="clerk", call_id="t-1", operation_id="op_1")


def decide(path: str, policy: InterceptorPolicy, action: Action, **options: Any) -> Decision:
    """The decision by one of the ways in which a policy can be given and asked."""
    options.setdefault("timeout_s", 5.0)
    if path.endswith("plugin"):
        governor = Governor(plugins=[policy], **options)
    else:
        governor = Governor(PolicySet.of(policy) if path == "set" else policy, **options)
    if path.startswith("async"):
        return asyncio.run(governor.adecide(action))
    return governor.decide(action)


# ---------------------------------------------------------------------- verdicts


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_verdict_on_every_path(kind: type[Sync], path: str) -> None:
    def decided(verdict: Any) -> Decision:
        return decide(path, InterceptorPolicy([kind(at("pre_tool_call", verdict))]), call())

    assert decided(Verdict.allow()).effect is Effect.ALLOW
    warned = decided(Verdict.warn(reason="acme:odd", message="looks odd"))
    assert (warned.effect, warned.rule, warned.reason) == (Effect.WARN, "acme:odd", "looks odd")
    denied = decided(Verdict.deny(reason="acme:no", message="not that"))
    assert (denied.effect, denied.rule, denied.reason, denied.fault) == (Effect.DENY, "acme:no", "not that", False)
    asked = decided(Verdict.escalate(reason="acme:ask"))
    assert (asked.effect, asked.rule) == (Effect.ESCALATE, "acme:ask")
    changed = decide(path, InterceptorPolicy([kind(redirect)]), call())
    assert (changed.effect, changed.arguments) == (Effect.TRANSFORM, {"url": "https://safe"})


@pytest.mark.parametrize("path", PATHS)
def test_the_most_severe_verdict_wins_and_transforms_fold(path: str) -> None:
    sees = Sync(allows)
    escalates = Sync(at("pre_tool_call", Verdict.escalate()))
    denies = Sync(at("pre_tool_call", Verdict.deny(reason="acme:no")))

    def effect(*interceptors: Sync) -> Effect:
        return decide(path, InterceptorPolicy(interceptors), call()).effect

    assert effect(Sync(redirect), sees) is Effect.TRANSFORM
    assert sees.seen[-1]["tool_call"]["args"] == {"url": "https://safe"}
    assert effect(Sync(redirect), escalates) is Effect.ESCALATE
    assert effect(escalates, denies, Sync(redirect)) is Effect.DENY
    assert effect(denies, escalates) is Effect.DENY


def test_verdicts_combine_with_those_of_lgovs_policies() -> None:
    denies = InterceptorPolicy([Sync(at("pre_tool_call", Verdict.deny(reason="acme:no")))])
    asks = InterceptorPolicy([Sync(at("pre_tool_call", Verdict.escalate()))], name="asks")
    allowing = ConstantPolicy(Effect.ALLOW, name="fine")
    assert Governor(allowing, plugins=[denies]).decide(call()).policy == "agent-hooks"
    assert Governor([allowing, asks, denies]).decide(call()).effect is Effect.DENY
    assert Governor([ConstantPolicy(Effect.DENY, name="house"), asks]).decide(call()).policy == "house"


def test_interceptors_see_what_other_policies_made_of_it() -> None:
    class Scrubs(BoundedPolicy):
        name = "scrubs"

        def judge(self, action: Action) -> Decision | None:
            clean = {"url": "https://clean"}
            return None if action.arguments == clean else self.transform("scrub", "", arguments=clean)

    sees = Sync(allows)
    policy = InterceptorPolicy([sees])
    assert Governor([policy, Scrubs()]).decide(call()).arguments == {"url": "https://clean"}
    # Asked first it saw the original, and was asked again about the form that runs.
    assert [one["tool_call"]["args"]["url"] for one in sees.seen] == ["https://x", "https://clean"]
    sees.seen.clear()
    assert not Governor([Scrubs(), policy]).decide(call()).blocks
    assert [one["tool_call"]["args"]["url"] for one in sees.seen] == ["https://clean"]


def test_a_form_is_put_before_the_interceptors_once_and_again_for_every_decision() -> None:
    interceptor = Sync(redirect)
    governor = Governor(plugins=[InterceptorPolicy([interceptor])])
    for number in (1, 2):
        assert governor.decide(call()).arguments == {"url": "https://safe"}
        assert len(interceptor.seen) == number


# ---------------------------------------------------------------------- approvals


class Resolver:
    def __init__(self, outcome: str, verdict: Verdict | None = None) -> None:
        self.outcome, self.verdict = ApprovalOutcome(outcome), verdict
        self.requests: list[ApprovalRequest] = []

    def resolve(self, request: ApprovalRequest, /) -> ApprovalResolution:
        self.requests.append(request)
        return ApprovalResolution(self.outcome, request.context_identity, self.verdict)


@pytest.mark.parametrize("path", PATHS)
def test_a_resolver_lifts_or_confirms_a_liftable_deny(path: str) -> None:
    def decided(resolver: Any) -> Decision:
        asks = Sync(at("pre_tool_call", Verdict.escalate(reason="acme:ask")))
        return decide(path, InterceptorPolicy([asks], resolver=resolver), call())

    yes = Resolver("approve", Verdict.allow())
    assert not decided(yes).blocks
    assert yes.requests[0].context["tool_call"]["name"] == "get"
    no = decided(Resolver("reject", Verdict.deny(reason="acme:rejected", message="said no")))
    assert (no.effect, no.rule) == (Effect.DENY, "acme:rejected")
    nobody = decided(Resolver("unresolved"))
    assert (nobody.effect, nobody.fault) == (Effect.DENY, False)


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


def test_what_a_resolver_sees_can_be_redacted() -> None:
    resolver = Resolver("approve", Verdict.allow())
    policy = InterceptorPolicy(
        [Sync(at("pre_tool_call", Verdict.escalate()))],
        resolver=resolver,
        approval_redactor=lambda context: {**context, "tool_call": {**context["tool_call"], "args": {}}, "target": {}},
    )
    assert not decide("plugin", policy, call(password="swordfish")).blocks
    assert "swordfish" not in repr(resolver.requests)


# ---------------------------------------------------------------------- fails closed


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
def test_an_interceptor_that_hangs_is_a_deny_and_the_others_are_still_asked(kind: str, path: str) -> None:
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


def test_an_agents_loop_is_not_held_up_by_an_interceptor_that_blocks() -> None:
    inside, released = threading.Event(), threading.Event()

    class Blocks:
        def intercept(self, context: dict[str, Any]) -> Any:
            inside.set()
            assert released.wait(60)
            return Verdict.allow()

    async def go() -> Decision:
        task = asyncio.ensure_future(Governor(plugins=[InterceptorPolicy([Blocks()], timeout_s=60)]).adecide(call()))
        while not inside.is_set():
            await asyncio.sleep(0.001)  # the loop runs while the interceptor blocks
        released.set()
        return await task

    assert not asyncio.run(go()).blocks


def test_no_interceptor_at_all_denies_everything() -> None:
    governor = Governor(plugins=[InterceptorPolicy([])])
    assert governor.decide(call()).rule == "host_error:no_interceptor"
    assert governor.decide(Action(Point.OUTPUT, "agent", "text", text="x")).blocks


@pytest.mark.parametrize("value", [object(), {1: 2}, b"bytes", float("nan"), {1, 2}])
def test_arguments_that_json_cannot_hold_are_a_deny_with_a_record(value: Any) -> None:
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


def test_plain_classes_of_values_reach_interceptors_as_plain_values() -> None:
    class Colour(StrEnum):
        RED = "red"

    interceptor = Sync(allows)
    assert not decide("plugin", InterceptorPolicy([interceptor]), call(colour=Colour.RED, pair=(1, 2))).blocks
    args = interceptor.seen[0]["tool_call"]["args"]
    assert args == {"colour": "red", "pair": [1, 2]}
    assert type(args["colour"]) is str


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
    ("point", "change", "expected"),
    [
        ("input", {"path": "$target.content", "value": "new"}, "new"),
        ("post_model_call", {"path": "$target.content", "value": "new"}, "new"),
        ("post_tool_call", {"path": "$target", "value": {"n": 2}}, '{"n": 2}'),
        ("post_tool_call", {"path": "$target.n", "value": 2}, '{"n": 2}'),
        ("output", {"path": "$target.content", "value": "new"}, "new"),
    ],
)
def test_a_changed_text_reaches_the_agent(point: str, change: dict[str, Any], expected: str) -> None:
    action = Action(Point(point), "thing", text='{"n": 1}', operation_id="op_1")
    verdict = {"decision": "transform", "transform": change}
    for path in PATHS:
        decision = decide(path, InterceptorPolicy([Sync(at(point, verdict))]), action)
        assert (decision.effect, decision.text) == (Effect.TRANSFORM, expected)


def test_changed_messages_keep_what_else_the_request_holds() -> None:
    messages = [{"role": "user", "content": "x"}]
    action = Action(Point.PRE_MODEL_CALL, "m", "model", {"messages": messages, "temperature": 0})
    verdict = {"decision": "transform", "transform": {"path": "$target[0].content", "value": "y"}}
    decision = decide("plugin", InterceptorPolicy([Sync(at("pre_model_call", verdict))]), action)
    assert decision.arguments == {"messages": [{"role": "user", "content": "y"}], "temperature": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interceptors": [object()]}, "is no interceptor"),
        *(({"interceptors": [], "timeout_s": wrong}, "timeout_s") for wrong in (0, float("inf"), "5")),
        ({"interceptors": [], "mode": "watch"}, "mode 'watch' is unknown"),
        ({"interceptors": [], "identity_provider": "md5"}, "identity_provider"),
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        InterceptorPolicy(**options)


# ---------------------------------------------------------------------- runs, records, threads


def test_only_watching_records_and_blocks_nothing(tmp_path: Path) -> None:
    records: list[InterceptionRecord] = []
    denies = Sync(at("pre_tool_call", Verdict.deny(reason="acme:no")))
    policy = InterceptorPolicy([denies], mode="evaluate_only", on_record=records.append)
    audit = AuditLog(tmp_path / "audit.db")
    decision = decide("plugin", policy, call(), audit=audit)
    audit.close()
    assert (decision.effect, decision.shadowed) == (Effect.ALLOW, True)
    assert [(part.effect, part.rule, part.shadowed) for part in decision.parts] == [(Effect.DENY, "acme:no", True)]
    assert records[0].verdict.reason == "acme:no"
    unclear = decide("plugin", policy, call(value=object()))
    assert (unclear.effect, unclear.parts[0].rule) == (Effect.ALLOW, "not-expressible")
    assert records[1].verdict.reason == "host_error:context_invalid"


def test_a_run_is_a_session_with_numbers_and_an_end() -> None:
    interceptor = Sync(at("output", Verdict.deny(reason="acme:no")))
    governor = Governor(plugins=[InterceptorPolicy([interceptor], tools=["get"])])
    with governor.rollout(RolloutScope("ro_1", 2)):
        governor.decide(call())
        governor.decide(Action(Point.OUTPUT, "agent", "text", text="x"))
    contexts = interceptor.seen
    assert [one["sequence"] for one in contexts] == [0, 1, 2, 3]
    assert {one["session"]["id"] for one in contexts} == {"ro_1/2"}
    assert contexts[0]["agent_init"] == {"tools_registered": ["get"]}
    assert contexts[-1]["summary"] == {"reason": "error"}  # its answer was withheld
    assert contexts[1]["extensions"]["lgov"]["rollout_id"] == "ro_1"


def test_a_result_is_shown_with_the_arguments_that_the_tool_ran_with() -> None:
    interceptor = Sync(redirect)
    governor = Governor(plugins=[InterceptorPolicy([interceptor])])
    governor.decide(call())
    result = Action(Point.POST_TOOL_CALL, "get", arguments=call().arguments, text="4", operation_id="op_1")
    governor.decide(result)
    assert interceptor.seen[-1]["tool_call"]["args"] == {"url": "https://safe"}
    assert interceptor.seen[-1]["tool_result"] == {"value": "4", "is_error": False}


def test_context_variables_of_the_agent_reach_every_kind_of_interceptor() -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")

    def who(_context: dict[str, Any]) -> Any:
        return Verdict.deny(reason=f"acme:{tenant.get()}")

    token = tenant.set("acme")
    try:
        for kind in KINDS:
            for path in PATHS:
                assert decide(path, InterceptorPolicy([kind(who)]), call()).rule == "acme:acme"
    finally:
        tenant.reset(token)


def test_many_threads_and_loops_at_once_do_not_mix() -> None:
    def by_name(context: dict[str, Any]) -> Any:
        name = context["tool_call"]["args"]["name"]
        return Verdict.deny(reason=f"acme:{name}") if name.endswith("7") else Verdict.allow()

    records: list[InterceptionRecord] = []
    governor = Governor(plugins=[InterceptorPolicy([Sync(by_name), Async(by_name)], on_record=records.append)])

    def one(number: int) -> tuple[int, Decision]:
        action = Action(Point.PRE_TOOL_CALL, "t", arguments={"name": str(number)}, session_id="s", call_id=str(number))
        return number, (asyncio.run(governor.adecide(action)) if number % 2 else governor.decide(action))

    with ThreadPoolExecutor(16) as pool:
        for number, decision in pool.map(one, range(200)):
            assert decision.blocks is str(number).endswith("7")
            assert not decision.blocks or decision.rule == f"acme:{number}"
    assert sorted(record.sequence for record in records) == list(range(200))


def test_what_is_remembered_is_bounded() -> None:
    remembered: Remembered[int] = Remembered(limit=10)
    for number in range(100):
        remembered.put(number, number)
    assert [remembered.get(number) for number in (89, 90, 99)] == [None, 90, 99]
    policy = InterceptorPolicy([Bounded(allows)])
    for number in range(MAX_REMEMBERED + 10):
        policy.judge(Action(Point.PRE_TOOL_CALL, "t", operation_id=f"op_{number}", session_id=f"s{number}"))
    assert len(policy._runs._values) == len(policy._judged._values) == MAX_REMEMBERED


@pytest.mark.filterwarnings("ignore:coroutine 'sleep' was never awaited")
def test_a_bounded_interceptor_that_waits_is_a_deny() -> None:
    class Lies:
        bounded = True

        def intercept(self, context: dict[str, Any]) -> Any:
            return asyncio.sleep(60)

    decision = Governor(InterceptorPolicy([Lies()], timeout_s=0.05)).decide(call())
    assert (decision.effect, decision.fault) == (Effect.DENY, True)


def test_both_directions_at_once() -> None:
    """lgov's policies as an interceptor, under lgov's governor: the same decision, once around."""
    house = PolicySet([Rule(ConstantPolicy(Effect.DENY, name="no-get", reason="not that"), tools=("get",))])
    policy = InterceptorPolicy([LgovInterceptor(house)])
    for path in PATHS:
        decision = decide(path, policy, call())
        assert (decision.effect, decision.rule) == (Effect.DENY, "lgov:no-get/deny")
        assert "not that" in decision.reason


def test_a_profile_of_the_contract_can_be_chosen() -> None:
    second = Sync(allows)
    denies = Sync(at("pre_tool_call", Verdict.deny(reason="acme:no")))
    policy = InterceptorPolicy([denies, second], composition=CompositionConfig.first_deny())
    assert decide("plugin", policy, call()).blocks
    assert second.seen == []
