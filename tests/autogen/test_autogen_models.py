"""Model calls of AutoGen: what is said to the model, what it answers, and the hand-offs it proposes."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import PIL.Image
import pytest
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import HandoffMessage, ModelClientStreamingChunkEvent
from autogen_agentchat.teams import Swarm
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken, FunctionCall, Image
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)
from pydantic import BaseModel

from lgov_autogen import GovernedChatCompletionClient
from lgov_autogen.messages import as_mappings, with_messages
from lgov_core.errors import PolicyDenied
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, ModelCallFailed, Point
from tests.autogen.autogen_parts import WAYS, answer_of, as_tool, at, deny, playing, results_read, rewrite
from tests.cells import asks, says

BOTH = pytest.mark.parametrize("way", WAYS)
MODES = pytest.mark.parametrize("stream", [False, True], ids=["async", "streaming"])
FINE = at(Point.AGENT_STARTUP, lambda action: None)


def shout(word: str) -> str:
    """Says a word loudly."""
    return word.upper()


def no_handoff(action: Action) -> Decision | None:
    return deny("nobody is handed over") if action.kind == "handoff" else None


def sent(server: Any) -> list[list[Mapping[str, Any]]]:
    return [request.body["messages"] for request in server.requests]


# ---------------------------------------------------------------------- text


@BOTH
@MODES
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(Point.INPUT, marks=pytest.mark.surface("autogen", "input", "block")),
        pytest.param(Point.PRE_MODEL_CALL, marks=pytest.mark.surface("autogen", "pre_model_call", "block")),
    ],
)
async def test_a_denied_question_never_reaches_the_model(way: str, stream: bool, point: Point) -> None:
    def judge(action: Action) -> Decision | None:
        text = action.text or json.dumps(action.arguments.get("messages"))
        return deny("not that") if "bomb" in text else None

    with playing(way, at(point, judge), says("fine")) as (parts, seen, server):
        client = parts.client()
        agent = parts.agent("clerk", stream=stream)
        assert "DENIED by policy test/no: not that" in await answer_of(agent, "a bomb", stream=stream)
        assert server.requests == []
        await client.create([UserMessage(content="x", source="user")])
    refused = [span for span in seen.spans if span.attributes.get(semconv.ERROR_TYPE) == "denied"]
    assert len(refused) == 1


@BOTH
@MODES
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(Point.POST_MODEL_CALL, marks=pytest.mark.surface("autogen", "post_model_call", "block")),
        pytest.param(Point.OUTPUT, marks=pytest.mark.surface("autogen", "output", "block")),
    ],
)
async def test_a_denied_answer_is_not_seen_not_even_in_pieces(way: str, stream: bool, point: Point) -> None:
    """A streamed reply is held until it is judged."""

    def judge(action: Action) -> Decision | None:
        return deny("a secret") if "sesame" in (action.text or "") else None

    with playing(way, at(point, judge), says("the word is sesame")) as (parts, _seen, _server):
        agent = parts.agent("clerk", stream=stream)
        if stream:
            events = [event async for event in agent.run_stream(task="the word?")]
        else:
            events = list((await agent.run(task="the word?")).messages)
    assert "sesame" not in str(events)
    assert "DENIED by policy test/no: a secret" in str(events)


@BOTH
@MODES
@pytest.mark.surface("autogen", "output", "transform")
async def test_a_rewritten_answer_is_rewritten_in_every_piece(way: str, stream: bool) -> None:
    def judge(action: Action) -> Decision | None:
        return rewrite(text=str(action.text).replace("sesame", "****")) if "sesame" in (action.text or "") else None

    with playing(way, at(Point.OUTPUT, judge), says("the pin is sesame")) as (parts, _seen, _server):
        agent = parts.agent("clerk", stream=stream)
        events = [event async for event in agent.run_stream(task="the pin?")]
    assert "sesame" not in str(events)
    assert events[-1].messages[-1].to_text() == "the pin is ****"
    if stream:
        chunks = [event.content for event in events if isinstance(event, ModelClientStreamingChunkEvent)]
        assert "".join(chunks) == "the pin is ****"


@BOTH
async def test_an_allowed_stream_keeps_its_pieces(way: str) -> None:
    with playing(way, FINE, says("one two three")) as (parts, _seen, server):
        got = [item async for item in parts.client().create_stream([UserMessage(content="count", source="user")])]
    chunks = [item for item in got if isinstance(item, str)]
    assert len(chunks) > 1
    assert "".join(chunks) == "one two three"
    assert isinstance(got[-1], CreateResult)
    assert server.requests[0].body["stream"] is True


@BOTH
@MODES
@pytest.mark.surface("autogen", "input", "observe", "transform")
async def test_rewritten_user_text_stays_rewritten_for_the_whole_conversation(way: str, stream: bool) -> None:
    def judge(action: Action) -> Decision | None:
        return rewrite(text=str(action.text).replace("1234", "****")) if "1234" in (action.text or "") else None

    replies = [asks(("c1", "shout", {"word": "x"})), says("done"), says("again")]
    with playing(way, at(Point.INPUT, judge), *replies) as (parts, seen, server):
        agent = parts.agent("clerk", [shout], stream=stream)
        await answer_of(agent, "my pin is 1234", stream=stream)
        await answer_of(agent, "and?", stream=stream)
    assert "1234" not in json.dumps(sent(server))
    assert "my pin is ****" in json.dumps(sent(server)[2])
    assert len(seen.decisions(Point.INPUT)) == 2, "each text once"


@BOTH
@pytest.mark.surface("autogen", "pre_model_call", "transform")
async def test_messages_rewritten_before_the_call_are_what_is_sent(way: str) -> None:
    def judge(action: Action) -> Decision | None:
        said = list(action.arguments["messages"])
        if said[0]["content"] == "be safe":
            return None
        return rewrite(arguments={"messages": [{"role": "system", "content": "be safe"}, *said[1:]]})

    replies = [asks(("c1", "shout", {"word": "x"})), says("done")]
    with playing(way, at(Point.PRE_MODEL_CALL, judge), *replies) as (parts, _seen, server):
        await answer_of(parts.agent("clerk", [shout]), "go", stream=False)
    assert [[m["role"] for m in messages] for messages in sent(server)] == [
        ["system", "user"],
        ["system", "user", "assistant", "tool"],
    ]
    assert all(messages[0]["content"] == "be safe" for messages in sent(server))
    assert results_read(server) == {"c1": "X"}


def test_a_transform_of_messages_leaves_what_is_no_text() -> None:
    picture = Image(PIL.Image.new("RGB", (2, 2)))
    call = FunctionCall(id="c1", name="shout", arguments='{"word":"x"}')
    result = FunctionExecutionResult(content="X", name="shout", call_id="c1", is_error=True)
    originals: list[LLMMessage] = [
        UserMessage(content=["look, 1234", picture], source="user"),
        AssistantMessage(content=[call], thought="1234", source="clerk"),
        FunctionExecutionResultMessage(content=[result]),
    ]
    said = as_mappings(originals)
    masked = with_messages(originals, [{**one, "content": one["content"].replace("1234", "****")} for one in said])
    assert masked == [
        UserMessage(content=["look, ****", picture], source="user"),
        AssistantMessage(content=[call], thought="****", source="clerk"),
        originals[2],
    ]
    other_call = {**said[1], "tool_calls": [{"id": "c1", "name": "shout", "args": {"word": "*"}}]}
    changed: Any = with_messages(originals, [said[0], other_call, {**said[2], "content": "*"}])
    assert changed[0] is originals[0]
    assert changed[1].content[0].arguments == '{"word": "*"}'
    assert (changed[2].content[0].content, changed[2].content[0].is_error) == ("*", True)
    more = with_messages(originals, [{"role": "system", "content": "be safe"}, *said])
    assert [id(one) for one in more[1:]] == [id(one) for one in originals]
    fewer: Any = with_messages(
        [originals[0], UserMessage(content="well?", source="user")], [{**said[0], "content": "so?"}]
    )
    assert [one.content for one in fewer] == ["so?"], "the picture of a message that is gone does not stay"
    alike: list[LLMMessage] = [
        UserMessage(content=["look", Image(PIL.Image.new("RGB", (size, size)))], source="user") for size in (1, 2)
    ]
    asked = UserMessage(content="well?", source="user")
    kept = with_messages([alike[0], asked, alike[1]], as_mappings(alike))
    assert [id(one) for one in kept] == [id(one) for one in alike], "each with its own picture"
    results = FunctionExecutionResultMessage(content=[result, result.model_copy(update={"call_id": "c2"})])
    first, _ = as_mappings([results])
    other: Any = with_messages([results], [first, {"role": "user", "content": "no"}])
    assert [type(one).__name__ for one in other] == ["FunctionExecutionResultMessage", "UserMessage"]


@BOTH
async def test_a_denial_does_not_pose_as_a_structured_answer(way: str) -> None:
    class Answer(BaseModel):
        number: int

    def judge(action: Action) -> Decision | None:
        return deny("no numbers") if "42" in (action.text or "") else None

    with playing(way, at(Point.OUTPUT, judge), says('{"number": 42}'), says('{"number": 7}')) as (
        parts,
        _seen,
        _server,
    ):
        client = parts.client()
        with pytest.raises(PolicyDenied, match="no numbers"):
            await client.create([UserMessage(content="?", source="user")], json_output=Answer)
        reply = await client.create([UserMessage(content="?", source="user")], json_output=Answer)
        assert Answer.model_validate_json(str(reply.content)).number == 7


@BOTH
@pytest.mark.parametrize("point", [Point.INPUT, Point.PRE_MODEL_CALL, Point.POST_MODEL_CALL, Point.OUTPUT])
async def test_abort_around_a_model_call_ends_the_run(way: str, point: Point) -> None:
    with playing(way, at(point, lambda action: deny("stop", abort=True)), says("x")) as (parts, seen, server):
        with pytest.raises(PolicyDenied, match="stop"):
            await parts.agent("clerk").run(task="go")
        if not server.requests:
            await parts.bare_client()._client.chat.completions.create(model="x", messages=[])
    assert all(span.ended_at is not None for span in seen.spans)


@BOTH
@MODES
async def test_what_another_agent_asked_is_not_the_users(way: str, stream: bool) -> None:
    replies = [asks(("c1", "inner", {"task": "please"})), says("inner done"), says("done")]
    with playing(way, FINE, *replies) as (parts, seen, _server):
        inner = AgentTool(parts.agent("inner", stream=stream))
        await answer_of(parts.agent("boss", [inner], stream=stream), "go", stream=stream)
    said = {one.action.text: one.action.parent_id is None for one in seen.decisions(Point.INPUT)}
    assert said == {"go": True, "please": False}


# ---------------------------------------------------------------------- calls


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
    token = CancellationToken()

    def script(body: Mapping[str, Any]) -> ScriptedReply:
        token.cancel()
        return ScriptedReply("late", delay_s=30)

    with playing(way, FINE, script) as (parts, seen, _server), pytest.raises(asyncio.CancelledError):
        await parts.client().create([UserMessage(content="go", source="user")], cancellation_token=token)
    (span,) = seen.spans
    assert span.attributes[semconv.ERROR_TYPE] == "CancelledError"


# ---------------------------------------------------------------------- rollouts


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


# ---------------------------------------------------------------------- hand-offs


@BOTH
@MODES
async def test_an_allowed_handoff_happens_and_is_recorded_once(way: str, stream: bool) -> None:
    replies = [asks(("c1", "transfer_to_two", {})), says("two here")]
    with playing(way, FINE, *replies) as (parts, seen, _server):
        team = Swarm(
            [parts.agent("one", stream=stream, handoffs=["two"]), parts.agent("two", stream=stream)],
            termination_condition=MaxMessageTermination(3),
        )
        assert await answer_of(team, "go", stream=stream) == "two here"
    assert [(one.action.name, one.action.kind, one.status) for one in seen.outcomes] == [
        ("transfer_to_two", "handoff", "ok")
    ]
    assert len(seen.decisions()) == 1


@BOTH
@MODES
async def test_a_denied_handoff_beside_a_tool_leaves_the_tool(way: str, stream: bool) -> None:
    """The agent sees only the tool; the model's next prompt has both of its calls, and the denial."""
    replies = [asks(("c1", "transfer_to_two", {}), ("c2", "shout", {"word": "hi"})), says("stayed"), says("more")]
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), *replies) as (parts, seen, server):
        agent = parts.agent("one", [shout], stream=stream, handoffs=["two"])
        assert await answer_of(agent, "go", stream=stream) == "stayed"
        assert await answer_of(agent, "go on", stream=stream) == "more"
    assert {one.action.call_id: one.status for one in seen.outcomes} == {"c1": "denied", "c2": "ok"}
    first, second, third = sent(server)
    assert [call["id"] for call in second[len(first)]["tool_calls"]] == ["c1", "c2"]
    assert results_read(server, 1)["c2"] == "HI"
    assert "DENIED by policy test/no: nobody is handed over" in results_read(server, 1)["c1"]
    assert second[: len(first)] == first
    assert third[: len(second)] == second, "the conversation only grows"


