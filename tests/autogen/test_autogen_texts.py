"""What users and models say in AutoGen: denied, rewritten, whole or streamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import PIL.Image
import pytest
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_agentchat.tools import AgentTool
from autogen_core import FunctionCall, Image
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    UserMessage,
)
from pydantic import BaseModel

from lgov_autogen.messages import as_mappings, with_messages
from lgov_core.errors import PolicyDenied
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from tests.autogen.autogen_parts import WAYS, answer_of, at, deny, playing, results_read, rewrite
from tests.cells import asks, says

BOTH = pytest.mark.parametrize("way", WAYS)


MODES = pytest.mark.parametrize("stream", [False, True], ids=["async", "streaming"])


FINE = at(Point.AGENT_STARTUP, lambda action: None)


def shout(word: str) -> str:
    """Says a word loudly."""
    return word.upper()


def sent(server: Any) -> list[list[Mapping[str, Any]]]:
    return [request.body["messages"] for request in server.requests]


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
@MODES
@pytest.mark.surface("autogen", "input", "observe", "transform")
async def test_rewritten_user_text_stays_rewritten(way: str, stream: bool) -> None:
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


@BOTH
async def test_policies_get_the_tools_that_the_model_gets(way: str) -> None:
    with playing(way, FINE, says("fine")) as (parts, seen, _server):
        await answer_of(parts.agent("clerk", [shout]), "go", stream=False)
    (asked,) = [one.action for one in seen.decisions(Point.PRE_MODEL_CALL)]
    (tool,) = asked.context["tools"]
    assert (tool["name"], tool["description"]) == ("shout", "Says a word loudly.")
    assert list(tool["parameters"]["properties"]) == ["word"]
