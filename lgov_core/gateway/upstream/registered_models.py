"""Models that are made known while the endpoint runs: servers that a trainer starts, and replaces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TYPE_CHECKING

from lgov_core.errors import EndpointError
from lgov_core.gateway.serving.metrics import Reading
from lgov_core.wire.exchange import ChatRequest, Completion, StreamPiece

if TYPE_CHECKING:
    from lgov_core.gateway.upstream.engine import UpstreamEngine


class RegisteredModels:
    """An `Engine` of `UpstreamEngine`s, one a model. For one event loop.

    A model may have several servers, registered one by one. What is removed gets no new calls; those that it is
    answering go on to their end.
    """

    name = "registered"
    speaks = ("chat", "completions", "embeddings")

    def __init__(self, *, api_key: str | None = None, timeout_s: float = 120.0) -> None:
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._engines: dict[str, UpstreamEngine] = {}
        self._retired: list[UpstreamEngine] = []
        self._running = False

    @property
    def models(self) -> Sequence[str]:
        """The names that are registered."""
        return tuple(self._engines)

    async def start(self) -> None:
        """Makes ready for models to come."""
        self._running = True

    async def close(self) -> None:
        """Closes all connections; what is still waiting fails."""
        self._running = False
        for engine in [*self._engines.values(), *self._retired]:
            await engine.close()
        self._engines, self._retired = {}, []

    async def register(self, model: str, endpoint: str, version: int | None = None) -> None:
        """Makes known that the server at ``endpoint`` (with ``/v1``) has ``model``, in a version of its weights.

        Doing it again changes the version. Raises `EndpointError` for an empty name or a URL that is not a server's.
        """
        if not model or not self._running:
            raise EndpointError("a model needs a name" if not model else "the endpoint is not running", status=422)
        from lgov_core.gateway.upstream.engine import UpstreamEngine

        engine = self._engines.get(model)
        if engine is None:
            engine = UpstreamEngine(endpoint, self._api_key, [model], self._timeout_s, name=f"{self.name} {model}")
            await engine.start()
            self._engines[model] = engine
        engine.pool.put(endpoint, version)
        await self._close_retired()

    async def clear(self) -> None:
        """Removes every model."""
        self._retired += self._engines.values()
        self._engines = {}
        await self._close_retired()

    async def _close_retired(self) -> None:
        for engine in list(self._retired):
            if not any(replica.running for replica in engine.pool.replicas):
                self._retired.remove(engine)
                await engine.close()

    def _engine(self, model: str) -> UpstreamEngine:
        engine = self._engines.get(model)
        if engine is None:
            raise EndpointError(f"no server is registered for model {model!r}", status=503)
        return engine

    async def chat(self, request: ChatRequest) -> Completion:
        """The reply of one of the model's servers."""
        return await self._engine(request.model).chat(request)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[StreamPiece, None]:
        """The same, streamed."""
        async for piece in self._engine(request.model).stream(request):
            yield piece

    async def embed(self, body: dict[str, object]) -> object:
        """Embeddings of one of the model's servers."""
        return await self._engine(str(body["model"])).embed(body)

    def readings(self) -> Iterable[Reading]:
        """The metrics of the servers of all models together."""
        for engine in list(self._engines.values())[:1]:
            yield from engine.readings()
