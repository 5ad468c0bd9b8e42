"""Model calls of AutoGen: retries, usage, cancelling, and rollouts at the same time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.models import (
    CreateResult,
    UserMessage,
)

from lgov_autogen import GovernedChatCompletionClient
from lgov_core.policies import load_policies
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import ModelCallFailed, Point
from tests.autogen.autogen_parts import WAYS, answer_of, at, playing
from tests.cells import asks, says

BOTH = pytest.mark.parametrize("way", WAYS)


MODES = pytest.mark.parametrize("stream", [False, True], ids=["async", "streaming"])


FINE = at(Point.AGENT_STARTUP, lambda action: None)


@BOTH
@MODES
async def test_retries_are_one_call_and_failures_are_told(way: str, stream: bool) -> None:
    busy = ScriptedReply("busy", status=503, headers={"retry-after-ms": "1", "connection": "close"})
    with playing(way, FINE, busy, says("done"), busy) as (parts, seen, server):
        client = parts.bare_client()
        client._client.max_retries = 1
        governed = client if parts.instrumented else GovernedChatCompletionClient(client, parts.governor)
        messages = [UserMessage(content="go", source="user")]
        if stream:
            reply = [item async for item in governed.create_stream(messages)][-1]
        else:
            reply = await governed.create(messages)
        assert isinstance(reply, CreateResult)
        assert reply.content == "done"
        assert len(server.requests) == 2
        assert len(seen.decisions(Point.PRE_MODEL_CALL)) == 1
        client._client.max_retries = 0
        with pytest.raises(Exception, match="busy"):
            await governed.create(messages)
    failures = [event for event in seen.events if isinstance(event, ModelCallFailed)]
    assert [(one.error_type, one.refused) for one in failures] == [("InternalServerError", True)]
    first, second = [span for span in seen.spans if span.attributes[semconv.OPERATION] == semconv.CHAT]
    assert str(first.attributes[semconv.RESPONSE_ID]).startswith("chatcmpl")
    assert second.attributes[semconv.ERROR_TYPE] == "InternalServerError"


@BOTH
async def test_usage_is_kept_and_known_to_policies(way: str) -> None:
    with playing(way, FINE, says("one two")) as (parts, seen, _server):
        client = parts.client()
        reply = await client.create([UserMessage(content="go", source="user")])
        assert reply.usage.completion_tokens > 0
        assert client.total_usage().completion_tokens == reply.usage.completion_tokens
    (seen_reply,) = seen.decisions(Point.POST_MODEL_CALL)
    assert seen_reply.action.arguments["usage"]["output_tokens"] == reply.usage.completion_tokens
    assert seen_reply.action.name == "scripted"
    (span,) = seen.spans
    assert span.attributes[semconv.OUTPUT_TOKENS] == reply.usage.completion_tokens
    assert span.attributes[semconv.RESPONSE_ID] == seen_reply.action.call_id


async def test_a_client_inside_a_client_is_one_call() -> None:
    from autogen_ext.models.cache import ChatCompletionCache

    with playing("instrumented", FINE, says("done")) as (parts, seen, server):
        client = ChatCompletionCache(parts.bare_client())
        messages = [UserMessage(content="go", source="user")]
        assert [(await client.create(messages)).cached for _ in range(2)] == [False, True]
        assert len(server.requests) == 1
    assert len(seen.decisions(Point.PRE_MODEL_CALL)) == 2, "two calls, one of them answered from the cache"
    assert [bool(span.attributes.get(semconv.RESPONSE_ID)) for span in seen.spans] == [True, False]


@BOTH
async def test_a_cancelled_model_call_ends_its_span(way: str) -> None:
    token, loop = CancellationToken(), asyncio.get_running_loop()

    def script(body: Mapping[str, Any]) -> ScriptedReply:
        loop.call_soon_threadsafe(token.cancel)  # the script runs in the server's thread
        return ScriptedReply("late", delay_s=1)

    with playing(way, FINE, script) as (parts, seen, _server), pytest.raises(asyncio.CancelledError):
        await parts.client().create([UserMessage(content="go", source="user")], cancellation_token=token)
    (span,) = seen.spans
    assert span.attributes[semconv.ERROR_TYPE] == "CancelledError"


@BOTH
async def test_one_agent_in_two_rollouts_at_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each action, span, outcome and request is of the rollout whose task it ran in."""
    meet = asyncio.Barrier(2)

    async def gather(word: str) -> str:
        """Waits for the other one."""
        await meet.wait()
        return word

    def script(body: Mapping[str, Any]) -> ScriptedReply:
        said = [m for m in body["messages"] if m["role"] == "tool"]
        return says("done") if said else asks((f"c-{len(body['messages'])}", "gather", {"word": "x"}))

    with playing(way, FINE, script) as (parts, seen, server):
        monkeypatch.setenv("LGOV_ENDPOINT", server.base_url.removesuffix("/v1"))
        tools, client = parts.workbench([gather]), parts.client()

        async def rollout(name: str) -> str:
            agent: Any = _agent("clerk", client, tools)
            with enter_scope(RolloutScope(name)):
                return await answer_of(agent, f"go {name}", stream=False)

        assert await asyncio.gather(rollout("r1"), rollout("r2")) == ["done", "done"]
        for request in server.requests:
            mine = "r1" if "go r1" in json.dumps(request.body) else "r2"
            assert request.headers["x-lgov-rollout-id"] == mine
            assert request.headers.get("x-lgov-agent") == ("clerk" if parts.instrumented else None)
    for name in ("r1", "r2"):
        actions = [one.action for point in Point for one in seen.decisions(point) if one.action.rollout_id == name]
        assert {action.point for action in actions if action.point is not Point.INPUT} >= {
            Point.PRE_TOOL_CALL,
            Point.OUTPUT,
        }
        assert [one.action.text for one in seen.decisions(Point.INPUT) if one.action.rollout_id == name] == [
            f"go {name}"
        ]
        ids = {span.span_id for span in seen.spans if span.rollout_id == name}
        assert all(span.parent_id is None or span.parent_id in ids for span in seen.spans if span.rollout_id == name)
        assert [one.status for one in seen.outcomes if one.action.rollout_id == name] == ["ok"]
    assert {span.rollout_id for span in seen.spans} == {"r1", "r2"}


