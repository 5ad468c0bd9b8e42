"""Governs every openai client of this process without touching its code.

`instrument` wraps ``OpenAI.request`` and ``AsyncOpenAI.request``, through which each call of every client goes: Azure's and the
module's own client too, clients made before, and those that frameworks make for themselves. A model call inside one that
a framework's adapter has evaluated is passed on.
"""

from __future__ import annotations

import asyncio
import atexit
from typing import TYPE_CHECKING

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation.framework import Instrumentor, Patches, in_fresh_thread
from lgov_core.types import Point

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

#: The versions that the tests run against.
TESTED = {"openai": ">=3.15,<4"}

INSTRUMENTOR = Instrumentor("openai", TESTED)


def instrument(governor: Governor) -> None:
    """Governs every openai client of this process by ``governor``, and proves it by a self-test.

    Raises `InstrumentationError` if openai is missing, and as `Instrumentor.instrument` does.
    """
    INSTRUMENTOR.instrument(governor, _patch, _self_test)


def uninstrument() -> None:
    """Undoes `instrument` and forgets all conversations."""
    INSTRUMENTOR.uninstrument()


def _patch(patches: Patches) -> None:
    from openai import AsyncOpenAI, OpenAI

    from lgov_openai.client import Interceptor, wrapped_request

    interceptor = Interceptor(lambda: INSTRUMENTOR.governor)
    patches.undo_by(interceptor.forget)
    atexit.register(interceptor.end_recordings)
    patches.undo_by(lambda: atexit.unregister(interceptor.end_recordings))
    for cls in (OpenAI, AsyncOpenAI):
        patches.replace(cls, "request", wrapped_request(cls.request, (interceptor,)))


def _self_test() -> None:
    """Raises `InstrumentationError` if a proposed call reaches the program although a probe governor denies all calls.

    Runs in this thread: while openai is being imported (``lgov run`` instruments it then) another thread could not import
    what it needs. In a running event loop the asynchronous half needs a thread, so that it is left out during the import.
    """
    import openai

    from lgov_openai.probe import aungoverned_ways, ungoverned_ways

    with INSTRUMENTOR.denying_everything(only=frozenset({Point.PRE_TOOL_CALL})):
        ways = ungoverned_ways()
        if not _loop_is_running():
            ways += asyncio.run(aungoverned_ways())
        elif not getattr(openai.__spec__, "_initializing", False):
            in_fresh_thread(lambda: ways.extend(asyncio.run(aungoverned_ways())))
    if ways:
        raise InstrumentationError(f"a denied probe call reached the program all the same ({', '.join(ways)})")


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
