"""A window on a run, served as `lgov view` serves it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lgov_core.views.web.app import served_window
from lgov_core.views.web.window import Window, WindowOptions

_ADDRESS: Final = re.compile(r"https?://\S+")


class Served:
    """``base`` ends in a slash. The token of an address opens it once; the server then says the next one."""

    def __init__(self, address: str) -> None:
        self._addresses = [address]
        self.base = address.partition("?")[0]

    def hear(self, line: str) -> None:
        self._addresses += _ADDRESS.findall(line)

    def open(self, page: Any, route: str = "#/runs") -> Any:
        """Opens a route with a new session, and waits until the page has what it first asks for."""
        page.goto(self._addresses.pop() + route)
        page.wait_for_selector("main h1, main h2")
        page.wait_for_selector("main [aria-label=Loading]", state="hidden")
        return page


@contextmanager
def served(place: Path | str, options: WindowOptions | None = None) -> Iterator[Served]:
    window = Window(str(place), options)
    try:
        with served_window(window, host="127.0.0.1", port=0, say=lambda line: made.hear(line)) as (_, address):
            made = Served(address)
            yield made
    finally:
        window.close()
