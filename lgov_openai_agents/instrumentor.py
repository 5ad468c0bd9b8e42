"""Governs every agent of the SDK in this process without touching its code.

`instrument` does five things. The callables of all tools (`FunctionTool.on_invoke_tool` and its like) are governed where
they are read from the tool, so it does not matter when a tool was made, who calls it, or whether it comes from an MCP
server. ``get_response`` and ``stream_response`` of every model class are governed, so that a model that an agent holds
itself is too. So is ``call_tool`` of every class of MCP servers. ``Runner.run``, ``run_sync`` and ``run_streamed`` open
the run. And the SDK's exporter, which sends prompts to the vendor, is taken out unless the user says otherwise. No agent,
tool or model is changed or copied.

`lgov_openai_agents.patching` does it; this module imports no framework.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from lgov_core.instrumentation.framework import Gap, Instrumentor, whole_surface

#: Files that the SDK has and a program's own package of that very common name has not, taken together.
_SDK_FILES = ("guardrail.py", "run.py", "model_settings.py")


def installed() -> bool:
    """Returns whether ``import agents`` means the OpenAI Agents SDK, found out without importing it."""
    spec = importlib.util.find_spec("agents")
    if spec is None or not spec.submodule_search_locations:
        return False
    return any(
        all((Path(folder) / name).is_file() for name in _SDK_FILES) for folder in spec.submodule_search_locations
    )


INSTRUMENTOR = Instrumentor(
    name="openai-agents",
    title="the OpenAI Agents SDK",
    modules=("agents",),
    tested={"openai-agents": ">=0.24,<0.25"},
    installed=installed,
    patching="lgov_openai_agents.patching",
    self_test_in_thread=True,
    # ``input`` is evaluated with the first model call, ``output`` with the last one. A denied request, reply or answer is
    # replaced by the denial, which the caller reads; the model reads those of tool calls and results.
    surface=whole_surface(),
    gaps=(
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
    ),
)

instrument = INSTRUMENTOR.instrument
"""Puts every agent, tool and model of the SDK in this process under its governor, and proves it by a self-test.

Raises `InstrumentationError` where that cannot be done: then the process must not run agents.
"""

uninstrument = INSTRUMENTOR.uninstrument
"""Undoes `instrument`; runs that are going on are no longer governed."""

lgov_framework = INSTRUMENTOR.lgov_framework
