"""Who may use which route. Every route of the endpoint has a rule; one without is not mounted."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.serving.admission import Admission
from lgov_core.gateway.serving.attribution import bearer_key, first_of_each
from lgov_core.gateway.serving.keys import KeyGrant, KeyRing
from lgov_core.gateway.serving.limits import Busy, HeldBodies, Limits, Receive, Send, Sending, in_time
from lgov_core.gateway.serving.metrics import Metrics

_LOG = logging.getLogger("lgov.gateway")


class Access(StrEnum):
    """Who may use a route.

    ``open``: everybody. ``agent``: whoever has a key, for the rollout that the key is for and no other; the route takes
    care of the ids in the body, the path parameter ``rollout_id`` is compared here. ``admin``: an admin key; where keys are
    not required (a loopback address), also nobody in particular, but never the key of a rollout.
    """

    OPEN = "open"
    AGENT = "agent"
    ADMIN = "admin"


class RuledRoute(Route):
    """A route with the rule of who may use it. ``is_call``: it asks a model, so it waits for a place and can be paused."""

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, methods: Sequence[str], access: Access, is_call: bool = False
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.access = access
        self.is_call = is_call
        #: The same without the way through the router; see `Shortcut`.
        self.direct: ASGIApp = self.app


class Guard:
    """Stands before every route: keys, limits, places, and the count of what happened. For one event loop."""

    def __init__(self, keys: KeyRing, limits: Limits, admission: Admission, metrics: Metrics) -> None:
        self._keys = keys
        self._limits = limits
        self._admission = admission
        self._metrics = metrics
        self.held = HeldBodies(limits)

    def before(self, route: RuledRoute) -> RuledRoute:
        """The route, with this guard before it."""
        route.app = _Guarded(self, route, route.app)
        route.direct = _Guarded(self, route, _Answering(route.endpoint))
        return route

    def grant(self, scope: Scope, access: Access) -> KeyGrant:
        """What the request may do. Raises `EndpointError`: 401 for a bad key, 403 for one that must not come here."""
        grant = self._keys.check(bearer_key(first_of_each(scope["headers"])))
        if access is Access.ADMIN and not grant.admin and not grant.anonymous:
            raise EndpointError("the key of a rollout may not do this", status=403, hint="it takes an admin key")
        named = scope["path_params"].get("rollout_id")
        if named is not None and grant.rollout_id not in (None, named):
            raise EndpointError(f"the key is for rollout {grant.rollout_id!r}, not for {named!r}", status=403)
        return grant

    async def serve(self, route: RuledRoute, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets one request through."""
        began = time.perf_counter()
        sending = scope["lgov.sending"] = Sending(send, self._limits.write_s)
        self._metrics.began(route.path)
        held = 0

        def hold(more: int) -> None:
            nonlocal held
            held = self.held.hold(held, more)

        try:
            if route.access is not Access.OPEN:
                scope["lgov.grant"] = self.grant(scope, route.access)
            receive = in_time(receive, self._limits.body_s, hold)
            if not route.is_call:
                await app(scope, receive, sending)
                return
            await self._admission.enter()
            try:
                await app(scope, receive, sending)
            finally:
                self._admission.leave()
        except EndpointError as error:
            sending.status = sending.status or error.status  # what the error handler is about to send
            if isinstance(error, Busy):
                scope["lgov.retry_after_s"] = error.retry_after_s
            raise
        finally:
            self.held.release(held)
            took = time.perf_counter() - began
            first = None if sending.first_at is None else sending.first_at - began
            self._metrics.ended(route.path, sending.status, took, first)


class _Guarded:
    __slots__ = ("_app", "_guard", "_route")

    def __init__(self, guard: Guard, route: RuledRoute, app: ASGIApp) -> None:
        self._guard, self._route, self._app = guard, route, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard.serve(self._route, self._app, scope, receive, send)


class _Answering:
    """A handler as an application: what it raises goes to whoever called."""

    __slots__ = ("_endpoint",)

    def __init__(self, endpoint: Callable[..., Any]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


class Shortcut:
    """Takes requests for plain paths, and those below a rollout's prefix, straight to their route.

    A model call spends more time in a router and its layers than in anything that is done with it here. What this does
    not know goes to the application; what it knows is answered as there: ``on_error`` makes the answer to an error.
    """

    def __init__(
        self,
        app: ASGIApp,
        routes: Sequence[RuledRoute],
        on_error: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self._app = app
        self._on_error = on_error
        plain = [route for route in routes if "{" not in route.path]
        self._routes = {(method, route.path): route for route in plain for method in route.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http":
            path, params = scope["path"], {}
            if path.startswith("/rollout/"):
                _, _, rollout_id, word, attempt, *below = path.split("/", 5) if path.count("/") > 4 else ("",) * 6
                if word == "attempt" and below:
                    path, params = f"/{below[0]}", {"rollout_id": rollout_id, "attempt": attempt}
            route = self._routes.get((scope["method"], path))
            if route is not None and (not params or path.startswith("/v1/")):
                scope["path_params"] = params
                await self._serve(route, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _serve(self, route: RuledRoute, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await route.direct(scope, receive, send)
        except Exception as error:
            if scope["lgov.sending"].first_at is not None:
                raise
            if not isinstance(error, LgovError):
                _LOG.error("%s failed", route.path, exc_info=error)
            response = await self._on_error(Request(scope, receive), error)
            if (seconds := scope.get("lgov.retry_after_s")) is not None:
                response.headers["retry-after"] = str(max(1, round(seconds)))
            await response(scope, receive, send)


class RetryAdvice:
    """Writes ``retry-after`` onto what is refused for want of a place, whatever API it was asked in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def advise(message: Any) -> None:
            if message["type"] == "http.response.start" and (seconds := scope.get("lgov.retry_after_s")) is not None:
                message["headers"] = [*message.get("headers", ()), (b"retry-after", b"%d" % max(1, round(seconds)))]
            await send(message)

        await self._app(scope, receive, advise)


def grant_of(scope: Scope) -> KeyGrant:
    """What the key of a request allows, as its guard found it. Fails closed: nothing where there was no guard."""
    grant = scope.get("lgov.grant")
    if not isinstance(grant, KeyGrant):
        raise EndpointError("this route has no rule of who may use it", status=500)
    return grant
