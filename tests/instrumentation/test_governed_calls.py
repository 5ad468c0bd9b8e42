"""The steps of a governed call are the same for every framework: their order, their spans, what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor
from lgov_core.instrumentation import arun_flow, run_flow
from lgov_core.instrumentation.conversation_memory import UserText
from lgov_core.instrumentation.live_span import CoveredCall, covered_call, current_span, model_call_covered
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.instrumentation.tool_call import (
    UNREADABLE,
    GovernedToolCall,
    ToolReading,
    denied_outcome,
    refuse_arguments,
    tool_flow,
)
from lgov_core.policies import CostControlPolicy
from lgov_core.policies.base import BoundedPolicy
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.trace import semconv
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Action, Decision, Effect, ModelCallFailed, Point
from lgov_core.wire.turns import ModelReading
from tests.cells import Seen, live_span


class Rules(BoundedPolicy):
    name = "rules"

    def judge(self, action: Action) -> Decision | None:
        if action.point is Point.POST_TOOL_CALL:
            if "secret" in (action.text or ""):
                return self.deny("no-secrets", "the result holds a secret")
            if "card" in (action.text or ""):
                return Decision(Effect.TRANSFORM, self.name, "mask", "masked", text="a ****")
            return None
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        if action.arguments.get("path") == "/abort":
            return Decision(Effect.DENY, self.name, "stop", "the end", abort=True)
        if action.arguments.get("path") == "/etc":
            return self.deny("no-etc", "not there")
        if action.arguments.get("path") == "/tmp":
            return Decision(Effect.TRANSFORM, self.name, "move", "moved", arguments={"path": "/tmp/safe"})
        return self.allow("fine")


def act(path: str = "/home", name: str = "read") -> Action:
    return Action(Point.PRE_TOOL_CALL, name, arguments={"path": path}, agent="clerk", call_id="call_1")


def as_text(result: str) -> ToolReading:
    return ToolReading(result)


class Calls:
    """Runs one call in both ways."""

    def __init__(self, is_async: bool, capture_content: bool = True) -> None:
        self.seen = Seen()
        self.governor = Governor([Rules()], plugins=[self.seen], capture_content=capture_content)
        self.is_async = is_async
        self.ran: list[Any] = []

    def run(self, action: Action, result: str | BaseException = "text", **options: Any) -> Any:
        def body(arguments: Mapping[str, Any]) -> str:
            self.ran.append((dict(arguments), current_span(), covered_call()))
            if isinstance(result, BaseException):
                raise result
            return result

        async def abody(arguments: Mapping[str, Any]) -> str:
            return body(arguments)

        if self.is_async:
            return asyncio.run(arun_flow(tool_flow(GovernedToolCall(self.governor, action), abody, as_text, **options)))
        return run_flow(tool_flow(GovernedToolCall(self.governor, action), body, as_text, **options))

    @property
    def span(self) -> Any:
        (span,) = self.seen.spans
        return span


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def calls(request: pytest.FixtureRequest) -> Calls:
    return Calls(request.param)


def test_an_allowed_call_runs_in_its_span_and_is_recorded_once(calls: Calls) -> None:
    got = calls.run(act())
    assert (got.result, got.ran, got.text, got.denial) == ("text", True, None, None)
    ((arguments, span, covered),) = calls.ran
    assert arguments == {"path": "/home"}
    assert span.span_id == calls.span.span_id
    assert covered.covers(calls.governor, "read", {"path": "/home"}, "call_1")
    (outcome,) = calls.seen.outcomes
    assert (outcome.status, outcome.result, outcome.action.agent) == ("ok", "text", "clerk")
    assert outcome.started_at == calls.span.started_at
    assert 0 <= outcome.duration_s < 60
    assert replace(outcome) == outcome, "every field is set"
    pre, post = calls.seen.decisions(), calls.seen.decisions(Point.POST_TOOL_CALL)
    assert len(pre) == len(post) == 1
    assert pre[0].action.operation_id == post[0].action.operation_id is not None
    assert pre[0].action.span_id == post[0].action.span_id == calls.span.span_id
    assert calls.span.name == "execute_tool read"
    assert calls.span.attributes[semconv.TOOL_STATUS] == "ok"
    assert calls.span.attributes[semconv.TOOL_ARGUMENTS] == '{"path": "/home"}'
    assert calls.span.attributes[semconv.TOOL_RESULT] == "text"
    assert current_span() is None


def test_what_a_tool_does_to_its_arguments_is_not_what_was_proposed(calls: Calls) -> None:
    proposed = {"paths": ["a", {"b": [1]}]}

    class Emptying(Exception):
        pass

    def body(arguments: Mapping[str, Any]) -> str:
        assert arguments["paths"] is proposed["paths"], "the tool gets what its caller gave"
        arguments["paths"][1]["b"].clear()
        arguments["paths"].pop(0)
        raise Emptying

    async def abody(arguments: Mapping[str, Any]) -> str:
        return body(arguments)

    def run(action: Action) -> Any:
        if calls.is_async:
            return asyncio.run(arun_flow(tool_flow(GovernedToolCall(calls.governor, action), abody, as_text)))
        return run_flow(tool_flow(GovernedToolCall(calls.governor, action), body, as_text))

    with pytest.raises(Emptying):
        run(Action(Point.PRE_TOOL_CALL, "read", arguments=proposed))
    (outcome,) = calls.seen.outcomes
    assert outcome.action.arguments == {"paths": ["a", {"b": [1]}]}


def test_a_denied_call_does_not_run_and_has_a_span(calls: Calls) -> None:
    got = calls.run(act("/etc"))
    assert calls.ran == []
    assert not got.ran
    assert "DENIED by policy rules/no-etc" in got.denial
    assert "It was not run" in got.denial
    (outcome,) = calls.seen.outcomes
    assert outcome.status == "denied"
    assert outcome.decision is not None
    assert (outcome.decision.policy, outcome.decision.rule) == ("rules", "no-etc")
    assert outcome.started_at == calls.span.started_at
    assert outcome.action == calls.seen.decisions()[0].action
    assert calls.span.attributes[semconv.ERROR_TYPE] == "denied"
    assert calls.span.attributes[semconv.TOOL_STATUS] == "denied"


def test_what_no_policy_can_judge_is_the_agents_mistake_and_never_run(calls: Calls) -> None:
    call = GovernedToolCall(calls.governor, act())
    decision = call.refuse("a key is there twice")
    call.denied(decision)
    assert (decision.effect, decision.rule, decision.fault) == (Effect.DENY, UNREADABLE, False)
    outcome = denied_outcome(act(), decision)
    assert (outcome.status, outcome.error_type, outcome.decision) == ("invalid_args", "InvalidToolCall", decision)
    assert outcome.error == "the arguments of read cannot be judged: a key is there twice; write them anew"
    assert "they are not one JSON object of plain values" in refuse_arguments(calls.governor, act()).reason


def test_a_call_belongs_to_the_run_and_the_session_that_it_is_in() -> None:
    governor = Governor([Rules()])
    attributes = {semconv.CONVERSATION_ID: "talk"}
    with live_span(governor, semconv.INVOKE_AGENT, "clerk", attributes) as run:
        inside = GovernedToolCall(governor, act())
        own = GovernedToolCall(governor, act().changed(run_id="r", session_id="s", operation_id="o"))
    assert (inside.action.run_id, inside.action.session_id) == (run.span_id, "talk")
    assert inside.action.operation_id == f"op_{inside.span.span_id}"
    assert (own.action.run_id, own.action.session_id, own.action.operation_id) == ("r", "s", "o")
    elsewhere = GovernedToolCall(governor, act(), parent=run)
    assert elsewhere.span.parent_id == run.span_id
    assert elsewhere.as_run is elsewhere.covered.action is elsewhere.action


def test_the_span_shows_the_arguments_with_which_the_tool_ran(calls: Calls) -> None:
    calls.run(act("/tmp"))
    assert calls.span.attributes[semconv.TOOL_ARGUMENTS] == '{"path": "/tmp/safe"}'
    (outcome,) = calls.seen.outcomes
    assert outcome.decision is not None
    assert (outcome.decision.rule, outcome.started_at) == ("move", calls.span.started_at)
    assert outcome.action == calls.seen.decisions()[0].action
    assert 0 <= outcome.duration_s < 60


def test_a_withheld_result_says_that_the_call_was_made(calls: Calls) -> None:
    got = calls.run(act(), "a secret")
    assert got.ran
    assert got.result is None
    assert "no-secrets" in got.denial
    assert "It was run, but its result is withheld" in got.denial


def test_transforms_change_what_runs_and_what_is_read(calls: Calls) -> None:
    got = calls.run(act("/tmp"), "a card")
    assert calls.ran[0][0] == {"path": "/tmp/safe"}
    assert calls.ran[0][2].covers(calls.governor, "read", {"path": "/tmp/safe"}, "call_1")
    assert (got.result, got.text) == ("a card", "a ****")


def test_an_abort_raises_unless_the_framework_cannot_bear_it(calls: Calls) -> None:
    with pytest.raises(PolicyDenied):
        calls.run(act("/abort"))
    got = calls.run(act("/abort"), raise_abort=False)
    assert got.decision.abort
    assert calls.ran == []
    assert [outcome.status for outcome in calls.seen.outcomes] == ["denied", "denied"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("bad"), "error"), (TimeoutError("late"), "timeout"), (KeyboardInterrupt(), "error")],
)
def test_what_a_tool_raises_is_recorded_and_raised(calls: Calls, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)):
        calls.run(act(), error)
    (outcome,) = calls.seen.outcomes
    assert (outcome.status, outcome.error_type) == (status, type(error).__name__)
    assert calls.span.attributes[semconv.ERROR_TYPE] == type(error).__name__


def test_a_pause_is_no_failure(calls: Calls) -> None:
    with pytest.raises(RuntimeError):
        calls.run(act(), RuntimeError("ask a person"), is_pause=lambda error: isinstance(error, RuntimeError))
    assert calls.seen.outcomes == []
    assert semconv.ERROR_TYPE not in calls.span.attributes


def test_an_unreadable_result_is_recorded_as_a_failure(calls: Calls) -> None:
    def unreadable(result: str) -> ToolReading:
        raise TypeError("what is this")

    async def abody(arguments: Mapping[str, Any]) -> str:
        return "x"

    def attempt() -> None:
        if calls.is_async:
            asyncio.run(arun_flow(tool_flow(GovernedToolCall(calls.governor, act()), abody, unreadable)))
        else:
            run_flow(tool_flow(GovernedToolCall(calls.governor, act()), lambda arguments: "x", unreadable))

    with pytest.raises(TypeError):
        attempt()
    assert calls.seen.outcomes[0].error_type == "TypeError"


def test_without_capture_no_content_is_on_a_span() -> None:
    calls = Calls(False, capture_content=False)
    calls.run(act(), "text")
    with pytest.raises(ValueError, match="path /home"):
        calls.run(act(), ValueError("path /home"))
    call = ModelCall(calls.governor, framework="test", model="m")
    call.request([{"role": "user", "content": "hello /home"}])
    call.answered(ModelReading("hello /home", response_id="chatcmpl-1"))
    assert len(calls.seen.spans) == 3
    assert not any("/home" in str(span) or "'text'" in str(span) for span in calls.seen.spans)


def test_an_inner_net_that_has_recorded_is_believed(calls: Calls) -> None:
    def body(arguments: Mapping[str, Any]) -> str:
        inner = covered_call()
        assert inner is not None
        inner.recorded = True
        return "text"

    async def abody(arguments: Mapping[str, Any]) -> str:
        return body(arguments)

    if calls.is_async:
        asyncio.run(arun_flow(tool_flow(GovernedToolCall(calls.governor, act()), abody, as_text)))
    else:
        run_flow(tool_flow(GovernedToolCall(calls.governor, act()), body, as_text))
    assert calls.seen.outcomes == []


async def test_a_call_cancelled_while_a_policy_thinks_has_not_run() -> None:
    seen, thinking = Seen(), asyncio.Event()

    class Slow:
        from lgov_core.hookspecs import hookimpl

        @hookimpl
        async def lgov_pre_tool_call(self, action: Action) -> Decision | None:
            thinking.set()
            await asyncio.sleep(30)
            return None

    governor = Governor(plugins=[seen, Slow()], timeout_s=60)
    ran: list[Any] = []

    async def body(arguments: Mapping[str, Any]) -> str:
        ran.append(arguments)
        return "x"

    task = asyncio.create_task(arun_flow(tool_flow(GovernedToolCall(governor, act()), body, as_text)))
    await thinking.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran == []
    (span,) = seen.spans
    assert span.attributes[semconv.ERROR_TYPE] == "CancelledError"


def test_spans_and_decisions_make_one_tree_in_the_store(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "store.sqlite") as store:
        governor = Governor([Rules()], plugins=[StoreSink(store)], capture_content=True)
        with live_span(governor, semconv.INVOKE_AGENT, "clerk") as agent:
            call = ModelCall(governor, framework="test", model="m", agent="clerk")
            governor.decide(call.user_text(UserText("hi")))
            governor.decide(call.request([{"role": "user", "content": "hi"}]))
            reading = ModelReading(
                "", [{"id": "call_1", "name": "read", "args": {}}], {"input_tokens": 3, "output_tokens": 1}
            )
            call.answered(reading)
            governor.decide(call.reply(reading))
            run_flow(tool_flow(GovernedToolCall(governor, act("/etc")), lambda arguments: "x", as_text))
            governor.decide(call.output("bye"))
        store.flush()
        spans = {span.span_id: span for span in store.spans()}
    above = {span.name: spans[span.parent_id].name for span in spans.values() if span.parent_id}
    assert above["chat m"] == "invoke_agent clerk"
    assert above["execute_tool read"] == "invoke_agent clerk"
    decisions = {
        str(span.attributes[semconv.POINT]): spans[span.parent_id or ""].name
        for span in spans.values()
        if span.name == semconv.DECISION_SPAN_NAME
    }
    assert decisions == {
        "input": "invoke_agent clerk",
        "pre_model_call": "chat m",
        "post_model_call": "chat m",
        "pre_tool_call": "execute_tool read",
        "output": "invoke_agent clerk",
    }
    assert sum(span.name == "execute_tool read" for span in spans.values()) == 1
    assert spans[agent.span_id].parent_id is None


def test_a_failed_model_call_tells_those_who_keep_count() -> None:
    seen = Seen()
    governor = Governor([Rules()], plugins=[seen])
    call = ModelCall(governor, framework="test", model="m")
    refused = RuntimeError("no")
    refused.status_code = 429  # type: ignore[attr-defined]
    call.failed(refused)
    (failure,) = [event for event in seen.events if isinstance(event, ModelCallFailed)]
    assert failure.refused
    assert failure.action.operation_id == call.request([]).operation_id


@pytest.mark.parametrize("unseen", [False, True])
def test_a_call_that_a_policy_rewrote_beyond_what_can_be_sent_costs_nothing(unseen: bool) -> None:
    class Rewrites(BoundedPolicy):
        name = "rewrites"

        def judge(self, action: Action) -> Decision | None:
            return self.transform("odd", "odd", arguments={"messages": "no list"})

    budget = CostControlPolicy(max_calls=1)
    governor = Governor([budget, Rewrites()])
    action = Action(Point.PRE_MODEL_CALL, "m", "model", operation_id="op_1")
    call = ModelCall.unseen(governor, action) if unseen else ModelCall(governor, framework="test", model="m")
    decision = run_flow(call.judge_request_flow(call.request([]), lambda messages: None))
    assert decision.rule == "unclear-transform"
    assert (budget.spent().calls, budget.spent().reserved_calls) == (0, 0)


def test_a_nested_agents_input_is_not_the_users() -> None:
    governor = Governor([Rules()])
    with live_span(governor, semconv.INVOKE_AGENT, "outer") as outer:
        call = ModelCall(governor, framework="test", model="m", agent="inner")
        assert call.user_text(UserText("hi")).parent_id is None
        assert call.user_text(UserText("hi", nested=True)).parent_id == outer.span_id
    alone = ModelCall(governor, framework="test", model="m", agent="inner")
    assert alone.user_text(UserText("hi", nested=True)).parent_id == alone.span.span_id, (
        "another agent's words have a parent"
    )


def test_a_tool_that_calls_a_model_makes_a_call_of_its_own() -> None:
    governor, other = Governor([Rules()]), Governor([Rules()])
    with live_span(governor, semconv.CHAT, "m") as span:
        read = CoveredCall(governor, "read", {}, None)
        with span.active(model=governor):
            assert model_call_covered(governor)
            assert not model_call_covered(other)
            with span.active(tool=read):
                assert covered_call() is read
                assert not model_call_covered(governor)
                with span.active(model=other):
                    assert model_call_covered(other)
                    assert covered_call() is read, "a model that a tool calls is called inside of the tool's call"
            with span.active():
                assert model_call_covered(governor), "a span of anything else changes nothing about it"
            assert covered_call() is None
        assert not model_call_covered(governor)
        assert current_span() is span


def test_the_error_that_the_framework_made_a_text_of_is_what_is_recorded() -> None:
    def run(arguments: Mapping[str, Any]) -> str:
        call = covered_call()
        assert call is not None
        call.raised = OSError("disk full")
        return "Error: please try again"

    calls = Calls(is_async=False)
    run_flow(tool_flow(GovernedToolCall(calls.governor, act()), run, lambda text: ToolReading(text, "error")))
    run_flow(
        tool_flow(GovernedToolCall(calls.governor, act()), run, as_text)
    )  # tried again inside, and it went well in the end
    failed, well = calls.seen.outcomes
    assert (failed.error_type, failed.error, failed.result) == ("OSError", "disk full", "Error: please try again")
    assert (well.status, well.error_type, well.error) == ("ok", None, None)
