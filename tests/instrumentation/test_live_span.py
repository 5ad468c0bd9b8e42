"""Live spans: they nest, in tasks, threads and generators, and are the program's own OpenTelemetry spans too."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from lgov_core.governor import Governor
from lgov_core.instrumentation.live_span import LiveSpan, current_span
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.trace import semconv
from tests.cells import Seen, live_span


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def governor(seen: Seen) -> Governor:
    return Governor(plugins=[seen])


def test_spans_nest_and_belong_to_their_rollout(governor: Governor, seen: Seen) -> None:
    attributes = {semconv.TOOL_NAME: "t", semconv.AGENT_NAME: None}
    with (
        enter_scope(RolloutScope("r1", 2)),
        live_span(governor, semconv.INVOKE_AGENT, "a") as outer,
        live_span(governor, semconv.EXECUTE_TOOL, "t", attributes),
    ):
        pass
    inner, agent = seen.spans
    assert (inner.parent_id, agent.parent_id) == (outer.span_id, None)
    assert (agent.rollout_id, agent.attempt, inner.rollout_id) == ("r1", 2, "r1")
    assert inner.attributes == {semconv.OPERATION: "execute_tool", semconv.TOOL_NAME: "t"}
    assert inner.ended_at is not None
    assert inner.started_at <= inner.ended_at


def test_a_span_says_which_task_its_rollout_is_about(governor: Governor, seen: Seen) -> None:
    """A program that records rollouts without a server has no other place where its tasks could stand."""
    with (
        enter_scope(RolloutScope("r1", 1, task_id="orders")),
        live_span(governor, semconv.INVOKE_AGENT, "a"),
        live_span(governor, semconv.CHAT, "m"),
    ):
        pass
    assert [span.attributes.get(semconv.TASK_ID) for span in seen.spans] == ["orders", "orders"]


def test_what_the_block_raises_ends_the_span(governor: Governor, seen: Seen) -> None:
    with pytest.raises(KeyError), live_span(governor, semconv.CHAT, "m"):
        raise KeyError("x")
    assert seen.spans[0].attributes[semconv.ERROR_TYPE] == "KeyError"
    assert current_span() is None


def test_a_span_ends_once_and_an_abandoned_one_has_no_end(governor: Governor, seen: Seen) -> None:
    span = LiveSpan(governor, semconv.CHAT, "m")
    span.end("denied")
    span.end()
    span.abandon()
    LiveSpan(governor, semconv.CHAT, "n").abandon()
    ended, abandoned = seen.spans
    assert ended.attributes[semconv.ERROR_TYPE] == "denied"
    assert abandoned.ended_at is None


async def test_interleaved_tasks_do_not_mix(governor: Governor, seen: Seen) -> None:
    async def agent(number: int) -> None:
        with live_span(governor, semconv.INVOKE_AGENT, f"a{number}"):
            await asyncio.sleep(0)
            with live_span(governor, semconv.EXECUTE_TOOL, f"t{number}"):
                await asyncio.to_thread(lambda: LiveSpan(governor, semconv.CHAT, f"m{number}").end())

    await asyncio.gather(*(agent(number) for number in range(50)))
    spans = {span.span_id: span for span in seen.spans}
    assert len(spans) == 150
    for span in spans.values():
        if span.parent_id:
            assert spans[span.parent_id].name[-2:].strip("atm") == span.name[-2:].strip("atm")


def test_a_generator_stands_under_its_span_only_while_it_runs(governor: Governor, seen: Seen) -> None:
    def stream() -> Iterator[int]:
        span = LiveSpan(governor, semconv.INVOKE_AGENT, "a")
        for number in range(2):
            with span.active():
                LiveSpan(governor, semconv.CHAT, "m").end()
            yield number
        span.end()

    for _ in stream():
        assert current_span() is None
    first, second, agent = seen.spans
    assert first.parent_id == second.parent_id == agent.span_id


OTEL = """
    import sys
    from opentelemetry import trace
    {provider}
    from lgov_core.governor import Governor
    from lgov_core.trace import semconv
    from tests.cells import Seen, live_span

    seen = Seen()
    governor = Governor(plugins=[seen], capture_content=True)
    with trace.get_tracer("user").start_as_current_span("request") as request:
        with live_span(governor, semconv.INVOKE_AGENT, "a") as agent:
            with live_span(governor, semconv.EXECUTE_TOOL, "t", {{semconv.TOOL_ARGUMENTS: "secret"}}) as tool:
                with trace.get_tracer("user").start_as_current_span("query"):
                    inside = trace.get_current_span().get_span_context()
                    with live_span(governor, semconv.INVOKE_AGENT, "b"):
                        pass
        after = trace.get_current_span()