@BOTH
@MODES
async def test_the_model_finds_its_denied_handoff_in_every_later_prompt(way: str, stream: bool) -> None:
    """Otherwise it would try again, and its calls would not be prefixes of one another for training."""
    replies = [
        asks(("c1", "transfer_to_two", {})),
        asks(("c2", "shout", {"word": "hi"})),
        asks(("c3", "transfer_to_two", {})),
        says("stayed"),
        says("more"),
    ]
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), *replies) as (parts, _seen, server):
        agent = parts.agent("one", [shout], stream=stream, handoffs=["two"])
        assert await answer_of(agent, "go", stream=stream) == "stayed"
        assert await answer_of(agent, "go on", stream=stream) == "more"
    prompts = sent(server)
    for shorter, longer in itertools.pairwise(prompts):
        assert longer[: len(shorter)] == shorter, "the conversation only grows"
    assert {call_id: "DENIED" in text for call_id, text in results_read(server).items()} == {
        "c1": True,
        "c2": False,
        "c3": True,
    }


@BOTH
async def test_a_handoff_with_broken_arguments_is_judged_all_the_same(way: str) -> None:
    """AutoGen hands off by the name alone, whatever the arguments are."""
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), asks(("c1", "transfer_to_two", "{broken")), says("no")) as (
        parts,
        seen,
        _server,
    ):
        result = await parts.agent("one", handoffs=["two"]).run(task="go")
    assert not any(isinstance(message, HandoffMessage) for message in result.messages)
    (one,) = seen.decisions()
    assert (one.action.kind, one.action.arguments) == ("handoff", {"arguments": "{broken"})


