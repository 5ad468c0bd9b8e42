"""Governs tool calls where all of them pass: ``BaseTool.run`` and ``BaseTool.arun``. Installed by `instrumentor`.

A call that the middleware or a governed ``ToolNode`` has evaluated passes through (see
`lgov_core.instrumentation.evaluated_call`). Any other call is evaluated and recorded here, and so is its result. A denial is
what the tool returns: a tool message with status ``error`` if the call came from a model, its text otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation import Flow, foreign, wait
from lgov_core.instrumentation.evaluated_call import CoveredCall, covered_call
from lgov_core.instrumentation.methods import flow_method
from lgov_core.instrumentation.tool_call import tool_flow
from lgov_core.types import Action, Point
from lgov_langchain._internals import tool_function
from lgov_langchain.current_governor import acting_governor
from lgov_langchain.process_handler import agent_span, inside
from lgov_langchain.runs import FRAMEWORK, agent_name, is_pause
from lgov_langchain.tool_results import answer, kind_of, result_reading

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan

#: The argument of a tool that takes one string.
_SINGLE = "input"


def wrap_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseTool.run`` or ``arun`` with an evaluation before and after."""

    def steps(tool: BaseTool, tool_input: Any, *args: Any, **kwargs: Any) -> Flow[Any]:
        call = _uncovered_call(tool, tool_input, args, kwargs)
        if call is None:
            return (yield from wait(foreign(run, tool, tool_input, *args, **kwargs)))

        def go(arguments: Mapping[str, Any]) -> Any:
            return run(tool, call.input_with(arguments), *args, **kwargs)

        with call.recorded():
            result = yield from tool_flow(call.governor, call.action, go, result_reading, is_pause=is_pause)
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

    def input_with(self, arguments: Mapping[str, Any]) -> Any:
        """The input for the tool such that its arguments are ``arguments``."""
        if not isinstance(self.tool_input, Mapping):
            return arguments[_SINGLE]
        if arguments is self.action.arguments:
            return self.tool_input
        injected = {key: value for key, value in self.tool_input.items() if key not in self.action.arguments}
        return {**arguments, **injected}

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
    governor = acting_governor()
    if governor is None:
        return None
    call_id, config, outer = options.get("tool_call_id"), options.get("config"), covered_call()
    arguments = _model_arguments(tool, tool_input) if isinstance(tool_input, Mapping) else {_SINGLE: tool_input}
    forms = (arguments, tool_input) if isinstance(tool_input, Mapping) else (arguments,)
    if outer is not None and any(outer.covers(governor, tool.name, form, call_id) for form in forms):
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


def _model_arguments(tool: BaseTool, tool_input: Mapping[str, Any]) -> dict[str, Any]:
    """``tool_input`` without what the framework, not the model, puts in: what the schema shown to models hides.

    A tool whose schema is plain JSON hides nothing, so all that was passed is evaluated.
    """
    shown = tool.args
    hidden = [key for key in tool_input if key not in shown]
    if not hidden or isinstance(tool.args_schema, Mapping):
        return dict(tool_input)
    schema: Any = tool.get_input_schema()
    known = {*schema.model_fields, *_parameters(tool)}
    return {key: value for key, value in tool_input.items() if key in shown or key not in known}


def _parameters(tool: BaseTool) -> set[str]:
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool_function(tool)
    return {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
