"""The training endpoint as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.api_routes import ApiRoutes
from lgov_core.gateway.capture import Capture
from lgov_core.gateway.keys import KeyRing
from lgov_core.gateway.protocol import Engine
from lgov_core.store.protocol import TraceStore

DEFAULT_MAX_BODY = 8 * 1024 * 1024


def create_app(
    engines: Sequence[Engine],
    store: TraceStore | None,
    *,
    keys: KeyRing,
    allow_unattributed: bool = True,
    max_body: int = DEFAULT_MAX_BODY,
) -> Starlette:
    """The endpoint: ``/v1/chat/completions``, ``/v1/models``, both also under ``/rollout/{id}/attempt/{n}``,
    ``/healthz``.

    Each call goes to the engine that has its model, and is committed to ``store`` before the client learns that it is
    done; None records nothing. ``allow_unattributed=False`` refuses calls that name no rollout. ``max_body`` is in
    bytes. Engines are started and closed with the application, the store is left open.

    ``app.state.counters`` counts what happened (`lgov_core.gateway.capture.Counters`).
    Raises `EndpointError` for no engines, or two that answer to one name.
    """
    _check_names(engines)
    capture = Capture(store)
    routes = ApiRoutes(engines, capture, keys, allow_unattributed=allow_unattributed, max_body=max_body)
    app = Starlette(
        routes=[*routes.routes(), Route("/healthz", routes.health, methods=["GET"])],
        exception_handlers={LgovError: routes.on_error, HTTPException: routes.on_error, Exception: routes.on_error},
        lifespan=_running(engines),
    )
    app.state.counters = capture.counters
    return app


def _check_names(engines: Sequence[Engine]) -> None:
    if not engines:
        raise EndpointError("an endpoint needs at least one engine")
    owner: dict[str, str] = {}
    for engine in engines:
        for name in engine.models:
            if name in owner:
                raise EndpointError(f"model {name!r} is answered by two engines: {owner[name]} and {engine.name}")
            owner[name] = engine.name


def _running(engines: Sequence[Engine]) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with AsyncExitStack() as running:
            try:
                for engine in engines:
                    await engine.start()
                    running.push_async_callback(engine.close)
            except Exception as error:
                app.state.startup_error = error  # whoever starts the server wants to know
                raise
            yield

    return lifespan
