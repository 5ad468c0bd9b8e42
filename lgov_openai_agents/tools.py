"""Governs the calls of the SDK's local tools, each at the callable that does the act.

The SDK's own guardrails cannot rewrite arguments and do not see what a tool raised; the callable of a tool is its
public field, it gets the raw arguments and what it returns is what the model reads. So that is where a call is judged,
run and recorded, once for every way in which a program can come to it.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import dataclasses
import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agents import FunctionTool, RunConfig, ToolErrorFormatterArgs

from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.tool_call import ToolReading, agovern_tool, failure_status
from lgov_core.types import Action, Kind, Point
from lgov_openai_agents.items import FRAMEWORK, arguments_of, arguments_text, result_text
from lgov_openai_agents.runs import acting_in, agent_name, current_run

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor


#: How much of its time a cancelled tool has used up when its time was up: the SDK began to count a little earlier.
_NEARLY = 0.95


class ToolTimedOut(TimeoutError):
    """A tool that the SDK cancelled because its time was up."""


@dataclasses.dataclass(slots=True)
class _Failure:
    """What the tool that is running raised, although the SDK made an answer of it; ``of_server``: it is an MCP server's."""

    of_server: bool = False
    error: BaseException | None = None


_FAILURE: contextvars.ContextVar[_Failure | None] = contextvars.ContextVar("lgov_agents_failure", default=None)


def note_failure(error: BaseException) -> None:
    """Keeps what the running tool raised."""
    if (failure := _FAILURE.get()) is not None and failure.error is None:
        failure.error = error


def inside_server_tool() -> bool:
    """Whether the running code is the inside of a judged call of an MCP server's tool."""
    return (failure := _FAILURE.get()) is not None and failure.of_server


@contextmanager
def watching_server() -> Generator[None]:
    """Says that the call of a server inside the block has been judged."""
    token = _FAILURE.set(_Failure(of_server=True))
    try:
        yield
    finally:
        _FAILURE.reset(token)


# ---------------------------------------------------------------------- function tools


async def govern_function(
    governor: Governor, tool: FunctionTool, invoke: Callable[[Any, str], Awaitable[Any]], context: Any, raw: str
) -> Any:
    """Judges one call of ``tool``, runs it by ``invoke`` if it may run, records what came of it, judges the result.

    ``context`` is the SDK's context of the call. Returns what the model reads. Raises what the tool raised, and
    `lgov_core.PolicyDenied` where a decision says abort. A call that has been judged on its way here is not judged
    again. Fails closed.
    """
    began = time.monotonic()  # the SDK's clock for the tool is running
    arguments, call_id = arguments_of(raw), getattr(context, "tool_call_id", None)
    outer = covered_call()
    if outer is not None and outer.covers(governor, tool.qualified_name, arguments, call_id):
        return await invoke(context, raw)
    run = current_run(governor)
    action = Action(
        Point.PRE_TOOL_CALL,
        name=tool.qualified_name,
        kind=kind_of(tool),
        arguments=arguments,
        agent=agent_name(getattr(context, "agent", None)) or (run.agent if run is not None else None),
        framework=FRAMEWORK,
        call_id=call_id,
        native=context,
    )
    failure = _Failure(of_server=action.kind == "mcp")

    def call(permitted: Mapping[str, Any]) -> Awaitable[Any]:
        text = raw
        if permitted is not arguments:
            text = arguments_text(permitted, raw)
            if getattr(context, "_function_tool_arguments", None) is not None:
                context._function_tool_arguments = None  # prepared from the arguments as they were
        return _watched(tool, invoke, context, text, failure, began)

    try:
        with acting_in(run):
            judged = await agovern_tool(governor, action, call, lambda result: _reading(result, failure))
    except ToolTimedOut as late:
        raise asyncio.CancelledError from late  # the SDK waits for the task it cancelled to be cancelled
    if judged.told is not None:
        return judged.told
    return judged.result if judged.text is None else judged.text


async def _watched(
    tool: FunctionTool,
    invoke: Callable[[Any, str], Awaitable[Any]],
    context: Any,
    raw: str,
    failure: _Failure,
    began: float,
) -> Any:
    """Runs the tool so that what it raises is noted in ``failure``, whatever the SDK makes of it."""
    token = _FAILURE.set(failure)
    given = _watch_errors(tool, context)
    try:
        return await _noting(tool, invoke)(context, raw)
    except asyncio.CancelledError as error:
        limit = tool.timeout_seconds
        if limit is not None and time.monotonic() - began >= limit * _NEARLY:
            raise ToolTimedOut(f"{tool.name} did not finish within {limit:g} s") from error
        raise
    finally:
        if given is not None:
            context.run_config = given[0]
        _FAILURE.reset(token)


