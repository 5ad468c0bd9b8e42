"""Governed model calls, for the models of an instrumented process and for those that a program gives to the SDK itself.

A call is a `ModelPort` of the one model flow. A reply is shown to the SDK once it has been judged, or passed on as it comes
where nothing judges replies. Acts that the SDK offers no other place to stop (hand-offs, acts on a computer) are judged here
too.
"""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from agents import Model, ModelProvider, ModelResponse, MultiProvider
from openai.types.responses import ResponseCompletedEvent, ResponseFunctionToolCall

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Flow, Governor
from lgov_core.instrumentation.conversation_memory import UserText, prefix_digests
from lgov_core.instrumentation.live_span import model_call_covered
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.instrumentation.model_flow import Choice, ModelPort, ReplyPart, model_flow
from lgov_core.instrumentation.streams import Emit, arun_stream, pieces_flow
from lgov_core.types import Action, Decision, Point
from lgov_openai_agents import items
from lgov_openai_agents._internals import RunEndCleanup
from lgov_openai_agents.items import event_key, events_of, failure_in, is_text, response_of
from lgov_openai_agents.proposals import (
    Denials,
    ModelRequest,
    answer_to,
    answered,
    can_be_answered,
    judge_proposals_flow,
    model_name,
    next_request,
    without_denied_tools_flow,
)
from lgov_openai_agents.runs import RunMemory, SdkRun, current_run, parent_in

Ask = Callable[[ModelRequest], AsyncIterator[Any]]


class IncompleteReply(Exception):
    """A stream ended without a whole reply."""


