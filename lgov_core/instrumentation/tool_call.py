"""A governed tool call, the same for every framework: judge, refuse or run, record, judge the result; and the span.

An adapter gives the call as an `Action`, a function that runs it, and one that reads the result.
`lgov_core.instrumentation.model_call` is the same for models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from lgov_core._util.json_text import readable_json
from lgov_core.errors import PolicyDenied
from lgov_core.flow import Flow, foreign
from lgov_core.governor import Governor
from lgov_core.instrumentation.live_span import CoveredCall, LiveSpan
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, JSONValue, Point, ToolOutcome, ToolStatus

if TYPE_CHECKING:
    from lgov_core.instrumentation.tool_arguments import ToolArguments


#: The rule by which a call is denied whose arguments no policy can judge.
UNREADABLE: Final = "unreadable-arguments"
#: How often policies may change arguments that the tool's schema changes again.
_SETTLING: Final = 4


@dataclass(slots=True)
class ToolReading:
    """A tool's result as the model will read it, and whether the tool reported a failure."""

    text: str
    status: ToolStatus = "ok"
    error_type: str | None = None
    error: str | None = None


@dataclass(slots=True)
class GovernedResult:
    """How a tool call ended.

    ``decision`` is the last one taken: before the call if that refused it, else after it. ``ran`` says whether the tool
    ran. ``result`` is what it returned, None if it did not run or the result is withheld. ``text`` replaces what the model
    reads, where a policy rewrote it; ``denial`` is the denial that the model reads instead of a withheld result, else None.
    """

    decision: Decision
    ran: bool
    result: Any = None
    text: str | None = None

    @property
    def denial(self) -> str | None:
        """The denial in words for the model, or None if nothing was denied."""
        return self.decision.denial_message(after=self.ran) if self.decision.blocks else None


def refuse_arguments(governor: Governor, action: Action, problem: str = "") -> Decision:
    """Denies a call whose arguments programs may read differently, without asking a policy; the decision is on record.

    ``problem`` says what is wrong with them, where that is known.
    """
    problem = problem or "they are not one JSON object of plain values in which each key is there once"
    reason = f"the arguments of {action.name} cannot be judged: {problem}; write them anew"
    return governor.refuse(action, UNREADABLE, reason, is_fault=False)


def denied_outcome(action: Action, decision: Decision, started_at: float | None = None) -> ToolOutcome:
    """The outcome of a call that ``decision`` denied; it has to be recorded."""
    outcome = ToolOutcome(action, "denied", decision=decision, started_at=started_at or time.time())
    if decision.rule != UNREADABLE:
        return outcome
    return replace(outcome, status="invalid_args", error_type="InvalidToolCall", error=decision.reason)


def own_arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """A copy of the JSON containers in the arguments, so that the record holds them as proposed whatever the tool does."""
    try:
        return {key: _own(value) for key, value in arguments.items()}
    except RecursionError:  # nested too deeply to copy
        return arguments


