"""Models for the embedded engine whose context holds the prompts of coding agents, as folders for `lgov serve --model`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM

from lgov_core.models import LanguageModel, build_tiny

CONTEXT = 65_536
NAME = "scripted"
_CORPUS = [
    path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[2] / "docs/how-to").glob("*.md"))
]
_SIZES: Mapping[str, int] = {"hidden": 32, "layers": 2, "heads": 2, "intermediate": 64, "max_positions": CONTEXT}


def random_model() -> LanguageModel:
    """The built-in tiny model, smaller, with random weights and a long context: it writes words without sense."""
    model = build_tiny(_CORPUS, seed=0, vocab_size=2048, **_SIZES)
    model.name = NAME
    return model


def task_model(calls: Mapping[str, tuple[str, Mapping[str, Any]]]) -> LanguageModel:
    """A model that does a small task, with weights set by hand: attention finds a word of the task and results of tools.

    Asked with a word of ``calls`` it makes that call; when a tool has answered, or nothing has that word, it says that it is
    done. Each reply is one token, and the end.
    """
    corpus = [*_CORPUS, *(f" {word}" for word in calls for _ in range(2000))]
    tokenizer = build_tiny(corpus, seed=0, vocab_size=2048, **_SIZES).tokenizer
    replies = [f"@{name} {json.dumps(arguments)}" for name, arguments in calls.values()] + ["All done."]
    tokenizer.add_tokens([AddedToken(reply, normalized=False) for reply in replies])
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    words = [tokenizer.encode(f" {word}", add_special_tokens=False) for word in calls]
    assert all(len(ids) == 1 for ids in words)
    last = len(replies) - 1  # the reply without a call
    # Directions of the hidden states: any token, the head of a reply, a tool's result, a reply; the words and what
    # attention found of them.
    size, (every, head, result, reply, seen), word, found = 64, range(5), 8, 32
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=size, intermediate_size=4, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
    )  # fmt: skip
    module = LlamaForCausalLM(config).eval()
    attention: Any = module.model.layers[0].self_attn
    unturned = size // 2 // 2 - 1  # the component of a head that positions turn by next to nothing
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        embedding = module.model.embed_tokens.weight
        embedding[:, every] = 1.0
        embedding[vocabulary["<|assistant|>"], head] = 1.0
        embedding[vocabulary["<|tool|>"], result] = 1.0
        output = module.lm_head.weight
        for number, text in enumerate(replies):
            embedding[vocabulary[text], reply] = 1.0
            if number != last:
                embedding[words[number][0], word + number] = 1.0
                output[vocabulary[text], found + number] = 10.0
                output[vocabulary[text], seen] = -30.0
        output[vocabulary[replies[last]], [head, seen]] = torch.tensor([5.0, 8.0])
        output[tokenizer.eos_token_id, reply] = 200.0
        for start, directions in ((0, [result]), (size // 2, list(range(word, word + last)))):
            attention.q_proj.weight[start + unturned, every] = 4.0
            attention.k_proj.weight[start + unturned, directions] = 4.0
            for number, direction in enumerate(directions):
                attention.v_proj.weight[start + number, direction] = 1.0
                attention.o_proj.weight[seen if start == 0 else found + number, start + number] = 1.0
    return LanguageModel(module, tokenizer, NAME, "compact", frozenset({int(tokenizer.eos_token_id)}))
