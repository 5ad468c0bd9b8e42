"""What a reply says beside its text and its calls is judged like its text, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.policies import SecretsPolicy
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_openai import govern_client
from tests.openai import openai_programs as programs
from tests.openai.rules import USER

KEY = "AKIA" + "IOSFODNN7EXAMPLQ"
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
PICTURE = "iVBORw0KGgo" * 200

#: Every place of a text in a chat reply: what is added to the message, to its choice, and to the reply.
PLACES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"reasoning_content": f"so {KEY}"}, {}, {}),
    ({"reasoning": KEY}, {}, {}),
    ({"reasoning_details": [{"type": "reasoning.text", "text": KEY}]}, {}, {}),
    ({"audio": {"id": "a", "data": "AAAA", "transcript": KEY}}, {}, {}),
    ({"annotations": [{"type": "url_citation", "url_citation": {"title": KEY, "url": "https://a.example"}}]}, {}, {}),
    ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": KEY}]}, {"type": "text", "text": "x"}]}, {}, {}),
    ({"content": [{"type": "refusal", "refusal": KEY}]}, {}, {}),
    ({"tool_calls": [{**CALL, "note": KEY}]}, {}, {}),
    ({}, {"matched": KEY}, {}),
    ({}, {}, {"search_results": [{"snippet": KEY}]}),
]  # fmt: skip
#: The same of a response: its items.
ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": KEY}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": KEY}]},
    {"type": "code_interpreter_call", "status": "completed", "code": "1", "outputs": [{"type": "logs", "logs": KEY}]},
    {"type": "message", "role": "assistant", "content": [
        {"type": "output_text", "text": "x", "annotations": [{"type": "url_citation", "title": KEY, "url": "u"}]}]},
]  # fmt: skip


def chat_reply(place: tuple[dict[str, Any], dict[str, Any], dict[str, Any]], *, streamed: bool) -> ScriptedReply:
    of_message, of_choice, more = place
    message = {"role": "assistant", "content": "x", **of_message}
    kind = "tool_calls" if "tool_calls" in message else "stop"
    if streamed:
        calls = [{**one, "index": at} for at, one in enumerate(message.get("tool_calls", ()))]
        message |= {"tool_calls": calls} if calls else {}
    choice = {"index": 0, "delta" if streamed else "message": message, "finish_reason": kind, **of_choice}
    return scripted({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **more},
                    streamed)  # fmt: skip


def response(item: dict[str, Any], *, streamed: bool) -> ScriptedReply:
    whole = {"id": "r", "object": "response", "created_at": 1, "model": "m", "status": "completed",
             "output": [{"id": "i", **item}], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    return scripted(
        {"type": "response.completed", "response": whole, "sequence_number": 0} if streamed else whole, streamed
    )


def scripted(body: Any, streamed: bool) -> ScriptedReply:
    if not streamed:
        return ScriptedReply(body=json.dumps(body).encode())
    return ScriptedReply(
        body=f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n".encode(), content_type="text/event-stream"
    )


def given(policy: SecretsPolicy, script: ScriptedReply, api: str, streamed: bool) -> str:
    """All that the program gets of the reply, as JSON."""
    governor = Governor([policy])
    with ScriptedModelServer([script]) as server:
        client: Any = govern_client(programs.client(server.base_url), governor)
        if api == "chat":
            found = client.chat.completions.create(model="m", messages=[USER], stream=streamed)
        else:
            found = client.responses.create(model="m", input="go", stream=streamed)
        said = json.dumps([one.to_dict() for one in found] if streamed else found.to_dict())
    governor.close()
    return said


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_no_text_of_a_chat_reply_is_unjudged(place: Any, streamed: bool):
    redacted = given(SecretsPolicy(action="redact"), chat_reply(place, streamed=streamed), "chat", streamed)
    denied = given(SecretsPolicy(), chat_reply(place, streamed=streamed), "chat", streamed)
    assert (KEY in redacted, "[AWS" in redacted, "DENIED" in redacted) == (False, True, False)
    assert (KEY in denied, "DENIED" in denied) == (False, True)
    assert ('"content": "x"' in redacted) or "content" in place[0]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("item", ITEMS)
def test_no_text_of_a_response_is_unjudged(item: Any, streamed: bool):
    redacted = given(SecretsPolicy(action="redact"), response(item, streamed=streamed), "responses", streamed)
    denied = given(SecretsPolicy(), response(item, streamed=streamed), "responses", streamed)
    assert (KEY in redacted, "[AWS" in redacted, "DENIED" in redacted) == (False, True, False)
    assert (KEY in denied, "DENIED" in denied) == (False, True)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_policies_let_through_is_unchanged(streamed: bool):
    audio = {"id": "a", "data": PICTURE, "transcript": "hm"}
    place = ({"reasoning_content": "so", "audio": audio}, {"matched": "END"}, {"citations": ["https://a.example"]})
    said = given(SecretsPolicy(max_characters=500), chat_reply(place, streamed=streamed), "chat", streamed)
    assert all(f'"{text}"' in said for text in ("so", "hm", "x", "END", "https://a.example", PICTURE))


def test_a_text_is_not_hidden_by_a_second_form():
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
    chunks = [{**head, "more": KEY, "choices": [choice]}, {**head, "more": 5, "choices": []}]
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    script = ScriptedReply(body=stream.encode(), content_type="text/event-stream")
    assert KEY not in given(SecretsPolicy(action="redact"), script, "chat", streamed=True)


def test_logprobs_go_with_the_text_that_they_spell():
    spelled = {"content": [{"token": KEY, "bytes": None, "logprob": 0.0, "top_logprobs": []}]}
    place = ({"content": KEY}, {"logprobs": spelled}, {})
    assert KEY not in given(SecretsPolicy(action="redact"), chat_reply(place, streamed=False), "chat", streamed=False)
