"""The routes of agent-lightning 1.0, so that its trainer and its controller can use this endpoint as theirs."""

from __future__ import annotations

import asyncio
import json
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

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
from lgov_core.integrations.agent_lightning.rollouts import LightningRollouts, attempt_number, unprocessable

Handler: TypeAlias = Callable[[Request], Any]

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
        path, admin, agent = "/api/rollouts/{rollout_id}", Access.ADMIN, Access.AGENT
        table: list[tuple[str, str, Handler, Access]] = [
            ("POST", "/api/rollouts", self._kept(lambda kept, _, body: kept.create(body), 201), admin),
            ("GET", "/api/rollouts", self._kept(_in_states), admin),
            ("GET", "/api/rollouts/terminal", self._kept(_ended), admin),
            ("POST", "/api/rollouts/status", self._kept(lambda kept, _, body: kept.statuses(body)), admin),
            ("GET", path, self._kept(lambda kept, request, _: kept.get(_id(request))), agent),
            ("PATCH", path, self._kept(lambda kept, request, body: kept.patch(_id(request), body)), admin),
            ("DELETE", path, self._kept(lambda kept, request, _: kept.delete(_id(request)), 204), admin),
            ("POST", f"{path}/attempt/{{attempt_id}}/events", self._kept(_add_event), agent),
            ("GET", f"{path}/events", self._kept(_events), agent),
            ("POST", "/api/models", self._register, admin),
            ("DELETE", "/api/models", self._clear, admin),
            ("POST", "/proxy/pause", self._pause, admin),
            ("POST", "/proxy/resume", self._resume, admin),
            ("GET", "/proxy/state", self._state, admin),
            ("POST", f"{_PROXY}/{{upstream_path:path}}", self._proxy, agent),
        ]
        return [
            RuledRoute(path, _with_details(handler), methods=[method], access=access, is_call=handler == self._proxy)
            for method, path, handler, access in table
        ]

    def _recorded(self) -> LightningRollouts:
        if self._rollouts is None:
            raise EndpointError("this endpoint keeps no record", status=503, hint="start it with a store")
        return self._rollouts

    def _kept(self, call: Callable[[LightningRollouts, Request, Any], Any], status: int = 200) -> Handler:
        """The handler that answers with ``call(rollouts, request, body)``, made in a thread: the store may block."""

        async def handler(request: Request) -> Response:
            rollouts = self._recorded()
            body = await self._body(request) if request.method in ("POST", "PATCH") else None
            answer = await asyncio.to_thread(call, rollouts, request, body)
            return Response(status_code=204) if status == 204 else json_response(answer, status)

        return handler

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
        await asyncio.to_thread(self._recorded().exists, path["rollout_id"])
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
                self._recorded().note_failed_call, path["rollout_id"], path["attempt_id"], error.status, answer
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


def _id(request: Request) -> str:
    return request.path_params["rollout_id"]


def _in_states(kept: LightningRollouts, request: Request, _: Any) -> Any:
    """Of ``?state_in=&limit=``."""
    return kept.in_states(request.query_params.getlist("state_in"), _whole(request, "limit", 500))


def _ended(kept: LightningRollouts, request: Request, _: Any) -> Any:
    """Of ``?after=&limit=``."""
    return kept.ended(_whole(request, "after", 0), _whole(request, "limit", 1000))


def _events(kept: LightningRollouts, request: Request, _: Any) -> Any:
    """Of ``?event_type=&format=``."""
    return kept.events(_id(request), request.query_params.get("event_type"), request.query_params.get("format"))


def _add_event(kept: LightningRollouts, request: Request, body: Any) -> Any:
    return kept.add_event(_id(request), request.path_params["attempt_id"], body, _grant_of(request))


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
