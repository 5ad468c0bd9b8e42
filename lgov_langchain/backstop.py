"""Judges tool calls where all of them pass: ``BaseTool.run`` and ``BaseTool.arun``. Installed by `arming`.

A call that the middleware has judged passes through untouched (see `coverage`). Any other call is judged, recorded
and its result judged here. A denial is what the tool returns: a tool message with status ``error`` if the call came
from a model, its text otherwise.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ToolMessage

from lgov_core.coverage import CoveredCall, covered_call, covering
from lgov_core.errors import PolicyDenied
from lgov_core.types import Action, Decision, Point, ToolOutcome, new_id
from lgov_langchain import actions
from lgov_langchain.arming import acting_governor

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from lgov_core.governor import Governor

#: What a tool that takes one string is judged on.
_SINGLE = "input"


@dataclass(frozen=True, slots=True)
class _Call:
    """One execution that has to be judged: what it is, what was passed in, the judged call it runs inside, if any."""

    action: Action
    tool_input: Any
    outer: CoveredCall | None
    started_at: float
    clock: float

    def outcome(self, status: Any, decision: Decision, **fields: Any) -> ToolOutcome:
        duration = 0.0 if status == "denied" else time.perf_counter() - self.clock
        return ToolOutcome(
            self.action, status, decision=decision, started_at=self.started_at, duration_s=duration, **fields
        )

    def returned(self, decision: Decision, result: Any) -> ToolOutcome:
        text = _text(result)
        failed = any(message.status == "error" for message in actions.result_messages(result))
        return self.outcome("error" if failed else "ok", decision, result=text, error=text if failed else None)

    def raised(self, decision: Decision, error: BaseException) -> ToolOutcome:
        status = actions.failure_status(error)
        return self.outcome(status, decision, error_type=type(error).__name__, error=str(error))

    def mark_recorded(self) -> None:
        """Tells the middleware around this call that its outcome is on record already."""
        if self.outer is not None and self.outer.call_id == self.action.call_id:
            self.outer.recorded = True


def wrap_run(run: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseTool.run`` with a judgement before and after."""
    signature = inspect.signature(run)

    @functools.wraps(run)
    def governed_run(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        governor = acting_governor()
        bound = signature.bind(self, *args, **kwargs)
        call = None if governor is None else _to_judge(governor, self, bound.arguments)
        if governor is None or call is None:
            return run(self, *args, **kwargs)
        decision = governor.decide(call.action)
        if decision.blocks:
            governor.record(call.outcome("denied", decision))
            call.mark_recorded()
            return _refusal(decision, call.action)
        bound.arguments["tool_input"] = _permitted_input(call, decision)
        try:
            with covering(_covered(governor, call, decision)):
                result = run(*bound.args, **bound.kwargs)
        except BaseException as error:
            if not actions.is_interrupt(error):
                governor.record(call.raised(decision, error))
                call.mark_recorded()
            raise
        governor.record(call.returned(decision, result))
        call.mark_recorded()
        return _judged_result(governor.decide(_result_action(call.action, result)), call.action, result)

    return governed_run


def wrap_arun(arun: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """``BaseTool.arun`` with a judgement before and after."""
    signature = inspect.signature(arun)

    @functools.wraps(arun)
    async def governed_arun(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        governor = acting_governor()
        bound = signature.bind(self, *args, **kwargs)
        call = None if governor is None else _to_judge(governor, self, bound.arguments)
        if governor is None or call is None:
            return await arun(self, *args, **kwargs)
        decision = await governor.adecide(call.action)
        if decision.blocks:
            await governor.arecord(call.outcome("denied", decision))
            call.mark_recorded()
            return _refusal(decision, call.action)
        bound.arguments["tool_input"] = _permitted_input(call, decision)
        try:
            with covering(_covered(governor, call, decision)):
                result = await arun(*bound.args, **bound.kwargs)
        except BaseException as error:
            if not actions.is_interrupt(error):
                governor.record(call.raised(decision, error))  # not awaited: the task may be cancelled
                call.mark_recorded()
            raise
        await governor.arecord(call.returned(decision, result))
        call.mark_recorded()
        return _judged_result(await governor.adecide(_result_action(call.action, result)), call.action, result)

    return governed_arun


def _to_judge(governor: Governor, tool: BaseTool, passed: Mapping[str, Any]) -> _Call | None:
    """The call if it has to be judged here, or None if its judgement was made before."""
    tool_input, call_id = passed["tool_input"], passed.get("tool_call_id")
    arguments = _model_arguments(tool, tool_input) if isinstance(tool_input, Mapping) else {_SINGLE: tool_input}
    outer = covered_call()
    if outer is not None and outer.covers(governor, tool.name, arguments, call_id):
        return None
    config = passed.get("config") or {}
    action = Action(
        Point.PRE_TOOL_CALL,
        name=tool.name,
        arguments=arguments,
        agent=actions.agent_name(config) or actions.agent_name(),
        framework=actions.FRAMEWORK,
        call_id=call_id,
        operation_id=new_id("op"),
        native=tool,
    )
    return _Call(action, tool_input, outer, time.time(), time.perf_counter())


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


def _permitted_input(call: _Call, decision: Decision) -> Any:
    if decision.arguments is None:
        return call.tool_input
    if not isinstance(call.tool_input, Mapping):
        return decision.arguments[_SINGLE]
    injected = {key: value for key, value in call.tool_input.items() if key not in call.action.arguments}
    return {**decision.arguments, **injected}


def _covered(governor: Governor, call: _Call, decision: Decision) -> CoveredCall:
    arguments = call.action.arguments if decision.arguments is None else decision.arguments
    return CoveredCall(governor, call.action.name, arguments, call.action.call_id)


def _refusal(decision: Decision, action: Action) -> ToolMessage | str:
    if decision.abort:
        raise PolicyDenied(decision)
    if action.call_id is None:
        return decision.tell()
    return actions.denial_message(decision, {"name": action.name, "id": action.call_id})


def _text(result: Any) -> str:
    return actions.result_text(result) if actions.result_messages(result) else str(result)


def _result_action(action: Action, result: Any) -> Action:
    return replace(action, point=Point.POST_TOOL_CALL, text=_text(result), native=result)


def _judged_result(decision: Decision, action: Action, result: Any) -> Any:
    if decision.blocks:
        return _refusal(decision, action)
    if decision.text is None:
        return result
    return actions.with_result_text(result, decision.text) if actions.result_messages(result) else decision.text
