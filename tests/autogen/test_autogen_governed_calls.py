"""One governed call of a workbench's tool, whole and as a stream: what runs, what is told, and how it ends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from autogen_core import CancellationToken, Image
from autogen_core.tools import (
    BaseStreamTool,
    FunctionTool,
    ImageResultContent,
    StaticStreamWorkbench,
    StaticWorkbench,
    TextResultContent,
    ToolResult,
)
from PIL import Image as Pictures
from pydantic import BaseModel, field_validator

from lgov_autogen import GovernedWorkbench, governing
from lgov_autogen.runs import RUN, GovernedComponent, Run, current_run, end_at_next_step, ensure_run
from lgov_autogen.tools import (
    GovernedToolSchema,
    WorkbenchCall,
    _reading,
    as_given,
    error_result,
    is_evaluated,
    is_governed_schema,
    note_abort,
)
from lgov_core.errors import InstrumentationError, PolicyDenied
from lgov_core.governor import Governor
from lgov_core.instrumentation.live_span import CoveredCall, LiveSpan, covered_call
from lgov_core.instrumentation.tool_call import ToolReading
from lgov_core.scope import RolloutScope, carry_into_threads, enter_scope
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Effect, Point
from tests.autogen.autogen_parts import at, deny, rewrite
from tests.cells import Seen

ALLOW = at(Point.OUTPUT, lambda action: None)
DENIAL = Decision(Effect.DENY, "p", reason="no", abort=True)


class Count(BaseModel):
    to: int


class Counting(BaseStreamTool[Count, str, str]):
    """Counts aloud; raises behind a negative number."""

    def __init__(self) -> None:
        super().__init__(Count, str, "count", "Counts.")
        self.seen: list[Any] = []

    async def run(self, args: Count, cancellation_token: CancellationToken) -> str:
        return [event async for event in self.run_stream(args, cancellation_token)][-1]

    async def run_stream(self, args: Count, cancellation_token: CancellationToken) -> AsyncIterator[str]:  # type: ignore[override]
        self.seen.append((args.to, cancellation_token))
        for number in range(abs(args.to)):
            yield f"number {number}"
        if args.to < 0:
            raise OSError("disk full")
        yield f"counted to {args.to}"


def governed(*policies: Any, tools: Any = None, **options: Any) -> tuple[GovernedWorkbench, Seen, Counting]:
    seen, tool = Seen(), Counting()
    governor = Governor(list(policies) or [ALLOW], plugins=[seen])
    return GovernedWorkbench([tool] if tools is None else tools, governor, **options), seen, tool


async def called(workbench: Any, arguments: Any, *, stream: bool, token: Any = None, name: str = "count") -> list[Any]:
    if stream:
        return [event async for event in workbench.call_tool_stream(name, arguments, token, "c1")]
    return [await workbench.call_tool(name, arguments, token, "c1")]


BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])


@BOTH
async def test_a_permitted_call_gives_its_events_and_its_result(stream: bool) -> None:
    workbench, seen, tool = governed(agent="clerk")
    token = CancellationToken()
    *events, result = await called(workbench, {"to": "2"}, stream=stream, token=token)
    assert events == (["number 0", "number 1"] if stream else [])
    assert (result.name, result.to_text(), result.is_error) == ("count", "counted to 2", False)
    assert tool.seen == [(2, token)]
    (outcome,) = seen.outcomes
    action = outcome.action
    assert (action.name, action.kind, action.arguments, action.call_id) == ("count", "function", {"to": 2}, "c1")
    assert (action.agent, action.framework) == ("clerk", "autogen")
    assert action.native is workbench.workbench
    assert (outcome.status, outcome.result) == ("ok", "counted to 2")


@BOTH
async def test_a_denied_call_is_an_error_that_the_model_reads(stream: bool) -> None:
    workbench, seen, tool = governed(at(Point.PRE_TOOL_CALL, lambda action: deny("no")))
    (result,) = await called(workbench, {"to": 2}, stream=stream)
    assert result.is_error
    assert "DENIED by policy" in result.to_text()
    assert tool.seen == []
    assert [outcome.status for outcome in seen.outcomes] == ["denied"]


@BOTH
async def test_a_denied_call_that_aborts_ends_its_run_and_those_around_it(stream: bool) -> None:
    workbench, _, _ = governed(at(Point.PRE_TOOL_CALL, lambda action: deny("no", abort=True)))
    outer = Run(agent="outer")
    token = RUN.set(Run(agent="inner", parent=outer))
    try:
        (result,) = await called(workbench, {"to": 2}, stream=stream)
        inner = current_run()
    finally:
        RUN.reset(token)
    assert "DENIED" in result.to_text(), "an exception would leave the agent waiting"
    assert inner is not None
    for run in (inner, outer):
        assert run.aborted is not None
        assert run.aborted_calls == {"c1"}


@BOTH
async def test_a_result_can_be_rewritten(stream: bool) -> None:
    workbench, _, _ = governed(at(Point.POST_TOOL_CALL, lambda action: rewrite(text="another text")))
    *_, result = await called(workbench, {"to": 1}, stream=stream)
    assert result == ToolResult(name="count", result=[TextResultContent(content="another text")], is_error=False)
    *_, failed = await called(workbench, {"to": -1}, stream=stream)
    assert failed == ToolResult(name="count", result=[TextResultContent(content="another text")], is_error=True)


@BOTH
async def test_the_arguments_can_be_rewritten(stream: bool) -> None:
    def less(action: Action) -> Decision | None:
        return rewrite(arguments={"to": 1}) if action.arguments != {"to": 1} else None

    workbench, seen, tool = governed(at(Point.PRE_TOOL_CALL, less))
    *_, result = await called(workbench, {"to": 2}, stream=stream)
    assert (result.to_text(), tool.seen[0][0]) == ("counted to 1", 1)
    assert seen.outcomes[0].decision.arguments == {"to": 1}


@pytest.mark.parametrize(
    ("arguments", "permitted", "runs"),
    [
        ({"to": 1}, {"to": 2}, {"to": 2}),
        ({"arguments": 1}, {"arguments": 2}, {"arguments": 2}),
        (None, {}, None),
        ("text", {"arguments": "text"}, "text"),
        ("text", {"arguments": "other"}, "other"),
        ("text", {"to": 2}, {"to": 2}),
        ("text", {}, {}),
    ],
)
def test_a_tool_gets_what_was_permitted_in_the_form_that_the_model_chose(
    arguments: Any, permitted: Any, runs: Any
) -> None:
    assert as_given(arguments, permitted) == runs
    call = WorkbenchCall(None, None, "count", arguments, None, None)
    assert (call.agent, call.validated) == (None, None)
    assert call._permitted(permitted)[1] == runs


class Recording(StaticStreamWorkbench):
    """Keeps the arguments that it is called with."""

    seen: Any = None

    async def call_tool(self, name: str, arguments: Any = None, *rest: Any, **more: Any) -> ToolResult:
        self.seen = arguments
        return await super().call_tool(name, arguments, *rest, **more)


async def test_a_workbench_gets_what_the_model_wrote_unless_a_policy_changed_it() -> None:
    for policy, seen in (
        (ALLOW, {"to": "2"}),
        (at(Point.PRE_TOOL_CALL, lambda _: rewrite(arguments={"to": 1})), {"to": 1}),
    ):
        recording = Recording([Counting()])
        workbench, _, _ = governed(policy, tools=recording)
        assert not (await workbench.call_tool("count", {"to": "2"})).is_error
        assert recording.seen == seen


class Checked(BaseModel):
    to: int

    @field_validator("to", mode="before")
    @classmethod
    def counted(cls, value: Any) -> Any:
        CHECKS.append(value)
        return value


CHECKS: list[Any] = []


class Own(Counting):
    """Streams in a way of its own, and so validates in its own way, too."""

    async def run_json_stream(self, args: Any, cancellation_token: Any, call_id: Any = None) -> AsyncIterator[Any]:  # type: ignore[override]
        yield f"its own {args['to']}"


async def test_what_was_judged_runs_and_the_schema_is_read_once() -> None:
    CHECKS.clear()
    tool = Counting()
    tool._args_type = Checked  # type: ignore[assignment]
    workbench, _, _ = governed(tools=[tool])
    assert (await workbench.call_tool("count", {"to": "2"})).to_text() == "counted to 2"
    assert CHECKS == ["2"]


async def test_a_stream_that_validates_in_its_own_way_is_judged_by_what_it_gets() -> None:
    workbench, seen, _ = governed(tools=[Own()])
    *_, result = await called(workbench, {"to": "2"}, stream=True)
    assert (result.to_text(), seen.outcomes[0].action.arguments) == ("its own 2", {"to": "2"})


class Remote(StaticStreamWorkbench):
    """A workbench as of an MCP server, by its module."""

    __module__ = "autogen_ext.tools.mcp.program"


class RemoteTool(Counting):
    """A tool as of an MCP server."""

    __module__ = "autogen_ext.tools.mcp.program"


@pytest.mark.parametrize(
    ("workbench", "kind"),
    [
        (StaticStreamWorkbench([Counting()]), "function"),
        (StaticStreamWorkbench([RemoteTool()]), "mcp"),
        (Remote([Counting()]), "mcp"),
    ],
)
async def test_the_kind_of_a_call_is_that_of_its_tool_or_of_its_workbench(workbench: Any, kind: str) -> None:
    subject, seen, _ = governed(tools=workbench)
    await called(subject, {"to": 1}, stream=False)
    assert seen.outcomes[0].action.kind == kind


@BOTH
async def test_what_a_tool_raises_is_recorded_with_its_own_type(stream: bool) -> None:
    workbench, seen, _ = governed()
    *_, result = await called(workbench, {"to": -1}, stream=stream)
    assert result.is_error
    (outcome,) = seen.outcomes
    assert (outcome.status, outcome.error_type, outcome.error) == ("error", "OSError", "disk full")


@BOTH
async def test_a_call_that_its_governor_has_judged_already_is_only_passed_on(stream: bool) -> None:
    workbench, seen, tool = governed()
    governor = workbench.governor
    call = CoveredCall(governor, "count", {"to": 2}, "c1")
    with LiveSpan(governor, semconv.EXECUTE_TOOL).active(tool=call):
        *events, result = await called(workbench, {"to": 2}, stream=stream)
    assert result.to_text() == "counted to 2"
    assert len(events) == (2 if stream else 0)
    assert seen.outcomes == []
    assert tool.seen[0][0] == 2


class Broken(StaticStreamWorkbench):
    """A workbench that raises, as that of a lost connection does."""

    async def call_tool(self, *args: Any, **options: Any) -> ToolResult:
        raise OSError("connection lost")

    async def call_tool_stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        yield "began"
        raise OSError("connection lost")


@BOTH
async def test_what_a_workbench_raises_inside_of_a_judged_call_is_what_the_tool_raised(stream: bool) -> None:
    workbench, _, _ = governed(tools=Broken([]))
    governor = workbench.governor
    call = CoveredCall(governor, "count", {"to": 2}, "c1")
    with (
        LiveSpan(governor, semconv.EXECUTE_TOOL).active(tool=call),
        pytest.raises(OSError, match="connection lost") as raised,
    ):
        await called(workbench, {"to": 2}, stream=stream)
    assert call.raised is raised.value


@BOTH
async def test_what_a_workbench_raises_is_recorded_and_raised(stream: bool) -> None:
    workbench, seen, _ = governed(tools=Broken([]))
    with pytest.raises(OSError, match="connection lost"):
        await called(workbench, {"to": 2}, stream=stream)
    assert [outcome.error_type for outcome in seen.outcomes] == ["OSError"]


async def test_a_stream_without_a_result_is_an_error_of_the_workbench() -> None:
    class Silent(StaticStreamWorkbench):
        async def call_tool_stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
            yield "an event"

    workbench, _, _ = governed(tools=Silent([]))
    with pytest.raises(RuntimeError, match=r"^the workbench's stream of count ended without a result$"):
        await called(workbench, {}, stream=True)


async def test_a_workbench_without_streams_streams_its_result() -> None:
    workbench, seen, _ = governed(tools=StaticWorkbench([Counting()]))
    (result,) = await called(workbench, {"to": 2}, stream=True)
    assert result.to_text() == "counted to 2"
    assert len(seen.outcomes) == 1


async def test_events_come_while_the_tool_runs_and_no_variable_of_the_call_is_set_for_who_reads_them() -> None:
    going_on = asyncio.Event()
    inside: list[Any] = []

    class Waiting(StaticStreamWorkbench):
        async def call_tool_stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
            inside.append(covered_call())
            yield "an event"
            await going_on.wait()
            yield ToolResult(name="count", result=[], is_error=False)

    workbench, _, _ = governed(tools=Waiting([]))
    events: list[Any] = []
    async for event in workbench.call_tool_stream("count", {}):
        assert covered_call() is None
        events.append(event)
        going_on.set()
    assert events[0] == "an event"
    assert isinstance(events[1], ToolResult)
    assert inside[0].name == "count"


async def test_a_stream_that_nobody_reads_any_more_ends_the_tool() -> None:
    ended: list[str] = []

    class Endless(StaticStreamWorkbench):
        async def call_tool_stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
            try:
                while True:
                    yield "an event"
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    workbench, seen, _ = governed(tools=Endless([]))
    stream = workbench.call_tool_stream("count", {})
    assert await anext(stream) == "an event"
    await stream.aclose()
    for _ in range(500):
        if seen.outcomes:
            break
        await asyncio.sleep(0.01)
    assert ended == ["cancelled"]
    assert len(seen.outcomes) == 1


class Cancelled(StaticStreamWorkbench):
    """As a workbench whose tool is cancelled by AutoGen's token."""

    async def call_tool(self, *args: Any, **options: Any) -> ToolResult:
        raise asyncio.CancelledError


