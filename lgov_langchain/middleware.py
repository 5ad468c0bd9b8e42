"""Enforces decisions in agents made with ``langchain.agents.create_agent``."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from lgov_core.coverage import CoveredCall, covering
from lgov_core.endpoint_headers import demand_endpoint
from lgov_core.errors import PolicyDenied
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, ModelCallFailed, Point, ToolOutcome, new_id
from lgov_langchain import actions
from lgov_langchain.attribution import headers_for
from lgov_langchain.outcomes import failure_of, outcome_of, result_action

if TYPE_CHECKING:
    from langchain.agents.middleware.types import ModelRequest
    from langchain_core.messages import AIMessage
    from langgraph.prebuilt.tool_node import ToolCallRequest

    from lgov_core.governor import Governor


class LgovMiddleware(AgentMiddleware[Any, Any, Any]):
    """Puts every model call and tool call of an agent under ``governor``::

        agent = create_agent(model, tools, middleware=[LgovMiddleware(governor)])

    A denied tool call does not run: the model reads the denial as the tool's error and goes on, and the other calls
    it made beside it are not touched. A denied model call is not sent and a denied reply is dropped together with the
    tool calls it proposed: the denial stands in its place and ends the run. User text and final answers are judged in
    the same step (``input``, ``output``), so the agent's graph keeps its shape and what it streams keeps its form. A
    decision that says abort raises `PolicyDenied` out of the agent. An exception out of a tool is recorded and goes
    on as it would have.

    ``endpoint_headers`` controls the headers that attribute model calls to rollouts at lgov's own endpoint: None adds
    them where ``LGOV_ENDPOINT`` says so, True demands that it is set (`SettingsError` otherwise), False never adds
    them. They are never sent to another host.

    Works in synchronous, asynchronous, streamed and batched agents; one instance may serve any number of agents,
    threads and tasks. Streamed tokens of a reply reach a streaming caller before the reply can be judged. Fails
    closed.
    """

    def __init__(self, governor: Governor, *, endpoint_headers: bool | None = None) -> None:
        super().__init__()
        if endpoint_headers:
            demand_endpoint()
        self.governor = governor
        self.tools = []
        self._endpoint_headers = endpoint_headers is not False

    # ------------------------------------------------------------------ tools

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Judges the call, runs it if it may run, records what came of it and judges the result."""
        action, started, clock = actions.tool_action(request), time.time(), time.perf_counter()
        decision = self.governor.decide(action)
        if decision.blocks:
            self.governor.record(ToolOutcome(action, "denied", decision=decision, started_at=started))
            return _refusal(decision, request)
        request, covered = self._permitted(request, decision)
        try:
            with covering(covered):
                result = handler(request)
        except BaseException as error:
            if not covered.recorded and not actions.is_interrupt(error):
                self.governor.record(failure_of(action, decision, error, started, clock))
            raise
        if not covered.recorded:
            self.governor.record(outcome_of(action, decision, request, result, started, clock))
        return _judged_result(self.governor.decide(result_action(action, result)), request, result)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """As `wrap_tool_call`, for asynchronous agents."""
        action, started, clock = actions.tool_action(request), time.time(), time.perf_counter()
        decision = await self.governor.adecide(action)
        if decision.blocks:
            await self.governor.arecord(ToolOutcome(action, "denied", decision=decision, started_at=started))
            return _refusal(decision, request)
        request, covered = self._permitted(request, decision)
        try:
            with covering(covered):
                result = await handler(request)
        except BaseException as error:
            if not covered.recorded and not actions.is_interrupt(error):
                # Not awaited: a cancelled task has no more time to wait, and the record comes before everything else.
                self.governor.record(failure_of(action, decision, error, started, clock))
            raise
        if not covered.recorded:
            await self.governor.arecord(outcome_of(action, decision, request, result, started, clock))
        return _judged_result(await self.governor.adecide(result_action(action, result)), request, result)

    def _permitted(self, request: ToolCallRequest, decision: Decision) -> tuple[ToolCallRequest, CoveredCall]:
        if decision.arguments is not None:
            request = request.override(tool_call={**request.tool_call, "args": dict(decision.arguments)})
        call = request.tool_call
        return request, CoveredCall(self.governor, call["name"], call["args"], call["id"])

    # ------------------------------------------------------------------ models

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Judges the user's new text and the call, sends it if it may be sent, and judges the reply."""
        steps = self._model_call(request)
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(step, Action):
                answer = self.governor.decide(step)
            elif isinstance(step, ToolOutcome):
                answer = self.governor.record(step)
            else:
                try:
                    answer = handler(step)
                except BaseException as error:
                    steps.throw(error)
                    raise

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        """As `wrap_model_call`, for asynchronous agents."""
        steps = self._model_call(request)
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(step, Action):
                answer = await self.governor.adecide(step)
            elif isinstance(step, ToolOutcome):
                answer = await self.governor.arecord(step)
            else:
                try:
                    answer = await handler(step)
                except BaseException as error:
                    steps.throw(error)
                    raise

    def _model_call(self, request: ModelRequest[Any]) -> Generator[Any, Any, Any]:
        """One model call as a sequence of steps, so that the synchronous and asynchronous ways cannot differ.

        Yields an `Action` to be judged, a `ToolOutcome` to be recorded, or the request to be sent; gets the
        `Decision`, nothing, or the `ModelResponse` (or what sending it raised); returns what `wrap_model_call` returns.
        """
        rewritten: list[Any] = []
        for message in actions.new_user_messages(request):
            action = actions.model_action(request, Point.INPUT, text=str(message.text))
            decision: Decision = yield action
            if decision.blocks:
                return _refused_call(decision)
            if decision.text is not None:
                changed = message.model_copy(update={"content": decision.text})
                rewritten.append(changed)
                messages = [changed if one is message else one for one in request.messages]
                request = request.override(messages=messages)
        operation = new_id("op")
        action = actions.model_action(request, operation_id=operation)
        decision = yield action
        if decision.blocks:
            return _refused_call(decision)
        if decision.arguments is not None:
            request = actions.with_messages(request, decision.arguments["messages"])
        try:
            response = yield self._attributed(request)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                refused = actions.was_refused(error)
                self.governor.observe(ModelCallFailed(action, type(error).__name__, refused))
            raise
        response = yield from _judged_reply(request, response, operation)
        if rewritten:  # The conversation must not bring the replaced text back at the next call.
            return ExtendedModelResponse(response, Command(update={"messages": rewritten}))
        return response

    def _attributed(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if not self._endpoint_headers:
            return request
        headers = headers_for(request.model, current_scope(), actions.agent_name())
        if not headers:
            return request
        settings = request.model_settings
        merged = {**(settings.get("extra_headers") or {}), **headers}
        return request.override(model_settings={**settings, "extra_headers": merged})


# ---------------------------------------------------------------------- tools, without the governor


def _refusal(decision: Decision, request: ToolCallRequest) -> ToolMessage:
    if decision.abort:
        raise PolicyDenied(decision)
    return actions.denial_message(decision, request.tool_call)


def _judged_result(decision: Decision, request: ToolCallRequest, result: Any) -> Any:
    if decision.blocks:
        return _refusal(decision, request)
    return result if decision.text is None else actions.with_result_text(result, decision.text)


# ---------------------------------------------------------------------- models, without the governor


def _refused_call(decision: Decision, instead_of: AIMessage | None = None) -> ModelResponse[Any]:
    if decision.abort:
        raise PolicyDenied(decision)
    return ModelResponse(result=[actions.denial_reply(decision, instead_of)])


def _judged_reply(request: ModelRequest[Any], response: ModelResponse[Any], operation: str) -> Generator[Any, Any, Any]:
    reply = actions.reply_of(response.result)
    if reply is None:
        return response
    calls = [{"id": call["id"], "name": call["name"], "args": call["args"]} for call in reply.tool_calls]
    action = actions.model_action(
        request,
        Point.POST_MODEL_CALL,
        text=str(reply.text),
        arguments={"tool_calls": calls, **actions.usage_of(reply)},
        operation_id=operation,
        call_id=reply.response_metadata.get("id") or reply.id,
    )
    decision: Decision = yield action
    if decision.blocks:
        return _refused_call(decision, reply)
    if decision.text is not None:
        # An answer that was parsed out of this text (no call carries it) must not survive beside the new text.
        structured = response.structured_response if reply.tool_calls else None
        reworded = actions.with_text(reply, decision.text)
        result = [reworded if message is reply else message for message in response.result]
        response, reply = ModelResponse(result=result, structured_response=structured), reworded
    for call in reply.invalid_tool_calls:  # Nothing can run, so there is nothing to judge, but it is not lost.
        broken = Action(
            Point.PRE_TOOL_CALL,
            name=call.get("name") or "?",
            agent=action.agent,
            framework=actions.FRAMEWORK,
            call_id=call.get("id"),
            text=call.get("args"),
        )
        yield ToolOutcome(broken, "invalid_args", error_type="InvalidToolCall", error=call.get("error"))
    if reply.tool_calls and response.structured_response is None:
        return response
    decision = yield actions.model_action(request, Point.OUTPUT, text=_answer(reply, response))
    if decision.blocks:
        return _refused_call(decision, reply)
    if decision.text is None:
        return response
    return ModelResponse(result=[reply.model_copy(update={"content": decision.text, "tool_calls": []})])


def _answer(reply: AIMessage, response: ModelResponse[Any]) -> str:
    """The final answer in words: the text, or the arguments of the call that carries a structured answer."""
    if response.structured_response is None or not reply.tool_calls:
        return str(reply.text)
    return actions.json_text(reply.tool_calls[0]["args"])
