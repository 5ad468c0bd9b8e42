"""The course of one execution: judge, run, record, judge the answer. Who drives it decides whether it waits or awaits."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from lgov_core.errors import KernelError
from lgov_core.kernel.agent_call import AgentCall, Function, text_of
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
    """What came of one `KernelSpace.run`.

    ``decision`` judged the act, ``verdicts`` the answer. ``outcome`` is succeeded, blocked (the act was denied, or its
    answer was) or infrastructure (judging or recording failed, for the act or for one inside it). ``output`` is None when
    something was denied. ``ran`` says whether anything was run.
    """

    action: Action
    decision: Decision
    outcome: Outcome
    output: Any = None
    verdicts: tuple[Decision, ...] = ()
    ran: bool = field(default=True)


@dataclass(frozen=True, slots=True)
class Run:
    """A step: ``function`` is to be called with ``value``."""

    function: Function
    value: Any


Steps: TypeAlias = Generator[Action | ToolOutcome | Run, Any, Execution]


def life_of(scope: RolloutScope, point: Point) -> Action:
    """The beginning or the end of a rollout, as it is judged."""
    return Action(point, name=scope.task_id or scope.rollout_id, kind="agent", framework="lgov")


def steps_of(call: AgentCall, *, rollout: RolloutScope | None, unused: Callable[[ToolOutcome], None]) -> Steps:
    """What has to happen for one execution, in order; the answer to each step is sent in.

    An `Action` is to be judged (answer: the decision), a `ToolOutcome` to be recorded (answer: ignored), a `Run` to be
    run (answer: result and exception, one of them None). ``rollout`` is the rollout that begins and ends with this
    execution, if one does. ``unused`` is told of an act that was allowed and not run. What the agent raised is raised.
    """
    if rollout is None:
        return (yield from _executed(call, unused))
    startup: Decision = yield life_of(rollout, Point.AGENT_STARTUP)
    if startup.blocks:
        return Execution(call.action, startup, outcome_of(startup), ran=False)
    try:
        return (yield from _executed(call, unused))
    finally:
        yield life_of(rollout, Point.AGENT_SHUTDOWN)


def _executed(call: AgentCall, unused: Callable[[ToolOutcome], None]) -> Steps:
    if call.by_agent:
        text = _read(call.given, "input")
        verdict: Decision = yield replace(call.action, point=Point.INPUT, text=text, arguments={})
        if verdict.blocks:
            return Execution(call.action, verdict, outcome_of(verdict), ran=False)
        if verdict.text is not None:
            call = call.with_text(verdict.text)
    action = call.action
    decision: Decision = yield action
    if decision.blocks:
        yield ToolOutcome(action, "denied", decision=decision)
        return Execution(action, decision, outcome_of(decision), ran=False)
    if call.function is None:
        # Nothing is run and nothing is recorded as run; what was set aside for the act is given back.
        unused(ToolOutcome(action, "denied", decision=decision, error="only judged"))
        accuracy = 0.0 if decision.effect is Effect.TRANSFORM else 1.0
        return Execution(action, decision, Outcome.SUCCEEDED, Judged(action, decision, accuracy), ran=False)
    output, text = yield from _run(call, call.function, decision)
    verdicts: list[Decision] = []
    for result in call.results(text):
        verdict = yield result if text == result.text else replace(result, text=text)
        verdicts.append(verdict)
        if verdict.blocks:
            return Execution(action, decision, outcome_of(verdict), verdicts=tuple(verdicts))
        if verdict.text is not None:
            output = text = verdict.text
    return Execution(action, decision, Outcome.SUCCEEDED, output, tuple(verdicts))


def _run(
    call: AgentCall, function: Function, decision: Decision
) -> Generator[Action | ToolOutcome | Run, Any, tuple[Any, str | None]]:
    """Runs the act and records what came of it. Gives the output and its text; raises what the agent raised."""
    started, clock = time.time(), time.perf_counter()
    output: Any = None
    text: str | None = None
    error: BaseException | None = None
    try:
        output, error = yield Run(function, call.value(decision))
        text = _read(output, "answer") if error is None else None
    except KernelError as problem:
        error = problem
    status: ToolStatus = "ok" if error is None else "timeout" if isinstance(error, TimeoutError) else "error"
    yield ToolOutcome(
        call.action,
        status,
        result=text,
        error_type=None if error is None else type(error).__name__,
        error=None if error is None else str(error),
        decision=decision,
        started_at=started,
        duration_s=time.perf_counter() - clock,
    )
    if error is not None:
        raise error
    return output, text


def _read(value: Any, what: str) -> str | None:
    """What policies read of an input or an answer; one that cannot be read cannot pass."""
    try:
        return text_of(value)
    except Exception as error:
        raise KernelError(f"the {what} cannot be judged: a {type(value).__name__} without a text") from error
