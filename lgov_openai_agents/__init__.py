"""lgov for the OpenAI Agents SDK: guardrails, governed models, hooks, and `arm`, which does it for a whole process.

Names are looked up when they are first used, so importing this package does not import the SDK.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_openai_agents.arming import arm, disarm
    from lgov_openai_agents.models import GovernedModel, GovernedModelProvider
    from lgov_openai_agents.tracing import LgovTracingProcessor

__all__ = ["GovernedModel", "GovernedModelProvider", "LgovTracingProcessor", "arm", "disarm"]

_HOMES = {
    "GovernedModel": "lgov_openai_agents.models",
    "GovernedModelProvider": "lgov_openai_agents.models",
    "LgovTracingProcessor": "lgov_openai_agents.tracing",
    "arm": "lgov_openai_agents.arming",
    "disarm": "lgov_openai_agents.arming",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
