"""Everything that lgov reads or sets in AutoGen 0.7.5 to 0.7.x that AutoGen does not document.

`tests/autogen/test_autogen_internals.py` checks each against the installed version.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autogen_core.tools import BaseStreamTool, BaseTool, FunctionTool

from lgov_core.instrumentation.live_span import covered_call

#: Where AutoGen defines the functions of its hand-off tools.
HANDOFF_MODULE, HANDOFF_FUNCTION = "autogen_agentchat.base._handoff", "Handoff.handoff_tool."

#: Clients wrap clients (a cache, for example); deeper nesting is not followed.
_MAX_DEPTH = 8


def is_handoff(tool: object) -> bool:
    """Returns whether AutoGen made ``tool`` for a hand-off. Running it does nothing; proposing it does."""
    function = getattr(tool, "_func", None)
    name = str(getattr(function, "__qualname__", ""))
    return getattr(function, "__module__", None) == HANDOFF_MODULE and name.startswith(HANDOFF_FUNCTION)


def handoffs_of(agent: object) -> list[Any]:
    """The hand-offs that ``agent`` may make."""
    handoffs: Any = getattr(agent, "_handoffs", None) or {}
    return list(handoffs.values()) if isinstance(handoffs, Mapping) else list(handoffs)


def team_id(team: object) -> str | None:
    """The id of a team, which keeps its conversation from run to run."""
    identity = getattr(team, "_team_id", None)
    return identity if isinstance(identity, str) else None


def has_handoffs(agent: object) -> bool:
    """Returns whether ``agent`` is of a kind that offers its model hand-offs, as an assistant does."""
    return hasattr(agent, "_handoffs")


def tools_of(workbench: object) -> tuple[Any, ...]:
    """The tools of a static workbench; empty for any other."""
    return tuple(getattr(workbench, "_tools", ()))


def tool_in(workbench: object, name: str) -> Any:
    """The tool that a static workbench shows as ``name``, or None."""
    original = getattr(workbench, "_override_name_to_original", {}).get(name, name)
    return next((tool for tool in tools_of(workbench) if tool.name == original), None)


def validating_model(tool: object, run_json: Any) -> Any:
    """The pydantic model with which ``run_json``, a method of the tool's class, validates; None for a method of its own."""
    unwrapped = inspect.unwrap(run_json)
    function = getattr(unwrapped, "__func__", unwrapped)
    own = (inspect.unwrap(BaseTool.run_json), inspect.unwrap(BaseStreamTool.run_json_stream))
    return vars(tool).get("_args_type") if tool is not None and function in own else None


class ValidatedType:
    """Stands for the pydantic model ``schema`` where a tool validates what is validated already: ``take`` returns it."""

    def __init__(self, schema: Any, take: Callable[[], Any]) -> None:
        self._schema, self._take = schema, take

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schema, name)

    def model_validate(self, arguments: Any) -> Any:
        """The model that was made. Raises what the schema raised."""
        return self._take()


class _ArgumentsType:
    """``BaseTool._args_type``: the tool's own, or what ``stand_in`` gives for the call that is running."""

    def __init__(self, stand_in: Callable[[Any], ValidatedType | None]) -> None:
        self._stand_in = stand_in

    def __get__(self, tool: Any, owner: type | None = None) -> Any:
        if tool is None or "_args_type" not in vars(tool):
            raise AttributeError("_args_type")
        return self._stand_in(tool) or vars(tool)["_args_type"]

    def __set__(self, tool: Any, value: Any) -> None:
        vars(tool)["_args_type"] = value


def validate_with(stand_in: Callable[[Any], ValidatedType | None]) -> None:
    """Has every tool of this process ask ``stand_in`` for what it validates its arguments with."""
    BaseTool._args_type = _ArgumentsType(stand_in)  # type: ignore[assignment,misc]


def observe_errors(workbench: Any, observe: Callable[[Exception], None]) -> None:
    """Calls ``observe`` with what a tool raised before the workbench makes a text of it. Once for each workbench."""
    format_errors = getattr(workbench, "_format_errors", None)
    if format_errors is None or hasattr(format_errors, "__wrapped__"):
        return

    @functools.wraps(format_errors)
    def observed(error: Exception) -> Any:
        observe(error)
        return format_errors(error)

    workbench._format_errors = observed


def _clients(client: Any) -> Iterator[Any]:
    """A model client and the clients inside it."""
    for _ in range(_MAX_DEPTH):
        if client is None:
            return
        yield client
        client = getattr(client, "client", None)


def model_name(client: Any) -> str:
    """The client's name for its model, or the name of its class."""
    for inner in _clients(client):
        created = getattr(inner, "_create_args", None)
        name = created.get("model") if isinstance(created, Mapping) else getattr(inner, "model", None)
        if isinstance(name, str) and name:
            return name
    return type(client).__name__


def openai_client(client: Any) -> Any:
    """The ``openai`` client that a model client sends its requests with, or None."""
    for inner in _clients(client):
        for owner in (inner, getattr(inner, "_client", None)):
            if callable(getattr(owner, "request", None)) and type(owner).__module__.partition(".")[0] == "openai":
                return owner
    return None


# ---------------------------------------------------------------------- context in threads


def wrap_function_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """``FunctionTool.run`` with the caller's context variables in the thread of a synchronous function.

    AutoGen starts that thread without them: spans that the function opens would have no parent, and tool calls inside
    it would belong to no rollout and no agent.
    """

    @functools.wraps(run)
    async def run_in_context(self: Any, args: Any, cancellation_token: Any) -> Any:
        function: Any = getattr(self, "_func", None)
        is_asynchronous = inspect.iscoroutinefunction(function) or hasattr(function, "_is_coroutine")
        if covered_call() is None or function is None or is_asynchronous:
            return await run(self, args, cancellation_token)
        copied = copy.copy(self)  # the tool itself may be running for other callers at the same time
        copied._func = functools.partial(contextvars.copy_context().run, function)
        return await run(copied, args, cancellation_token)

    return run_in_context


def carry_context(tool: Any) -> None:
    """Does the same for one function tool, in a process that is not instrumented. Calling it again changes nothing."""
    if isinstance(tool, FunctionTool) and "run" not in vars(tool):
        tool.run = wrap_function_run(type(tool).run).__get__(tool)  # type: ignore[method-assign]
