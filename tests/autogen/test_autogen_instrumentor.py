"""Instrumenting AutoGen, and what the adapter declares."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_core import CancellationToken
from autogen_core.tools import BaseTool, FunctionTool, StaticWorkbench, Workbench
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_autogen import instrument, patching
from lgov_autogen.components import ModelCalls
from lgov_autogen.instrumentor import lgov_framework
from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation.framework import MODES, SHAPES
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


async def test_classes_that_are_defined_later_are_governed() -> None:
    class Later(StaticWorkbench):
        async def call_tool(self, *args: Any, **kwargs: Any) -> Any:
            return await super().call_tool(*args, **kwargs)

    with playing("instrumented", DENY) as (_parts, seen, _server):

        class StillLater(Workbench):
            component_type = "workbench"

            async def call_tool(self, name: str, *args: Any, **kwargs: Any) -> Any:
                ran.append("still later")
                return patching.error_result(name, "ran")

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


@pytest.mark.parametrize("broken", ["call_tool", "call_tool_stream", "run_json", "run_json_stream"])
def test_a_way_around_is_found_by_the_self_test(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a future AutoGen no longer went through what is patched: the process must not run agents."""
    for name in {broken, "run_json", "run_json_stream"} if "call_tool" in broken else {broken}:
        monkeypatch.setattr(patching, name, lambda _, own, *args, **kwargs: own(*args, **kwargs))
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
    assert await patching.run_json(tool(), own, {"word": "x"}, CancellationToken()) == "acted on x"
    assert [event async for event in patching.on_messages_stream(None, _three)] == [1, 2, 3]


async def _three() -> Any:
    for number in (1, 2, 3):
        yield number


class _Wrapper:
    """A method as wrapt wraps it for OpenInference: it learns the agent from how it is read."""

    def __init__(self, own: Any, runs: list[str], agent: Any = None) -> None:
        self.own, self.runs, self.agent = own, runs, agent

    def __get__(self, agent: Any, owner: type | None = None) -> Any:
        return _Wrapper(self.own.__get__(agent, owner), self.runs, agent)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.runs.append(self.agent.name)
        return self.own(*args, **kwargs)


async def test_a_method_that_another_instrumentation_wrapped_is_called_as_python_calls_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[str] = []
    own = vars(AssistantAgent)["on_messages_stream"]
    monkeypatch.setattr(AssistantAgent, "on_messages_stream", _Wrapper(own, runs))
    with playing("instrumented", DENY, asks(("c1", "act", {"word": "x"})), says("ok")) as (parts, _seen, server):
        result = await parts.agent("helper", [tool()]).run(task="x")
    assert "DENIED" in str(server.requests[-1].body["messages"][-1])
    assert result.messages[-1].to_text() == "ok"
    assert runs[-1] == "helper", runs


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
