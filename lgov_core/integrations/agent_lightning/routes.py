"""The routes of agent-lightning 1.0, so that its trainer and its controller can use this endpoint as theirs."""

from __future__ import annotations

import asyncio
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from lgov_core._util.json_text import json_object
from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.access import Access, KeyGrant, RuledRoute, grant_of
from lgov_core.gateway.api_routes import ApiRoutes
from lgov_core.gateway.app import EndpointParts
from lgov_core.gateway.limits import Admission, AdmissionState, json_response, read_body, read_object, retry_headers
from lgov_core.gateway.protocol import UpstreamRejection
from lgov_core.gateway.upstream import RegisteredModels
from lgov_core.integrations.agent_lightning.rollouts import LightningRollouts
from lgov_core.integrations.agent_lightning.values import attempt_number, unprocessable

_PROXY = "/proxy/rollout/{rollout_id}/attempt/{attempt_id}/mode/{mode}/openai/v1"
_PATHS = ("chat/completions", "completions")


#: The temperature of a call through the proxy routes, by the mode in its path.
_TEMPERATURES: Final = types.MappingProxyType({"train": 1.0, "val": 0.7})


def lightning_routes(parts: EndpointParts) -> list[RuledRoute]:
    """The routes of agent-lightning at an endpoint made of ``parts``."""
    rollouts = None if parts.store is None else LightningRollouts(parts.store)
    routes = LightningRoutes(rollouts, parts.registered, parts.api, parts.admission, max_body=parts.max_body)
    return routes.routes()


