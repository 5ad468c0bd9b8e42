"""Serves a window on a port of its own, or on an endpoint."""

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

#: Seconds for which a request for changes may hold up the end of its server: less than it waits for open requests.
_LONGEST_WAIT_S = 2


class MountedWindow:
    """A window for an endpoint: a `lgov_core.gateway.mounted_app.MountedApp`.

    ``say`` gets the address to open, which works once, and another one as soon as it was used.
    """

    path: str = PATH

    def __init__(self, window: Window, *, hosts: Sequence[str] = (), say: Callable[[str], None]) -> None:
        self._window, self._hosts, self._say = window, hosts, say
        self._url = ""
        self._access: WindowAccess | None = None

    def app(self, keys: KeyRing | None) -> ASGIApp:
        """The application; an admin key among ``keys`` opens it too."""
        self._access = WindowAccess(keys=keys, hosts=self._hosts, on_new_token=self._offer_again)
        return create_window_app(self._window, self._access, longest_wait_s=_LONGEST_WAIT_S)

    def started(self, url: str) -> None:
        """Says the address."""
        self._url = url
        if self._access is not None:
            self._say(f"look at it: {_address(url, self._access.token)}")

    def close(self) -> None:
        """Closes the window's stores."""
        self._window.close()

    def _offer_again(self, token: str) -> None:
        self._say(f"for another browser: {_address(self._url, token)}")


@contextmanager
def served_window(
    window: Window, *, host: str, port: int, say: Callable[[str], None]
) -> Generator[tuple[EndpointServer, str]]:
    """Serves ``window`` until the block ends: the server, and the address to open. Raises `EndpointError`."""
    url = ""

    def offer_again(token: str) -> None:
        say(f"for another browser: {_address(url, token)}")

    async def to_window(request: Request) -> Response:
        return RedirectResponse(f"{PATH}/", 307)

    access = WindowAccess(hosts=(host,), on_new_token=offer_again)
    app = Starlette(
        routes=[Mount(PATH, create_window_app(window, access, longest_wait_s=_LONGEST_WAIT_S)), Route("/", to_window)]
    )
    with EndpointServer(app, host=host, port=port, drain_s=3) as server:
        url = server.url
        yield server, _address(url, access.token)


def _address(url: str, token: str) -> str:
    return f"{url}{PATH}/?token={token}"
