"""The abilities of lgov with the OpenAI Agents SDK. Imports no framework until it is instrumented."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation.framework import Adapter, Gap, whole_surface
from lgov_openai_agents.instrumentor import TESTED, instrument, uninstrument

#: Files that the SDK has and a program's own package of that very common name has not, taken together.
_SDK_FILES = ("guardrail.py", "run.py", "model_settings.py")

#: ``input`` is evaluated with the first model call, ``output`` with the last one. A denied request, reply or answer is
#: replaced by the denial, which the caller reads; the model reads those of tool calls and results.
SURFACE = whole_surface()

GAPS = (
    Gap(
        "the wrapped function",
        "tool.__wrapped__ is the program's own function: a call of it does not go through the SDK",
        ("__wrapped__",),
    ),
    Gap(
        "a result that is the answer",
        "with tool_use_behavior a tool's result ends the run: it is evaluated as a result, not as the final answer",
        ("StopAtTools",),
    ),
    Gap(
        "tools at the provider",
        "a hosted tool can only be left out of the request: what it did there is evaluated with the reply, afterwards",
    ),
)


def installed() -> bool:
    """Returns whether ``import agents`` means the OpenAI Agents SDK, found out without importing it."""
    spec = importlib.util.find_spec("agents")
    if spec is None or not spec.submodule_search_locations:
        return False
    return any(
        all((Path(folder) / name).is_file() for name in _SDK_FILES) for folder in spec.submodule_search_locations
    )


@hookimpl
def lgov_framework() -> Adapter:
    """The OpenAI Agents SDK adapter."""
    return Adapter(
        name="openai-agents",
        modules=("agents",),
        tested=TESTED,
        surface=SURFACE,
        installed=installed,
        instrument=instrument,
        uninstrument=uninstrument,
        gaps=GAPS,
    )
