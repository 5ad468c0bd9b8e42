"""Chunks of chat completions, put together as the adapters and the endpoint read them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lgov_core.wire.chat import read_completion
from lgov_core.wire.chat_turns import ChatAssembler, ChatProtocol


def chunk(*, reason: str | None = None, index: int = 0, head: Any = None, choice: Any = None, **delta: Any) -> Any:
    written = {"index": index, "delta": delta, "finish_reason": reason, **(choice or {})}
    return {"id": "x", "created": 1, "model": "m", **(head or {}), "choices": [written]}


def call(index: int, arguments: str = "", *, kind: str = "function", **more: Any) -> Any:
    name = more.pop("name", None)
    body = {"arguments" if kind == "function" else "input": arguments, **({} if name is None else {"name": name})}
    return {"index": index, kind: body, **more}


def joined(*pieces: Any) -> tuple[list[Any], ChatAssembler]:
    assembler = ChatAssembler()
    body = assembler.whole([*(chunk(tool_calls=[piece]) for piece in pieces), chunk(reason="tool_calls")])
    assert body is not None
    return body["choices"][0]["message"]["tool_calls"], assembler


def test_pieces_of_two_calls_in_turns_are_each_with_their_own_call_in_the_order_of_their_index() -> None:
    calls, assembler = joined(
        call(1, '{"b"', id="c2", type="function", name="second"),
        call(0, '{"a"', id="c1", type="function", name="first"),
        call(1, ":2}"),
        call(0, ":1}"),
    )
    assert calls == [
        {"id": "c1", "type": "function", "function": {"name": "first", "arguments": '{"a":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "second", "arguments": '{"b":2}'}},
    ]
    assert assembler.unreadable is None


def test_a_custom_call_keeps_its_kind_and_its_whole_input() -> None:
    calls, assembler = joined(
        call(0, "rm ", kind="custom", id="c1", type="custom", name="shell"), call(0, "-r x", kind="custom")
    )
    assert calls == [{"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "rm -r x"}}]
    assert assembler.unreadable is None


def test_further_fields_of_a_call_are_kept() -> None:
    signature = {"google": {"thought_signature": "s"}}
    calls, _ = joined(call(0, "{", id="c1", name="a", extra_content=signature), call(0, "}", note="n"))
    written = {"name": "a", "arguments": "{}"}
    assert calls == [
        {"id": "c1", "type": "function", "function": written, "extra_content": signature, "note": "n"}
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_two_calls_at_one_index_are_two_calls_and_a_client_reads_them_at_two(kind: str) -> None:
    calls, assembler = joined(
        call(0, "1", kind=kind, id="c1", name="a", type=kind), call(0, "2", kind=kind, id="c2", name="b", type=kind)
    )
    assert [(each["id"], each[kind]["name"]) for each in calls] == [("c1", "a"), ("c2", "b")]
    assert assembler.unreadable is None


WRITTEN = call(0, "{}", name="a")


@pytest.mark.parametrize(
    ("pieces", "clear"),
    [
        ([{"index": None, "id": "x1"}, {"index": None, "id": "x2"}], [(0, "x1"), (1, "x2")]),
        ([{"index": 0}, {"index": 1, "id": ""}], [(0, None), (1, None)]),
        ([{"index": 0, "id": "same"}, {"index": 1, "id": "same"}], [(0, "same"), (1, None)]),
        ([{"index": 1, "id": "c1"}, {"index": 1, "id": "c2"}, {"index": 2, "id": "c3"}],
         [(1, "c1"), (2, "c2"), (3, "c3")]),
    ],
)  # fmt: skip
def test_pieces_without_a_clear_place_or_id_are_read_with_one(pieces: Any, clear: Any) -> None:
    assembler = ChatAssembler()
    read: Any = []
    for piece in pieces:
        delta = {"tool_calls": [{**WRITTEN, **piece}]}
        read += assembler.add("", {"id": "x", "choices": [{"delta": delta}]})["choices"][0]["delta"]["tool_calls"]
    written = assembler.body()["choices"][0]["message"]["tool_calls"]
    assert [each["id"] for each in read] == [each["id"] for each in written]
    assert len({each["id"] for each in read}) == len(pieces)
    assert [(each["index"], each["id"]) for each in read] == [(at, known or each["id"]) for (at, known), each in
                                                              zip(clear, read, strict=True)]  # fmt: skip
    assert all(each["id"] for each in read)


@pytest.mark.parametrize(("arguments", "whole"), [('{"a": 1}', True), ('{"a":', False), ("", False), ("null", True)])
def test_a_stream_that_never_says_that_it_ends_is_whole_if_its_calls_are(arguments: str, whole: bool) -> None:
    asks = [chunk(content="a"), chunk(tool_calls=[call(0, arguments, id="c1", name="look")])]
    assert (ChatProtocol().from_stream(asks) is not None) == whole
    assert ChatProtocol().from_stream(asks, ended=False) is None


@pytest.mark.parametrize("later", [{"type": "custom"}, {"custom": {"name": "b", "input": "x"}}])
def test_a_call_of_two_kinds_is_unreadable(later: Any) -> None:
    calls, assembler = joined(call(0, "{}", id="c1", name="a", type="function"), {"index": 0, **later})
    (proposal,) = ChatProtocol().proposals({"role": "assistant", "tool_calls": calls})
    assert proposal.unclear or assembler.unreadable == "a tool call is of two kinds"


def test_the_head_is_the_first_and_a_later_field_that_says_something_is_not_lost() -> None:
    body = ChatAssembler().whole([
        chunk(head={"id": "x", "more": 5, "usage": {"completion_tokens": 1}}, content="a"),
        chunk(head={"id": "y", "model": "other", "more": "text", "usage": None}, content="b"),
        chunk(head={"more": 6, "usage": {"completion_tokens": 2}, "citations": ["c"]}, reason="stop"),
    ])  # fmt: skip
    assert body is not None
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "ab"}
    expected = {"id": "x", "model": "m", "more": "text", "usage": {"completion_tokens": 2}, "citations": ["c"]}
    assert {name: body[name] for name in expected} == expected


def test_what_a_choice_says_whole_is_not_written_twice() -> None:
    filtered: Any = {"content_filter_results": {"hate": {"severity": "safe"}}, "message": {"content": "not a piece"}}
    spelled = [{"logprobs": {"content": [letter]}, "token_ids": [number]} for number, letter in enumerate("ab")]
    body = ChatAssembler().whole([
        chunk(choice={**filtered, **spelled[0]}, content="a"),
        chunk(choice={**filtered, **spelled[1]}, content="b", reason="stop"),
    ])  # fmt: skip
    assert body is not None
    (choice,) = body["choices"]
    assert choice["content_filter_results"] == filtered["content_filter_results"]
    assert choice["message"]["content"] == "ab"
    assert (choice["logprobs"], choice["token_ids"]) == ({"content": ["a", "b"]}, [0, 1])


@pytest.mark.parametrize(
    "events",
    [
        [],
        [chunk(content="a", reason="stop"), chunk(content="b", index=1)],
        [chunk(content="a", reason="stop", index=1)],
        [chunk(content="a", reason="stop"), {"error": {"message": "overloaded"}}],
        [chunk(content="a"), chunk(content=["b"], reason="stop")],
    ],
)
def test_a_stream_that_failed_or_did_not_finish_is_no_reply(events: list[Any]) -> None:
    assert ChatProtocol().from_stream(events) is None


def test_arguments_that_a_server_gives_as_an_object_are_their_json_text() -> None:
    called = [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"path": "a", "deep": None}}}]
    message = {"role": "assistant", "content": None, "tool_calls": called}
    body = {"id": "x", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    (call_read,) = read_completion(body).choices[0].tool_calls
    assert json.loads(call_read.arguments) == {"path": "a", "deep": None}
