"""The abilities of lgov with AutoGen. Imports no framework until it is instrumented."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from lgov_autogen.current_governor import TESTED
from lgov_autogen.instrumentor import instrument, uninstrument
from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation.framework import SHAPES, Adapter, Conflict, Gap, whole_surface

if TYPE_CHECKING:
    from collections.abc import Mapping

#: ``input`` is evaluated with the model call that first shows it, ``output`` with the one that writes it. A streamed reply
#: is withheld until it has been evaluated. AutoGen has nothing synchronous.
SURFACE = whole_surface(sync=False)

UNSUPPORTED: Mapping[tuple[str, str], str] = {
    ("sync", shape): "AutoGen 0.7 has no synchronous API: its agents, tools and model clients are only asynchronous"
    for shape in SHAPES
}

GAPS = (
    Gap(
        "tool.run",
        "a tool's run(), or the function behind it, called by the program itself is not governed; run_json is",
        calls=("_func",),
    ),
    Gap(
        "MCP session",
        "a call of a tool on an mcp ClientSession that the program opened itself is not governed; a workbench's is",
        calls=("ClientSession",),
    ),
    Gap(
        "model client of another kind",
        "a model client that is not a subclass of ChatCompletionClient is not governed, nor are the hand-offs it proposes",
        calls=(),
    ),
    Gap(
        "agents that bring their own client",
        "OpenAIAgent and OpenAIAssistantAgent call their model without ChatCompletionClient; their tools are governed",
        calls=("OpenAIAgent", "OpenAIAssistantAgent"),
    ),
    Gap(
        "runtime of its own",
        "the members of a team on a runtime that was started elsewhere are governed, in the rollout in which it was started",
        calls=("SingleThreadedAgentRuntime",),
    ),
    Gap(
        "other processes",
        "what a tool starts as a process of its own is not governed, nor are the agents of a distributed runtime elsewhere",
        calls=("GrpcWorkerAgentRuntime",),
    ),
)

CONFLICTS = (Conflict("mcp", "2", "autogen-ext", "AutoGen's MCP tools (autogen-ext[mcp]) cannot be imported"),)


def installed() -> bool:
    """Returns whether AutoGen can be imported, found out without importing it."""
    return any(importlib.util.find_spec(name) is not None for name in ("autogen_agentchat", "autogen_core"))


@hookimpl
def lgov_framework() -> Adapter:
    """The AutoGen adapter."""
    return Adapter(
        name="autogen",
        modules=("autogen_agentchat", "autogen_core"),
        tested=TESTED,
        surface=SURFACE,
        installed=installed,
        instrument=instrument,
        uninstrument=uninstrument,
        unsupported=UNSUPPORTED,
        gaps=GAPS,
        conflicts=CONFLICTS,
    )
