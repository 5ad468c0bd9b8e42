"""Running embedded engines, and their replies recomputed by a plain forward pass, for the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.models import LanguageModel
from lgov_core.wire.exchange import ChatRequest, Completion
from tests.gateway.taught import SYSTEM, tiny

Weights = Mapping[str, torch.Tensor]


def grouped_query_llama() -> LanguageModel:
    """A Llama with shared key/value heads and untied embeddings, its weights large enough to be opinionated."""
    base = tiny()
    config = LlamaConfig(
        vocab_size=len(base.tokenizer),
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = LlamaForCausalLM(config).eval()
    return LanguageModel(module, base.tokenizer, "llama", "compact", frozenset({1}))


@asynccontextmanager
async def running_engine(model: LanguageModel, **options: Any) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(model, **{"max_new_tokens": 24, **options})
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def ask(content: str = "How much?", *, model: str = "tiny", system: bool = True, **more: Any) -> ChatRequest:
    messages = [*([SYSTEM] if system else []), {"role": "user", "content": content}]
    return ChatRequest(**{"body": {}, "model": model, "messages": messages, **more})


def recomputed(
    model: LanguageModel, completion: Completion, temperature: float = 1.0, weights: Weights | None = None
) -> torch.Tensor:
    """The log-probabilities of a reply by one plain forward pass: no cache, no padding, no batch."""
    assert completion.prompt_ids is not None
    assert completion.response_ids is not None
    ids = torch.tensor([[*completion.prompt_ids, *completion.response_ids]])
    with torch.no_grad():
        if weights is None:
            logits = model.module(ids, use_cache=False).logits
        else:
            # The output layer is tied to the embeddings.
            untied = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
            logits = torch.func.functional_call(model.module, untied, (ids,), {"use_cache": False}).logits
    start = len(completion.prompt_ids)
    logprobs = torch.log_softmax(logits[0, start - 1 : -1].float() / temperature, dim=-1)
    return logprobs.gather(-1, ids[0, start:, None])[:, 0]


def assert_exact(
    model: LanguageModel, completion: Completion, temperature: float = 1.0, weights: Weights | None = None
) -> None:
    expected = recomputed(model, completion, temperature, weights)
    assert completion.logprobs is not None
    assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)
    ids = completion.response_ids or ()
    ended = ids[-1] == model.end_id
    assert model.decode(ids[:-1] if ended else ids) == completion.text
    assert completion.completion_tokens == len(ids)
    assert (completion.finish_reason == "length") != ended
