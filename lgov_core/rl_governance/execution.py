"""The flow of one execution: judge, run, record, judge the answer."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from lgov_core._util.json_text import readable_json
from lgov_core.errors import ArgumentError, KernelError
from lgov_core.flow import Flow, either
from lgov_core.governor import Governor
from lgov_core.rl_governance.reports import outcome_of
from lgov_core.scope import RolloutScope
from lgov_core.types import Action, Decision, Effect, Outcome, Point, ToolOutcome, ToolStatus, new_id


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
class KernelExecution:
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
) -> Flow[KernelExecution]:
    """The flow of one execution. Raises what the agent raised.

    ``rollout`` is the rollout that begins and ends with this execution, if one does. ``not_run`` is called with an act
    that was allowed and not run, so that policies give back what they reserved for it.
    """
    if rollout is None:
        return (yield from _executed_flow(call, governor, not_run))
    startup = yield from governor.decision_flow(rollout_action(rollout, Point.AGENT_STARTUP))
    if startup.blocks:
        return KernelExecution(call.action, startup, outcome_of(startup), ran=False)
    try:
        return (yield from _executed_flow(call, governor, not_run))
    finally:
        yield from governor.decision_flow(rollout_action(rollout, Point.AGENT_SHUTDOWN))


def _executed_flow(
    call: AgentCall, governor: Governor, not_run: Callable[[ToolOutcome], None]
) -> Flow[KernelExecution]:
    if call.by_agent:
        text = _read(call.given, "input")
        verdict = yield from governor.decision_flow(replace(call.action, point=Point.INPUT, text=text, arguments={}))
        if verdict.blocks:
            return KernelExecution(call.action, verdict, outcome_of(verdict), ran=False)
        if verdict.text is not None:
            call = call.with_text(verdict.text)
    action = call.action
    decision = yield from governor.decision_flow(action)
    if decision.blocks:
        governor.record(ToolOutcome(action, "denied", decision=decision))
        return KernelExecution(action, decision, outcome_of(decision), ran=False)
    if call.function is None:
        not_run(ToolOutcome(action, "denied", decision=decision, error="only judged"))
        accuracy = 0.0 if decision.effect is Effect.TRANSFORM else 1.0
        return KernelExecution(action, decision, Outcome.SUCCEEDED, Judged(action, decision, accuracy), ran=False)
    output, text = yield from _run_flow(call, call.function, governor, decision)
    verdicts: list[Decision] = []
    for result in call.results(text):
        verdict = yield from governor.decision_flow(result if text == result.text else replace(result, text=text))
        verdicts.append(verdict)
        if verdict.blocks:
            return KernelExecution(action, decision, outcome_of(verdict), verdicts=tuple(verdicts))
        if verdict.text is not None:
            output = text = verdict.text
    return KernelExecution(action, decision, Outcome.SUCCEEDED, output, tuple(verdicts))


def _run_flow(
    call: AgentCall, function: Function, governor: Governor, decision: Decision
) -> Flow[tuple[Any, str | None]]:
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


#: The name of the act when no agent is named.
EXECUTE = "execute"
#: The argument under which an input that is not a mapping is judged.
INPUT = "input"

#: How an agent that is an object is called: the first of these methods it has.
_SYNC_METHODS = ("run", "invoke", "execute", "__call__", "get_action", "ainvoke")
_ASYNC_METHODS = ("ainvoke", "run", "invoke", "execute", "__call__", "get_action")

Function: TypeAlias = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class AgentCall:
    """``action`` is judged; ``function`` (None: nothing is run) then gets what the judgement left of the input."""

    action: Action
    function: Function | None
    plain: bool
    by_agent: bool

    def value(self, decision: Decision) -> Any:
        """The argument of ``function``: the input, as the decision changed it."""
        arguments = self.action.arguments if decision.arguments is None else decision.arguments
        if not self.plain:
            return dict(arguments)
        if set(arguments) != {INPUT}:
            raise KernelError(
                f"a policy changed the input of {self.action.name} into other arguments than {INPUT!r}",
                hint=f"a transform of a plain input must answer arguments={{{INPUT!r}: ...}}",
            )
        return arguments[INPUT]

    @property
    def given(self) -> Any:
        """The input, before any change."""
        return self.action.arguments[INPUT] if self.plain else self.action.arguments

    def with_text(self, text: str) -> AgentCall:
        """The call with another input text. Raises `KernelError` where the input is not a text."""
        if not self.plain or not isinstance(self.given, str):
            raise KernelError(
                f"a policy changed the text of the input of {self.action.name}, which is not a text",
                hint=f"let it change the arguments at {Point.PRE_TOOL_CALL} instead",
            )
        return replace(self, action=self.action.changed(arguments={INPUT: text}))

    def results(self, text: str | None) -> list[Action]:
        """The actions that are judged before the caller gets the answer: the result and, when an agent gave it, the output."""
        result = replace(self.action, point=Point.POST_TOOL_CALL, text=text)
        return [result, replace(result, point=Point.OUTPUT, arguments={})] if self.by_agent else [result]


def prepare(
    value: Any, *, agent: Any = None, executor: Function | None = None, prefer_async: bool = False, dialect: str | None
) -> AgentCall:
    """The call of ``agent`` (or else ``executor``) with the input ``value``. Raises `KernelError`.

    Containers are copied, so that the input cannot change between judging and running; `KernelError`
    also for one that holds itself or is nested too deeply for that.
    """
    function = executor if agent is None else function_of(agent, prefer_async=prefer_async)
    if isinstance(value, Action):
        if value.point is not Point.PRE_TOOL_CALL:
            raise KernelError(
                f"an action at {value.point} cannot be run", hint=f"use check, or an action at {Point.PRE_TOOL_CALL}"
            )
        action = replace(value, arguments=_copied(value.arguments), operation_id=value.operation_id or new_id("op"))
        return AgentCall(action, function, plain=False, by_agent=agent is not None)
    named = name_of(agent) if agent is not None else None
    plain = not isinstance(value, Mapping)
    action = Action(
        Point.PRE_TOOL_CALL,
        name=named or EXECUTE,
        arguments={INPUT: _copied(value)} if plain else _copied(value),
        agent=named,
        framework="lgov",
        call_id=new_id("call"),
        operation_id=new_id("op"),
        context={} if dialect is None else {"dialect": dialect},
    )
    return AgentCall(action, function, plain=plain, by_agent=agent is not None)


def name_of(agent: Any) -> str:
    """The name of an agent: its ``name``, or that of the function or class."""
    for candidate in (getattr(agent, "name", None), getattr(agent, "__name__", None)):
        if isinstance(candidate, str) and candidate:
            return candidate
    return name_of(agent.func) if isinstance(agent, partial) else type(agent).__name__


def function_of(agent: Any, *, prefer_async: bool = False) -> Function:
    """The function of one input that runs ``agent``. Raises `KernelError` when there is none."""
    if inspect.isclass(agent):
        raise KernelError(f"{agent.__name__} is a class, not an agent", hint="pass an instance of it")
    if inspect.isroutine(agent) or isinstance(agent, partial):
        return _with_one_input(agent)
    for name in _ASYNC_METHODS if prefer_async else _SYNC_METHODS:
        method = getattr(agent, name, None)
        if callable(method):
            return _with_one_input(method)
    methods = ", ".join(_SYNC_METHODS)
    raise KernelError(
        f"{type(agent).__name__} is not an agent", hint=f"pass a function, or an object with one of {methods}"
    )


def _with_one_input(function: Callable[..., Any]) -> Function:
    """``function`` itself, or, where it takes its input by keyword only (``run(*, task)``), a call that does so."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature
        return function
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(
        parameter.kind in by_position or parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters
    ):
        return function
    for keyword in ("task", INPUT, "query", "prompt"):
        if any(parameter.name == keyword for parameter in parameters):
            return lambda value: function(**{keyword: value})
    raise KernelError(f"{getattr(function, '__qualname__', function)} takes no input", hint="give it one parameter")


