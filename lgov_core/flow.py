"""One flow for synchronous and asynchronous callers: a generator that yields what it waits for, and two drivers.

A flow is written once. Whatever may wait (a policy, the tool, a request) is a `Step`; the driver takes it and sends the
result back in, or throws what it raised. Flows call each other, and wait, with ``yield from``::

    def fetch_flow(url: str, send: Callable[[str], Response]) -> Flow[str]:
        decision = yield from governor.decision_flow(Action(Point.PRE_TOOL_CALL, "fetch", arguments={"url": url}))
        if decision.blocks:
            return decision.denial_message()
        response = yield from wait(foreign(send, url))  # a plain function, or one that returns an awaitable
        return response.text

    def fetch(url: str) -> str:
        return run_flow(fetch_flow(url, client.get))

    async def afetch(url: str) -> str:
        return await arun_flow(fetch_flow(url, async_client.get))

There are three ways to wait: for a function of the program (`foreign`), for blocking work of lgov's own, which must not hold
up an event loop (`in_thread`), and for something that exists in both forms (`either`). A flow never runs a driver: it would
block the loop of an asynchronous caller. The flow runs in the caller's thread or task, so context variables that it sets
around a ``yield`` hold for the step. A cancellation is thrown into the flow like any other exception.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(slots=True)
class Step(Generic[T]):
    """Something a flow waits for: ``call`` for a synchronous caller, ``acall`` for an asynchronous one.

    Without ``acall`` both make the same call, and the asynchronous caller awaits what it returned if that is awaitable.
    """

    call: Callable[[], T]
    acall: Callable[[], Awaitable[T]] | None = None


Flow: TypeAlias = Generator[Step[Any], Any, T]

#: Nothing to wait for: where a flow that computes for long may be interrupted, so that others have their turn.
TURN: Final[Step[None]] = Step(lambda: None)


def wait(step: Step[T]) -> Flow[T]:
    """The way to a step for a flow: what ``yield from`` returns has the type of the result. Raises what the step raises.

    Like any generator it turns a `StopIteration` into a `RuntimeError`; a flow that has to see one yields the step itself.
    """
    return (yield step)


def foreign(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Step[Any]:
    """A call of the program's own function, in the caller's thread or task; an awaitable that it returns is awaited."""
    return Step(partial(function, *args, **kwargs) if args or kwargs else function)


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Step[T]:
    """A blocking call: in place for a synchronous caller, in a thread for an asynchronous one, whose loop goes on."""
    return Step(lambda: function(*args, **kwargs), lambda: asyncio.to_thread(function, *args, **kwargs))


def either(call: Callable[[], T], acall: Callable[[], Awaitable[T]]) -> Step[T]:
    """Something that exists in both forms, such as ``response.read`` and ``response.aread``."""
    return Step(call, acall)


def finished(future: Future[T], timeout_s: float) -> Step[T]:
    """Waits at most ``timeout_s`` seconds for ``future``. Raises `TimeoutError`, and what the future raises."""
    return either(
        lambda: future.result(timeout_s),
        lambda: asyncio.wait_for(asyncio.wrap_future(future), timeout_s),
    )


async def taken(step: Step[Any]) -> Any:
    """Returns what ``step`` gives an asynchronous caller. Raises what it raises."""
    value = (step.acall or step.call)()
    return await value if step.acall is not None or inspect.isawaitable(value) else value


def run_flow(flow: Flow[T]) -> T:
    """Runs a flow to its end for a synchronous caller. Returns what the flow returns, raises what it raises."""
    stopped: StopIteration | None = None
    try:
        step = next(flow)
        while True:
            try:
                value = step.call()
            except BaseException as error:  # noqa: BLE001 - the flow handles it
                stopped = error if isinstance(error, StopIteration) else None
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as end:
        return end.value
    except RuntimeError as error:
        if stopped is not None and error.__cause__ is stopped:  # Python lets no StopIteration out of a generator
            raise stopped from None
        raise


async def arun_flow(flow: Flow[T]) -> T:
    """As `run_flow`, for an asynchronous caller."""
    try:
        step = next(flow)
        while True:
            try:
                value = await taken(step)
            except BaseException as error:  # noqa: BLE001 - the flow handles it
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as end:
        return end.value
