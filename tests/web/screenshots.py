"""Takes the pictures of the window for README.md and docs/how-to/window.md, into docs/images.

    python -m tests.web.screenshots [FOLDER]

FOLDER is a run that the demo made; without it `lgov demo --quick` makes one first. Needs chromium and Playwright.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.peers import ROOT
from tests.web.browser import chromium, launched
from tests.web.recorded_run import ask_for_approval, make_run
from tests.web.served import Served, served

IMAGES: Final = ROOT / "docs" / "images"
_SIZE: Final = {"width": 1280, "height": 800}


def main(arguments: list[str]) -> None:
    if (path := chromium()) is None:
        sys.exit("no chromium here: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made, launched(path) as browser:
        folder = Path(arguments[0]).absolute() if arguments else demo(Path(made))
        os.chdir(folder.parent)  # the pictures show the path as it was given
        with served(Path(folder.name)) as window:
            take(window.open(browser.new_page(viewport=_SIZE)), window)
        asked = Path(made) / "asked"
        make_run(asked)
        ask_for_approval(asked, {"to": "Ann", "amount": 1250, "currency": "EUR", "reference": "invoice 4711"})
        os.chdir(made)
        with served(Path(asked.name)) as window:
            page = window.open(browser.new_page(viewport={**_SIZE, "height": 620}), "#/approvals")
            page.get_by_label("Your name").fill("zoe")
            page.evaluate("scrollTo(0, 0)")
            shot(page, window, "approvals", None)
            shot(page, window, "doctor", "#/doctor")


def demo(folder: Path) -> Path:
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from lgov_core.commands import main; main()",
            "demo",
            "--quick",
            "--folder",
            str(folder),
        ],
        check=True,
    )
    return next(folder.glob("seed*-governed"))


def take(page: Any, window: Served) -> None:
    shot(page, window, "runs", "#/runs")
    shot(page, window, "tasks", "#/tasks?denied=1&teaches=something&text=train-")
    denied = page.locator("a.chip:has(.bad)").first.get_attribute("href")
    shot(page, window, "rollout", denied)
    shot(page, window, "tokens", f"{denied}&step=0&view=tokens&by=logprobs")
    page.keyboard.press("t")
    shot(page, window, "tokens-dark", f"{denied}&step=0&view=tokens&by=advantages")
    page.keyboard.press("t")
    shot(page, window, "compare", "#/compare?only=broken")
    page.locator("main tr[data-row] a").first.click()
    shot(page, window, "side-by-side", None)
    shot(page, window, "governance", "#/governance")


def shot(page: Any, window: Served, name: str, route: str | None) -> None:
    if route is not None:
        page.goto(window.base + route)
    page.wait_for_timeout(2_500)
    page.screenshot(path=IMAGES / f"window-{name}.png")
    print(IMAGES / f"window-{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
