"""Flows that are streams: they also emit pieces for the reader. Their drivers, and the flow that reads a model's stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from lgov_core.flow import Flow, Step, arun_flow, run_flow
from lgov_core.instrumentation.model_call import ModelCall

_END = object()


@dataclass(frozen=True, slots=True)
class Emit:
    """Passes ``chunk`` to the reader. No context variable may be set across it: the reader's own code runs meanwhile."""

    chunk: Any


class ReaderStopped(BaseException):
    """The reader of a stream reads no further: what a `GeneratorExit` in it is to the flow, which may still wait.

    Python closes a generator that is delegated to on a `GeneratorExit`, and then it could not wait for anything.
    """


StreamFlow: TypeAlias = Generator[Step[Any] | Emit, Any, Any]


def run_stream(flow: StreamFlow) -> Generator[Any]:
    """Runs a flow for a synchronous reader. A reader who stops is a `ReaderStopped` in it: then it must not emit."""
    try:
        while (chunk := run_flow(_next_chunk(flow))) is not _END:
            yield chunk
    except BaseException as error:
        with suppress(ReaderStopped):
            run_flow(_next_chunk(flow, _as_in_flow(error)))
        raise


async def arun_stream(flow: StreamFlow) -> AsyncGenerator[Any]:
    """As `run_stream`, for an asynchronous reader."""
    try:
        while (chunk := await arun_flow(_next_chunk(flow))) is not _END:
            yield chunk
    except BaseException as error:
        with suppress(ReaderStopped):
            await arun_flow(_next_chunk(flow, _as_in_flow(error)))
        raise


def _as_in_flow(error: BaseException) -> BaseException:
    return ReaderStopped() if isinstance(error, GeneratorExit) else error


def _next_chunk(flow: StreamFlow, error: BaseException | None = None) -> Flow[Any]:
    """Runs the flow to its next chunk, or `_END`; ``error`` is thrown into it first."""
    answer: Any = None
    while True:
        try:
            step = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration:
            return _END
        if isinstance(step, Emit):
            return step.chunk
        answer, error = None, None
        try:
            answer = yield step
        except BaseException as raised:  # noqa: BLE001 - thrown into the flow
            error = raised


def reading_error(error: BaseException) -> BaseException:
    """``error`` as a span names it: a reader who stopped is a `GeneratorExit`."""
    return GeneratorExit() if isinstance(error, ReaderStopped) else error


def pieces_flow(
    call: ModelCall,
    ask: Callable[[], AsyncIterator[Any]],
    take: Callable[[Any], bool],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Generator[Any, Any, None]:
    """Reads the reply that ``ask`` gives piece by piece, for asynchronous callers; emits those that ``take`` says True to.

    Each piece is fetched inside the call's span and ``around``; neither is open while the reader handles one. What ``ask``
    raises ends the call as failed and is raised; so does a reader who stops, which also closes the reply. A whole reply
    leaves the call open.
    """
    pieces: Any = None
    try:
        while True:
            with call.span.active(model=call.governor), around():
                pieces = aiter(ask()) if pieces is None else pieces
                piece = yield Step(partial(anext, pieces, _END))
            if piece is _END:
                return
            if take(piece):
                yield Emit(piece)
    except BaseException as error:
        call.failed(reading_error(error))
        raise
    finally:
        if isinstance(pieces, AsyncGenerator):
            yield Step(pieces.aclose)
