"""Judges what an endpoint's policies read: a little of it at once, more in threads, in turns.

Handing work to a thread and back costs more than most judgements do; what may take longer must hold up neither the event loop
nor a small request. How much one request may hold, and how long judging it may take, is bounded (`JudgingLimits`).
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from lgov_core.errors import EndpointError
from lgov_core.flow import TURN, Flow, Step, taken
from lgov_core.gateway.limits import Busy
from lgov_core.gateway.protocol import GateRequest

T = TypeVar("T")

#: Seconds that one request is judged before another of its size has its turn.
_TURN_S: Final = 0.01
#: Texts, and characters in them, that are judged on the event loop. A policy takes up to 5 us a character of a hostile text.
_FEW_TEXTS, _FEW_CHARACTERS = 64, 8000
#: The sizes (texts, and thousands of characters) up to which requests share a thread; larger ones share one more.
_SIZES: Final = (64, 512, 4096)


_NOT_READ: Final = ("role", "id", "tool_call_id")


@dataclass(frozen=True, slots=True)
class JudgingLimits:
    """Limits of what policies read of one request; the settings of `lgov serve` have the same names.

    ``max_texts`` texts at most, of together ``max_characters`` characters: messages, arguments of calls, and what else is
    text in a request. ``judging_s`` seconds to judge them, with the wait for a turn and without that for people and servers.
    """

    max_texts: int = 8192
    max_characters: int = 4_000_000
    judging_s: float = 20.0

    def size(self, request: GateRequest) -> int:
        """Returns how large the request is, as `size_of` does. Raises `EndpointError` (413) that names the limit."""
        texts = characters = 0
        for text in _texts([request.messages, request.fields]):
            texts, characters = texts + 1, characters + len(text)
            if texts > self.max_texts:
                raise _too_large("texts", self.max_texts, "max_texts")
            if characters > self.max_characters:
                raise _too_large("characters of text", self.max_characters, "max_characters")
        return size_of(texts, characters)


def size_of(texts: int, characters: int) -> int:
    """Returns how much there is to judge, for `Turns.judged`: 0 for what is judged on the event loop."""
    few = texts <= _FEW_TEXTS and characters <= _FEW_CHARACTERS
    return 0 if few else texts + characters // 1000


def _too_large(what: str, limit: int, setting: str) -> EndpointError:
    hint = f"send less at once, or raise the setting {setting}"
    return EndpointError(f"the request has more than {limit} {what} for policies to read", status=413, hint=hint)


def _texts(values: list[Any]) -> Iterator[str]:
    """Every text in ``values`` that is not empty, without the roles and ids of messages."""
    while values:
        value = values.pop()
        if isinstance(value, str):
            if value:
                yield value
        elif isinstance(value, Mapping):
            values += [item for name, item in value.items() if name not in _NOT_READ]
        elif isinstance(value, list | tuple):
            values += value


@dataclass(frozen=True, slots=True)
class _Ended(Generic[T]):
    result: T


class Turns:
    """Where flows are judged: those of size 0 on the event loop, others in threads. For one event loop.

    Requests of like size share one thread and take turns in it, so that one waits for others of its size only. A flow that has
    not ended after its first turn on the event loop goes on in the first thread. What a flow
    waits for, it waits for on the event loop, without a thread. While a flow of an attempt computes, no other flow of
    that attempt does: they decide in one order, as if there was one thread.
    """

    def __init__(self, limits: JudgingLimits) -> None:
        self.limits = limits
        self._threads = [ThreadPoolExecutor(1, f"lgov-judging-{number}") for number in range(len(_SIZES) + 1)]
        self._attempts: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Ends the threads once they have nothing to do."""
        for thread in self._threads:
            thread.shutdown(wait=False)

    async def judged(self, flow: Flow[T], size: int, attempt: Hashable | None) -> T:
        """Returns what ``flow`` returns. Raises what it raises, and `Busy` (429) when judging takes too long."""
        thread = self._threads[sum(size > limit for limit in _SIZES)] if size else None
        context = contextvars.copy_context()
        lock: AbstractAsyncContextManager[Any] = nullcontext()
        if attempt is not None:
            lock = self._attempts.setdefault(attempt, asyncio.Lock())
        spent = 0.0
        resume: Callable[[], Step[Any]] = partial(next, flow)
        while True:
            async with lock:
                began = time.monotonic()
                while (step := await _turn(thread, context, flow, resume)) is TURN:
                    thread = thread or self._threads[0]
                    over = spent + time.monotonic() - began > self.limits.judging_s
                    resume = partial(flow.throw, self._too_long()) if over else partial(flow.send, None)
                spent += time.monotonic() - began
            if isinstance(step, _Ended):
                return step.result
            try:
                value = await asyncio.get_running_loop().create_task(taken(step), context=context)
            except BaseException as error:  # noqa: BLE001 - the flow handles it
                resume = partial(flow.throw, error)
            else:
                resume = partial(flow.send, value)

    def _too_long(self) -> Busy:
        what = f"judging the request took longer than {self.limits.judging_s:g} s, the setting judging_s"
        return Busy(f"{what}; what was evaluated by then is not evaluated again", status=429)


async def _turn(
    thread: ThreadPoolExecutor | None, context: contextvars.Context, flow: Flow[T], resume: Callable[[], Step[Any]]
) -> Step[Any] | _Ended[T]:
    """One turn of ``flow``, here or in ``thread``: the step that it waits for next, `TURN` if it can go on, or its end."""
    if thread is None:
        return context.run(_advance, flow, resume)
    turn = asyncio.get_running_loop().run_in_executor(thread, lambda: context.run(_advance, flow, resume))
    try:
        return await asyncio.shield(turn)
    except asyncio.CancelledError as cancelled:
        await asyncio.wait([turn])  # a flow cannot be stopped while it computes
        context.run(_stop, flow, cancelled)
        raise


def _advance(flow: Flow[T], resume: Callable[[], Step[Any]]) -> Step[Any] | _Ended[T]:
    until = time.monotonic() + _TURN_S
    try:
        step = resume()
        while step is TURN and time.monotonic() < until:
            step = flow.send(None)
    except StopIteration as end:
        return _Ended(end.value)
    return step


def _stop(flow: Flow[Any], error: BaseException) -> None:
    try:
        flow.throw(error)
    except BaseException:  # noqa: BLE001 - its end; the caller raises
        return
    flow.close()
