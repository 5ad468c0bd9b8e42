"""Runs a flow of steps that is a stream: it also emits chunks for the reader."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from lgov_core.instrumentation import Step


@dataclass(frozen=True, slots=True)
class Emit:
    """Passes ``chunk`` to the reader. No context variable may be set across it: the reader's own code runs meanwhile."""

    chunk: Any


StreamSteps: TypeAlias = Generator[Step | Emit, Any, None]


def stream_steps(steps: StreamSteps) -> Generator[Any]:
    """Runs a flow for a synchronous reader. A reader who stops is a `GeneratorExit` in the flow, which must not yield then."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return
        answer, error = None, None
        try:
            if isinstance(step, Emit):
                yield step.chunk
            else:
                answer = step.call()
        except BaseException as raised:  # noqa: BLE001 - thrown into the flow
            error = raised


async def astream_steps(steps: StreamSteps) -> AsyncGenerator[Any]:
    """As `stream_steps`, for an asynchronous reader."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return
        answer, error = None, None
        try:
            if isinstance(step, Emit):
                yield step.chunk
            else:
                answer = (step.acall or step.call)()
                if step.acall is not None or inspect.isawaitable(answer):
                    answer = await answer
        except BaseException as raised:  # noqa: BLE001 - thrown into the flow
            error = raised
