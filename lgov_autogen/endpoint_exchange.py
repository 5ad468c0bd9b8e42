"""What an OpenAI-style endpoint said of one model call, and the headers that tell our own endpoint whose call it is.

AutoGen's replies do not keep the id that the endpoint gave them. Its clients for such endpoints send everything by the
``request`` method of an ``openai`` client, which is observed here.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lgov_autogen._internals import openai_client
from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.scope import current_scope


@dataclass(slots=True)
class Exchange:
    """One model call of ``agent``: the reply's id and model as the endpoint gave them; of several tries, the last."""

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


_CURRENT: contextvars.ContextVar[Exchange | None] = contextvars.ContextVar("lgov_autogen_exchange", default=None)


@contextmanager
def observing(client: Any, exchange: Exchange) -> Generator[None]:
    """Fills ``exchange`` from what the model client receives inside the block. Not across a ``yield``."""
    owner = openai_client(client)
    if owner is not None and not hasattr(owner.request, "_lgov_observed"):
        owner.request = _observed(owner, owner.request)
    token = _CURRENT.set(exchange)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _observed(owner: Any, request: Any) -> Any:
    @functools.wraps(request)
    async def observed_request(cast_to: Any, options: Any, **kwargs: Any) -> Any:
        exchange = _CURRENT.get()
        if exchange is None:
            return await request(cast_to, options, **kwargs)
        if (scope := current_scope()) is not None:
            options = _with_headers(options, endpoint_headers(str(owner.base_url), scope, exchange.agent))
        answer = await request(cast_to, options, **kwargs)
        if kwargs.get("stream") and hasattr(answer, "__anext__"):
            return _ObservedStream(answer, exchange)
        exchange.read(answer)
        return answer

    observed_request._lgov_observed = True  # type: ignore[attr-defined]
    return observed_request


def _with_headers(options: Any, headers: Mapping[str, str]) -> Any:
    if not headers:
        return options
    given: Any = options.headers
    return options.model_copy(update={"headers": {**(given if isinstance(given, Mapping) else {}), **headers}})


class _ObservedStream:
    """The client's stream; each chunk is read on its way."""

    def __init__(self, stream: Any, exchange: Exchange) -> None:
        self._stream = stream
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._stream)
        self._exchange.read(chunk)
        return chunk

    async def __aenter__(self) -> _ObservedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self._stream.__aexit__(*problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