@BOTH
@MODES
async def test_a_model_that_only_proposes_what_is_denied_gets_the_last_word_taken(way: str, stream: bool) -> None:
    replies = [asks((f"c{number}", "transfer_to_two", {})) for number in range(3)]
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), *replies) as (parts, seen, server):
        agent = parts.agent("one", stream=stream, handoffs=["two"])
        assert "DENIED by policy test/no" in await answer_of(agent, "go", stream=stream)
        assert len(server.requests) == 3
    assert [one.status for one in seen.outcomes] == ["denied"] * 3


@BOTH
async def test_hidden_calls_count_in_the_usage(way: str) -> None:
    replies = [asks(("c1", "transfer_to_two", {})), says("no")]
    with playing(way, at(Point.PRE_TOOL_CALL, no_handoff), *replies) as (parts, seen, _server):
        result = await parts.agent("one", handoffs=["two"]).run(task="go")
    usage = result.messages[-1].models_usage
    assert usage is not None
    told = [one.action.arguments["usage"]["output_tokens"] for one in seen.decisions(Point.POST_MODEL_CALL)]
    assert len(told) == 2
    assert usage.completion_tokens == sum(told)


@BOTH
async def test_a_denied_handoff_with_abort_ends_the_run(way: str) -> None:
    stop = at(Point.PRE_TOOL_CALL, lambda action: deny("stop", abort=True))
    with playing(way, stop, asks(("c1", "transfer_to_two", {}))) as (parts, _seen, _server):
        agent = parts.agent("one", handoffs=["two"])
        with pytest.raises(PolicyDenied, match="stop"):
            await agent.run(task="go")


