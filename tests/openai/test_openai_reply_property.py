"""Whatever a model replies: the calls that a program gets are those on record, each with its own arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor
from lgov_core.instrumentation.model_call import unclear_ids
from lgov_core.policies.base import BoundedPolicy
from lgov_core.types import Action, Decision, Point
from lgov_openai import govern_client
from tests.cells import Seen

#: Id, name, and the text that the program gets: arguments as JSON, or the input of a custom tool.
Handed = list[tuple[str | None, str, str, bool]]

IDS = st.sampled_from(["c1", "c2", "c3", "c4", "", None, 5, ...])
CALLS = st.lists(
    st.fixed_dictionaries({
        "id": IDS,
        "name": st.sampled_from(["look", "erase_file", "run_sql"]),
        "n": st.integers(0, 99),
        "form": st.sampled_from(["function"] * 8 + ["custom", "both", "mistyped"]),
    }),
    max_size=4,
)  # fmt: skip
FRESH_IDS = CALLS.map(lambda calls: [{**call, "id": f"c{at}"} for at, call in enumerate(calls)])


class Rules(BoundedPolicy):
    """Allows ``look``, denies ``erase_file``, and hides the number that ``run_sql`` gets."""

    name = "rules"

    def judge(self, action: Action) -> Decision | None:
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        if action.name == "erase_file":
            return self.deny("no", "not this")
        if action.name == "run_sql":
            return self.transform("hide", "hidden", arguments={"input": f"hidden {action.arguments}"})
        return self.allow("fine")


def chat_call(call: Any) -> dict[str, Any]:
    text = json.dumps({"n": call["n"]})
    function, custom = {"name": call["name"], "arguments": text}, {"name": call["name"], "input": text}
    made: dict[str, Any] = {} if call["id"] is ... else {"id": call["id"]}
    match call["form"]:
        case "function":
            return {**made, "type": "function", "function": function}
        case "custom":
            return {**made, "type": "custom", "custom": custom}
        case "both":
            return {**made, "type": "function", "function": function, "custom": {**custom, "input": "another"}}
        case _:
            return {**made, "type": "custom", "function": function}


def response_item(call: Any) -> dict[str, Any]:
    text = json.dumps({"n": call["n"]})
    made: dict[str, Any] = {"id": f"fc_{call['n']}", "name": call["name"], "status": "completed"}
    made |= {} if call["id"] is ... else {"call_id": call["id"]}
    if call["form"] in ("custom", "mistyped"):
        return {**made, "type": "custom_tool_call", "input": text}
    return {**made, "type": "function_call", "arguments": text}


def events(items: list[Any]) -> bytes:
    return "".join(f"data: {json.dumps(item)}\n\n" for item in items).encode()


def chat_reply(calls: Any, streamed: bool) -> bytes:
    head = {"id": "x", "created": 1, "model": "m"}
    made = [chat_call(call) for call in calls]
    reason = "tool_calls" if made else "stop"
    if not streamed:
        message = {"role": "assistant", "content": "hm", **({"tool_calls": made} if made else {})}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return json.dumps({**head, "object": "chat.completion", "choices": [choice]}).encode()
    deltas: list[Any] = [{"role": "assistant", "content": "hm"}]
    for index, call in enumerate(made):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    chunks = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    chunks.append({"index": 0, "delta": {}, "finish_reason": reason})
    return events([{**head, "object": "chat.completion.chunk", "choices": [one]} for one in chunks])


def responses_reply(calls: Any, early: Any, streamed: bool) -> bytes:
    message = {"id": "m1", "type": "message", "role": "assistant", "status": "completed"}
    message["content"] = [{"type": "output_text", "text": "hm", "annotations": []}]
    output = [message, *map(response_item, calls)]
    whole = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": output,
             "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    if not streamed:
        return json.dumps(whole).encode()
    found: list[Any] = [{"type": "response.created", "response": {**whole, "output": []}}]
    found.append({"type": "response.output_item.done", "output_index": 0, "item": message})
    for at, item in enumerate(map(response_item, early)):  # what other events say than the last one
        ended = {"output_index": at % 3 % 2, "item_id": item["id"]}
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            found.append({"type": "response.function_call_arguments.done", **ended, **done})
        if at % 3:
            found.append({"type": "response.output_item.done", "output_index": at % 3 % 2, "item": item})
    found.append({"type": "response.completed", "response": whole})
    return events([{**event, "sequence_number": at} for at, event in enumerate(found)])


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


def on_record(seen: Seen) -> Iterator[tuple[str | None, str, Any]]:
    for event in seen.decisions(Point.PRE_TOOL_CALL):
        if not event.decision.blocks:
            arguments = event.action.arguments if event.decision.arguments is None else event.decision.arguments
            yield event.action.call_id, event.action.name, dict(arguments)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
@settings(max_examples=60, deadline=None)
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
    ids = [{"name": call["name"]} | ({"id": None} if call["id"] is ... else {"id": call["id"]}) for call in calls]
    unclear = api == "chat" and any(call["form"] in ("both", "mistyped") for call in calls)
    rules = [event.decision.rule for event in seen.decisions(Point.POST_MODEL_CALL)]
    assert ("unreadable-reply" in rules) == (unclear or unclear_ids(ids) is not None)
    if "unreadable-reply" in rules:
        assert handed in ([[]], [[], []])
        assert not allowed