async def test_a_call_that_autogens_token_cancelled_is_an_error_and_the_agent_goes_on() -> None:
    workbench, seen, _ = governed(tools=Cancelled([]))
    token = CancellationToken()
    token.cancel()
    result = await workbench.call_tool("count", {}, token)
    assert (result.is_error, result.to_text()) == (True, "The call was cancelled.")
    assert [outcome.error_type for outcome in seen.outcomes] == ["CancelledError"]
    for other in (None, CancellationToken()):
        with pytest.raises(asyncio.CancelledError):
            await workbench.call_tool("count", {}, other)


async def test_a_task_that_is_cancelled_from_outside_ends_though_the_token_is_cancelled_too() -> None:
    started = asyncio.Event()

    class Slow(StaticStreamWorkbench):
        async def call_tool(self, *args: Any, **options: Any) -> ToolResult:
            started.set()
            await asyncio.sleep(60)
            raise AssertionError

    workbench, _, _ = governed(tools=Slow([]))
    token = CancellationToken()
    task = asyncio.create_task(workbench.call_tool("count", {}, token))
    await started.wait()
    token.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_text_of_a_result_names_its_images_and_has_a_line_for_each_content() -> None:
    read: list[str | None] = []

    def keep(action: Action) -> None:
        read.append(action.text)

    class Drawing(StaticStreamWorkbench):
        async def call_tool(self, *args: Any, **options: Any) -> ToolResult:
            picture = ImageResultContent(content=Image(Pictures.new("RGB", (1, 1))))
            return ToolResult(name="draw", result=[TextResultContent(content="a"), picture], is_error=False)

    workbench, _, _ = governed(at(Point.POST_TOOL_CALL, keep), tools=Drawing([]))
    await workbench.call_tool("draw", {})
    assert read == ["a\n[image]"]


