"""lgov for plain openai: `govern_client` puts one client under policy, `instrument` every client of a process.

Names are looked up when they are first used, so importing this package does not import openai.

PYTEST_DONT_REWRITE: where lgov governs pytest, this is imported before pytest is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lgov_core.instrumentation.framework import lazy_names

if TYPE_CHECKING:
    from lgov_openai.client import govern_client
    from lgov_openai.instrumentor import instrument, uninstrument

__all__ = ["govern_client", "instrument", "uninstrument"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "instrument": "instrumentor",
        "uninstrument": "instrumentor",
        "govern_client": "client",
    },
)
