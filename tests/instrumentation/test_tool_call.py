"""A governed tool call step by step: its action, its span, what is covered, and its outcome however it ends."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lgov_core.audit import AuditLog
from lgov_core.errors import PolicyDenied
from lgov_core.flow import run_flow
from lgov_core.governor import Governor
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.instrumentation.tool_call import (
    UNREADABLE,
    GovernedResult,
    GovernedToolCall,
    ToolReading,
    denied_outcome,
    failure_status,
    own_arguments,
    refuse_arguments,
    tool_flow,
)
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Effect, Point
from tests.cells import Seen
from tests.governor.governors import Says

ALLOW = Decision(Effect.ALLOW, "p", "fine", "Fine.", decision_id="aud_1")
DENY = Decision(Effect.DENY, "p", "no", "not now", decision_id="aud_2")


def action(**changes: Any) -> Action:
    facts = {"arguments": {"x": [1]}, "agent": "clerk", "framework": "f", "call_id": "c1", "native": "n", **changes}
    return Action(Point.PRE_TOOL_CALL, "shout", "mcp", **facts)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def governor(seen: Seen) -> Governor:
    return Governor(plugins=[seen, Says(ALLOW)], capture_content=True)


# ---------------------------------------------------------------------- the call


def test_a_call_is_judged_under_the_ids_of_its_span(governor: Governor) -> None:
    above = LiveSpan(governor, semconv.INVOKE_AGENT, attributes={semconv.CONVERSATION_ID: "s1"})
    call = GovernedToolCall(governor, action(), parent=above)
    judged, span = call.action, call.span
    assert (span.operation, span.name, span.parent_id) == ("execute_tool", "shout", above.span_id)
    assert (judged.span_id, judged.run_id, judged.session_id) == (span.span_id, above.span_id, "s1")
    assert judged.operation_id == f"op_{span.span_id}"
    assert (judged.name, judged.kind, judged.arguments, judged.native) == ("shout", "mcp", {"x": [1]}, "n")
    assert call.as_run is judged
    assert call.started_at == span.started_at
    own = GovernedToolCall(governor, action(run_id="r", session_id="s2", operation_id="o"), parent=above).action
    assert (own.run_id, own.session_id, own.operation_id) == ("r", "s2", "o")


def test_what_is_covered_is_the_call_that_is_judged(governor: Governor) -> None:
    validated: Any = SimpleNamespace()
    call = GovernedToolCall(governor, action(), validated=validated)
    covered = call.covered
    assert covered.covers(governor, "shout", {"x": [1]}, "c1")
    assert covered.arguments is call.action.arguments
    assert (covered.action, covered.validated) == (call.action, validated)


def test_a_span_says_what_is_called_and_shows_content_only_where_it_may(governor: Governor) -> None:
    facts = {
        semconv.OPERATION: "execute_tool",
        semconv.TOOL_NAME: "shout",
        semconv.TOOL_TYPE: "mcp",
        semconv.TOOL_CALL_ID: "c1",
        semconv.AGENT_NAME: "clerk",
        semconv.FRAMEWORK: "f",
    }
    assert GovernedToolCall(governor, action()).span.attributes == {**facts, semconv.TOOL_ARGUMENTS: '{"x": [1]}'}
    silent = GovernedToolCall(Governor(), action())
    assert silent.span.attributes == facts
    silent.permitted(ALLOW.changed(arguments={"x": 2}))
    assert silent.span.attributes == facts


def test_what_a_tool_does_to_its_arguments_is_not_what_was_proposed(governor: Governor) -> None:
    proposed = {"x": [1, {"y": []}], "t": (1,)}
    own = own_arguments(proposed)
    proposed["x"].append(2)  # type: ignore[union-attr]
    proposed["x"][1]["y"].append(3)  # type: ignore[index]
    assert own == {"x": [1, {"y": []}], "t": (1,)}
    nested: Any = {}
    nested["x"] = nested
    assert own_arguments(nested) is nested
    call = GovernedToolCall(governor, action())
    changed = {"x": [2]}
    permitted = call.permitted(ALLOW.changed(arguments=changed))
    assert permitted is changed
    changed["x"].append(3)
    assert call.covered.arguments == {"x": [2]}
    assert call.span.attributes[semconv.TOOL_ARGUMENTS] == '{"x": [2]}'


def test_permitted_as_proposed_the_tool_gets_the_very_arguments_of_the_framework(governor: Governor) -> None:
    proposed = action()
    call = GovernedToolCall(governor, proposed)
    assert call.permitted(ALLOW) is proposed.arguments


# ---------------------------------------------------------------------- denials


def test_arguments_that_nobody_can_judge_are_denied_and_are_the_agents_fault(governor: Governor, seen: Seen) -> None:
    decision = refuse_arguments(governor, action(), "they are nested too deep")
    assert (decision.effect, decision.rule, decision.fault) == (Effect.DENY, "unreadable-arguments", False)
    assert decision.fault is False
    assert decision.reason == "the arguments of shout cannot be judged: they are nested too deep; write them anew"
    assert "they are not one JSON object of plain values" in refuse_arguments(governor, action()).reason
    assert len(seen.decisions()) == 2
    outcome = denied_outcome(action(), decision, 12.5)
    assert (outcome.status, outcome.error_type, outcome.error) == ("invalid_args", "InvalidToolCall", decision.reason)
    assert (outcome.started_at, outcome.decision) == (12.5, decision)


def test_the_outcome_of_a_denied_call_names_its_decision(governor: Governor) -> None:
    before = time.time()
    outcome = denied_outcome(action(), DENY)
    assert (outcome.status, outcome.decision, outcome.error_type, outcome.error) == ("denied", DENY, None, None)
    assert before <= (outcome.started_at or 0) <= time.time()
    call = GovernedToolCall(governor, action())
    denied = call.denied(DENY)
    assert (denied.action, denied.status, denied.started_at) == (call.action, "denied", call.started_at)
    assert call.span.ended
    assert call.span.attributes[semconv.ERROR_TYPE] == "denied"
    assert call.span.attributes[semconv.TOOL_STATUS] == "denied"
    assert call.span.attributes[semconv.DECISION_ID] == "aud_2"


class Problem:
    """Arguments as a schema yields them: what a policy changes becomes ``settled``; None if it does not fit."""

    def __init__(self, problem: str | None = None, error: Exception | None = None, settled: Any = None) -> None:
        self.problem, self.error, self.settled, self.complaint = problem, error, settled, "it does not fit"
        self.read: list[Any] = []

    def settle(self, changed: Any) -> Any:
        self.read.append(changed)
        return self.settled

    def is_judged(self, judged: Any) -> bool:
        return judged == self.settled


def judged(governor: Governor, validated: Any) -> tuple[GovernedToolCall, Decision]:
    call = GovernedToolCall(governor, action(), validated=validated)
    return call, run_flow(call.judge_flow())


def test_unreadable_arguments_are_denied_before_any_policy_is_asked(governor: Governor, seen: Seen) -> None:
    call, decision = judged(governor, Problem("they hold nan"))
    assert (decision.rule, call.span.ended) == (UNREADABLE, True)
    assert "they hold nan" in decision.reason
    assert [outcome.status for outcome in seen.outcomes] == ["invalid_args"]
    observer = Governor(observe_only=True)
    assert judged(observer, Problem("they hold nan"))[1].effect is Effect.ALLOW


def test_a_call_is_refused_with_a_problem_or_without(governor: Governor) -> None:
    call = GovernedToolCall(governor, action())
    assert "cannot be judged: they are not one JSON object of plain values" in call.refuse().reason
    assert "cannot be judged: they hold nan;" in call.refuse("they hold nan").reason


def test_a_reading_without_a_failure_names_none() -> None:
    assert ToolReading("text") == ToolReading("text", "ok", None, None)


def changing(seen: Seen, *answers: Any) -> Governor:
    """A governor whose policy changes the arguments to each of ``answers`` that they are not yet."""
    pending = list(answers)

    def judge(asked: Action) -> Decision:
        if pending and asked.arguments != pending[0]:
            return Decision(Effect.TRANSFORM, "changes", "so", "So.", arguments=pending[0])
        return Decision(Effect.ALLOW, "p", "fine", "Fine.")

    return Governor(plugins=[seen, Says(judge)], capture_content=True)


def test_what_a_policy_changed_and_the_schema_leaves_is_judged_once(seen: Seen) -> None:
    validated = Problem(settled={"x": 2})
    call, decision = judged(changing(seen, {"x": 2}), validated)
    assert (decision.arguments, validated.read) == ({"x": 2}, [{"x": 2}])
    assert call.permitted(decision) == {"x": 2}
    assert len(seen.decisions()) == 1


def test_what_the_schema_changes_again_is_judged_again_and_is_what_runs(seen: Seen) -> None:
    asked: list[Any] = []

    def judge(shown: Action) -> Decision:
        asked.append(shown.arguments)
        if shown.arguments == {"x": [1]}:
            return Decision(Effect.TRANSFORM, "changes", "so", "So.", arguments={"x": "2"})
        return Decision(Effect.ALLOW, "p", "fine", "Fine.")

    call, decision = judged(Governor(plugins=[seen, Says(judge)], capture_content=True), Problem(settled={"x": 2}))
    assert (decision.effect, decision.arguments) == (Effect.ALLOW, None)
    assert asked[-1] == {"x": 2}
    assert call.permitted(decision) == call.as_run.arguments == call.covered.arguments == {"x": 2}
    assert call.covered.action is call.action is call.as_run
    assert call.span.attributes[semconv.TOOL_ARGUMENTS] == '{"x": 2}'


def test_what_does_not_fit_after_a_policy_changed_it_is_denied(seen: Seen) -> None:
    _, decision = judged(changing(seen, {"x": 2}), Problem())
    assert decision.rule == UNREADABLE
    assert "changes rewrote them, and so they do not fit the tool: it does not fit" in decision.reason


def test_what_did_not_fit_before_is_the_frameworks_to_refuse(seen: Seen) -> None:
    _, decision = judged(changing(seen, {"x": 2}), Problem(error=ValueError()))
    assert decision.effect is Effect.TRANSFORM


def test_a_policy_and_a_schema_that_never_agree_are_stopped(seen: Seen) -> None:
    numbers = iter(range(100))

    class Never(Problem):
        def settle(self, changed: Any) -> Any:
            self.read.append(changed)
            return {"x": next(numbers)}

    def judge(asked: Action) -> Decision | None:
        if isinstance(asked.arguments["x"], str):
            return Decision(Effect.ALLOW, "p")
        return Decision(Effect.TRANSFORM, "changes", "so", "So.", arguments={"x": f"{asked.arguments['x']}"})

    validated = Never()
    _, decision = judged(Governor(plugins=[seen, Says(judge)]), validated)
    assert decision.rule == UNREADABLE
    assert "changes and the tool's schema rewrite them again and again" in decision.reason
    assert len(validated.read) == 4


# ---------------------------------------------------------------------- outcomes


def test_what_a_tool_returned_is_its_outcome(governor: Governor) -> None:
    call = GovernedToolCall(governor, action())
    outcome = call.returned(ALLOW, ToolReading("text"))
    assert (outcome.action, outcome.status, outcome.decision, outcome.result) == (call.action, "ok", ALLOW, "text")
    assert (outcome.error_type, outcome.error, outcome.started_at) == (None, None, call.started_at)
    assert 0 <= (outcome.duration_s or 0) < 60
    assert outcome.duration_s is not None
    assert call.finish(outcome)
    assert call.span.attributes[semconv.TOOL_STATUS] == "ok"
    assert call.span.attributes[semconv.TOOL_RESULT] == "text"
    assert call.span.attributes[semconv.DECISION_ID] == "aud_1"
    assert semconv.ERROR_TYPE not in call.span.attributes


def test_a_failure_is_told_by_the_reading_or_else_by_what_the_tool_raised(governor: Governor) -> None:
    def outcome(reading: ToolReading, raised: Exception | None = None) -> tuple[Any, ...]:
        call = GovernedToolCall(governor, action())
        call.covered.raised = raised
        ended = call.returned(ALLOW, reading)
        assert call.finish(ended)
        assert call.span.attributes[semconv.ERROR_MESSAGE] == ended.error
        assert call.span.attributes[semconv.ERROR_TYPE] == (ended.error_type or ended.status)
        return ended.status, ended.error_type, ended.error, ended.result

    raised = OSError("disk full")
    assert outcome(ToolReading("text", "error")) == ("error", None, "text", "text")
    assert outcome(ToolReading("text", "error"), raised) == ("error", "OSError", "disk full", "text")
    assert outcome(ToolReading("text", "error", "E", "told"), raised) == ("error", "E", "told", "text")
    assert outcome(ToolReading("text", "error"), OSError()) == ("error", "OSError", "text", "text")


def test_what_a_tool_raised_is_its_outcome(governor: Governor) -> None:
    call = GovernedToolCall(governor, action())
    outcome = call.raised(ALLOW, OSError("disk full"))
    facts = (outcome.status, outcome.error_type, outcome.error, outcome.decision, outcome.result)
    assert facts == ("error", "OSError", "disk full", ALLOW, None)
    assert call.finish(outcome)
    assert call.span.attributes[semconv.ERROR_TYPE] == "OSError"


def test_a_call_that_was_changed_and_then_denied_was_not_run(governor: Governor) -> None:
    changed = action(arguments={"y": 1}, call_id="c2")
    for end in (
        lambda call: call.returned(ALLOW, ToolReading("text", "error")),
        lambda call: call.raised(ALLOW, OSError("disk full")),
    ):
        call = GovernedToolCall(governor, action())
        call.covered.changed_to(changed, DENY)
        outcome = end(call)
        assert (outcome.status, outcome.decision, outcome.action) == ("denied", DENY, changed)
        assert (outcome.started_at, call.as_run) == (call.started_at, changed)
    call = GovernedToolCall(governor, action())
    call.covered.changed_to(changed, None)
    assert call.returned(ALLOW, ToolReading("text")).action is changed


def test_a_paused_call_ends_its_span_without_an_error(governor: Governor) -> None:
    call = GovernedToolCall(governor, action())
    outcome = call.paused(ALLOW)
    assert (outcome.status, outcome.decision, call.span.ended) == ("paused", ALLOW, True)
    assert semconv.ERROR_TYPE not in call.span.attributes


def test_an_outcome_that_was_recorded_inside_is_not_recorded_again(governor: Governor) -> None:
    call = GovernedToolCall(governor, action())
    call.covered.recorded = True
    assert not call.finish(call.returned(ALLOW, ToolReading("text")))


def test_an_outcome_without_a_decision_or_without_its_id_ends_its_span_too(governor: Governor) -> None:
    for decision in (None, Decision(Effect.ALLOW, "p")):
        call = GovernedToolCall(governor, action())
        call.finish(call._ran(decision, "ok"))  # type: ignore[arg-type]
        assert semconv.DECISION_ID not in call.span.attributes
        assert call.span.ended


def test_a_result_is_judged_as_a_text_of_the_tool(governor: Governor) -> None:
    call = GovernedToolCall(governor, action(context={"dialect": "sqlite"}))
    result = call.result_action(ToolReading("text", "error"), "native result")
    assert (result.point, result.text, result.source, result.native) == (
        Point.POST_TOOL_CALL, "text", "tool", "native result"
    )  # fmt: skip
    assert result.context == {"dialect": "sqlite", "tool_status": "error"}
    assert (result.operation_id, result.call_id) == (call.action.operation_id, "c1")


class MCPError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__("mcp")
        self.error = SimpleNamespace(code=code)


McpError = type("McpError", (MCPError,), {})
ValidationError = type("ValidationError", (ValueError,), {})


class Coded(Exception):
    error = SimpleNamespace(code=408)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TimeoutError(), "timeout"),
        (MCPError(-32001), "timeout"),
        (McpError(408), "timeout"),
        (McpError(500), "error"),
        (type("McpError", (Exception,), {})(), "error"),
        (Coded(), "error"),
        (ValidationError(), "invalid_args"),
        (ValueError(), "error"),
        (PolicyDenied(DENY), "error"),
    ],
)
def test_the_status_of_a_failure_is_that_of_its_error(error: Exception, status: str) -> None:
    assert failure_status(error) == status


# ---------------------------------------------------------------------- the whole flow


def read(result: Any) -> ToolReading:
    return ToolReading(str(result))


def at_result(effect: Effect, **facts: Any) -> Any:
    def judge(asked: Action) -> Decision | None:
        return Decision(effect, "p", "so", "So.", **facts) if asked.point is Point.POST_TOOL_CALL else None

    return Results(judge)


class Results:
    def __init__(self, judge: Any) -> None:
        self.name, self.bounded, self.judge = "results", True, judge


def flow(seen: Seen, *policies: Any, run: Any = lambda arguments: 7, **options: Any) -> GovernedResult:
    governor = Governor(list(policies), plugins=[seen, Says(ALLOW)])
    return run_flow(tool_flow(GovernedToolCall(governor, action()), run, read, **options))


def test_a_permitted_call_gives_its_result_and_the_last_decision(seen: Seen) -> None:
    asked: list[Action] = []
    result = flow(seen, Results(lambda shown: asked.append(shown) if shown.point is Point.POST_TOOL_CALL else None))
    assert (result.result, result.ran, result.text, result.denial) == (7, True, None, None)
    assert [(shown.text, shown.native) for shown in asked] == [("7", 7)]
    assert [outcome.status for outcome in seen.outcomes] == ["ok"]


def test_a_result_is_rewritten_or_withheld_by_the_decision_on_it(seen: Seen) -> None:
    rewritten = flow(seen, at_result(Effect.TRANSFORM, text="new"))
    assert (rewritten.result, rewritten.text, rewritten.denial) == (7, "new", None)
    withheld = flow(seen, at_result(Effect.DENY))
    assert (withheld.result, withheld.text, withheld.ran) == (None, None, True)
    assert "It was run, but its result is withheld" in str(withheld.denial)


@pytest.mark.parametrize(
    "policy", [at_result(Effect.DENY, abort=True), Results(lambda asked: DENY.changed(abort=True))]
)
def test_a_decision_that_aborts_is_raised_unless_the_adapter_ends_the_run_itself(seen: Seen, policy: Any) -> None:
    with pytest.raises(PolicyDenied):
        flow(seen, policy)
    result = flow(seen, policy, raise_abort=False)
    assert result.decision.abort
    assert result.denial is not None


def test_a_denied_call_is_not_run(seen: Seen) -> None:
    ran: list[Any] = []
    result = flow(seen, Results(lambda asked: DENY), run=ran.append)
    assert (result.ran, result.result, ran) == (False, None, [])
    assert result.ran is False
    assert "It was not run" in str(result.denial)


def test_a_call_that_is_changed_and_denied_below_is_a_denied_call(seen: Seen) -> None:
    def run(arguments: Any) -> Any:
        call.covered.changed_to(call.action, DENY.changed(abort=aborts))
        return "failed"

    governor = Governor(plugins=[seen, Says(ALLOW)])
    for aborts in (False, True):
        call = GovernedToolCall(governor, action())
        result = run_flow(tool_flow(call, run, lambda text: ToolReading(text, "error"), raise_abort=False))
        assert (result.ran, result.result, result.decision.policy) == (False, None, "p")
        assert result.ran is False
        assert "It was not run" in str(result.denial)
        call = GovernedToolCall(governor, action())
        if aborts:
            with pytest.raises(PolicyDenied):
                run_flow(tool_flow(call, run, lambda text: ToolReading(text, "error")))
    assert {outcome.status for outcome in seen.outcomes} == {"denied"}


def test_an_error_and_a_pause_are_on_record_and_raised(seen: Seen, tmp_path: Path) -> None:
    def run(arguments: Any) -> Any:
        raise OSError("disk full")

    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        governor = Governor(plugins=[seen, Says(ALLOW)], audit=log)
        for is_pause in (None, lambda error: isinstance(error, OSError), lambda error: False):
            with pytest.raises(OSError, match="disk full"):
                run_flow(tool_flow(GovernedToolCall(governor, action()), run, read, is_pause=is_pause))
        entries = [entry.body for entry in log.entries()]
    decided, ended = entries[::2], entries[1::2]
    assert [fields["status"] for fields in ended] == ["error", "paused", "error"]
    assert [fields["refers_to"] for fields in ended] == [fields["entry_id"] for fields in decided]
    assert [outcome.status for outcome in seen.outcomes] == ["error", "error"], "a pause earns nothing"


def test_a_judgement_that_is_interrupted_ends_the_span(governor: Governor) -> None:
    call = GovernedToolCall(governor, action())
    judging = call.judge_flow()
    governor.decision_flow = lambda asked: iter_raising()  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run_flow(judging)
    assert call.span.ended
    assert call.span.attributes[semconv.ERROR_TYPE] == "KeyboardInterrupt"


def iter_raising() -> Any:
    raise KeyboardInterrupt
    yield


def test_the_outcome_of_a_call_in_a_rollout_is_one_of_that_rollout(seen: Seen) -> None:
    with enter_scope(RolloutScope("r1", 2)):
        flow(seen)
    assert [(outcome.action.rollout_id, outcome.action.attempt) for outcome in seen.outcomes] == [("r1", 2)]
