"""What the embedded engine takes and refuses, in the shape of each API."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from tests.gateway.conftest import error_in

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "m", "messages": [USER]}
RESPONSES = {"model": "m", "input": "hi"}
MESSAGES = {"model": "m", "max_tokens": 5, "messages": [USER]}
COMPLETIONS = {"model": "m", "prompt": "hi"}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "'tool_choice'"),
        ({"tool_choice": "required"}, "'tool_choice' ('required')"),
        ({"response_format": {"type": "grammar"}}, "'response_format'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}}, "the JSON schema"),
        ({"presence_penalty": 0.5}, "'presence_penalty'"),
        ({"logit_bias": {"5": 1}}, "'logit_bias'"),
        ({"top_k": 4}, "'top_k'"),
        ({"logprobs": True, "top_logprobs": 2}, "'top_logprobs'"),
        ({"enable_thinking": False}, "'enable_thinking'"),
        ({"functions": [{"name": "f"}]}, "'functions'"),
        ({"modalities": ["text", "audio"]}, "'modalities'"),
        ({"telepathy": 1}, "'telepathy'"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "'image_url'"),
    ],
)
def test_the_embedded_engine_refuses_what_it_cannot_honour(embedded_url, more, says):
    for stream in (False, True):
        body = {"model": "tiny", "messages": [USER], "stream": stream, **more}
        reply = httpx.post(f"{embedded_url}/v1/chat/completions", json=body)
        assert reply.status_code == 400
        assert says in reply.json()["error"]["message"]


def test_neutral_values_are_accepted(embedded_url):
    neutral = {
        "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "tool_choice": "auto",
        "parallel_tool_calls": False, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_logprobs": 0,
        "response_format": {"type": "text"}, "modalities": ["text"], "reasoning_effort": None, "functions": [],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}],
    }  # fmt: skip
    body = {"model": "tiny", "messages": [USER], "max_tokens": 2, **neutral}
    assert httpx.post(f"{embedded_url}/v1/chat/completions", json=body).status_code == 200


def test_refusals_have_the_shape_of_the_api(embedded_url):
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    asked = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": [image]}]}
    for stream in (False, True):
        reply = httpx.post(f"{embedded_url}/v1/messages", json={**asked, "stream": stream})
        assert reply.status_code == 400
        assert "'image_url'" in error_in("/v1/messages", reply)
    missing = httpx.post(f"{embedded_url}/v1/messages", json={**MESSAGES, "model": "huge"})
    assert missing.status_code == 404
    assert "no model 'huge'" in error_in("/v1/messages", missing)


def test_counting_tokens(embedded_url, model, serve):
    client = anthropic.Anthropic(base_url=embedded_url, api_key="any", max_retries=0)
    asked: Any = {"model": "tiny", "messages": [{"role": "user", "content": "How much?"}], "system": "Be brief."}
    count = client.messages.count_tokens(**asked).input_tokens
    message = client.messages.create(**asked, max_tokens=2)
    assert count == message.usage.input_tokens == len(model.render([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How much?"}]))  # fmt: skip
    elsewhere = anthropic.Anthropic(base_url=serve([]).url, api_key="any", max_retries=0)
    with pytest.raises(anthropic.NotFoundError, match="cannot count"):
        elsewhere.messages.count_tokens(**asked)


def test_stop_sequences_and_the_limit_say_why_a_message_ended(embedded_url):
    client = anthropic.Anthropic(base_url=embedded_url, api_key="any", max_retries=0)
    asked: Any = {"model": "tiny", "messages": [USER], "extra_body": {"temperature": 0}}
    short = client.messages.create(**asked, max_tokens=1)
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 1)
    whole = client.messages.create(**asked, max_tokens=8).content[0].text
    stopped = client.messages.create(**asked, max_tokens=8, stop_sequences=["never", whole[1]])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", whole[1])
    assert stopped.content[0].text == whole[: whole.index(whole[1])]
