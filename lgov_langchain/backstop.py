"""Judges tool calls where all of them pass: ``BaseTool.run`` and ``BaseTool.arun``. Installed by `instrumentation`.

A call that the middleware or a governed ``ToolNode`` has judged passes through untouched (see
`lgov_core.instrumentation.evaluated_call`). Any other call is judged, recorded and its result judged here. A denial
is what the tool returns:
a tool message with status ``error`` if the call came from a model, its text otherwise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation.evaluated_call import CoveredCall, covered_call
from lgov_core.instrumentation.tool_call import GovernedResult, ToolReading, agovern_tool, govern_tool
from lgov_core.types import Action, Point
from lgov_langchain import actions
from lgov_langchain.graph_runs import CallRun
from lgov_langchain.instrumentor import acting_governor
from lgov_langchain.watching import standing_under

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from lgov_core.instrumentation import Governor

#: What a tool that takes one string is judged on.
_SINGLE = "input"


@dataclass(frozen=True, slots=True)
class _Call:
    """One execution that has to be judged: what it is, what was passed in, the judged call it runs inside, if any."""

    action: Action
    tool_input: Any
    outer: CoveredCall | None

    def input_with(self, arguments: Mapping[str, Any]) -> Any:
        """What the tool is to be run with so that its arguments are ``arguments``."""
        if not isinstance(self.tool_input, Mapping):
            return arguments[_SINGLE]
        if arguments is self.action.arguments:
            return self.tool_input
        injected = {key: value for key, value in self.tool_input.items() if key not in self.action.arguments}
        return {**arguments, **injected}

    def answer(self, result: GovernedResult[Any]) -> Any:
        """What the caller of the tool gets."""
        call_id = self.action.call_id
        if result.told is not None:
            return result.told if call_id is None else actions.denial_message(result.told, self.action.name, call_id)
        if result.text is None:
            return result.result
        messages = actions.result_messages(result.result)
        return actions.with_result_text(result.result, result.text) if messages else result.text

    def recorded(self, error: BaseException | None = None) -> None:
        """Tells whoever judged the call around this one that its outcome is on record already."""
        if error is not None and actions.is_interrupt(error):
            return
        if self.outer is not None and self.outer.call_id == self.action.call_id:
            self.outer.recorded = True


def wrap_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseTool.run`` with a judgement before and after."""

    @functools.wraps(run)
    def governed_run(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        governor = acting_governor()
        call = None if governor is None else _to_judge(governor, self, tool_input, kwargs)
        if governor is None or call is None:
            with CallRun(governor, kwargs):
                return run(self, tool_input, *args, **kwargs)

        def go(arguments: Mapping[str, Any]) -> Any:
            with CallRun(governor, kwargs):
                return run(self, call.input_with(arguments), *args, **kwargs)

        try:
            with standing_under(governor, kwargs.get("config"), _callbacks(args, kwargs)):
                result = govern_tool(governor, call.action, go, _reading, is_pause=actions.is_interrupt)
        except BaseException as error:
            call.recorded(error)
            raise
        call.recorded()
        return call.answer(result)

    return governed_run


def wrap_arun(arun: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """``BaseTool.arun`` with a judgement before and after."""

    @functools.wraps(arun)
    async def governed_arun(self: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        governor = acting_governor()
        call = None if governor is None else _to_judge(governor, self, tool_input, kwargs)
        if governor is None or call is None:
            with CallRun(governor, kwargs):
                return await arun(self, tool_input, *args, **kwargs)

        async def go(arguments: Mapping[str, Any]) -> Any:
            with CallRun(governor, kwargs):
                return await arun(self, call.input_with(arguments), *args, **kwargs)

        try:
            with standing_under(governor, kwargs.get("config"), _callbacks(args, kwargs)):
                result = await agovern_tool(governor, call.action, go, _reading, is_pause=actions.is_interrupt)
        except BaseException as error:
            call.recorded(error)
            raise
        call.recorded()
        return call.answer(result)

    return governed_arun


def _callbacks(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[3] if len(args) > 3 else kwargs.get("callbacks")


def _to_judge(governor: Governor, tool: BaseTool, tool_input: Any, options: Mapping[str, Any]) -> _Call | None:
    """The call if it has to be judged here, or None if its judgement was made before."""
    call_id = options.get("tool_call_id")
    outer = covered_call()
    if outer is not None and type(tool_input) is dict and outer.covers(governor, tool.name, tool_input, call_id):
        outer.recorded = False  # whatever was recorded of it as something else: this run of it is not on record yet
        return None  # the usual case: exactly what was judged, with nothing put in by the framework
    arguments = _model_arguments(tool, tool_input) if isinstance(tool_input, Mapping) else {_SINGLE: tool_input}
    if outer is not None and outer.covers(governor, tool.name, arguments, call_id):
        outer.recorded = False
        return None
    action = Action(
        Point.PRE_TOOL_CALL,
        name=tool.name,
        kind=actions.kind_of(tool.name, tool),
        arguments=arguments,
        agent=actions.agent_name(options.get("config") or {}) or actions.agent_name(),
        framework=actions.FRAMEWORK,
        call_id=call_id,
        native=tool,
    )
    return _Call(action, tool_input, outer)


def _model_arguments(tool: BaseTool, tool_input: Mapping[str, Any]) -> dict[str, Any]:
    """``tool_input`` without what the framework, not the model, puts in: what the schema shown to models hides.

    A tool whose schema is plain JSON hides nothing, so it is judged on everything that was passed.
    """
    shown = tool.args
    hidden = [key for key in tool_input if key not in shown]
    if not hidden or isinstance(tool.args_schema, Mapping):
        return dict(tool_input)
    schema: Any = tool.get_input_schema()
    known = {*schema.model_fields, *_parameters(tool)}
    return {key: value for key, value in tool_input.items() if key in shown or key not in known}


def _parameters(tool: BaseTool) -> set[str]:
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool._run
    return {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def _reading(result: Any) -> ToolReading:
    messages = actions.result_messages(result)
    text = actions.result_text(result) if messages else str(result)
    failed = any(message.status == "error" for message in messages)
    return ToolReading(text, "error" if failed else "ok")
