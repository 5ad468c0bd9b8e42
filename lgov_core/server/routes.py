"""The routes under ``/train``, for clients. All take an admin key where keys are required."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from starlette.requests import Request
from starlette.responses import Response

from lgov_core.client.wire import ENDED, PROTOCOL_HEADER, VERSION_HEADER
from lgov_core.errors import ClientError, EndpointError, LgovError
from lgov_core.gateway.routes.bodies import read_body
from lgov_core.gateway.serving.access import Access, RuledRoute
from lgov_core.server.coordinator import Coordinator, check_protocol

_MAX_BODY: Final = 8 * 1024 * 1024
_LONGEST_WAIT_S: Final = 20.0


class TrainRoutes:
    """The handlers, for one event loop."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def routes(self) -> list[RuledRoute]:
        """The routes, each with its rule."""
        table: Sequence[tuple[str, str, Callable[[Request], Any]]] = [
            ("GET", "/train/about", self._about),  # also for clients of another version
            ("POST", "/train/data", self._data),  # a part of the tasks
            ("POST", "/train/data/commit", self._commit),  # makes an upload the server's tasks
            ("POST", "/train/start", self._start),  # the run that continues, or a new one
            ("POST", "/train/claim", self._claim),  # attempts, and the state of the run; waits for the first
            ("POST", "/train/heartbeat", self._heartbeat),  # the attempts that a client runs
            ("POST", "/train/finish", self._finish),  # how an attempt ended
            ("POST", "/train/release", self._release),  # a client leaves; its attempts are taken back
            ("POST", "/train/stop", self._stop),  # the run ends after the update in progress, with a checkpoint
            ("GET", "/train/progress", self._progress),  # the state of the run
        ]
        return [
            RuledRoute(path, _answered(handler), methods=[method], access=Access.ADMIN)
            for method, path, handler in table
        ]

    async def _about(self, request: Request) -> Any:
        return self._coordinator.about()

    async def _data(self, request: Request) -> Any:
        body = await _object(request)
        tasks = body.get("tasks")
        if not isinstance(tasks, list):
            raise EndpointError("'tasks' must be a list", status=422)
        return await asyncio.to_thread(self._coordinator.add_data, _text(body, "upload"), _text(body, "split"), tasks)

    async def _commit(self, request: Request) -> Any:
        body = await _object(request)
        counts = {name: _whole(body, name) for name in ("train", "test")}
        return await asyncio.to_thread(self._coordinator.commit_data, _text(body, "upload"), counts)

    async def _start(self, request: Request) -> Any:
        await _object(request)
        return await asyncio.to_thread(self._coordinator.start)

    async def _claim(self, request: Request) -> Any:
        body = await _object(request)
        worker, limit, lease_s = _text(body, "worker_id"), _whole(body, "limit"), _number(body, "lease_s")
        run_id, after = _text(body, "run"), _whole(body, "after")
        until = time.monotonic() + min(_number(body, "wait_s"), _LONGEST_WAIT_S)
        while True:
            seen = self._coordinator.enqueued
            progress = await asyncio.to_thread(self._coordinator.progress, run_id, after)
            found = await asyncio.to_thread(self._coordinator.claim, worker, limit, lease_s)
            if found or progress["state"] in ENDED or limit < 1 or time.monotonic() >= until:
                return {"assignments": found, "progress": progress}
            look = min(until, time.monotonic() + 1.0)  # what waits for another try becomes due by itself
            while self._coordinator.enqueued == seen and time.monotonic() < look:
                await asyncio.sleep(0.02)

    async def _heartbeat(self, request: Request) -> Any:
        body = await _object(request)
        worker, lease_s = _text(body, "worker_id"), _number(body, "lease_s")
        return await asyncio.to_thread(self._coordinator.heartbeat, worker, lease_s, _attempts(body))

    async def _finish(self, request: Request) -> Any:
        body = await _object(request)
        what = (_text(body, "worker_id"), _text(body, "rollout_id"), _whole(body, "attempt"))
        return await asyncio.to_thread(self._coordinator.finish, *what, body)

    async def _release(self, request: Request) -> Any:
        body = await _object(request)
        reason = str(body.get("reason") or "the client gave it back")[:500]
        return await asyncio.to_thread(self._coordinator.release, _text(body, "worker_id"), reason)

    async def _stop(self, request: Request) -> Any:
        return await asyncio.to_thread(self._coordinator.stop)

    async def _progress(self, request: Request) -> Any:
        given = request.query_params.get("after", "0")
        if not given.isdigit():
            raise EndpointError("'after' must be a whole number", status=422)
        return await asyncio.to_thread(self._coordinator.progress, None, int(given))


def _answered(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """``handler`` for clients of this version only, and its errors as JSON."""

    async def answer(request: Request) -> Response:
        try:
            if request.url.path != "/train/about":
                check_protocol(request.headers.get(PROTOCOL_HEADER), request.headers.get(VERSION_HEADER))
            return _json(await handler(request))
        except EndpointError as error:
            return _json({"error": {"message": str(error), "code": error.code}}, error.status)
        except ClientError as error:
            return _json({"error": {"message": str(error), "code": error.code}}, 409)
        except LgovError as error:
            return _json({"error": {"message": str(error), "code": error.code}}, 500)

    return answer


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
