"""The training endpoint as an ASGI application."""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.protocol import Engine, Gate
from lgov_core.gateway.routes.admin_routes import AdminRoutes
from lgov_core.gateway.routes.api_routes import ApiRoutes
from lgov_core.gateway.routes.otlp_route import TracesRoute
from lgov_core.gateway.serving.access import Guard, RuledRoute
from lgov_core.gateway.serving.capture import Capture
from lgov_core.gateway.serving.keys import KeyRing
from lgov_core.gateway.serving.limits import Admission, BodyBudget, Limits
from lgov_core.gateway.serving.metrics import Metrics, Reading
from lgov_core.gateway.upstream.registered_models import RegisteredModels
from lgov_core.store import TraceStore


@dataclass(frozen=True, slots=True)
class EndpointState:
    """The parts of a running endpoint, as ``app.state.endpoint``, for programs that embed it. Read in its event loop."""

    admission: Admission
    metrics: Metrics
    limits: Limits
    bodies: BodyBudget


@dataclass(frozen=True, slots=True)
class EndpointParts:
    """The parts of an endpoint, for routes that stand apart. Without a ``store`` nothing is recorded."""

    store: TraceStore | None
    registered: RegisteredModels
    api: ApiRoutes
    admission: Admission
    max_body: int


#: Routes that stand apart: ``module:function`` of the `EndpointParts`, imported when an endpoint is made.
FURTHER_ROUTES: Final = ("lgov_core.integrations.agent_lightning.routes:lightning_routes",)


def create_app(
    engines: Sequence[Engine],
    store: TraceStore | None,
    *,
    keys: KeyRing,
    allow_unattributed: bool = True,
    limits: Limits | None = None,
    gate: Gate | None = None,
    more: Sequence[RuledRoute] = (),
) -> Starlette:
    """The endpoint: `ApiRoutes` and `TracesRoute`, each also under ``/rollout/{id}/attempt/{n}``, `AdminRoutes`,
    those of `FURTHER_ROUTES`, and the routes ``more``.

    Each call goes to the engine that has its model (`RegisteredModels` first) and is committed to ``store`` before the
    client gets the end of the reply; None records nothing. ``gate`` judges requests and replies.
    ``allow_unattributed=False`` refuses calls that name no rollout. Engines are started and closed with the application,
    the store is left open. ``app.state.counters`` are the `Counters`, ``app.state.endpoint`` the `EndpointState`.
    Raises `EndpointError` for no engines, or two that answer to one name.
    """
    _check_names(engines)
    registered = (
        next((served for served in engines if isinstance(served, RegisteredModels)), None) or RegisteredModels()
    )
    engines = [registered, *(served for served in engines if served is not registered)]
    limits = limits or Limits()
    admission = Admission(limits)
    metrics = Metrics(admission)
    capture = Capture(store, admission)
    api = ApiRoutes(engines, capture, allow_unattributed=allow_unattributed, max_body=limits.max_body, gate=gate)
    traces = TracesRoute(store, keys, max_body=limits.max_body)
    guard = Guard(keys, limits, admission, metrics)
    routes = [
        *api.routes(),
        *traces.routes(),
        *AdminRoutes(admission, metrics, keys, capture.counters).routes(),
        *_further_routes(EndpointParts(store, registered, api, admission, limits.max_body)),
        *more,
    ]
    on_error = traces.refusing(api.on_error)
    app = Starlette(
        routes=[guard.before(route) for route in routes],
        exception_handlers=dict.fromkeys((LgovError, HTTPException, Exception), on_error),
        lifespan=_running(engines),
    )
    sources = [getattr(engine, "readings", None) for engine in engines]
    for source in (*filter(None, sources), partial(_of_capture, capture, store), traces.readings):
        metrics.add_source(source)
    app.state.counters = capture.counters
    app.state.endpoint = EndpointState(admission, metrics, limits, guard.bodies)
    return app


def _further_routes(parts: EndpointParts) -> Iterator[RuledRoute]:
    for reference in FURTHER_ROUTES:
        module, _, function = reference.partition(":")
        yield from getattr(importlib.import_module(module), function)(parts)


def _of_capture(capture: Capture, store: TraceStore | None) -> Iterable[Reading]:
    counts = capture.counters.as_dict()
    tokens = {name: counts.pop(f"{name}_tokens") for name in ("prompt", "response")}
    yield "counter", "lgov_tokens", "Tokens of the recorded calls.", "of", tokens
    yield (
        "counter",
        "lgov_commit_seconds",
        "Seconds that calls waited until they were stored.",
        None,
        {"": counts.pop("commit_s")},
    )
    yield "counter", "lgov_calls", "Model calls, by outcome.", "what", counts
    if store is not None:
        yield "counter", "lgov_dropped_spans", "Spans that were dropped.", None, {"": float(store.dropped_spans)}


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
                app.state.startup_error = error  # raised by the server's start
                raise
            yield

    return lifespan
