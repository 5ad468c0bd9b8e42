"""Bodies of requests and responses, as all routes read and write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from lgov_core._util.json_text import wire_bytes
from lgov_core._util.schema import Mistake, checked
from lgov_core.errors import EndpointError
from lgov_core.gateway.protocol import ReceivedBody

T = TypeVar("T")

ROLLOUT_PREFIX = "/rollout/{rollout_id}/attempt/{attempt}"


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body. Raises `EndpointError` (413) for one of more than ``limit`` bytes.

    A body that is moderately too long is read to its end and thrown away, since a client that is cut off while it
    sends does not see the answer.
    """
    parts: list[bytes] = []
    size = 0
    more = True
    while more and size <= 8 * limit:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise EndpointError("the client disconnected while it was sending its request")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size <= limit:
            parts.append(chunk)
    if size > limit:
        raise EndpointError(f"the request has more than {limit} bytes", status=413)
    return b"".join(parts)


async def read_object(request: Request, limit: int) -> Mapping[str, Any]:
    """The JSON object in the request's body, ``{}`` for an empty one; errors as of `read_body` and `LimitedRequest.parse`."""
    return await request.scope["lgov.request"].parse(await read_body(request, limit) or b"{}")


def checked_body(body: Mapping[str, Any], schema: type[T], whose: str, *, status: int = 400) -> T:
    """``body`` as an instance of ``schema``; null stands for a field that is left out.

    Raises `EndpointError` of ``status`` that names the field, also for one that the schema does not know: a misspelt one would
    make a key without expiry, or lose a version.
    """
    try:
        return checked({name: value for name, value in body.items() if value is not None}, schema)
    except Mistake as mistake:
        where = ".".join(map(str, mistake.path)) or "the request"
        if mistake.unknown is not None:
            problem = f"{mistake.unknown!r} is not a field that {whose} knows"
            raise EndpointError(problem, status=status, hint="leave it out: nothing is dropped silently") from mistake
        raise EndpointError(f"{where!r} must be {mistake.expected}", status=status) from mistake


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``content`` as a JSON response; a body that an upstream wrote goes out byte for byte."""
    if isinstance(content, ReceivedBody):
        return Response(content.received, status, media_type="application/json")
    return Response(wire_bytes(content), status, headers, media_type="application/json")
