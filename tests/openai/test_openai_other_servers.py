"""Servers that speak OpenAI's API in their own way: what their clients read is judged and reaches the program."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lgov_core.errors import PolicyDenied
from lgov_core.testing import ScriptedReply
from lgov_core.types import Action, Point
from tests.cells import says
from tests.openai.rules import Rule, served
from tests.random_replies import chat_reply, responses_reply

LOOK = {"type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}


def chunk(delta: Any, reason: str | None = None, **choice: Any) -> Any:
    choices = [{"index": 0, "delta": delta, "finish_reason": reason, **choice}]
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}


def stream(*chunks: Any, done: bool = True) -> ScriptedReply:
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + ("data: [DONE]\n\n" if done else "")
    return ScriptedReply(body=body.encode(), content_type="text/event-stream")


TEXT = chunk({"role": "assistant", "content": "hello"})
STREAMS = {
    "calls without index": stream(chunk({"tool_calls": [{**LOOK, "id": "x1"}]}), chunk({"tool_calls": [LOOK]}, "stop")),
    "calls at one index": stream(*(chunk({"tool_calls": [{**LOOK, "index": 0, "id": f"x{n}"}]}) for n in (1, 2))),
    "empty ids": stream(
        chunk({"tool_calls": [{**LOOK, "index": n, "id": ""} for n in (0, 1)]}), chunk({}, "tool_calls")
    ),
    "no finish_reason": stream(TEXT),
    "no end at all": stream(TEXT, done=False),
    "choices null": stream(TEXT, chunk({}, "stop"), {**TEXT, "choices": None}),
    "choice without index": stream(chunk({"content": "hello"}, index=None), chunk({}, "stop", index=None)),
}


def read(chunks: Any) -> tuple[str, list[tuple[str, str, str]]]:
    """The text and the calls of a stream, by the index of each call."""
    text, calls = "", dict[int, list[str]]()
    for each in chunks:
        for choice in each.choices or ():
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, ["", "", ""])
                written = [piece.id, piece.function.name, piece.function.arguments]
                calls[piece.index] = [before + (more or "") for before, more in zip(call, written, strict=True)]
    return text, [(call[0], call[1], call[2]) for _, call in sorted(calls.items())]


def allows(rule: Rule, action: Action) -> None:
    return None


@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_is_read_as_the_clients_of_its_server_read_it(kind: str) -> None:
    with served(Point.PRE_TOOL_CALL, allows, STREAMS[kind]) as one:
        text, calls = read(one.chat(stream=True))
    if b"tool_calls" in (STREAMS[kind].body or b""):
        judged = one.seen.decisions(Point.PRE_TOOL_CALL)
        assert [(each.action.call_id, each.action.name) for each in judged] == [call[:2] for call in calls]
        assert [call[2] for call in calls] == ['{"n": 1}'] * 2
        assert len({call[0] for call in calls} - {""}) == 2
    else:
        assert text == "hello"


def test_a_call_that_the_stream_cuts_off_is_refused() -> None:
    cut = {**LOOK, "index": 0, "id": "x1", "function": {"name": "look", "arguments": '{"n": '}}
    broken = stream(chunk({"tool_calls": [cut]}), done=False)
    with (
        served(Point.PRE_TOOL_CALL, allows, broken) as one,
        pytest.raises(PolicyDenied, match="not a complete reply"),
    ):
        list(one.chat(stream=True))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("ids", [("", ""), (None, None), (..., ...), ("c1", "c1")])
def test_calls_get_clear_ids_in_either_api(api: str, streamed: bool, ids: Any) -> None:
    calls = [{"id": call_id, "name": "look", "n": n, "form": "function"} for n, call_id in enumerate(ids)]
    body = chat_reply(calls, streamed) if api == "chat" else responses_reply(calls, [], streamed)
    kind = "text/event-stream" if streamed else "application/json"
    with served(Point.PRE_TOOL_CALL, allows, ScriptedReply(body=body, content_type=kind)) as one:
        if api == "chat":
            reply = one.chat(stream=streamed)
            calls = read(reply)[1] if streamed else [(call.id,) for call in reply.choices[0].message.tool_calls]
            got = [call[0] for call in calls]
        else:
            reply: Any = one.client.responses.create(model="m", input="go", stream=streamed)
            output = list(reply)[-1].response.output if streamed else reply.output
            got = [item.call_id for item in output if item.type == "function_call"]
    assert got == [each.action.call_id for each in one.seen.decisions(Point.PRE_TOOL_CALL)]
    assert len(set(got) - {"", None}) == 2


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("unclear", "asked"), [(2, 3), (9, 4)])
def test_a_reply_that_cannot_be_read_is_asked_for_again_a_few_times(streamed: bool, unclear: int, asked: int) -> None:
    both = chat_reply([{"id": "c1", "name": "look", "n": 1, "form": "both"}], streamed)
    kind = "text/event-stream" if streamed else "application/json"
    broken = [ScriptedReply(body=both, content_type=kind)] * unclear
    with served(Point.POST_MODEL_CALL, allows, *broken, says("fine")) as one:
        reply = one.chat(stream=streamed)
        text = read(reply)[0] if streamed else reply.choices[0].message.content
    assert len(one.server.requests) == asked
    assert [request.body for request in one.server.requests] == [one.server.requests[0].body] * asked
    assert ("unreadable-reply" in text) == (unclear > asked - 1)
    rules = [each.decision.rule for each in one.seen.decisions(Point.POST_MODEL_CALL)]
    assert rules.count("unreadable-reply") == min(unclear, asked)
