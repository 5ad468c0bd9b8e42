"""Governs every agent of the SDK in this process without touching its code.

`instrument` does five things. The callables of all tools (`FunctionTool.on_invoke_tool` and its like) are judged where they
are read from the tool, so it does not matter when a tool was made, who calls it, or whether it comes from an MCP
server. ``get_response`` and ``stream_response`` of every model class are governed, so that a model that an agent holds
itself is too. So is ``call_tool`` of every class of MCP servers. ``Runner.run``, ``run_sync`` and ``run_streamed`` open
the run. And the SDK's exporter, which sends prompts to the vendor, is taken out unless the user says otherwise. No agent,
tool or model is changed or copied.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation.instrumentor import Instrumentor, Patches, in_fresh_thread

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

#: The versions that the tests run against.
TESTED = {"openai-agents": ">=0.24,<0.25"}

#: Set to ``1``, the SDK's own exporter goes on sending traces (prompts among them) to the vendor.
TRACES_VARIABLE = "LGOV_OPENAI_TRACES"

_INSTRUMENTOR = Instrumentor("the OpenAI Agents SDK", TESTED)


def acting_governor() -> Governor | None:
    """The governor that the patches ask: that of a self-test that is running, else the instrumented one, else None."""
    return _INSTRUMENTOR.governor


def instrument(governor: Governor) -> None:
    """Makes every agent, tool and model of the SDK in this process governed by ``governor``, and proves it.

    Instrumentation again with the same governor changes nothing. Warns about versions outside the tested range. Raises
    `InstrumentationError` if the SDK is missing, if another governor is instrumented already, or if the self-test
    finds a way around;
    then nothing stays patched and the process must not run agents.
    """
    _INSTRUMENTOR.instrument(governor, _patch, _self_test)


def uninstrument() -> None:
    """Undoes `instrument`; runs that are going on are no longer governed."""
    _INSTRUMENTOR.uninstrument()


# ---------------------------------------------------------------------- the patches


def _patch(patches: Patches) -> None:
    import agents
    from agents.mcp import MCPServer

    from lgov_openai_agents import invokers, runner
    from lgov_openai_agents.message_decisions import Heard
    from lgov_openai_agents.servers import governed_call_tool

    def invoker(tool: Any, inner: Any) -> Any:
        return inner if invokers.is_governed(inner) else invokers.GovernedInvoker(tool, inner, acting_governor)

    fields: list[tuple[type, str, Callable[[Any, Any], Any]]] = [
        (agents.FunctionTool, "on_invoke_tool", invoker),
        (agents.CustomTool, "on_invoke_tool", _with_acting(invokers.governed_custom)),
        (agents.ShellTool, "executor", _with_acting(invokers.governed_shell)),
        (agents.LocalShellTool, "executor", _with_acting(invokers.governed_local_shell)),
        (agents.ApplyPatchTool, "editor", _with_acting(invokers.GovernedEditor)),
        (agents.ApplyPatchTool, "needs_approval", _with_acting(invokers.patch_approval)),
    ]
    for owner, name, wrap in fields:
        patches.replace(owner, name, _GovernedField(name, wrap, vars(owner).get(name, _REQUIRED)))
    for owner in dict.fromkeys(owner for owner, _, _ in fields):
        _patch_tool_class(patches, owner, {name: wrap for one, name, wrap in fields if one is owner})
    replies = {"get_response": _governed_get_response, "stream_response": _governed_stream_response}
    _patch_methods(patches, agents.Model, replies)
    _patch_methods(patches, MCPServer, {"call_tool": lambda own: governed_call_tool(own, acting_governor)})
    heard = Heard()
    for name in ("run", "run_sync", "run_streamed"):
        wrap = getattr(runner, f"governed_{name}")
        patches.replace(agents.Runner, name, classmethod(wrap(getattr(agents.Runner, name), acting_governor, heard)))
    _patch_tracing(patches)


_REQUIRED: Any = object()


class _GovernedField:
    """A dataclass field whose value is governed when it is read. What was stored is stored still, in the instance."""

    def __init__(self, name: str, wrap: Callable[[Any, Any], Any], default: Any) -> None:
        self._name = name
        self._kept = f"_lgov_{name}"
        self._wrap = wrap
        self._default = default

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # The SDK reads a tool's callable some twenty times for each call of it, so the usual answer comes first. Nobody
        # has to be asked who governs: what is given back asks by itself when it is called.
        try:
            held = instance.__dict__
            stored, of, governed = held[self._kept]
            if held[self._name] is stored and of is instance:
                return governed
        except (AttributeError, KeyError):
            held = {} if instance is None else vars(instance)
        stored = held.get(self._name, _REQUIRED)
        if stored is _REQUIRED:
            if self._default is _REQUIRED:
                raise AttributeError(self._name)
            return self._default
        if stored is None or _INSTRUMENTOR.governor is None:
            return stored
        # The same object each time: the SDK compares what it approved with what it runs.
        kept = held[self._kept] = (stored, instance, self._wrap(instance, stored))
        return kept[2]

    def __set__(self, instance: Any, value: Any) -> None:
        kept: Any = vars(instance).get(self._kept)
        # Somebody who stores what was read stores what had been there.
        vars(instance)[self._name] = kept[0] if kept is not None and value is kept[2] else value


class _GovernedOwn(_GovernedField):
    """The same where a class below has an attribute of its own in the field's place: a property, a method, a default."""

    def __init__(self, name: str, wrap: Callable[[Any, Any], Any], own: Any) -> None:
        super().__init__(name, wrap, own)
        self._own = own

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        getter: Any = getattr(type(self._own), "__get__", None)
        if instance is None:
            return getter(self._own, None, owner) if getter is not None else self._own
        if self._name in vars(instance) and not hasattr(type(self._own), "__set__"):
            return super().__get__(instance, owner)
        found = getter(self._own, instance, owner) if getter is not None else self._own
        if found is None or acting_governor() is None:
            return found
        kept: Any = vars(instance).get(self._kept)
        if kept is None or kept[0] != found or kept[1] is not instance:
            kept = vars(instance)[self._kept] = (found, instance, self._wrap(instance, found))
        return kept[2]

    def __set__(self, instance: Any, value: Any) -> None:
        setter: Any = getattr(type(self._own), "__set__", None)
        if setter is None:
            super().__set__(instance, self._own if value is self else value)
        else:
            setter(self._own, instance, value)


