"""Who may use which route. Every route of the endpoint has a rule; one without is not mounted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.serving.admission import Admission
from lgov_core.gateway.serving.attribution import bearer_key
from lgov_core.gateway.serving.keys import KeyGrant, KeyRing
from lgov_core.gateway.serving.limits import BodyBudget, LimitedRequest, Limits
from lgov_core.gateway.serving.metrics import Metrics

_LOG = logging.getLogger("lgov.gateway")


class Access(StrEnum):
    """Who may use a route.

    ``open``: everybody. ``agent``: the bearer of a key, for its rollout only (the path parameter ``rollout_id`` is checked
    here, ids in the body by the route). ``admin``: an admin key; where keys are not required also a caller without one.
    """

    OPEN = "open"
    AGENT = "agent"
    ADMIN = "admin"


class RuledRoute(Route):
    """A route with its access rule. ``is_call``: it asks a model, so it is admitted (`Admission`) and can be paused."""

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, methods: Sequence[str], access: Access, is_call: bool = False
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.access = access
        self.is_call = is_call


class Guard:
    """Wraps every route: checks keys and limits, admits calls, counts requests. For one event loop."""

    def __init__(self, keys: KeyRing, limits: Limits, admission: Admission, metrics: Metrics) -> None:
        self._keys = keys
        self._limits = limits
        self._admission = admission
        self._metrics = metrics
        self.bodies = BodyBudget(limits)

    def before(self, route: RuledRoute) -> RuledRoute:
        """The route, with this guard before it."""
        app = route.app

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serve(route, app, scope, receive, send)

        route.app = guarded
        return route

    def _grant(self, scope: Scope, access: Access) -> KeyGrant:
        """What the request may do. Raises `EndpointError`: 401 for a bad key, 403 for one that may not use the route."""
        grant = self._keys.check(bearer_key(Headers(scope=scope)))
        if access is Access.ADMIN and not grant.admin and not grant.anonymous:
            raise EndpointError("the key of a rollout may not do this", status=403, hint="it takes an admin key")
        named = scope["path_params"].get("rollout_id")
        if named is not None and grant.rollout_id not in (None, named):
            raise EndpointError(f"the key is for rollout {grant.rollout_id!r}, not for {named!r}", status=403)
        return grant

    async def _serve(self, route: RuledRoute, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        limited = LimitedRequest(self._limits, self.bodies, receive, send)
        self._metrics.began(route.path)
        try:
            scope["lgov.request"] = limited
            if route.access is not Access.OPEN:
                scope["lgov.grant"] = self._grant(scope, route.access)
            if route.is_call:
                await self._admission.enter()
            try:
                await app(scope, limited.receive, limited.send)
            finally:
                if route.is_call:
                    self._admission.leave()
        except Exception as error:
            status = error.status if isinstance(error, EndpointError) else 500
            limited.status = limited.status or status  # what the error handler is about to send
            if isinstance(error, LgovError | HTTPException | OSError) or limited.first_at is not None:
                raise
            _LOG.error("%s failed", route.path, exc_info=error)
            raise EndpointError(f"{type(error).__name__}: {error}", status=500) from error
        finally:
            limited.release()
            took = time.perf_counter() - began
            first = None if limited.first_at is None else limited.first_at - began
            self._metrics.ended(route.path, limited.status, took, first)


def grant_of(scope: Scope) -> KeyGrant:
    """What the key of a request allows, as its guard found it. Fails closed: an error where there was no guard."""
    grant = scope.get("lgov.grant")
    if not isinstance(grant, KeyGrant):
        raise EndpointError("this route has no rule of who may use it", status=500)
    return grant
