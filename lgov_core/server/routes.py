"""The routes under ``/train``, for clients. All take an admin key where keys are required."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import lgov_core
from lgov_core._util.json_text import fast_json, wire_bytes
from lgov_core.client.wire import (
    ENDED,
    FIRST_HAND_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    VERSION_HEADER,
    ReportBody,
)
from lgov_core.errors import ClientError, EndpointError, LgovError
from lgov_core.gateway.access import Access, RuledRoute
from lgov_core.gateway.limits import checked_body, read_body
from lgov_core.server.coordinator import Coordinator

T = TypeVar("T")

_MAX_BODY: Final = 8 * 1024 * 1024
_LONGEST_WAIT_S: Final = 20.0


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, description="a text of at most 200 characters")]
Count = Annotated[int, msgspec.Meta(ge=0, description="a whole number from 0")]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6, description="a number of seconds")]


class _Nothing(msgspec.Struct, frozen=True):
    """The body of a request without content; the name of a client is not kept."""


class _Upload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    upload: Name
    split: Name
    tasks: Annotated[list[Any], msgspec.Meta(description="a list")]


class _Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    upload: Name
    train: Count
    test: Count


class _Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker_id: Name
    limit: Count
    lease_s: Seconds
    wait_s: Seconds
    run: Name
    after: Count


class _Heartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker_id: Name
    lease_s: Seconds
    attempts: Annotated[list[tuple[str, int]], msgspec.Meta(description="a list of rollout ids and numbers")]


class _Finish(ReportBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    worker_id: Name
    rollout_id: Name
    attempt: Count
    error: str | None = None


class _Release(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker_id: Name
    reason: str = "the client gave it back"


def train_routes(does: Coordinator) -> list[RuledRoute]:
    """The routes, each with its rule, for one event loop."""

    def finish(body: _Finish, request: Request) -> Any:
        key = request.headers.get(FIRST_HAND_HEADER, "")
        first_hand = hmac.compare_digest(key.encode(), does.first_hand_key.encode())
        return does.finish(body.worker_id, body.rollout_id, body.attempt, body.report(), first_hand=first_hand)

    async def progress(request: Request) -> Any:
        after = request.query_params.get("after", "0")
        if not after.isdigit():
            raise EndpointError("'after' must be a whole number", status=422)
        return await asyncio.to_thread(does.progress, None, int(after))

    table: Sequence[tuple[str, str, Callable[[Request], Any]]] = [
        # also for clients of another version
        ("GET", "/train/about", _in_thread(_Nothing, lambda body, _: does.about())),
        # a part of the tasks, and what makes an upload the server's tasks
        ("POST", "/train/data", _in_thread(_Upload, lambda body, _: does.add_data(body.upload, body.split, body.tasks))),
        ("POST", "/train/data/commit", _in_thread(_Commit, lambda body, _: does.commit_data(
            body.upload, {"train": body.train, "test": body.test}))),
        # the run that continues, or a new one
        ("POST", "/train/start", _in_thread(_Nothing, lambda body, _: does.start())),
        # attempts, and the run; waits
        ("POST", "/train/claim", lambda request: _claim(does, request)),
        # the attempts that a client runs, and how one ended
        ("POST", "/train/heartbeat", _in_thread(_Heartbeat, lambda body, _: does.heartbeat(
            body.worker_id, body.lease_s, body.attempts))),
        ("POST", "/train/finish", _in_thread(_Finish, finish)),
        # a client leaves; its attempts are taken back
        ("POST", "/train/release", _in_thread(_Release, lambda body, _: does.release(body.worker_id, body.reason[:500]))),
        # ends the run after the update in progress
        ("POST", "/train/stop", _in_thread(_Nothing, lambda body, _: does.stop())),
        ("GET", "/train/progress", progress),  # the state of the run
    ]  # fmt: skip
    return [
        RuledRoute(path, _answered(handler), methods=[method], access=Access.ADMIN) for method, path, handler in table
    ]


async def _claim(does: Coordinator, request: Request) -> Any:
    body = await _body(request, _Claim)
    until = time.monotonic() + min(body.wait_s, _LONGEST_WAIT_S)
    while True:
        seen = does.enqueued
        progress = await asyncio.to_thread(does.progress, body.run, body.after)
        assignments = await asyncio.to_thread(does.claim, body.worker_id, body.limit, body.lease_s)
        if assignments or progress["state"] in ENDED or body.limit < 1 or time.monotonic() >= until:
            return {"assignments": assignments, "progress": progress}
        look = min(until, time.monotonic() + 1.0)  # what waits for another try becomes due by itself
        while does.enqueued == seen and time.monotonic() < look:
            await asyncio.sleep(0.02)


def _in_thread(schema: type[T], handle: Callable[[T, Request], Any]) -> Callable[[Request], Any]:
    async def handler(request: Request) -> Any:
        return await asyncio.to_thread(handle, await _body(request, schema), request)

    return handler


def _answered(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """``handler`` for clients of this version only, and its errors as JSON."""

    async def answer(request: Request) -> Response:
        try:
            if request.url.path != "/train/about":
                _check_protocol(request.headers)
            return _json(await handler(request))
        except LgovError as error:
            status = (
                error.status if isinstance(error, EndpointError) else 409 if isinstance(error, ClientError) else 500
            )
            return _json({"error": {"message": str(error), "code": error.code}}, status)

    return answer


def _check_protocol(headers: Mapping[str, str]) -> None:
    protocol, version = headers.get(PROTOCOL_HEADER), headers.get(VERSION_HEADER)
    if protocol != str(PROTOCOL):
        raise ClientError(
            f"this training server is lgov {lgov_core.__version__} (protocol {PROTOCOL}), "
            f"the client is {version or 'of unknown version'} (protocol {protocol or 'none'})",
            hint="install the same version of lgov on both sides",
        )


async def _body(request: Request, schema: type[T]) -> T:
    raw = await read_body(request, _MAX_BODY)
    try:
        body: Any = fast_json(raw or b"{}")
    except (ValueError, RecursionError) as error:
        raise EndpointError(f"the request is not JSON: {error}", status=422) from error
    if not isinstance(body, dict):
        raise EndpointError("the request must be a JSON object", status=422)
    return checked_body(cast("Mapping[str, Any]", body), schema, request.url.path, status=422)


def _json(content: Any, status: int = 200) -> Response:
    return Response(wire_bytes(content), status, media_type="application/json")
