"""The arguments of a call as an AutoGen tool validates them: of which call, of which kind, and when they are handed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core import CancellationToken
from autogen_core.tools import BaseTool, StaticWorkbench
from autogen_ext.models.replay import ReplayChatCompletionClient
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lgov_autogen._internals import ValidatedType
from lgov_autogen.messages import RAW_ARGUMENTS
from lgov_autogen.tool_models import ToolModel, as_arguments, kind_of, running_model
from lgov_core.governor import Governor
from lgov_core.instrumentation.live_span import CoveredCall, LiveSpan
from lgov_core.trace import semconv


class Words(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    word: str = Field("hi", alias="said")
    times: int = 1


class Shouting(BaseTool[Words, str]):
    def __init__(self) -> None:
        super().__init__(Words, str, "shout", "Says a word loudly.")

    async def run(self, args: Words, cancellation_token: CancellationToken) -> str:
        return args.word.upper() * args.times


class Remote(Shouting):
    """As the tools of an MCP server, by the module of its class."""


Remote.__module__ = "autogen_ext.tools.mcp._base"


class Server(StaticWorkbench):
    """As the workbench of an MCP server, by the module of its class."""


Server.__module__ = "autogen_ext.tools.mcp._workbench"


class SubclassOfRemote(Remote):
    __module__ = "program"


def model_of(tool: Any, arguments: Any) -> ToolModel:
    model = ToolModel.of(tool, type(tool).run_json, arguments)
    assert model is not None
    return model


@contextmanager
def running(model: Any) -> Iterator[None]:
    """The inside of the judged call whose arguments are ``model``."""
    governor = Governor()
    call = CoveredCall(governor, "shout", {}, None, validated=model)
    with LiveSpan(governor, semconv.EXECUTE_TOOL).active(tool=call):
        yield


def test_the_kind_of_a_call_is_that_of_the_first_owner_that_tells_it() -> None:
    agent = AssistantAgent("a", ReplayChatCompletionClient([]), description="An agent.")
    team = RoundRobinGroupChat([agent], name="team", description="A team.")
    server = Server([])
    agent_tool, team_tool = AgentTool(agent), TeamTool(team, "t", "A team.")
    assert [kind_of(tool) for tool in (agent_tool, team_tool)] == ["agent", "agent"]
    assert [kind_of(tool) for tool in (server, Remote(), SubclassOfRemote())] == ["mcp"] * 3
    assert kind_of(None, server) == "mcp"
    assert kind_of(Shouting(), object()) == kind_of() == "function"
    assert kind_of(agent_tool, server) == "agent"
    assert kind_of(server, agent_tool) == "mcp"


def test_policies_see_a_mapping_whatever_the_arguments_are() -> None:
    given = {"word": "a"}
    seen = as_arguments(given)
    assert seen == given
    assert seen is not given
    assert as_arguments(None) == {}
    assert as_arguments([1]) == {RAW_ARGUMENTS: [1]}
    assert as_arguments("") == {RAW_ARGUMENTS: ""}


def test_the_arguments_are_those_that_the_tools_model_yields() -> None:
    model = model_of(Shouting(), {"said": "a", "times": "2"})
    assert model.arguments == {"word": "a", "times": 2}
    assert model.raw == {"said": "a", "times": "2"}
    assert (model.problem, model.error, model.is_due) == (None, None, False)
    assert model.schema is Words
    assert model.take() == Words(word="a", times=2)


def test_what_a_policy_changed_is_validated_by_the_names_of_fields() -> None:
    model = model_of(Shouting(), {"said": "a"})
    assert model.settle({"word": "b", "times": 3}) == {"word": "b", "times": 3}
    assert model.take() == Words(word="b", times=3)


def test_what_is_done_to_the_frameworks_arguments_later_does_not_reach_the_tool() -> None:
    class Nested(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        words: Any

    class Listing(BaseTool[Nested, str]):
        def __init__(self) -> None:
            super().__init__(Nested, str, "list", "Lists words.")

        async def run(self, args: Nested, cancellation_token: CancellationToken) -> str:
            return ""

    words = ["judged"]
    model = model_of(Listing(), {"words": words})
    words.append("not judged")
    assert model.take() == Nested(words=["judged"])


def test_an_mcp_server_is_sent_only_what_is_set() -> None:
    assert model_of(Remote(), {"said": "a"}).arguments == {"word": "a"}
    assert model_of(Shouting(), {"said": "a"}).arguments == {"word": "a", "times": 1}


def test_arguments_that_are_no_mapping_reach_the_model_as_they_are() -> None:
    model = model_of(Shouting(), [1])
    assert isinstance(model.error, ValidationError)
    assert model.error.errors()[0]["input"] == [1]
    assert model.arguments == {RAW_ARGUMENTS: [1]}
    own = Words(word="a")
    assert model_of(Shouting(), own).take() is own


def test_a_tool_that_validates_in_its_own_way_has_no_model() -> None:
    class Own(Shouting):
        async def run_json(
            self, args: Mapping[str, Any], cancellation_token: CancellationToken, call_id: str | None = None
        ) -> Any:
            return None

    assert ToolModel.of(Own(), Own.run_json, {}) is None
    assert ToolModel.of(None, BaseTool.run_json, {}) is None


def test_the_arguments_of_the_running_call_are_found_by_its_tool_and_its_arguments() -> None:
    tool, other, text = Shouting(), Shouting(), "no mapping"
    model, raw = model_of(tool, {"said": "a"}), model_of(tool, text)
    assert running_model(tool) is None
    with running(model):
        assert running_model(tool) is model
        assert running_model(other) is None
        assert model_of(tool, {"said": "a"}) is model
        assert model_of(tool, {"said": "b"}) is not model
        assert model_of(other, {"said": "a"}) is not model
    with running(raw):
        assert model_of(tool, text) is raw
        assert model_of(tool, ["no mapping"]) is not raw
    for validated in (None, "another adapter's"):
        with running(validated):
            assert running_model(tool) is None


async def test_a_tool_validates_with_what_is_judged_once_and_only_when_that_is_due() -> None:
    tool = Shouting()
    model = model_of(tool, {"said": "a"})
    assert tool._args_type is Words
    with running(model):
        assert tool._args_type is Words, "it is not due yet"
        model.is_due = True
        assert isinstance(tool._args_type, ValidatedType)
        assert tool._args_type.model_fields is Words.model_fields
        assert Shouting()._args_type is Words
        assert await tool.run_json({"said": "not judged"}, CancellationToken()) == "A"
        assert model.is_due is False
        assert await tool.run_json({"said": "b"}, CancellationToken()) == "B", "its function may validate other things"


async def test_a_tool_raises_what_its_model_raised() -> None:
    tool = Shouting()
    model = model_of(tool, {"times": "many"})
    model.is_due = True
    with running(model), pytest.raises(ValidationError) as raised:
        await tool.run_json({"said": "fits"}, CancellationToken())
    assert raised.value is model.error
