"""One call of an agent or an executor: the action that is judged, the function that is called, the text of its answer."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from lgov_core.errors import ArgumentError, KernelError
from lgov_core.types import Action, Decision, Point, new_id

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
        """What ``function`` is called with: the input, as the decision changed it."""
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
        """What is judged before the caller gets the answer: the result and, when an agent gave it, the output."""
        result = replace(self.action, point=Point.POST_TOOL_CALL, text=text)
        return [result, replace(result, point=Point.OUTPUT, arguments={})] if self.by_agent else [result]


def prepare(
    given: Any, *, agent: Any = None, executor: Function | None = None, prefer_async: bool = False, dialect: str | None
) -> AgentCall:
    """The call of ``agent`` (or else ``executor``) with the input ``given``. Raises `KernelError`.

    Containers are copied, so that the input cannot change between judging and running; `KernelError`
    also for one that holds itself or is nested too deeply for that.
    """
    function = executor if agent is None else function_of(agent, prefer_async=prefer_async)
    if isinstance(given, Action):
        if given.point is not Point.PRE_TOOL_CALL:
            raise KernelError(
                f"an action at {given.point} cannot be run", hint=f"use check, or an action at {Point.PRE_TOOL_CALL}"
            )
        action = replace(given, arguments=_copied(given.arguments), operation_id=given.operation_id or new_id("op"))
        return AgentCall(action, function, plain=False, by_agent=agent is not None)
    named = name_of(agent) if agent is not None else None
    plain = not isinstance(given, Mapping)
    action = Action(
        Point.PRE_TOOL_CALL,
        name=named or EXECUTE,
        arguments={INPUT: _copied(given)} if plain else _copied(given),
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
    if any(one.kind in by_position or one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return function
    for keyword in ("task", INPUT, "query", "prompt"):
        if any(one.name == keyword for one in parameters):
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
    """Whether calling ``function`` surely gives a coroutine or an asynchronous generator."""
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def refuse_running_loop(name: str) -> None:
    """Raises `KernelError` inside a running event loop, where no coroutine can be run to its end."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise KernelError(f"{name} is a coroutine, and an event loop is running here", hint="await execute_async instead")


def run_to_end(function: Function, value: Any, name: str) -> Any:
    """What ``function`` returns, with coroutines and generators of both kinds run to their end.

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
        return [part async for part in result]
    if isinstance(result, Awaitable):
        return await awaited(await result)
    return _drained(result)


def text_of(result: Any) -> str | None:
    """What policies read of a result: text as it is, containers as JSON, anything else as ``str``; None for None."""
    if result is None or isinstance(result, str):
        return result
    if isinstance(result, bytes | bytearray):
        return bytes(result).decode("utf-8", "replace")
    if isinstance(result, Mapping | list | tuple | set | frozenset):
        plain = sorted(result, key=repr) if isinstance(result, set | frozenset) else result
        try:
            return json.dumps(plain, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):
            return str(plain)
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
