"""Random replies of a model, for the property that what a program is handed is what is on record, in every framework."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Point
from tests.cells import Seen

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
#: A call of each kind, allowed, changed and denied: every run of a property has these.
PLAIN = [
    {"id": f"p{n}", "name": name, "n": n, "form": "function"}
    for n, name in enumerate(("look", "run_sql", "erase_file"), 1)
]


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


class Hiding(Rules):
    """Hides the number that ``run_sql`` gets, in the form that a second look leaves as it is."""

    def judge(self, action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL and action.name == "run_sql" and action.arguments != {"n": 0}:
            return self.transform("hide", "hidden", arguments={"n": 0})
        return self.allow("fine") if action.name == "run_sql" else super().judge(action)


def on_record(seen: Seen) -> Iterator[tuple[str | None, str, Any]]:
    for event in seen.decisions(Point.PRE_TOOL_CALL):
        if not event.decision.blocks:
            arguments = event.action.arguments if event.decision.arguments is None else event.decision.arguments
            yield event.action.call_id, event.action.name, dict(arguments)


def responses_stream(calls: Any, early: Any) -> bytes:
    """The stream of a Response in which all comes piece by piece; ``early`` are calls that the pieces name instead."""
    whole = json.loads(responses_reply(calls, [], streamed=False))
    message, *_ = whole["output"]
    found: list[Any] = [{"type": "response.created", "response": {**whole, "output": [], "status": "in_progress"}}]
    for at, item in enumerate([message, *map(response_item, early or calls)]):
        key = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"], "content")
        empty = {**item, key: [] if key == "content" else "", "status": "in_progress"}
        here = {"output_index": at, "item_id": item["id"]}
        found.append({"type": "response.output_item.added", "output_index": at, "item": empty})
        if key == "content":
            part = {**here, "content_index": 0}
            text = {"type": "output_text", "text": "", "annotations": []}
            found.append({"type": "response.content_part.added", **part, "part": text})
            found.append({"type": "response.output_text.delta", **part, "delta": "hm", "logprobs": []})
            found.append({"type": "response.output_text.done", **part, "text": "hm", "logprobs": []})
            found.append({"type": "response.content_part.done", **part, "part": {**text, "text": "hm"}})
        else:
            kind = "response.function_call_arguments" if key == "arguments" else "response.custom_tool_call_input"
            found.append({"type": f"{kind}.delta", **here, "delta": item[key]})
            found.append({"type": f"{kind}.done", **here, key: item[key], "name": item["name"]})
        found.append({"type": "response.output_item.done", "output_index": at, "item": item})
    found.append({"type": "response.completed", "response": whole})
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': at})}\n\n".encode()
        for at, event in enumerate(found)
    )


class RandomModel:
    """A model on real HTTP that makes ``calls`` once and then none; ``early`` as for `responses_stream`."""

    def __init__(self) -> None:
        self.calls: Any = []
        self.early: Any = []
        self.server = ScriptedModelServer(self._reply)

    def play(self, calls: Any, early: Any) -> None:
        self.calls, self.early = calls, early

    def _reply(self, body: Any) -> ScriptedReply:
        calls, early, streamed = self.calls, self.early, bool(body.get("stream"))
        self.play([], [])
        if "messages" in body:
            content = chat_reply(calls, streamed)
        else:
            content = responses_stream(calls, early) if streamed else responses_reply(calls, [], streamed=False)
        kind = "text/event-stream" if streamed else "application/json"
        return ScriptedReply(body=content, content_type=kind, headers={"connection": "close"})


#: What the tools of a program were handed: their call id (None where the framework does not say), name and arguments.
Ran = list[tuple[str | None, str, str]]


def check(ran: Ran, seen: Seen, error: BaseException | None, calls: Any, early: Any) -> None:
    """What was handed is on record, each entry for one call.

    All that is on record was handed, unless the framework failed or a tool does not take such arguments. A reply that can
    be read for certain is no ``error``.
    """
    texts = all(
        isinstance(call["id"], str) for call in calls
    )  # empty and double ones too: a clear one takes their place
    if not early and texts and all(call["form"] == "function" for call in calls):
        assert error is None, error
    with_ids = all(call_id is not None for call_id, *_ in ran)
    allowed = [(call_id, name, json.dumps(arguments)) for call_id, name, arguments in on_record(seen)]
    recorded = Counter(allowed if with_ids else [(None, name, text) for _, name, text in allowed])
    assert not Counter(ran) - recorded, (ran, allowed)
    if error is None and all(outcome.status in ("ok", "denied") for outcome in seen.outcomes):
        assert Counter(ran) == recorded
    if any(event.decision.rule == "unreadable-reply" for event in seen.decisions(Point.POST_MODEL_CALL)):
        assert (ran, allowed) == ([], [])