async def test_the_very_same_agent_object_in_two_rollouts_at_once() -> None:
    """AutoGen lets both runs share one conversation; lgov still keeps the rollouts apart."""
    meet = asyncio.Barrier(2)

    async def gather(word: str) -> str:
        """Waits for the other one."""
        await meet.wait()
        return word

    asked = 0

    def script(body: Mapping[str, Any]) -> ScriptedReply:
        nonlocal asked
        asked += 1
        return asks((f"c{asked}", "gather", {"word": str(asked)})) if asked <= 2 else says("done")

    with playing("instrumented", FINE, script) as (parts, seen, _server):
        agent = parts.agent("clerk", [gather])

        async def rollout(name: str) -> None:
            with enter_scope(RolloutScope(name)):
                await agent.run(task=f"go {name}")

        await asyncio.gather(rollout("r1"), rollout("r2"))
    runs = [span for span in seen.spans if span.attributes[semconv.OPERATION] == semconv.INVOKE_AGENT]
    assert sorted(str(span.rollout_id) for span in runs) == ["r1", "r2"]
    rollout_of = {span.span_id: span.rollout_id for span in seen.spans}
    assert all(rollout_of[span.parent_id] == span.rollout_id for span in seen.spans if span.parent_id)
    assert sorted(str(one.action.rollout_id) for one in seen.outcomes) == ["r1", "r2"]


def _agent(name: str, client: Any, workbench: Any) -> Any:
    from autogen_agentchat.agents import AssistantAgent

    return AssistantAgent(name, client, workbench=workbench, max_tool_iterations=3)


@BOTH
@MODES
@pytest.mark.parametrize("ids", [("c1", "c1"), ("c1", "")])
async def test_calls_without_clear_ids_get_them(way: str, stream: bool, ids: tuple[str, str]) -> None:
    doubled = asks(*((call_id, "shout", {"word": str(at)}) for at, call_id in enumerate(ids)))
    with playing(way, FINE, doubled) as (parts, seen, _server):
        client, messages = parts.client(), [UserMessage(content="go", source="user")]
        reply: Any = (
            [item async for item in client.create_stream(messages)][-1] if stream else await client.create(messages)
        )
    (read,) = seen.decisions(Point.POST_MODEL_CALL)
    assert [call.id for call in reply.content] == [call["id"] for call in read.action.arguments["tool_calls"]]
    assert reply.content[0].id == "c1"
    assert reply.content[1].id not in ("", "c1")


@pytest.mark.parametrize("reads", [False, True], ids=["tools only", "reads text"])
async def test_text_passes_as_it_arrives_unless_a_rule_reads_it(reads: bool) -> None:
    gate = threading.Event()
    tools = {"name": "tools", "use": "tool", "with": {"allow": ["look"]}}
    secrets = {"name": "secrets", "use": "secrets"}
    policies = load_policies({"version": 1, "rules": [tools, *([secrets] if reads else [])]})
    with playing("explicit", policies, ScriptedReply("one two three", gate=gate, gate_at=2)) as (parts, _, _):
        governed = GovernedChatCompletionClient(parts.bare_client(), parts.governor)
        timer = threading.Timer(0.5, gate.set)
        timer.start()
        pieces = governed.create_stream([UserMessage(content="go", source="user")])
        first = await anext(pieces)
        assert gate.is_set() == reads
        gate.set()
        rest = [piece async for piece in pieces]
        timer.cancel()
    assert first == "one"
    assert rest[-1].content == "one two three"
