"""lgov for the OpenAI Agents SDK.

`LgovRunner` governs a run in one line, `instrument` a whole process in none; the guardrails, hooks, models and the tracing
processor are the parts for programs that put them together themselves. Names are looked up when they are first used, so
importing this package does not import the SDK.

PYTEST_DONT_REWRITE: where lgov governs pytest, this is imported before pytest is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lgov_core.instrumentation.framework import lazy_names

if TYPE_CHECKING:
    from lgov_openai_agents.guardrails import (
        LgovRunHooks,
        LgovToolGuardrails,
        LgovTracingProcessor,
        lgov_input_guardrail,
        lgov_output_guardrail,
    )
    from lgov_openai_agents.instrumentor import instrument, uninstrument
    from lgov_openai_agents.models import GovernedModel, GovernedModelProvider
    from lgov_openai_agents.runner import LgovRunner
    from lgov_openai_agents.tools import governed_tool

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "GovernedModel": "models",
        "GovernedModelProvider": "models",
        "LgovRunHooks": "guardrails",
        "LgovRunner": "runner",
        "LgovToolGuardrails": "guardrails",
        "LgovTracingProcessor": "guardrails",
        "instrument": "instrumentor",
        "uninstrument": "instrumentor",
        "governed_tool": "tools",
        "lgov_input_guardrail": "guardrails",
        "lgov_output_guardrail": "guardrails",
    },
)