class AgentsCall(ModelPort[ModelResponse, None]):
    """One model call; ``ask`` sends a request to the model and gives the reply's events, or the `ModelResponse`.

    Emits the events of the governed reply, then the reply; of an incomplete stream only the event that says so.
    """

    def __init__(
        self, governor: Governor, model: Any, request: ModelRequest, ask: Ask, run: SdkRun | None, agent: str | None
    ) -> None:
        self.governor = governor
        self._model = model
        self._request = request
        self._ask = ask
        self._run = run
        self._agent = run.agent if run is not None else agent
        self._memory = run.memory if run is not None else RunMemory()
        self._kept_in = request.conversation or request.previous_response
        self._user_texts: list[str] = [] if run is None else run.said
        #: What was denied in earlier rounds with the answers, and the usage of those rounds.
        self._exchange: list[Any] = []
        self._usage: Any = None
        self._withholds = governor.evaluates(Point.POST_MODEL_CALL) or governor.evaluates(Point.PRE_TOOL_CALL)
        self._passes_text = not governor.reads_replies()
        self._passed: set[tuple[str, str | None]] = set()
        self._withheld: list[Any] = []
        self._received: ModelResponse | None = None
        self._denials: Denials = []
        self._prefix = ""
        self._restore_hidden()

    def _restore_hidden(self) -> None:
        """Puts back what the SDK's history lacks of earlier calls of the run, or of the conversation on the server."""
        program = restored = items.as_list(self._request.input)
        if self._run is not None and not self._request.is_kept_by_server:
            prefixes = prefix_digests(items.READER, program)
            self._prefix = prefixes[-1]
            restored = self._run.turns.restored(items.READER, program, prefixes, program)
        if len(owed := self._memory.conversations.owed(self._kept_in)) or len(restored) > len(program):
            self._request = replace(self._request, input=[*owed, *restored])

    # ------------------------------------------------------------------ the request

    def begin(self) -> ModelCall:
        """See `CallPort.begin`."""
        self._withheld, self._received, self._denials = [], None, []
        return ModelCall(
            self.governor,
            framework=items.FRAMEWORK,
            model=model_name(self._model),
            agent=self._agent,
            native=self._request,
            parent=parent_in(self._run),
        )

    def judge_input_flow(self, call: ModelCall) -> Flow[Decision | None]:
        """Judges the user's texts that are new, and those that this process does not know.

        A session or a paused run may come from another process. Without a run, which knows those before, all are new.
        """
        input_items, run, decisions = items.as_list(self._request.input), self._run, self._memory.decisions
        user_messages = items.user_messages(input_items)
        if run is None:
            self._user_texts = [text for _, text, _ in user_messages]
        elif not run.input_evaluated and not run.nested:
            run.said = self._user_texts = [text for _, text, _ in user_messages]
        first_new = 0 if run is None else len(input_items) if run.input_evaluated else items.end_of_history(input_items)
        judges_history = run is not None and not run.history_evaluated
        texts = [
            UserText(text, new=position >= first_new, answer=answer, nested=text not in self._user_texts)
            for position, text, answer in user_messages
            if position >= first_new or judges_history
        ]
        denial = yield from decisions.judge_flow(self.governor, texts, call.user_text)
        if denial is None:
            if run is not None:
                run.input_evaluated = run.history_evaluated = True
            self._request = replace(self._request, input=self._memory.with_decisions(input_items))
        return denial

    def judge_offers_flow(self, call: ModelCall) -> Flow[None]:
        """Judges the hosted tools that the request offers."""
        self._request = yield from without_denied_tools_flow(
            self.governor, self._request, self._agent, call.span.span_id
        )

    def request(self, call: ModelCall) -> Action:
        """See `CallPort.request`."""
        sent = self._request
        return call.request(sent.messages(), tools=sent.definitions(), user_text=self._user_texts, **sent.reply_limit())

    def take_messages(self, new_messages: Sequence[Mapping[str, Any]]) -> None:
        """See `CallPort.take_messages`."""
        input_items = items.as_list(self._request.input)
        instructions, input_items = items.with_messages(self._request.system_instructions, input_items, new_messages)
        self._request = replace(self._request, system_instructions=instructions, input=input_items)

    def send_flow(self, call: ModelCall) -> Generator[Any, Any, Sequence[ReplyPart[ModelResponse]] | None]:
        """Emits the events that are not withheld. None for an incomplete reply."""
        events: list[Any] = []
        request = self._request.with_headers(self._model, self._agent)
        yield from pieces_flow(call, lambda: self._ask(request), lambda event: self._passes(event, events))
        self._received = self._received or response_of(events)
        if self._received is None:
            call.failed(IncompleteReply())
            return None
        if self._request.conversation is not None:
            self._memory.conversations.paid(self._kept_in)
        try:
            response = items.with_call_ids(self._received)
            reading = items.reading_of(response, model_name(self._model))
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing can judge the reply
            call.unreadable(error)
            return None
        return [ReplyPart(reading, [response])]

    def _passes(self, event: Any, events: list[Any]) -> bool:
        if isinstance(event, ModelResponse):
            self._received = event
            return False
        events.append(event)
        passes = not self._withholds or (self._passes_text and is_text(event))
        # The last event of a whole reply waits until the call has been recorded.
        if self._withheld or not passes or isinstance(event, ResponseCompletedEvent):
            self._withheld.append(event)
            return False
        self._passed.add(event_key(event))
        return True

    # ------------------------------------------------------------------ the reply

    def with_text(self, choice: ModelResponse, text: str) -> ModelResponse:
        """See `CallPort.with_text`."""
        return items.with_reply_text(choice, text)

    def denied(self, choice: ModelResponse | None, decision: Decision, text: str) -> ModelResponse:
        """See `CallPort.denied`. Raises `PolicyDenied` where the agent's output has a type."""
        schema = self._request.output_schema
        if schema is not None and not schema.is_plain_text():
            raise PolicyDenied(decision)
        if choice is not None:
            calls = [item for item in choice.output if isinstance(item, ResponseFunctionToolCall)]
            answers = [answer_to(call, text) for call in calls]
            for conversation in (choice.response_id, self._request.conversation):
                self._memory.conversations.owe(conversation, answers)
        return items.denial_reply(text, choice)

    def judge_acts_flow(self, call: ModelCall, choice: Choice[ModelResponse]) -> Flow[Choice[ModelResponse]]:
        """Judges the acts that the SDK offers no other place to stop."""
        if not items.proposes_calls(choice.reply):
            return choice
        self._denials, response = yield from judge_proposals_flow(
            self.governor, self._request, choice.reply, self._agent, parent_in(self._run)
        )
        return replace(choice, reply=response, denials=[decision for _, decision in self._denials])

    def answer(self, choice: ModelResponse) -> str | None:
        """See `CallPort.answer`."""
        return None if items.proposes_calls(choice) else items.reply_text(choice)

    def ask_again(self, choices: Sequence[Choice[ModelResponse]]) -> bool:
        """See `ModelPort.ask_again`; not where the server would wait for an answer that cannot be given."""
        response = choices[0].reply
        if self._request.conversation is not None and not can_be_answered(response):
            return False
        self._add_usage(response)
        exchange = answered(response, self._denials)
        self._exchange += exchange
        self._request = next_request(self._request, response, exchange, self._denials)
        return True

    def _add_usage(self, response: ModelResponse) -> None:
        if self._usage is None:
            self._usage = response.usage
        else:
            self._usage.add(response.usage)

    def deliver_flow(self, choices: Sequence[Choice[ModelResponse]] | None) -> Generator[Any, Any, None]:
        """Emits the withheld events, or those of the reply that takes its place, and the reply with all usage."""
        if choices is None and self._received is None:
            for event in failure_in(self._withheld):
                yield Emit(event)
            return
        response = choices[0].reply if choices else self._received
        assert response is not None, "a reply that nothing judges was received"
        if self._usage is not None:
            self._add_usage(response)
            response = replace(response, usage=self._usage)
        self._remember(response)
        is_unchanged = self._received is not None and self._usage is None and _same_items(response, self._received)
        for event in self._withheld if is_unchanged else events_of(response, self._withheld, model_name(self._model)):
            if is_unchanged or event_key(event) not in self._passed:
                yield Emit(event)
        yield Emit(response)

    def _remember(self, response: ModelResponse) -> None:
        """Keeps what was denied for the run's later requests: the SDK's own history does not hold it."""
        if self._run is None:
            return
        received = response.to_input_items()
        self._run.turns.count(mark for item in received for mark in items.READER.marks(item))
        if self._exchange:
            actual: list[tuple[Any, int | None]] = [(item, None) for item in self._exchange]
            actual += [(item, position) for position, item in enumerate(received)]
            self._run.turns.add(items.READER, self._prefix, received, actual)