class Denied(StaticStreamWorkbench):
    """As a tool that runs an agent whose run was ended by a policy."""

    def __init__(self, decision: Decision) -> None:
        super().__init__([])
        self.decision = decision

    async def call_tool(self, *args: Any, **options: Any) -> ToolResult:
        call = covered_call()
        assert call is not None
        call.raised = PolicyDenied(self.decision)
        return error_result("count", "DENIED")


@pytest.mark.parametrize("aborts", [True, False])
async def test_a_run_that_was_ended_inside_of_a_tool_ends_the_run_around_it(aborts: bool) -> None:
    workbench, seen, _ = governed(tools=Denied(Decision(Effect.DENY, "p", abort=aborts)))
    token = RUN.set(Run(agent="outer"))
    try:
        await workbench.call_tool("count", {}, None, "c1")
        run = current_run()
    finally:
        RUN.reset(token)
    assert run is not None
    assert (run.aborted is not None, run.aborted_calls) == ((True, {"c1"}) if aborts else (False, set()))
    assert [outcome.error_type for outcome in seen.outcomes] == ["PolicyDenied"]


async def test_a_tool_that_reports_a_failure_without_raising_has_failed() -> None:
    class Failing(StaticStreamWorkbench):
        async def call_tool(self, *args: Any, **options: Any) -> ToolResult:
            return error_result("count", "it did not work")

    workbench, seen, _ = governed(tools=Failing([]))
    assert (await workbench.call_tool("count", {})).is_error
    assert [(outcome.status, outcome.error) for outcome in seen.outcomes] == [("error", "it did not work")]
    assert _reading(error_result("count", "outside of a call")) == ToolReading("outside of a call", "error")


