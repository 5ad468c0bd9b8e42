"""Live spans: they nest, in tasks, threads and generators, and are the program's own OpenTelemetry spans too."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.instrumentation import otel_spans
from lgov_core.instrumentation.live_span import (
    MODEL_CALL,
    MODEL_SERVER,
    TOOL_CALL,
    CoveredCall,
    LiveSpan,
    covered_call,
    current_span,
    model_call_covered,
    new_span_id,
    note_error,
    started_span,
)
from lgov_core.instrumentation.otel_spans import CONTENT_VARIABLE
from lgov_core.scope import RolloutScope, carry_into_threads, enter_scope
from lgov_core.trace import semconv
from lgov_core.trace.otlp_spans import nanoseconds
from lgov_core.types import Action, Decision, Effect, Point
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
    other = LiveSpan(governor, semconv.CHAT, "n")
    other.abandon()
    other.abandon()
    other.end()
    ended, abandoned = seen.spans
    assert (ended.name, abandoned.name, other.ended) == ("chat m", "chat n", True)
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


def test_a_span_has_its_name_its_times_and_its_ids(governor: Governor, seen: Seen) -> None:
    began = time.time()
    agent = LiveSpan(governor, semconv.INVOKE_AGENT)
    chat = LiveSpan(governor, semconv.CHAT, "m", parent=agent, started_at=12.5)
    chat.end()
    agent.end()
    ended, outermost = seen.spans
    assert (ended.name, outermost.name) == ("chat m", "invoke_agent")
    assert ended.started_at == 12.5
    assert began <= outermost.started_at <= (outermost.ended_at or 0) <= time.time()
    assert (ended.span_id, outermost.span_id) == (chat.span_id, agent.span_id)
    assert (ended.parent_id, outermost.parent_id) == (agent.span_id, None)
    assert (agent.run_id, chat.run_id) == (agent.span_id, agent.span_id)
    assert ended.trace_id is chat.trace_id is None
    assert (ended.rollout_id, ended.attempt) == (None, None)
    assert semconv.ERROR_TYPE not in ended.attributes
    assert (chat.ended, LiveSpan(governor, semconv.CHAT).ended) == (True, False)
    assert LiveSpan(governor, semconv.CHAT).ended is False


def test_an_id_is_sixteen_hex_digits() -> None:
    ids = {new_span_id() for _ in range(200)}
    assert len(ids) == 200
    assert {len(span_id) for span_id in ids} == {16}
    assert set("".join(ids)) <= set("0123456789abcdef")


def test_a_forked_process_draws_ids_of_its_own() -> None:
    def check() -> None:
        with os.fdopen(writing, "w") as pipe:
            pipe.write(new_span_id())

    reading, writing = os.pipe()
    in_a_fork(check)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        assert pipe.read() != new_span_id()


def test_a_parent_that_is_given_comes_before_the_current_span(governor: Governor) -> None:
    with live_span(governor, semconv.INVOKE_AGENT, "a") as current:
        other = LiveSpan(governor, semconv.INVOKE_AGENT, "b", parent=LiveSpan(governor, semconv.INVOKE_AGENT))
        assert other.parent_id not in (None, current.span_id)
        assert LiveSpan(governor, semconv.CHAT).parent_id == current.span_id
        assert current_span() is current
    assert current_span() is None


def test_a_span_says_in_which_mode_its_rollout_runs(governor: Governor) -> None:
    with enter_scope(RolloutScope("r1", mode="val")):
        span = LiveSpan(governor, semconv.CHAT)
    assert span.attributes == {semconv.OPERATION: "chat", semconv.ROLLOUT_MODE: "val"}
    with enter_scope(RolloutScope("r1")):
        assert LiveSpan(governor, semconv.CHAT).attributes == {semconv.OPERATION: "chat"}


def test_the_session_is_that_of_the_scope_or_else_the_conversation_that_a_span_names(governor: Governor) -> None:
    named = {semconv.CONVERSATION_ID: 7}
    assert LiveSpan(governor, semconv.CHAT).session_id is None
    above = LiveSpan(governor, semconv.INVOKE_AGENT, attributes=named)
    assert above.session_id == "7"
    below = LiveSpan(governor, semconv.CHAT, parent=above)
    assert below.session_id == "7"
    assert LiveSpan(governor, semconv.CHAT, attributes={semconv.CONVERSATION_ID: "8"}, parent=above).session_id == "8"
    with enter_scope(RolloutScope("r1", session_id="s")):
        assert LiveSpan(governor, semconv.CHAT, attributes=named, parent=above).session_id == "s"
    with enter_scope(RolloutScope("r1")):
        assert LiveSpan(governor, semconv.CHAT, attributes=named).session_id == "7"


CONTENT = (
    semconv.INPUT_MESSAGES,
    semconv.OUTPUT_MESSAGES,
    semconv.SYSTEM_INSTRUCTIONS,
    semconv.TOOL_DEFINITIONS,
    semconv.TOOL_ARGUMENTS,
    semconv.TOOL_RESULT,
    semconv.ERROR_MESSAGE,
)


def test_content_is_on_a_span_only_where_the_governor_captures_it() -> None:
    attributes = {**dict.fromkeys(CONTENT, "text"), semconv.TOOL_NAME: "t", semconv.AGENT_NAME: None}
    for captures, expected in ((True, {*CONTENT, semconv.TOOL_NAME}), (False, {semconv.TOOL_NAME})):
        span = LiveSpan(Governor(capture_content=captures), semconv.CHAT, attributes=attributes)
        assert set(span.attributes) == {semconv.OPERATION} | expected
        span.set({semconv.TOOL_NAME: "u", semconv.TOOL_RESULT: None})
        assert span.attributes[semconv.TOOL_NAME] == "u"
        assert set(span.attributes) == {semconv.OPERATION} | expected


def covered(governor: Governor) -> CoveredCall:
    return CoveredCall(governor, "t", {"x": 1}, "c1")


def test_inside_of_a_tool_its_call_is_covered_and_no_model_call_is(governor: Governor) -> None:
    call, other = covered(governor), Governor()
    outer = LiveSpan(governor, semconv.CHAT)
    assert (covered_call(), model_call_covered(governor), MODEL_SERVER.get()) == (None, False, None)
    with outer.active(model=governor) as entered:
        assert entered is outer
        assert (covered_call(), MODEL_CALL.get()) == (None, governor)
        assert model_call_covered(governor)
        assert not model_call_covered(other)
        with LiveSpan(governor, semconv.EXECUTE_TOOL).active(tool=call) as inner:
            assert current_span() is inner
            assert covered_call() is TOOL_CALL.get() is call
            assert not model_call_covered(governor), "a tool that calls a model makes a call of its own"
            with LiveSpan(governor, semconv.INVOKE_AGENT).active():
                assert covered_call() is call
        assert covered_call() is None
        assert model_call_covered(governor)
        assert current_span() is outer
    assert (current_span(), model_call_covered(governor)) == (None, False)


def test_what_a_block_raises_leaves_no_span_and_no_call_behind(governor: Governor) -> None:
    with pytest.raises(KeyError), LiveSpan(governor, semconv.CHAT).active(tool=covered(governor), model=governor):
        raise KeyError("x")
    assert (current_span(), covered_call(), model_call_covered(governor)) == (None, None, False)


def test_a_decision_covers_exactly_the_call_that_was_judged(governor: Governor) -> None:
    call = covered(governor)
    assert call.covers(governor, "t", {"x": 1}, "c1")
    assert not call.covers(Governor(), "t", {"x": 1}, "c1")
    assert not call.covers(governor, "u", {"x": 1}, "c1")
    assert not call.covers(governor, "t", {"x": 2}, "c1")
    assert not call.covers(governor, "t", {"x": 1}, "c2")
    assert not call.covers(governor, "t", {"x": 1}, None)


def test_arguments_of_another_kind_of_mapping_are_covered_by_their_values(governor: Governor) -> None:
    class Pairs(dict[str, int]):
        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = None  # type: ignore[assignment]

    call = CoveredCall(governor, "t", Pairs(x=1), "c1")
    assert call.covers(governor, "t", {"x": 1}, "c1")
    assert not call.covers(governor, "t", {"x": 2}, "c1")


def test_a_covered_call_begins_without_an_outcome_and_without_a_place(governor: Governor) -> None:
    call = covered(governor)
    facts = (call.recorded, call.raised, call.action, call.validated, call.refused)
    assert facts == (False, None, None, None, None)
    assert call.recorded is False
    assert call.place is covered(governor).place is not None


def test_a_call_that_was_changed_and_judged_again_is_the_one_that_is_covered(governor: Governor) -> None:
    call = covered(governor)
    action = Action(Point.PRE_TOOL_CALL, "u", arguments={"y": 2}, call_id="c2")
    denial = Decision(Effect.DENY, "p")
    call.changed_to(action, denial)
    assert (call.action, call.refused) == (action, denial)
    assert call.covers(governor, "u", {"y": 2}, "c2")
    call.changed_to(action, None)
    assert call.refused is None


def test_the_first_error_inside_of_a_call_is_that_of_its_tool(governor: Governor) -> None:
    note_error(KeyError("nobody asks"))
    call, first = covered(governor), KeyError("first")
    with LiveSpan(governor, semconv.EXECUTE_TOOL).active(tool=call):
        note_error(first)
        note_error(KeyError("second"))
    assert call.raised is first


# ---------------------------------------------------------------------- the program's own OpenTelemetry


def in_a_fork(check: Callable[[], None]) -> None:
    """Calls ``check`` in a fork of this process: OpenTelemetry's provider can be set once only."""
    process = os.fork()
    if not process:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def test_a_thread_knows_the_span_that_it_was_started_in(governor: Governor) -> None:
    def check() -> None:
        carry_into_threads()  # for the whole process
        seen: list[LiveSpan | None] = []
        with enter_scope(RolloutScope("r1")), live_span(governor, semconv.INVOKE_AGENT, "a") as span:
            assert started_span() is span
            thread = threading.Thread(target=lambda: seen.append(started_span()))
            thread.start()
            thread.join()
        assert seen == [span]
        assert started_span() is None

    in_a_fork(check)


