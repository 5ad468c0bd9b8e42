"""What lgov uses of the SDK's internals is there in the installed version."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from agents import (
    Agent,
    Model,
    RunConfig,
    RunContextWrapper,
    Runner,
    RunState,
    add_trace_processor,
    function_tool,
    set_trace_processors,
)
from agents.mcp import MCPUtil
from agents.tool_context import ToolContext
from agents.tracing import get_trace_provider
from cells import asks
from cells_agents import MODELS, make_governor
from mcp.types import Tool
from pydantic import AfterValidator

from lgov_core.testing import ScriptedModelServer
from lgov_openai_agents import LgovTracingProcessor, _internals
from lgov_openai_agents.patching import _ProbeServer


@function_tool
def fail() -> str:
    """Fails."""
    raise OSError("disk full")


def context_of(tool: Any) -> Any:
    return ToolContext(None, tool_name=tool.name, tool_call_id="c", tool_arguments="{}")


def test_the_kinds_of_function_tools_are_told_apart() -> None:
    agent = Agent(name="a")
    agent_tool = agent.as_tool("ask", "Asks.")
    described: Any = Tool.model_validate({"name": "read", "inputSchema": {"type": "object"}})
    mcp_tool = MCPUtil.to_function_tool(described, _ProbeServer([]), False)
    assert [_internals.kind_of(tool) for tool in (fail, agent_tool, mcp_tool)] == ["function", "agent", "mcp"]
    assert _internals.agent_of(agent_tool) is agent
    assert _internals.agent_of(fail) is None


@pytest.mark.parametrize("own", [True, False])
def test_what_a_tool_raises_is_observed_and_its_text_is_kept(own: bool) -> None:
    tool = fail
    if own:
        tool = function_tool(fail.__wrapped__, failure_error_function=lambda context, error: "it did not work")
    raised: list[BaseException] = []
    observed = _internals.observe_errors(tool, tool.on_invoke_tool, raised.append)
    text = asyncio.run(observed(context_of(tool), "{}"))  # type: ignore[arg-type]
    assert text == asyncio.run(tool.on_invoke_tool(context_of(tool), "{}"))  # type: ignore[arg-type]
    assert [type(error) for error in raised] == [OSError]


validated: list[str] = []


def note(word: str) -> str:
    validated.append(word)
    return word


@function_tool(strict_mode=False)
def shout(context: ToolContext[Any], word: Annotated[str, AfterValidator(note)], *more: int, **rest: int) -> str:
    """Says a word loudly."""
    return f"{word.upper()} {more} {rest}"


def test_arguments_are_validated_once_and_handed_over() -> None:
    validated.clear()
    made = _internals.function_schema_of(shout)
    assert made is not None
    schema, prepare = made
    text = '{"word": "hi", "more": [1], "rest": {"x": 2}}'
    prepared = prepare(text, "shout")
    assert (prepared.args, prepared.kwargs) == (["hi", 1], {"x": 2})
    context = context_of(shout)
    _internals.hand_over(context, prepared)
    assert asyncio.run(shout.on_invoke_tool(context, text)) == "HI (1,) {'x': 2}"  # type: ignore[arg-type]
    assert validated == ["hi"]
    _internals.hand_over(context, None, ValueError("no such word"))
    raised: list[BaseException] = []
    asyncio.run(_internals.observe_errors(shout, shout.on_invoke_tool, raised.append)(context, text))  # type: ignore[arg-type]
    assert list(map(str, raised)) == ["no such word"]
    again = _internals.prepared_arguments(schema, prepare, text, schema.params_pydantic_model(word="hey"))
    assert again.args == ["hey"]


def test_only_a_function_made_a_tool_has_a_schema_of_the_sdk() -> None:
    described: Any = Tool.model_validate({"name": "read", "inputSchema": {"type": "object"}})
    mcp_tool = MCPUtil.to_function_tool(described, _ProbeServer([]), False)
    assert _internals.function_schema_of(mcp_tool) is None
    assert _internals.function_schema_of(Agent(name="a").as_tool("ask", "Asks.")) is None


def test_the_agent_of_a_paused_run_is_known() -> None:
    agent = Agent(name="a")
    state = RunState(context=RunContextWrapper(None), original_input="go", starting_agent=agent)
    assert _internals.paused_agent(state) is agent
    assert _internals.paused_agent("go") is None


@pytest.mark.parametrize("answer", [None, True, False])
def test_the_answer_in_a_paused_run_is_known(answer: bool | None) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        """Pays."""
        return "paid"

    with ScriptedModelServer([asks(("c1", "pay", {}))]) as server:
        agent = Agent(name="a", model=MODELS["chat"](server), tools=[pay])
        state = Runner.run_sync(agent, "go", run_config=RunConfig(tracing_disabled=True)).to_state()
    (item,) = state.get_interruptions()
    if answer:
        state.approve(item)
    elif answer is False:
        state.reject(item, rejection_message="not now")
    tool, *rest = _internals.approval_of(state, item)
    assert (tool.name, *rest) == ("pay", answer, "not now" if answer is False else "")


@pytest.mark.parametrize("kind", MODELS)
def test_the_url_of_a_model_is_known(kind: str) -> None:
    assert _internals.base_url_of(MODELS[kind](SimpleNamespace(base_url="http://x/v1"))) == "http://x/v1/"


def test_the_trace_processors_are_found() -> None:
    provider = get_trace_provider()
    before = _internals.trace_processors(provider)
    own: Any = LgovTracingProcessor(make_governor(lambda action: None))
    add_trace_processor(own)
    try:
        assert _internals.trace_processors(provider) == [*before, own]
    finally:
        set_trace_processors(before)


def test_a_model_has_a_clean_up_at_the_end_of_a_run() -> None:
    assert inspect.iscoroutinefunction(Model._cleanup_on_run_end)
