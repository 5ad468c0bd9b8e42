"""lgov for AutoGen: a governed model client, workbench and code executor, and `instrument` for a whole process.

Names are looked up when they are first used, so importing this package does not import AutoGen.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_autogen.code_executor import GovernedCodeExecutor
    from lgov_autogen.current_governor import governing
    from lgov_autogen.instrumentor import instrument, uninstrument
    from lgov_autogen.model_client import GovernedChatCompletionClient
    from lgov_autogen.workbench import GovernedWorkbench

__all__ = [
    "GovernedChatCompletionClient",
    "GovernedCodeExecutor",
    "GovernedWorkbench",
    "governing",
    "instrument",
    "uninstrument",
]

_HOMES = {
    "GovernedChatCompletionClient": "lgov_autogen.model_client",
    "GovernedCodeExecutor": "lgov_autogen.code_executor",
    "GovernedWorkbench": "lgov_autogen.workbench",
    "instrument": "lgov_autogen.instrumentor",
    "uninstrument": "lgov_autogen.instrumentor",
    "governing": "lgov_autogen.current_governor",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
