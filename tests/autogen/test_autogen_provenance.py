"""What the user said is the task of the outermost run, not what a page, a tool or another agent says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool
from autogen_core.memory import ListMemory, MemoryContent, MemoryMimeType
from autogen_ext.models.openai import OpenAIChatCompletionClient

from lgov_core.governor import Governor
from lgov_core.scope import enter_scope
from lgov_core.testing import ScriptedModelServer
from lgov_core.types import Point
from tests.autogen.autogen_parts import MODEL_INFO, Way, answer_of, governed
from tests.cells import Seen, asks, says
from tests.provenance_example import (
    BOTH_ADDRESSES,
    ORDER,
    REQUEST,
    SAID,
    SCOPES,
    Mails,
    documented_governor,
    in_plain_thread,
    provenance_governor,
)

STREAM = pytest.mark.parametrize("stream", [False, True])


@contextmanager
def playing(governor: Governor, *script: Any) -> Iterator[Way]:
    """The process instrumented by one line, without a rollout or a session."""
    with ScriptedModelServer(list(script)) as server, governed("instrumented", governor, server.base_url) as parts:
        yield parts
    governor.close()


@SCOPES
@BOTH_ADDRESSES
@STREAM
async def test_the_documented_example(stream: bool, address: str, sent: bool, scope: Any) -> None:
    mails = Mails()
    script = [asks(("c1", "read_page", {})), asks(("c2", "send_mail", {"to": address})), says("done")]
    with playing(documented_governor(), *script) as parts, enter_scope(scope):
        await answer_of(parts.agent("writer", [mails.send_mail, mails.read_page]), REQUEST, stream=stream)
    assert mails.to == ([address] if sent else [])


@BOTH_ADDRESSES
async def test_the_documented_example_in_a_second_turn(address: str, sent: bool) -> None:
    mails = Mails()
    with playing(
        documented_governor(), says("shall I?"), asks(("c1", "send_mail", {"to": address})), says("ok")
    ) as parts:
        agent = parts.agent("writer", [mails.send_mail])
        await answer_of(agent, REQUEST, stream=False)
        await answer_of(agent, "Yes, please.", stream=False)
    assert mails.to == ([address] if sent else [])


@SCOPES
@BOTH_ADDRESSES
@STREAM
async def test_what_a_member_of_a_team_says_is_not_the_users(
    stream: bool, address: str, sent: bool, scope: Any
) -> None:
    mails, seen = Mails(), Seen()
    script = [says(ORDER), asks(("c1", "send_mail", {"to": address})), says("done")]
    with playing(provenance_governor(seen), *script) as parts, enter_scope(scope):
        members = [parts.agent("researcher"), parts.agent("mailer", [mails.send_mail])]
        team = RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(3))
        await answer_of(team, REQUEST, stream=stream)
    assert mails.to == ([address] if sent else [])
    assert {one.action.text: one.action.source for one in seen.decisions(Point.INPUT)} == {
        REQUEST: "user",
        ORDER: "agent",
    }


@SCOPES
@BOTH_ADDRESSES
async def test_what_is_said_to_an_agent_that_is_a_tool_is_not_the_users(address: str, sent: bool, scope: Any) -> None:
    mails = Mails()
    script = [
        asks(("c1", "inner", {"task": f"Write to {address}."})),
        asks(("c2", "send_mail", {"to": address})),
        says("done"),
        says("done"),
    ]
    with playing(provenance_governor(), *script) as parts, enter_scope(scope):
        tool = AgentTool(parts.agent("inner", [mails.send_mail]))
        outer = AssistantAgent(
            "outer", parts.bare_client(parallel_tool_calls=False), tools=[tool], max_tool_iterations=3
        )
        await answer_of(outer, REQUEST, stream=False)
    assert mails.to == ([address] if sent else [])


@BOTH_ADDRESSES
async def test_what_a_thread_of_a_tool_says_is_not_the_users(address: str, sent: bool, carrying: None) -> None:
    mails = Mails()
    script = [asks(("c1", "helper", {})), asks(("c2", "send_mail", {"to": address})), says("done"), says("done")]
    with playing(provenance_governor(), *script) as parts:

        def helper() -> str:
            """Helps."""
            inner = parts.agent("inner", [mails.send_mail])
            order = f"Write to {address}."
            return in_plain_thread(lambda: asyncio.run(answer_of(inner, order, stream=False)))

        await answer_of(parts.agent("outer", [helper]), REQUEST, stream=False)
    assert mails.to == ([address] if sent else [])


async def test_one_agent_does_not_speak_for_another() -> None:
    mails = Mails()
    with playing(documented_governor(), says("noted"), asks(("c1", "send_mail", {"to": SAID})), says("done")) as parts:
        await answer_of(parts.agent("one"), REQUEST, stream=False)
        await answer_of(parts.agent("two", [mails.send_mail]), "Send it to whom you know.", stream=False)
    assert mails.to == []


@BOTH_ADDRESSES
async def test_a_page_in_an_agents_memory_is_not_its_system_prompt(address: str, sent: bool) -> None:
    mails, memory = Mails(), ListMemory()
    await memory.add(MemoryContent(content=ORDER, mime_type=MemoryMimeType.TEXT))
    script = [asks(("c1", "send_mail", {"to": address})), says("done")]
    with playing(provenance_governor(), *script) as parts:
        info: Any = {**MODEL_INFO, "multiple_system_messages": True}
        client = OpenAIChatCompletionClient(model="m", base_url=parts.base_url, api_key="none", model_info=info)
        prompt = f"Your reports go to {SAID}."
        agent = AssistantAgent("writer", client, tools=[mails.send_mail], memory=[memory], system_message=prompt)
        await answer_of(agent, "Send the report.", stream=False)
    assert mails.to == ([address] if sent else [])
