"""Whatever a model replies: the calls that a program gets are those on record, each with its own arguments."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings

from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor
from lgov_core.types import Point
from lgov_openai import govern_client
from tests.cells import Seen
from tests.random_replies import CALLS, FRESH_IDS, Rules, chat_reply, on_record, responses_reply
from tests.slow import examples

#: Id, name, and the text that the program gets: arguments as JSON, or the input of a custom tool.
Handed = list[tuple[str | None, str, str, bool]]


def read_chat(client: openai.OpenAI, streamed: bool) -> list[Handed]:
    asked: Any = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "go"}], stream=streamed
    )
    calls: dict[int, tuple[str | None, dict[str, Any]]] = {}
    pieces: Any = asked if streamed else [asked]
    for piece in pieces:
        part = piece.choices[0].delta if streamed else piece.choices[0].message
        for at, one in enumerate(part.tool_calls or ()):
            plain = one.model_dump()
            body = plain.get("function") or plain.get("custom") or {}
            known = calls.setdefault(plain.get("index", at), (plain["id"], {"name": "", "text": "", "custom": False}))[
                1
            ]
            known["name"] += body.get("name") or ""
            known["text"] += body.get("arguments") or body.get("input") or ""
            known["custom"] |= bool(plain.get("custom"))
    bodies = [calls[at] for at in sorted(calls)]
    return [[(call_id, one["name"], one["text"], one["custom"]) for call_id, one in bodies]]


def read_responses(client: openai.OpenAI, streamed: bool) -> list[Handed]:
    """The calls, by each of the events in which a program may find them."""
    asked: Any = client.responses.create(model="m", input="go", stream=streamed)
    if not streamed:
        return [items_in(asked.output)]
    found = list(asked)
    last = next(event.response.output for event in found if event.type == "response.completed")
    done = [event.item for event in found if event.type == "response.output_item.done"]
    last = last or done  # some servers leave the items out of the last event
    texts = [event.arguments for event in found if event.type == "response.function_call_arguments.done"]
    of_functions = [(item.call_id, item.name, item.arguments) for item in last if item.type == "function_call"]
    assert texts == [text for _, _, text in of_functions]
    return [items_in(last), items_in(done)]


def items_in(items: Any) -> Handed:
    calls = [item for item in items if item.type.endswith("_call")]
    return [
        (one.call_id, one.name, one.input if custom else one.arguments, custom)
        for one in calls
        for custom in [one.type == "custom_tool_call"]
    ]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
@settings(max_examples=examples(60), deadline=None)
@given(calls=CALLS | FRESH_IDS, early=FRESH_IDS)
def test_a_program_gets_only_calls_on_record(api: str, streamed: bool, calls: Any, early: Any) -> None:
    replies = [chat_reply(calls, streamed) if api == "chat" else responses_reply(calls, early, streamed)]
    replies += [chat_reply([], streamed) if api == "chat" else responses_reply([], [], streamed)]
    kind = {"content-type": "text/event-stream" if streamed else "application/json"}
    answers = iter(replies)
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=kind, content=next(answers)))
    seen = Seen()
    governor = Governor([Rules()], plugins=[seen])
    with openai.OpenAI(
        api_key="k", base_url="http://model.invalid/v1", http_client=httpx2.Client(transport=transport), max_retries=0
    ) as client:
        govern_client(client, governor)
        try:
            handed = (read_chat if api == "chat" else read_responses)(client, streamed)
        except PolicyDenied:
            handed = [[]]
    governor.close()
    allowed = list(on_record(seen))
    for one in handed:
        written = [arguments["input"] if custom else json.dumps(arguments)
                   for (*_, custom), (*_, arguments) in zip(one, allowed, strict=True)]  # fmt: skip
        assert [(call_id, name, text) for call_id, name, text, _ in one] == [
            (call_id, name, text) for (call_id, name, _), text in zip(allowed, written, strict=True)
        ]
    unclear = api == "chat" and any(call["form"] in ("both", "mistyped") for call in calls)
    rules = [event.decision.rule for event in seen.decisions(Point.POST_MODEL_CALL)]
    assert ("unreadable-reply" in rules) == unclear  # a call without a clear id has got one
    assert len({call_id for call_id, _, _ in allowed}) == len(allowed)
    if "unreadable-reply" in rules:
        assert handed in ([[]], [[], []])
        assert not allowed