# ---------------------------------------------------------------------- small parts


def test_an_error_is_a_result_of_its_tool() -> None:
    expected = ToolResult(name="t", result=[TextResultContent(content="why")], is_error=True)
    assert error_result("t", "why") == expected


def test_only_a_decision_that_blocks_and_aborts_ends_the_run() -> None:
    for decision, ends in (
        (DENIAL, True),
        (DENIAL.changed(abort=False), False),
        (Decision(Effect.ALLOW, "p", abort=True), False),
    ):
        token = RUN.set(Run())
        note_abort(decision, None)
        run = current_run()
        RUN.reset(token)
        assert run is not None
        assert (run.aborted, run.aborted_calls) == ((decision, {""}) if ends else (None, set()))


def test_a_call_is_evaluated_where_exactly_this_one_is_running() -> None:
    governor = Governor([ALLOW])
    assert not is_evaluated(governor, "t", {"x": 1}, "c1")
    with LiveSpan(governor, semconv.EXECUTE_TOOL).active(tool=CoveredCall(governor, "t", {"x": 1}, None)):
        assert is_evaluated(governor, "t", {"x": 1}, None)
        assert is_evaluated(governor, "t", {"x": 1}, "")
        assert not is_evaluated(governor, "t", {"x": 2}, None)
        assert not is_evaluated(Governor([ALLOW]), "t", {"x": 1}, None)