def target_id(target: Any) -> str:
    """The id of a rollout, or the name of an agent, that a signal is sent to. Raises `ArgumentError`."""
    if isinstance(target, str) and target:
        return target
    rollout_id = getattr(target, "rollout_id", None)
    if isinstance(rollout_id, str) and rollout_id:
        return rollout_id
    if not any(isinstance(getattr(target, name, None), str) for name in ("name", "__name__")):
        try:
            function_of(target)
        except KernelError:
            raise ArgumentError(
                f"{target!r} is neither a rollout nor an agent", hint="name a rollout's id or an agent"
            ) from None
    return name_of(target)


def is_async(function: Function) -> bool:
    """Returns whether calling ``function`` surely gives a coroutine or an asynchronous generator."""
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def refuse_running_loop(name: str) -> None:
    """Raises `KernelError` inside a running event loop, where no coroutine can be run to its end."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise KernelError(f"{name} is a coroutine, and an event loop is running here", hint="await execute_async instead")


def run_to_end(function: Function, value: Any, name: str) -> Any:
    """The result of ``function``, with coroutines and generators of both kinds run to their end.

    What a generator does must happen before its outcome is recorded. Raises `KernelError`, with ``name``, for a coroutine
    inside a running event loop.
    """
    result = function(value)
    if not (inspect.isawaitable(result) or inspect.isasyncgen(result)):
        return _drained(result)
    try:
        refuse_running_loop(name)
    except KernelError:
        if inspect.iscoroutine(result):
            result.close()
        raise
    return asyncio.run(awaited(result))


def _drained(result: Any) -> Any:
    return list(result) if isinstance(result, Generator) else result


async def awaited(result: Any) -> Any:
    """As `run_to_end`, of a ``result`` and on the running event loop."""
    if isinstance(result, AsyncGenerator):
        return [item async for item in result]
    if isinstance(result, Awaitable):
        return await awaited(await result)
    return _drained(result)


def text_of(result: Any) -> str | None:
    """The text that policies read of a result: text as it is, containers as JSON, anything else as ``str``; None for None."""
    if result is None or isinstance(result, str):
        return result
    if isinstance(result, bytes | bytearray):
        return bytes(result).decode("utf-8", "replace")
    if isinstance(result, Mapping | list | tuple | set | frozenset):
        return readable_json(sorted(result, key=repr) if isinstance(result, set | frozenset) else result)
    return str(result)


def _copied(value: Any) -> Any:
    """Containers copied, strings made plain ones; everything else as it is. Raises `KernelError`."""
    try:
        return _copy(value)
    except RecursionError:
        raise KernelError(
            "the input is nested too deeply, or holds itself", hint="nothing was judged and nothing was run"
        ) from None


def _copy(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_copy(key): _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if type(value) is tuple:
        return tuple(_copy(item) for item in value)
    return value
