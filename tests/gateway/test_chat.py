"""The endpoint through the official client."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

from lgov_core.gateway.limits import Limits
from lgov_core.models.tool_formats import ParsedCall
from lgov_core.testing import ScriptedCall, ScriptedReply, call, token_logprob

MESSAGES = [{"role": "user", "content": "How many?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "run_sql",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]
HEADERS = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1", "x-lgov-agent": "pay%20d%C3%A9sk"}


def client(serving, **options):
    return openai.OpenAI(base_url=serving.base_url, api_key="any", max_retries=0, **options)


def test_a_call_is_captured_exactly(serve, store):
    serving = serve([call("run_sql", query="SELECT 1")])
    reply = client(serving, default_headers=HEADERS).chat.completions.create(
        model="m", messages=MESSAGES, tools=TOOLS, temperature=0.7, top_p=0.9, max_tokens=50, seed=3
    )
    (tool_call,) = reply.choices[0].message.tool_calls
    assert (tool_call.function.name, tool_call.function.arguments) == ("run_sql", '{"query": "SELECT 1"}')

    (captured,) = store.calls()
    assert (captured.rollout_id, captured.attempt, captured.agent) == ("r1", 1, "pay désk")
    assert captured.response_id == reply.id
    assert captured.tool_call_ids == (tool_call.id,)
    assert (captured.model, captured.engine, captured.finish_reason) == ("m", "upstream", "tool_calls")
    assert (captured.temperature, captured.top_p, captured.weights_version) == (0.7, 0.9, None)
    assert bytes(captured.prompt_ids) == json.dumps(MESSAGES).encode()
    assert captured.response_ids[-1] == 256
    assert (
        bytes(captured.response_ids[:-1])
        == json.dumps({"name": "run_sql", "arguments": '{"query": "SELECT 1"}'}).encode()
    )
    assert captured.logprobs == tuple(map(token_logprob, captured.response_ids))
    assert captured.started_at <= captured.ended_at
    # The request is what the client asked, without what the endpoint added for the upstream.
    assert captured.request["messages"] == MESSAGES
    assert captured.request["seed"] == 3
    assert "return_token_ids" not in captured.request
    assert captured.response["choices"][0]["token_ids"] == list(captured.response_ids)
    sent = serving.model.requests[0]
    assert sent.body == {**captured.request, "logprobs": True, "return_token_ids": True}
    assert "x-lgov-rollout-id" not in sent.headers
    assert "authorization" not in sent.headers
    assert serving.counters.as_dict()["recorded"] == 1
    assert serving.counters.without_token_ids == 0


async def test_async_client_and_two_tool_calls(serve, store):
    serving = serve([ScriptedReply("Both.", [ScriptedCall("a", {"x": 1}), ScriptedCall("b", '{"broken')])])
    async with openai.AsyncOpenAI(base_url=serving.base_url, api_key="any", default_headers=HEADERS) as asking:
        reply = await asking.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS)
    calls = [ParsedCall(c.function.name, c.function.arguments) for c in reply.choices[0].message.tool_calls]
    assert calls == [ParsedCall("a", '{"x": 1}'), ParsedCall("b", '{"broken')]
    (captured,) = store.calls()
    assert captured.tool_call_ids == tuple(c.id for c in reply.choices[0].message.tool_calls)


def test_the_upstreams_json_comes_back_unchanged(serve):
    serving = serve([ScriptedReply("Éé 1", extra={"system_fingerprint": "fp", "odd": {"x": [1.5, None, "ü"]}})] * 2)
    reply = httpx.post(f"{serving.base_url}/chat/completions", json={"model": "m", "messages": MESSAGES}).json()
    assert reply["odd"] == {"x": [1.5, None, "ü"]}
    assert reply["system_fingerprint"] == "fp"
    assert "lgov" not in reply


def test_the_upstreams_json_comes_back_byte_for_byte(serve, store):
    text = '{ "id":"x",\n"choices":[ {"message": {"content":"\\u00e9 é"}, "finish_reason":"stop"}],  "n": 1e3 }\n'
    serving = serve([ScriptedReply(body=text.encode())])
    reply = httpx.post(f"{serving.base_url}/chat/completions", json={"model": "m", "messages": MESSAGES})
    assert reply.text == text
    assert [call.response for call in store.calls()] == [json.loads(text)]


def test_models_and_health(serve):
    serving = serve([], models=["big", "small"])
    assert [model.id for model in client(serving).models.list()] == ["big", "small"]
    assert httpx.get(f"{serving.url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{serving.url}/admin/state").json()["counters"]["recorded"] == 0
    with pytest.raises(openai.NotFoundError, match=r"no model 'huge' \(there are: big, small\)"):
        client(serving).chat.completions.create(model="huge", messages=MESSAGES)


BAD_REQUESTS = [
    (b"{", 400, "not JSON"),
    (b"[1]", 400, "must be a JSON object, not list"),
    (b"\xff\xfe\x00", 400, "not JSON"),
    (b"[" * 60_000, 400, "not JSON"),
    (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', 400, "surrogate"),
    (b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400, "NaN"),
    ({"messages": MESSAGES}, 400, "'model'"),
    ({"model": "m"}, 400, "'messages'"),
    ({"model": "m", "messages": []}, 400, "'messages'"),
    ({"model": "m", "messages": ["x"]}, 400, "messages[0]"),
    ({"model": "m", "messages": [{"role": "tool", "content": "x"}]}, 400, "tool_call_id"),
    ({"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, 400, "tool_calls"),
    ({"model": "m", "messages": MESSAGES, "n": 0}, 400, "'n' must be a whole number ≥ 1 ≤ 128"),
    ({"model": "m", "messages": MESSAGES, "n": 1000}, 400, "≤ 128"),
    ({"model": "m", "messages": MESSAGES, "temperature": "hot"}, 400, "'temperature'"),
    ({"model": "m", "messages": MESSAGES, "temperature": -1}, 400, "≥ 0"),
    ({"model": "m", "messages": MESSAGES, "top_p": 0}, 400, "> 0"),
    ({"model": "m", "messages": MESSAGES, "max_tokens": 0}, 400, "'max_tokens'"),
    ({"model": "m", "messages": MESSAGES, "max_tokens": 5, "max_completion_tokens": 6}, 400, "disagree"),
    ({"model": "m", "messages": MESSAGES, "stop": [""]}, 400, "'stop'"),
    ({"model": "m", "messages": MESSAGES, "seed": 1.5}, 400, "'seed' must be a whole number"),
    ({"model": "m", "messages": MESSAGES, "stream": "yes"}, 400, "'stream'"),
    ({"model": "m", "messages": MESSAGES, "stream_options": 3}, 400, "'stream_options'"),
    ({"model": "m", "messages": MESSAGES, "tools": {}}, 400, "'tools'"),
    ({"model": "m", "messages": MESSAGES, "tools": [{"type": "web_search"}]}, 400, "tools[0]"),
    ({"model": "m", "messages": [{"role": "user", "content": "x" * 70_000}]}, 413, "more than 65536 bytes"),
]


def test_bad_requests_get_openais_error_shape(serve, store):
    serving = serve([], limits=Limits(max_body=65_536))
    for body, status, says in BAD_REQUESTS:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = httpx.post(f"{serving.base_url}/chat/completions", content=content)
        error = reply.json()["error"]
        assert reply.status_code == status, body
        assert says in error["message"], body
        assert (error["type"], error["code"]) == ("invalid_request_error", "endpoint")
    assert serving.model.requests == []
    assert list(store.calls()) == []
    assert serving.counters.failed == len(BAD_REQUESTS)


@pytest.mark.parametrize(
    "text",
    [
        "-0",
        "18446744073709551616",
        "-9223372036854775809",
        "12345678901234567890123456789",
        "0.12345678901234567891",
        "1E5",
    ],
)
def test_numbers_are_passed_on_exactly(serve, store, text):
    serving = serve([ScriptedReply("ok")])
    body = f'{{"model": "m", "messages": [{{"role": "user", "content": "x"}}], "extra": {text}}}'
    assert httpx.post(f"{serving.base_url}/chat/completions", content=body).status_code == 200
    (sent,), (kept,) = serving.model.requests, store.calls()
    for found in (sent.body["extra"], kept.request["extra"]):
        assert (type(found), found) == (type(json.loads(text)), json.loads(text))


def test_unknown_paths_and_methods_get_openais_error_shape(serve):
    serving = serve([])
    for method, path, status in (("GET", "/v1/chat/completions", 405), ("POST", "/v1/images/generations", 404)):
        reply = httpx.request(method, serving.url + path)
        assert reply.status_code == status
        assert path in reply.json()["error"]["message"]


def test_a_body_far_above_the_limit_is_refused(serve):
    serving = serve([], limits=Limits(max_body=1024))
    reply = httpx.post(f"{serving.base_url}/chat/completions", content=b"x" * 6_000)
    assert reply.status_code == 413


def test_tool_choice_none_and_stop_reach_the_engine(serve):
    serving = serve(["x"])
    client(serving).chat.completions.create(
        model="m", messages=MESSAGES, tools=TOOLS, tool_choice="none", stop=["a", "b"]
    )
    assert serving.model.requests[0].body["tool_choice"] == "none"
    assert serving.model.requests[0].body["stop"] == ["a", "b"]
