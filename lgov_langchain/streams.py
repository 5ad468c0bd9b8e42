"""Runs a flow of steps that is a stream: it also emits chunks for the reader."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from lgov_core.instrumentation import Flow, Step, arun_flow, run_flow

_END = object()


@dataclass(frozen=True, slots=True)
class Emit:
    """Passes ``chunk`` to the reader. No context variable may be set across it: the reader's own code runs meanwhile."""

    chunk: Any


StreamSteps: TypeAlias = Generator[Step[Any] | Emit, Any, None]


def stream_steps(steps: StreamSteps) -> Generator[Any]:
    """Runs a flow for a synchronous reader. A reader who stops is a `GeneratorExit` in it: then it must not emit."""
    try:
        while (chunk := run_flow(_next_chunk(steps))) is not _END:
            yield chunk
    except BaseException as error:
        run_flow(_next_chunk(steps, error))
        raise


async def astream_steps(steps: StreamSteps) -> AsyncGenerator[Any]:
    """As `stream_steps`, for an asynchronous reader."""
    try:
        while (chunk := await arun_flow(_next_chunk(steps))) is not _END:
            yield chunk
    except BaseException as error:
        await arun_flow(_next_chunk(steps, error))
        raise


def _next_chunk(steps: StreamSteps, error: BaseException | None = None) -> Flow[Any]:
    """Runs the flow to its next chunk, or `_END`; ``error`` is thrown into it first."""
    answer: Any = None
    while True:
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return _END
        if isinstance(step, Emit):
            return step.chunk
        answer, error = None, None
        try:
            answer = yield step
        except BaseException as raised:  # noqa: BLE001 - thrown into the flow
            error = raised
