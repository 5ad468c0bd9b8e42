"""Governs every agent of the SDK in this process without touching its code.

`instrument` does five things. The callables of all tools (`FunctionTool.on_invoke_tool` and its like) are governed where
they are read from the tool, so it does not matter when a tool was made, who calls it, or whether it comes from an MCP
server. ``get_response`` and ``stream_response`` of every model class are governed, so that a model that an agent holds
itself is too. So is ``call_tool`` of every class of MCP servers. ``Runner.run``, ``run_sync`` and ``run_streamed`` open
the run. And the SDK's exporter, which sends prompts to the vendor, is taken out unless the user says otherwise. No agent,
tool or model is changed or copied.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.framework import (
    Instrumentor,
    Patches,
    governed_method,
    governed_stream,
    in_fresh_thread,
    on_subclass,
    subclasses_of,
    wrap_methods,
)

#: The versions that the tests run against.
TESTED = {"openai-agents": ">=0.24,<0.25"}

#: Set to ``1``, the SDK's own exporter goes on sending traces (prompts among them) to the vendor.
TRACES_VARIABLE = "LGOV_OPENAI_TRACES"

INSTRUMENTOR = Instrumentor("the OpenAI Agents SDK", TESTED)


def acting_governor() -> Governor | None:
    """The governor of a running self-test, else that of the instrumented process, else None."""
    return INSTRUMENTOR.governor


def instrument(governor: Governor) -> None:
    """Makes every agent, tool and model of the SDK in this process governed by ``governor``, and proves it.

    Raises `InstrumentationError` if the SDK is missing, and as `Instrumentor.instrument` does.
    """
    INSTRUMENTOR.instrument(governor, _patch, _self_test)


def uninstrument() -> None:
    """Undoes `instrument`; runs that are going on are no longer governed."""
    INSTRUMENTOR.uninstrument()


def _patch(patches: Patches) -> None:
    from agents import Model, Runner
    from agents.mcp import MCPServer

    from lgov_openai_agents import tools as servers
    from lgov_openai_agents.invokers import FIELDS
    from lgov_openai_agents.models import govern_response, govern_stream
    from lgov_openai_agents.runner import RUN_METHODS, wrap_run_method
    from lgov_openai_agents.runs import RunMemory

    acting = acting_governor
    for tool_class, wraps in FIELDS.items():
        _govern_fields(patches, tool_class, wraps, acting)

    def get_response(model: Any, own: Any, *args: Any, **kwargs: Any) -> Any:
        return govern_response(acting(), model, own, args, kwargs)

    def stream_response(model: Any, own: Any, *args: Any, **kwargs: Any) -> Any:
        return govern_stream(acting(), model, own, args, kwargs)

    def call_tool(server: Any, own: Any, *args: Any, **kwargs: Any) -> Any:
        return servers.call_tool(acting(), server, own, *args, **kwargs)

    replies = {"get_response": governed_method(get_response), "stream_response": governed_stream(stream_response)}
    wrap_methods(patches, Model, replies)
    wrap_methods(patches, MCPServer, {"call_tool": governed_method(call_tool)})
    memory = RunMemory()
    for name in RUN_METHODS:
        wrapped = wrap_run_method(getattr(Runner, name), acting, memory)
        patches.replace(Runner, name, classmethod(wrapped))
    if os.environ.get(TRACES_VARIABLE, "").strip().lower() not in ("1", "true", "yes", "send"):
        from lgov_openai_agents.tracing import keep_traces_here

        patches.undo_by(keep_traces_here())


def _self_test() -> None:
    """Raises `InstrumentationError` if a probe gets through on any of the ways in which a tool or a model is called."""
    from lgov_openai_agents.self_test import attempt

    ran: list[str] = []
    in_fresh_thread(lambda: attempt(INSTRUMENTOR, ran))
    if ran:
        raise InstrumentationError(f"a denied probe ran all the same ({', '.join(ran)})")


# ---------------------------------------------------------------------- fields that hold a callable

GovernorOf = Callable[[], Governor | None]

#: Makes the governed callable, from the tool, its own callable, and what gives the governor.
Govern = Callable[[Any, Any, GovernorOf], Any]

_NOTHING: Any = object()


def _govern_fields(patches: Patches, base: type, wraps: Mapping[str, Govern], acting: GovernorOf) -> None:
    """Governs these fields of ``base`` and of the classes below it, which may have a property or a method instead."""

    def treat(cls: type) -> None:
        for name, govern in wraps.items():
            own = vars(cls).get(name, _NOTHING)
            if isinstance(own, dataclasses.Field):
                # A dataclass that is being defined: it will put the default in the place of this declaration.
                if own.default is not dataclasses.MISSING:
                    own.default = _GovernedField(name, govern, own.default, acting)
            elif not isinstance(own, _GovernedField) and (cls is base or own is not _NOTHING):
                patches.replace(cls, name, _GovernedField(name, govern, own, acting))

    for cls in subclasses_of(base):
        treat(cls)
    on_subclass(patches, base, treat)


class _GovernedField:
    """A field that gives the governed callable; the instance keeps what was stored.

    ``own`` is what the class has in its place: nothing, a default, a method or a property.
    """

    def __init__(self, name: str, govern: Govern, own: Any, acting: GovernorOf) -> None:
        self._name = name
        self._made = f"_lgov_{name}"
        self._govern = govern
        self._own = own
        self._acting = acting

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or self._name not in vars(instance) or hasattr(type(self._own), "__set__"):
            stored = self._of_class(instance, owner)
        else:
            stored = vars(instance)[self._name]
        if instance is None or stored is None or self._acting() is None:
            return stored
        # The same object each time: the SDK compares what it approved with what it runs. Bound methods are only equal.
        governed = vars(instance).get(self._made)
        if governed is None or governed[0] != stored or governed[1] is not instance:
            governed = vars(instance)[self._made] = (stored, instance, self._govern(instance, stored, self._acting))
        return governed[2]

    def _of_class(self, instance: Any, owner: type | None) -> Any:
        if self._own is _NOTHING:
            raise AttributeError(self._name)
        getter: Any = getattr(type(self._own), "__get__", None)
        return self._own if getter is None else getter(self._own, instance, owner)

    def __set__(self, instance: Any, value: Any) -> None:
        if hasattr(type(self._own), "__set__"):
            type(self._own).__set__(self._own, instance, value)
            return
        governed = vars(instance).get(self._made)
        if governed is not None and value is governed[2]:  # stored as it was read
            value = governed[0]
        vars(instance)[self._name] = self._own if value is self else value
