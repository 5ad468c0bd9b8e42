"""The browser that the tests of the window drive: Debian's chromium, through Playwright; nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

#: Where Debian has it; other systems call it otherwise.
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE: Final = {"width": 1280, "height": 900}
NARROW: Final = {"width": 390, "height": 844}


def chromium() -> str | None:
    """The path of the browser, or None."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def launched(path: str) -> Iterator[Any]:
    """A running browser. Imports Playwright only here, so that collecting the tests needs none."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def required() -> str:
    """The path of the browser; without it the test is skipped, and in continuous integration it fails."""
    path = chromium()
    try:
        import playwright  # noqa: F401
    except ImportError:
        path = None
    if path is None:
        message = "the window's tests need Playwright and a browser: pip install playwright, apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


class Complaints(list[str]):
    """What the browser objects to on a page: errors of scripts, and violations of the content security policy."""

    def watch(self, page: Any) -> None:
        page.on("pageerror", lambda error: self.append(f"error: {error}"))
        page.on("console", self._console)

    def _console(self, message: Any) -> None:
        # A request that is answered with an error status is the page's to show, and logged by the browser as well.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.append(f"console: {message.text}")


def expect(locator: Any) -> Any:
    """Playwright's assertion that waits. The page's policy forbids `wait_for_function`, which evaluates a text."""
    from playwright.sync_api import expect as wait_until

    wait_until.set_options(timeout=20_000)
    return wait_until(locator)
