"""Instrumenting AutoGen, and what the adapter declares."""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, FunctionTool, StaticStreamWorkbench, StaticWorkbench, Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_autogen import instrument, runs, uninstrument
from lgov_autogen import tools as tool_calls
from lgov_autogen import (
    workbench as workbench_module,
)
from lgov_autogen.instrumentor import lgov_framework
from lgov_autogen.model_client import ModelCalls
from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation.framework import MODES, SHAPES, outside_tested_range
from lgov_core.types import Point
from tests.autogen.autogen_parts import at, deny, playing
from tests.cells import asks, says

DENY = at(Point.PRE_TOOL_CALL, lambda action: deny("no"))


FINE = at(Point.AGENT_STARTUP, lambda action: None)


ran: list[str] = []


def act(word: str) -> str:
    """Acts."""
    ran.append(word)
    return f"acted on {word}"


def tool() -> FunctionTool:
    ran.clear()
    return FunctionTool(act, description="Acts.")


def test_the_adapter_says_what_it_can_do() -> None:
    adapter = lgov_framework()
    assert adapter.installed()
    assert set(adapter.surface) == set(Point) - {Point.AGENT_STARTUP, Point.AGENT_SHUTDOWN}
    assert all(surface.block and surface.observe and surface.stream for surface in adapter.surface.values())
    assert not any(surface.sync for surface in adapter.surface.values())
    assert {point for point, surface in adapter.surface.items() if surface.tell} == {
        Point.PRE_TOOL_CALL,
        Point.POST_TOOL_CALL,
    }


def test_synchronous_cells_do_not_exist_and_the_reason_is_true() -> None:
    """Nothing that runs an agent, a tool or a model in AutoGen can be called without an event loop."""
    adapter = lgov_framework()
    assert {mode for mode, _shape in adapter.unsupported} == {"sync"}
    assert {shape for _mode, shape in adapter.unsupported} == set(SHAPES)
    assert "sync" in MODES
    asynchronous: list[Callable[..., Any]] = [
        AssistantAgent.run,
        BaseTool.run_json,
        StaticWorkbench.call_tool,
        OpenAIChatCompletionClient.create,
    ]
    assert all(asyncio.iscoroutinefunction(function) for function in asynchronous)


def test_the_installed_versions_are_in_the_tested_range() -> None:
    assert outside_tested_range(lgov_framework().tested) == []


def test_other_versions_are_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.0" if name == "autogen-core" else real(name))
    assert outside_tested_range(lgov_framework().tested, importlib.metadata.version) == [
        "autogen-core 0.9.0 is outside the range lgov was tested with (>=0.7.5,<0.8)"
    ]


async def test_classes_that_are_defined_later_are_governed() -> None:
    class Later(StaticWorkbench):
        async def call_tool(self, *args: Any, **kwargs: Any) -> Any:
            return await super().call_tool(*args, **kwargs)

    with playing("instrumented", DENY) as (_parts, seen, _server):

        class StillLater(Workbench):
            component_type = "workbench"

            async def call_tool(self, name: str, *args: Any, **kwargs: Any) -> Any:
                ran.append("still later")
                return workbench_module.error_result(name, "ran")

            async def list_tools(self) -> Any:
                return []

            async def start(self) -> None: ...
            async def stop(self) -> None: ...
            async def reset(self) -> None: ...
            async def save_state(self) -> Any:
                return {}

            async def load_state(self, state: Any) -> None: ...

        class LaterTool(FunctionTool):
            async def run_json(self, *args: Any, **kwargs: Any) -> Any:
                return await super().run_json(*args, **kwargs)

        assert "DENIED" in (await Later([tool()]).call_tool("act", {"word": "x"})).to_text()
        assert "DENIED" in (await StillLater().call_tool("act", {"word": "x"})).to_text()
        later_tool = LaterTool(act, description="Acts.")
        assert "DENIED" in str(await later_tool.run_json({"word": "x"}, CancellationToken()))
    assert ran == []
    assert len(seen.decisions()) == 3, "each call once, however many classes it goes through"


