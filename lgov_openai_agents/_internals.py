"""Everything that lgov reads or sets in openai-agents 0.24 that the SDK does not document.

`tests/openai_agents/test_agents_internals.py` checks each against the installed version.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from agents import FunctionTool
from agents._function_tool_arguments import PreparedFunctionArguments
from agents.tool import maybe_invoke_function_tool_failure_error_function, set_function_tool_failure_error_function

from lgov_core.types import Kind

Invoke = Callable[[Any, str], Awaitable[Any]]


def kind_of(tool: FunctionTool) -> Kind:
    """Returns the kind of thing a function tool calls: a function, another agent or an MCP server."""
    if tool._is_agent_tool:
        return "agent"
    origin = getattr(tool._tool_origin, "type", None)
    return "mcp" if getattr(origin, "value", None) == "mcp" else "function"


def agent_of(tool: Any) -> Any:
    """The agent behind an agent tool, or None."""
    return getattr(tool, "_agent_instance", None)


def bind(invoke: Any, tool: FunctionTool) -> Any:
    """``invoke`` for ``tool``, a copy of the tool that it was made for."""
    rebind = getattr(invoke, "__agents_bind_function_tool__", None)
    return rebind(tool) if callable(rebind) else invoke


def observe_errors(tool: FunctionTool, invoke: Any, observe: Callable[[BaseException], None]) -> Invoke:
    """``invoke`` of ``tool``, which calls ``observe`` with what the tool raised before the SDK makes a text of it.

    The copy of the tool has a failure function of its own, which asks for the tool's.
    """
    if not hasattr(invoke, "__agents_bind_function_tool__"):
        return invoke

    async def observed(context: Any, error: Exception) -> Any:
        observe(error)
        return await maybe_invoke_function_tool_failure_error_function(function_tool=tool, context=context, error=error)

    failure_function: Any = observed
    copied = FunctionTool.__copy__(tool)
    return bind(invoke, set_function_tool_failure_error_function(copied, failure_function))


def function_schema_of(tool: FunctionTool) -> tuple[Any, Any] | None:
    """The schema of a function made a tool, and the SDK's function that validates by it; None for any other tool."""
    invoke = vars(tool).get("on_invoke_tool")
    inner = getattr(getattr(invoke, "lgov_inner", invoke), "_invoke_tool_impl", None)
    inspect_arguments = getattr(inner, "__agents_prepare_arguments__", None)
    if inspect_arguments is None:
        return None
    prepare = inspect.getclosurevars(inspect_arguments).nonlocals["_prepare_arguments"]
    return inspect.getclosurevars(prepare).nonlocals["schema"], prepare


def prepared_arguments(schema: Any, prepare: Any, text: str, model: Any) -> PreparedFunctionArguments:
    """The arguments in ``model``, which ``text`` was read to, as the SDK hands them to the function."""
    args, kwargs = schema.to_call_args(model)
    return PreparedFunctionArguments(owner=prepare, arguments=text, args=args, kwargs=kwargs)


class _Failed:
    """In the place of prepared arguments: the SDK gets the error where it would have validated."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def owner(self) -> Any:
        raise self._error


def hand_over(context: Any, prepared: PreparedFunctionArguments | None, error: Exception | None = None) -> None:
    """Has the SDK call the function with ``prepared``, or fail with ``error``, in place of what it would validate.

    With neither it validates, and forgets what it parsed for an approval: it insists that the tool gets the same.
    """
    if error is not None or getattr(context, "_function_tool_arguments", None) is not prepared:
        context._function_tool_arguments = prepared if error is None else _Failed(error)


def approval_of(state: Any, item: Any) -> tuple[FunctionTool | None, bool | None, str]:
    """The function tool that a paused run (`RunState`) has the question ``item`` about, and its answer to it.

    The answer is None without one; the last value are the words of a rejection.
    """
    if (nested := state._find_nested_approval_state(item)) is not None:  # of an agent that is a tool
        return approval_of(*nested)
    context, names = state._context, {"tool_namespace": item.tool_namespace, "existing_pending": item}
    names["tool_lookup_key"] = item.tool_lookup_key
    status = context.get_approval_status(item.name, item.call_id, **names)
    calls = state._last_processed_response.functions
    tool = next((call.function_tool for call in calls if call.tool_call.call_id == item.call_id), None)
    return tool, status, context.get_rejection_message(item.name, item.call_id, **names) or ""


def paused_agent(state: Any) -> Any:
    """The agent that a paused run (`RunState`) goes on with; None for any other input."""
    return getattr(state, "_current_agent", None)


def base_url_of(model: Any) -> str | None:
    """The URL that an OpenAI-style model sends its requests to; None for any other."""
    url = getattr(getattr(model, "_client", None), "base_url", None)
    return str(url) if url is not None else None


def trace_processors(provider: Any) -> list[Any]:
    """The processors of the SDK's trace provider."""
    return list(getattr(getattr(provider, "_multi_processor", None), "_processors", ()))


class RunEndCleanup:
    """Passes the SDK's clean-up at the end of a run on to the model behind."""

    inner: Any

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.inner._cleanup_on_run_end(owner)
