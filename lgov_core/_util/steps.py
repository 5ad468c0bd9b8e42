"""One flow for synchronous and asynchronous callers: a generator that yields what it waits for, and two drivers.

A flow is written once. Whatever may wait (a policy, the tool, a request) it yields as a `Step`; the driver does it and
sends the result back in, or throws what it raised. Flows call each other with ``yield from``::

    def fetch_steps(url: str, send: Callable[[str], Any]) -> Steps[str]:
        decision = yield from governor.decision_steps(Action(Point.PRE_TOOL_CALL, "fetch", arguments={"url": url}))
        if decision.blocks:
            return decision.denial_message()
        reply = yield Step(lambda: send(url))  # send is a plain function, or one that returns an awaitable
        return reply.text

    def fetch(url: str) -> str:
        return run_steps(fetch_steps(url, client.get))

    async def afetch(url: str) -> str:
        return await arun_steps(fetch_steps(url, async_client.get))

The flow runs in the caller's thread or task, so context variables that it sets around a ``yield`` hold for the step. A
cancellation is thrown into the flow like any other exception.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Step:
    """Something a flow waits for: ``call`` for a synchronous caller, ``acall`` for an asynchronous one.

    Without ``acall`` both make the same call, and the asynchronous caller awaits what it returned if that is awaitable.
    """

    call: Callable[[], Any]
    acall: Callable[[], Awaitable[Any]] | None = None


Steps: TypeAlias = Generator[Step, Any, T]


def run_steps(steps: Steps[T]) -> T:
    """Runs a flow to its end for a synchronous caller. Returns what the flow returns, raises what it raises."""
    stopped: StopIteration | None = None
    try:
        step = next(steps)
        while True:
            try:
                answer = step.call()
            except BaseException as error:  # noqa: BLE001 - the flow handles it
                stopped = error if isinstance(error, StopIteration) else None
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value
    except RuntimeError as error:
        if stopped is not None and error.__cause__ is stopped:  # Python lets no StopIteration out of a generator
            raise stopped from None
        raise


async def arun_steps(steps: Steps[T]) -> T:
    """As `run_steps`, for an asynchronous caller."""
    try:
        step = next(steps)
        while True:
            try:
                answer = (step.acall or step.call)()
                if step.acall is not None or inspect.isawaitable(answer):
                    answer = await answer
            except BaseException as error:  # noqa: BLE001 - the flow handles it
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


def future_step(future: Future[Any], timeout_s: float) -> Step:
    """Waits at most ``timeout_s`` seconds for ``future``. Raises `TimeoutError`, and what the future raises."""
    return Step(
        lambda: future.result(timeout_s),
        lambda: asyncio.wait_for(asyncio.wrap_future(future), timeout_s),
    )
