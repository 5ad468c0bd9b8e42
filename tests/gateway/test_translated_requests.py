"""What only one of the APIs has, and what becomes of it on the way to an upstream and back."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from lgov_core.gateway.access import KeyRing
from lgov_core.testing import ScriptedCall, ScriptedReply
from tests.gateway.conftest import SECRET

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "m", "messages": [USER]}
RESPONSES = {"model": "m", "input": "hi"}
MESSAGES = {"model": "m", "max_tokens": 5, "messages": [USER]}
COMPLETIONS = {"model": "m", "prompt": "hi"}


def test_embeddings_need_an_upstream(serve, store, embedded_url):
    serving = serve([])
    client = openai.OpenAI(base_url=serving.base_url, api_key="any", max_retries=0)
    reply = client.embeddings.create(model="m", input=["a", "bcd"], encoding_format="float")
    assert [one.embedding for one in reply.data] == [[1.0, 1.0], [3.0, 1.0]]
    assert serving.model.requests[0].body == {"model": "m", "input": ["a", "bcd"], "encoding_format": "float"}
    assert list(store.calls()) == []
    for url in (embedded_url, serve([], speaks=["chat"]).url):
        with pytest.raises(openai.NotFoundError, match="makes no embeddings"):
            openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0).embeddings.create(model="tiny", input="x")


def test_models_for_both_kinds_of_clients(serve):
    serving = serve([], models=["a", "b"])
    prefixed = f"{serving.url}/rollout/r1/attempt/1"
    for url in (serving.url, prefixed):
        assert [one.id for one in openai.OpenAI(base_url=f"{url}/v1", api_key="any").models.list()] == ["a", "b"]
        assert [one.id for one in anthropic.Anthropic(base_url=url, api_key="any").models.list()] == ["a", "b"]


def test_the_anthropic_client_with_a_scoped_key(serve, store):
    ring = KeyRing(SECRET)
    serving = serve(["x"], keys=ring, speaks=["chat"])
    key = ring.issue("r2", 1)
    client = anthropic.Anthropic(base_url=serving.url, api_key=key, max_retries=0)
    client.messages.create(**MESSAGES)
    assert [(call.rollout_id, call.attempt, call.route) for call in store.calls()] == [("r2", 1, "messages")]
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=serving.url, api_key="other", max_retries=0).messages.create(**MESSAGES)
    elsewhere = f"{serving.url}/rollout/r1/attempt/1"
    with pytest.raises(anthropic.PermissionDeniedError):
        anthropic.Anthropic(base_url=elsewhere, api_key=key, max_retries=0).messages.create(**MESSAGES)


def test_a_conversation_belongs_to_its_rollout(serve):
    serving = serve(lambda body: str(len(body["messages"])), speaks=["chat"])

    def client(rollout: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{serving.url}/rollout/{rollout}/attempt/1/v1", api_key="any", max_retries=0)

    mine, other = client("r1"), client("r2")
    first = mine.responses.create(model="m", input="a", instructions="Be brief.")
    second = mine.responses.create(model="m", input="b", previous_response_id=first.id)
    with mine.responses.stream(model="m", input="c", previous_response_id=second.id, instructions="Be long.") as stream:
        third = stream.until_done().get_final_response()
    assert (first.output_text, second.output_text, third.output_text) == ("2", "3", "6")
    # Instructions belong to one response, the conversation goes on from either of two ends.
    sent = [message["content"] for message in serving.model.requests[-1].body["messages"]]
    assert sent == ["Be long.", "a", "2", "b", "3", "c"]
    assert mine.responses.create(model="m", input="d", previous_response_id=first.id).output_text == "3"
    unstored = mine.responses.create(model="m", input="a", store=False)
    for asking, previous in ((other, first.id), (mine, unstored.id), (mine, "resp_none")):
        with pytest.raises(openai.NotFoundError, match="is not known here"):
            asking.responses.create(model="m", input="b", previous_response_id=previous)


def test_broken_arguments_come_back_unchanged(serve):
    broken = '{"query": "SELECT'
    serving = serve([ScriptedReply(None, [ScriptedCall("f", broken, "c1")])] * 2 + ["done"], speaks=["chat"])
    client = anthropic.Anthropic(base_url=serving.url, api_key="any", max_retries=0)
    (use,) = client.messages.create(**MESSAGES).content
    with client.messages.stream(**MESSAGES) as stream:
        assert stream.get_final_message().content[0].input == use.input == {"INVALID_JSON": broken}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "no", "is_error": True}
    history: Any = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    client.messages.create(**{**MESSAGES, "messages": history})
    sent = serving.model.requests[-1].body["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": broken}
    assert sent[2] == {"role": "tool", "tool_call_id": "c1", "content": "no"}


def thinking(body: Any) -> ScriptedReply:
    message = {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    if body.get("stream"):
        chunks = [
            {"delta": {"reasoning_content": "hm"}},
            {"delta": {"content": "yes"}},
            {"delta": {}, "finish_reason": "stop"},
        ]
        events = [{"id": "c", "choices": [{"index": 0, **one}]} for one in chunks]
        text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        return ScriptedReply(body=text.encode(), content_type="text/event-stream")
    return ScriptedReply(
        body=json.dumps({"id": "c", "choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    )


def test_reasoning_goes_both_ways(serve):
    serving = serve(thinking, speaks=["chat"], store=None)
    client = openai.OpenAI(base_url=serving.base_url, api_key="any", max_retries=0)
    with client.responses.stream(model="m", input="hi") as stream:
        streamed = stream.until_done().get_final_response()
    for reply in (client.responses.create(model="m", input="hi"), streamed):
        assert [one.type for one in reply.output] == ["reasoning", "message"]
        client.responses.create(model="m", input=[USER, *(one.to_dict() for one in reply.output), USER])  # type: ignore[list-item]
        again = serving.model.requests[-1].body["messages"][1]
        assert again == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    other = anthropic.Anthropic(base_url=serving.url, api_key="any", max_retries=0)
    with other.messages.stream(**MESSAGES) as events:
        streamed_message = events.get_final_message()
    for message in (other.messages.create(**MESSAGES), streamed_message):
        assert [one.type for one in message.content] == ["thinking", "text"]
        content = [one.to_dict() for one in message.content]
        other.messages.create(**{**MESSAGES, "messages": [USER, {"role": "assistant", "content": content[:2]}, USER]})
        assert serving.model.requests[-1].body["messages"][1]["reasoning_content"] == "hm"


@pytest.mark.parametrize("stream", [False, True])
def test_a_translated_completion_has_the_requested_tokens(serve, store, stream):
    serving = serve(lambda body: "x", speaks=["chat"])
    for asked, has in (({}, set()), ({"logprobs": 1}, {"logprobs"}), ({"return_token_ids": True}, {"token_ids"})):
        reply = httpx.post(
            f"{serving.url}/v1/completions", json={"model": "m", "prompt": "hi", "stream": stream, **asked}
        )
        lines = [line[6:] for line in reply.text.splitlines() if line[:6] == "data: "][:-1] if stream else [reply.text]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        given = {name for one in choices for name in ("logprobs", "token_ids") if one.get(name) is not None}
        assert given == has
    assert all(call.response_ids and call.logprobs for call in store.calls())


def test_what_is_translated_for_an_upstream(serve):
    serving = serve(lambda body: "x", speaks=["chat"])
    schema = {"type": "object", "properties": {}}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    httpx.post(f"{serving.url}/v1/messages", json={
        **MESSAGES, "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "top_k": 4,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, image]}], "stop_sequences": ["S"],
        "tools": [{"name": "f", "description": "d", "input_schema": schema}], "temperature": 0.5,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "stream": True,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    })  # fmt: skip
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    function = {"name": "f", "description": "d", "parameters": schema}
    assert serving.model.requests[-1].body == {
        "model": "m", "max_tokens": 5, "top_k": 4, "temperature": 0.5, "stop": ["S"], "stream": True,
        "stream_options": {"include_usage": True}, "tool_choice": "required", "parallel_tool_calls": False,
        "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "see"}, url]}],
        "tools": [{"type": "function", "function": function}], "logprobs": True, "return_token_ids": True,
        "response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema, "strict": True}},
    }  # fmt: skip
    httpx.post(f"{serving.url}/v1/responses", json={
        **RESPONSES, "input": [{"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "http://x/y.png", "detail": "low"}]}], "max_output_tokens": 7,
        "reasoning": {"effort": "low"}, "parallel_tool_calls": False, "tool_choice": {"type": "function", "name": "f"},
        "tools": [{"type": "function", "name": "f", "parameters": schema, "strict": True}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}, "verbosity": "low"},
        "top_logprobs": 2, "metadata": {"a": "b"}, "user": "u",
    })  # fmt: skip
    url = {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "low"}}
    assert serving.model.requests[-1].body == {
        "model": "m", "max_completion_tokens": 7, "reasoning_effort": "low", "parallel_tool_calls": False,
        "messages": [
            {"role": "developer", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "see"}, url]},
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "verbosity": "low",
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        "logprobs": True, "top_logprobs": 2, "return_token_ids": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("responses", {"model": "m", "input": "hi"}),
        ("messages", MESSAGES),
        ("completions", {"model": "m", "prompt": "hi"}),
    ],
)
def test_lone_surrogates_pass_as_json_escapes(serve, store, path, asked):
    def split(body: Any) -> ScriptedReply:
        halves = [{"delta": {"content": "\ud83d"}}, {"delta": {"content": "\ude00"}, "finish_reason": "stop"}]
        events = [json.dumps({"id": "c", "choices": [{"index": 0, **one}]}) for one in halves]
        if body.get("stream"):
            stream = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
            return ScriptedReply(body=stream.encode(), content_type="text/event-stream")
        whole = {"id": "c", "choices": [{"message": {"content": "\ud83d\ude00 \ud83d"}, "finish_reason": "stop"}]}
        return ScriptedReply(body=json.dumps(whole).encode())

    serving = serve(split, speaks=["chat"])
    address = f"{serving.base_url}/{path}"
    whole = httpx.post(address, json=asked)
    assert "\U0001f600 \ud83d" in json.dumps(whole.json(), ensure_ascii=False)
    streamed = httpx.post(address, json={**asked, "stream": True})
    assert "\\ud83d" in streamed.text
    assert "\\ude00" in streamed.text
    assert next(iter(store.calls())).response == whole.json()
    assert "\U0001f600" in json.dumps(list(store.calls())[1].response, ensure_ascii=False)