@BOTH
async def test_a_handoff_of_an_own_kind_is_known(way: str) -> None:
    """A subclass of Handoff may bring another tool; in an instrumented process the assistant tells."""
    from autogen_agentchat.base import Handoff
    from autogen_core.tools import FunctionTool

    class Quiet(Handoff):
        @property
        def handoff_tool(self) -> Any:
            def leave() -> str:
                return "bye"

            return FunctionTool(leave, name=self.name, description="Leaves.", strict=True)

    replies = [asks(("c1", "transfer_to_two", {})), says("stayed")]
    with playing(way, at(Point.PRE_TOOL_CALL, lambda action: deny("no")), *replies) as (parts, seen, _server):
        result = await parts.agent("one", handoffs=[Quiet(target="two")]).run(task="go")
    assert not any(isinstance(message, HandoffMessage) for message in result.messages)
    (one,) = seen.decisions()
    assert one.action.kind == ("handoff" if parts.instrumented else "function")


# ---------------------------------------------------------------------- the client alone


@MODES
async def test_the_client_alone_governs_what_nothing_else_does(stream: bool) -> None:
    """Plain tools without a governed workbench: judged when proposed, their outcome read from the next prompt."""
    replies = [asks(("c1", "shout", {"word": "no"}), ("c2", "shout", {"word": "hi"})), says("done")]

    def judge(action: Action) -> Decision | None:
        return deny("no") if action.arguments["word"] == "no" else None

    with playing("explicit", at(Point.PRE_TOOL_CALL, judge), *replies) as (parts, seen, server):
        client = parts.client("clerk")
        agent: Any = _agent_of_tools("clerk", client, [shout], stream)
        assert await answer_of(agent, "go", stream=stream) == "done"
        read = results_read(server)
    assert read["c2"] == "HI"
    assert "DENIED" in read["c1"]
    assert {one.action.call_id: (one.status, one.result) for one in seen.outcomes} == {
        "c1": ("denied", None),
        "c2": ("ok", "HI"),
    }
    tools = [span for span in seen.spans if span.attributes[semconv.OPERATION] == semconv.EXECUTE_TOOL]
    assert {span.attributes[semconv.TOOL_STATUS] for span in tools} == {"denied", "ok"}
    assert {one.action.span_id for one in seen.decisions()} == {span.span_id for span in tools}


