"""A governed call of a tool, whole or as a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

Emit = Callable[[Any], None]


async def events_of(governed: Callable[[Emit], Awaitable[Any]]) -> AsyncIterator[Any]:
    """The events that ``governed`` emits while it runs, then what it returns. Raises what it raises.

    It runs in its own task, so that no context variable of the call is set while the consumer handles an event.
    """
    events: asyncio.Queue[tuple[bool, Any]] = asyncio.Queue()

    async def work() -> Any:
        try:
            return await governed(lambda event: events.put_nowait((True, event)))
        finally:
            events.put_nowait((False, None))

    task = asyncio.create_task(work())
    try:
        while True:
            more, event = await events.get()
            if not more:
                break
            yield event
        yield await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def last_of(events: AsyncIterator[Any], emit: Emit) -> Any:
    """Emits all events but the last, and returns that; None if there is none."""
    waiting: list[Any] = []
    async for event in events:
        if waiting:
            emit(waiting.pop())
        waiting.append(event)
    return waiting.pop() if waiting else None
