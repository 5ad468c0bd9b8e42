"""A tiny model that has learnt one conversation by heart: a query, then the answer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lgov_core.models import LanguageModel, build_tiny

CORPUS = ["SELECT pay FROM staff WHERE dept = 'eng' 0123456789", "@run_sql Answer: the database says so"] * 20
SYSTEM = {"role": "system", "content": "Answer from the company database, and from nothing else."}
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "run_sql",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    },
)


def tiny(seed: int = 0) -> LanguageModel:
    """A model with random weights."""
    return build_tiny(
        CORPUS, seed=seed, hidden=64, layers=2, heads=4, intermediate=96, max_positions=256, deviation=0.02
    )


def taught_model() -> LanguageModel:
    """Asked "How much?" it calls ``run_sql`` with ``SELECT 12``; told 12, it answers "Answer: 12"."""
    torch.set_num_threads(1)
    model = tiny()
    question = [SYSTEM, {"role": "user", "content": "How much?"}]
    call = {"id": "c", "type": "function", "function": {"name": "run_sql", "arguments": '{"query": "SELECT 12"}'}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    asked = [*question, calling, {"role": "tool", "tool_call_id": "c", "content": "12"}]
    answer = {"role": "assistant", "content": "Answer: 12"}
    rows: Sequence[tuple[list[int], list[int]]] = [
        (model.render(question, TOOLS), model.encode_reply(calling, TOOLS)),
        (model.render(asked, TOOLS), model.encode_reply(answer, TOOLS)),
    ]
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=3e-3)
    model.module.train()
    for _ in range(80):
        for prompt, reply in rows:
            ids = torch.tensor([[*prompt, *reply]])
            labels = torch.tensor([[*([-100] * len(prompt)), *reply]])
            optimizer.zero_grad()
            model.module(ids, labels=labels).loss.backward()
            optimizer.step()
    model.module.eval()
    return model
