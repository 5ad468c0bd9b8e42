"""Interceptors as a policy of a governor: verdicts, approvals, changes and runs, for every kind of interceptor."""

from __future__ import annotations

import asyncio
import contextvars
import threading
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
from interceptors import KINDS, PATHS, Async, Bounded, Sync, allows, at, call, decide

from lgov_core import AuditLog, Governor, PolicySet
from lgov_core.integrations.agent_hooks import InterceptorPolicy, LgovInterceptor
from lgov_core.integrations.agent_hooks.policy import MAX_REMEMBERED
from lgov_core.policies import ConstantPolicy, Rule
from lgov_core.policies.base import BoundedPolicy
from lgov_core.scope import RolloutScope
from lgov_core.types import Action, Decision, Effect, Point


def redirect(context: dict[str, Any]) -> Any:
    if context["interception_point"] != "pre_tool_call":
        return Verdict.allow()
    return {"decision": "transform", "transform": {"path": "$target.url", "value": "https://safe"}}


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


def test_each_form_of_an_action_is_judged_once_a_decision() -> None:
    interceptor = Sync(redirect)
    governor = Governor(plugins=[InterceptorPolicy([interceptor])])
    for number in (1, 2):
        assert governor.decide(call()).arguments == {"url": "https://safe"}
        assert len(interceptor.seen) == number


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


def test_what_a_resolver_sees_can_be_redacted() -> None:
    resolver = Resolver("approve", Verdict.allow())
    policy = InterceptorPolicy(
        [Sync(at("pre_tool_call", Verdict.escalate()))],
        resolver=resolver,
        approval_redactor=lambda context: {**context, "tool_call": {**context["tool_call"], "args": {}}, "target": {}},
    )
    assert not decide("plugin", policy, call(password="swordfish")).blocks
    assert "swordfish" not in repr(resolver.requests)


def test_a_blocking_interceptor_leaves_the_event_loop_free() -> None:
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


def test_subclasses_of_scalars_reach_interceptors_plain() -> None:
    class Colour(StrEnum):
        RED = "red"

    interceptor = Sync(allows)
    assert not decide("plugin", InterceptorPolicy([interceptor]), call(colour=Colour.RED, pair=(1, 2))).blocks
    args = interceptor.seen[0]["tool_call"]["args"]
    assert args == {"colour": "red", "pair": [1, 2]}
    assert type(args["colour"]) is str


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


def test_a_number_changed_into_a_truth_value_is_changed() -> None:
    verdict = {"decision": "transform", "transform": {"path": "$target.n", "value": True}}
    decision = decide("plugin", InterceptorPolicy([Sync(at("pre_tool_call", verdict))]), call(n=1))
    assert decision.effect is Effect.TRANSFORM
    assert decision.arguments is not None
    assert decision.arguments["n"] is True


def test_what_was_judged_is_named_in_records_unless_left_out() -> None:
    for options, named in (({}, True), ({"identity_provider": None}, False)):
        records: list[InterceptionRecord] = []
        decide("plugin", InterceptorPolicy([Sync(allows)], on_record=records.append, **options), call())
        assert (records[0].input_identity is not None) == named


def test_changed_messages_keep_what_else_the_request_holds() -> None:
    messages = [{"role": "user", "content": "x"}]
    action = Action(Point.PRE_MODEL_CALL, "m", "model", {"messages": messages, "temperature": 0})
    verdict = {"decision": "transform", "transform": {"path": "$target[0].content", "value": "y"}}
    decision = decide("plugin", InterceptorPolicy([Sync(at("pre_model_call", verdict))]), action)
    assert decision.arguments == {"messages": [{"role": "user", "content": "y"}], "temperature": 0}


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


def test_a_result_comes_with_the_arguments_that_ran() -> None:
    interceptor = Sync(redirect)
    governor = Governor(plugins=[InterceptorPolicy([interceptor])])
    governor.decide(call())
    result = Action(Point.POST_TOOL_CALL, "get", arguments=call().arguments, text="4", operation_id="op_1")
    governor.decide(result)
    assert interceptor.seen[-1]["tool_call"]["args"] == {"url": "https://safe"}
    assert interceptor.seen[-1]["tool_result"] == {"value": "4", "is_error": False}


def test_context_variables_reach_every_kind_of_interceptor() -> None:
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


def test_the_state_of_runs_and_calls_is_bounded() -> None:
    policy = InterceptorPolicy([Bounded(allows)])
    for number in range(MAX_REMEMBERED + 10):
        policy.judge(Action(Point.PRE_TOOL_CALL, "t", operation_id=f"op_{number}", session_id=f"s{number}"))
    assert len(policy._runs) == len(policy._judged) == MAX_REMEMBERED


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