def _same_items(response: ModelResponse, other: ModelResponse) -> bool:
    return len(response.output) == len(other.output) and all(map(operator.is_, response.output, other.output))


class GovernedModel(RunEndCleanup, Model):
    """``model`` under ``governor``; for ``Agent(model=...)`` or ``RunConfig(model=...)``.

    ``agent`` names the agent in decisions where the run is not governed as a whole. Serves any number of agents and
    tasks. A streamed reply is withheld until it has been evaluated, if anything evaluates it. Fails closed.
    """

    def __init__(self, model: Model, governor: Governor, *, agent: str | None = None) -> None:
        self.inner = model
        self.governor = governor
        self.agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """One governed call of the model."""
        inner = self.inner
        return await govern_response(self.governor, inner, inner.get_response, args, kwargs, self.agent)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """As `get_response`, in events."""
        inner = self.inner
        stream = govern_stream(self.governor, inner, inner.stream_response, args, kwargs, self.agent)
        async with aclosing(stream) as events:
            async for event in events:
                yield event

    get_retry_advice: Any = property(attrgetter("inner.get_retry_advice"))
    close: Any = property(attrgetter("inner.close"))


class GovernedModelProvider(ModelProvider):
    """``provider`` (default: the SDK's own) with every model governed; for ``RunConfig(model_provider=...)``.

    The SDK does not ask a provider for an agent whose ``model`` is an instance: give such an agent a `GovernedModel`.
    """

    def __init__(self, governor: Governor, provider: ModelProvider | None = None) -> None:
        self.governor = governor
        self.provider = provider if provider is not None else MultiProvider()

    def get_model(self, model_name: str | None) -> Model:
        """The governed model of that name."""
        return GovernedModel(self.provider.get_model(model_name), self.governor)

    async def aclose(self) -> None:
        """Closes the inner provider."""
        await self.provider.aclose()


async def govern_response(
    governor: Governor | None,
    model: Any,
    get_response: Callable[..., Awaitable[ModelResponse]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    agent: str | None = None,
) -> ModelResponse:
    """The governed reply of ``get_response``, a method of ``model``, to its arguments.

    ``agent`` names the agent where no run is known. Raises `PolicyDenied` where a decision says abort, or where the
    denial cannot replace the reply because the agent's output has a type. Without a governor, and inside a call that it
    has evaluated, the model answers. Callable from any task. Fails closed.
    """

    async def ask(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield await get_response(*args, **kwargs)

    async with aclosing(_reply(governor, model, ask, args, kwargs, agent)) as reply:
        async for event in reply:
            if isinstance(event, ModelResponse):
                return event
    raise RuntimeError(f"{type(model).__name__} gave no reply")


async def govern_stream(
    governor: Governor | None,
    model: Any,
    stream_response: Callable[..., AsyncIterator[Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    agent: str | None = None,
) -> AsyncGenerator[Any]:
    """As `govern_response`, for a reply in events."""
    async with aclosing(_reply(governor, model, stream_response, args, kwargs, agent)) as reply:
        async for event in reply:
            if not isinstance(event, ModelResponse):
                yield event


def _reply(
    governor: Governor | None,
    model: Any,
    ask: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    agent: str | None,
) -> AsyncGenerator[Any]:
    """The events of the reply, and the `ModelResponse`."""
    if governor is None or model_call_covered(governor):
        return ask(*args, **kwargs)
    request = ModelRequest.of(args, kwargs)
    ask_request = partial(_ask, ask)
    return arun_stream(model_flow(AgentsCall(governor, model, request, ask_request, current_run(governor), agent)))


def _ask(ask: Callable[..., AsyncIterator[Any]], request: ModelRequest) -> AsyncIterator[Any]:
    return ask(*request.args, **request.rest)
