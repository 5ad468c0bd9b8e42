"""Judges model calls where those of LangChain's chat models pass. Installed by `instrumentation`.

``invoke`` and ``batch`` go through ``generate``, ``ainvoke`` through ``agenerate``; ``stream`` and ``astream`` are ways of
their own. A call that the middleware has judged passes through untouched. A call or reply that is denied becomes a reply
that holds the denial and asks for no tools. Of a streamed reply, the text goes on as it comes; the tool calls it asks for
are held back until the whole reply has been judged.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
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

from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.scope import current_scope
from lgov_langchain import actions
from lgov_langchain.attribution import headers_for, with_headers
from lgov_langchain.graph_runs import CallRun
from lgov_langchain.instrumentor import acting_governor
from lgov_langchain.model_calls import (
    Reply,
    Send,
    Steps,
    Verdict,
    aadvance,
    adrive,
    advance,
    are_covered,
    drive,
    failed,
    heard,
    inside,
    is_covered,
    judged,
    open_call,
    watched,
)
from lgov_langchain.reply_ids import keep_reply_ids
from lgov_langchain.watching import place_of, standing_under

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan


def wrap_generate(generate: Callable[..., LLMResult]) -> Callable[..., LLMResult]:
    """``BaseChatModel.generate`` with the judgements around each of its calls."""

    @functools.wraps(generate)
    def governed_generate(self: BaseChatModel, messages: list[list[BaseMessage]], *args: Any, **kwargs: Any) -> Any:
        governor = acting_governor()
        if governor is None or are_covered(governor, messages):
            with CallRun(governor if len(messages) == 1 else None, kwargs, of_model=True):
                return generate(self, messages, *args, **kwargs)
        callbacks = args[1] if len(args) > 1 else kwargs.get("callbacks")
        if governor.observe_only and len(messages) == 1:
            sent = _attributed(self, kwargs)
            call = _opened(governor, self, place_of(governor, callbacks=callbacks)[1])
            with watched(governor, call, messages[0]), CallRun(governor, sent, of_model=True):
                result = generate(self, messages, *args, **sent)
            for lost in heard(call, _reply_in(result)):
                governor.record(lost)
            return result

        def one_call(prompt: list[BaseMessage]) -> LLMResult:
            came: list[LLMResult] = []

            def send(sent: list[BaseMessage]) -> Reply:
                came.append(generate(self, [sent], *args, **_attributed(self, kwargs)))
                return _reply(came[0])

            with standing_under(governor, callbacks=callbacks):
                call, steps = _open(governor, self, prompt, kwargs)
                return _result(drive(governor, call, steps, send), came)

        return _together(self, [one_call(prompt) for prompt in messages])

    return governed_generate


def wrap_agenerate(agenerate: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseChatModel.agenerate`` with the judgements around each of its calls."""

    @functools.wraps(agenerate)
    async def governed_agenerate(
        self: BaseChatModel, messages: list[list[BaseMessage]], *args: Any, **kwargs: Any
    ) -> Any:
        governor = acting_governor()
        if governor is None or are_covered(governor, messages):
            with CallRun(governor if len(messages) == 1 else None, kwargs, of_model=True):
                return await agenerate(self, messages, *args, **kwargs)
        callbacks = args[1] if len(args) > 1 else kwargs.get("callbacks")
        if governor.observe_only and len(messages) == 1:
            sent = _attributed(self, kwargs)
            call = _opened(governor, self, place_of(governor, callbacks=callbacks)[1])
            with watched(governor, call, messages[0]), CallRun(governor, sent, of_model=True):
                result = await agenerate(self, messages, *args, **sent)
            for lost in heard(call, _reply_in(result)):
                await governor.arecord(lost)
            return result

        async def one_call(prompt: list[BaseMessage]) -> LLMResult:
            came: list[LLMResult] = []

            async def send(sent: list[BaseMessage]) -> Reply:
                came.append(await agenerate(self, [sent], *args, **_attributed(self, kwargs)))
                return _reply(came[0])

            with standing_under(governor, callbacks=callbacks):
                call, steps = _open(governor, self, prompt, kwargs)
                return _result(await adrive(governor, call, steps, send), came)

        if len(messages) == 1:
            return await one_call(messages[0])
        return _together(self, list(await asyncio.gather(*(one_call(prompt) for prompt in messages))))

    return governed_agenerate


