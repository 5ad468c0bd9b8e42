"""Governs tool calls where they pass: ``BaseTool.run`` and ``arun``, and LangGraph's ``ToolNode``.

A ``ToolNode`` is governed in agents through the middleware, in hand-made graphs directly (`wrap_tool_node`). A call that it
has evaluated passes through ``BaseTool.run`` (see `lgov_core.instrumentation.live_span`); any other call is evaluated and
recorded there, and so is its result. A denial is what the tool returns: a tool message with status ``error`` if the call
came from a model, its text otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ToolMessage
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import TOOL_CALL_ERROR_TEMPLATE, TOOL_INVOCATION_ERROR_TEMPLATE

from lgov_core.errors import PolicyError
from lgov_core.instrumentation import Flow, arun_flow, foreign, run_flow, wait
from lgov_core.instrumentation.framework import flow_method
from lgov_core.instrumentation.live_span import CoveredCall, covered_call
from lgov_core.instrumentation.tool_call import GovernedToolCall, ToolReading, tool_flow
from lgov_core.types import Action, Point
from lgov_langchain._internals import handled_error_types, node_options
from lgov_langchain.callback import DeniedToolError
from lgov_langchain.instrumentor import INSTRUMENTOR
from lgov_langchain.messages import answer, denial_message, kind_of, result_reading
from lgov_langchain.process_handler import agent_span, expect_call_below, inside, process_handler
from lgov_langchain.runs import FRAMEWORK, agent_name, is_pause
from lgov_langchain.tool_inputs import ToolInput, ValidatedInput, node_input, validated_input

if TYPE_CHECKING:
    from types import CoroutineType

    from langchain_core.tools import BaseTool
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan


#: The argument of a tool that takes one string.
_SINGLE = "input"


def wrap_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseTool.run`` or ``arun`` with an evaluation before and after."""

    def steps(tool: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Flow[Any]:
        tool_input = validated_input(tool, tool_input, kwargs.get("tool_call_id"))
        call = _uncovered_call(tool, tool_input, args, kwargs)
        if call is None:
            return (yield from wait(foreign(run, tool, tool_input, *args, **kwargs)))

        def go(arguments: Mapping[str, Any]) -> Any:
            return run(tool, call.input_with(arguments), *args, **kwargs)

        with call.recorded():
            result = yield from tool_flow(
                GovernedToolCall(call.governor, call.action, validated=call.validated),
                go,
                result_reading,
                is_pause=is_pause,
            )
        return answer(result, tool.name, call.action.call_id)

    return flow_method(run, steps)


@dataclass(frozen=True, slots=True)
class _UncoveredCall:
    """A tool call that is to be evaluated here. ``outer`` is the evaluated call that it runs inside of, if any."""

    governor: Governor
    action: Action
    tool_input: Any
    outer: CoveredCall | None
    agent: LiveSpan | None

    @property
    def validated(self) -> ToolInput | None:
        """The arguments as the tool's schema yields them; None for a tool that takes one string."""
        return self.tool_input.validated if isinstance(self.tool_input, ValidatedInput) else None

    def input_with(self, arguments: Mapping[str, Any]) -> Any:
        """The input for the tool such that its arguments are ``arguments``."""
        return arguments[_SINGLE] if self.validated is None else ValidatedInput(self.validated)

    @contextmanager
    def recorded(self) -> Generator[None]:
        """The inside of the agent. The block records the outcome, so the outer evaluation of this call must not."""
        try:
            with inside(self.agent):
                yield
        except BaseException as error:
            if not is_pause(error):
                self._set_recorded()
            raise
        self._set_recorded()

    def _set_recorded(self) -> None:
        if self.outer is not None and self.outer.call_id == self.action.call_id:
            self.outer.recorded = True


def _uncovered_call(tool: BaseTool, tool_input: Any, args: Any, options: Mapping[str, Any]) -> _UncoveredCall | None:
    """The call if it is to be evaluated here, or None if it was evaluated before, or no governor is instrumented."""
    governor = INSTRUMENTOR.governor
    if governor is None:
        return None
    call_id, config, outer = options.get("tool_call_id"), options.get("config"), covered_call()
    validated = isinstance(tool_input, ValidatedInput)
    arguments = tool_input.validated.arguments if validated else {_SINGLE: tool_input}
    if outer is not None and outer.covers(governor, tool.name, arguments, call_id):
        outer.recorded = False  # an outcome may be recorded for another form of it, but not for this one
        return None
    action = Action(
        Point.PRE_TOOL_CALL,
        name=tool.name,
        kind=kind_of(tool.name, tool),
        arguments=arguments,
        agent=agent_name(config or {}) or agent_name(),
        framework=FRAMEWORK,
        call_id=call_id,
        native=tool,
    )
    callbacks = args[3] if len(args) > 3 else options.get("callbacks")
    return _UncoveredCall(governor, action, tool_input, outer, agent_span(governor, config, callbacks))


#: How the installed LangGraph begins its answer to a call whose arguments do not fit.
_INVALID_ARGUMENTS = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{")[0]

Handler = Callable[["ToolCallRequest"], Any]
AsyncHandler = Callable[["ToolCallRequest"], Awaitable[Any]]


class GovernedToolCalls:
    """The two wrappers that a ``ToolNode`` takes, for one governor. Any number of nodes, threads and tasks may share it."""

    def __init__(self, governor: Governor) -> None:
        self.governor = governor

    def wrap_tool_call(self, request: ToolCallRequest, handler: Handler) -> ToolMessage | Command[Any]:
        """Evaluates the call, runs it if it may run, records the outcome and evaluates the result."""
        return run_flow(self._steps(request, handler, run_flow))

    def awrap_tool_call(
        self, request: ToolCallRequest, handler: AsyncHandler
    ) -> CoroutineType[Any, Any, ToolMessage | Command[Any]]:
        """As `wrap_tool_call`, for asynchronous agents. Not a coroutine function, as the hooks for model calls."""
        return arun_flow(self._steps(request, handler, arun_flow))

    def _steps(
        self, request: ToolCallRequest, handler: Any, run: Callable[[Flow[Any]], Any]
    ) -> Flow[ToolMessage | Command[Any]]:
        def go(arguments: Mapping[str, Any]) -> Any:
            return run(_run_flow(handler, request, arguments))

        with inside(agent_span(self.governor, request.runtime.config)):
            validated, reading = node_input(request), partial(_reading, request)
            call = GovernedToolCall(self.governor, _tool_action(request, validated), validated=validated)
            result = yield from tool_flow(call, go, reading, is_pause=is_pause)
        return answer(result, request.tool_call["name"], request.tool_call["id"] or "")


def _tool_action(request: ToolCallRequest, validated: ToolInput | None) -> Action:
    """The call as the tool will run it; as the model proposed it if there is no such tool."""
    call = request.tool_call
    return Action(
        Point.PRE_TOOL_CALL,
        name=call["name"],
        kind=kind_of(call["name"], request.tool),
        arguments=dict(call["args"]) if validated is None else validated.arguments,
        agent=agent_name(getattr(request.runtime, "config", None)),
        framework=FRAMEWORK,
        call_id=call["id"],
        native=request,
    )


def _run_flow(handler: Callable[..., Any], request: ToolCallRequest, arguments: Mapping[str, Any]) -> Flow[Any]:
    expect_call_below(request.runtime.config)
    call = request.tool_call
    covered = covered_call()
    judged = covered.validated.judged if covered is not None and covered.validated is not None else call["args"]
    if arguments != judged:
        request = request.override(tool_call={**call, "args": dict(arguments)})
    try:
        return (yield from wait(foreign(handler, request)))
    except DeniedToolError as denied:  # it was changed on the way, and this node makes no messages of errors
        return denial_message(denied.message, call["name"], call["id"] or "")


def _reading(request: ToolCallRequest, result: Any) -> ToolReading:
    reading = result_reading(result)
    if reading.status != "ok" and request.tool is None:
        reading.status = "unknown_tool"
    elif reading.status != "ok" and reading.text.startswith(_INVALID_ARGUMENTS):
        reading.status = "invalid_args"
    return reading


# ---------------------------------------------------------------------- nodes of hand-made graphs


def wrap_tool_node(governor: Governor, tools: ToolNode | Sequence[Any], **options: Any) -> ToolNode:
    """A ``ToolNode`` for hand-made graphs, all of whose calls are governed by ``governor``::

        graph.add_node("tools", wrap_tool_node(governor, [search, delete_file]))

    ``tools`` are the tools themselves (``options`` then go to ``ToolNode``), or a ``ToolNode``, from which a governed one
    like it is made; wrappers that it has run after the evaluation of the call. A denied call does not run and the model
    reads the denial as the tool's error. A decision that says abort raises `PolicyDenied`, which a node with
    ``handle_tool_errors=True`` makes an error message of. Raises `PolicyError` for a subclass of ``ToolNode``. Fails closed.
    """
    process_handler()
    if isinstance(tools, ToolNode):
        if type(tools) is not ToolNode or options:
            raise PolicyError(
                f"cannot make a governed node from a {type(tools).__name__} with {len(options)} options",
                hint="give wrap_tool_node the tools and the options, or ToolNode's own wrap_tool_call=",
            )
        tags = None if tools.tags is None else list(tools.tags)
        options = {"name": tools.name or "tools", "tags": tags, **node_options(tools)}
        tools = list(tools.tools_by_name.values())
    inner, ainner = options.pop("wrap_tool_call", None), options.pop("awrap_tool_call", None)
    if "handle_tool_errors" in options and inner is None and ainner is None:
        options["handle_tool_errors"] = _for_its_own_types(options["handle_tool_errors"])
    return ToolNode(tools, **_wrappers(GovernedToolCalls(governor), inner, ainner), **options)


def _for_its_own_types(handled: Any) -> Any:
    """The ``handle_tool_errors`` of a node without a wrapper, for a node with one.

    A node with a wrapper calls it for every type of error that comes out of the wrapper: those that it was not made for
    have to be raised, as they are without a wrapper.
    """
    if isinstance(handled, (bool, str)):
        return handled
    names_types = isinstance(handled, (type, tuple))
    types: Any = handled if names_types else handled_error_types(handled)
    if types == (Exception,):
        return handled

    def handle(error: Exception) -> str:
        if not isinstance(error, types):
            raise error
        return TOOL_CALL_ERROR_TEMPLATE.format(error=repr(error)) if names_types else handled(error)

    return handle


def _wrappers(governed: GovernedToolCalls, inner: Any, ainner: Any) -> dict[str, Any]:
    """Our two wrappers around those that a node has. A node with only a synchronous one uses that in both ways."""
    if inner is None and ainner is None:
        return {"wrap_tool_call": governed.wrap_tool_call, "awrap_tool_call": governed.awrap_tool_call}

    def wrap(request: ToolCallRequest, handler: Handler) -> Any:
        return governed.wrap_tool_call(request, partial(_run_wrapped, inner, handler) if inner else handler)

    async def awrap(request: ToolCallRequest, handler: AsyncHandler) -> Any:
        return await governed.awrap_tool_call(request, partial(_run_wrapped, ainner, handler))

    # Without an asynchronous wrapper of its own the node runs the synchronous one around the synchronous tool; so do we.
    return {"wrap_tool_call": wrap, "awrap_tool_call": None if ainner is None else awrap}


def _run_wrapped(wrapper: Callable[..., Any], handler: Callable[..., Any], request: ToolCallRequest) -> Any:
    return wrapper(request, handler)
