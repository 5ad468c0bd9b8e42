"""What each API refuses, in its own shape; and what only one of them has."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.serving.keys import KeyRing
from lgov_core.gateway.serving.limits import Limits
from lgov_core.gateway.serving.server import EndpointServer
from lgov_core.testing import ScriptedCall, ScriptedReply
from tests.gateway.conftest import SECRET
from tests.gateway.taught import tiny

USER = {"role": "user", "content": "hi"}
CHAT = {"model": "m", "messages": [USER]}
RESPONSES = {"model": "m", "input": "hi"}
MESSAGES = {"model": "m", "max_tokens": 5, "messages": [USER]}
COMPLETIONS = {"model": "m", "prompt": "hi"}
BROKEN = [(b"{", "not JSON"), (b"[1]", "must be a JSON object"), (b"\xff", "not JSON"), (b"[" * 60_000, "not JSON")]


def item(**fields: Any) -> dict[str, Any]:
    return {**RESPONSES, "input": [fields]}


TEXT = {"type": "text", "text": "x"}


def block(role: str = "user", **fields: Any) -> dict[str, Any]:
    return {**MESSAGES, "messages": [{"role": role, "content": [fields]}, USER]}


REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "/v1/responses": [
        ({"input": "hi"}, "'model'"),
        ({"model": "m"}, "'input'"),
        ({**RESPONSES, "input": []}, "'input'"),
        ({**RESPONSES, "input": [3]}, "input[0] must be an object"),
        (item(role="judge", content="x"), "input[0] has the role 'judge'"),
        (item(role="user", content=[{"type": "input_file", "file_id": "f"}]), "input[0].content[0]"),
        (item(role="user", content=[{"type": "input_image", "file_id": "f"}]), "input[0].content[0]"),
        (item(type="function_call", name="f"), "input[0] is a function call without"),
        (item(type="function_call_output", output="x"), "input[0] is a function's output without"),
        (item(type="reasoning", summary=[], encrypted_content="x"), "input[0] is reasoning without its text"),
        (item(type="item_reference", id="x"), "'item_reference'"),
        (item(type="web_search_call", id="x"), "'web_search_call'"),
        ({**RESPONSES, "tools": [{"type": "web_search"}]}, "tools[0] ('web_search')"),
        ({**RESPONSES, "tools": [{"type": "function"}]}, "tools[0]"),
        ({**RESPONSES, "tools": "x"}, "'tools' must be a list"),
        ({**RESPONSES, "tool_choice": {"type": "allowed_tools"}}, "'tool_choice'"),
        ({**RESPONSES, "background": True}, "'background'"),
        ({**RESPONSES, "conversation": "c"}, "'conversation'"),
        ({**RESPONSES, "prompt": {"id": "p"}}, "'prompt'"),
        ({**RESPONSES, "max_tool_calls": 3}, "'max_tool_calls'"),
        ({**RESPONSES, "truncation": "auto"}, "'truncation'"),
        ({**RESPONSES, "reasoning": {"summary": "auto"}}, "'summary'"),
        ({**RESPONSES, "include": ["file_search_call.results"]}, "'include'"),
        ({**RESPONSES, "text": {"format": {"type": "grammar"}}}, "text.format"),
        ({**RESPONSES, "max_output_tokens": 0}, "'max_output_tokens'"),
        ({**RESPONSES, "temperature": 3}, "'temperature'"),
        ({**RESPONSES, "stream": "yes"}, "'stream'"),
        ({**RESPONSES, "instructions": 3}, "'instructions'"),
        ({**RESPONSES, "n": 2}, "'n'"),
        ({**RESPONSES, "previous_response_id": 3}, "'previous_response_id'"),
        ({**RESPONSES, "previous_response_id": ""}, "'previous_response_id'"),
        ({**RESPONSES, "telepathy": 1}, "'telepathy'"),
    ],
    "/v1/messages": [
        ({"max_tokens": 5, "messages": [USER]}, "'model'"),
        ({"model": "m", "messages": [USER]}, "'max_tokens'"),
        ({**MESSAGES, "max_tokens": 0}, "'max_tokens'"),
        ({**MESSAGES, "messages": []}, "'messages'"),
        ({**MESSAGES, "messages": [{"role": "system", "content": "x"}]}, "messages[0]"),
        (
            {**MESSAGES, "messages": [USER, {"role": "assistant", "content": "x"}]},
            "the last message is the assistant's",
        ),
        (block(type="document"), "messages[0].content[0]"),
        (block(type="image", source={"type": "file", "file_id": "f"}), "messages[0].content[0]"),
        (block(type="tool_result", content="x"), "without 'tool_use_id'"),
        (
            {
                **MESSAGES,
                "messages": [{"role": "user", "content": [TEXT, {"type": "tool_result", "tool_use_id": "t"}]}],
            },
            "messages[0].content[1]: the results of tools come first",
        ),
        (block("assistant", type="tool_use", id="t", name="f", input="x"), "an object as 'input'"),
        (block("assistant", type="redacted_thinking", data="x"), "'redacted_thinking'"),
        (block("assistant", type="server_tool_use"), "'server_tool_use'"),
        ({**MESSAGES, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({**MESSAGES, "tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({**MESSAGES, "tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}, "'defer_loading'"),
        ({**MESSAGES, "tool_choice": {"type": "some"}}, "'tool_choice'"),
        ({**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": 2000}}, "'thinking'"),
        ({**MESSAGES, "container": "c"}, "'container'"),
        ({**MESSAGES, "mcp_servers": [{"url": "x"}]}, "'mcp_servers'"),
        ({**MESSAGES, "stop_sequences": [""]}, "'stop'"),
        ({**MESSAGES, "system": 3}, "'system'"),
        ({**MESSAGES, "stream": 1}, "'stream'"),
        ({**MESSAGES, "telepathy": 1}, "'telepathy'"),
    ],
    "/v1/completions": [
        ({"prompt": "x"}, "'model'"),
        ({"model": "m"}, "'prompt'"),
        ({**COMPLETIONS, "prompt": ["a", "b"]}, "'prompt' must be one text"),
        ({**COMPLETIONS, "prompt": [1, 2]}, "'prompt' must be one text"),
        ({**COMPLETIONS, "echo": True}, "'echo'"),
        ({**COMPLETIONS, "suffix": "x"}, "'suffix'"),
        ({**COMPLETIONS, "best_of": 4}, "'best_of'"),
        ({**COMPLETIONS, "logprobs": 9}, "'logprobs'"),
        ({**COMPLETIONS, "n": 0}, "'n'"),
        ({**COMPLETIONS, "telepathy": 1}, "'telepathy'"),
    ],
}


def error_in(path: str, reply: httpx.Response) -> str:
    """The message, out of the shape that the API gives its errors."""
    body = reply.json()
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error",
                 405: "invalid_request_error", 413: "request_too_large"}  # fmt: skip
        assert body["error"]["type"] == kinds[reply.status_code]
    else:
        assert set(body["error"]) == {"message", "type", "code", "param"}
    return body["error"]["message"]


def test_every_api_refuses_in_its_own_shape_and_asks_no_model(serve, store):
    serving = serve([], speaks=["chat"], limits=Limits(max_body=65_536))
    asked = 0
    with httpx.Client(base_url=serving.url) as client:
        for path, cases in REFUSED.items():
            for body, says in cases:
                reply = client.post(path, json=body)
                assert reply.status_code == 400, (path, body)
                assert says in error_in(path, reply), (path, body)
                asked += 1
            for content, says in BROKEN:
                reply = client.post(path, content=content)
                assert reply.status_code == 400
                assert says in error_in(path, reply)
            assert client.get(path).status_code == 405
            error_in(path, client.get(path))
            large = client.post(path, content=b" " * 70_000)
            assert large.status_code == 413
            error_in(path, large)
    assert asked > 60
    assert serving.model.requests == []
    assert list(store.calls()) == []


@pytest.fixture(scope="module")
def model():
    return tiny(3)


@pytest.fixture(scope="module")
def embedded_url(model):
    with EndpointServer([EmbeddedEngine(model, max_new_tokens=8)], None, keys=KeyRing(required=False)) as endpoint:
        yield endpoint.url


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "'tool_choice'"),
        ({"tool_choice": "required"}, "'tool_choice' ('required')"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "'parallel_tool_calls'"),
        ({"response_format": {"type": "grammar"}}, "'response_format'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "odd"}}}}, "the JSON schema"),
        ({"presence_penalty": 0.5}, "'presence_penalty'"),
        ({"logit_bias": {"5": 1}}, "'logit_bias'"),
        ({"top_k": 4}, "'top_k'"),
        ({"logprobs": True, "top_logprobs": 2}, "'top_logprobs'"),
        ({"reasoning_effort": "high"}, "'reasoning_effort'"),
        ({"functions": [{"name": "f"}]}, "'functions'"),
        ({"modalities": ["text", "audio"]}, "'modalities'"),
        ({"telepathy": 1}, "'telepathy'"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "'image_url'"),
        ({"messages": [{"role": "assistant", "content": "x", "reasoning_content": "y"}, USER]}, "reasoning"),
    ],
)
def test_the_embedded_engine_refuses_what_it_cannot_honour(embedded_url, more, says):
    for stream in (False, True):
        body = {"model": "tiny", "messages": [USER], "stream": stream, **more}
        reply = httpx.post(f"{embedded_url}/v1/chat/completions", json=body)
        assert reply.status_code == 400
        assert says in reply.json()["error"]["message"]


def test_the_embedded_engine_takes_what_asks_for_nothing_special(embedded_url):
    neutral = {
        "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "tool_choice": "auto",
        "parallel_tool_calls": True, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "top_logprobs": 0,
        "response_format": {"type": "text"}, "modalities": ["text"], "reasoning_effort": None, "functions": [],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}],
    }  # fmt: skip
    body = {"model": "tiny", "messages": [USER], "max_tokens": 2, **neutral}
    assert httpx.post(f"{embedded_url}/v1/chat/completions", json=body).status_code == 200


def test_refusals_of_the_embedded_engine_have_the_shape_of_the_api_that_was_asked(embedded_url):
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


def test_embeddings_are_passed_on_and_the_embedded_engine_has_none(serve, store, embedded_url):
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


def test_the_anthropic_client_sends_its_key_and_it_says_whose_call_it_is(serve, store):
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


def test_a_conversation_is_found_by_its_own_rollout_only_and_not_if_it_was_not_to_be_stored(serve):
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


def test_arguments_that_are_no_object_come_back_as_the_model_wrote_them(serve):
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


def test_reasoning_comes_as_items_of_the_api_and_goes_back_to_the_upstream(serve):
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
def test_a_translated_completion_has_the_tokens_that_were_asked_for_and_no_others(serve, store, stream):
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
def test_halves_of_a_character_that_a_server_sends_go_on_as_json_writes_them(serve, store, path, asked):
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
