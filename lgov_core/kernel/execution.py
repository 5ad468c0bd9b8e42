"""The flow of one execution: judge, run, record, judge the answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lgov_core.errors import KernelError
from lgov_core.flow import Flow, either
from lgov_core.governor import Governor
from lgov_core.kernel.agent_call import AgentCall, Function, awaited, run_to_end, text_of
from lgov_core.kernel.violations import outcome_of
from lgov_core.scope import RolloutScope
from lgov_core.types import Action, Decision, Effect, Outcome, Point, ToolOutcome, ToolStatus


@dataclass(frozen=True, slots=True)
class Judged:
    """An act that was judged and not run, because the kernel has neither an agent nor an executor for it.

    ``accuracy`` is 1.0 when the act may go on as it is and 0.0 when it may go on changed; it says that nothing was
    refused, not that an answer was right.
    """

    action: Action
    decision: Decision
    accuracy: float


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of one `KernelSpace.run`.

    ``decision`` judged the act, ``verdicts`` the answer. ``outcome`` is succeeded, blocked (the act was denied, or its
    answer was) or infrastructure (judging or recording failed, for the act or for one inside it). ``output`` is None when
    something was denied. ``ran`` says whether anything was run.
    """

    action: Action
    decision: Decision
    outcome: Outcome
    output: Any = None
    verdicts: tuple[Decision, ...] = ()
    ran: bool = True


def rollout_action(scope: RolloutScope, point: Point) -> Action:
    """The action that is judged at the beginning or the end of a rollout."""
    return Action(point, name=scope.task_id or scope.rollout_id, kind="agent", framework="lgov")


def execution_flow(
    call: AgentCall, governor: Governor, *, rollout: RolloutScope | None, not_run: Callable[[ToolOutcome], None]
) -> Flow[Execution]:
    """The flow of one execution. Raises what the agent raised.

    ``rollout`` is the rollout that begins and ends with this execution, if one does. ``not_run`` is called with an act
    that was allowed and not run, so that policies give back what they reserved for it.
    """
    if rollout is None:
        return (yield from _executed(call, governor, not_run))
    startup = yield from governor.decision_flow(rollout_action(rollout, Point.AGENT_STARTUP))
    if startup.blocks:
        return Execution(call.action, startup, outcome_of(startup), ran=False)
    try:
        return (yield from _executed(call, governor, not_run))
    finally:
        yield from governor.decision_flow(rollout_action(rollout, Point.AGENT_SHUTDOWN))


def _executed(call: AgentCall, governor: Governor, not_run: Callable[[ToolOutcome], None]) -> Flow[Execution]:
    if call.by_agent:
        text = _read(call.given, "input")
        verdict = yield from governor.decision_flow(replace(call.action, point=Point.INPUT, text=text, arguments={}))
        if verdict.blocks:
            return Execution(call.action, verdict, outcome_of(verdict), ran=False)
        if verdict.text is not None:
            call = call.with_text(verdict.text)
    action = call.action
    decision = yield from governor.decision_flow(action)
    if decision.blocks:
        governor.record(ToolOutcome(action, "denied", decision=decision))
        return Execution(action, decision, outcome_of(decision), ran=False)
    if call.function is None:
        not_run(ToolOutcome(action, "denied", decision=decision, error="only judged"))
        accuracy = 0.0 if decision.effect is Effect.TRANSFORM else 1.0
        return Execution(action, decision, Outcome.SUCCEEDED, Judged(action, decision, accuracy), ran=False)
    output, text = yield from _run(call, call.function, governor, decision)
    verdicts: list[Decision] = []
    for result in call.results(text):
        verdict = yield from governor.decision_flow(result if text == result.text else replace(result, text=text))
        verdicts.append(verdict)
        if verdict.blocks:
            return Execution(action, decision, outcome_of(verdict), verdicts=tuple(verdicts))
        if verdict.text is not None:
            output = text = verdict.text
    return Execution(action, decision, Outcome.SUCCEEDED, output, tuple(verdicts))


def _run(call: AgentCall, function: Function, governor: Governor, decision: Decision) -> Flow[tuple[Any, str | None]]:
    """Runs the act and records its outcome. Returns the output and its text; raises what the agent raised."""
    started, clock = time.time(), time.perf_counter()
    text: str | None = None
    error: BaseException | None = None
    try:
        value = call.value(decision)
        run = partial(run_to_end, function, value, call.action.name)
        output = yield either(run, lambda: awaited(function(value)))
        text = _read(output, "answer")
    except BaseException as raised:
        error = raised
        raise
    finally:
        status: ToolStatus = "ok" if error is None else "timeout" if isinstance(error, TimeoutError) else "error"
        governor.record(  # not awaited: a cancelled task cannot wait, and the record comes before everything else
            ToolOutcome(
                call.action,
                status,
                result=text,
                error_type=None if error is None else type(error).__name__,
                error=None if error is None else str(error),
                decision=decision,
                started_at=started,
                duration_s=time.perf_counter() - clock,
            )
        )
    return output, text


def _read(value: Any, what: str) -> str | None:
    """The text that policies read of an input or an answer. Raises `KernelError` for one that has none."""
    try:
        return text_of(value)
    except Exception as error:
        raise KernelError(f"the {what} cannot be judged: a {type(value).__name__} without a text") from error
