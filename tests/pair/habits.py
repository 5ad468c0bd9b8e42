"""A small model that has learnt to answer one question in several ways, each as often as the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lgov_core.models import LanguageModel, build_tiny


def habits_model(question: str, replies: Sequence[str], *, system: str = "", steps: int = 60) -> LanguageModel:
    """Sampled at temperature 1 it says one of ``replies``, as a rule. ``system`` is the system prompt that it is asked with."""
    torch.set_num_threads(1)
    corpus = [question, *replies] * 20
    model = build_tiny(corpus, seed=0, hidden=64, layers=2, heads=4, intermediate=96, max_positions=256)
    asked = [{"role": "system", "content": system}] if system else []
    prompt = model.render([*asked, {"role": "user", "content": question}])
    rows = [(prompt, model.encode_reply({"role": "assistant", "content": reply})) for reply in replies]
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=3e-3)
    model.module.train()
    for _ in range(steps):
        optimizer.zero_grad()
        for begin, reply in rows:
            ids = torch.tensor([[*begin, *reply]])
            labels = torch.tensor([[*([-100] * len(begin)), *reply]])
            (model.module(ids, labels=labels).loss / len(rows)).backward()
        optimizer.step()
    model.module.eval()
    return model
