"""What an endpoint serves besides its own routes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.serving.keys import KeyRing


class MountedApp(Protocol):
    """An application that is served below ``path``, with rules of its own about who may use it."""

    path: str

    def app(self, keys: KeyRing | None) -> ASGIApp:
        """The application, on an endpoint with these keys."""
        ...

    def started(self, url: str) -> None:
        """Called once the endpoint answers at ``url``."""
        ...


@contextmanager
def served_alone(
    mounted: MountedApp, *, host: str = "127.0.0.1", port: int = 0, announce: bool = True
) -> Generator[EndpointServer]:
    """Serves ``mounted`` on a port of its own until the block ends, without an endpoint. Raises `EndpointError`.

    Calls `MountedApp.started` unless ``announce`` is False.
    """

    async def to_path(request: Request) -> Response:
        return RedirectResponse(f"{mounted.path}/", 307)

    app = Starlette(routes=[Mount(mounted.path, mounted.app(None)), Route("/", to_path)])
    with EndpointServer(app, host=host, port=port, drain_s=3) as server:
        if announce:
            mounted.started(server.url)
        yield server
