"""What an endpoint serves besides its own routes."""

from __future__ import annotations

from typing import Protocol

from starlette.types import ASGIApp

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
