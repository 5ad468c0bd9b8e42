"""Serves a window on a port of its own, or on an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from starlette.types import ASGIApp

from lgov_core.gateway.mounted_app import served_alone
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.serving.keys import KeyRing
from lgov_core.views.web.access import WindowAccess
from lgov_core.views.web.app import PATH, create_window_app
from lgov_core.views.web.window import Window


class MountedWindow:
    """A window for an endpoint: a `lgov_core.gateway.mounted_app.MountedApp`.

    ``say`` gets the address to open, which works once, and another one as soon as it was used.
    """

    path: str = PATH

    def __init__(self, window: Window, *, hosts: Sequence[str] = (), say: Callable[[str], None]) -> None:
        self._window, self._hosts, self._say = window, hosts, say
        self._access = WindowAccess()
        self.url = ""

    @property
    def address(self) -> str:
        """What opens the window once, on the server at ``url``."""
        return f"{self.url}{PATH}/?token={self._access.token}"

    def app(self, keys: KeyRing | None) -> ASGIApp:
        """The application; an admin key among ``keys`` opens it too."""
        self._access = WindowAccess(keys=keys, hosts=self._hosts, on_new_token=self._offer_again)
        return create_window_app(self._window, self._access)

    def started(self, url: str) -> None:
        """Says the address."""
        self.url = url
        self._say(f"look at it: {self.address}")

    def close(self) -> None:
        """Closes the window's stores."""
        self._window.close()

    def _offer_again(self) -> None:
        self._say(f"for another browser: {self.address}")


@contextmanager
def served_window(
    window: Window, *, host: str, port: int, say: Callable[[str], None]
) -> Generator[tuple[EndpointServer, str]]:
    """Serves ``window`` until the block ends: the server, and the address to open. Raises `EndpointError`."""
    mounted = MountedWindow(window, hosts=(host,), say=say)
    with served_alone(mounted, host=host, port=port, announce=False) as server:
        mounted.url = server.url
        yield server, mounted.address