async def test_results_of_other_conversations_settle_nothing() -> None:
    """Ids of calls repeat between conversations: a result belongs to the very call of its own one."""
    replies = [asks(("c1", "shout", {"word": "hi"})), asks(("c1", "shout", {"word": "ho"})), says("a"), says("b")]
    with playing("explicit", FINE, *replies) as (parts, seen, _server):
        client, tool = parts.client(), as_tool(shout)

        def loop(task: str) -> list[Any]:
            return [UserMessage(content=task, source="user")]

        async def ask(messages: list[Any]) -> None:
            reply = await client.create(messages, tools=[tool])
            messages.append(AssistantMessage(content=reply.content, source="loop"))

        def answer(messages: list[Any], text: str) -> None:
            one = FunctionExecutionResult(content=text, name="shout", call_id="c1", is_error=False)
            messages.append(FunctionExecutionResultMessage(content=[one]))

        first, second = loop("one"), loop("two")
        await ask(first)
        await ask(second)
        answer(second, "HO")
        await ask(second)
        answer(first, "HI")
        await ask(first)
    assert [(one.action.arguments["word"], one.result) for one in seen.outcomes] == [("ho", "HO"), ("hi", "HI")]


async def test_the_client_alone_can_rewrite_arguments_and_end_a_run() -> None:
    def judge(action: Action) -> Decision | None:
        if action.arguments["word"] == "stop":
            return deny("stop", abort=True)
        return rewrite(arguments={"word": "two"}) if action.arguments["word"] == "one" else None

    replies = [asks(("c1", "shout", {"word": "one"})), asks(("c2", "shout", {"word": "stop"}))]
    with playing("explicit", at(Point.PRE_TOOL_CALL, judge), *replies) as (parts, _seen, _server):
        client, tool = parts.client(), as_tool(shout)
        reply = await client.create([UserMessage(content="go", source="user")], tools=[tool])
        assert isinstance(reply.content, list)
        assert [json.loads(call.arguments) for call in reply.content] == [{"word": "two"}]
        with pytest.raises(PolicyDenied, match="stop"):
            await client.create([UserMessage(content="go", source="user")], tools=[tool])


def _agent_of_tools(name: str, client: Any, tools: Sequence[Any], stream: bool) -> Any:
    from autogen_agentchat.agents import AssistantAgent

    return AssistantAgent(name, client, tools=list(tools), model_client_stream=stream, max_tool_iterations=3)
