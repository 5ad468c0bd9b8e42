"""Tool calls of AutoGen agents beyond the plain denial: results, errors, cancelling, ending a run, code."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool, StaticStreamWorkbench, StaticWorkbench
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor
from pydantic import ValidationError

from lgov_autogen import GovernedCodeExecutor, GovernedWorkbench
from lgov_core.errors import PolicyDenied
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from tests.autogen.autogen_parts import WAYS, answer_of, as_tool, at, deny, playing, results_read, rewrite
from tests.cells import asks, says

BOTH = pytest.mark.parametrize("way", WAYS)
MODES = pytest.mark.parametrize("stream", [False, True], ids=["async", "streaming"])
#: An agent that would wait for ever fails its test instead.
PATIENCE_S = 60


def shout(word: str) -> str:
    """Says a word loudly."""
    if word == "bad":
        raise OSError("disk full")
    return word.upper()


# ---------------------------------------------------------------------- results and errors


@BOTH
@MODES
async def test_the_true_error_of_a_tool_is_recorded(way: str, stream: bool) -> None:
    replies = [
        asks(
            ("c1", "shout", {"word": "bad"}),
            ("c2", "shout", {"loud": True}),
            ("c3", "shout", "{broken"),
            ("c4", "whisper", {}),
            ("c5", "shout", {"word": "hi"}),
        ),
        says("done"),
    ]
    with playing(way, at(Point.OUTPUT, lambda action: None), *replies) as (parts, seen, server):
        assert await answer_of(parts.agent("clerk", [shout], stream=stream), "go", stream=stream) == "done"
    outcomes = {one.action.call_id: (one.status, one.error_type) for one in seen.outcomes}
    assert outcomes == {
        "c1": ("error", "OSError"),
        "c2": ("invalid_args", "ValidationError"),
        "c3": ("invalid_args", "JSONDecodeError"),
        "c4": ("unknown_tool", "UnknownTool"),
        "c5": ("ok", None),
    }
    assert {one.action.agent for one in seen.outcomes} == {"clerk"}
    assert len(seen.outcomes) == 5, "a call has one outcome"
    assert "disk full" in results_read(server)["c1"]
    assert results_read(server)["c5"] == "HI"


@BOTH
@MODES
@pytest.mark.surface("autogen", "pre_tool_call", "transform")
@pytest.mark.surface("autogen", "post_tool_call", "block", "tell", "transform")
async def test_arguments_and_results_can_be_rewritten_and_withheld(way: str, stream: bool) -> None:
    def judge(action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL and action.arguments["word"] == "one":
            return rewrite(arguments={"word": "two"})
        if action.point is Point.POST_TOOL_CALL and action.text == "SECRET":
            return deny("a secret")
        if action.point is Point.POST_TOOL_CALL and action.text == "PIN 1234":
            return rewrite(text="PIN ****")
        return at(Point.INPUT, lambda action: None).judge(action)

    words = {"c1": "one", "c2": "secret", "c3": "pin 1234"}
    replies = [asks(*((call_id, "shout", {"word": word}) for call_id, word in words.items())), says("done")]
    policy = at(Point.INPUT, lambda action: None)
    policy.judge = judge
    with playing(way, policy, *replies) as (parts, seen, server):
        await answer_of(parts.agent("clerk", [shout], stream=stream), "go", stream=stream)
    read = results_read(server)
    assert read["c1"] == "TWO"
    assert "DENIED" in read["c2"]
    assert "SECRET" not in read["c2"]
    assert read["c3"] == "PIN ****"
    assert {one.action.call_id: one.status for one in seen.outcomes} == {"c1": "ok", "c2": "ok", "c3": "ok"}


async def test_a_tool_by_itself_answers_with_the_denial_in_its_own_form() -> None:
    with playing("instrumented", at(Point.PRE_TOOL_CALL, lambda action: deny("no")), says("x")) as (
        parts,
        seen,
        _server,
    ):
        tool = as_tool(shout)
        text = tool.return_value_as_string(await tool.run_json({"word": "x"}, CancellationToken()))
        assert "DENIED by policy test/no" in text
        agent_tool = AgentTool(AssistantAgent("inner", parts.client()), return_value_as_last_message=True)
        for value in (
            await agent_tool.run_json({"task": "x"}, CancellationToken()),
            [event async for event in agent_tool.run_json_stream({"task": "x"}, CancellationToken())][-1],
        ):
            assert "DENIED by policy test/no" in agent_tool.return_value_as_string(value)
        # A workbench that shows the tool under another name is no way around.
        workbench = StaticWorkbench([tool])
        result = await workbench.call_tool("shout", {"word": "x"})
        assert result.is_error
        await parts.client().create([])  # the script wants to be played
    assert {one.status for one in seen.outcomes} == {"denied"}


async def test_a_tool_under_another_name_is_judged_under_its_own_too() -> None:
    from autogen_core.tools import ToolOverride

    def judge(action: Action) -> Decision | None:
        return deny("never") if action.name == "shout" else None

    workbench = StaticStreamWorkbench([as_tool(shout)], tool_overrides={"shout": ToolOverride(name="harmless")})
    with playing("instrumented", at(Point.PRE_TOOL_CALL, judge)) as (_parts, seen, _server):
        result = await workbench.call_tool("harmless", {"word": "x"})
    assert "DENIED" in result.to_text()
    assert [one.action.name for one in seen.decisions()] == ["harmless", "shout"]


@BOTH
async def test_each_call_is_judged_once(way: str) -> None:
    """Also where a program governs its parts itself and is instrumented as well, by the same governor."""
    replies = [asks(("c1", "shout", {"word": "hi"})), says("done")]
    with playing("instrumented", at(Point.INPUT, lambda action: None), *replies) as (parts, seen, _server):
        if way == "explicit":
            parts.name = "explicit"
        await answer_of(parts.agent("clerk", [shout]), "go", stream=False)
        parts.name = "instrumented"
    points = [one.action.point for one in (event for point in Point for event in seen.decisions(point))]
    assert sorted(points) == sorted(
        [
            Point.INPUT,
            Point.PRE_MODEL_CALL,
            Point.POST_MODEL_CALL,
            Point.PRE_TOOL_CALL,
            Point.POST_TOOL_CALL,
            Point.PRE_MODEL_CALL,
            Point.POST_MODEL_CALL,
            Point.OUTPUT,
        ]
    )
    assert len([span for span in seen.spans if span.attributes[semconv.OPERATION] == semconv.EXECUTE_TOOL]) == 1


async def test_a_lenient_wrapper_of_the_program_does_not_replace_the_instrumented_governor() -> None:
    ran: list[str] = []

    def act() -> str:
        """Acts."""
        ran.append("act")
        return "acted"

    with playing("explicit", at(Point.INPUT, lambda action: None), says("x")) as (lenient, _, _server):
        replies = [asks(("c1", "act", {})), says("done")]
        with playing("instrumented", at(Point.PRE_TOOL_CALL, lambda action: deny("no")), *replies) as (
            parts,
            _seen,
            server,
        ):
            workbench = GovernedWorkbench([as_tool(act)], lenient.governor)
            agent = AssistantAgent("clerk", parts.client(), workbench=workbench, max_tool_iterations=3)
            await agent.run(task="go")
            assert "DENIED" in results_read(server)["c1"]
        await lenient.bare_client().create([])
    assert ran == []


# ---------------------------------------------------------------------- time


@BOTH
@MODES
async def test_a_policy_that_does_not_answer_is_a_denial(way: str, stream: bool) -> None:
    never = threading.Event()

    def judge(action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL:
            never.wait(PATIENCE_S)
        return None

    policy = at(Point.INPUT, lambda action: None)
    policy.judge, policy.bounded = judge, False  # type: ignore[misc]
    replies = [asks(("c1", "shout", {"word": "hi"})), says("done")]
    try:
        with playing(way, policy, *replies, timeout_s=0.2) as (parts, seen, server):
            assert await answer_of(parts.agent("clerk", [shout], stream=stream), "go", stream=stream) == "done"
            assert "did not answer" in results_read(server)["c1"]
        assert [one.status for one in seen.outcomes] == ["denied"]
    finally:
        never.set()


@BOTH
@MODES
async def test_a_run_cancelled_by_its_token_while_a_tool_runs_ends(way: str, stream: bool) -> None:
    """Without lgov this agent would wait for ever: the cancelled tool takes the end of its event queue with it."""
    running = asyncio.Event()

    async def wait(word: str) -> str:
        """Waits."""
        running.set()
        await asyncio.sleep(PATIENCE_S)
        return word

    token = CancellationToken()
    replies = [asks(("c1", "wait", {"word": "x"}))]
    with playing(way, at(Point.INPUT, lambda action: None), *replies) as (parts, seen, _server):
        agent = parts.agent("clerk", [wait], stream=stream)
        run = asyncio.create_task(agent.run(task="go", cancellation_token=token))
        await running.wait()
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(run, PATIENCE_S / 2)
    assert [(one.status, one.error_type) for one in seen.outcomes] == [("error", "CancelledError")]
    assert all(span.ended_at is not None for span in seen.spans)


@BOTH
async def test_a_task_cancelled_from_outside_ends_and_its_tool_with_it(way: str) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(word: str) -> str:
        """Waits."""
        running.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return word

    workbench = [as_tool(wait)]
    with playing(way, at(Point.INPUT, lambda action: None), says("x")) as (parts, seen, _server):
        governed: Any = parts.workbench(StaticStreamWorkbench(workbench))

        async def use() -> None:
            async for _event in governed.call_tool_stream("wait", {"word": "x"}, CancellationToken(), "c1"):
                pass

        task = asyncio.create_task(use())
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(cancelled.wait(), PATIENCE_S)
        await parts.bare_client().create([])
    assert [one.error_type for one in seen.outcomes] == ["CancelledError"]


# ---------------------------------------------------------------------- the end of a run


@BOTH
@MODES
async def test_abort_ends_the_run_and_does_not_leave_it_waiting(way: str, stream: bool) -> None:
    def judge(action: Action) -> Decision | None:
        return deny("stop", abort=True) if action.arguments["word"] == "bad" else None

    replies = [asks(("c1", "shout", {"word": "hi"}), ("c2", "shout", {"word": "bad"}))]
    with playing(way, at(Point.PRE_TOOL_CALL, judge), *replies) as (parts, seen, _server):
        agent = parts.agent("clerk", [shout], stream=stream)
        with pytest.raises(PolicyDenied, match="stop"):
            await asyncio.wait_for(answer_of(agent, "go", stream=stream), PATIENCE_S)
    assert {one.action.call_id: one.status for one in seen.outcomes} == {"c1": "ok", "c2": "denied"}
    assert all(span.ended_at is not None for span in seen.spans)


@MODES
async def test_abort_in_the_last_tool_call_ends_the_run_too(stream: bool) -> None:
    """The model would not be asked again, so it is the run itself that ends."""
    stop = at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True))
    with playing("instrumented", stop, asks(("c1", "shout", {"word": "x"}))) as (parts, _seen, _server):
        agent = parts.agent("clerk", [shout], stream=stream, max_tool_iterations=1)
        with pytest.raises(PolicyDenied, match="stop"):
            await asyncio.wait_for(answer_of(agent, "go", stream=stream), PATIENCE_S)


@BOTH
@MODES
async def test_abort_inside_an_agent_as_tool_ends_the_outer_run_too(way: str, stream: bool) -> None:
    replies = [asks(("c1", "inner", {"task": "x"})), asks(("c2", "shout", {"word": "x"}))]
    abort = at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True) if action.name == "shout" else None)
    with playing(way, abort, *replies) as (parts, _seen, _server):
        boss = parts.agent("boss", [AgentTool(parts.agent("inner", [shout], stream=stream))], stream=stream)
        with pytest.raises(PolicyDenied, match="stop"):
            await asyncio.wait_for(answer_of(boss, "go", stream=stream), PATIENCE_S)


async def test_abort_in_one_loop_does_not_end_the_next() -> None:
    """A loop of the program's own may never ask its model again; the next one must not pay for that."""
    replies = [asks(("c1", "shout", {"word": "x"})), says("fresh")]
    abort = at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True))
    with playing("explicit", abort, *replies) as (parts, _seen, _server):
        agent = parts.agent("clerk", [shout], max_tool_iterations=1)
        await agent.run(task="go")
        assert await answer_of(parts.agent("other"), "go", stream=False) == "fresh"


