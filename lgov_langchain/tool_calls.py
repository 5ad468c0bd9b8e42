"""Governs the tool calls of LangGraph's ``ToolNode``: in agents through the middleware, in hand-made graphs directly."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ToolMessage
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import (
    TOOL_CALL_ERROR_TEMPLATE,
    TOOL_INVOCATION_ERROR_TEMPLATE,
    _infer_handled_types,
)

from lgov_core.errors import PolicyError
from lgov_core.instrumentation.tool_call import GovernedResult, ToolReading, agovern_tool, govern_tool
from lgov_core.types import ToolStatus
from lgov_langchain import actions
from lgov_langchain.changed_calls import runs_here
from lgov_langchain.enforcing import DeniedToolError
from lgov_langchain.watching import place_of, watch_process

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    from lgov_core.instrumentation import Governor

#: How the installed LangGraph begins its answer to a call whose arguments do not fit.
_INVALID_ARGUMENTS = TOOL_INVOCATION_ERROR_TEMPLATE.partition("{")[0]

Handler = Callable[["ToolCallRequest"], Any]
AsyncHandler = Callable[["ToolCallRequest"], Awaitable[Any]]


class GovernedToolCalls:
    """The two wrappers that a ``ToolNode`` takes, over one governor. Any number of nodes, threads and tasks may share it."""

    def __init__(self, governor: Governor) -> None:
        self.governor = governor

    def wrap_tool_call(self, request: ToolCallRequest, handler: Handler) -> ToolMessage | Command[Any]:
        """Judges the call, runs it if it may run, records what came of it and judges the result."""
        standing, parent = place_of(self.governor, request.runtime.config)
        with standing:
            result = govern_tool(
                self.governor,
                actions.tool_action(request),
                functools.partial(_run, handler, request),
                functools.partial(_reading, request),
                is_pause=actions.is_interrupt,
                parent=parent,
            )
        return _answer(result, request)

    async def awrap_tool_call(self, request: ToolCallRequest, handler: AsyncHandler) -> ToolMessage | Command[Any]:
        """As `wrap_tool_call`, for asynchronous agents."""
        standing, parent = place_of(self.governor, request.runtime.config)
        with standing:
            result = await agovern_tool(
                self.governor,
                actions.tool_action(request),
                functools.partial(_arun, handler, request),
                functools.partial(_reading, request),
                is_pause=actions.is_interrupt,
                parent=parent,
            )
        return _answer(result, request)


def wrap_tool_node(governor: Governor, tools: ToolNode | Sequence[Any], **options: Any) -> ToolNode:
    """A ``ToolNode`` for hand-made graphs whose every call stands under ``governor``::

        graph.add_node("tools", wrap_tool_node(governor, [search, delete_file]))

    ``tools`` are the tools themselves (``options`` then go to ``ToolNode``), or a ``ToolNode``, from which a governed one
    like it is made; wrappers that it has run inside the judgement. A denied call does not run and the model reads the
    denial as the tool's error. A decision that says abort raises `PolicyDenied`, which a node with
    ``handle_tool_errors=True`` makes an error message of. Raises `PolicyError` for a subclass of ``ToolNode``. Fails closed.
    """
    watch_process()
    governed = GovernedToolCalls(governor)
    if not isinstance(tools, ToolNode):
        inner, ainner = options.pop("wrap_tool_call", None), options.pop("awrap_tool_call", None)
        if "handle_tool_errors" in options and inner is None and ainner is None:
            options["handle_tool_errors"] = _only_its_kinds(options["handle_tool_errors"])
        return ToolNode(tools, **_wrappers(governed, inner, ainner), **options)
    if type(tools) is not ToolNode or options:
        raise PolicyError(
            f"a {type(tools).__name__} with {len(options)} options cannot be made anew",
            hint="give wrap_tool_node the tools and the options, or ToolNode's own wrap_tool_call=",
        )
    handled, bare = tools._handle_tool_errors, tools._wrap_tool_call is None and tools._awrap_tool_call is None
    return ToolNode(
        list(tools.tools_by_name.values()),
        name=tools.name or "tools",
        tags=None if tools.tags is None else list(tools.tags),
        handle_tool_errors=_only_its_kinds(handled) if bare else handled,
        messages_key=tools._messages_key,
        **_wrappers(governed, tools._wrap_tool_call, tools._awrap_tool_call),
    )


def _only_its_kinds(handled: Any) -> Any:
    """What handles the errors of a node, for a node with a wrapper around its calls.

    Such a node asks it about what comes out of the wrapper whatever kind of error that is: those that it was not made for
    have to go on, as they do without a wrapper.
    """
    if isinstance(handled, (bool, str)):
        return handled
    names_kinds = isinstance(handled, (type, tuple))
    kinds: Any = handled if names_kinds else _infer_handled_types(handled)
    if kinds == (Exception,):
        return handled

    def handle(error: Exception) -> str:
        if not isinstance(error, kinds):
            raise error
        return TOOL_CALL_ERROR_TEMPLATE.format(error=repr(error)) if names_kinds else handled(error)

    return handle


def _wrappers(governed: GovernedToolCalls, inner: Any, ainner: Any) -> dict[str, Any]:
    """Our two wrappers around those that a node has. A node with only a synchronous one uses that in both ways."""
    if inner is None and ainner is None:
        return {"wrap_tool_call": governed.wrap_tool_call, "awrap_tool_call": governed.awrap_tool_call}

    def wrap(request: ToolCallRequest, handler: Handler) -> Any:
        inside = handler if inner is None else functools.partial(_run_in, inner, handler)
        return governed.wrap_tool_call(request, inside)

    async def awrap(request: ToolCallRequest, handler: AsyncHandler) -> Any:
        return await governed.awrap_tool_call(request, functools.partial(_run_in, ainner, handler))

    # Without an asynchronous wrapper of its own the node runs the synchronous one around the synchronous tool; so do we.
    return {"wrap_tool_call": wrap, "awrap_tool_call": None if ainner is None else awrap}


def _run_in(wrapper: Callable[..., Any], handler: Callable[..., Any], request: ToolCallRequest) -> Any:
    return wrapper(request, handler)


def _run(handler: Handler, request: ToolCallRequest, arguments: Mapping[str, Any]) -> Any:
    runs_here(request.runtime.config)
    try:
        return handler(_with_arguments(request, arguments))
    except DeniedToolError as denied:  # it was changed on the way, and a node that handles no errors let this through
        return actions.denial_message(denied.message, request.tool_call["name"], request.tool_call["id"] or "")


async def _arun(handler: AsyncHandler, request: ToolCallRequest, arguments: Mapping[str, Any]) -> Any:
    runs_here(request.runtime.config)
    try:
        return await handler(_with_arguments(request, arguments))
    except DeniedToolError as denied:
        return actions.denial_message(denied.message, request.tool_call["name"], request.tool_call["id"] or "")


def _with_arguments(request: ToolCallRequest, arguments: Mapping[str, Any]) -> ToolCallRequest:
    if arguments == request.tool_call["args"]:
        return request
    return request.override(tool_call={**request.tool_call, "args": dict(arguments)})


def _reading(request: ToolCallRequest, answer: Any) -> ToolReading:
    messages = actions.result_messages(answer)
    text = actions.texts_of(messages)
    status: ToolStatus = "ok"
    if any([message.status == "error" for message in messages]):
        bad_call: ToolStatus = "invalid_args" if text.startswith(_INVALID_ARGUMENTS) else "error"
        status = "unknown_tool" if request.tool is None else bad_call
    return ToolReading(text, status)


def _answer(result: GovernedResult[Any], request: ToolCallRequest) -> Any:
    if result.told is not None:
        call = request.tool_call
        return actions.denial_message(result.told, call["name"], call["id"] or "")
    return result.result if result.text is None else actions.with_result_text(result.result, result.text)
