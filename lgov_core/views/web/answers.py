"""Answers over HTTP: JSON, errors, and the headers that every answer has."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lgov_core.errors import LgovError
from lgov_core.train.loop.metrics_log import finite
from lgov_core.views.web.errors import status_of

#: Nothing inline, nothing evaluated, nothing from elsewhere.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def json_body(value: Any) -> bytes:
    """``value`` as JSON in ASCII: lone surrogates stay as they are, and what is not finite becomes null."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(finite(value), allow_nan=False, separators=(",", ":"))
    return text.encode("ascii")


def json_answer(value: Any, status: int = 200) -> Response:
    """``value`` as an answer that is not kept."""
    return _json(json_body(value), status)


def error_answer(error: LgovError, **more: Any) -> Response:
    """An error as an answer."""
    return _json(json_body({"error": error.as_json(), **more}), status_of(error))


def _json(body: bytes, status: int) -> Response:
    return Response(body, status, {"Cache-Control": "no-store"}, media_type="application/json")


class SafeHeaders:
    """An application whose every answer has `HEADERS`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)
