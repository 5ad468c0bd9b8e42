"""Function tools: arguments, results, errors, and callables of every form."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import inspect
import json
from typing import Any, get_type_hints

import pytest
from agents import (
    Agent,
    FunctionTool,
    ModelBehaviorError,
    RunConfig,
    RunContextWrapper,
    function_tool,
)
from agents.tool_context import ToolContext
from cells import ANSWER, Seen, asks, says
from cells_agents import (
    chat_model,
    deny,
    denying,
    instrumented,
    make_governor,
    run,
    transform,
)

from lgov_core.air import AirPlugin
from lgov_core.testing import ScriptedModelServer
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from lgov_openai_agents import LgovRunner, governed_tool


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture(params=["instrumented", "runner"])
def way(request: pytest.FixtureRequest) -> Any:
    """Runs an agent under a governor in one of the two ways."""

    def act(governor: Any, agent: Agent[Any], text: str = "go", **options: Any) -> Any:
        if request.param == "runner":
            return LgovRunner(governor).run_sync(agent, text, run_config=RunConfig(tracing_disabled=True), **options)
        with instrumented(governor):
            return run("sync", agent, text, **options)

    return act


def last_prompt(server: ScriptedModelServer) -> str:
    return json.dumps(server.requests[-1].body)


@pytest.mark.surface("openai-agents", "pre_tool_call", "transform", "sync")
@pytest.mark.surface("openai-agents", "post_tool_call", "transform", "sync")
def test_arguments_and_results_are_rewritten(way: Any, seen: Seen) -> None:
    def judge(action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL:
            return transform(arguments={**action.arguments, "path": "safe"})
        if action.point is Point.POST_TOOL_CALL and "secret" in (action.text or ""):
            return transform(text="read safe: ***")
        return None

    got: list[str] = []

    @function_tool
    def read(path: str) -> str:
        """Reads."""
        got.append(path)
        return f"read {path}: secret"

    with ScriptedModelServer([asks(("c1", "read", {"path": "home"})), says(ANSWER)]) as server:
        result = way(make_governor(judge, seen), Agent(name="a", model=chat_model(server), tools=[read]))
        assert result.final_output == ANSWER
        assert "read safe: ***" in last_prompt(server)
        assert "secret" not in last_prompt(server)
    assert got == ["safe"]
    assert dict(seen.outcomes[0].action.arguments) == {"path": "home"}


def test_arguments_are_rewritten_after_an_approval_check(way: Any) -> None:
    """The SDK keeps what it parsed for the approval and insists that the tool gets the same."""

    def judge(action: Action) -> Decision | None:
        return transform(arguments={"path": "safe"}) if action.point is Point.PRE_TOOL_CALL else None

    got: list[str] = []

    async def never(context: Any, parameters: Any, call_id: str) -> bool:
        return False

    @function_tool(needs_approval=never)
    def read(path: str) -> str:
        """Reads."""
        got.append(path)
        return path

    with ScriptedModelServer([asks(("c1", "read", {"path": "home"})), says(ANSWER)]) as server:
        result = way(make_governor(judge), Agent(name="a", model=chat_model(server), tools=[read]))
    assert result.final_output == ANSWER
    assert got == ["safe"]


@pytest.mark.surface("openai-agents", "post_tool_call", "block", "tell", "sync")
def test_a_withheld_result_does_not_reach_the_model(way: Any) -> None:
    def judge(action: Action) -> Decision | None:
        return deny("private") if action.point is Point.POST_TOOL_CALL else None

    @function_tool
    def read() -> str:
        """Reads."""
        return "the secret"

    with ScriptedModelServer([asks(("c1", "read", {})), says(ANSWER)]) as server:
        way(make_governor(judge), Agent(name="a", model=chat_model(server), tools=[read]))
        assert "its result is withheld" in last_prompt(server)
        assert "the secret" not in last_prompt(server)


@pytest.mark.parametrize("handler", ["the SDK's", "the tool's own", "none"])
def test_what_a_tool_raised_is_recorded_as_it_was(handler: str, way: Any, seen: Seen) -> None:
    options: dict[str, Any] = {}
    if handler == "the tool's own":
        options["failure_error_function"] = lambda context, error: "it did not work"
    if handler == "none":
        options["failure_error_function"] = None

    @function_tool(**options)
    def read() -> str:
        """Reads."""
        raise FileNotFoundError("no such file: notes")

    governor = make_governor(lambda action: None, seen)
    governor.manager.register(AirPlugin())
    governor.plugins_changed()
    with ScriptedModelServer([asks(("c1", "read", {})), says(ANSWER)]) as server:
        agent = Agent(name="reader", model=chat_model(server), tools=[read])
        if handler == "none":
            with pytest.raises(Exception, match="no such file"):
                way(governor, agent)
        else:
            assert way(governor, agent).final_output == ANSWER
    (outcome,) = seen.outcomes
    assert (outcome.status, outcome.error_type, outcome.error) == ("error", "FileNotFoundError", "no such file: notes")
    assert (outcome.action.agent, outcome.action.call_id) == ("reader", "c1")
    (reward,) = [event for event in seen.events if type(event).__name__ == "Reward"]
    assert reward.tool_call_id == "c1"
    assert reward.value < 0


def test_the_programs_own_error_formatter_is_heard(way: Any, seen: Seen) -> None:
    @function_tool
    def read() -> str:
        """Reads."""
        raise ValueError("odd")

    config = RunConfig(tracing_disabled=True, tool_error_formatter=lambda args: f"formatted: {args.error}")
    with ScriptedModelServer([asks(("c1", "read", {})), says(ANSWER)]) as server:
        agent = Agent(name="a", model=chat_model(server), tools=[read])
        governor = make_governor(lambda action: None, seen)
        with instrumented(governor):
            run("sync", agent, "go", run_config=config)
        assert "formatted: odd" in last_prompt(server)
    assert seen.outcomes[0].error_type == "ValueError"


def test_arguments_that_do_not_fit_are_told_apart(way: Any, seen: Seen) -> None:
    @function_tool
    def read(count: int) -> str:
        """Reads."""
        return "read"

    replies = [asks(("c1", "read", {"count": "many"})), asks(("c2", "read", "{broken")), says(ANSWER)]
    with ScriptedModelServer(replies) as server:
        way(make_governor(lambda action: None, seen), Agent(name="a", model=chat_model(server), tools=[read]))
    assert [outcome.status for outcome in seen.outcomes] == ["invalid_args", "invalid_args"]
    assert dict(seen.outcomes[1].action.arguments) == {"input": "{broken"}


@pytest.mark.parametrize("behavior", ["raise_error", "return_error_to_model"])
def test_a_call_of_an_unknown_tool_is_recorded_and_charged(behavior: str, seen: Seen) -> None:
    @function_tool
    def read(path: str) -> str:
        """Reads."""
        return path

    with ScriptedModelServer([asks(("c1", "reed", {"path": "home"})), says(ANSWER)]) as server:
        governor = make_governor(lambda action: None, seen)
        config = RunConfig(tracing_disabled=True, tool_not_found_behavior=behavior)  # type: ignore[arg-type]
        agent = Agent(name="a", model=chat_model(server), tools=[read])
        with contextlib.suppress(ModelBehaviorError):
            assert LgovRunner(governor).run_sync(agent, "go", run_config=config).final_output == ANSWER
    (outcome,) = seen.outcomes
    assert (outcome.status, outcome.action.name, outcome.action.call_id) == ("unknown_tool", "reed", "c1")
    assert AirPlugin().lgov_reward(outcome)[0].value < 0


def test_a_tool_that_takes_too_long_is_a_timeout(way: Any, seen: Seen) -> None:
    @function_tool(timeout=0.2)
    async def wait() -> str:
        """Waits."""
        await asyncio.sleep(60)
        return "done"

    with ScriptedModelServer([asks(("c1", "wait", {})), says(ANSWER)]) as server:
        result = way(make_governor(lambda action: None, seen), Agent(name="a", model=chat_model(server), tools=[wait]))
        assert "timed out" in last_prompt(server)
    assert result.final_output == ANSWER
    assert [outcome.status for outcome in seen.outcomes] == ["timeout"]


def test_a_tool_inside_a_tool_is_a_call_of_its_own(seen: Seen) -> None:
    ran: list[str] = []

    @function_tool
    def erase() -> str:
        """Erases."""
        ran.append("erase")
        return "erased"

    @function_tool
    async def tidy() -> str:
        """Tidies."""
        context: Any = ToolContext(None, tool_name="erase", tool_call_id="inner", tool_arguments="{}")
        return await erase.on_invoke_tool(context, "{}")

    with ScriptedModelServer([asks(("c1", "tidy", {})), says(ANSWER)]) as server:
        governor = make_governor(denying("erase"), seen)
        with instrumented(governor):
            run("sync", Agent(name="a", model=chat_model(server), tools=[tidy]), "go")
        assert "DENIED by policy judging/no" in last_prompt(server)
    assert ran == []
    spans = {span.attributes[semconv.TOOL_NAME]: span for span in seen.spans if semconv.TOOL_NAME in span.attributes}
    assert spans["erase"].parent_id == spans["tidy"].span_id


def test_copies_of_a_governed_tool_stay_governed(seen: Seen) -> None:
    ran: list[str] = []

    @function_tool
    def erase() -> str:
        """Erases."""
        ran.append("erase")
        return "erased"

    governor = make_governor(denying("erase"), seen)
    one = governed_tool(erase, governor)
    assert governed_tool(one, governor) is one
    assert one.__wrapped__ is erase.__wrapped__
    for tool in (one, copy.copy(one)):
        context: Any = ToolContext(None, tool_name="erase", tool_call_id="c", tool_arguments="{}")
        assert "DENIED" in asyncio.run(tool.on_invoke_tool(context, "{}"))
    assert ran == []
    context = ToolContext(None, tool_name="erase", tool_call_id="c", tool_arguments="{}")
    assert asyncio.run(erase.on_invoke_tool(context, "{}")) == "erased", "the program's own tool is as it was"


def test_a_governed_callable_looks_like_the_one_it_stands_for(seen: Seen) -> None:
    """The SDK gives a callable that asks for a `RunContextWrapper` no more than that."""
    given: list[type] = []

    async def invoke(context: RunContextWrapper[Any], raw: str) -> str:
        given.append(type(context))
        return "ran"

    tool = FunctionTool("act", "Acts.", {"type": "object", "properties": {}}, invoke, strict_json_schema=False)
    with instrumented(make_governor(lambda action: None, seen)):
        found: Any = tool.on_invoke_tool
        assert found is not invoke
        assert isinstance(found, type(invoke))
        assert found.__class__ is type(invoke)
        assert get_type_hints(found, include_extras=True) == get_type_hints(invoke, include_extras=True)
        assert inspect.signature(found) == inspect.signature(invoke)
        with ScriptedModelServer([asks(("c1", "act", {})), says(ANSWER)]) as server:
            run("sync", Agent(name="a", model=chat_model(server), tools=[tool]), "go")
    assert given == [RunContextWrapper]


@pytest.mark.gap("openai-agents", "the wrapped function")
def test_the_known_gap_is_one(seen: Seen) -> None:
    """What the adapter declares under ``gaps``: the program's own function is nobody's but the program's."""

    @function_tool
    def erase() -> str:
        """Erases."""
        return "erased"

    governor = make_governor(denying("erase"), seen)
    with instrumented(governor):
        assert erase.__wrapped__() == "erased"
    assert seen.decisions() == []


