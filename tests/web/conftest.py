"""A browser for each file of tests, and a fresh page for each test that must not make the browser complain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.web.browser import WIDE, Complaints, launched, required


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for a file: Playwright's loop would be in the way of the asynchronous tests of other files."""
    with launched(required()) as running:
        yield running


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Makes pages in contexts of their own (cookies, storage). Fails the test when a page had something to complain of."""
    complaints = Complaints()
    contexts: list[Any] = []

    def make(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": WIDE, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        complaints.watch(page)
        return page

    yield make
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def page(new_page: Callable[..., Any]) -> Any:
    return new_page()
