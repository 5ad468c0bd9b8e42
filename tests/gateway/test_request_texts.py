"""What a request says beside its messages is judged and redacted; what is not known is not forwarded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.policy_gate import PolicyGate
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.governor import Governor
from lgov_core.policies.content.secrets import SecretsPolicy
from lgov_core.testing import ScriptedReply
from lgov_core.types import Action, Decision, Point
from tests.cells import Seen
from tests.gateway.test_gate_routes import ALL, Rules

KEY = "AKIA" + "IOSFODNN7EXAMPLQ"
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "description": KEY}}}
PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
FUNCTION = {"name": "f", "description": f"Uses {KEY}.", "parameters": SCHEMA}
PARTS = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": f"https://a.example/?k={KEY}"}}]

#: Every place of a text that is not a message's: by API, what is added to the request.
PLACES: dict[str, list[dict[str, Any]]] = {
    "chat/completions": [
        {"messages": [{**USER, "name": KEY}]},
        {"messages": [{"role": "user", "content": PARTS}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": KEY}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": KEY}]}]},
        {"messages": [{"role": "assistant", "content": "", "reasoning_content": KEY}, USER]},
        {"messages": [{"role": "assistant", "content": "", "refusal": KEY}, USER]},
        {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "note": KEY}]}, USER]},
        {"tools": [{"type": "function", "function": FUNCTION}]},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"metadata": {"a": KEY}},
        {"user": KEY},
        {"stop": KEY},
        {"stop": ["a", KEY]},
        {"prediction": {"type": "content", "content": f"so {KEY}"}},
        {"prediction": {"type": "content", "content": [{"type": "text", "text": KEY}]}},
        {"tool_choice": {"type": "function", "function": {"name": KEY}}},
        {"prompt_cache_key": KEY},
        {"safety_identifier": KEY},
        {"service_tier": KEY},
    ],
    "completions": [{"user": KEY}, {"stop": [KEY]}],
    "responses": [
        {"metadata": {"a": KEY}},
        {"user": KEY},
        {"tools": [{"type": "function", "strict": False, **FUNCTION}]},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": KEY}]}]},
        {"input": [USER, {"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": KEY}]}, USER]},
        {"input": [{"role": "user", "id": KEY, "content": "x"}]},
        {"input": [{"role": "user", "content": "x", "arguments": KEY}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "note": [KEY]}]}]},
    ],
    "messages": [
        {"metadata": {"user_id": KEY}},
        {"stop_sequences": [KEY]},
        {"tools": [{"name": "f", "description": KEY, "input_schema": SCHEMA}]},
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": KEY, "signature": ""}]}, USER]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "input": {"a": KEY}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": KEY}}]}]},
    ],
}  # fmt: skip
PLAIN: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": [USER]},
    "completions": {"model": "m", "prompt": "hi"},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "max_tokens": 9, "messages": [USER]},
    "embeddings": {"model": "m", "input": "hi"},
}


@pytest.fixture(scope="module")
def redacting() -> Iterator[PolicyGate]:
    gate = PolicyGate(Governor([SecretsPolicy(action="redact")]))
    yield gate
    gate.close()


@pytest.mark.parametrize("speaks", [ALL, ("chat",)], ids=["native", "translated"])
@pytest.mark.parametrize("path", PLACES)
def test_no_text_of_a_request_passes_the_policies(stage, redacting: PolicyGate, path: str, speaks: Any) -> None:
    serving = stage(lambda body: "ok", gate=redacting, speaks=speaks)
    for more in PLACES[path]:
        serving.model.requests.clear()
        reply = httpx.post(f"{serving.base_url}/{path}", json={**PLAIN[path], **more})
        assert reply.status_code in ((200,) if "tool_choice" not in more else (200, 400)), (more, reply.text)
        for sent in serving.model.requests:
            assert KEY not in json.dumps(sent.body), more
            assert json.dumps(more).count(KEY) >= json.dumps(sent.body).count("[AWS")
        assert KEY in json.dumps(more)


def test_redaction_of_a_field_leaves_the_rest_of_the_call_as_it_is(stage, redacting: PolicyGate) -> None:
    asked = {"model": "m", "messages": [USER], "tools": [{"type": "function", "function": FUNCTION}], "top_p": 0.5}
    serving = stage(lambda body: "ok", gate=redacting)
    assert httpx.post(f"{serving.base_url}/chat/completions", json=asked).status_code == 200
    sent = {name: value for name, value in serving.model.requests[0].body.items() if name in asked}
    found = json.dumps(sent["tools"]).partition("Uses ")[2].partition(".")[0]
    assert sent == json.loads(json.dumps(asked).replace(KEY, found))


@pytest.mark.parametrize("path", PLAIN)
def test_a_field_that_is_not_known_is_named_and_not_forwarded(stage, path: str) -> None:
    gate = Rules()
    serving = stage([], gate=gate, speaks=ALL)
    reply = httpx.post(f"{serving.base_url}/{path}", json={**PLAIN[path], "telepathy": "x"})
    assert (reply.status_code, "'telepathy'" in reply.text, serving.model.requests, gate.asked) == (400, True, [], [])


EXTENSIONS = {
    "min_tokens": 1,
    "ignore_eos": True,
    "length_penalty": 0.5,
    "stop_token_ids": [1, 2],
    "top_k": 5,
    "min_p": 0.1,
}


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_sampling_extensions_that_hold_numbers_are_forwarded(stage, path: str) -> None:
    serving = stage(lambda body: "ok", gate=Rules(), speaks=ALL)
    reply = httpx.post(f"{serving.base_url}/{path}", json={**PLAIN[path], **EXTENSIONS})
    assert reply.status_code == 200, reply.text
    assert EXTENSIONS.items() <= serving.model.requests[0].body.items()


@pytest.mark.parametrize(
    "more",
    [{"stop_token_ids": ["x"]}, {"min_tokens": "x"}, {"ignore_eos": {"a": 1}}, {"guided_regex": "x"}, {"lora_path": 1}],
)
def test_an_extension_that_could_hold_text_is_named_and_not_forwarded(stage, more: Any) -> None:
    serving = stage([], gate=Rules(), speaks=ALL)
    reply = httpx.post(f"{serving.base_url}/chat/completions", json={**PLAIN["chat/completions"], **more})
    assert (reply.status_code, f"'{next(iter(more))}'" in reply.text, serving.model.requests) == (400, True, [])


@pytest.mark.parametrize("more", [{"thoughts": "x"}, {"content": [{"type": "scene", "scene": "x"}]}])
def test_a_message_that_policies_cannot_read_is_refused(stage, more: Any) -> None:
    serving = stage([], gate=Rules())
    asked = {"model": "m", "messages": [{**USER, **more}]}
    reply = httpx.post(f"{serving.base_url}/chat/completions", json=asked)
    assert (reply.status_code, "thoughts" in reply.text or "scene" in reply.text) == (400, True)


def test_an_image_is_no_text_and_passes(stage) -> None:
    gate = Rules()
    serving = stage(lambda body: "ok", gate=gate, speaks=ALL)
    source = {"type": "base64", "media_type": "image/png", "data": PNG.partition(",")[2]}
    for path, content in (
        ("chat/completions", [{"type": "image_url", "image_url": {"url": PNG}}]),
        ("responses", [{"type": "input_image", "image_url": PNG}]),
        ("messages", [{"type": "image", "source": source}]),
    ):
        name = "input" if path == "responses" else "messages"
        asked = {**PLAIN[path], name: [{"role": "user", "content": content}]}
        assert httpx.post(f"{serving.base_url}/{path}", json=asked).status_code == 200
        assert "iVBOR" not in json.dumps(gate.asked[-1].fields)
        assert PNG.partition(",")[2] in json.dumps(serving.model.requests[-1].body)


@pytest.mark.parametrize("speaks", [["chat"], ALL])
@pytest.mark.parametrize("path", PLACES)
def test_what_was_redacted_is_redacted_in_the_record(serve, store, path: str, speaks: Any) -> None:
    gate = PolicyGate(Governor([SecretsPolicy(action="redact")]))
    serving = serve(["ok"], gate=gate, speaks=speaks)
    named = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"}
    text = f"see {KEY}"
    said: dict[str, Any] = {"completions": {"prompt": text}, "responses": {"input": text}}.get(
        path, {"messages": [{"role": "user", "content": text}]}
    )
    user = {} if path == "messages" else {"user": KEY}
    asked = {**PLAIN[path], **said, **user}
    assert httpx.post(f"{serving.base_url}/{path}", json=asked, headers=named).status_code == 200
    gate.close()
    (recorded,) = store.calls(["r1"])
    sent = serving.model.requests[0].body
    assert (KEY in json.dumps([recorded.request, sent]), recorded.request["model"]) == (False, "m")
    # The record is in the API of the client, the upstream is asked in one that it speaks: both have the same text.
    name = next(iter(said))
    redacted = recorded.request[name] if name != "messages" else recorded.request[name][0]["content"]
    assert redacted.startswith("see [")
    assert (sent[name] if name in sent and name != "messages" else sent["messages"][0]["content"]) == redacted


@pytest.mark.parametrize("streamed", [False, True])
def test_a_refusal_in_a_reply_is_judged(stage, streamed: bool) -> None:
    gate = PolicyGate(Governor([SecretsPolicy(action="redact")]))
    said = {"role": "assistant", "content": "so", "refusal": f"not {KEY}"}
    choice = {"index": 0, "delta" if streamed else "message": said, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    raw = json.dumps(body)
    kind = {"content_type": "text/event-stream"} if streamed else {}
    script = [ScriptedReply(body=(f"data: {raw}\n\ndata: [DONE]\n\n" if streamed else raw).encode(), **kind)]
    serving = stage(script, gate=gate)
    asked = {**PLAIN["chat/completions"], "stream": streamed}
    reply = httpx.post(f"{serving.base_url}/chat/completions", json=asked)
    gate.close()
    assert (reply.status_code, KEY in reply.text, "so" in reply.text) == (200, False, True)


class Rewriting(SecretsPolicy):
    """Puts something that cannot be sent in the place of the arguments."""

    def __init__(self, rewritten: dict[str, Any]) -> None:
        super().__init__()
        self._rewritten = rewritten

    def judge(self, action: Action) -> Decision | None:
        if action.point is not Point.PRE_MODEL_CALL or action.arguments.items() >= self._rewritten.items():
            return None
        return self.transform("x", "x", arguments={**action.arguments, **self._rewritten})


def test_what_a_policy_rewrote_so_that_it_cannot_be_sent_is_a_recorded_denial(stage) -> None:
    message = {"role": "user", "content": "a"}
    rewritten: list[dict[str, Any]] = [
        {"fields": {"user": 7}},
        {"fields": None},
        {"messages": "a"},
        {"messages": []},
        {"messages": [message, message]},
        {"messages": [{**message, "role": "system"}]},
        {"messages": [{**message, "content": 7}]},
    ]
    for changes in rewritten:
        seen = Seen()
        gate = PolicyGate(Governor([Rewriting(changes)], plugins=[seen]))
        serving = stage([], gate=gate)
        reply = httpx.post(f"{serving.base_url}/chat/completions", json={**PLAIN["chat/completions"], "user": "a"})
        said = reply.json()["choices"][0]["message"]["content"]
        assert (reply.status_code, "lgov/unclear-transform" in said) == (200, True), changes
        assert [decision.decision.rule for decision in seen.decisions(Point.PRE_MODEL_CALL)][-1] == "unclear-transform"
        gate.close()


def test_a_text_put_where_the_request_has_no_place_for_one_is_a_recorded_denial(stage) -> None:
    class Inserting(SecretsPolicy):
        """Gives every message a text."""

        def judge(self, action: Action) -> Decision | None:
            if action.point is not Point.PRE_MODEL_CALL or all(m["content"] for m in action.arguments["messages"]):
                return None
            messages = [{**message, "content": message["content"] or "b"} for message in action.arguments["messages"]]
            return self.transform("x", "x", arguments={**action.arguments, "messages": messages})

    seen = Seen()
    gate = PolicyGate(Governor([Inserting()], plugins=[seen]))
    serving = stage([], gate=gate)
    called = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    answered = {"type": "function_call_output", "call_id": "c1", "output": "a"}
    body = {"model": "m", "input": [{"role": "user", "content": "a"}, called, answered]}
    reply = httpx.post(f"{serving.base_url}/responses", json=body)
    assert (reply.status_code, "lgov/unclear-transform" in reply.text) == (200, True)
    assert [decision.decision.rule for decision in seen.decisions(Point.PRE_MODEL_CALL)][-1] == "unclear-transform"
    gate.close()


def test_counting_tokens_is_judged_too() -> None:
    asked: list[Any] = []

    class Counting(UpstreamEngine):
        async def count_tokens(self, request: Any) -> int:
            asked.append(request)
            return 3

    gate = PolicyGate(Governor([SecretsPolicy()]))
    app = create_app([Counting("http://127.0.0.1:9/v1")], None, keys=KeyRing(required=False), gate=gate)
    with EndpointServer(app) as endpoint:
        url = f"{endpoint.base_url}/messages/count_tokens"
        replies = [httpx.post(url, json={"model": "m", "messages": [{**USER, "content": text}]}) for text in ("a", KEY)]
    gate.close()
    assert ([reply.status_code for reply in replies], len(asked)) == ([200, 403], 1)