"""
PROVIDER = """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter = InMemorySpanExporter(); provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter)); trace.set_tracer_provider(provider)
"""
CHECK = """
    exported = {span.name: span for span in exporter.get_finished_spans()}
    ids = {name: f"{span.context.span_id:016x}" for name, span in exported.items()}
    above = {name: f"{span.parent.span_id:016x}" if span.parent else None for name, span in exported.items()}
    assert above["query"] == ids["execute_tool t"] == tool.span_id
    assert above["invoke_agent b"] == ids["query"], "a span that the program opened in between is left out"
    assert seen.spans[0].parent_id == tool.span_id
    assert above["execute_tool t"] == ids["invoke_agent a"] == agent.span_id
    assert above["invoke_agent a"] == ids["request"]
    assert len({span.context.trace_id for span in exported.values()}) == 1
    assert after is request
    assert ("secret" in str(dict(exported["execute_tool t"].attributes))) == (sys.argv[1] == "content")
    assert "secret" in str(seen.spans)
"""
NO_PROVIDER = """
    import sys

    if "opentelemetry.sdk.trace" in sys.modules:
        assert f"{inside.span_id:016x}" == tool.span_id
    else:
        assert not inside.is_valid, "nobody can record anything, so there is nothing to stand under"
    assert [span.name for span in seen.spans] == ["invoke_agent b", "execute_tool t", "invoke_agent a"]
    assert seen.spans[1].parent_id == agent.span_id
"""


@pytest.mark.parametrize("content", ["content", "no-content"])
def test_they_are_spans_of_the_programs_tracer_provider(content: str) -> None:
    run_with_otel(PROVIDER, CHECK, content)


@pytest.mark.parametrize("sdk", ["import opentelemetry.sdk.trace", ""], ids=["sdk", "no sdk"])
def test_without_a_provider_the_context_names_the_parent_to_those_that_are_not_set(sdk: str) -> None:
    run_with_otel(sdk, NO_PROVIDER, "no-content")


def run_with_otel(provider: str, check: str, content: str) -> None:
    """In a process of its own: OpenTelemetry's provider can be set once only."""
    program = textwrap.dedent(OTEL).format(provider=textwrap.dedent(provider)) + textwrap.dedent(check)
    environment = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"} if content == "content" else {}
    environment["PYTHONPATH"] = ":".join(sys.path)
    done = subprocess.run([sys.executable, "-c", program, content], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


IDS = """
    import os, random
    from lgov_core.governor import Governor
    from lgov_core.instrumentation.live_span import LiveSpan

    governor = Governor()

    def ids():
        random.seed(0)
        return {LiveSpan(governor, "chat").span_id for _ in range(100)}

    here = ids() | ids()
    assert len(here) == 200 and {len(one) for one in here} == {16}, "a program that seeds its own random draws ids again"
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, " ".join(sorted(ids())).encode())
        os._exit(0)
    os.wait()
    assert not ids() & set(os.read(reading, 10_000).decode().split()), "a child that was forked draws its parent's ids"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked on this system")
def test_no_two_processes_and_no_seed_give_a_span_id_twice() -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(IDS)], check=True, timeout=60)
