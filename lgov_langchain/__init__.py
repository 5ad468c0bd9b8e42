"""lgov for LangChain: `LgovMiddleware` governs an agent, `wrap_tool_node` the tools of a hand-made graph.

`LgovCallbackHandler` observes (and, alone, stops denied tools where a callback can); `instrument` governs a whole process.

Names are looked up when they are first used, so importing this package does not import LangChain.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_langchain.callback import LgovCallbackHandler
    from lgov_langchain.callback_enforcement import DeniedToolError
    from lgov_langchain.instrumentor import instrument, uninstrument
    from lgov_langchain.middleware import LgovMiddleware
    from lgov_langchain.tool_nodes import wrap_tool_node

__all__ = ["DeniedToolError", "LgovCallbackHandler", "LgovMiddleware", "instrument", "uninstrument", "wrap_tool_node"]

_HOMES = {
    "DeniedToolError": "lgov_langchain.callback_enforcement",
    "LgovCallbackHandler": "lgov_langchain.callback",
    "LgovMiddleware": "lgov_langchain.middleware",
    "instrument": "lgov_langchain.instrumentor",
    "uninstrument": "lgov_langchain.instrumentor",
    "wrap_tool_node": "lgov_langchain.tool_nodes",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