def test_tools_made_before_instrumentation_are_governed(seen: Seen) -> None:
    ran: list[str] = []

    async def invoke(context: ToolContext[Any], raw: str) -> str:
        ran.append(raw)
        return "ran"

    tool = FunctionTool("plain", "Plain.", {"type": "object", "properties": {}}, invoke, strict_json_schema=False)
    context: Any = ToolContext(None, tool_name="plain", tool_call_id="c", tool_arguments="{}")
    with instrumented(make_governor(denying("plain"), seen)):
        assert "DENIED" in asyncio.run(tool.on_invoke_tool(context, "{}"))
        assert ran == []
    assert asyncio.run(tool.on_invoke_tool(context, "{}")) == "ran"
    assert tool.on_invoke_tool is invoke


def test_an_agent_that_is_a_tool_must_be_governed_itself() -> None:
    inner = Agent(name="inner")
    outer = Agent(name="outer", tools=[inner.as_tool("ask", "Asks.")])
    runner = LgovRunner(make_governor(lambda action: None))
    with pytest.raises(Exception, match="not governed; give it as"):
        runner.run_sync(outer, "go")
    assert runner.govern(Agent(name="outer", tools=[runner.govern(inner).as_tool("ask", "Asks.")])).name == "outer"


@pytest.mark.parametrize("own", ["property", "method", "default", "field"])
@pytest.mark.parametrize("made", ["before", "after"])
def test_a_kind_of_tool_with_a_callable_of_its_own_is_governed(own: str, made: str, seen: Seen) -> None:
    """A class below ``FunctionTool`` may have something else where the SDK has the field."""
    ran: list[str] = []

    async def invoke(context: Any, raw: str) -> str:
        ran.append(raw)
        return "ran"

    def make() -> type[FunctionTool]:
        if own in ("default", "field"):
            default: Any = invoke if own == "default" else dataclasses.field(default=invoke)
            body = {"__annotations__": {"on_invoke_tool": Any}, "on_invoke_tool": default}
            return dataclasses.dataclass(type("Own", (FunctionTool,), body))
        if own == "property":
            member: Any = property(lambda tool: invoke, lambda tool, value: None)
        else:

            async def member(tool: Any, context: Any, raw: str) -> str:
                return await invoke(context, raw)

        return type("Own", (FunctionTool,), {"on_invoke_tool": member})

    def ask(kind: type[FunctionTool]) -> Any:
        tool = kind("erase", "Erases.", {"type": "object", "properties": {}}, invoke, strict_json_schema=False)
        context: Any = ToolContext(None, tool_name="erase", tool_call_id="c", tool_arguments="{}")
        return asyncio.run(tool.on_invoke_tool(context, "{}"))

    kind = make() if made == "before" else None
    with instrumented(make_governor(denying("erase"), seen)):
        kind = kind or make()
        assert "DENIED" in ask(kind)
        assert ran == []
    assert ask(kind) == "ran"