def _watch_errors(tool: FunctionTool, context: Any) -> tuple[Any] | None:
    """Puts a formatter on the call's own context that hears of the tool's exception; returns what was there."""
    if not hasattr(context, "run_config") or isinstance(context.run_config, dict):
        return None
    config: RunConfig | None = context.run_config
    if config is None and kind_of(tool) == "agent":
        return None  # the nested run would take it for the program's own configuration
    inner = config.tool_error_formatter if config is not None else None
    if isinstance(inner, _Formatter):
        return None
    own = RunConfig() if config is None else object.__new__(type(config))
    if config is not None:
        own.__dict__.update(config.__dict__)  # as `copy.copy` does, in a third of the time
    formatter: Any = _Formatter(inner)
    own.tool_error_formatter = formatter
    context.run_config = own
    return (config,)


class _Formatter:
    """A ``tool_error_formatter`` that notes the error and leaves the text to the program's own formatter, if any."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, args: ToolErrorFormatterArgs[Any]) -> Any:
        if args.kind == "tool_exception" and args.error is not None:
            note_failure(args.error)
        return self._inner(args) if self._inner is not None else None


def _noting(tool: FunctionTool, invoke: Callable[[Any, str], Awaitable[Any]]) -> Callable[[Any, str], Awaitable[Any]]:
    """``invoke``, with the tool's own ``failure_error_function`` heard: the SDK's formatter is not asked for those."""
    own: Any = getattr(tool, "_failure_error_function", None)
    rebind: Any = getattr(invoke, "__agents_bind_function_tool__", None)
    if own is None or not callable(rebind):
        return invoke

    def noted(context: Any, error: Exception) -> Any:
        note_failure(error)
        return own(context, error)

    twin = copy.copy(tool)
    twin._failure_error_function = noted
    rebound: Any = rebind(twin)
    return rebound


def kind_of(tool: FunctionTool) -> Kind:
    """What stands behind a function tool: a function, another agent or an MCP server."""
    if getattr(tool, "_is_agent_tool", False):
        return "agent"
    origin = getattr(getattr(tool, "_tool_origin", None), "type", None)
    return "mcp" if getattr(origin, "value", None) == "mcp" else "function"


def _reading(result: Any, failure: _Failure) -> ToolReading:
    text = result_text(result)
    if failure.error is None:
        return ToolReading(text)
    error = failure.error.__cause__ if _is_wrapper(failure.error) else failure.error
    error = error or failure.error
    return ToolReading(text, failure_status_of(error), type(error).__name__, str(error))


def _is_wrapper(error: BaseException) -> bool:
    """Whether the SDK raised this to say what went wrong with the arguments or the tool."""
    return type(error).__module__.startswith("agents.")


def failure_status_of(error: BaseException) -> Any:
    """As `lgov_core.instrumentation.tool_call.failure_status`, with what the SDK says of arguments that do not fit."""
    if type(error).__name__ in ("ModelBehaviorError", "JSONDecodeError"):
        return "invalid_args"
    return failure_status(error)


# ---------------------------------------------------------------------- shell, patch and custom tools


async def govern_act(
    governor: Governor,
    *,
    name: str,
    kind: Kind,
    arguments: Mapping[str, Any],
    call_id: str | None,
    context: Any,
    run: Callable[[Mapping[str, Any]], Any],
    refuse: Callable[[str], Any],
    rewrite: Callable[[Any, str], Any] | None = None,
) -> Any:
    """Judges one act of a tool that is no function tool.

    ``run`` gets the permitted arguments and returns the result, or an awaitable of it; ``refuse`` makes what the SDK
    expects from the denial in words; ``rewrite`` puts a new text into a result (default: the text stands for it).
    """
    outer = covered_call()
    if outer is not None and outer.covers(governor, name, arguments, call_id):
        return await _awaited(run(arguments))
    current = current_run(governor)
    action = Action(
        Point.PRE_TOOL_CALL,
        name=name,
        kind=kind,
        arguments=arguments,
        agent=agent_name(getattr(context, "agent", None)) or (current.agent if current is not None else None),
        framework=FRAMEWORK,
        call_id=call_id,
        native=context,
    )

    async def call(permitted: Mapping[str, Any]) -> Any:
        return await _awaited(run(permitted))

    with acting_in(current):
        judged = await agovern_tool(governor, action, call, _read_act)
    if judged.told is not None:
        return refuse(judged.told)
    if judged.text is None:
        return judged.result
    return rewrite(judged.result, judged.text) if rewrite is not None else judged.text


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


def _read_act(result: Any) -> ToolReading:
    output = getattr(result, "output", result)
    if isinstance(output, list):
        text = "\n".join(
            "\n".join(part for part in (getattr(one, "stdout", ""), getattr(one, "stderr", "")) if part)
            for one in output
        )
        timed_out = any(getattr(one, "status", "") == "timeout" for one in output)
        return ToolReading(text, "timeout" if timed_out else "ok", "timeout" if timed_out else None)
    text = result_text(output) if output is not None else ""
    failed = getattr(result, "status", None) == "failed"
    return ToolReading(text, "error" if failed else "ok", "failed" if failed else None)
