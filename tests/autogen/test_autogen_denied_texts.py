"""What users said and a policy denied does not come back with a later call of the conversation."""

from __future__ import annotations

import json

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import AssistantMessage, UserMessage

from lgov_core.types import Action, Decision, Point
from tests.autogen.autogen_parts import WAYS, answer_of, at, deny, playing
from tests.cells import says

BOTH = pytest.mark.parametrize("way", WAYS)


def no_secrets(action: Action) -> Decision | None:
    return deny("not that") if "secret" in (action.text or "") else None


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_a_denied_text_is_withheld_from_later_calls(way: str, stream: bool) -> None:
    with playing(way, at(Point.INPUT, no_secrets), says("fine")) as (parts, seen, server):
        agent = parts.agent("clerk", stream=stream)
        assert "not that" in await answer_of(agent, "my secret", stream=stream)
        assert await answer_of(agent, "go on", stream=stream) == "fine"
    (request,) = server.requests
    assert "secret" not in json.dumps(request.body)
    assert [one["role"] for one in request.body["messages"]] == ["system", "user", "assistant", "user"]
    assert len(seen.decisions(Point.INPUT)) == 2, "each text once"


@BOTH
async def test_so_it_is_in_a_team(way: str) -> None:
    with playing(way, at(Point.INPUT, no_secrets), says("one"), says("two")) as (parts, _seen, server):
        team = RoundRobinGroupChat([parts.agent("a"), parts.agent("b")], max_turns=2)
        await team.run(task="my secret")
        await team.run(task="go on")
    assert len(server.requests) == 2
    assert "secret" not in json.dumps([request.body for request in server.requests])


@BOTH
async def test_so_it_is_in_a_loop_made_by_hand(way: str) -> None:
    with playing(way, at(Point.INPUT, no_secrets), says("fine")) as (parts, _seen, server):
        client = parts.client()
        asked = UserMessage(content="my secret", source="user")
        denial = await client.create([asked])
        said = AssistantMessage(content=str(denial.content), source="clerk")
        await client.create([asked, said, UserMessage(content="go on", source="user")])
    assert asked.content == "my secret", "the program's own message is left alone"
    assert "secret" not in json.dumps(server.requests[0].body)