async def test_abort_in_a_team_ends_the_team() -> None:
    replies = [asks(("c1", "shout", {"word": "x"}))]
    with playing("instrumented", at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True)), *replies) as (
        parts,
        _,
        _s,
    ):
        team = RoundRobinGroupChat([parts.agent("clerk", [shout])], termination_condition=MaxMessageTermination(5))
        with pytest.raises(PolicyDenied, match="stop"):
            await asyncio.wait_for(team.run(task="go"), PATIENCE_S)


# ---------------------------------------------------------------------- teams


@BOTH
@MODES
async def test_a_tool_refuses_arguments_that_are_no_object_as_it_would_without_us(way: str, stream: bool) -> None:
    ran: list[str] = []

    def ring(loudness: int = 1) -> str:
        """Rings."""
        ran.append("rang")
        return "rang"

    replies = [asks(("c1", "ring", "[1]"), ("c2", "ring", "[]")), says("done")]
    with playing(way, at(Point.OUTPUT, lambda action: None), *replies) as (parts, seen, server):
        await answer_of(parts.agent("clerk", [ring], stream=stream), "go", stream=stream)
    assert "valid dictionary" in results_read(server)["c1"]
    assert ran == ["rang"], "AutoGen takes an empty list for no arguments"
    assert {one.action.call_id: (one.status, one.error_type) for one in seen.outcomes} == {
        "c1": ("invalid_args", "ValidationError"),
        "c2": ("ok", None),
    }


