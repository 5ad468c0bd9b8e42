"""lgov's policies as an interceptor in a host of agent-hooks: the SDK's own emitter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_hooks import AgentContextBuilder, CompositionConfig, InterceptionEmitter, InterceptionRecord, Verdict
from agent_hooks import Decision as TheirDecision

from lgov_core import AuditLog, Governor, PolicySet, ToolOutcome, hookimpl
from lgov_core.errors import PolicyError
from lgov_core.integrations.agent_hooks import LgovInterceptor
from lgov_core.policies import ConstantPolicy, CostControlPolicy, Rule
from lgov_core.policies.base import BoundedPolicy
from lgov_core.types import Action, Decision, Effect, Point


class Judging(BoundedPolicy):
    """Answers with what a function says, and keeps what it was asked."""

    def __init__(self, answer: Callable[[Action], Decision | None], name: str = "house") -> None:
        self.name = name
        self.answer = answer
        self.asked: list[Action] = []
        self.default_points = tuple(Point)  # type: ignore[misc]

    def judge(self, action: Action) -> Decision | None:
        self.asked.append(action)
        return self.answer(action)


def fine(_action: Action) -> Decision | None:
    return Decision(Effect.ALLOW, "house")


@pytest.fixture
def builder() -> AgentContextBuilder:
    return AgentContextBuilder(agent_id="a-1", agent_name="clerk", framework="maf", session_id="s-1")


def emitted(interceptor: Any, context: dict[str, Any]) -> InterceptionRecord:
    """The record of one emission; the context is left as the verdict changed it."""
    emitter = InterceptionEmitter(composition=CompositionConfig.run_all()).register(interceptor)
    return asyncio.run(emitter.emit_unchecked(context))


def every_context(builder: AgentContextBuilder) -> list[dict[str, Any]]:
    return [
        builder.agent_startup(tools_registered=["rm"]),
        builder.input(content="delete it"),
        builder.pre_model_call(model_id="m", messages=[{"role": "user", "content": "delete it"}], request_id="r-1"),
        builder.post_model_call(
            model_id="m",
            content=None,
            tool_calls=[{"id": "t-1", "name": "rm", "args": {"path": "/"}}],
            finish_reason="tool_calls",
            usage={"prompt_tokens": 3, "completion_tokens": 2},
            request_id="r-1",
        ),
        builder.pre_tool_call(call_id="t-1", name="rm", args={"path": "/"}),
        builder.post_tool_call(call_id="t-1", name="rm", args={"path": "/"}, value={"gone": 1}, is_error=True),
        builder.output(content="done"),
        builder.agent_shutdown(reason="completed"),
    ]


def test_all_eight_points_become_actions(builder: AgentContextBuilder) -> None:
    policy = Judging(fine)
    interceptor = LgovInterceptor(policy)
    for context in every_context(builder):
        assert emitted(interceptor, context).verdict.decision is TheirDecision.ALLOW
    assert [action.point for action in policy.asked] == list(Point)
    assert {(one.agent, one.framework, one.session_id) for one in policy.asked} == {("clerk", "maf", "s-1")}
    startup, said, request, reply, call, result, output, shutdown = policy.asked
    assert startup.arguments == {"tools": ["rm"]}
    assert (said.text, said.parent_id) == ("delete it", None)
    assert (request.name, request.kind) == ("m", "model")
    assert request.arguments == {"messages": [{"role": "user", "content": "delete it"}]}
    assert reply.arguments["tool_calls"] == [{"id": "t-1", "name": "rm", "args": {"path": "/"}}]
    assert reply.arguments["usage"] == {"input_tokens": 3, "output_tokens": 2}
    assert reply.operation_id == request.operation_id is not None
    assert (call.name, dict(call.arguments), call.call_id) == ("rm", {"path": "/"}, "t-1")
    assert result.operation_id == call.operation_id is not None
    assert call.operation_id != request.operation_id
    assert (result.text, result.context["tool_status"]) == ('{"gone": 1}', "error")
    assert output.text == "done"
    assert shutdown.arguments == {"reason": "completed"}
    assert all(one.context["user_text"] == "delete it" for one in policy.asked[1:])


def test_two_calls_with_one_id_are_two_operations(builder: AgentContextBuilder) -> None:
    policy = Judging(fine)
    interceptor = LgovInterceptor(policy)
    for _ in range(2):
        emitted(interceptor, builder.pre_tool_call(call_id="call_0", name="t", args={}))
        emitted(interceptor, builder.post_tool_call(call_id="call_0", name="t", args={}, value="x"))
    before, after, again, after_again = [one.operation_id for one in policy.asked]
    assert before == after is not None
    assert again == after_again is not None
    assert before != again


def test_which_of_two_open_model_calls_ended_is_not_guessed(builder: AgentContextBuilder) -> None:
    policy = Judging(fine)
    interceptor = LgovInterceptor(policy)
    for _ in range(2):
        emitted(interceptor, builder.pre_model_call(model_id="m", messages=[]))
    emitted(interceptor, builder.post_model_call(model_id="m", content="x", tool_calls=[], finish_reason="stop"))
    assert policy.asked[-1].operation_id is None


def test_what_somebody_else_says_is_not_the_users(builder: AgentContextBuilder) -> None:
    policy = Judging(fine)
    interceptor = LgovInterceptor(policy)
    emitted(interceptor, builder.input(content="from a web page", role="external"))
    (action,) = policy.asked
    assert action.parent_id is not None
    assert "user_text" not in action.context


# ---------------------------------------------------------------------- verdicts


def test_a_deny_a_warning_and_an_escalation(builder: AgentContextBuilder) -> None:
    for effect, decision, liftable in (
        (Effect.DENY, TheirDecision.DENY, False),
        (Effect.ESCALATE, TheirDecision.DENY, True),
        (Effect.WARN, TheirDecision.ALLOW, False),
    ):
        policy = ConstantPolicy(effect, name="house", reason="it is late")
        record = emitted(LgovInterceptor(policy), builder.pre_tool_call(call_id="t", name="rm", args={}))
        assert record.verdict.decision is decision
        assert record.verdict.is_liftable is liftable
        if record.verdict.decision is TheirDecision.DENY:
            assert record.verdict.reason == f"lgov:house/{effect.label}"
            assert "it is late" in str(record.verdict.message)
        else:
            assert [one.message for one in record.verdict.warnings] == ["it is late"]


def test_the_most_severe_of_several_policies_wins(builder: AgentContextBuilder) -> None:
    def changes(action: Action) -> Decision | None:
        return Decision(Effect.TRANSFORM, "changes", arguments={"n": 1})

    answers: list[Any] = [
        Judging(changes, "changes"),
        ConstantPolicy(Effect.ESCALATE, name="asks"),
        ConstantPolicy(Effect.DENY, name="denies"),
    ]

    def verdict(*policies: Any) -> Verdict:
        return emitted(LgovInterceptor(policies), builder.pre_tool_call(call_id="t", name="x", args={"n": 0})).verdict

    assert verdict(*answers).reason == "lgov:denies/deny"
    assert not verdict(*answers).is_liftable
    assert verdict(*answers[:2]).is_liftable
    assert verdict(*answers[:1]).decision is TheirDecision.TRANSFORM


def changed(point: Point, **change: Any) -> Judging:
    def answer(action: Action) -> Decision | None:
        return Decision(Effect.TRANSFORM, "house", **change) if action.point is point else None

    return Judging(answer)


def test_a_transform_reaches_what_the_host_will_use(builder: AgentContextBuilder) -> None:
    _, said, request, _, call, result, output, _ = every_context(builder)
    reply = builder.post_model_call(model_id="m", content="my key is 1", tool_calls=[], finish_reason="stop")
    messages = [{"role": "user", "content": "other"}]
    cases: list[tuple[dict[str, Any], Judging, Callable[[dict[str, Any]], Any], Any]] = [
        (said, changed(Point.INPUT, text="new"), lambda c: c["input"]["content"], "new"),
        (request, changed(Point.PRE_MODEL_CALL, arguments={"messages": messages}), lambda c: c["messages"], messages),
        (reply, changed(Point.POST_MODEL_CALL, text="new"), lambda c: c["response"]["content"], "new"),
        (
            call,
            changed(Point.PRE_TOOL_CALL, arguments={"path": "/tmp"}),
            lambda c: c["tool_call"]["args"],
            {"path": "/tmp"},
        ),
        (result, changed(Point.POST_TOOL_CALL, text='{"gone": 2}'), lambda c: c["tool_result"]["value"], {"gone": 2}),
        (output, changed(Point.OUTPUT, text="new"), lambda c: c["output"]["content"], "new"),
    ]
    for context, policy, read, expected in cases:
        record = emitted(LgovInterceptor(policy), context)
        assert record.verdict.decision is TheirDecision.TRANSFORM, (policy.asked, record.verdict)
        assert read(context) == expected


def test_a_reply_can_be_changed_as_a_whole(builder: AgentContextBuilder) -> None:
    calls = [{"id": "t-1", "name": "ls", "args": {}}]
    context = every_context(builder)[3]
    policy = changed(Point.POST_MODEL_CALL, text="instead", arguments={"tool_calls": calls})
    assert emitted(LgovInterceptor(policy), context).proceeds
    assert context["response"] == {"content": "instead", "tool_calls": calls, "finish_reason": "tool_calls"}


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ({"text": "x"}, 4),  # a tool call has no text
        ({"text": "x"}, 0),  # nothing can be changed before a run
        ({"arguments": {"messages": [], "tools": []}}, 2),  # tools that the host did not show
        ({"arguments": {"a": object()}}, 4),  # not JSON
    ],
)
def test_a_change_that_has_no_place_is_a_deny(change: dict[str, Any], at: int, builder: AgentContextBuilder) -> None:
    context = every_context(builder)[at]
    policy = changed(Point(context["interception_point"]), **change)
    record = emitted(LgovInterceptor(policy), context)
    assert record.verdict.decision is TheirDecision.DENY


def test_what_only_watches_warns(builder: AgentContextBuilder) -> None:
    policies = PolicySet.of(ConstantPolicy(Effect.DENY, name="house", reason="not today")).in_shadow()
    record = emitted(LgovInterceptor(policies), builder.pre_tool_call(call_id="t", name="rm", args={}))
    assert record.verdict.decision is TheirDecision.ALLOW
    assert [one.message for one in record.verdict.warnings] == ["not today"]


# ---------------------------------------------------------------------- fails closed


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"interception_point": "pre_tool_call"},
        {"interception_point": "somewhere", "session": {"id": "s"}, "agent": {"id": "a"}},
        {"interception_point": "output", "session": {"id": ""}, "agent": {"id": "a"}, "output": {"content": "x"}},
        {
            "interception_point": "pre_tool_call",
            "session": {"id": "s"},
            "agent": {"id": "a"},
            "tool_call": {"id": "1", "name": "t", "args": "text"},
        },
    ],
)
def test_a_context_that_cannot_be_read_is_a_deny(context: dict[str, Any]) -> None:
    interceptor = LgovInterceptor(ConstantPolicy(Effect.ALLOW))
    for verdict in (asyncio.run(interceptor.intercept(context)), interceptor.intercept_sync(context)):
        assert verdict.decision is TheirDecision.DENY
        assert verdict.reason == "lgov:bridge-error"


def test_a_policy_that_raises_is_a_deny_that_keeps_its_message_to_itself(builder: AgentContextBuilder) -> None:
    def fails(_action: Action) -> Decision | None:
        raise RuntimeError("the password is swordfish")

    record = emitted(LgovInterceptor(Judging(fails)), builder.pre_tool_call(call_id="t", name="rm", args={}))
    assert record.verdict.decision is TheirDecision.DENY
    assert "swordfish" not in repr(record)


def test_no_policies_is_an_error() -> None:
    with pytest.raises(PolicyError, match="no policies"):
        LgovInterceptor([])


def test_a_cancelled_judgement_is_cancelled(builder: AgentContextBuilder) -> None:
    class Waits:
        @hookimpl
        async def lgov_pre_tool_call(self, action: Action) -> Decision:
            started.set()
            await asyncio.sleep(60)
            return Decision(Effect.ALLOW, "waits")

    started = asyncio.Event()

    async def go() -> None:
        interceptor = LgovInterceptor(Governor(plugins=[Waits()], timeout_s=60))
        task = asyncio.ensure_future(interceptor.intercept(builder.pre_tool_call(call_id="t", name="rm", args={})))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())


# ---------------------------------------------------------------------- record, outcomes, counting


class Outcomes:
    def __init__(self) -> None:
        self.found: list[ToolOutcome] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        if isinstance(event, ToolOutcome):
            self.found.append(event)


def test_decisions_are_in_the_audit_record_and_outcomes_are_recorded(
    builder: AgentContextBuilder, tmp_path: Path
) -> None:
    outcomes = Outcomes()
    audit = AuditLog(tmp_path / "audit.db")
    rules = [
        Rule(ConstantPolicy(Effect.DENY, name="no-rm"), tools=("rm",)),
        Rule(ConstantPolicy(Effect.ALLOW, name="rest")),
    ]
    interceptor = LgovInterceptor(Governor(PolicySet(rules), plugins=[outcomes], audit=audit))
    denied = emitted(interceptor, builder.pre_tool_call(call_id="t-1", name="rm", args={}))
    assert denied.verdict.evidence is not None
    assert denied.verdict.evidence.artefact
    emitted(interceptor, builder.pre_tool_call(call_id="t-2", name="ls", args={}))
    emitted(interceptor, builder.post_tool_call(call_id="t-2", name="ls", args={}, value="no such file", is_error=True))
    first, second = outcomes.found
    assert (first.status, first.action.call_id) == ("denied", "t-1")
    assert (second.status, second.error, second.action.call_id) == ("error", "no such file", "t-2")
    assert second.decision is not None
    assert second.decision.decision_id
    audit.close()


def test_a_budget_per_session_holds(builder: AgentContextBuilder) -> None:
    interceptor = LgovInterceptor(
        PolicySet([Rule(CostControlPolicy(max_calls=2, per="session")), Rule(ConstantPolicy(Effect.ALLOW))])
    )

    def call(number: int) -> InterceptionRecord:
        name = f"t-{number}"
        record = emitted(interceptor, builder.pre_tool_call(call_id=name, name="ls", args={}))
        if record.proceeds:
            emitted(interceptor, builder.post_tool_call(call_id=name, name="ls", args={}, value="ok"))
        return record

    assert [call(number).proceeds for number in range(3)] == [True, True, False]
