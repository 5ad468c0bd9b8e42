"""The governed model call, as a flow that the middleware and the patched chat models share.

A patched ``BaseChatModel`` evaluates the calls that no middleware has evaluated. A denied call is answered by a message that
has the denial and asks for no tools. Of a streamed reply, the text is passed on at once; the tool calls it asks for are
withheld until the whole reply is evaluated.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    convert_to_messages,
    message_chunk_to_message,
)
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.prompt_values import PromptValue

from lgov_core.instrumentation import Flow, arun_flow, either, foreign, run_flow, semconv, wait
from lgov_core.instrumentation.conversation_memory import UserText
from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.instrumentation.framework import flow_method
from lgov_core.instrumentation.live_span import covered_call
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.instrumentation.model_flow import CallRefused, Choice, ModelPort, ReplyPart, model_flow
from lgov_core.instrumentation.streams import Emit, StreamFlow, arun_stream, reading_error, run_stream
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, Point, ToolOutcome
from lgov_core.wire.exchange import CallIds
from lgov_langchain import messages
from lgov_langchain._internals import combine_llm_outputs, keep_reply_ids
from lgov_langchain.instrumentor import INSTRUMENTOR
from lgov_langchain.process_handler import Above, SentCall, agent_above, inside, is_covered, process_handler
from lgov_langchain.runs import FRAMEWORK, agent_name, in_thread_of_a_run

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan


@dataclass(frozen=True, slots=True)
class ModelReply:
    """The reply of the model. ``final`` is the agent's answer as text if this is its last reply, else None.

    ``others`` are further replies to choose from, where the caller asked for several.
    """

    message: AIMessage | None
    final: str | None
    others: Sequence[AIMessage] = ()

    @classmethod
    def of(cls, *replies: AIMessage) -> ModelReply:
        """The reply of a bare model: it is the answer unless it asks for tools."""
        if not replies:
            return cls(None, None)
        first, *others = replies
        return cls(first, None if first.tool_calls else messages.text_of(first), others)


@dataclass(frozen=True, slots=True)
class Result:
    """The result for the caller: ``message``, and how it differs from the model's reply.

    ``changed`` is "no", "text" (another text, the same tool calls) or "all" (another message).
    ``rewritten`` are the user's messages that policies rewrote, ``others`` the further replies as the caller may read them.
    """

    message: AIMessage | None
    changed: Literal["no", "text", "all"] = "no"
    rewritten: Sequence[BaseMessage] = ()
    others: Sequence[AIMessage] = ()


@dataclass(frozen=True, slots=True)
class ModelPrompt:
    """A model call that is about to be made. ``settings`` are its options, ``above`` the agent that makes it."""

    model: Any
    messages: Sequence[BaseMessage]
    settings: Mapping[str, Any]
    native: Any
    above: Above | None

    @property
    def agent(self) -> LiveSpan | None:
        """The span of the agent that makes the call."""
        return None if self.above is None else self.above.span

    def user_texts(self) -> list[str]:
        """The texts among the messages that are top-level input: below an agent, those in the outermost run's input."""
        if covered_call() is not None:  # inside a tool the text is another agent's
            return []
        texts = [messages.text_of(message) for message in self.messages if isinstance(message, HumanMessage)]
        user_texts = self.above.said if self.above is not None else () if in_thread_of_a_run() else texts
        return [text for text in texts if text in user_texts]


def govern_model_call(
    governor: Governor, prompt: ModelPrompt, send: Callable[[SentCall], Flow[ModelReply]]
) -> Flow[Result]:
    """Governs a model call of a program: see `lgov_core.instrumentation.model_flow`.

    ``send`` is a flow that sends the call, by `SentCall.send`, and returns the reply; of all flows only that one may emit.
    What was denied comes back as a message with the denial. Raises `PolicyDenied` if a decision says abort, and what
    ``send`` raises.
    """
    keep_reply_ids()
    return (yield from model_flow(_LangChainCall(governor, prompt, send)))


