"""lgov for LangChain: `LgovMiddleware` enforces, `LgovCallbackHandler` observes, `arm` does both for a whole process.

Names are looked up when they are first used, so importing this package does not import LangChain.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_langchain.arming import arm, disarm
    from lgov_langchain.callback import LgovCallbackHandler
    from lgov_langchain.middleware import LgovMiddleware

__all__ = ["LgovCallbackHandler", "LgovMiddleware", "arm", "disarm"]

_HOMES = {
    "LgovCallbackHandler": "lgov_langchain.callback",
    "LgovMiddleware": "lgov_langchain.middleware",
    "arm": "lgov_langchain.arming",
    "disarm": "lgov_langchain.arming",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
