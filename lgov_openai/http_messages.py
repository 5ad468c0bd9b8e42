"""Reads the HTTP requests and responses of model calls, and makes others in their place.

A client may use httpx2 or httpx: what is made is of the class of what it replaces.
"""

from __future__ import annotations

import json
import sys
from codecs import utf_8_decode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import httpx2
from openai import APIStatusError

from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.scope import current_scope
from lgov_core.types import new_id
from lgov_core.wire.chat_turns import ChatProtocol
from lgov_core.wire.responses_turns import ResponsesProtocol
from lgov_core.wire.turns import JSON, MessageProtocol, ModelReading, Turn, read_events

_PROTOCOLS: tuple[tuple[str, MessageProtocol], ...] = (
    ("/chat/completions", ChatProtocol()),
    ("/responses", ResponsesProtocol()),
)
_IDEMPOTENCY_KEYS = frozenset({"idempotency-key", "x-idempotency-key"})
#: Headers that describe how a body was sent.
_BODY_HEADERS = frozenset({"content-length", "content-encoding", "transfer-encoding"})
#: What a line of server-sent events may begin with.
_EVENT_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply of a model call. ``content`` is None if it is not a complete reply; ``error`` then says why.

    ``response`` is for the program. ``events`` are those of a stream. ``turns`` and ``reading`` are read from ``content``.
    """

    response: Any
    content: JSON | None = None
    events: Sequence[JSON] = ()
    error: Exception | None = None
    turns: Sequence[Turn] = ()
    reading: ModelReading | None = None


def protocol_of(method: str, path: str) -> MessageProtocol | None:
    """The API that a request calls; None if it is not a model call."""
    if method.upper() != "POST":
        return None
    return next((protocol for ending, protocol in _PROTOCOLS if path.rstrip("/").endswith(ending)), None)


def library_of(message: Any) -> Any:
    """The HTTP library of a request or response: httpx2, or httpx."""
    httpx: Any = sys.modules.get("httpx")
    return httpx if httpx is not None and isinstance(message, httpx.Request | httpx.Response) else httpx2


def body_of(request: Any) -> JSON:
    """The JSON object in the body of ``request``. Raises ValueError for anything else."""
    body = json.loads(request.content)
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return cast(JSON, body)


def attribute(request: Any) -> None:
    """Adds the headers by which lgov's own endpoint knows the rollout."""
    if (scope := current_scope()) is not None:
        request.headers.update(endpoint_headers(str(request.url), scope))


def request_with(body: JSON, request: Any, *, again: bool) -> Any:
    """``request`` with another body. ``again``: one has been sent for it, so that its idempotency key was used."""
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _BODY_HEADERS]
    if again:
        headers = [(name, new_id("lgov") if name.lower() in _IDEMPOTENCY_KEYS else value) for name, value in headers]
    content, extensions = json.dumps(body).encode(), dict(request.extensions)
    return type(request)(request.method, request.url, headers=headers, content=content, extensions=extensions)


def read_reply(response: Any, protocol: MessageProtocol, *, partial: bool = False) -> Reply:
    """Reads the body of ``response``; with ``partial`` one that may have been cut. Raises any error for an unreadable one."""
    if not response.is_success:
        error = APIStatusError(f"Error code: {response.status_code}", response=response, body=None)
        return Reply(response, error=error)
    if not _is_stream(response):
        return _read(response, protocol, json.loads(response.content))
    text, _ = utf_8_decode(response.content, "strict", not partial)
    events = read_events(text, partial=partial)
    if (content := protocol.from_stream(events)) is not None:
        return _read(response, protocol, content, events)
    failed = [event for event in events if "error" in event or event.get("type") in ("error", "response.failed")]
    if not failed:
        raise ValueError("the stream ended before the reply did")
    # The program learns that the model failed, and gets nothing that was not evaluated.
    frames = "".join(f"data: {json.dumps(event)}\n\n" for event in failed)
    return Reply(_response_with(frames, response), error=RuntimeError("the model failed in the middle of a stream"))


def _read(response: Any, protocol: MessageProtocol, content: JSON, events: Sequence[JSON] = ()) -> Reply:
    turns = protocol.turns(content)
    return Reply(response, content, events, turns=turns, reading=protocol.reading(content, turns))


def _is_stream(response: Any) -> bool:
    """Returns whether the body is server-sent events, which a server need not declare."""
    declared = str(response.headers.get("content-type", "")).lower().startswith("text/event-stream")
    return response.content.startswith(_EVENT_FIELDS) or (declared and response.content[:1] != b"{")


def response_with(
    reply: Reply, content: JSON, protocol: MessageProtocol, body: JSON, passed: Sequence[JSON] = ()
) -> Any:
    """The response of ``reply`` with other content, in the same form; without the events ``passed``, which came before."""
    if _is_stream(reply.response):
        return _response_with(protocol.to_stream(body, content, reply.events, passed), reply.response)
    return _response_with(json.dumps(content), reply.response)


def denial_response(
    content: JSON, protocol: MessageProtocol, body: JSON, request: Any, passed: Sequence[JSON] = ()
) -> Any:
    """A response to ``request``, which was not sent, in the form that its ``body`` asks for; without the events ``passed``."""
    streamed = bool(body.get("stream"))
    text = protocol.to_stream(body, content, (), passed) if streamed else json.dumps(content)
    headers = {"content-type": "text/event-stream" if streamed else "application/json"}
    response = library_of(request).Response(200, headers=headers, content=text.encode(), request=request)
    response.elapsed = timedelta(0)
    return response


def _response_with(text: str, response: Any) -> Any:
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _BODY_HEADERS]
    new = type(response)(
        response.status_code,
        headers=headers,
        content=text.encode(),
        request=response.request,
        extensions=response.extensions,
    )
    new.elapsed = timedelta(0)
    with suppress(RuntimeError):  # no client measured the response
        new.elapsed = response.elapsed
    return new