def wrap_stream(stream: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseChatModel.stream`` with the judgements around it."""

    @functools.wraps(stream)
    def governed_stream(
        self: BaseChatModel, input: Any, config: Any = None, **kwargs: Any
    ) -> Generator[AIMessage, None, None]:
        governor = acting_governor()
        messages = _as_messages(input) if governor is not None else []
        if governor is None or is_covered(governor, messages):
            yield from stream(self, input, config, **kwargs)
            return
        with standing_under(governor, config):
            call, steps = _open(governor, self, messages, kwargs)
            step = advance(governor, call, steps)
        if isinstance(step, Verdict):
            yield _as_chunk(step)
            return
        inner = stream(self, step.messages, config, **_attributed(self, kwargs))
        chunks, held = list[Any](), list[Any]()
        try:
            while True:
                with inside(governor, call, step.messages):
                    chunk = next(inner, None)
                if chunk is None:
                    break
                chunks.append(chunk)
                if held or _waits(governor, chunk):
                    held.append(chunk)
                else:
                    yield chunk
        except BaseException as error:
            failed(call, error)
            raise
        finally:
            inner.close()
        yield from _rest(advance(governor, call, steps, _whole(chunks)), held, shown=len(held) < len(chunks))

    return governed_stream


def wrap_astream(astream: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseChatModel.astream`` with the judgements around it."""

    @functools.wraps(astream)
    async def governed_astream(
        self: BaseChatModel, input: Any, config: Any = None, **kwargs: Any
    ) -> AsyncGenerator[AIMessage, None]:
        governor = acting_governor()
        messages = _as_messages(input) if governor is not None else []
        if governor is None or is_covered(governor, messages):
            async for chunk in astream(self, input, config, **kwargs):
                yield chunk
            return
        with standing_under(governor, config):
            call, steps = _open(governor, self, messages, kwargs)
            step = await aadvance(governor, call, steps)
        if isinstance(step, Verdict):
            yield _as_chunk(step)
            return
        inner = astream(self, step.messages, config, **_attributed(self, kwargs))
        chunks, held = list[Any](), list[Any]()
        try:
            while True:
                with inside(governor, call, step.messages):
                    chunk = await anext(inner, None)
                if chunk is None:
                    break
                chunks.append(chunk)
                if held or _waits(governor, chunk):
                    held.append(chunk)
                else:
                    yield chunk
        except BaseException as error:
            failed(call, error)
            raise
        finally:
            await inner.aclose()
        for chunk in _rest(await aadvance(governor, call, steps, _whole(chunks)), held, shown=len(held) < len(chunks)):
            yield chunk

    return governed_astream


# ---------------------------------------------------------------------- before


def _open(
    governor: Governor, model: BaseChatModel, messages: Sequence[BaseMessage], settings: Mapping[str, Any]
) -> tuple[ModelCall, Steps]:
    call = _opened(governor, model)
    return call, judged(call, messages, lambda: actions.reply_limit(model, settings))


def _opened(governor: Governor, model: BaseChatModel, parent: LiveSpan | None = None) -> ModelCall:
    keep_reply_ids()
    return open_call(governor, model, model, parent)


def _attributed(model: BaseChatModel, settings: Mapping[str, Any]) -> dict[str, Any]:
    scope = current_scope()
    headers = headers_for(model, scope, actions.agent_name()) if scope is not None else None
    return with_headers(settings, headers) if headers else dict(settings)


def _as_messages(given: Any) -> list[BaseMessage]:
    if isinstance(given, PromptValue):
        return given.to_messages()
    return [HumanMessage(given)] if isinstance(given, str) else convert_to_messages(given)


# ---------------------------------------------------------------------- after


def _reply(result: LLMResult) -> Reply:
    messages = [getattr(one, "message", None) for one in (result.generations or [[]])[0]]
    return Reply.of(*(message for message in messages if isinstance(message, AIMessage)))


def _reply_in(result: LLMResult) -> AIMessage | None:
    for one in (result.generations or [[]])[0]:
        if isinstance(message := getattr(one, "message", None), AIMessage):
            return message
    return None


def _result(verdict: Verdict, came: Sequence[LLMResult]) -> LLMResult:
    if not came or verdict.message is None:
        return came[0] if came else _denied(verdict)
    result, messages = came[0], [verdict.message, *verdict.others]
    before = result.generations[0]
    if all(getattr(old, "message", None) is new for old, new in zip(before, messages, strict=False)):
        return result
    generations: list[Any] = [
        ChatGeneration(message=new, generation_info=old.generation_info)
        for old, new in zip(before, messages, strict=False)
    ]
    return LLMResult(generations=[generations], llm_output=result.llm_output, run=result.run)


def _denied(verdict: Verdict) -> LLMResult:
    return LLMResult(generations=[[ChatGeneration(message=verdict.message or AIMessage(""))]])


def _together(model: BaseChatModel, results: Sequence[LLMResult]) -> LLMResult:
    if len(results) == 1:
        return results[0]
    outputs: Any = [result.llm_output for result in results]
    return LLMResult(
        generations=[generations for result in results for generations in result.generations],
        llm_output=model._combine_llm_outputs(outputs),
        run=[run for result in results for run in result.run or ()] or None,
    )


def _waits(governor: Governor, chunk: Any) -> bool:
    """Whether a chunk may not go on before the reply is judged: it asks for a tool, or the reply is complete with it.

    Where nobody judges only what completes the reply waits, until that is noted.
    """
    if not isinstance(chunk, AIMessageChunk):
        return True  # a model that does not stream: the chunk is the reply
    asks = not governor.observe_only and bool(chunk.tool_call_chunks or chunk.tool_calls)
    return asks or chunk.chunk_position == "last"


def _whole(chunks: Sequence[Any]) -> Reply:
    if not chunks:
        return Reply.of()
    first, *others = chunks
    message: Any = first if not others else first + others
    whole: Any = message_chunk_to_message(message) if isinstance(message, AIMessageChunk) else message
    return Reply.of(whole)


def _rest(step: Send | Verdict, held: Sequence[Any], *, shown: bool) -> Generator[Any, None, None]:
    """The end of a stream: what was held back, or what stands in its place. What went out before cannot be taken back."""
    assert isinstance(step, Verdict), "a call is sent once"
    if step.changed == "no" or (step.changed == "text" and shown):
        yield from held
    else:
        yield _as_chunk(step, after_text=shown)


def _as_chunk(verdict: Verdict, *, after_text: bool = False) -> AIMessageChunk:
    message = verdict.message or AIMessage("")
    content = f"\n{message.text}" if after_text else message.content
    return AIMessageChunk(content=content, id=message.id, tool_calls=message.tool_calls, chunk_position="last")
