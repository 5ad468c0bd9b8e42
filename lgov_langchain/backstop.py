"""Judges tool calls where all of them pass: ``BaseTool.run`` and ``BaseTool.arun``. Installed by `arming`.

A call that the middleware or a governed ``ToolNode`` has judged passes through untouched (see
`lgov_core.coverage`). Any other call is judged, recorded and its result judged here. A denial is what the tool returns:
a tool message with status ``error`` if the call came from a model, its text otherwise.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lgov_core.coverage import CoveredCall, covered_call
from lgov_core.governed_call import GovernedResult, ToolReading, agovern_tool, govern_tool
from lgov_core.types import Action, Point
from lgov_langchain import actions
from lgov_langchain.arming import acting_governor
from lgov_langchain.watching import standing_under

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from lgov_core.governor import Governor

#: What a tool that takes one string is judged on.
_SINGLE = "input"


@dataclass(frozen=True, slots=True)
class _Call:
    """One execution that has to be judged: what it is, what was passed in, the judged call it runs inside, if any."""

    action: Action
    passed: inspect.BoundArguments
    outer: CoveredCall | None

    @property
    def surroundings(self) -> tuple[Any, Any]:
        """LangChain's configuration and callbacks of the call, which say what it runs under."""
        return self.passed.arguments.get("config"), self.passed.arguments.get("callbacks")

    def with_arguments(self, arguments: Mapping[str, Any]) -> inspect.BoundArguments:
        """What to pass on so that the tool runs with ``arguments``."""
        tool_input = self.passed.arguments["tool_input"]
        if not isinstance(tool_input, Mapping):
            self.passed.arguments["tool_input"] = arguments[_SINGLE]
        elif arguments is not self.action.arguments:
            injected = {key: value for key, value in tool_input.items() if key not in self.action.arguments}
            self.passed.arguments["tool_input"] = {**arguments, **injected}
        return self.passed

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
    signature = inspect.signature(run)

    @functools.wraps(run)
    def governed_run(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        governor = acting_governor()
        call = None if governor is None else _to_judge(governor, self, signature.bind(self, *args, **kwargs))
        if governor is None or call is None:
            return run(self, *args, **kwargs)

        def go(arguments: Mapping[str, Any]) -> Any:
            passed = call.with_arguments(arguments)
            return run(*passed.args, **passed.kwargs)

        try:
            with standing_under(governor, *call.surroundings):
                result = govern_tool(governor, call.action, go, _reading, is_pause=actions.is_interrupt)
        except BaseException as error:
            call.recorded(error)
            raise
        call.recorded()
        return call.answer(result)

    return governed_run


def wrap_arun(arun: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """``BaseTool.arun`` with a judgement before and after."""
    signature = inspect.signature(arun)

    @functools.wraps(arun)
    async def governed_arun(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        governor = acting_governor()
        call = None if governor is None else _to_judge(governor, self, signature.bind(self, *args, **kwargs))
        if governor is None or call is None:
            return await arun(self, *args, **kwargs)

        async def go(arguments: Mapping[str, Any]) -> Any:
            passed = call.with_arguments(arguments)
            return await arun(*passed.args, **passed.kwargs)

        try:
            with standing_under(governor, *call.surroundings):
                result = await agovern_tool(governor, call.action, go, _reading, is_pause=actions.is_interrupt)
        except BaseException as error:
            call.recorded(error)
            raise
        call.recorded()
        return call.answer(result)

    return governed_arun


def _to_judge(governor: Governor, tool: BaseTool, passed: inspect.BoundArguments) -> _Call | None:
    """The call if it has to be judged here, or None if its judgement was made before."""
    tool_input, call_id = passed.arguments["tool_input"], passed.arguments.get("tool_call_id")
    arguments = _model_arguments(tool, tool_input) if isinstance(tool_input, Mapping) else {_SINGLE: tool_input}
    outer = covered_call()
    if outer is not None and outer.covers(governor, tool.name, arguments, call_id):
        return None
    action = Action(
        Point.PRE_TOOL_CALL,
        name=tool.name,
        kind=actions.kind_of(tool.name, tool),
        arguments=arguments,
        agent=actions.agent_name(passed.arguments.get("config") or {}) or actions.agent_name(),
        framework=actions.FRAMEWORK,
        call_id=call_id,
        native=tool,
    )
    return _Call(action, passed, outer)


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