def _patch_tool_class(patches: Patches, base: type, wraps: Mapping[str, Callable[[Any, Any], Any]]) -> None:
    """Keeps the fields of ``base`` governed in the classes below it, which may put something else in their place."""

    def treat(cls: type) -> None:
        for name, wrap in wraps.items():
            own = vars(cls).get(name, _REQUIRED)
            if isinstance(own, dataclasses.Field):
                # A dataclass in the making, which will put the default in the place of this declaration.
                if own.default is not dataclasses.MISSING:
                    own.default = _GovernedOwn(name, wrap, own.default)
            elif own is not _REQUIRED and not isinstance(own, _GovernedField):
                patches.replace(cls, name, _GovernedOwn(name, wrap, own))

    inherited = base.__init_subclass__

    def init_subclass(cls: type, **kwargs: Any) -> None:
        inherited(**kwargs)
        if acting_governor() is not None:
            treat(cls)

    for cls in _subclasses(base):
        treat(cls)
    patches.replace(base, "__init_subclass__", classmethod(init_subclass))


def _with_acting(wrap: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda tool, inner: wrap(tool, inner, acting_governor)


# ---------------------------------------------------------------------- models and servers


def _patch_methods(patches: Patches, base: type, wraps: Mapping[str, Callable[[Any], Any]]) -> None:
    """Governs methods of all classes below ``base``, also of those that are still to be made."""
    from lgov_openai_agents.models import GovernedModel

    def treat(cls: type) -> None:
        if issubclass(cls, GovernedModel):
            return
        for name, wrap in wraps.items():
            own = vars(cls).get(name)
            if inspect.isfunction(own) and not getattr(own, "__isabstractmethod__", False):
                patches.replace(cls, name, wrap(own))

    for cls in _subclasses(base):
        treat(cls)
    inherited = base.__init_subclass__

    def init_subclass(cls: type, **kwargs: Any) -> None:
        inherited(**kwargs)
        if acting_governor() is not None:
            treat(cls)

    patches.replace(base, "__init_subclass__", classmethod(init_subclass))


def _subclasses(base: type) -> Iterator[type]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def _governed_get_response(inner: Callable[..., Any]) -> Callable[..., Any]:
    from lgov_core.instrumentation.evaluated_call import model_call_covered
    from lgov_openai_agents.model_calls import ModelRequest, govern_response

    @functools.wraps(inner)
    async def get_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        governor = acting_governor()
        if governor is None or model_call_covered(governor):
            return await inner(self, *args, **kwargs)

        def send(asked: ModelRequest) -> Any:
            return inner(self, *asked.args, **asked.rest)

        return await govern_response(governor, self, ModelRequest.of(args, kwargs), send)

    return get_response


def _governed_stream_response(inner: Callable[..., Any]) -> Callable[..., Any]:
    from lgov_core.instrumentation.evaluated_call import model_call_covered
    from lgov_openai_agents.model_calls import ModelRequest, govern_stream

    @functools.wraps(inner)
    async def stream_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        governor = acting_governor()
        if governor is None or model_call_covered(governor):
            async for event in inner(self, *args, **kwargs):
                yield event
            return
        request = ModelRequest.of(args, kwargs)
        stream = govern_stream(governor, self, request, lambda asked: inner(self, *asked.args, **asked.rest))
        async with aclosing(stream) as events:
            async for event in events:
                yield event

    return stream_response


# ---------------------------------------------------------------------- traces


def _patch_tracing(patches: Patches) -> None:
    if os.environ.get(TRACES_VARIABLE, "").strip().lower() in ("1", "true", "yes", "send"):
        return
    from lgov_openai_agents.tracing import keep_traces_here

    patches.undo_by(keep_traces_here())


# ---------------------------------------------------------------------- the proof


def _self_test() -> None:
    """Raises `InstrumentationError` if a probe gets through on any of the ways in which a tool or a model is called."""
    from lgov_openai_agents.probe import attempt

    ran: list[str] = []

    def attempt_all() -> None:
        attempt(_INSTRUMENTOR, ran)

    in_fresh_thread(attempt_all)
    if ran:
        raise InstrumentationError(f"a denied probe ran all the same ({', '.join(ran)})")
