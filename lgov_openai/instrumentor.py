"""Governs every openai client of this process without touching its code.

`instrument` wraps ``OpenAI.request`` and ``AsyncOpenAI.request``, through which each call of every client goes: Azure's and the
module's own client too, clients made before, and those that frameworks make for themselves. A model call inside one that
a framework's adapter has evaluated is passed on.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation.instrumentor import Instrumentor, Patches, in_fresh_thread
from lgov_core.types import Point

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor
    from lgov_openai.interceptor import Interceptor

#: The versions that the tests run against.
TESTED = {"openai": ">=3.15,<4"}

_INSTRUMENTOR = Instrumentor("openai", TESTED)


def instrument(governor: Governor) -> None:
    """Governs every openai client of this process by ``governor``, and proves it by a self-test.

    Instrumentation again with the same governor changes nothing. Warns about versions outside the tested range. Raises
    `InstrumentationError` if openai is missing, if another governor is instrumented, or if the self-test finds a way
    around; then nothing stays patched and the process must not run agents.
    """
    _INSTRUMENTOR.instrument(governor, _patch, _self_test)


def uninstrument() -> None:
    """Undoes `instrument` and forgets all conversations."""
    _INSTRUMENTOR.uninstrument()


def _patch(patches: Patches) -> None:
    from openai import AsyncOpenAI, OpenAI

    from lgov_openai.interceptor import Interceptor

    interceptor = Interceptor(lambda: _INSTRUMENTOR.governor)
    patches.undo_by(interceptor.forget)
    atexit.register(interceptor.end_streams)
    patches.undo_by(lambda: atexit.unregister(interceptor.end_streams))
    patches.replace(OpenAI, "request", _governed(OpenAI.request, interceptor))
    patches.replace(AsyncOpenAI, "request", _agoverned(AsyncOpenAI.request, interceptor))


def _governed(request: Callable[..., Any], interceptor: Interceptor) -> Callable[..., Any]:
    from lgov_openai.interceptor import intercepting

    @functools.wraps(request)
    def governed_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        with intercepting(self, (interceptor,)):
            return request(self, *args, **kwargs)

    return governed_request


def _agoverned(request: Callable[..., Any], interceptor: Interceptor) -> Callable[..., Any]:
    from lgov_openai.interceptor import intercepting

    @functools.wraps(request)
    async def governed_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        with intercepting(self, (interceptor,)):
            return await request(self, *args, **kwargs)

    return governed_request


# ---------------------------------------------------------------------- the proof


def _self_test() -> None:
    """Raises `InstrumentationError` if a proposed call reaches the program although a probe governor denies all calls.

    Runs in this thread: while openai is being imported (which is when ``lgov run`` instruments it) no other thread could import
    what it needs. Inside a running event loop another loop cannot run here, so that only then a thread is used, and not at
    all in the middle of the import; there the synchronous half has to do.
    """
    import openai

    from lgov_openai import probe

    got: list[str] = []
    with _INSTRUMENTOR.denying_everything(only=frozenset({Point.PRE_TOOL_CALL})):
        probe.ask(got)
        if not _loop_is_running():
            asyncio.run(probe.aask(got))
        elif not getattr(openai.__spec__, "_initializing", False):
            in_fresh_thread(lambda: asyncio.run(probe.aask(got)))
    if got:
        raise InstrumentationError(f"a denied probe call reached the program all the same ({', '.join(got)})")


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
