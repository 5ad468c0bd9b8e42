"""The course of one execution: judge, run, record, judge the answer. Who drives it decides whether it waits or awaits."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

from lgov_core.agent_call import AgentCall, Function, text_of
from lgov_core.errors import KernelError
from lgov_core.types import Action, Decision, Effect, Outcome, ToolOutcome, ToolStatus
from lgov_core.violations import outcome_of


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


def steps_of(
    call: AgentCall, *, unused: Callable[[ToolOutcome], None]
) -> Generator[Action | ToolOutcome | Run, Any, Execution]:
    """What has to happen for one execution, in order; the answer to each step is sent in.

    An `Action` is to be judged (answer: the decision), a `ToolOutcome` to be recorded (answer: ignored), a `Run` to be
    run (answer: result and exception, one of them None). ``unused`` is told of an act that was allowed and not run.
    What the agent raised is raised.
    """
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
    started, clock = time.time(), time.perf_counter()
    output: Any = None
    text: str | None = None
    error: BaseException | None = None
    try:
        value = call.value(decision)
    except KernelError as problem:
        error = problem
    else:
        output, error = yield Run(call.function, value)
    if error is None:
        output, text, error = _readable(output)
    status: ToolStatus = "ok" if error is None else "timeout" if isinstance(error, TimeoutError) else "error"
    yield ToolOutcome(
        action,
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
    verdicts: list[Decision] = []
    for result in call.results(text):
        verdict: Decision = yield result if text == result.text else replace(result, text=text)
        verdicts.append(verdict)
        if verdict.blocks:
            return Execution(action, decision, outcome_of(verdict), verdicts=tuple(verdicts))
        if verdict.text is not None:
            output = text = verdict.text
    return Execution(action, decision, Outcome.SUCCEEDED, output, tuple(verdicts))


def _readable(output: Any) -> tuple[Any, str | None, BaseException | None]:
    """The output and what policies read of it; an output that cannot be read cannot be let out."""
    try:
        return output, text_of(output), None
    except Exception as error:  # noqa: BLE001 - whatever an object's __str__ raises
        problem = KernelError(f"the answer cannot be judged: a {type(output).__name__} without a text")
        problem.__cause__ = error
        return None, None, problem
