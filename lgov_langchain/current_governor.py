"""Which governor the patches ask: that of the instrumented process. Imports no framework."""

from __future__ import annotations

from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.framework import Instrumentor

#: The versions that the tests run against.
TESTED = {"langchain": ">=1.4,<1.6", "langchain-core": ">=1.7,<1.9", "langgraph": ">=1.2.11,<1.3"}

INSTRUMENTOR = Instrumentor("LangChain", TESTED)


def acting_governor() -> Governor | None:
    """The governor of a running self-test, else that of the instrumented process, else None."""
    return INSTRUMENTOR.governor
