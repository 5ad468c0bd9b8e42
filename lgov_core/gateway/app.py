"""The training endpoint as an ASGI application, with the routes beside those of the model APIs.

These are spans over OTLP, health, metrics, and what an administrator asks: `lgov_core.gateway.api_routes` has the others.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import lgov_core
from lgov_core.errors import EndpointError, LgovError, ScopeError, TraceError
from lgov_core.gateway.access import (
    ATTEMPT_HEADER,
    ROLLOUT_HEADER,
    Access,
    KeyGrant,
    KeyRing,
    RuledRoute,
    attribute,
    bearer_key,
)
from lgov_core.gateway.api_routes import ApiRoutes
from lgov_core.gateway.capture import Capture, Counters
from lgov_core.gateway.door import Door
from lgov_core.gateway.guard import Guard
from lgov_core.gateway.limits import (
    CONTENT_TYPE,
    ROLLOUT_PREFIX,
    Admission,
    BodyBudget,
    Limits,
    Metrics,
    Reading,
    checked_body,
    json_response,
    read_body,
    read_object,
)
from lgov_core.gateway.operation import Readiness, UseCounts, log_event
from lgov_core.gateway.protocol import Attribution, Engine, Gate
from lgov_core.gateway.upstream import RegisteredModels
from lgov_core.store import TraceStore
from lgov_core.trace import semconv
from lgov_core.trace.canonical import states_result
from lgov_core.trace.otlp_http import (
    CONTENT_TYPE_OF,
    Protocol,
    answered_in,
    decode_traces,
    protocol_of,
    response_body,
    status_body,
)
from lgov_core.types import Span

#: Seconds after which exporters retry when the store fails.
_RETRY_AFTER_S = 5

#: A decompressed body may be this many times the limit, and never longer than `_MAX_INFLATED` bytes.
_INFLATION = 8
_MAX_INFLATED = 32 * 1024 * 1024
#: Requests decoded at the same time: decoding takes CPU, and several times the body in memory.
_AT_ONCE = 2
_PROBLEMS_SHOWN = 5
_PATH = "/v1/traces"

Handler: TypeAlias = Callable[[Request, Exception], Awaitable[Response]]


class TracesRoute:
    """The handler, for one event loop. ``max_body`` is in bytes, as sent.

    The sender is named by the key, the headers and the path, as for a model call. In a request of an attempt, spans that
    name no rollout become its own; those that name another are refused and counted, as is one that states the attempt's
    final reward or outcome, unless the key may give rewards. The admin key may send spans of any rollout.

    Spans are stored as claims (`Span.claimed`). The answer comes after the commit, in the request's own format: 200 with the
    number of rejected spans, or a ``google.rpc.Status``. A store that cannot write is a 503, which exporters try again.
    """

    def __init__(self, store: TraceStore | None, keys: KeyRing, *, max_body: int) -> None:
        self._store = store
        self._keys = keys
        self._max_body = max_body
        self._places = asyncio.Semaphore(_AT_ONCE)
        #: How many spans were stored, could not be read, and were not the sender's to send.
        self._counts: dict[str, int] = {"stored": 0, "unreadable": 0, "refused": 0}

    def routes(self) -> list[RuledRoute]:
        """The routes that an application mounts."""
        return [
            RuledRoute(f"{prefix}{_PATH}", self.receive, methods=["POST"], access=Access.AGENT)
            for prefix in ("", ROLLOUT_PREFIX)
        ]

    def refusing(self, on_error: Handler) -> Handler:
        """``on_error``, except that what this route refuses is answered as OTLP has it, also where others refuse it."""

        async def answer(request: Request, error: Exception) -> Response:
            if isinstance(error, LgovError) and request.url.path.endswith(_PATH):
                return _refusal(answered_in(request.headers.get("content-type")), error)
            return await on_error(request, error)

        return answer

    def readings(self) -> Iterable[Reading]:
        """The metrics of the route."""
        yield (
            "counter",
            "lgov_received_spans",
            "Spans received over OTLP, by what was done with them.",
            "what",
            dict(self._counts),
        )

    async def receive(self, request: Request) -> Response:
        """``POST .../v1/traces``."""
        content_type = request.headers.get("content-type")
        protocol = answered_in(content_type)
        try:
            grant = self._keys.check(bearer_key(request.headers))
            who = self._sender(request, grant)
            protocol = protocol_of(content_type)
            if self._store is None:
                raise EndpointError("this endpoint keeps no record", status=501, hint="start it with a store")
            body = await read_body(request, self._max_body)
            encoding = request.headers.get("content-encoding")
            async with self._places:
                rejected, problems = await asyncio.to_thread(
                    self._keep, self._store, body, protocol, encoding, who, grant
                )
        except LgovError as error:
            return _refusal(protocol, error)
        return Response(response_body(protocol, rejected, problems), media_type=CONTENT_TYPE_OF[protocol])

    def _sender(self, request: Request, grant: KeyGrant) -> Attribution:
        """The sender. With a key of all attempts at a rollout the spans may name their attempt."""
        named = ATTEMPT_HEADER in request.headers or ROLLOUT_HEADER in request.headers or request.path_params
        if grant.rollout_id is not None and grant.attempt is None and not named:
            return Attribution(grant.rollout_id, None)
        return attribute(request.headers, request.path_params, grant, allow_unattributed=True)

    def _keep(
        self,
        store: TraceStore,
        body: bytes,
        protocol: Protocol,
        encoding: str | None,
        who: Attribution,
        grant: KeyGrant,
    ) -> tuple[int, list[str]]:
        limit = max(self._max_body, min(self._max_body * _INFLATION, _MAX_INFLATED))
        traces = decode_traces(body, CONTENT_TYPE_OF[protocol], encoding, max_inflated=limit)
        refused: Counter[str] = Counter()
        spans: list[Span] = []
        for span in traces:
            if (why := _why_not(span, who, grant)) is not None:
                refused[why] += 1
            elif who.rollout_id is None:
                spans.append(span)
            else:
                attempt = span.attempt if who.attempt is None else who.attempt
                spans.append(replace(span, rollout_id=who.rollout_id, attempt=attempt))
        self._counts["stored"] += store.add_spans(spans)
        self._counts["unreadable"] += traces.rejected
        self._counts["refused"] += refused.total()
        problems = [f"{why} ({count} spans)" for why, count in refused.most_common(_PROBLEMS_SHOWN)]
        return traces.rejected + refused.total(), [*traces.problems, *problems]


def _why_not(span: Span, who: Attribution, grant: KeyGrant) -> str | None:
    """Why a span is not the sender's to send, or None."""
    if who.rollout_id is None:
        return None
    named = span.rollout_id is not None or semconv.names_rollout(span.attributes)
    if named and span.rollout_id != who.rollout_id:
        return f"the request belongs to rollout {who.rollout_id}, the span to another"
    if who.attempt is not None and span.attempt not in (None, who.attempt):
        return f"the request belongs to attempt {who.attempt}, the span to another"
    if not grant.may_judge and states_result(span):
        return "the key of an attempt does not give its final reward or its outcome"
    return None


