"""However the pieces of a reply come, its items go out whole, one after the other."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lgov_core.wire.reply_writer import TurnItems

names = st.sampled_from(["a", "b"])
texts = st.text(alphabet='xyé{}" ', max_size=6)


@st.composite
def replies(draw):
    """A reply, and its deltas: pieces of each call in order, those of several calls mixed."""
    reasoning, text = draw(texts), draw(texts)
    calls = [(draw(names), draw(texts)) for _ in range(draw(st.integers(0, 3)))]
    deltas = [{"reasoning_content": part} for part in reasoning] + [{"content": part} for part in text]
    queues = []
    for index, (name, arguments) in enumerate(calls):
        head = {"index": index, "id": f"c{index}", "function": {"name": name, "arguments": ""}}
        parts = [{"index": index, "function": {"arguments": part}} for part in arguments]
        queues.append([{"tool_calls": [part]} for part in (head, *parts)])
    while queues:
        queue = draw(st.sampled_from(queues))
        deltas.append(queue.pop(0))
        queues = [left for left in queues if left]
    return reasoning, text, calls, deltas


@given(replies())
def test_any_order_of_pieces_gives_the_same_items(reply):
    reasoning, text, calls, deltas = reply
    turn = TurnItems()
    events = [event for delta in deltas for event in turn.feed(delta)] + list(turn.finish())
    open_item, written = None, {}
    for event in events:
        if event.what == "open":
            assert open_item is None
            open_item = event.item
            written[event.item.index] = ""
        else:
            assert event.item is open_item
            written[event.item.index] += event.delta
            open_item = None if event.what == "close" else open_item
    assert open_item is None
    items = turn.items
    assert [item.index for item in items] == list(range(len(items)))
    assert {item.index: item.text for item in items} == written
    assert "".join(item.text for item in items if item.kind == "text") == text
    assert "".join(item.text for item in items if item.kind == "reasoning") == reasoning
    found = {item.call_id: (item.name, item.text) for item in items if item.kind == "call"}
    assert found == {f"c{index}": call for index, call in enumerate(calls)}


def test_text_after_a_call_comes_as_an_item_of_its_own():
    turn = TurnItems()
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{"}}
    rest = {"index": 0, "function": {"arguments": "}"}}
    for delta in ({"content": "a"}, {"tool_calls": [call]}, {"content": "b"}, {"tool_calls": [rest]}, {"content": "c"}):
        list(turn.feed(delta))
    list(turn.finish())
    assert [(item.kind, item.text) for item in turn.items] == [("text", "a"), ("call", "{}"), ("text", "bc")]


@pytest.mark.parametrize("split", [True, False])
def test_a_call_waits_for_its_name(split):
    turn = TurnItems()
    first = {"index": 0, "id": "c", "function": {"arguments": "{}"} if split else {"name": "f", "arguments": "{}"}}
    opened = [event.what for event in turn.feed({"tool_calls": [first]})]
    assert opened == ([] if split else ["open", "delta"])
    list(turn.feed({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}))
    list(turn.finish())
    assert json.loads(turn.items[0].text) == {}
    assert turn.items[0].name == "f"