class _LangChainCall(ModelPort[AIMessage, Result]):
    def __init__(self, governor: Governor, prompt: ModelPrompt, send: Callable[[SentCall], Flow[ModelReply]]) -> None:
        self.governor = governor
        self._prompt = prompt
        self._send = send
        self._sent: list[BaseMessage] = list(prompt.messages)
        self._user_texts = prompt.user_texts()
        self._rewritten: list[BaseMessage] = []
        self._final: str | None = None
        self._first: AIMessage | None = None
        self._changed: Literal["no", "text", "all"] = "no"

    def judging(self) -> AbstractContextManager[Any]:
        """Inside the agent's span."""
        return inside(self._prompt.agent)

    def begin(self) -> ModelCall:
        """See `CallPort.begin`."""
        with self.judging():
            return ModelCall(
                self.governor,
                framework=FRAMEWORK,
                model=messages.model_name(self._prompt.model),
                agent=agent_name(),
                native=self._prompt.native,
            )

    def judge_input_flow(self, call: ModelCall) -> Flow[Decision | None]:
        """Judges the user's messages at the end."""
        decisions = process_handler().message_decisions(self.governor)
        new = messages.new_user_messages(self._sent)
        texts = [UserText(text, nested=text not in self._user_texts) for text in map(messages.text_of, new)]
        denial = yield from decisions.judge_flow(self.governor, texts, call.user_text)
        if denial is not None:
            return denial
        first_new = len(self._sent) - len(new)
        replaced = decisions.instead_of(lambda: list(map(messages.role_and_text, self._sent)))
        for position, (text, was_denied) in replaced.items():
            message = self._sent[position]  # a transcript has what users really said
            changed = message.model_copy(update={"content": text}) if was_denied else messages.with_text(message, text)
            self._sent[position] = changed
            if position >= first_new:
                self._rewritten.append(changed)
        return None

    def request(self, call: ModelCall) -> Action:
        """See `CallPort.request`."""
        settings = self._prompt.settings
        limit = messages.reply_limit(self._prompt.model, settings)
        tools = settings.get("tools") or []
        return call.request(messages.as_mappings(self._sent), tools=tools, user_text=self._user_texts, **limit)

    def take_messages(self, new_messages: Sequence[Mapping[str, Any]]) -> None:
        """See `CallPort.take_messages`."""
        self._sent = messages.with_messages(self._sent, new_messages)

    def send_flow(self, call: ModelCall) -> Flow[Sequence[ReplyPart[AIMessage]]]:
        """See `ModelPort.send_flow`."""
        sent = SentCall(call, self._sent)
        reply = yield from self._send(sent)
        message = reply.message
        if message is None:
            return []
        if sent.denial is not None and message is sent.denial[0]:  # middleware changed the call, and that was denied
            raise CallRefused(sent.denial[1])
        if (provider := message.response_metadata.get("model_provider")) is not None:
            call.span.set({semconv.PROVIDER: provider})
        clear = [messages.with_call_ids(each) for each in (message, *reply.others)]
        self._first, self._final, self._changed = clear[0], reply.final, "no" if clear[0] is message else "text"
        return [ReplyPart(messages.model_reading(each), [each]) for each in clear]

    def with_text(self, choice: AIMessage, text: str) -> AIMessage:
        """See `CallPort.with_text`."""
        changed = messages.with_text(choice, text)
        if choice is self._first:
            self._first, self._changed = changed, "text"
            self._final = self._final if self._final is None or choice.tool_calls else text
        return changed

    def denied(self, choice: AIMessage | None, decision: Decision, text: str) -> AIMessage:
        """See `CallPort.denied`."""
        if choice is self._first:
            self._changed = "all"
        return messages.denial_reply(decision, choice)

    def judge_acts_flow(self, call: ModelCall, choice: Choice[AIMessage]) -> Flow[Choice[AIMessage]]:
        """Tools are judged where they run. A call that cannot run is only recorded."""
        for broken in choice.reply.invalid_tool_calls:
            yield from self.governor.record_flow(_invalid_call(call.output(""), broken))
        return choice

    def answer(self, choice: AIMessage) -> str | None:
        """See `CallPort.answer`."""
        if choice is self._first:
            return self._final
        return None if choice.tool_calls else messages.text_of(choice)

    def with_answer(self, choice: AIMessage, text: str) -> AIMessage:
        """See `CallPort.with_answer`."""
        if choice is self._first:
            self._changed = "all"
        return messages.with_text(choice, text).model_copy(update={"content": text, "tool_calls": []})

    def deliver_flow(self, choices: Sequence[Choice[AIMessage]] | None) -> Flow[Result]:
        """See `CallPort.deliver_flow`."""
        first, *others = [choice.reply for choice in choices or ()] or [None]
        return Result(first, self._changed, self._rewritten, [each for each in others if each is not None])
        yield