async def test_without_a_governor_a_call_is_the_owners_own() -> None:
    inner = StaticStreamWorkbench([Counting()])
    call = WorkbenchCall.of(None, inner, "count", {"to": 1}, None, None, None)
    assert call.validated is None
    assert call.judged == {"to": 1}
    result = await call.result(inner.call_tool)
    assert result.to_text() == "counted to 1"
    events = [event async for event in call.events(inner.call_tool_stream)]
    assert events[0] == "number 0"


async def test_the_schemas_of_a_governed_workbench_say_who_evaluates_their_calls() -> None:
    workbench, _, tool = governed()
    (schema,) = await workbench.list_tools()
    assert schema == tool.schema
    assert isinstance(schema, GovernedToolSchema)
    assert is_governed_schema(schema, workbench.governor)
    assert not is_governed_schema(schema, Governor([ALLOW]))
    assert not is_governed_schema(tool.schema, workbench.governor)


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


async def test_the_functions_of_a_governed_workbench_have_the_callers_context() -> None:
    def who() -> str:
        """Says who called."""
        return WHO.get()

    def fail() -> str:
        """Fails."""
        raise OSError("disk full")

    tools = [FunctionTool(function, description="x") for function in (who, fail)]
    workbench, seen, _ = governed(tools=tools)
    token = WHO.set("somebody")
    result = await workbench.call_tool("who", {})
    await workbench.call_tool("fail", {})
    WHO.reset(token)
    assert result.to_text() == "somebody"
    assert seen.outcomes[1].error_type == "OSError"
    assert workbench.agent is None