def _refusal(protocol: Protocol, error: LgovError) -> Response:
    status = error.status if isinstance(error, EndpointError | TraceError) else 503
    headers = {"retry-after": str(_RETRY_AFTER_S)} if status == 503 else {}
    return Response(status_body(protocol, status, str(error)), status, headers, CONTENT_TYPE_OF[protocol])


_MAX_BODY = 64 * 1024
T = TypeVar("T")
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600, description="a number of seconds from 0 to 3600")]


class _Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drain_s: Seconds = 60.0
    retry_after_s: Seconds = 5.0
    reason: Annotated[str, msgspec.Meta(description="a text")] | None = None


class _Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    weights_version: Annotated[int, msgspec.Meta(ge=0, description="a whole number from 0")] | None = None


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rollout_id: Annotated[str, msgspec.Meta(description="a text")]
    attempt: Annotated[int, msgspec.Meta(ge=1, description="a whole number from 1, or null: all attempts")] | None = (
        None
    )
    expires_at: Annotated[float, msgspec.Meta(ge=0, le=1e12, description="a time in Unix seconds")] | None = None
    final_reward: Annotated[bool, msgspec.Meta(description="true or false")] = False


class AdminRoutes:
    """The handlers, for one event loop. All take an admin key, except ``/healthz`` and ``/readyz``, which show no names."""

    def __init__(
        self,
        admission: Admission,
        metrics: Metrics,
        keys: KeyRing,
        counters: Counters,
        ready: Readiness,
        about: Mapping[str, str],
    ) -> None:
        self._about = about
        self._ready = ready
        self._admission = admission
        self._metrics = metrics
        self._keys = keys
        self._counters = counters

    def routes(self) -> list[RuledRoute]:
        """The routes, each with its rule."""
        posts = {"pause": self.pause, "resume": self.resume, "keys": self.issue}
        return [
            *(RuledRoute(f"/admin/{name}", posts[name], methods=["POST"], access=Access.ADMIN) for name in posts),
            RuledRoute("/admin/state", self.state, methods=["GET"], access=Access.ADMIN),
            RuledRoute("/metrics", self.metrics, methods=["GET"], access=Access.ADMIN, is_probe=True),
            RuledRoute("/healthz", self.health, methods=["GET"], access=Access.OPEN, is_probe=True),
            RuledRoute("/readyz", self.ready, methods=["GET"], access=Access.OPEN, is_probe=True),
        ]

    async def state(self, request: Request) -> Response:
        """``GET /admin/state``: calls that run and wait, whether it is paused, the versions of the weights and of lgov, the
        digest of the policy, the counters.
        """
        return json_response({**asdict(self._admission.state()), **self._about, "counters": self._counters.as_dict()})

    async def health(self, request: Request) -> Response:
        """``GET /healthz``: answers as long as the endpoint does; needs no key."""
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """``GET /readyz``: 200 if calls can be served, else 503 with what is wrong (`Readiness.problems`). Needs no key."""
        problems = {name: problem for name, problem in (await self._ready.problems()).items() if problem is not None}
        return json_response({"status": "not ready" if problems else "ready", **problems}, 503 if problems else 200)

    async def pause(self, request: Request) -> Response:
        """``POST /admin/pause``: holds new calls and answers when the running ones have ended.

        ``drain_s`` (60) is how long it waits for that; ``drained`` in the answer says whether they have. Calls that wait
        too long get ``reason`` and a ``retry-after`` of ``retry_after_s`` (5) seconds.
        """
        body = await _checked(request, _Pause)
        state = await self._admission.pause(drain_s=body.drain_s, reason=body.reason, retry_after_s=body.retry_after_s)
        return json_response(asdict(state))

    async def resume(self, request: Request) -> Response:
        """``POST /admin/resume``: lets calls in again; ``weights_version`` (a whole number) is recorded with each."""
        body = await _checked(request, _Resume)
        return json_response(asdict(self._admission.resume(weights_version=body.weights_version)))

    async def issue(self, request: Request) -> Response:
        """``POST /admin/keys``: a key for ``rollout_id`` and ``attempt`` (null: all of them).

        ``expires_at`` is in Unix seconds; ``final_reward`` lets its bearer give the attempt its final reward.
        """
        body = await _checked(request, _Key)
        try:
            key = self._keys.issue(
                body.rollout_id, body.attempt, expires_at=body.expires_at, final_reward=body.final_reward
            )
        except ScopeError as error:
            raise EndpointError(str(error)) from error
        about = {"rollout": body.rollout_id, "attempt": body.attempt, "expires_at": body.expires_at}
        log_event(logging.INFO, "key issued", about)
        return json_response({"key": key})

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``, in the text format of Prometheus."""
        return Response(self._metrics.exposition(), headers={"content-type": CONTENT_TYPE})


async def _checked(request: Request, schema: type[T]) -> T:
    body = await read_object(request, _MAX_BODY)
    return checked_body(body, schema, f"{request.method} {request.url.path}")


@dataclass(frozen=True, slots=True)
class EndpointState:
    """The parts of a running endpoint, as ``app.state.endpoint``, for programs that embed it. Read in its event loop."""

    keys: KeyRing
    admission: Admission
    metrics: Metrics
    limits: Limits
    bodies: BodyBudget
    ready: Readiness
    cut: Callable[[], None]


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
    ``allow_unattributed=False`` refuses calls that name no rollout. Every request passes `Door`, whatever serves the
    application. Engines are started and closed with the application,
    the store is left open. ``app.state.counters`` are the `Counters`, ``app.state.endpoint`` the `EndpointState`,
    ``app.state.failures`` says by rollout and attempt how its last call failed by the machines.
    Raises `EndpointError` for no engines, or two that answer to one name.
    """
    _check_names(engines)
    registered = (
        next((served for served in engines if isinstance(served, RegisteredModels)), None) or RegisteredModels()
    )
    engines = [registered, *(served for served in engines if served is not registered)]
    limits = limits or Limits()
    metrics = Metrics(admission := Admission(limits), about := _about(gate))
    ready = Readiness(store, engines, {**keys.pings, **getattr(gate, "pings", {})})
    capture = Capture(store, admission, ready, use := UseCounts(limits.metrics_by))
    api = ApiRoutes(
        engines,
        capture,
        allow_unattributed=allow_unattributed,
        max_body=limits.max_body,
        gate=gate,
        strict_fields=limits.strict_fields,
    )
    traces = TracesRoute(store, keys, max_body=limits.max_body)
    guard = Guard(keys, limits, admission, metrics)
    routes = [
        *api.routes(),
        *traces.routes(),
        *AdminRoutes(admission, metrics, keys, capture.counters, ready, about).routes(),
        *_further_routes(EndpointParts(store, registered, api, admission, limits.max_body)),
        *more,
    ]
    on_error = traces.refusing(api.on_error)
    app = Starlette(
        routes=[guard.before(route) for route in routes],
        exception_handlers=dict.fromkeys((LgovError, HTTPException, Exception), on_error),
        lifespan=_running(engines, ready, about),
    )
    app.add_middleware(Door, has_keys=keys.required, allowed_hosts=limits.allowed_hosts)
    sources = filter(None, [getattr(source, "readings", None) for source in (*engines, gate)])
    for source in (*sources, partial(_of_capture, capture, store), traces.readings, ready.readings, use.readings):
        metrics.add_source(source)
    app.state.counters, app.state.failures = capture.counters, capture.failures
    app.state.endpoint = EndpointState(keys, admission, metrics, limits, guard.bodies, ready, guard.cut)
    return app


def _about(gate: Gate | None) -> dict[str, str]:
    return {"version": lgov_core.__version__, "policy_digest": getattr(gate, "policy_digest", "")}


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


def _running(
    engines: Sequence[Engine], ready: Readiness, about: Mapping[str, str]
) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
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
            await running.enter_async_context(ready.watching())
            log_event(logging.INFO, "started", about)
            yield
        log_event(logging.INFO, "stopped", {})

    return lifespan
