"""Teams, code executors, and the spans of tools."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.local import LocalCommandLineCodeExecutor

from lgov_autogen import GovernedCodeExecutor
from lgov_core.policies import CostControlPolicy
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from tests.autogen.autogen_parts import WAYS, answer_of, at, deny, playing, results_read
from tests.cells import asks, says

BOTH = pytest.mark.parametrize("way", WAYS)


MODES = pytest.mark.parametrize("stream", [False, True], ids=["async", "streaming"])


def shout(word: str) -> str:
    """Says a word loudly."""
    if word == "bad":
        raise OSError("disk full")
    return word.upper()


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
async def test_a_budget_ends_a_team_whose_own_end_only_the_model_would_bring(way: str) -> None:
    budget = CostControlPolicy(max_calls=2, per="global", abort_after=3)
    with playing(way, budget, lambda body: says("go on")) as (parts, seen, server):
        team = RoundRobinGroupChat(
            [parts.agent("one"), parts.agent("two")], termination_condition=TextMentionTermination("APPROVED")
        )
        with pytest.raises(Exception, match="budget"):
            await asyncio.wait_for(team.run(task="go"), 30)
    assert len(server.requests) == 2
    assert sum(one.decision.blocks for one in seen.decisions(Point.PRE_MODEL_CALL)) == 3


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
async def test_a_failing_block_is_the_last_and_is_recorded(way: str, tmp_path: Path) -> None:
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


@BOTH
async def test_the_programs_spans_in_a_tool_are_its_children(way: str) -> None:
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
