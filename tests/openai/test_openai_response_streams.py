"""Streams of the Responses API under policies that read no text; those of chat completions are in test_openai_text_streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lgov_core.errors import PolicyDenied
from lgov_core.testing import ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Point
from lgov_core.wire.responses_stream import stream_of
from lgov_core.wire.responses_turns import ResponsesProtocol
from tests.openai import openai_programs as programs
from tests.openai.rules import USER
from tests.openai.test_openai_text_streams import ERASE, LONG, ON_OUTPUT, SECRETS, TOOLS_ONLY, Served, gated, served


def events(program: Served, *items: Any, **options: Any) -> Any:
    return program.client.responses.create(model="m", input=list(items) or [USER], stream=True, **options)


def assembled(program: Served, *items: Any, **options: Any) -> list[dict[str, Any]]:
    """The output that the client's own code puts together from the events; the last event says the same."""
    asked = {"model": "m", "input": list(items) or [USER], "tools": programs.RESPONSE_TOOLS, **options}
    with program.client.responses.stream(**asked) as stream:
        numbers = [event.sequence_number for event in stream]
        response = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    return [one.model_dump(mode="json", exclude_none=True) for one in response.output]


def texts(output: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for item in output if item["type"] == "message" for part in item["content"]]


def names(output: list[dict[str, Any]]) -> list[str]:
    return [item["name"] for item in output if item["type"] == "function_call"]


def test_text_of_a_response_arrives_before_it_is_complete() -> None:
    with gated() as gate, served([ScriptedReply("one two three", gate=gate, gate_at=5)]) as program:
        stream = events(program)
        first = next(event.delta for event in stream if event.type == "response.output_text.delta")
        assert (first, gate.is_set()) == ("one", False)
        gate.set()
        *_, last = stream
        assert last.response.output_text == "one two three"
        assert len(program.seen.decisions(Point.POST_MODEL_CALL)) == 1


@pytest.mark.parametrize("rule", [SECRETS, ON_OUTPUT], ids=["secrets", "condition"])
def test_a_rule_that_reads_text_holds_a_response(rule: Any) -> None:
    with (
        gated(0.3) as gate,
        served([ScriptedReply("one two three", gate=gate, gate_at=5)], TOOLS_ONLY, rule) as program,
    ):
        next(iter(events(program)))
        assert gate.is_set()


def test_an_allowed_call_follows_the_text_of_its_response() -> None:
    with served([ScriptedReply("Let me look.", tool_calls=[LONG])]) as program:
        output = assembled(program)
        assert (texts(output), names(output)) == (["Let me look."], ["look"])
        assert json.loads(output[1]["arguments"]) == {"path": "x"}


def test_of_two_calls_of_a_response_only_the_allowed_one_is_handed_over() -> None:
    with served([ScriptedReply("Both.", tool_calls=[ERASE, LONG])]) as program:
        output = assembled(program)
        assert (texts(output), names(output)) == (["Both."], ["look"])


def test_after_a_denied_call_a_response_goes_on_with_the_next() -> None:
    with served([ScriptedReply("I erase it.", tool_calls=[ERASE]), "I may not.", "Bye."]) as program:
        output = assembled(program)
        assert texts(output) == ["I erase it.", "I may not."]
        assembled(program, USER, *output, {"role": "user", "content": "And?"})
        read = program.server.requests[2].body["input"]
        assert [one.get("role") or one["type"] for one in read] == [
            *("user", "assistant", "function_call", "function_call_output", "assistant", "user")
        ]
        assert "DENIED" in read[3]["output"]


def test_a_kept_transcript_goes_on_after_the_last_reply() -> None:
    with served([ScriptedReply("I erase it.", tool_calls=[ERASE]), "I may not.", "Bye."]) as program:
        *_, last = events(program)
        events(program, USER, previous_response_id=last.response.id).close()
        replies = [span.attributes.get(semconv.RESPONSE_ID) for span in program.seen.spans if "chat" in span.name]
        assert last.response.id == replies[0]
        assert program.server.requests[2].body["previous_response_id"] == replies[1]


def test_a_denied_second_request_ends_the_stream_of_the_first() -> None:
    once = {"name": "once", "use": "cost", "with": {"max_calls": 1}}
    with served([ScriptedReply("I erase it.", tool_calls=[ERASE])], TOOLS_ONLY, once) as program:
        (first, denial) = texts(assembled(program))
        assert first == "I erase it."
        assert "DENIED by policy once" in denial


def test_a_response_that_ends_early_is_refused() -> None:
    whole = stream_of({}, reply_of("one"), ())
    begun = whole[: whole.index("event: response.output_text.done")].encode()
    with served([ScriptedReply(body=begun, content_type="text/event-stream")]) as program:
        stream = events(program)
        assert next(event.delta for event in stream if event.type == "response.output_text.delta") == "one"
        with pytest.raises(PolicyDenied, match="not a complete reply"):
            list(stream)


@pytest.mark.parametrize("cut", range(1, 9))
def test_what_passed_and_the_rest_are_the_whole_response(cut: int) -> None:
    frames = read(stream_of({}, reply_of("one"), ()))
    rest = read(stream_of({}, reply_of("one"), frames, frames[:cut]))
    assert [*frames[:cut], *rest] == frames


def test_of_a_text_in_pieces_only_the_rest_is_written() -> None:
    frames = read(stream_of({}, reply_of("one two"), ()))
    passed = [*frames[:4], {**frames[4], "delta": "one "}]
    rest = read(stream_of({}, reply_of("one two"), (), passed))
    assert [frame["delta"] for frame in rest if frame["type"] == "response.output_text.delta"] == ["two"]


def reply_of(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    return {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": [item]}


def read(stream: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]


def test_items_that_the_last_event_leaves_out_are_those_of_the_stream():
    item = {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
    ended = {"id": "r", "status": "completed", "output": []}
    events = [
        {"type": "response.created", "response": {**ended, "status": "in_progress"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": ended},
    ]
    assert ResponsesProtocol().from_stream(events) == {**ended, "output": [item]}
    assert ResponsesProtocol().from_stream(events[:2]) is None
    assert ResponsesProtocol().from_stream([*events, {"type": "error", "message": "lost"}]) is None
    assert (
        ResponsesProtocol().from_stream(
            [*events[:2], {"type": "response.failed", "response": {**ended, "status": "failed"}}]
        )
        is None
    )
