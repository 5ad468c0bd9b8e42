"""lgov for AutoGen: a governed model client, workbench and code executor, and `instrument` for a whole process.

Names are looked up when they are first used, so importing this package does not import AutoGen.

PYTEST_DONT_REWRITE: where lgov governs pytest, this is imported before pytest is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lgov_core.instrumentation.framework import lazy_names

if TYPE_CHECKING:
    from lgov_autogen.components import GovernedChatCompletionClient, GovernedCodeExecutor
    from lgov_autogen.instrumentor import instrument, uninstrument
    from lgov_autogen.runs import governing
    from lgov_autogen.tools import GovernedWorkbench

__all__ = [
    "GovernedChatCompletionClient",
    "GovernedCodeExecutor",
    "GovernedWorkbench",
    "governing",
    "instrument",
    "uninstrument",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "GovernedChatCompletionClient": "components",
        "GovernedCodeExecutor": "components",
        "GovernedWorkbench": "tools",
        "instrument": "instrumentor",
        "uninstrument": "instrumentor",
        "governing": "runs",
    },
)
