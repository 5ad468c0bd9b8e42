"""The HTTP client behind a model client: which reply it got, and whose call it tells the endpoint that it is.

AutoGen's replies do not keep the id that the endpoint gave them. The clients for OpenAI-style endpoints hold an ``openai``
client, through whose ``request`` every call goes; it is watched there. On the way out the call gets the headers that
name its rollout, if it goes to our own training endpoint.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.scope import current_scope


@dataclass(slots=True)
class Exchange:
    """One model call on the wire: the ``agent`` that makes it, and what the endpoint said; of several tries, the last."""

    agent: str | None = None
    response_id: str | None = None
    model: str | None = None

    def read(self, body: Any) -> None:
        """Takes the id and the model from a body or a chunk."""
        found = getattr(body, "id", None)
        if isinstance(found, str) and found:
            self.response_id = found
            model = getattr(body, "model", None)
            self.model = model if isinstance(model, str) else None


_WATCHED: contextvars.ContextVar[Exchange | None] = contextvars.ContextVar("lgov_autogen_exchange", default=None)


class _Watching:
    """What `watching` gives; a generator would take twice as long, and this is on the path of every call."""

    __slots__ = ("_exchange", "_token")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __enter__(self) -> None:
        self._token = _WATCHED.set(self._exchange)

    def __exit__(self, *exc: object) -> None:
        _WATCHED.reset(self._token)


def watching(client: Any, exchange: Exchange) -> AbstractContextManager[None, None]:
    """Fills ``exchange`` from what ``client`` receives inside the block. Not across a ``yield``."""
    _watch(client)
    return _Watching(exchange)


def _watch(client: Any) -> None:
    seen: Any = client
    for _ in range(8):
        owners: tuple[Any, ...] = (seen, getattr(seen, "_client", None))
        for owner in owners:
            request = getattr(owner, "request", None)
            if hasattr(request, "_lgov_watched"):
                return
            if callable(request) and type(owner).__module__.partition(".")[0] == "openai":
                owner.request = _watched(owner, request)
                return
        seen = getattr(seen, "client", None)
        if seen is None:
            return


def _watched(owner: Any, request: Any) -> Any:
    @functools.wraps(request)
    async def watched_request(cast_to: Any, options: Any, **kwargs: Any) -> Any:
        exchange = _WATCHED.get()
        if exchange is None:
            return await request(cast_to, options, **kwargs)
        if (scope := current_scope()) is not None:
            options = _with_headers(options, endpoint_headers(str(owner.base_url), scope, exchange.agent))
        answer = await request(cast_to, options, **kwargs)
        if kwargs.get("stream") and hasattr(answer, "__anext__"):
            return _WatchedStream(answer, exchange)
        exchange.read(answer)
        return answer

    watched_request._lgov_watched = True  # type: ignore[attr-defined]
    return watched_request


def _with_headers(options: Any, headers: Mapping[str, str]) -> Any:
    if not headers:
        return options
    given: Any = options.headers
    return options.model_copy(update={"headers": {**(given if isinstance(given, Mapping) else {}), **headers}})


class _WatchedStream:
    """The client's stream; each chunk is read in passing."""

    def __init__(self, stream: Any, exchange: Exchange) -> None:
        self._stream = stream
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._stream)
        self._exchange.read(chunk)
        return chunk

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self._stream.__aexit__(*problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
