"""What only the HTTP client behind a model client knows: the id that the endpoint gave to a reply.

AutoGen's replies do not keep it. The clients for OpenAI-style endpoints hold an ``openai`` client, through whose
``request`` every call goes; it is watched there, for the calls that somebody wants to know about.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Reply:
    """What the endpoint said about the reply; of several requests, the last."""

    response_id: str | None = None
    model: str | None = None

    def read(self, body: Any) -> None:
        """Takes the id and the model from a body or a chunk."""
        found = getattr(body, "id", None)
        if isinstance(found, str) and found:
            self.response_id = found
            model = getattr(body, "model", None)
            self.model = model if isinstance(model, str) else None


_WANTED: contextvars.ContextVar[Reply | None] = contextvars.ContextVar("lgov_autogen_reply", default=None)


@contextmanager
def watching(client: Any, reply: Reply) -> Generator[None]:
    """Fills ``reply`` from what ``client`` receives inside the block. Not across a ``yield``."""
    _watch(client)
    token = _WANTED.set(reply)
    try:
        yield
    finally:
        _WANTED.reset(token)


def _watch(client: Any) -> None:
    seen: Any = client
    for _ in range(8):
        owners: tuple[Any, ...] = (seen, getattr(seen, "_client", None))
        for owner in owners:
            request = getattr(owner, "request", None)
            if callable(request) and type(owner).__module__.partition(".")[0] == "openai":
                if not hasattr(request, "_lgov_watched"):
                    owner.request = _watched(request)
                return
        seen = getattr(seen, "client", None)
        if seen is None:
            return


def _watched(request: Any) -> Any:
    @functools.wraps(request)
    async def watched_request(*args: Any, **kwargs: Any) -> Any:
        wanted = _WANTED.get()
        answer = await request(*args, **kwargs)
        if wanted is None:
            return answer
        if kwargs.get("stream") and hasattr(answer, "__anext__"):
            return _WatchedStream(answer, wanted)
        wanted.read(answer)
        return answer

    watched_request._lgov_watched = True  # type: ignore[attr-defined]
    return watched_request


class _WatchedStream:
    """The client's stream; each chunk is read in passing."""

    def __init__(self, stream: Any, reply: Reply) -> None:
        self._stream = stream
        self._reply = reply

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._stream)
        self._reply.read(chunk)
        return chunk

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self._stream.__aexit__(*problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
