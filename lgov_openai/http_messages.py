"""The HTTP requests and responses of model calls: what they say, and others made in their place.

Which HTTP library made them is the client's choice: what is made here is of the class of what was given.
"""

from __future__ import annotations

import json
import sys
from codecs import utf_8_decode
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any, cast

from openai import APIStatusError

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.scope import current_scope
from lgov_core.types import Decision, Effect, new_id
from lgov_openai.chat import ChatProtocol
from lgov_openai.exchange import Answer, Received, Send
from lgov_openai.protocol import JSON, Wire, dump, loads, read_events
from lgov_openai.responses import ResponsesProtocol
from lgov_openai.stream_observer import OF_THE_BODY

_WIRES: tuple[tuple[str, Wire], ...] = (("/chat/completions", ChatProtocol()), ("/responses", ResponsesProtocol()))
_ONCE = frozenset({"idempotency-key", "x-idempotency-key"})

#: What a line of server-sent events may begin with.
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_NOT_AS_EXPECTED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


@lru_cache(maxsize=64)
def wire_of(method: str, path: str) -> Wire | None:
    """The protocol that a request to this path speaks; None if it is no model call."""
    if method.upper() != "POST":
        return None
    path = path.rstrip("/")
    for ending, wire in _WIRES:
        if path.endswith(ending):
            return wire
    return None


# ---------------------------------------------------------------------- requests


def body_of(request: Any) -> JSON:
    """What ``request`` says. Raises `PolicyDenied` where that is no JSON object."""
    try:
        body = json.loads(request.content)
        if isinstance(body, dict):
            return cast(JSON, body)
    except (ValueError, RecursionError):
        pass
    raise unreadable("request")


def unreadable(what: str) -> PolicyDenied:
    """The denial of a request or a reply that nobody can judge."""
    reason = f"the {what} cannot be read, so nobody can judge it"
    return PolicyDenied(Decision(Effect.DENY, "lgov", f"unreadable-{what}", reason, fault=True))


def attribute(request: Any) -> None:
    """Tells our own endpoint whose call it is."""
    if (scope := current_scope()) is not None:
        request.headers.update(endpoint_headers(str(request.url), scope))


def request_of(step: Send, request: Any) -> Any:
    """What is sent for ``request``."""
    if step.body is None:
        return request
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in OF_THE_BODY]
    if step.again:  # A server that knows the key would answer with the reply it gave before.
        headers = [(name, new_id("lgov") if name.lower() in _ONCE else value) for name, value in headers]
    content = json.dumps(step.body, separators=(",", ":")).encode()
    return type(request)(
        request.method, request.url, headers=headers, content=content, extensions=dict(request.extensions)
    )


# ---------------------------------------------------------------------- responses


def received(response: Any, wire: Wire) -> Received:
    """What a response says that has been read. Raises `PolicyDenied` for one that cannot be understood."""
    if (refused := _refused(response)) is not None:
        return refused
    try:
        events = read_events(response.content.decode()) if _is_stream(response) else []
        reply = wire.from_stream(events) if _is_stream(response) else loads(response.content)
        if reply is not None:
            return _understood(response, wire, reply, events)
    except _NOT_AS_EXPECTED as error:
        raise unreadable("reply") from error
    failed = [event for event in events if "error" in event or event.get("type") in ("error", "response.failed")]
    if not failed:
        raise unreadable("reply")
    # The program learns that the model failed, and nothing of what it said until then.
    said = "".join(f"data: {dump(event)}\n\n" for event in failed)
    return Received(_made(response, said), None, error=RuntimeError("the model failed in the middle of a stream"))


def seen(response: Any, wire: Wire) -> Received:
    """As `received`, for a response that goes on as it came: one that cannot be understood is one without a reply."""
    if (refused := _refused(response)) is not None:
        return refused
    try:
        content: bytes = response.content
        # A stream begins with the name of a field. Clients that asked for one do not ask how it calls itself.
        if content.startswith(_FIELDS) or (_is_stream(response) and content[:1] != b"{"):
            text, _ = utf_8_decode(content)  # without half a character at its end
            reply = wire.from_stream(read_events(text, cut=True))
        else:
            reply = loads(content)
        if reply is None:
            return Received(response, None, error=RuntimeError("a stream without an end"))
        return _understood(response, wire, reply)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the program's affair
        return Received(response, None, error=error)


def _is_stream(response: Any) -> bool:
    """Whether a reply comes as server-sent events."""
    return str(response.headers.get("content-type", "")).lower().startswith("text/event-stream")


def _refused(response: Any) -> Received | None:
    if 200 <= response.status_code < 300:
        return None
    error = APIStatusError(f"Error code: {response.status_code}", response=response, body=None)
    return Received(response, None, error=error)


def _understood(response: Any, wire: Wire, reply: JSON, events: list[JSON] | None = None) -> Received:
    turns = wire.turns(reply)
    return Received(response, reply, events or [], turns=turns, reading=wire.reading(reply, turns))


def response_of(answer: Answer, wire: Wire, body: JSON, request: Any) -> Any:
    """What the openai client reads."""
    came = answer.received
    if answer.reply is None:
        assert came is not None
        return came.response
    if came is not None:
        content = wire.to_stream(body, answer.reply, came.events) if _is_stream(came.response) else None
        return _made(came.response, json.dumps(answer.reply) if content is None else content)
    streamed = bool(body.get("stream"))
    content = wire.to_stream(body, answer.reply, ()) if streamed else json.dumps(answer.reply)
    library = sys.modules[type(request).__module__.partition(".")[0]]
    headers = {"content-type": "text/event-stream" if streamed else "application/json"}
    made = library.Response(200, headers=headers, content=content.encode(), request=request)
    made.elapsed = timedelta(0)
    return made


def _made(response: Any, content: str) -> Any:
    """``response`` with another body."""
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in OF_THE_BODY]
    made = type(response)(
        response.status_code,
        headers=headers,
        content=content.encode(errors="replace"),
        request=response.request,
        extensions=response.extensions,
    )
    made.elapsed = timedelta(0)
    with suppress(RuntimeError):  # a response that no client measured has no such time
        made.elapsed = response.elapsed
    return made
