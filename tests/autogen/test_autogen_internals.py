"""What lgov uses of AutoGen's internals is there in the installed version."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff
from autogen_core import CancellationToken
from autogen_core.tools import BaseTool, FunctionTool, StaticWorkbench, ToolOverride
from autogen_ext.models.cache import ChatCompletionCache
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

from lgov_autogen import _internals
from lgov_core.governor import Governor
from lgov_core.instrumentation.live_span import CoveredCall, LiveSpan
from lgov_core.trace import semconv
from tests.autogen.autogen_parts import MODEL_INFO


def fail() -> str:
    """Fails."""
    raise OSError("disk full")


def client() -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(model="scripted", base_url="http://x/v1", api_key="none", model_info=MODEL_INFO)


def test_the_tool_of_a_handoff_is_recognised() -> None:
    assert _internals.is_handoff(Handoff(target="other").handoff_tool)
    assert not _internals.is_handoff(FunctionTool(fail, description="Fails."))
    assert _internals.has_handoffs(AssistantAgent("a", client(), handoffs=["other"]))
    assert not _internals.has_handoffs(object())


def test_the_tools_of_a_static_workbench_are_found() -> None:
    tool = FunctionTool(fail, description="Fails.")
    workbench = StaticWorkbench([tool], tool_overrides={"fail": ToolOverride(name="other")})
    assert _internals.tools_of(workbench) == (tool,)
    assert _internals.tool_in(workbench, "other") is tool
    assert _internals.tool_in(workbench, "missing") is None


async def test_what_a_tool_raises_is_observed_before_it_is_text() -> None:
    raised: list[Exception] = []
    workbench = StaticWorkbench([FunctionTool(fail, description="Fails.")])
    for _ in range(2):
        _internals.observe_errors(workbench, raised.append)
    assert (await workbench.call_tool("fail", {})).is_error
    assert [type(error) for error in raised] == [OSError]


@pytest.mark.parametrize("wrap", [lambda inner: inner, ChatCompletionCache])
def test_the_model_and_the_openai_client_of_a_client_are_found(wrap: Any) -> None:
    wrapped = wrap(client())
    assert _internals.model_name(wrapped) == "scripted"
    assert isinstance(_internals.openai_client(wrapped), openai.AsyncOpenAI)
    assert _internals.openai_client(object()) is None


def test_only_autogens_own_tool_is_that_of_a_handoff() -> None:
    def named(name: str, module: str) -> Callable[[], str]:
        def function() -> str:
            return ""

        function.__qualname__, function.__module__ = name, module
        return function

    own = Handoff(target="other").handoff_tool._func
    for name, module, expected in (
        (own.__qualname__, own.__module__, True),
        (own.__qualname__, "program", False),
        ("Program.handoff_tool.run", own.__module__, False),
    ):
        tool = FunctionTool(fail, description="Fails.")
        tool._func = named(name, module)
        assert _internals.is_handoff(tool) is expected
    assert not _internals.is_handoff(object())


def test_the_handoffs_of_an_agent_are_a_list_whatever_it_keeps_them_in() -> None:
    agent = AssistantAgent("a", client(), handoffs=["other", "third"])
    assert [handoff.target for handoff in _internals.handoffs_of(agent)] == ["other", "third"]
    assert _internals.handoffs_of(SimpleNamespace(_handoffs=("x", "y"))) == ["x", "y"]
    assert _internals.handoffs_of(SimpleNamespace(_handoffs=None)) == []
    assert _internals.handoffs_of(object()) == []


def test_the_id_of_a_team_is_a_text_or_nothing() -> None:
    assert _internals.team_id(SimpleNamespace(_team_id="t1")) == "t1"
    assert _internals.team_id(SimpleNamespace(_team_id=7)) is None
    assert _internals.team_id(object()) is None


def test_what_is_no_static_workbench_has_no_tools() -> None:
    assert _internals.tools_of(object()) == ()
    assert _internals.tool_in(object(), "x") is None


def test_a_tool_that_is_shown_under_another_name_is_not_there_under_the_name_of_another() -> None:
    first, second = (FunctionTool(fail, description="Fails.", name=name) for name in ("first", "second"))
    workbench = StaticWorkbench([first, second], tool_overrides={"first": ToolOverride(name="other")})
    assert _internals.tool_in(workbench, "other") is first
    assert _internals.tool_in(workbench, "second") is second


# ---------------------------------------------------------------------- what validates


class Words(BaseModel):
    word: str


class Shouting(BaseTool[Words, str]):
    def __init__(self) -> None:
        super().__init__(Words, str, "shout", "Says a word loudly.")

    async def run(self, args: Words, cancellation_token: CancellationToken) -> str:
        return args.word.upper()


class Own(Shouting):
    async def run_json(self, args: Any, cancellation_token: Any, call_id: str | None = None) -> Any:
        return "its own"


class Wrapped(Shouting):
    @functools.wraps(BaseTool.run_json)
    async def run_json(self, args: Any, cancellation_token: Any, call_id: str | None = None) -> Any:
        return await super().run_json(args, cancellation_token, call_id)


def test_a_tool_validates_with_its_model_where_it_runs_by_autogens_own_method() -> None:
    for tool, expected in ((Shouting(), Words), (Wrapped(), Words), (Own(), None)):
        assert _internals.validating_model(tool, type(tool).run_json) is expected
        assert _internals.validating_model(tool, tool.run_json) is expected
    assert _internals.validating_model(None, BaseTool.run_json) is None
    assert _internals.validating_model(SimpleNamespace(), BaseTool.run_json) is None
    assert _internals.validating_model(Shouting(), None) is None


def test_a_stand_in_shows_the_schema_and_gives_what_was_validated() -> None:
    made = Words(word="a")
    stand_in = _internals.ValidatedType(Words, lambda: made)
    assert stand_in.model_validate({"word": "b"}) is made
    assert stand_in.model_fields is Words.model_fields


def test_a_tool_keeps_its_own_model_and_a_class_has_none() -> None:
    tool = Shouting()
    assert tool._args_type is Words
    tool._args_type = BaseModel
    assert tool._args_type is vars(tool)["_args_type"] is BaseModel
    for owner in (BaseTool, Shouting, object.__new__(Shouting)):
        with pytest.raises(AttributeError, match=r"^_args_type$"):
            owner._args_type  # noqa: B018


# ---------------------------------------------------------------------- errors and clients


async def test_a_workbench_still_makes_a_text_of_what_is_observed() -> None:
    raised: list[Exception] = []
    workbench = StaticWorkbench([FunctionTool(fail, description="Fails.")])
    before = workbench._format_errors
    _internals.observe_errors(workbench, raised.append)
    assert workbench._format_errors(OSError("disk full")) == before(OSError("disk full"))
    assert workbench._format_errors.__wrapped__ == before
    observed = workbench._format_errors
    _internals.observe_errors(workbench, raised.append)
    assert workbench._format_errors is observed
    other = SimpleNamespace()
    _internals.observe_errors(other, raised.append)
    assert vars(other) == {}


def inside(depth: int, innermost: Any) -> Any:
    for _ in range(depth):
        innermost = SimpleNamespace(client=innermost)
    return innermost


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        (SimpleNamespace(_create_args={"model": "a"}, model="b"), "a"),
        (SimpleNamespace(_create_args=None, model="b"), "b"),
        (SimpleNamespace(_create_args={"other": 1}, model="b"), "SimpleNamespace"),
        (SimpleNamespace(model=7), "SimpleNamespace"),
        (SimpleNamespace(model=""), "SimpleNamespace"),
        (SimpleNamespace(model="", client=SimpleNamespace(model="c")), "c"),
        (inside(7, SimpleNamespace(model="deep")), "deep"),
        (inside(8, SimpleNamespace(model="deeper")), "SimpleNamespace"),
        (None, "NoneType"),
    ],
)
def test_the_model_of_a_client_is_that_of_the_outermost_client_that_names_one(inner: Any, name: str) -> None:
    assert _internals.model_name(inner) == name


def test_the_openai_client_is_found_behind_other_clients_and_nothing_else_is_taken_for_one() -> None:
    own = client()
    assert _internals.openai_client(inside(7, own)) is own._client
    assert _internals.openai_client(inside(8, own)) is None
    assert _internals.openai_client(own._client) is own._client
    azure = openai.AsyncAzureOpenAI(api_key="k", azure_endpoint="http://localhost", api_version="1")
    assert type(azure).__module__ != "openai"
    assert _internals.openai_client(SimpleNamespace(_client=azure)) is azure
    requesting = SimpleNamespace(request=lambda: None)
    assert _internals.openai_client(requesting) is None
    assert _internals.openai_client(SimpleNamespace(_client=requesting)) is None
    assert _internals.openai_client(openai.OpenAIError()) is None


# ---------------------------------------------------------------------- context in threads

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def who() -> str:
    """Says who called."""
    return WHO.get()


async def awho() -> str:
    """Says who called."""
    return WHO.get()


class Marked:
    _is_coroutine = True

    async def __call__(self) -> str:
        return WHO.get()


async def run_inside(tool: Any, *, covered: bool = True) -> Any:
    """What ``tool`` returns inside of a judged call, where the caller is somebody."""
    governor = Governor()
    call = CoveredCall(governor, "who", {}, None) if covered else None
    token = WHO.set("somebody")
    try:
        with LiveSpan(governor, semconv.EXECUTE_TOOL).active(tool=call):
            return await tool.run_json({}, CancellationToken())
    finally:
        WHO.reset(token)


def function_tool(function: Any) -> FunctionTool:
    return FunctionTool(function, description="Says who called.", name="who")


async def test_the_thread_of_a_function_has_the_context_of_its_judged_call() -> None:
    tool = function_tool(who)
    assert await run_inside(tool) == "nobody", "this is what AutoGen does"
    _internals.carry_context(tool)
    assert await run_inside(tool) == "somebody"
    assert await run_inside(tool, covered=False) == "nobody"
    assert tool._func is who, "the tool may be running for others at the same time"
    carried = tool.run
    _internals.carry_context(tool)
    assert tool.run == carried


async def test_a_coroutine_has_its_context_without_any_help() -> None:
    tool = function_tool(awho)
    _internals.carry_context(tool)
    assert await run_inside(tool) == "somebody"
    assert await run_inside(function_tool(awho)) == "somebody"


async def test_only_function_tools_are_changed() -> None:
    tool = Shouting()
    _internals.carry_context(tool)
    assert "run" not in vars(tool)
    given: list[Any] = []

    async def run(self: Any, args: Any, cancellation_token: Any) -> str:
        given.append((self, args, cancellation_token))
        return "ran"

    wrapped = _internals.wrap_function_run(run)
    assert wrapped.__wrapped__ is run  # type: ignore[attr-defined]
    governor, marked = Governor(), SimpleNamespace(_func=Marked())
    with LiveSpan(governor, semconv.EXECUTE_TOOL).active(tool=CoveredCall(governor, "t", {}, None)):
        for owner in (SimpleNamespace(), marked):
            assert await wrapped(owner, "arguments", "token") == "ran"
        synchronous = SimpleNamespace(_func=who)
        assert await wrapped(synchronous, "arguments", "token") == "ran"
    assert given[0][1:] == given[2][1:] == ("arguments", "token")
    assert given[1][0] is marked
    assert given[2][0] is not synchronous
    assert given[2][0]._func() == "nobody"
