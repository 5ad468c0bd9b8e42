"""Governs every agent of the SDK in this process without touching its code.

`instrument` does five things. The callables of all tools (`FunctionTool.on_invoke_tool` and its like) are governed where
they are read from the tool, so it does not matter when a tool was made, who calls it, or whether it comes from an MCP
server. ``get_response`` and ``stream_response`` of every model class are governed, so that a model that an agent holds
itself is too. So is ``call_tool`` of every class of MCP servers. ``Runner.run``, ``run_sync`` and ``run_streamed`` open
the run. And the SDK's exporter, which sends prompts to the vendor, is taken out unless the user says otherwise. No agent,
tool or model is changed or copied.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.instrumentor import Instrumentor, Patches, in_fresh_thread
from lgov_core.instrumentation.subclasses import wrap_methods

#: The versions that the tests run against.
TESTED = {"openai-agents": ">=0.24,<0.25"}

#: Set to ``1``, the SDK's own exporter goes on sending traces (prompts among them) to the vendor.
TRACES_VARIABLE = "LGOV_OPENAI_TRACES"

_INSTRUMENTOR = Instrumentor("the OpenAI Agents SDK", TESTED)


def acting_governor() -> Governor | None:
    """The governor of a running self-test, else that of the instrumented process, else None."""
    return _INSTRUMENTOR.governor


def instrument(governor: Governor) -> None:
    """Makes every agent, tool and model of the SDK in this process governed by ``governor``, and proves it.

    Calling it again with the same governor changes nothing. Warns about versions outside the tested range. Raises
    `InstrumentationError` if the SDK is missing, if another governor is instrumented already, or if the self-test
    finds a way around; then nothing stays patched and the process must not run agents.
    """
    _INSTRUMENTOR.instrument(governor, _patch, _self_test)


def uninstrument() -> None:
    """Undoes `instrument`; runs that are going on are no longer governed."""
    _INSTRUMENTOR.uninstrument()


def _patch(patches: Patches) -> None:
    from agents import Model, Runner
    from agents.mcp import MCPServer

    from lgov_openai_agents.governed_fields import govern_fields
    from lgov_openai_agents.invokers import FIELDS
    from lgov_openai_agents.run_memory import RunMemory
    from lgov_openai_agents.run_methods import RUN_METHODS, wrap_run_method
    from lgov_openai_agents.servers import governed_call_tool

    for tool_class, wraps in FIELDS.items():
        govern_fields(patches, tool_class, wraps, acting_governor)
    wrap_methods(patches, Model, {"get_response": _wrap_get_response, "stream_response": _wrap_stream_response})
    wrap_methods(patches, MCPServer, {"call_tool": lambda own: governed_call_tool(own, acting_governor)})
    memory = RunMemory()
    for name in RUN_METHODS:
        wrapped = wrap_run_method(getattr(Runner, name), acting_governor, memory)
        patches.replace(Runner, name, classmethod(wrapped))
    if os.environ.get(TRACES_VARIABLE, "").strip().lower() not in ("1", "true", "yes", "send"):
        from lgov_openai_agents.tracing import keep_traces_here

        patches.undo_by(keep_traces_here())


def _wrap_get_response(inner: Callable[..., Any]) -> Callable[..., Any]:
    from lgov_openai_agents.model_calls import govern_response

    @functools.wraps(inner)
    async def get_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await govern_response(acting_governor(), self, functools.partial(inner, self), args, kwargs)

    return get_response


def _wrap_stream_response(inner: Callable[..., Any]) -> Callable[..., Any]:
    from lgov_openai_agents.model_calls import govern_stream

    @functools.wraps(inner)
    async def stream_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        stream = govern_stream(acting_governor(), self, functools.partial(inner, self), args, kwargs)
        async with aclosing(stream) as events:
            async for event in events:
                yield event

    return stream_response


def _self_test() -> None:
    """Raises `InstrumentationError` if a probe gets through on any of the ways in which a tool or a model is called."""
    from lgov_openai_agents.self_test import attempt

    ran: list[str] = []
    in_fresh_thread(lambda: attempt(_INSTRUMENTOR, ran))
    if ran:
        raise InstrumentationError(f"a denied probe ran all the same ({', '.join(ran)})")
