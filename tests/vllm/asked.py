"""An engine on vLLM that is asked from any thread, and what its replies are compared with."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Final

import torch

from lgov_core.models import LanguageModel
from lgov_core.train.engines.vllm_engine import VllmEngine
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.wire.exchange import ChatRequest, Completion

EXACT: Final = 1e-4


class Asked:
    """A `VllmEngine` that is asked from any thread."""

    def __init__(self, model: LanguageModel, engine: VllmEngine) -> None:
        self.model, self.engine = model, engine
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(engine.start())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(600)

    def ask(self, text: str = "Tell me of the sea.", **more: Any) -> Completion:
        messages = [{"role": "user", "content": text}]
        return self.run(
            self.engine.chat(
                ChatRequest(**{"body": {}, "model": "smollm2", "messages": messages, "max_tokens": 16, **more})
            )
        )

    def close(self) -> None:
        self.run(self.engine.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def shake(policy: PolicyModel, seed: int) -> dict[str, torch.Tensor]:
    """Other weights, and a copy of them."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in policy.trained():
            if "lora_B" in name:
                value.normal_(0.0, 0.02, generator=chance)
    return policy.weights()


def off(module: Any, reply: Completion, temperature: float = 1.0) -> float:
    """How far recorded log-probabilities are from those of a plain forward pass."""
    assert reply.prompt_ids is not None
    assert reply.response_ids is not None
    assert reply.logprobs is not None
    ids = torch.tensor([[*reply.prompt_ids, *reply.response_ids]])
    with torch.inference_mode():
        logits = module(ids).logits[0, len(reply.prompt_ids) - 1 : -1].float() / temperature
    plain = logits.log_softmax(-1).gather(-1, torch.tensor(reply.response_ids)[:, None])[:, 0]
    return float((plain - torch.tensor(reply.logprobs)).abs().max())