def test_uninstrumenting_puts_everything_back() -> None:
    def methods() -> list[Any]:
        return [
            StaticWorkbench.call_tool,
            StaticStreamWorkbench.call_tool_stream,
            BaseTool.run_json,
            FunctionTool.run,
            OpenAIChatCompletionClient.create,
            OpenAIChatCompletionClient.create_stream,
            AssistantAgent.on_messages_stream,
            *(vars(cls).get("__init_subclass__") for cls in (Workbench, BaseTool, ChatCompletionClient, BaseChatAgent)),
        ]

    before = methods()
    with playing("instrumented", DENY) as (parts, _seen, _server):
        assert all(new is not old for new, old in zip(methods(), before, strict=True))
        instrument(parts.governor)
        with playing("explicit", DENY) as (other, _, _s), pytest.raises(InstrumentationError, match="another governor"):
            instrument(other.governor)
        instrument(parts.governor)
    assert methods() == before
    uninstrument()
    assert asyncio.run(tool().run_json({"word": "x"}, CancellationToken())) == "acted on x"


@pytest.mark.parametrize("broken", ["call_tool", "call_tool_stream", "run_json", "run_json_stream"])
def test_a_way_around_is_found_by_the_self_test(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a future AutoGen no longer went through what is patched: the process must not run agents."""
    for name in {broken, "run_json", "run_json_stream"} if "call_tool" in broken else {broken}:
        module = workbench_module if "call_tool" in name else tool_calls
        monkeypatch.setattr(module, name, lambda _, own, *args, **kwargs: own(*args, **kwargs))
    before = BaseTool.run_json
    with playing("explicit", DENY) as (parts, _seen, _server):
        with pytest.raises(InstrumentationError, match="denied probes got through"):
            instrument(parts.governor)
        assert BaseTool.run_json is before, "nothing stays patched"


@pytest.mark.parametrize("method", ["create", "create_stream"])
def test_an_ungoverned_model_client_fails_the_self_test(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ungoverned(calls: Any, governor: Any, client: Any, own: Any, messages: Any, options: Any, *agent: Any) -> Any:
        return own(messages, **options)

    monkeypatch.setattr(ModelCalls, method, ungoverned)
    with playing("explicit", DENY) as (parts, _seen, _server), pytest.raises(InstrumentationError, match="create"):
        instrument(parts.governor)


def test_instrumentation_inside_a_running_loop_works() -> None:
    async def main() -> None:
        with playing("instrumented", DENY) as (_parts, _seen, _server):
            assert "DENIED" in str(await tool().run_json({"word": "x"}, CancellationToken()))

    asyncio.run(main())


async def test_wrappers_left_behind_pass_everything_through() -> None:
    """A program may have wrapped our wrapper: then it cannot be taken away, and must do nothing."""
    own = functools.partial(BaseTool.run_json, tool())
    assert await tool_calls.run_json(tool(), own, {"word": "x"}, CancellationToken()) == "acted on x"
    assert [event async for event in runs.on_messages_stream(None, _three)] == [1, 2, 3]


async def _three() -> Any:
    for number in (1, 2, 3):
        yield number


def test_the_self_test_leaves_nothing_in_the_programs_traces() -> None:
    """In a process of its own: a program's tracer provider can be set only once."""
    import subprocess
    import sys

    program = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
import asyncio
from lgov_core import Governor
from lgov_autogen import instrument
from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool

instrument(Governor())
print([span.name for span in exporter.get_finished_spans()])
print(asyncio.run(FunctionTool(lambda: "x", name="act", description="Acts.").run_json({}, CancellationToken()))[:6])
print([span.name for span in exporter.get_finished_spans()])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "DENIED", "['execute_tool act']"]


async def test_the_client_library_below_is_not_evaluated_again() -> None:
    """In a process where the openai library is governed too, as with ``lgov run``."""
    plain = pytest.importorskip("lgov_openai.instrumentor").lgov_framework()
    replies = [asks(("c1", "act", {"word": "x"})), says("done"), says("raw")]
    with playing("instrumented", FINE, *replies) as (parts, seen, _server):
        plain.instrument(parts.governor)
        try:
            await parts.agent("clerk", [act], stream=False).run(task="go")
            assert len(seen.decisions(Point.PRE_MODEL_CALL)) == 2
            assert len(seen.decisions()) == 1
            await parts.bare_client()._client.chat.completions.create(model="x", messages=[])
            assert len(seen.decisions(Point.PRE_MODEL_CALL)) == 3, "the program's own call is judged there"
        finally:
            plain.uninstrument()


def test_without_autogen_instrumentation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "autogen_agentchat"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "lgov_autogen.patching", raising=False)
    refused = pytest.raises(InstrumentationError, match="AutoGen cannot be governed here")
    with playing("explicit", DENY) as (parts, _seen, _server), refused:
        instrument(parts.governor)