@pytest.mark.parametrize("given", [None, "", "hi", "{}", 0, [], [1], {}, {"loudness": 2}], ids=repr)
async def test_arguments_reach_a_tool_in_the_form_in_which_they_came(given: Any) -> None:
    def ring(loudness: int = 1) -> str:
        """Rings."""
        return f"rang {loudness}"

    async def outcomes() -> list[str]:
        tool = FunctionTool(ring, "Rings.")
        try:
            said = await tool.run_json(given, CancellationToken())
        except ValidationError as error:
            said = str(error)
        result = await StaticWorkbench([tool]).call_tool("ring", given)
        return [said, result.to_text()]

    without_us = await outcomes()
    with playing("instrumented", at(Point.OUTPUT, lambda action: None)):
        assert await outcomes() == without_us


@pytest.mark.parametrize("given", [[1], "hi", None, {"word": "hi"}])
async def test_what_a_policy_makes_of_arguments_runs_whatever_they_were(given: Any) -> None:
    policy = at(Point.PRE_TOOL_CALL, lambda action: rewrite(arguments={"word": "quiet"}))
    with playing("instrumented", policy) as (_parts, _seen, _server):
        tool = FunctionTool(shout, "Says a word loudly.")
        assert await tool.run_json(given, CancellationToken()) == "QUIET"
        result = await StaticWorkbench([tool]).call_tool("shout", given)
        assert result.to_text() == "QUIET"
    with playing("instrumented", at(Point.PRE_TOOL_CALL, lambda action: rewrite(arguments={"arguments": 7}))):
        tool = FunctionTool(shout, "Says a word loudly.")
        with pytest.raises(ValidationError):
            await tool.run_json(given, CancellationToken())