def _invalid_call(reply: Action, call: Mapping[str, Any]) -> ToolOutcome:
    """The outcome of a tool call whose arguments cannot be parsed."""
    action = Action(
        Point.PRE_TOOL_CALL,
        name=call.get("name") or "?",
        agent=reply.agent,
        framework=FRAMEWORK,
        call_id=call.get("id"),
        text=call.get("args"),
    )
    return ToolOutcome(action, "invalid_args", error_type="InvalidToolCall", error=call["error"])


def attributed(model: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a call of ``model``, with the headers that attribute it to the rollout if it goes to lgov's endpoint.

    Raises `ScopeError` if the rollout id cannot be put into a header.
    """
    scope = current_scope()
    headers = endpoint_headers(_base_url(model), scope, agent_name()) if scope is not None else None
    if not headers:
        return dict(settings)
    return {**settings, "extra_headers": {**(settings.get("extra_headers") or {}), **headers}}


def _base_url(model: Any) -> str | None:
    """Where an OpenAI-style chat model sends its calls, or None if it is not one."""
    for client in (getattr(model, "root_client", None), getattr(model, "root_async_client", None)):
        if (url := getattr(client, "base_url", None)) is not None:
            return str(url)
    if not hasattr(model, "openai_api_base"):
        return None
    return model.openai_api_base or os.environ.get("OPENAI_BASE_URL")


_END = object()


def wrap_generate(generate: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseChatModel.generate`` or ``agenerate`` with an evaluation before and after each of its calls."""

    def steps(self: BaseChatModel, messages: list[list[BaseMessage]], *args: Any, **kwargs: Any) -> Flow[Any]:
        flows = _generate_flows(generate, self, messages, args, kwargs)
        if flows is None:
            return (yield from wait(foreign(generate, self, messages, *args, **kwargs)))
        if len(flows) == 1:
            return (yield from flows[0])
        results = yield from wait(either(lambda: list(map(run_flow, flows)), lambda: _together(flows)))
        return LLMResult(
            generations=[generations for result in results for generations in result.generations],
            llm_output=combine_llm_outputs(self, [result.llm_output for result in results]),
            run=[run for result in results for run in result.run or ()] or None,
        )

    return flow_method(generate, steps)


async def _together(flows: Sequence[Flow[LLMResult]]) -> list[LLMResult]:
    return await asyncio.gather(*map(arun_flow, flows))


def wrap_stream(stream: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseChatModel.stream`` or ``astream`` with an evaluation before and after it."""

    @functools.wraps(stream)
    def governed_stream(self: BaseChatModel, input: Any, config: Any = None, **kwargs: Any) -> Any:
        governor = INSTRUMENTOR.governor
        messages = _as_messages(input) if governor is not None else []
        if governor is None or is_covered(governor, messages):
            return stream(self, input, config, **kwargs)

        def open_stream(sent: Sequence[BaseMessage]) -> Any:
            return stream(self, sent, config, **attributed(self, kwargs))

        prompt = ModelPrompt(self, messages, kwargs, self, agent_above(governor, config))
        run = arun_stream if inspect.isasyncgenfunction(stream) else run_stream
        return run(_stream_flow(governor, prompt, open_stream))

    return governed_stream


def _as_messages(value: Any) -> list[BaseMessage]:
    if isinstance(value, PromptValue):
        return value.to_messages()
    return [HumanMessage(value)] if isinstance(value, str) else convert_to_messages(value)


# ---------------------------------------------------------------------- whole replies


def _generate_flows(
    generate: Callable[..., Any], model: BaseChatModel, prompts: list[list[BaseMessage]], args: Any, kwargs: Any
) -> list[Flow[LLMResult]] | None:
    """A flow for each call; None if no call is to be evaluated here."""
    governor = INSTRUMENTOR.governor
    if governor is None or all(is_covered(governor, messages) for messages in prompts):
        return None
    above = agent_above(governor, callbacks=args[1] if len(args) > 1 else kwargs.get("callbacks"))

    def send(messages: Sequence[BaseMessage]) -> Any:
        return generate(model, [messages], *args, **attributed(model, kwargs))

    return [_generate_flow(governor, ModelPrompt(model, messages, kwargs, model, above), send) for messages in prompts]


def _generate_flow(
    governor: Governor, prompt: ModelPrompt, generate: Callable[[Sequence[BaseMessage]], Any]
) -> Flow[LLMResult]:
    results: list[LLMResult] = []

    def send(sent: SentCall) -> Flow[ModelReply]:
        results.append((yield from sent.send(partial(generate, sent.messages))))
        replies = [getattr(generation, "message", None) for generation in (results[0].generations or [[]])[0]]
        return ModelReply.of(*(message for message in replies if isinstance(message, AIMessage)))

    result = yield from govern_model_call(governor, prompt, send)
    return _llm_result(result, results[0] if results else None)


def _llm_result(result: Result, returned: LLMResult | None) -> LLMResult:
    if returned is None:
        return LLMResult(generations=[[ChatGeneration(message=result.message or AIMessage(""))]])
    if result.message is None:
        return returned
    pairs = list(zip(returned.generations[0], [result.message, *result.others], strict=False))
    if all(getattr(old, "message", None) is new for old, new in pairs):
        return returned
    generations: list[Any] = [ChatGeneration(message=new, generation_info=old.generation_info) for old, new in pairs]
    return LLMResult(generations=[generations], llm_output=returned.llm_output, run=returned.run)


# ---------------------------------------------------------------------- streams


def _stream_flow(
    governor: Governor, prompt: ModelPrompt, open_stream: Callable[[Sequence[BaseMessage]], Any]
) -> StreamFlow:
    """``open_stream`` sends the messages and returns the generator of the reply's chunks."""
    chunks, withheld = list[Any](), list[Any]()

    def send(sent: SentCall) -> Generator[Any, Any, ModelReply]:
        opened, ids = open_stream(sent.messages), CallIds()
        asynchronous = hasattr(opened, "__anext__")
        next_chunk: Any = anext if asynchronous else next
        try:
            while (chunk := (yield from sent.send(partial(next_chunk, opened, _END)))) is not _END:
                chunk = messages.chunk_with_call_ids(chunk, ids)
                chunks.append(chunk)
                if withheld or _is_withheld(governor, chunk):
                    withheld.append(chunk)
                else:
                    yield Emit(chunk)
        except BaseException as error:
            sent.failed(reading_error(error))
            raise
        finally:
            yield foreign(opened.aclose if asynchronous else opened.close)
        return _whole(chunks)

    result = yield from govern_model_call(governor, prompt, send)
    has_emitted = len(withheld) < len(chunks)
    if result.changed == "no" or (result.changed == "text" and has_emitted):  # what is out cannot be taken back
        for chunk in withheld:
            yield Emit(chunk)
    else:
        message = result.message or AIMessage("")
        content = f"\n{message.text}" if has_emitted else message.content
        yield Emit(AIMessageChunk(content=content, id=message.id, tool_calls=message.tool_calls, chunk_position="last"))


def _is_withheld(governor: Governor, chunk: Any) -> bool:
    """Returns whether a chunk must wait until the reply is evaluated: it asks for a tool, or ends the reply.

    The end is withheld even where no policy is asked, until the call's span has ended.
    """
    if not isinstance(chunk, AIMessageChunk):
        return True  # a model that does not stream: the chunk is the reply
    if chunk.chunk_position == "last":
        return True
    return bool(chunk.tool_call_chunks or chunk.tool_calls) and not governor.observe_only


def _whole(chunks: Sequence[Any]) -> ModelReply:
    if not chunks:
        return ModelReply.of()
    first, *others = chunks
    message: Any = first if not others else first + others
    whole: Any = message_chunk_to_message(message) if isinstance(message, AIMessageChunk) else message
    return ModelReply.of(whole)
