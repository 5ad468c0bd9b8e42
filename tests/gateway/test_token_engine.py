"""The engine on servers that speak tokens: exact ids, replies read here, and nothing made up where a server fails."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lgov_core.errors import EndpointError, UpstreamError
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.token_engine import Generated, TokenEngine, TokenPrompt
from lgov_core.models import LanguageModel, load_model
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.wire.exchange import ChatRequest
from tests.gateway.taught import SYSTEM, TOOLS


class Weights:
    """A server of tokens on a real model, greedy; it remembers what it was asked."""

    def __init__(self, model: LanguageModel, version: int | None = 3) -> None:
        self.model = model
        self.version = version
        self.asked: list[TokenPrompt] = []

    async def __call__(self, prompt: TokenPrompt) -> Generated:
        self.asked.append(prompt)
        ids, logprobs = list(prompt.prompt_ids), []
        for _ in range(prompt.max_tokens):
            with torch.no_grad():
                row = self.model.module(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(row.argmax()))
            logprobs.append(float(row.max()))
            if ids[-1] in self.model.eos_ids:
                break
        return Generated(tuple(ids[len(prompt.prompt_ids) :]), tuple(logprobs), self.version)


@pytest.fixture
def server(taught: LanguageModel) -> Weights:
    torch.set_num_threads(1)
    return Weights(taught)


@pytest.fixture
def engine(taught: LanguageModel, server: Weights, tmp_path: Path) -> TokenEngine:
    """It reads the model's folder, and never its weights."""
    taught.save(tmp_path / "model")
    text = load_model(tmp_path / "model", weights=False)
    assert {parameter.device.type for parameter in text.module.parameters()} == {"meta"}
    return TokenEngine(text, server, max_new_tokens=24)


def ask(**more: Any) -> ChatRequest:
    messages = [SYSTEM, {"role": "user", "content": "How much?"}]
    return ChatRequest(**{"body": {}, "model": "tiny", "messages": messages, "tools": TOOLS, **more})


async def test_a_conversation_with_a_tool(engine: TokenEngine, server: Weights, taught: LanguageModel) -> None:
    first = await engine.chat(ask())
    (call,) = first.tool_calls
    assert (call.name, json.loads(call.arguments), first.finish_reason) == (
        "run_sql",
        {"query": "SELECT 12"},
        "tool_calls",
    )
    assert first.prompt_ids == server.asked[0].prompt_ids == tuple(taught.render(ask().messages, TOOLS))
    assert (first.weights_version, first.content) == (3, None)
    assert first.logprobs is not None
    assert first.response_ids is not None
    assert len(first.logprobs) == len(first.response_ids) == first.completion_tokens

    proposed = {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    told = [
        *ask().messages,
        {"role": "assistant", "content": None, "tool_calls": [proposed]},
        {"role": "tool", "tool_call_id": call.call_id, "content": "12"},
    ]
    second = await engine.chat(ask(messages=told))
    assert (second.content, second.finish_reason) == ("Answer: 12", "stop")
    # The next prompt begins with exactly the tokens of the last one and its reply, so that both are one row to train on.
    assert second.prompt_ids is not None
    seen = (*first.prompt_ids, *first.response_ids)
    assert second.prompt_ids[: len(seen)] == seen


async def test_a_reply_that_is_cut_off_proposes_no_call(engine: TokenEngine) -> None:
    cut = await engine.chat(ask(max_tokens=3))
    assert (cut.finish_reason, cut.tool_calls, cut.completion_tokens) == ("length", (), 3)


async def test_a_stop_text_ends_the_reply(engine: TokenEngine) -> None:
    stopped = await engine.chat(ask(tools=(), stop=("SELECT",)))
    assert stopped.matched_stop == "SELECT"
    assert stopped.finish_reason == "stop"
    assert stopped.content is not None
    assert "SELECT" not in stopped.content
    assert "SELECT" in stopped.text, "the tokens are all there"


async def test_several_choices_have_seeds_of_their_own(engine: TokenEngine, server: Weights) -> None:
    reply = await engine.chat(ask(n=3, seed=5))
    assert [prompt.seed for prompt in server.asked] == [5, 6, 7]
    assert {choice.response_id for choice in reply.choices} == {reply.response_id}
    assert len(reply.choices) == 3


async def test_what_it_cannot_do_is_refused(engine: TokenEngine, taught: LanguageModel, server: Weights) -> None:
    for body, says in (
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 1}, "presence_penalty"),
    ):
        with pytest.raises(EndpointError, match=says):
            await engine.chat(ask(body=body))
    short = TokenEngine(taught, server, context_tokens=10)
    with pytest.raises(EndpointError, match="maximum context length is 10 tokens"):
        await short.chat(ask())
    assert server.asked == []


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda tokens: replace(tokens, ids=(), logprobs=()), "answered with no token"),
        (lambda tokens: replace(tokens, logprobs=tokens.logprobs[:-1]), "tokens and .* log-probabilities"),
        (lambda tokens: tokens.nowhere, "the server of the weights failed: AttributeError"),
    ],
)
async def test_a_server_that_fails_is_never_patched_up(taught: LanguageModel, spoil: Any, says: str) -> None:
    weights = Weights(taught)

    async def sample(prompt: TokenPrompt) -> Generated:
        return spoil(await weights(prompt))

    with pytest.raises(UpstreamError, match=says):
        await TokenEngine(taught, sample).chat(ask())


def test_calls_are_recorded_with_their_version(engine: TokenEngine, store: SQLiteStore) -> None:
    with EndpointServer([engine], store) as endpoint:
        body = {"model": "tiny", "messages": list(ask().messages), "tools": list(TOOLS), "stream": True}
        request = urllib.request.Request(
            f"{endpoint.base_url}/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json", "x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert b"run_sql" in answer.read()
    (call,) = store.calls(["r1"])
    assert call.weights_version == 3
    assert call.prompt_ids
    assert call.response_ids
    assert call.logprobs is not None
    assert len(call.logprobs) == len(call.response_ids)