def test_without_opentelemetrys_api_a_span_is_only_lgovs(governor: Governor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace", raising=False)
    span = LiveSpan(governor, semconv.CHAT)
    assert span.attach_otel() is None
    assert span.trace_id is None


@pytest.fixture
def provided(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    """Sets OpenTelemetry's provider, or None, for one test: a program can do so once only."""
    from opentelemetry import trace

    def provide(provider: Any) -> None:
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        otel_spans._tracer.cache_clear()

    yield provide
    otel_spans._tracer.cache_clear()


@pytest.fixture
def exporter(provided: Callable[[Any], None]) -> Any:
    """Has the spans that the program has exported."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provided(provider)
    return exporter


def test_a_governor_that_exports_no_spans_leaves_opentelemetry_alone(exporter: Any) -> None:
    silent = Governor()
    silent.exports_spans = False
    with live_span(silent, semconv.INVOKE_AGENT, "a") as span:
        assert span.trace_id is None
        assert span.attach_otel() is None
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize("content", ["true", "false"])
def test_a_span_is_one_of_the_programs_and_stands_between_its_spans(
    content: str, exporter: Any, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace

    monkeypatch.setenv(CONTENT_VARIABLE, content)
    governor = Governor(plugins=[seen], capture_content=True)
    tracer = trace.get_tracer("user")
    attributes = {semconv.TOOL_NAME: "t", semconv.TOOL_ARGUMENTS: "secret"}
    with tracer.start_as_current_span("request") as request:
        with live_span(governor, semconv.INVOKE_AGENT, "a") as agent:
            away = LiveSpan(governor, semconv.CHAT, "m", parent=agent)
            with (
                live_span(governor, semconv.EXECUTE_TOOL, "t", attributes) as tool,
                tracer.start_as_current_span("query"),
            ):
                within = LiveSpan(governor, semconv.CHAT, "n", parent=tool)
                far = LiveSpan(governor, semconv.CHAT, "o", parent=agent)
                for span in (within, far, away):
                    span.end()
        assert trace.get_current_span() is request
    exported = {span.name: span for span in exporter.get_finished_spans()}
    parents = {name: span.parent and f"{span.parent.span_id:016x}" for name, span in exported.items()}
    ids = {name: f"{span.context.span_id:016x}" for name, span in exported.items()}
    assert parents["invoke_agent a"] == ids["request"]
    assert parents["execute_tool t"] == ids["invoke_agent a"] == agent.span_id
    assert parents["query"] == ids["execute_tool t"] == tool.span_id
    assert parents["chat n"] == ids["query"], "the program opened a span inside of the current one"
    assert parents["chat m"] == parents["chat o"] == agent.span_id
    assert {span.context.trace_id for span in exported.values()} == {int(agent.trace_id or "", 16)}
    assert all(span.trace_id == agent.trace_id for span in seen.spans)
    expected = {semconv.OPERATION: "execute_tool", **attributes}
    if content == "false":
        del expected[semconv.TOOL_ARGUMENTS]
    assert dict(exported["execute_tool t"].attributes) == expected
    ours = seen.spans[-2]
    assert (ours.name, ours.attributes[semconv.TOOL_ARGUMENTS]) == ("execute_tool t", "secret")
    times = exported["execute_tool t"].start_time, exported["execute_tool t"].end_time
    assert times == (nanoseconds(ours.started_at), nanoseconds(ours.ended_at or 0))
    kinds = {name: span.kind.name for name, span in exported.items() if name[:4] in ("chat", "exec")}
    assert kinds == {"execute_tool t": "INTERNAL", **dict.fromkeys(("chat m", "chat n", "chat o"), "CLIENT")}


def test_without_a_provider_spans_below_find_the_trace_and_nothing_is_recorded(
    provided: Callable[[Any], None], governor: Governor
) -> None:
    import opentelemetry.sdk.trace  # noqa: F401
    from opentelemetry import trace

    provided(None)
    traces: list[int] = []
    for around in (nullcontext(), live_span(governor, semconv.INVOKE_AGENT, "a")):
        with around as above, live_span(governor, semconv.EXECUTE_TOOL, "t") as tool:
            context = trace.get_current_span().get_span_context()
            assert f"{context.span_id:016x}" == tool.span_id
            assert context.is_valid
            assert tool.trace_id is None
            traces.append(context.trace_id)
            if above is not None:
                below = LiveSpan(governor, semconv.CHAT, parent=tool)
                with below.active():
                    assert trace.get_current_span().get_span_context().trace_id == context.trace_id
        assert not trace.get_current_span().get_span_context().is_valid
    assert len(set(traces)) == 2, "each run without a span of the program's is a trace of its own"
    for _ in range(30):
        with live_span(governor, semconv.CHAT):
            context = trace.get_current_span().get_span_context()
            assert (context.is_valid, context.trace_id % 2) == (True, 1), "16 bytes, and never zero"


def test_a_run_that_began_before_the_provider_was_set_is_not_exported(
    provided: Callable[[Any], None], exporter: Any, governor: Governor
) -> None:
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    provided(None)
    silent = Governor()
    silent.exports_spans = False
    with live_span(governor, semconv.INVOKE_AGENT, "a") as agent:
        context = trace.get_current_span().get_span_context()
        provided(provider)
        assert LiveSpan(silent, semconv.CHAT, parent=agent).attach_otel() is None
        tool = LiveSpan(governor, semconv.EXECUTE_TOOL, "t", parent=agent)
        with tool.active():
            unrecorded = trace.get_current_span()
            assert unrecorded.get_span_context().trace_id == context.trace_id
            with tool.active():
                assert trace.get_current_span() is unrecorded, "a span is entered again as the one that it was"
        assert tool.trace_id is None
        tool.end()
    assert exporter.get_finished_spans() == ()


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
