"""What lgov uses of AutoGen's internals is there in the installed version."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff
from autogen_core.tools import FunctionTool, StaticWorkbench, ToolOverride
from autogen_ext.models.cache import ChatCompletionCache
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_autogen import _internals
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
