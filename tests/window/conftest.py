from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from lgov_core.store import RolloutQueue, open_store
from lgov_core.views.web.app import MountedWindow, served_window
from lgov_core.views.web.window import Window, WindowOptions


@dataclass
class Browser:
    """A client of a window, with a session."""

    client: httpx.Client
    url: str
    address: str
    lines: list[str]

    def get(self, path: str, **parameters: Any) -> Any:
        """An answer below ``api/``."""
        answer = self.client.get(f"api/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def all(self, path: str, **parameters: Any) -> list[Any]:
        """The items of all pages."""
        items: list[Any] = []
        cursor: str | None = None
        while True:
            given = parameters if cursor is None else parameters | {"cursor": cursor}
            page = self.get(path, **given)
            items += page["items"]
            cursor = page["cursor"]
            if cursor is None:
                return items

    def error(self, path: str, status: int, **parameters: Any) -> str:
        """The code of the error that a path answers with."""
        answer = self.client.get(f"api/{path}", params=parameters)
        assert answer.status_code == status, answer.text
        return answer.json()["error"]["code"]


Opened = Callable[..., Browser]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens a window on a path, in this process: its application is called without a server."""
    with ExitStack() as stack:

        def open_one(place: Path | str, *, session: bool = True, **options: Any) -> Browser:
            lines: list[str] = []
            mounted = MountedWindow(Window(str(place), WindowOptions(**options)), say=lines.append)
            stack.callback(mounted.close)
            app = Starlette(routes=[Mount(mounted.path, mounted.app(None))])
            mounted.url = "http://127.0.0.1"
            client = TestClient(app, f"{mounted.url}{mounted.path}/", raise_server_exceptions=False)
            if session:
                client.get(mounted.address)
            return Browser(client, mounted.url, mounted.address, lines)

        yield open_one


@pytest.fixture
def served() -> Iterator[Opened]:
    """Serves a window on a path over HTTP, and opens it."""
    with ExitStack() as stack:

        def serve(place: Path | str, *, session: bool = True, **options: Any) -> Browser:
            window = Window(str(place), WindowOptions(**options))
            stack.callback(window.close)
            lines: list[str] = []
            server, address = stack.enter_context(served_window(window, host="127.0.0.1", port=0, say=lines.append))
            client = stack.enter_context(httpx.Client(base_url=f"{server.url}/view/", timeout=60))
            if session:
                client.get(address)
            return Browser(client, server.url, address, lines)

        yield serve


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RolloutQueue]:
    """The store of a run in ``tmp_path``."""
    opened = open_store(tmp_path / "store.sqlite")
    yield opened
    opened.close()
