"""Routes for operators: pause and resume, state, metrics, keys for agents."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lgov_core.errors import EndpointError, ScopeError
from lgov_core.gateway.routes.bodies import checked_body, json_response, read_object
from lgov_core.gateway.serving.access import Access, RuledRoute
from lgov_core.gateway.serving.capture import Counters
from lgov_core.gateway.serving.keys import KeyRing
from lgov_core.gateway.serving.limits import Admission
from lgov_core.gateway.serving.metrics import CONTENT_TYPE, Metrics

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
        return json_response({"key": key})

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``, in the text format of Prometheus."""
        return Response(self._metrics.exposition(), headers={"content-type": CONTENT_TYPE})


async def _checked(request: Request, schema: type[T]) -> T:
    body = await read_object(request, _MAX_BODY)
    return checked_body(body, schema, f"{request.method} {request.url.path}")
