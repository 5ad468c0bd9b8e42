"""Routes for operators: pause and resume, state, metrics, keys for agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lgov_core.errors import EndpointError, ScopeError
from lgov_core.gateway.routes.bodies import json_response, read_object
from lgov_core.gateway.serving.access import Access, RuledRoute
from lgov_core.gateway.serving.capture import Counters
from lgov_core.gateway.serving.keys import KeyRing
from lgov_core.gateway.serving.limits import Admission
from lgov_core.gateway.serving.metrics import CONTENT_TYPE, Metrics
from lgov_core.wire.fields import flag, number, only_known, text

_MAX_BODY = 64 * 1024
_LONGEST_DRAIN_S = 3600.0


class AdminRoutes:
    """The handlers, for one event loop. All take an admin key, except ``/healthz``, which shows nothing."""

    def __init__(self, admission: Admission, metrics: Metrics, keys: KeyRing, counters: Counters) -> None:
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
            RuledRoute("/metrics", self.metrics, methods=["GET"], access=Access.ADMIN),
            RuledRoute("/healthz", self.health, methods=["GET"], access=Access.OPEN),
        ]

    async def state(self, request: Request) -> Response:
        """``GET /admin/state``: calls that run and wait, whether it is paused, the version of the weights, the counters."""
        return json_response({**asdict(self._admission.state()), "counters": self._counters.as_dict()})

    async def health(self, request: Request) -> Response:
        """``GET /healthz``: answers as long as the endpoint does; needs no key."""
        return json_response({"status": "ok"})

    async def pause(self, request: Request) -> Response:
        """``POST /admin/pause``: holds new calls and answers when the running ones have ended.

        ``drain_s`` (60) is how long it waits for that; ``drained`` in the answer says whether they have. Calls that wait
        too long get ``reason`` and a ``retry-after`` of ``retry_after_s`` (5) seconds.
        """
        body = await _object(request, "drain_s", "reason", "retry_after_s")
        drain_s = number(body, "drain_s", 60.0, low=0, high=_LONGEST_DRAIN_S) or 0.0
        retry_after_s = number(body, "retry_after_s", 5.0, low=0, high=3600) or 0.0
        reason = text(body, "reason")
        state = await self._admission.pause(drain_s=drain_s, reason=reason, retry_after_s=retry_after_s)
        return json_response(asdict(state))

    async def resume(self, request: Request) -> Response:
        """``POST /admin/resume``: lets calls in again; ``weights_version`` (a whole number) is recorded with each."""
        body = await _object(request, "weights_version")
        version = number(body, "weights_version", None, low=0, whole=True)
        return json_response(asdict(self._admission.resume(weights_version=None if version is None else int(version))))

    async def issue(self, request: Request) -> Response:
        """``POST /admin/keys``: a key for ``rollout_id`` and ``attempt`` (null: all of them).

        ``expires_at`` is in Unix seconds; ``final_reward`` lets its bearer give the attempt its final reward.
        """
        body = await _object(request, "rollout_id", "attempt", "expires_at", "final_reward")
        rollout_id, attempt = text(body, "rollout_id"), number(body, "attempt", None, low=1, whole=True)
        if rollout_id is None:
            raise EndpointError("a key is for a 'rollout_id' (text) and an 'attempt' (a number, or null)")
        try:
            key = self._keys.issue(
                rollout_id,
                None if attempt is None else int(attempt),
                expires_at=number(body, "expires_at", None, low=0, high=1e12),
                final_reward=flag(body, "final_reward"),
            )
        except ScopeError as error:
            raise EndpointError(str(error)) from error
        return json_response({"key": key})

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``, in the text format of Prometheus."""
        return Response(self._metrics.exposition(), headers={"content-type": CONTENT_TYPE})


async def _object(request: Request, *names: str) -> Mapping[str, Any]:
    """The body, with no field but ``names``: a misspelt one would make a key without expiry, or lose a version."""
    body = await read_object(request, _MAX_BODY)
    only_known(body, names, f"{request.method} {request.url.path}")
    return body
