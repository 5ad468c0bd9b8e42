"""A governor with ``observe_only``: every request and reply is passed on unchanged, and every call is recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx2
import openai
import pytest

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.trace import semconv
from lgov_core.types import Span
from lgov_openai import govern_client
from tests.cells import Seen

USER = {"role": "user", "content": "go"}


class Program:
    """A client with ``observe_only`` whose model gives ``replies``; keeps what is sent and recorded."""

    def __init__(self, *replies: Mapping[str, Any]) -> None:
        self.seen = Seen()
        self.sent: list[dict[str, Any]] = []
        self._replies = iter(replies)
        manager = make_plugin_manager(builtin=(), third_party=False)
        governor = Governor(plugins=[self.seen], manager=manager, capture_content=True, observe_only=True)
        http_client = httpx2.Client(transport=httpx2.MockTransport(self._answer))
        plain = openai.OpenAI(base_url="http://model.invalid/v1", api_key="k", max_retries=0, http_client=http_client)
        self.client = govern_client(plain, governor)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(json.loads(request.content))
        return httpx2.Response(200, json=next(self._replies))

    def chat(self, *messages: Any) -> Any:
        return self.client.chat.completions.create(model="m", messages=list(messages)).choices[0].message

    def spans(self, operation: str) -> list[Span]:
        return [span for span in self.seen.spans if span.attributes[semconv.OPERATION] == operation]


def completion(**message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"id": "chatcmpl-1", "model": "m", "choices": [choice]}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}


@pytest.mark.parametrize(
    ("arguments", "status", "shown"),
    [('{"a": 1', "invalid_args", {}), ("[1]", "invalid_args", {}), ('{"a": 1, "a": 2}', "ok", {"a": 2})],
)
def test_unreadable_arguments_are_delivered_and_recorded(arguments: str, status: str, shown: Mapping[str, Any]) -> None:
    program = Program(completion(tool_calls=[call(arguments)]), completion(content="done"))
    message = program.chat(USER)
    assert message.tool_calls[0].function.arguments == arguments
    result = {"role": "tool", "tool_call_id": "c1", "content": "Error: which a?"}
    messages = [USER, {"role": "assistant", "tool_calls": [call(arguments)]}, result]
    program.chat(*messages)
    assert [body["messages"] for body in program.sent] == [[USER], messages]
    (span,) = program.spans(semconv.EXECUTE_TOOL)
    assert span.attributes[semconv.TOOL_STATUS] == status
    assert json.loads(str(span.attributes[semconv.TOOL_ARGUMENTS])) == shown
    assert span.attributes[semconv.TOOL_RESULT] == "Error: which a?"


def test_a_result_is_recorded_once() -> None:
    program = Program(completion(tool_calls=[call("{}")]), completion(content="one"), completion(content="two"))
    messages = [USER, program.chat(USER), {"role": "tool", "tool_call_id": "c1", "content": "2"}]
    for _ in range(2):
        program.chat(*messages)
    assert [outcome.result for outcome in program.seen.outcomes] == ["2"]
    assert [span.attributes[semconv.TOOL_RESULT] for span in program.spans(semconv.EXECUTE_TOOL)] == ["2"]


@pytest.mark.parametrize("messages", [[{"role": "assistant", "tool_calls": [None]}, USER], "text"])
def test_an_unreadable_request_is_sent(messages: Any) -> None:
    program = Program(completion(content="done"))
    reply = program.client.chat.completions.create(model="m", messages=messages)
    assert reply.choices[0].message.content == "done"
    assert program.sent[0]["messages"] == messages


def test_a_reply_without_items_is_delivered_and_recorded() -> None:
    program = Program({"id": "resp_1", "model": "m", "output": []})
    assert program.client.responses.create(model="m", input="go").output == []
    assert [span.attributes[semconv.RESPONSE_ID] for span in program.spans(semconv.CHAT)] == ["resp_1"]


def test_an_unreadable_reply_is_delivered_and_its_call_failed() -> None:
    program = Program({"choices": 1})
    raw = program.client.chat.completions.with_raw_response.create(model="m", messages=[USER])
    assert json.loads(raw.content) == {"choices": 1}
    assert [span.attributes[semconv.ERROR_TYPE] for span in program.spans(semconv.CHAT)] == ["TypeError"]
