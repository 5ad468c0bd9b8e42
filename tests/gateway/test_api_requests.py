"""What each API refuses, in its own shape; and what only one of them has."""

from __future__ import annotations

from typing import Any

import httpx

from lgov_core.gateway.limits import Limits
from tests.gateway.conftest import error_in

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
        (item(role="user", content=[{"type": "input_image", "file_id": "f"}]), "input[0].content[0]"),
        (item(type="function_call", name="f"), "input[0] is a function call without"),
        (item(type="function_call_output", output="x"), "input[0] is a function's output without"),
        (item(type="reasoning", summary=[{"type": "summary_text"}]), "input[0] is reasoning with a part"),
        (item(type="item_reference", id="x"), "'item_reference'"),
        (item(type="compaction", encrypted_content="x"), "'compaction'"),
        ({**RESPONSES, "tools": [{"type": "function"}]}, "tools[0]"),
        ({**RESPONSES, "tools": "x"}, "'tools' must be a list"),
        ({**RESPONSES, "tool_choice": {"type": "allowed_tools"}}, "'tool_choice'"),
        ({**RESPONSES, "background": True}, "'background'"),
        ({**RESPONSES, "conversation": "c"}, "'conversation'"),
        ({**RESPONSES, "prompt": {"id": "p"}}, "'prompt'"),
        ({**RESPONSES, "truncation": "middle"}, "'truncation'"),
        ({**RESPONSES, "reasoning": {"depth": 3}}, "'depth'"),
        ({**RESPONSES, "include": ["file_search_call.guesses"]}, "'include'"),
        ({**RESPONSES, "reasoning.effort": "high"}, "'reasoning.effort'"),
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
        ({**MESSAGES, "messages": [{"role": "judge", "content": "x"}]}, "messages[0]"),
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
        (block("assistant", type="tool_addition"), "'tool_addition'"),
        ({**MESSAGES, "tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({**MESSAGES, "tools": [{"name": "f", "input_schema": {}, "input_guesses": [{}]}]}, "'input_guesses'"),
        ({**MESSAGES, "tool_choice": {"type": "some"}}, "'tool_choice'"),
        ({**MESSAGES, "thinking": "long"}, "'thinking'"),
        ({**MESSAGES, "inference_geo": "eu"}, "'inference_geo'"),
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
