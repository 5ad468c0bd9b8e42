"""The routes under ``/train``, for clients. All take an admin key where keys are required."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from starlette.requests import Request
from starlette.responses import Response

import lgov_core
from lgov_core.client.wire import ENDED, PROTOCOL, PROTOCOL_HEADER, VERSION_HEADER
from lgov_core.errors import ClientError, EndpointError, LgovError
from lgov_core.gateway.routes.bodies import read_body
from lgov_core.gateway.serving.access import Access, RuledRoute
from lgov_core.server.coordinator import Coordinator

_MAX_BODY: Final = 8 * 1024 * 1024
_LONGEST_WAIT_S: Final = 20.0


def train_routes(does: Coordinator) -> list[RuledRoute]:
    """The routes, each with its rule, for one event loop."""

    def add_data(body: Mapping[str, Any]) -> Any:
        tasks = body.get("tasks")
        if not isinstance(tasks, list):
            raise EndpointError("'tasks' must be a list", status=422)
        return does.add_data(_text(body, "upload"), _text(body, "split"), tasks)

    def commit(body: Mapping[str, Any]) -> Any:
        return does.commit_data(_text(body, "upload"), {name: _whole(body, name) for name in ("train", "test")})

    def heartbeat(body: Mapping[str, Any]) -> Any:
        return does.heartbeat(_text(body, "worker_id"), _number(body, "lease_s"), _attempts(body))

    def finish(body: Mapping[str, Any]) -> Any:
        return does.finish(_text(body, "worker_id"), _text(body, "rollout_id"), _whole(body, "attempt"), body)

    def release(body: Mapping[str, Any]) -> Any:
        return does.release(_text(body, "worker_id"), str(body.get("reason") or "the client gave it back")[:500])

    table: Sequence[tuple[str, str, Callable[[Request], Any]]] = [
        ("GET", "/train/about", _in_thread(lambda body: does.about())),  # also for clients of another version
        ("POST", "/train/data", _in_thread(add_data)),  # a part of the tasks
        ("POST", "/train/data/commit", _in_thread(commit)),  # makes an upload the server's tasks
        ("POST", "/train/start", _in_thread(lambda body: does.start())),  # the run that continues, or a new one
        (
            "POST",
            "/train/claim",
            lambda request: _claim(does, request),
        ),  # attempts, and the run; waits
        ("POST", "/train/heartbeat", _in_thread(heartbeat)),  # the attempts that a client runs
        ("POST", "/train/finish", _in_thread(finish)),  # how an attempt ended
        ("POST", "/train/release", _in_thread(release)),  # a client leaves; its attempts are taken back
        ("POST", "/train/stop", _in_thread(lambda body: does.stop())),  # ends the run after the update in progress
        ("GET", "/train/progress", lambda request: _progress(does, request)),  # the state of the run
    ]
    return [
        RuledRoute(path, _answered(handler), methods=[method], access=Access.ADMIN) for method, path, handler in table
    ]


async def _claim(does: Coordinator, request: Request) -> Any:
    body = await _object(request)
    worker, limit, lease_s = _text(body, "worker_id"), _whole(body, "limit"), _number(body, "lease_s")
    run_id, after = _text(body, "run"), _whole(body, "after")
    until = time.monotonic() + min(_number(body, "wait_s"), _LONGEST_WAIT_S)
    while True:
        seen = does.enqueued
        progress = await asyncio.to_thread(does.progress, run_id, after)
        assignments = await asyncio.to_thread(does.claim, worker, limit, lease_s)
        if assignments or progress["state"] in ENDED or limit < 1 or time.monotonic() >= until:
            return {"assignments": assignments, "progress": progress}
        look = min(until, time.monotonic() + 1.0)  # what waits for another try becomes due by itself
        while does.enqueued == seen and time.monotonic() < look:
            await asyncio.sleep(0.02)


async def _progress(does: Coordinator, request: Request) -> Any:
    after = request.query_params.get("after", "0")
    if not after.isdigit():
        raise EndpointError("'after' must be a whole number", status=422)
    return await asyncio.to_thread(does.progress, None, int(after))


def _in_thread(handle: Callable[[Mapping[str, Any]], Any]) -> Callable[[Request], Any]:
    async def handler(request: Request) -> Any:
        return await asyncio.to_thread(handle, await _object(request))

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


async def _object(request: Request) -> Mapping[str, Any]:
    raw = await read_body(request, _MAX_BODY)
    try:
        body: Any = json.loads(raw or b"{}")
    except (ValueError, RecursionError) as error:
        raise EndpointError(f"the request is not JSON: {error}", status=422) from error
    if not isinstance(body, dict):
        raise EndpointError("the request must be a JSON object", status=422)
    return cast("Mapping[str, Any]", body)


def _attempts(body: Mapping[str, Any]) -> list[tuple[str, int]]:
    try:
        return [(str(rollout_id), int(attempt)) for rollout_id, attempt in body["attempts"]]
    except (KeyError, TypeError, ValueError) as error:
        raise EndpointError("'attempts' must be a list of rollout ids and numbers", status=422) from error


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value or len(value) > 200:
        raise EndpointError(f"{name!r} must be a text", status=422)
    return value


def _whole(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise EndpointError(f"{name!r} must be a whole number from 0", status=422)
    return value


def _number(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1e6:
        raise EndpointError(f"{name!r} must be a number of seconds", status=422)
    return float(value)


def _json(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")
