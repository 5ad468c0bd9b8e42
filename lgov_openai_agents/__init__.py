"""lgov for the OpenAI Agents SDK.

`LgovRunner` governs a run in one line, `instrument` a whole process in none; the guardrails, hooks, models and the tracing
processor are the parts for programs that put them together themselves. Names are looked up when they are first used, so
importing this package does not import the SDK.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lgov_openai_agents.guardrails import LgovToolGuardrails, lgov_input_guardrail, lgov_output_guardrail
    from lgov_openai_agents.hooks import LgovRunHooks
    from lgov_openai_agents.instrumentor import instrument, uninstrument
    from lgov_openai_agents.invokers import governed_tool
    from lgov_openai_agents.models import GovernedModel, GovernedModelProvider
    from lgov_openai_agents.runner import LgovRunner
    from lgov_openai_agents.tracing import LgovTracingProcessor

__all__ = [
    "GovernedModel",
    "GovernedModelProvider",
    "LgovRunHooks",
    "LgovRunner",
    "LgovToolGuardrails",
    "LgovTracingProcessor",
    "governed_tool",
    "instrument",
    "lgov_input_guardrail",
    "lgov_output_guardrail",
    "uninstrument",
]

_HOMES = {
    "GovernedModel": "lgov_openai_agents.models",
    "GovernedModelProvider": "lgov_openai_agents.models",
    "LgovRunHooks": "lgov_openai_agents.hooks",
    "LgovRunner": "lgov_openai_agents.runner",
    "LgovToolGuardrails": "lgov_openai_agents.guardrails",
    "LgovTracingProcessor": "lgov_openai_agents.tracing",
    "instrument": "lgov_openai_agents.instrumentor",
    "uninstrument": "lgov_openai_agents.instrumentor",
    "governed_tool": "lgov_openai_agents.invokers",
    "lgov_input_guardrail": "lgov_openai_agents.guardrails",
    "lgov_output_guardrail": "lgov_openai_agents.guardrails",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
