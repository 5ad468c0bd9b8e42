"""lgov for plain openai: `govern_client` puts one client under policy, `instrument` every client of a process.

Names are looked up when they are first used, so importing this package does not import openai.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_openai.client import govern_client
    from lgov_openai.instrumentor import instrument, uninstrument

__all__ = ["govern_client", "instrument", "uninstrument"]

_MODULES = {"instrument": "instrumentor", "uninstrument": "instrumentor", "govern_client": "client"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"lgov_openai.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
