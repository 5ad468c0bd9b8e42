"""The routes of the model APIs, each alone and under a rollout's prefix."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.attribution import Attribution, attribute
from lgov_core.gateway.capture import Capture, Exchange
from lgov_core.gateway.keys import KeyRing
from lgov_core.gateway.openai_format import completion_body, error_body, read_chat_request, read_json, wants_usage
from lgov_core.gateway.protocol import ANY_MODEL, Engine, Gate
from lgov_core.gateway.streaming import StreamedReply, as_lgov_error
from lgov_core.gateway.upstream_reply import ReceivedBody, UpstreamRejection

ROLLOUT_PREFIX = "/rollout/{rollout_id}/attempt/{attempt}"


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body. Raises `EndpointError` (413) for one of more than ``limit`` bytes.

    A body that is moderately too long is read to its end and thrown away, since a client that is cut off while it
    sends does not see the answer.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size <= limit:
                parts.append(part)
            elif size > 8 * limit:
                break
    except ClientDisconnect as error:
        raise EndpointError("the client left while it was sending its request") from error
    if size > limit:
        raise EndpointError(f"the request has more than {limit} bytes", status=413)
    return b"".join(parts)


class ApiRoutes:
    """The handlers of the model APIs, for one event loop.

    Each call goes to the engine that has its model, past ``gate`` if there is one, and is committed before its client
    learns that it is done. ``max_body`` is in bytes. `routes` is what an application mounts; `on_error` is its handler
    for what a route raised.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        capture: Capture,
        keys: KeyRing,
        *,
        allow_unattributed: bool,
        max_body: int,
        gate: Gate | None = None,
    ) -> None:
        self._engines = tuple(engines)
        self._capture = capture
        self._keys = keys
        self._allow_unattributed = allow_unattributed
        self._max_body = max_body
        self._gate = gate

    def routes(self) -> list[Route]:
        """Every route of the model APIs."""
        return [
            route
            for prefix in ("", ROLLOUT_PREFIX)
            for route in (
                Route(f"{prefix}/v1/chat/completions", self.chat, methods=["POST"]),
                Route(f"{prefix}/v1/models", self.models, methods=["GET"]),
            )
        ]

    def _engine_for(self, model: str) -> Engine:
        for name in (model, ANY_MODEL):
            for engine in self._engines:
                if name in engine.models:
                    return engine
        raise EndpointError(f"there is no model {model!r}", status=404, hint=f"there are: {', '.join(self._models())}")

    def _models(self) -> list[str]:
        return [name for engine in self._engines for name in engine.models if name != ANY_MODEL]

    def _who(self, request: Request, *, allow_unattributed: bool) -> Attribution:
        return attribute(request.headers, request.path_params, self._keys, allow_unattributed=allow_unattributed)

    async def chat(self, request: Request) -> Response:
        """``POST .../v1/chat/completions``."""
        started_at = time.time()
        who = self._who(request, allow_unattributed=self._allow_unattributed)
        body = read_json(await read_body(request, self._max_body))
        chat = read_chat_request(body)
        wants_usage(body)  # checks it before anything is generated
        engine = self._engine_for(chat.model)
        exchange = Exchange(chat, engine.name, who, started_at)
        if chat.stream:
            return StreamedReply(exchange, engine.stream(chat), self._capture, self.refuse)  # type: ignore[return-value]
        try:
            completion = await engine.chat(chat)
        except Exception as error:
            raise as_lgov_error(error, engine.name) from error
        reply = completion_body(completion, body)
        await self._capture.commit(exchange, completion, reply)
        return _json(reply)

    async def models(self, request: Request) -> Response:
        """``GET .../v1/models``."""
        self._who(request, allow_unattributed=True)
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": engine.name}
            for engine in self._engines
            for name in engine.models
            if name != ANY_MODEL
        ]
        return _json({"object": "list", "data": data})

    async def health(self, request: Request) -> Response:
        """``GET /healthz``: answers as long as the endpoint does; needs no key."""
        return _json({"status": "ok", "counters": self._capture.counters.as_dict()})

    def refuse(self, error: LgovError) -> Response:
        """The response to an error, in OpenAI's shape; an upstream's refusal as the upstream wrote it."""
        self._capture.counters.failed += 1
        if isinstance(error, UpstreamRejection):
            headers = {**error.headers, "content-type": error.content_type}
            return Response(error.body, error.status, headers)
        status = error.status if isinstance(error, EndpointError) else 500
        return _json(error_body(error, status), status)

    async def on_error(self, request: Request, error: Exception) -> Response:
        """Turns what a handler raised into a response."""
        if isinstance(error, LgovError):
            return self.refuse(error)
        if isinstance(error, HTTPException):
            said = f"{request.method} {request.url.path}: {error.detail}"
            hint = "POST /v1/chat/completions, GET /v1/models and GET /healthz are there"
            return self.refuse(EndpointError(said, status=error.status_code, hint=hint))
        return self.refuse(EndpointError(f"{type(error).__name__}: {error}", status=500))


def _json(content: Mapping[str, Any], status: int = 200) -> Response:
    if isinstance(content, ReceivedBody):
        return Response(content.received, status, media_type="application/json")
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")
