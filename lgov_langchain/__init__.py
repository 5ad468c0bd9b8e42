"""lgov for LangChain: `LgovMiddleware` governs an agent, `wrap_tool_node` the tools of a hand-made graph.

`LgovCallbackHandler` observes (and, alone, stops denied tools where a callback can); `instrument` governs a whole process.

Names are looked up when they are first used, so importing this package does not import LangChain.

PYTEST_DONT_REWRITE: where lgov governs pytest, this is imported before pytest is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lgov_core.instrumentation.framework import lazy_names

if TYPE_CHECKING:
    from lgov_langchain.callback import DeniedToolError, LgovCallbackHandler
    from lgov_langchain.instrumentor import instrument, uninstrument
    from lgov_langchain.middleware import LgovMiddleware
    from lgov_langchain.tools import wrap_tool_node

__all__ = ["DeniedToolError", "LgovCallbackHandler", "LgovMiddleware", "instrument", "uninstrument", "wrap_tool_node"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DeniedToolError": "callback",
        "LgovCallbackHandler": "callback",
        "LgovMiddleware": "middleware",
        "instrument": "instrumentor",
        "uninstrument": "instrumentor",
        "wrap_tool_node": "tools",
    },
)