def _own(value: Any) -> Any:
    if type(value) is dict:
        return {key: _own(element) for key, element in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return [_own(element) for element in value] if type(value) is list else value


class GovernedToolCall:
    """One tool call in progress: its actions, its outcome and its span.

    ``parent`` is the parent span, if not the current one. ``validated`` are the arguments as the tool's schema yields them,
    where the adapter has them: the tool gets what these give out.

    `tool_flow` uses it in the right order. An adapter that does not see the tool run (the model proposes a call, and
    the result is read in a later request) takes the steps itself: `judge_flow`, then `finish` with what `returned`, and
    record that. The span begins here and must be ended by one of them.
    """

    def __init__(
        self, governor: Governor, action: Action, parent: LiveSpan | None = None, validated: ToolArguments | None = None
    ) -> None:
        self.governor = governor
        self._validated = validated
        attributes = _tool_attributes(action, governor.capture_content)
        self.span = LiveSpan(governor, semconv.EXECUTE_TOOL, action.name, attributes, parent=parent)
        span_id = self.span.span_id
        self.action = action.changed(
            arguments=own_arguments(action.arguments),
            span_id=span_id,
            run_id=action.run_id or self.span.run_id,
            session_id=action.session_id or self.span.session_id,
            operation_id=action.operation_id or f"op_{span_id}",
        )
        self._permitted = action.arguments
        self.started_at = self.span.started_at
        self.clock = time.perf_counter()
        self.covered = CoveredCall(
            governor, action.name, self.action.arguments, action.call_id, action=self.action, validated=validated
        )

    def judge_flow(self) -> Flow[Decision]:
        """Judges `action`; a denial is recorded and ends the span."""
        try:
            decision = yield from self._decision_flow()
        except BaseException as error:  # cancelled while a policy was judging: nothing has run
            self.span.end(error)
            raise
        if decision.blocks:
            yield from self.governor.record_flow(self.denied(decision))
        return decision

    def _decision_flow(self) -> Flow[Decision]:
        """Judges the arguments; where a policy changes them, what the schema yields for those, until it is the same."""
        validated = self._validated
        if validated is not None and validated.problem is not None and self.governor.evaluates(Point.PRE_TOOL_CALL):
            return self.refuse(validated.problem)
        decision = yield from self._ask()
        if validated is None:
            return decision
        did_not_fit = validated.error is not None
        for _ in range(_SETTLING):
            if decision.blocks or decision.arguments is None:
                return decision
            settled = validated.settle(decision.arguments)
            if settled is None:
                if did_not_fit:  # the framework says so
                    return decision
                problem = f"{decision.policy} rewrote them, and so they do not fit the tool: {validated.complaint}"
                return self.refuse(problem)
            if validated.is_judged(decision.arguments):
                return decision
            self._permitted = settled
            self._judge_as(self.action.changed(arguments=own_arguments(settled)))
            decision = yield from self._ask()
        return self.refuse(f"{decision.policy} and the tool's schema rewrite them again and again")

    def refuse(self, problem: str = "") -> Decision:
        """Denies the call without asking a policy, see `refuse_arguments`; the outcome has to be recorded."""
        return refuse_arguments(self.governor, self.action, problem)

    def _ask(self) -> Flow[Decision]:
        return self.governor.decision_flow(self.action)

    def _judge_as(self, action: Action) -> None:
        self.action = self.covered.action = action
        self.covered.arguments = action.arguments
        self._show(action.arguments)

    def _show(self, arguments: Mapping[str, Any]) -> None:
        if self.governor.capture_content:
            self.span.set({semconv.TOOL_ARGUMENTS: readable_json(arguments)})

    def permitted(self, decision: Decision) -> Mapping[str, Any]:
        """The arguments to run with."""
        if decision.arguments is None:
            return self._permitted
        self.covered.arguments = own_arguments(decision.arguments)
        self._show(self.covered.arguments)
        return decision.arguments

    @property
    def as_run(self) -> Action:
        """The call as it ran: as proposed, unless it was changed and judged again."""
        return self.covered.action or self.action

    def denied(self, decision: Decision) -> ToolOutcome:
        """Ends the span of a call that does not run; the outcome has to be recorded."""
        outcome = denied_outcome(self.as_run, decision, self.started_at)
        self._end(outcome)
        return outcome

    def _ran(self, decision: Decision, status: ToolStatus, **facts: Any) -> ToolOutcome:
        took = time.perf_counter() - self.clock
        return ToolOutcome(self.as_run, status, decision=decision, started_at=self.started_at, duration_s=took, **facts)

    def returned(self, decision: Decision, reading: ToolReading) -> ToolOutcome:
        """The outcome of a call that returned; denied, if its changed form was denied."""
        error_type, error = reading.error_type, None
        if reading.status != "ok":
            if self.covered.refused is not None:
                return denied_outcome(self.as_run, self.covered.refused, self.started_at)
            raised = self.covered.raised  # before the framework turned it into a text
            error_type = error_type or (type(raised).__name__ if raised is not None else None)
            error = reading.error or (str(raised) if raised is not None else None) or reading.text
        return self._ran(decision, reading.status, result=reading.text, error_type=error_type, error=error)

    def raised(self, decision: Decision, error: BaseException) -> ToolOutcome:
        """The outcome of a call that raised; denied, if its changed form was denied."""
        if self.covered.refused is not None:
            return denied_outcome(self.as_run, self.covered.refused, self.started_at)
        return self._ran(decision, failure_status(error), error_type=type(error).__name__, error=str(error))

    def paused(self, decision: Decision) -> ToolOutcome:
        """Ends the span of a call that the framework pauses, to execute it again later."""
        self.span.end()
        return self._ran(decision, "paused")

    def finish(self, outcome: ToolOutcome) -> bool:
        """Ends the span; returns whether the outcome still has to be recorded."""
        self._end(outcome)
        return not self.covered.recorded

    def result_action(self, reading: ToolReading, result: Any) -> Action:
        """The result, to be judged before the model reads it."""
        action = self.as_run
        return action.changed(
            point=Point.POST_TOOL_CALL,
            text=reading.text,
            source="tool",
            context={**action.context, "tool_status": reading.status},
            native=result,
        )

    def _end(self, outcome: ToolOutcome) -> None:
        attributes: dict[str, JSONValue] = {semconv.TOOL_STATUS: outcome.status, semconv.TOOL_RESULT: outcome.result}
        if outcome.decision is not None and outcome.decision.decision_id is not None:
            attributes[semconv.DECISION_ID] = outcome.decision.decision_id
        attributes[semconv.ERROR_MESSAGE] = outcome.error
        self.span.set(attributes)
        self.span.end(None if outcome.status == "ok" else outcome.error_type or outcome.status)


def tool_flow(
    call: GovernedToolCall,
    run: Callable[[Mapping[str, Any]], Any],
    read: Callable[[Any], ToolReading],
    *,
    is_pause: Callable[[BaseException], bool] | None = None,
    raise_abort: bool = True,
) -> Flow[GovernedResult]:
    """Judges ``call``, runs it if it may run, records its outcome and judges the result.

    ``run`` gets the arguments as the policies left them, and runs inside the call's span (for an asynchronous agent it
    may return an awaitable); what it raises is recorded and raised on; an error for which ``is_pause`` is true (the framework
    only interrupts the run) as a pause, which earns nothing. A decision that says abort raises `PolicyDenied`,
    unless ``raise_abort`` is false. Fails closed.
    """
    governor = call.governor
    decision = yield from call.judge_flow()
    if decision.blocks:
        return _ended(decision, raise_abort, ran=False)
    try:
        with call.span.active(tool=call.covered):
            # Not with wait(), which a StopIteration of the tool's would leave as a RuntimeError.
            result = yield foreign(run, call.permitted(decision))
            reading = read(result)
    except BaseException as error:
        if is_pause is not None and is_pause(error):
            governor.record(call.paused(decision))
        elif call.finish(outcome := call.raised(decision, error)):
            governor.record(outcome)  # at once: a cancelled task cannot wait
        raise
    if call.finish(outcome := call.returned(decision, reading)):
        yield from governor.record_flow(outcome)
    if outcome.status == "denied" and outcome.decision is not None:
        return _ended(outcome.decision, raise_abort, ran=False)
    decision = yield from governor.decision_flow(call.result_action(reading, result))
    return _ended(decision, raise_abort, ran=True, result=result)


def _ended(decision: Decision, raise_abort: bool, *, ran: bool, result: Any = None) -> GovernedResult:
    """How the call ended. Raises `PolicyDenied` for a decision that aborts the run."""
    if ran and not decision.blocks:
        return GovernedResult(decision, ran=True, result=result, text=decision.text)
    if decision.abort and raise_abort:
        raise PolicyDenied(decision)
    return GovernedResult(decision, ran=ran)


#: The timeout errors of mcp 2 and mcp 1.
_MCP_ERRORS = frozenset({"MCPError", "McpError"})
_MCP_TIMEOUTS = frozenset({-32001, 408})


def failure_status(error: BaseException) -> ToolStatus:
    """The status of a tool that raised ``error``."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if type(error).__name__ in _MCP_ERRORS and getattr(getattr(error, "error", None), "code", None) in _MCP_TIMEOUTS:
        return "timeout"
    # pydantic raises a ValidationError for arguments that do not fit the schema.
    return "invalid_args" if type(error).__name__ == "ValidationError" else "error"


def _tool_attributes(action: Action, content: bool) -> dict[str, JSONValue]:
    return {
        semconv.TOOL_NAME: action.name,
        semconv.TOOL_TYPE: action.kind,
        semconv.TOOL_CALL_ID: action.call_id,
        semconv.AGENT_NAME: action.agent,
        semconv.FRAMEWORK: action.framework,
        semconv.TOOL_ARGUMENTS: readable_json(action.arguments) if content else None,
    }