class LightningRoutes:
    """``/api/{rollouts,events,models}`` and ``/proxy/...``; errors are ``{"detail": ...}``. For one event loop.

    Differs from the original: calls with equal prompts are all kept, calls during a pause wait, streaming works, deleting
    hides, places in the list of ended rollouts never shift, and an agent's key reads and writes its own rollout only and
    gives no final reward unless it has the right.
    """

    def __init__(
        self,
        rollouts: LightningRollouts | None,
        models: RegisteredModels,
        api: ApiRoutes,
        admission: Admission,
        *,
        max_body: int,
    ) -> None:
        self._rollouts = rollouts
        self._models = models
        self._api = api
        self._admission = admission
        self._max_body = max_body

    def routes(self) -> list[RuledRoute]:
        """The routes, each with its rule."""
        rollout_path = "/api/rollouts/{rollout_id}"
        table: list[tuple[str, str, Callable[[Request], Any], Access]] = [
            ("POST", "/api/rollouts", self._create, Access.ADMIN),
            # ?state_in=&limit=
            ("GET", "/api/rollouts", self._list, Access.ADMIN),
            # ?after=&limit=
            ("GET", "/api/rollouts/terminal", self._ended, Access.ADMIN),
            ("POST", "/api/rollouts/status", self._statuses, Access.ADMIN),
            ("GET", rollout_path, self._get, Access.AGENT),
            ("PATCH", rollout_path, self._patch, Access.ADMIN),
            ("DELETE", rollout_path, self._delete, Access.ADMIN),
            ("POST", f"{rollout_path}/attempt/{{attempt_id}}/events", self._add_event, Access.AGENT),
            # ?event_type=&format=
            ("GET", f"{rollout_path}/events", self._events, Access.AGENT),
            ("POST", "/api/models", self._register, Access.ADMIN),
            ("DELETE", "/api/models", self._clear, Access.ADMIN),
            ("POST", "/proxy/pause", self._pause, Access.ADMIN),
            ("POST", "/proxy/resume", self._resume, Access.ADMIN),
            ("GET", "/proxy/state", self._state, Access.ADMIN),
            ("POST", f"{_PROXY}/{{upstream_path:path}}", self._proxy, Access.AGENT),
        ]
        return [
            RuledRoute(path, _with_details(handler), methods=[method], access=access, is_call=handler == self._proxy)
            for method, path, handler, access in table
        ]

    @property
    def _kept(self) -> LightningRollouts:
        if self._rollouts is None:
            raise EndpointError("this endpoint keeps no record", status=503, hint="start it with a store")
        return self._rollouts

    async def _create(self, request: Request) -> Response:
        return json_response(await asyncio.to_thread(self._kept.create, await self._body(request)), 201)

    async def _list(self, request: Request) -> Response:
        states, limit = request.query_params.getlist("state_in"), _whole(request, "limit", 500)
        return json_response(await asyncio.to_thread(self._kept.in_states, states, limit))

    async def _ended(self, request: Request) -> Response:
        after, limit = _whole(request, "after", 0), _whole(request, "limit", 1000)
        return json_response(await asyncio.to_thread(self._kept.ended, after, limit))

    async def _statuses(self, request: Request) -> Response:
        return json_response(await asyncio.to_thread(self._kept.statuses, await self._body(request)))

    async def _get(self, request: Request) -> Response:
        return json_response(await asyncio.to_thread(self._kept.get, request.path_params["rollout_id"]))

    async def _patch(self, request: Request) -> Response:
        body = await self._body(request)
        return json_response(await asyncio.to_thread(self._kept.patch, request.path_params["rollout_id"], body))

    async def _delete(self, request: Request) -> Response:
        await asyncio.to_thread(self._kept.delete, request.path_params["rollout_id"])
        return Response(status_code=204)

    async def _add_event(self, request: Request) -> Response:
        path, body, grant = request.path_params, await self._body(request), _grant_of(request)
        kept = self._kept.add_event
        return json_response(await asyncio.to_thread(kept, path["rollout_id"], path["attempt_id"], body, grant))

    async def _events(self, request: Request) -> Response:
        query = request.query_params
        rollout_id = request.path_params["rollout_id"]
        return json_response(
            await asyncio.to_thread(self._kept.events, rollout_id, query.get("event_type"), query.get("format"))
        )

    async def _register(self, request: Request) -> Response:
        # Version 0 is what clients send that do not know theirs.
        body = await self._body(request)
        if not isinstance(body, list):
            raise unprocessable("the request must be a list of models")
        models: list[dict[str, Any]] = []
        for item in body:
            fields: Mapping[str, Any] = item if isinstance(item, dict) else {}
            model = {
                "model": fields.get("model"),
                "endpoint": fields.get("endpoint"),
                "version": fields.get("version", 0),
            }
            if [type(value) for value in model.values()] != [str, str, int]:
                raise unprocessable("a model has a 'model', an 'endpoint' and a whole 'version'")
            models.append(model)
        for model in models:
            await self._models.register(model["model"], model["endpoint"], model["version"] or None)
        return json_response(models, 201)

    async def _clear(self, request: Request) -> Response:
        await self._models.clear()
        return json_response({"status": "ok"})

    async def _proxy(self, request: Request) -> Response:
        path = request.path_params
        _grant_of(request)
        if path["mode"] not in _TEMPERATURES or path["upstream_path"] not in _PATHS:
            raise EndpointError(f"there is no {path['mode']}/{path['upstream_path']} here", status=404)
        await asyncio.to_thread(self._kept.exists, path["rollout_id"])
        # The call as it goes on: the one registered model, and the temperature of the mode.
        body = {**await read_object(request, self._max_body), "temperature": _TEMPERATURES[path["mode"]]}
        models = self._models.models
        if not models:
            raise EndpointError(f"No servers available for model {str(body.get('model'))!r}", status=503)
        if len(models) == 1:
            body["model"] = models[0]
        path["attempt"] = str(attempt_number(path["attempt_id"]))
        try:
            return await self._api.call(f"/{path['upstream_path']}", request, body)
        except EndpointError as error:
            upstream = json_object(error.body) if isinstance(error, UpstreamRejection) else None
            answer = {"error": {"message": str(error)}} if upstream is None else upstream
            await asyncio.to_thread(
                self._kept.note_failed_call, path["rollout_id"], path["attempt_id"], error.status, answer
            )
            if isinstance(error, UpstreamRejection):
                return json_response(answer, error.status)
            raise

    async def _pause(self, request: Request) -> Response:
        """Holds new calls and answers at once; ``inflight`` is how many still run."""
        body = await self._body(request)
        fields: Mapping[str, Any] = body if isinstance(body, dict) else {}
        after, reason = fields.get("retry_after_seconds", 5), fields.get("reason")
        if type(after) is not int or after < 0 or not isinstance(reason, str | None):
            raise unprocessable("'retry_after_seconds' must be a whole number and 'reason' a text")
        return _pause_state(await self._admission.pause(drain_s=0, reason=reason, retry_after_s=after))

    async def _resume(self, request: Request) -> Response:
        return _pause_state(self._admission.resume())

    async def _state(self, request: Request) -> Response:
        return _pause_state(self._admission.state())

    async def _body(self, request: Request) -> Any:
        raw = await read_body(request, self._max_body)
        try:
            return await request.scope["lgov.request"].parse(raw, json.loads)
        except (ValueError, RecursionError) as error:
            raise unprocessable(f"the request is not JSON: {error}") from error


def _grant_of(request: Request) -> KeyGrant:
    grant = grant_of(request.scope)
    if grant.attempt not in (None, attempt_number(request.path_params["attempt_id"])):
        raise EndpointError("the key is for another attempt", status=403)
    return grant


def _with_details(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """``handler`` whose errors become this API's ``{"detail": ...}``."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except EndpointError as error:
            return json_response({"detail": str(error)}, error.status, retry_headers(error))
        except LgovError as error:
            return json_response({"detail": str(error)}, 500)

    return answer


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    try:
        return default if text is None else int(text)
    except ValueError as error:
        raise unprocessable(f"{name!r} must be a whole number") from error


def _pause_state(state: AdmissionState) -> Response:
    after, running = round(state.retry_after_s), state.running
    return json_response(
        {"paused": state.paused, "retry_after_seconds": after, "reason": state.reason, "inflight": running}
    )