def test_a_workbench_in_a_governed_one_is_used_as_it_is() -> None:
    inner = StaticWorkbench([])
    assert governed(tools=inner)[0].workbench is inner
    assert isinstance(governed()[0].workbench, StaticStreamWorkbench)


async def test_a_governed_workbench_is_written_with_the_one_behind_it_and_its_agent() -> None:
    def act(word: str) -> str:
        """Acts."""
        return word

    workbench, _, _ = governed(tools=[FunctionTool(act, description="Acts.")], agent="clerk")
    written = workbench.dump_component()
    assert written.provider == "lgov_autogen.GovernedWorkbench"
    assert written.component_type == "workbench"
    with governing(workbench.governor) as governor:
        again = GovernedWorkbench.load_component(written)
    assert (again.agent, again.governor) == ("clerk", governor)
    assert [schema["name"] for schema in await again.list_tools()] == ["act"]
    plain = GovernedWorkbench.load_component(governed(tools=[])[0].dump_component())
    assert plain.agent is None
    with pytest.raises(InstrumentationError) as raised:
        _ = plain.governor
    assert "give it one" in str(raised.value.hint)


# ---------------------------------------------------------------------- runs


def test_a_run_is_nested_where_an_agent_or_a_tool_asked_for_it() -> None:
    governor = Governor([ALLOW])
    call = CoveredCall(governor, "t", {}, None)
    nameless = Run()
    agent = Run(owner=object())
    assert not nameless.nested
    assert not agent.nested
    assert not Run(parent=nameless).nested
    assert Run(parent=agent).nested
    assert Run(parent=Run(parent=agent)).nested
    assert Run(inside=call).nested
    assert Run(parent=Run(inside=call)).nested


def test_a_run_begins_without_anything() -> None:
    run = Run()
    assert (run.agent, run.owner, run.parent, run.inside, run.aborted, run.aborted_calls) == (None,) * 5 + (set(),)
    assert run.aborted_calls is not Run().aborted_calls


def test_a_programs_own_loop_gets_a_nameless_run_that_stays() -> None:
    def check() -> None:
        assert current_run() is None
        run = ensure_run()
        assert run.agent is None
        assert ensure_run() is current_run() is run

    contextvars.Context().run(check)
    assert current_run() is None


def test_a_loop_in_a_thread_that_a_run_started_belongs_to_that_run() -> None:
    carry_into_threads()
    started: list[Run] = []

    def check() -> None:
        outer = ensure_run()
        with enter_scope(RolloutScope("r1")), ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: started.append(ensure_run())).result()
        assert started[0] is not outer
        assert started[0].parent is outer

    contextvars.Context().run(check)


def test_the_end_of_a_run_names_each_call_that_asked_for_it() -> None:
    def check() -> None:
        end_at_next_step(DENIAL, "c0")
        run = ensure_run()
        assert run.aborted is None
        for call_id in ("c1", None, "c2"):
            end_at_next_step(DENIAL, call_id)
        assert run.aborted is DENIAL
        assert run.aborted_calls == {"c1", "", "c2"}

    contextvars.Context().run(check)


class Part(GovernedComponent):
    def __init__(self, governor: Governor | None = None) -> None:
        self._use_governor(governor)


def test_the_governor_of_a_component_is_its_own_or_the_one_that_it_is_loaded_with() -> None:
    own, other = Governor([ALLOW]), Governor([ALLOW])
    with governing(other) as given:
        assert given is other
        loaded, made = Part(), Part(own)
    assert (loaded.governor, made.governor) == (other, own)
    with pytest.raises(InstrumentationError, match=r"^Part has no governor, so it does nothing"):
        _ = Part().governor
    with pytest.raises(KeyError), governing(other):
        raise KeyError
    with pytest.raises(InstrumentationError):
        _ = Part().governor