@BOTH
@MODES
async def test_denials_in_teams(way: str, stream: bool) -> None:
    asked = [asks(("c1", "shout", {"word": "x"})), says("first"), says("second")]
    with playing(way, at(Point.PRE_TOOL_CALL, lambda action: deny("no")), *asked) as (parts, seen, server):
        team = RoundRobinGroupChat(
            [parts.agent("one", [shout], stream=stream), parts.agent("two", stream=stream)],
            termination_condition=MaxMessageTermination(3),
        )
        assert await answer_of(team, "go", stream=stream) == "second"
    assert "DENIED" in results_read(server, 1)["c1"]
    spans = {span.span_id: span for span in seen.spans}
    if parts.instrumented:
        (top,) = [span for span in spans.values() if span.parent_id is None]
        runs = [span for span in spans.values() if span.attributes[semconv.OPERATION] == semconv.INVOKE_AGENT]
        assert {span.attributes[semconv.AGENT_NAME] for span in runs} == {"RoundRobinGroupChat", "one", "two"}
        assert all(span.parent_id in (None, top.span_id) for span in runs)
    inputs = {(one.action.text, one.action.parent_id is None) for one in seen.decisions(Point.INPUT)}
    if parts.instrumented:
        assert inputs == {("go", True), ("first", False)}, "what another member says is not the user's"


