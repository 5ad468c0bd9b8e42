"""Serves a window on a port of its own, or mounts it on an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.serving.keys import KeyRing
from lgov_core.views.web.access import WindowAccess
from lgov_core.views.web.app import PATH, create_window_app
from lgov_core.views.web.window import Window

#: Seconds for which a request for changes may hold up the end of an endpoint.
_MOUNTED_WAIT_S = 2


class MountedWindow:
    """A window for an endpoint: ``app`` is to be mounted at `PATH`. ``say`` gets a line when the token was used up."""

    def __init__(
        self, window: Window, *, keys: KeyRing | None, hosts: Sequence[str] = (), say: Callable[[str], None]
    ) -> None:
        self._url = ""
        self.window = window
        self._access = WindowAccess(
            keys=keys, hosts=hosts, on_new_token=lambda token: say(f"for another browser: {self._address(token)}")
        )
        self.app: ASGIApp = create_window_app(window, self._access, longest_wait_s=_MOUNTED_WAIT_S)

    def address(self, url: str) -> str:
        """The address to open, on a server with the base ``url``; it works once."""
        self._url = url
        return self._address(self._access.token)

    def _address(self, token: str) -> str:
        return f"{self._url}{PATH}/?token={token}"


@contextmanager
def served_window(
    window: Window, *, host: str, port: int, say: Callable[[str], None]
) -> Generator[tuple[EndpointServer, str]]:
    """Serves ``window`` until the block ends: the server, and the address to open. Raises `EndpointError`."""
    mounted = MountedWindow(window, keys=None, hosts=(host,), say=say)

    async def to_window(request: Request) -> Response:
        return RedirectResponse(f"{PATH}/", 307)

    app = Starlette(routes=[Mount(PATH, mounted.app), Route("/", to_window)])
    with EndpointServer(app, host=host, port=port, drain_s=3) as server:
        yield server, mounted.address(server.url)
