"""Enforces decisions in agents made with ``langchain.agents.create_agent``."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langgraph.types import Command

from lgov_core.instrumentation import json_text
from lgov_core.instrumentation.endpoint_headers import demand_endpoint
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.scope import current_scope
from lgov_langchain import actions
from lgov_langchain.attribution import headers_for, with_headers
from lgov_langchain.model_calls import (
    Changed,
    Reply,
    Steps,
    Verdict,
    adrive,
    drive,
    heard,
    judged,
    open_call,
    watched,
)
from lgov_langchain.reply_ids import keep_reply_ids
from lgov_langchain.tool_calls import GovernedToolCalls
from lgov_langchain.watching import standing_under, watch_process

if TYPE_CHECKING:
    from types import CoroutineType

    from langchain.agents.middleware.types import ModelRequest
    from langchain_core.messages import ToolMessage
    from langgraph.prebuilt.tool_node import ToolCallRequest

    from lgov_core.instrumentation import Governor


class LgovMiddleware(AgentMiddleware[Any, Any, Any]):
    """Puts every model call and tool call of an agent under ``governor``::

        agent = create_agent(model, tools, middleware=[LgovMiddleware(governor)])

    A denied tool call does not run: the model reads the denial as the tool's error and goes on, and the other calls
    it made beside it are not touched. A denied model call is not sent and a denied reply is dropped together with the
    tool calls it proposed: the denial stands in its place and ends the run. User text and final answers are judged in
    the same step (``input``, ``output``), so the agent's graph keeps its shape and what it streams keeps its form. A
    decision that says abort raises `PolicyDenied` out of the agent. An exception out of a tool is recorded and goes
    on as it would have. Every call becomes a span under its agent's, and is the current one of OpenTelemetry while it
    runs.

    ``endpoint_headers`` controls the headers that attribute model calls to rollouts at lgov's own endpoint: None adds
    them where ``LGOV_ENDPOINT`` says so, True demands that it is set (`SettingsError` otherwise), False never adds
    them. They are never sent to another host.

    Put it first: what stands before it in the list is not seen. Tool calls and messages that what stands after it
    changes are judged again before they go on; a decision that wants others is a denial there. Works in synchronous,
    asynchronous, streamed and batched agents; one instance may serve any number of agents, threads and tasks.
    Streamed tokens of a reply reach a streaming caller before the reply can be judged. Fails closed.
    """

    def __init__(self, governor: Governor, *, endpoint_headers: bool | None = None) -> None:
        super().__init__()
        if endpoint_headers:
            demand_endpoint()
        self.governor = governor
        self.tools = []
        self._endpoint_headers = endpoint_headers is not False
        self._tool_calls = GovernedToolCalls(governor)
        for name in ("wrap_tool_call", "awrap_tool_call", "wrap_model_call", "awrap_model_call"):
            setattr(self, name, _with_signature(getattr(self, name)))
        watch_process()
        keep_reply_ids()

    # ------------------------------------------------------------------ tools

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Judges the call, runs it if it may run, records what came of it and judges the result."""
        return self._tool_calls.wrap_tool_call(request, handler)

    # The two asynchronous ones are no coroutine functions: around one of those langchain makes, for LangSmith's sake and
    # also where nothing is sent there, two trips to a thread and a task, which cost more than all that happens here.

    def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> CoroutineType[Any, Any, ToolMessage | Command[Any]]:
        """As `wrap_tool_call`, for asynchronous agents."""
        return self._tool_calls.awrap_tool_call(request, handler)

    # ------------------------------------------------------------------ models

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Judges the user's new text and the call, sends it if it may be sent, and judges the reply."""
        if self.governor.observe_only:
            with standing_under(self.governor):
                call, sent = self._open(request), _messages(request)
                with watched(self.governor, call, sent):
                    response = handler(self._attributed(request))
                for lost in heard(call, _reply_in(response)):
                    self.governor.record(lost)
                return response
        came: list[ModelResponse[Any]] = []

        def send(messages: list[BaseMessage]) -> Reply:
            came.append(handler(self._to_send(request, messages)))
            return _reply(came[0])

        with standing_under(self.governor):
            call, steps = self._call(request)
            return _response(drive(self.governor, call, steps, send), came)

    def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> CoroutineType[Any, Any, Any]:
        """As `wrap_model_call`, for asynchronous agents."""
        return self._awrap_model_call(request, handler)

    async def _awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        if self.governor.observe_only:
            with standing_under(self.governor):
                call, sent = self._open(request), _messages(request)
                with watched(self.governor, call, sent):
                    response = await handler(self._attributed(request))
                for lost in heard(call, _reply_in(response)):
                    await self.governor.arecord(lost)
                return response
        came: list[ModelResponse[Any]] = []

        async def send(messages: list[BaseMessage]) -> Reply:
            came.append(await handler(self._to_send(request, messages)))
            return _reply(came[0])

        with standing_under(self.governor):
            call, steps = self._call(request)
            return _response(await adrive(self.governor, call, steps, send), came)

    def _open(self, request: ModelRequest[Any]) -> ModelCall:
        keep_reply_ids()  # the model's package may have been imported since
        return open_call(self.governor, request.model, request)

    def _call(self, request: ModelRequest[Any]) -> tuple[ModelCall, Steps]:
        call = self._open(request)
        return call, judged(
            call, _messages(request), lambda: actions.reply_limit(request.model, request.model_settings or {})
        )

    def _to_send(self, request: ModelRequest[Any], messages: list[BaseMessage]) -> ModelRequest[Any]:
        return self._attributed(_with_messages(request, messages))

    def _attributed(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if not self._endpoint_headers or (scope := current_scope()) is None:
            return request
        headers = headers_for(request.model, scope, actions.agent_name())
        return request.override(model_settings=with_headers(request.model_settings, headers)) if headers else request


class InnermostMiddleware(AgentMiddleware[Any, Any, Any]):
    """Stands behind all other middleware of an agent whose `LgovMiddleware` asks ``governor`` too, in an instrumented process.

    What the others made of a model call (a system prompt of their own, an edited conversation) is judged here in the
    place of the call as it began, so that it remains one call with one span, which is counted and paid once. A model call
    that they make beside it does not come here, and is a call of its own. A denial stands in place of the reply.
    """

    def __init__(self, governor: Governor) -> None:
        super().__init__()
        self.governor = governor
        self.tools = []
        for name in ("wrap_model_call", "awrap_model_call"):
            setattr(self, name, _with_signature(getattr(self, name)))

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Judges the call if it is not what it was when it was judged, and sends it."""
        changed = Changed.of(self.governor, _messages(request))
        if changed is None:
            return handler(request)
        action = changed.judgement()
        if action is not None and (denial := changed.decided(self.governor.decide(action))) is not None:
            return ModelResponse(result=[denial])
        with changed.sending():
            return handler(_with_messages(request, changed.messages))

    def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> CoroutineType[Any, Any, Any]:
        """As `wrap_model_call`, for asynchronous agents."""
        return self._awrap_model_call(request, handler)

    async def _awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> Any:
        changed = Changed.of(self.governor, _messages(request))
        if changed is None:
            return await handler(request)
        action = changed.judgement()
        if action is not None and (denial := changed.decided(await self.governor.adecide(action))) is not None:
            return ModelResponse(result=[denial])
        with changed.sending():
            return await handler(_with_messages(request, changed.messages))


def _with_signature(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``method`` as a function that holds its signature.

    LangChain wraps each for LangSmith, which asks for the signature at every call, whether it is on or not; of a bound
    method it would be made anew each time.
    """

    def wrap(request: Any, handler: Any) -> Any:
        return method(request, handler)

    wrap.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return wrap


def _messages(request: ModelRequest[Any]) -> list[BaseMessage]:
    """The messages of the call in the order in which they are sent, the system message first."""
    return [request.system_message, *request.messages] if request.system_message else list(request.messages)


def _with_messages(request: ModelRequest[Any], messages: list[BaseMessage]) -> ModelRequest[Any]:
    if _are(messages, _messages(request)):
        return request
    system = messages[0] if messages and isinstance(messages[0], SystemMessage) else None
    rest: Any = messages if system is None else messages[1:]
    return request.override(system_message=system, messages=rest)


def _are(messages: Sequence[BaseMessage], others: Sequence[BaseMessage]) -> bool:
    return len(messages) == len(others) and all(map(operator.is_, messages, others))


def _reply_in(response: ModelResponse[Any]) -> AIMessage | None:
    return actions.reply_of(response.result)


def _reply(response: ModelResponse[Any]) -> Reply:
    message = actions.reply_of(response.result)
    if message is None or response.structured_response is None or not message.tool_calls:
        return Reply(None, None) if message is None else Reply.of(message)
    # The call carries the agent's answer: nothing runs, and its arguments are what the caller gets.
    return Reply(message, json_text(message.tool_calls[0]["args"]))


def _response(verdict: Verdict, came: Sequence[ModelResponse[Any]]) -> Any:
    """What the agent gets."""
    response = came[0] if came else None
    if response is None or (verdict.changed == "all" and verdict.message is not None):
        assert verdict.message is not None, "what is refused has words"
        response = ModelResponse(result=[verdict.message])
    elif verdict.changed == "text" and verdict.message is not None:
        before = actions.reply_of(response.result)
        # An answer that was parsed out of this text (no call carries it) must not survive beside the new text.
        structured = response.structured_response if verdict.message.tool_calls else None
        result = [verdict.message if message is before else message for message in response.result]
        response = ModelResponse(result=result, structured_response=structured)
    if verdict.rewritten and came:  # The conversation must not bring the replaced text back at the next call.
        return ExtendedModelResponse(response, Command(update={"messages": list(verdict.rewritten)}))
    return response
