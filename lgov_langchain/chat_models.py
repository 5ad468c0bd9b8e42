"""Governs model calls where all those of LangChain's chat models pass. Installed by `instrumentor`.

``invoke`` and ``batch`` go through ``generate``, ``ainvoke`` through ``agenerate``; ``stream`` and ``astream`` do not. A call
that the middleware has evaluated is not evaluated again. A call or reply that is denied becomes a reply that holds the
denial and asks for no tools. Of a streamed reply, the text is passed on at once; the tool calls it asks for are withheld
until the whole reply is evaluated.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

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

from lgov_core.instrumentation import Flow, arun_flow, either, foreign, run_flow, wait
from lgov_core.instrumentation.framework import flow_method
from lgov_core.instrumentation.streams import Emit, StreamFlow, arun_stream, reading_error, run_stream
from lgov_langchain._internals import combine_llm_outputs
from lgov_langchain.instrumentor import INSTRUMENTOR
from lgov_langchain.model_calls import ModelPrompt, ModelReply, Result, attributed, govern_model_call
from lgov_langchain.process_handler import SentCall, agent_above, is_covered

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from lgov_core.instrumentation import Governor

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
        return _combined(self, results)

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
        return _reply(results[0])

    result = yield from govern_model_call(governor, prompt, send)
    return _llm_result(result, results[0] if results else None)


def _reply(result: LLMResult) -> ModelReply:
    replies = [getattr(generation, "message", None) for generation in (result.generations or [[]])[0]]
    return ModelReply.of(*(message for message in replies if isinstance(message, AIMessage)))


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


def _combined(model: BaseChatModel, results: Sequence[LLMResult]) -> LLMResult:
    return LLMResult(
        generations=[generations for result in results for generations in result.generations],
        llm_output=combine_llm_outputs(model, [result.llm_output for result in results]),
        run=[run for result in results for run in result.run or ()] or None,
    )


# ---------------------------------------------------------------------- streams


def _stream_flow(
    governor: Governor, prompt: ModelPrompt, open_stream: Callable[[Sequence[BaseMessage]], Any]
) -> StreamFlow:
    """``open_stream`` sends the messages and returns the generator of the reply's chunks."""
    chunks, withheld = list[Any](), list[Any]()

    def send(sent: SentCall) -> Generator[Any, Any, ModelReply]:
        opened = open_stream(sent.messages)
        asynchronous = hasattr(opened, "__anext__")
        next_chunk: Any = anext if asynchronous else next
        try:
            while (chunk := (yield from sent.send(partial(next_chunk, opened, _END)))) is not _END:
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
        yield Emit(_as_chunk(result, after_text=has_emitted))


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


def _as_chunk(result: Result, *, after_text: bool) -> AIMessageChunk:
    message = result.message or AIMessage("")
    content = f"\n{message.text}" if after_text else message.content
    return AIMessageChunk(content=content, id=message.id, tool_calls=message.tool_calls, chunk_position="last")
