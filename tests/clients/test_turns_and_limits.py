"""What clients rely on between turns: thoughts that come back, a prompt that is too long, ids of another worker, betas."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI

from lgov_core.testing import ScriptedReply
from tests.gateway.conftest import embedded_url, model, serve, store  # noqa: F401

LONG = "word " * 40_000


def thinking(content: str, thoughts: str) -> ScriptedReply:
    """A reply of a server of chat completions that shows its thoughts."""
    message = {"role": "assistant", "content": content, "reasoning_content": thoughts}
    body = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}  # fmt: skip
    return ScriptedReply(body=json.dumps(body).encode())


def streamed(*deltas: dict[str, Any]) -> ScriptedReply:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return ScriptedReply(body=body.encode(), content_type="text/event-stream")


def chats(url: str) -> list[Any]:
    more: Any = {"model": "tiny", "api_key": "k", "max_retries": 0, "timeout": 60}
    return [
        ChatOpenAI(base_url=f"{url}/v1", **more),
        ChatOpenAI(base_url=f"{url}/v1", use_responses_api=True, **more),
        ChatAnthropic(base_url=url, max_tokens_to_sample=5, **more),
    ]


def test_a_prompt_that_is_too_long_is_an_overflow_for_langchain(embedded_url):  # noqa: F811
    for chat in chats(embedded_url):
        with pytest.raises(ContextOverflowError):
            chat.invoke(LONG)
        with pytest.raises(ContextOverflowError):
            list(chat.stream(LONG))
    reply = httpx.post(f"{embedded_url}/v1/chat/completions", json={
        "model": "tiny", "messages": [{"role": "user", "content": LONG}]}, timeout=60)  # fmt: skip
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert reply.json()["error"]["message"].startswith("Input tokens exceed the configured limit of ")


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4990 in the messages, 10 in"
        " the completion). Please reduce the length of the messages or completion.",
        "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    ],
)
def test_so_is_the_overflow_of_an_upstream_that_has_no_code_for_it(serve, words):  # noqa: F811
    refusal = {"object": "error", "message": words, "type": "BadRequestError", "code": 400}
    serving = serve(lambda _: ScriptedReply(status=400, body=json.dumps(refusal).encode()), speaks=["chat"])
    for chat in chats(serving.url):
        with pytest.raises(ContextOverflowError):
            chat.invoke("hi")


def test_another_refusal_of_an_upstream_is_no_overflow(serve):  # noqa: F811
    words = "'max_tokens' is too large: 100. This model's maximum context length is 16 tokens and your request has 10 tokens."
    serving = serve(lambda _: ScriptedReply(words, status=400), speaks=["chat"])
    for chat in chats(serving.url):
        with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as raised:
            chat.invoke("hi")
        assert not isinstance(raised.value, ContextOverflowError)


def test_thoughts_come_back_as_the_summary_that_was_asked_for(serve):  # noqa: F811
    """Coding agents send back the summaries of reasoning items, not their contents."""
    replies = [
        streamed({"reasoning_content": "Two "}, {"reasoning_content": "apples."}, {"content": "2"}),
        thinking("4", "Twice."),
        thinking("8", ""),
    ]
    serving = serve(replies, speaks=["chat"])
    client = openai.OpenAI(base_url=serving.base_url, api_key="k", max_retries=0)
    asked: list[Any] = [{"role": "user", "content": "How many?"}]
    ask: Any = {
        "model": "m",
        "store": False,
        "reasoning": {"summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    }
    with client.responses.stream(input=asked, **ask) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert kinds.count("response.reasoning_summary_text.delta") == 2
    assert kinds.index("response.reasoning_summary_part.done") < kinds.index("response.output_text.delta")
    assert first.output[0].summary[0].text == "Two apples."
    sent_back = [*asked, *(item.model_dump(exclude={"content"} if item.type == "reasoning" else None)
                           for item in first.output), {"role": "user", "content": "Twice?"}]  # fmt: skip
    second = client.responses.create(input=sent_back, **ask)
    assert second.output[0].summary[0].text == "Twice."
    assert serving.model.requests[1].body["messages"][1] == {
        "role": "assistant", "content": "2", "reasoning_content": "Two apples."}  # fmt: skip
    # A client that asked for none gets the thoughts as content.
    plain = client.responses.create(model="m", input="hi")
    assert all(item.type != "reasoning" or not item.summary for item in plain.output)


def test_thinking_blocks_go_back_and_forth(serve):  # noqa: F811
    serving = serve([thinking("2", "Two apples."), "4"], speaks=["chat"])
    client = anthropic.Anthropic(base_url=serving.url, api_key="k", max_retries=0)
    ask: Any = {"model": "m", "max_tokens": 9000, "thinking": {"type": "enabled", "budget_tokens": 4000}}
    first = client.messages.create(messages=[{"role": "user", "content": "How many?"}], **ask)
    assert [block.type for block in first.content] == ["thinking", "text"]
    content: Any = [block.model_dump() for block in first.content]
    turns: Any = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": content},
                  {"role": "user", "content": "Twice?"}]  # fmt: skip
    client.messages.create(messages=turns, **ask)
    assert serving.model.requests[1].body["messages"][1]["reasoning_content"] == "Two apples."


def test_an_upstream_of_the_messages_api_gets_the_betas_of_the_client(serve):  # noqa: F811
    serving = serve(["ok", "ok"], speaks=["messages"])
    client = anthropic.Anthropic(base_url=serving.url, api_key="k", max_retries=0)
    ask: Any = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    edits: Any = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    client.beta.messages.create(betas=["context-management-2025-06-27"], context_management=edits, **ask)
    client.messages.create(**ask)
    with_beta, without = serving.model.requests
    assert with_beta.headers["anthropic-beta"] == "context-management-2025-06-27"
    assert with_beta.body["context_management"] == edits
    assert "anthropic-beta" not in without.headers
    assert without.headers["anthropic-version"] == client.default_headers["anthropic-version"]


def test_a_response_of_another_worker_is_refused_with_the_way_out(serve):  # noqa: F811
    workers = [serve(["Paris.", "In France."], speaks=["chat"]) for _ in range(2)]
    first, second = (openai.OpenAI(base_url=each.base_url, api_key="k", max_retries=0) for each in workers)
    reply = first.responses.create(model="m", input="Capital?")
    assert first.responses.create(model="m", input="Where?", previous_response_id=reply.id).output_text == "In France."
    with pytest.raises(openai.NotFoundError, match="send the conversation as input") as raised:
        second.responses.create(model="m", input="Where?", previous_response_id=reply.id)
    assert "same process" in str(raised.value)
    whole: Any = [{"role": "user", "content": "Capital?"}, *(item.model_dump() for item in reply.output),
                  {"role": "user", "content": "Where?"}]  # fmt: skip
    assert second.responses.create(model="m", input=whole, store=False).output_text == "Paris."
