"""Enforces decisions in agents made with ``langchain.agents.create_agent``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ExtendedModelResponse, ModelResponse
from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command

from lgov_core.instrumentation import Flow, arun_flow, readable_json, run_flow
from lgov_core.instrumentation.endpoint_headers import demand_endpoint
from lgov_langchain.messages import first_reply, with_result_ids
from lgov_langchain.model_calls import ModelPrompt, ModelReply, Result, attributed, govern_model_call
from lgov_langchain.process_handler import SentCall, agent_above, process_handler, send_changed
from lgov_langchain.tools import GovernedToolCalls

if TYPE_CHECKING:
    from types import CoroutineType

    from langchain.agents.middleware.types import ModelRequest

    from lgov_core.instrumentation import Governor


class _ModelCallMiddleware(AgentMiddleware[Any, Any, Any]):
    """The synchronous and the asynchronous hook for model calls, over one flow.

    ``awrap_model_call`` returns a coroutine and is not a coroutine function: LangChain wraps those for LangSmith, and then each
    call waits for a thread of the default executor, twice.
    """

    def _govern(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Flow[Any]:
        raise NotImplementedError

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Evaluates the call, sends it if it may be sent, and evaluates the reply."""
        return run_flow(self._govern(request, handler))

    def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> CoroutineType[Any, Any, Any]:
        """As `wrap_model_call`, for asynchronous agents."""
        return arun_flow(self._govern(request, handler))


class LgovMiddleware(GovernedToolCalls, _ModelCallMiddleware):
    """Puts every model call and tool call of an agent under ``governor``::

        agent = create_agent(model, tools, middleware=[LgovMiddleware(governor)])

    A denied tool call does not run: the model reads the denial as the tool's error and goes on, and its other calls of the
    same reply run. A denied model call is not sent, and a denied reply is dropped together with its tool calls: the denial
    is returned in its place and ends the run. User text and final answers are evaluated in the same step (``input``,
    ``output``), so the agent's graph and its stream of updates keep their form. A decision that says abort raises
    `PolicyDenied` out of the agent. What a tool raises is recorded and raised on. Every call becomes a span below its
    agent's, and is the current one of OpenTelemetry while it runs.

    ``endpoint_headers`` controls the headers that attribute model calls to rollouts at lgov's own endpoint: None adds
    them where ``LGOV_ENDPOINT`` says so, True demands that it is set (`SettingsError` otherwise), False never adds
    them. They are never sent to another host.

    Put it first: middleware before it in the list is not governed. Tool calls and messages that middleware after it changes
    are evaluated again before they run or are sent; a decision that would change them once more is a denial there. Works in
    synchronous, asynchronous, streamed and batched agents; any number of agents, threads and tasks may share one instance.
    Streamed tokens of a reply reach the reader before the reply can be evaluated. Fails closed.
    """

    has_own_tasks = True  # ``create_agent`` sends each call on its own

    def __init__(self, governor: Governor, *, endpoint_headers: bool | None = None) -> None:
        super().__init__(governor)
        if endpoint_headers:
            demand_endpoint()
        self.tools = []
        self._endpoint_headers = endpoint_headers is not False
        process_handler()

    def _govern(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Flow[Any]:
        responses: list[ModelResponse[Any]] = []

        def send(sent: SentCall) -> Flow[ModelReply]:
            to_send = _with_messages(request, sent.messages)
            if self._endpoint_headers:
                to_send = to_send.override(model_settings=attributed(to_send.model, to_send.model_settings or {}))
            responses.append((yield from sent.send(partial(handler, to_send))))
            return _reply(responses[0])

        settings = {**(request.model_settings or {}), "tools": [convert_to_openai_tool(tool) for tool in request.tools]}
        prompt = ModelPrompt(request.model, _messages(request), settings, request, agent_above(self.governor))
        result = yield from govern_model_call(self.governor, prompt, send)
        return _response(result, responses[0] if responses else None)


class InstrumentedLgovMiddleware(LgovMiddleware):
    """The middleware of an instrumented process, with its own name: LangChain accepts only one middleware of a name."""


class InnermostMiddleware(_ModelCallMiddleware):
    """The last middleware of an agent in an instrumented process, for what the others made of a model call.

    A changed call (a system prompt of their own, an edited conversation) is evaluated here in place of the call as it began,
    so that it remains one call with one span, which is counted and paid once. A model call that they make beside it does not
    pass here, and is a call of its own. A denial is returned in place of the reply.
    """

    def __init__(self, governor: Governor) -> None:
        super().__init__()
        self.governor = governor
        self.tools = []

    def _govern(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Flow[Any]:
        def send(messages: Sequence[BaseMessage]) -> Any:
            return handler(_with_messages(request, messages))

        return send_changed(self.governor, _messages(request), send)


def _messages(request: ModelRequest[Any]) -> list[BaseMessage]:
    """The messages of the call in the order in which they are sent, the system message first."""
    return [request.system_message, *request.messages] if request.system_message else list(request.messages)


def _with_messages(request: ModelRequest[Any], messages: Sequence[BaseMessage]) -> ModelRequest[Any]:
    if list(map(id, messages)) == list(map(id, _messages(request))):
        return request
    system = messages[0] if messages and isinstance(messages[0], SystemMessage) else None
    rest: Any = list(messages if system is None else messages[1:])
    return request.override(system_message=system, messages=rest)


def _reply(response: ModelResponse[Any]) -> ModelReply:
    message = first_reply(response.result)
    if message is None or response.structured_response is None or not message.tool_calls:
        return ModelReply(None, None) if message is None else ModelReply.of(message)
    # The call carries the agent's answer: nothing runs, and its arguments are what the caller gets.
    return ModelReply(message, readable_json(message.tool_calls[0]["args"]))


def _response(result: Result, response: ModelResponse[Any] | None) -> Any:
    """Returns the response for the agent. ``response`` is the model's, None if the call was not sent."""
    message = result.message
    if response is None or (result.changed == "all" and message is not None):
        assert message is not None, "a call that is not sent has a denial"
        new = ModelResponse(result=[message])
    elif result.changed == "text" and message is not None:
        before = first_reply(response.result)
        # An answer that was parsed out of this text (no call carries it) must not survive beside the new text.
        structured = response.structured_response if message.tool_calls else None
        assert before is not None, "the text of a reply was changed"
        new = ModelResponse(with_result_ids(response.result, before, message), structured)
    else:
        new = response
    if result.rewritten and response is not None:  # the conversation must not bring the replaced text back later
        return ExtendedModelResponse(new, Command(update={"messages": list(result.rewritten)}))
    return new
