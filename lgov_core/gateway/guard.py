"""The guard before every route: keys, limits, the requests that run, and their end when the server stops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.access import Access, KeyGrant, KeyRing, RuledRoute, bearer_key, caller, speak_for
from lgov_core.gateway.door import Requester, add_spent, requester
from lgov_core.gateway.limits import Admission, BodyBudget, LimitedRequest, Limits, Metrics, cut_short
from lgov_core.gateway.operation import IN_THE_LOG, log_event, log_request
from lgov_core.gateway.protocol import Attribution

_LOG = logging.getLogger("lgov.gateway")
#: Rollouts that the log names when their requests are cut.
_MOST_SHOWN: Final = 20


class Guard:
    """Wraps every route: checks keys and limits, admits calls, counts requests. For one event loop."""

    def __init__(self, keys: KeyRing, limits: Limits, admission: Admission, metrics: Metrics) -> None:
        self._keys = keys
        self._limits = limits
        self._admission = admission
        self._metrics = metrics
        self._running: dict[asyncio.Timeout, Requester | None] = {}
        self.bodies = BodyBudget(limits)

    def before(self, route: RuledRoute) -> RuledRoute:
        """The route, with this guard before it."""
        app = route.app

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serve(route, app, scope, receive, send)

        route.app = guarded
        return route

    def _grant(self, scope: Scope, access: Access) -> KeyGrant:
        """Returns the request's rights. Raises `EndpointError`: 401 for a bad key, 403 for one not meant for the route."""
        key = bearer_key(Headers(scope=scope))
        if (sender := requester()) is not None:
            sender.key_of = self._keys.owner(key)
        grant = self._keys.check(key)
        if access is Access.ADMIN and not grant.admin and not grant.anonymous:
            raise EndpointError("the key of a rollout may not do this", status=403, hint="it takes an admin key")
        named = scope["path_params"].get("rollout_id")
        if named is not None and grant.rollout_id not in (None, named):
            raise EndpointError(f"the key is for rollout {grant.rollout_id!r}, not for {named!r}", status=403)
        if grant.attempt is not None:
            speak_for(Attribution(grant.rollout_id, grant.attempt))
        return grant

    async def _serve(self, route: RuledRoute, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        limited = LimitedRequest(self._limits, self.bodies, receive, send)
        self._metrics.began(route.path)
        try:
            scope["lgov.request"] = limited
            async with self._until_cut(limited):
                if route.access is not Access.OPEN:
                    scope["lgov.grant"] = self._grant(scope, route.access)
                if route.is_call:
                    arrived = time.perf_counter()
                    try:
                        await self._admission.enter()
                    finally:
                        add_spent("waited", arrived)
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
            raise EndpointError(f"the endpoint failed: {type(error).__name__}", status=500, hint=IN_THE_LOG) from error
        finally:
            limited.release()
            took = time.perf_counter() - began
            first = None if limited.first_at is None else limited.first_at - began
            self._metrics.ended(route.path, limited.status, took, first)
            if not route.is_probe and _LOG.isEnabledFor(logging.INFO):
                log_request(route.path, limited.status, (took, first), caller())

    @asynccontextmanager
    async def _until_cut(self, limited: LimitedRequest) -> AsyncGenerator[None]:
        """Ends the block when the server stops before it. Raises `Busy` (503) then, unless the answer has begun."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._running[limit] = requester()
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            if limited.first_at is None:
                raise cut_short() from error
        finally:
            self._running.pop(limit, None)

    def cut(self) -> None:
        """Ends all requests that still run: each is answered that it was, and says so in the store and to budgets."""
        if not self._running:
            return
        senders = [sender for sender in self._running.values() if sender is not None]
        of = Counter(sender.rollout or sender.key_of or sender.peer for sender in senders)
        fields = {
            "requests": len(self._running),
            "of": ", ".join(f"{name} ({count})" for name, count in of.most_common(_MOST_SHOWN)),
            "budgets": "what was set aside for them counts as spent: an upstream may charge it",
        }
        log_event(logging.WARNING, "requests cut, since drain_s is over", fields)
        for limit in self._running:
            limit.reschedule(asyncio.get_running_loop().time())
