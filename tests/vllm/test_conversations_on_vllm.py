"""Conversations of real frameworks on a real vLLM: each prompt repeats the tokens before it, so they are one row each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import agents
import openai
import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from lgov_core.gateway.server import EndpointServer
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.train.engines.vllm_engine import VllmEngine
from lgov_core.transitions import build_transitions
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout
from tests.vllm.asked import Asked

HEADERS = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"}
QUESTIONS = ("Tell me of the sea.", "How deep is it at Rockall?", "Thank you.")


@dataclass
class Recorded:
    """An endpoint on vLLM, and what it recorded of one rollout."""

    url: str
    store: SQLiteStore

    def calls(self) -> Sequence[CapturedCall]:
        """The calls of the rollout, which ends."""
        self.store.finish_attempt("r1", 1, Outcome.SUCCEEDED, rewards=[Reward(1.0, rollout_id="r1", attempt=1)])
        return list(self.store.calls(["r1"]))


@pytest.fixture
def recorded(vllm: Asked, tmp_path: Path) -> Iterator[Recorded]:
    with contextlib.closing(SQLiteStore(tmp_path / "store.sqlite")) as store:
        store.add_rollouts([Rollout("r1", task_id="t", run_id="r", input={})])
        store.start_attempt("r1", 1)
        # The endpoint has a loop of its own, and so an engine of its own on the same policy.
        engine = VllmEngine(vllm.model, vllm.engine.policy, max_new_tokens=24)
        with EndpointServer([engine], store) as endpoint:
            yield Recorded(endpoint.base_url, store)


def depth(place: Literal["Rockall", "Faroe"]) -> str:
    """How deep the sea is there."""
    return "It is 42 metres deep."


def with_langchain(url: str) -> None:
    chat = ChatOpenAI(model="smollm2", base_url=url, api_key="k", default_headers=HEADERS, temperature=0, max_retries=0)
    known = tool(depth)
    history: list[Any] = []
    for turn, question in enumerate(QUESTIONS):
        history.append(HumanMessage(question))
        reply = chat.bind_tools([known], tool_choice="required" if turn == 1 else None).invoke(history)
        history += [reply, *(ToolMessage(known.invoke(one), tool_call_id=one["id"]) for one in reply.tool_calls)]
        if turn == 1:
            history.append(chat.bind_tools([known]).invoke(history))


def with_agents(url: str) -> None:
    async def talk() -> None:
        client = openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, default_headers=HEADERS)
        history: list[Any] = []
        for turn, question in enumerate(QUESTIONS):
            agent = agents.Agent(
                name="guide",
                model=agents.OpenAIChatCompletionsModel("smollm2", client),
                model_settings=agents.ModelSettings(temperature=0, tool_choice="required" if turn == 1 else None),
                tools=[agents.function_tool(depth)],
                tool_use_behavior="stop_on_first_tool",
            )
            asked = [*history, {"role": "user", "content": question}]
            config = agents.RunConfig(tracing_disabled=True)
            history = (await agents.Runner.run(agent, asked, run_config=config)).to_input_list()
        await client.close()

    asyncio.run(talk())


class Demanding(OpenAIChatCompletionClient):
    """AutoGen's client; it demands one call of a tool, which its agents have no setting for."""

    demanded = False

    async def create(self, *args: Any, **more: Any) -> Any:
        choice, self.demanded = "required" if self.demanded else "auto", False
        return await super().create(*args, **{**more, "tool_choice": choice})


def with_autogen(url: str) -> None:
    async def talk() -> None:
        info: Any = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown"}
        info["structured_output"] = False
        client = Demanding(
            model="smollm2",
            base_url=url,
            api_key="k",
            model_info=info,
            temperature=0,
            max_retries=0,
            default_headers=HEADERS,
        )
        agent = AssistantAgent("guide", client, tools=[depth], system_message=None, max_tool_iterations=2)
        for turn, question in enumerate(QUESTIONS):
            client.demanded = turn == 1
            await agent.run(task=question)
        await client.close()

    asyncio.run(talk())


@pytest.mark.parametrize("talk", [with_langchain, with_autogen, with_agents])
def test_a_conversation_is_one_row_without_drift(recorded: Recorded, talk: Callable[[str], None]) -> None:
    """With a demanded call in its middle, which is read and repeated exactly, and left out of training."""
    talk(recorded.url)
    calls = recorded.calls()
    assert len(calls) >= len(QUESTIONS)
    assert [call.finish_reason for call in calls if call.logprobs is None] == ["tool_calls"]
    for before, after in itertools.pairwise(calls):
        seen = (*(before.prompt_ids or ()), *(before.response_ids or ()))
        assert (after.prompt_ids or ())[: len(seen)] == seen
    data = build_transitions(recorded.store, ["r1"])
    found = data.counts()
    assert found.pop("no_logprobs") == 1
    assert not found.keys() - {"truncated_reply"}, "no drift, in particular"
    assert len(data.transitions) == len(calls) - 1