@BOTH
async def test_a_selector_team(way: str) -> None:
    asked = [says("two"), asks(("c1", "shout", {"word": "x"})), says("over")]
    with playing(way, at(Point.PRE_TOOL_CALL, lambda action: deny("no")), *asked) as (parts, seen, server):
        team = SelectorGroupChat(
            [parts.agent("one"), parts.agent("two", [shout])],
            model_client=parts.client(),
            termination_condition=MaxMessageTermination(2),
        )
        assert await answer_of(team, "go", stream=False) == "over"
    assert "DENIED" in results_read(server)["c1"]
    assert [one.action.agent for one in seen.decisions()] == ["two"]


# ---------------------------------------------------------------------- code


def executor_of(parts: Any, folder: Path) -> Any:
    inner = LocalCommandLineCodeExecutor(work_dir=folder)
    return inner if parts.instrumented else GovernedCodeExecutor(inner, parts.governor, agent="coder")


def no_rm(action: Action) -> Decision | None:
    return deny("nothing is removed") if "rm " in str(action.arguments.get("command", "")) else None


@BOTH
@MODES
async def test_code_blocks_are_judged_before_they_run(way: str, stream: bool, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    reply = f"First:\n```python\nprint(6 * 7)\n```\nthen\n```sh\nrm {precious}\n```\nlast\n```sh\ntouch {tmp_path}/last\n```"
    work = tmp_path / "work"
    work.mkdir()
    with playing(way, at(Point.PRE_TOOL_CALL, no_rm), says(reply), says("I could not.")) as (parts, seen, server):
        coder = CodeExecutorAgent(
            "coder", executor_of(parts, work), model_client=parts.client("coder"), model_client_stream=stream
        )
        assert await answer_of(coder, "go", stream=stream) == "I could not."
    assert precious.exists()
    assert not (tmp_path / "last").exists(), "nothing runs after a denied block"
    (told,) = [m["content"] for m in server.requests[-1].body["messages"] if "DENIED" in str(m["content"])]
    assert "42" in told
    assert "nothing is removed" in told
    acts = [(one.action.name, one.action.kind, one.action.agent) for one in seen.decisions()]
    assert acts == [("run_code", "shell", "coder"), ("run_shell", "shell", "coder")]
    assert [one.status for one in seen.outcomes] == ["ok", "denied"]


@BOTH
async def test_a_failing_block_is_the_last_and_its_failure_is_recorded(way: str, tmp_path: Path) -> None:
    with playing(way, at(Point.PRE_TOOL_CALL, no_rm), says("x")) as (parts, seen, _server):
        executor = executor_of(parts, tmp_path)
        blocks = [CodeBlock("echo a", "bash"), CodeBlock("echo b; exit 3", "bash"), CodeBlock("echo c", "bash")]
        result = await executor.execute_code_blocks(blocks, CancellationToken())
        assert (result.exit_code, result.output.split()) == (3, ["a", "b"])
        one = await executor.execute_code_blocks([CodeBlock("echo a", "bash")], CancellationToken())
        assert (one.exit_code, one.output) == (0, "a\n")
        await parts.bare_client().create([])
    assert [(one.status, one.error_type) for one in seen.outcomes] == [
        ("ok", None),
        ("error", "exit_code_3"),
        ("ok", None),
    ]


async def test_code_as_a_tool_is_judged_as_a_tool_and_as_code(tmp_path: Path) -> None:
    from autogen_ext.tools.code_execution import PythonCodeExecutionTool

    def judge(action: Action) -> Decision | None:
        return deny("no") if "unlink" in str(action.arguments.get("code")) and action.kind == "shell" else None

    tool = PythonCodeExecutionTool(LocalCommandLineCodeExecutor(work_dir=tmp_path))
    with playing("instrumented", at(Point.PRE_TOOL_CALL, judge)) as (_parts, seen, _server):
        value = await tool.run_json({"code": "import os; os.unlink('x')"}, CancellationToken())
    assert "DENIED" in tool.return_value_as_string(value)
    assert [(one.action.name, one.action.kind) for one in seen.decisions()] == [
        (tool.name, "function"),
        ("run_code", "shell"),
    ]


# ---------------------------------------------------------------------- spans


@BOTH
async def test_spans_of_the_program_inside_a_tool_hang_below_the_call(way: str) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    mine = TracerProvider().get_tracer("mine")
    above: list[int] = []

    def act() -> str:
        """Acts."""
        above.append(trace.get_current_span().get_span_context().span_id)
        with mine.start_as_current_span("inner") as span:
            assert span.parent is not None  # type: ignore[attr-defined]
            above.append(span.parent.span_id)  # type: ignore[attr-defined]
        return "acted"

    replies = [asks(("c1", "act", {})), says("done")]
    with playing(way, at(Point.INPUT, lambda action: None), *replies) as (parts, seen, _server):
        # AutoGen opens spans of its own with the program's provider; there is none here, so ours are the parents.
        await answer_of(parts.agent("clerk", [act]), "go", stream=False)
    (call,) = [span for span in seen.spans if span.name == "execute_tool act"]
    assert [f"{one:016x}" for one in above] == [call.span_id] * 2


@BOTH
@MODES
async def test_without_capture_no_content_is_on_any_span(way: str, stream: bool) -> None:
    replies = [asks(("c1", "shout", {"word": "sesame"})), says("sesame opened")]
    with playing(way, at(Point.INPUT, lambda action: None), *replies, content=False) as (parts, seen, _server):
        await answer_of(parts.agent("clerk", [shout], stream=stream), "say sesame", stream=stream)
    assert seen.spans
    assert "sesame" not in str([span.attributes for span in seen.spans]).lower()


# ---------------------------------------------------------------------- tools inside tools


async def test_a_tool_that_a_tool_calls_is_a_call_of_its_own() -> None:
    """Also by `run_json`, a workbench, or a loop of its own with a model, inside an assistant's run."""
    harm: list[str] = []

    async def destroy(what: str) -> str:
        """Destroys."""
        harm.append(what)
        return "destroyed"

    inner = as_tool(destroy)

    async def tidy(how: str) -> str:
        """Tidies."""
        if how == "run_json":
            return str(await inner.run_json({"what": "x"}, CancellationToken()))
        if how == "workbench":
            return (await StaticStreamWorkbench([inner]).call_tool("destroy", {"what": "x"})).to_text()
        reply = await client.create([UserMessage(content="tidy", source="user")], tools=[inner])
        (call,) = reply.content
        return str(await inner.run_json({"what": "x"}, CancellationToken(), call_id=call.id))

    replies = [
        asks(("c1", "tidy", {"how": "run_json"}), ("c2", "tidy", {"how": "workbench"})),
        asks(("c3", "tidy", {"how": "loop"})),
        asks(("c4", "destroy", {"what": "x"})),
        says("done"),
    ]
    no = at(Point.PRE_TOOL_CALL, lambda action: deny("never") if action.name == "destroy" else None)
    with playing("instrumented", no, *replies) as (parts, seen, server):
        client: Any = parts.client()
        await parts.agent("clerk", [tidy]).run(task="go")
        assert all("DENIED" in text for text in results_read(server).values())
    assert harm == []
    inside = [one.action for one in seen.decisions() if one.action.name == "destroy"]
    assert [action.kind for action in inside] == ["function"] * 3, "a tool of a tool's own loop is no hand-off"
