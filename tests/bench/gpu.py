"""What lgov does on one GPU, in about 8 minutes, without network and without vLLM.

    python -m tests.bench.gpu                       prints one JSON object; ends with 1 where a part failed or is wrong
    python -m tests.bench.gpu --device cpu --small  the same code on a processor, in seconds: it measures nothing worth reading

- attention: an update's log-probabilities and gradients with FlexAttention, attention by segment and one row for each call;
- speed: tokens/s of sampling (32 rollouts of two turns) and of an update, for the shapes of SmolLM2-135M and of Qwen2.5-0.5B
  with random weights, in bfloat16 and float32, and by how many nats a token sampled and recomputed log-probabilities differ;
- learning: a small model is trained on a reward that is the share of one kind of token; the reward must rise.

Every part says the peak of the GPU's memory, and what went wrong if it did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.models import LanguageModel, build_tiny
from lgov_core.train.algorithms.algorithms import UpdateConfig
from lgov_core.train.algorithms.update import PolicyUpdate
from lgov_core.train.layout.layouts import PaddedRows, TokenTrie
from lgov_core.train.layout.rows import make_rows, trained_column
from lgov_core.train.layout.segment_attention import FLEX_VARIABLE
from lgov_core.train.loop.policy_model import full_policy
from lgov_core.wire.exchange import ChatRequest
from tests.bench.engine import WORDS, Load, rollouts
from tests.bench.packing import apart, calls
from tests.bench.precision import rows_of

SHAPES: dict[str, dict[str, int]] = {
    "smollm2-135m": {
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "intermediate_size": 1536, "vocab_size": 49152,
    },
    "qwen2.5-0.5b": {
        "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864, "vocab_size": 151936,
    },
}  # fmt: skip
SMALL: dict[str, int] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 600,
}  # fmt: skip
#: How far gradients in float32 may be apart, as a share of their norm.
CLOSE = 1e-3


def model_of(shape: dict[str, int], device: str, dtype: torch.dtype) -> LanguageModel:
    """A Llama of that shape with random weights, and a small tokenizer: of the other ids the text is empty."""
    from transformers import LlamaConfig, LlamaForCausalLM

    base = build_tiny([" ".join(WORDS)] * 50, seed=0, max_positions=4096)
    end = int(base.tokenizer.eos_token_id)
    config = LlamaConfig(
        **shape, max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=None, eos_token_id=end, pad_token_id=end
    )  # fmt: skip
    torch.manual_seed(0)
    module: Any = LlamaForCausalLM(config)
    module = module.to(device=device, dtype=dtype).eval()
    return LanguageModel(module, base.tokenizer, "random", "compact", base.eos_ids)


def attention(device: str, small: bool) -> dict[str, Any]:
    """The three ways to compute one update, in float32; each is compared with one row for each call."""
    module = model_of(SMALL if small else SHAPES["smollm2-135m"], device, torch.float32).module
    transitions = calls("append-only", 500, *((2, 2) if small else (8, 5)))
    alone = make_rows([replace(one, rollout_id=one.response_id) for one in transitions])
    ways = {"rows": (PaddedRows(), alone, "0"), "segments": (TokenTrie(), make_rows(transitions), "0")}
    if device == "cuda":
        ways["flex"] = (TokenTrie(), make_rows(transitions), "1")
    found: dict[str, Any] = {}
    expected: list[torch.Tensor] = []
    for name, (layout, rows, flex) in ways.items():
        os.environ[FLEX_VARIABLE] = flex
        for _ in range(2):  # the first compiles
            module.zero_grad(set_to_none=True)
            began = now(device)
            for batch in layout.batches(rows, 8192):
                logprobs = layout.logprobs(module, batch)
                weights, advantages = (
                    torch.tensor(trained_column(batch, column), device=logprobs.device)
                    for column in ("weights", "advantages")
                )
                (-(logprobs * advantages * weights).sum()).backward()
            seconds = now(device) - began
        gradients = [value.grad.clone() for value in module.parameters() if value.grad is not None]
        expected = expected or gradients
        found[name] = {"seconds": round(seconds, 4), "gradient_from_rows": apart(gradients, expected)}
    os.environ.pop(FLEX_VARIABLE)
    found["right"] = all(way["gradient_from_rows"] < CLOSE for way in found.values())
    return found


def speed(device: str, shape: dict[str, int], dtype: torch.dtype, small: bool) -> dict[str, Any]:
    """Tokens a second of sampling and of an update of what was sampled, after one of each to warm up."""
    model = model_of(shape, device, dtype)
    load = Load("random", 1, 2, 1, 20, 5, 4, 4, 1) if small else Load("random", 4, 8, 2, 200, 40, 64, 20, 1)

    async def sampled() -> tuple[float, list[Any]]:
        engine = EmbeddedEngine(model, max_new_tokens=load.reply)
        await engine.start()
        try:
            await rollouts(engine, replace(load, groups=1, turns=1), True)
            began = now(device)
            found = await rollouts(engine, load, True)
            return now(device) - began, found
        finally:
            await engine.close()

    seconds, completions = asyncio.run(sampled())
    policy = full_policy(model.module)
    learner = PolicyUpdate(
        policy.module,
        UpdateConfig(
            learning_rate=1e-12, tokens_per_batch=8192, precision="bfloat16" if dtype == torch.bfloat16 else "float32"
        ),
        reference=policy.reference,
    )
    learner.update(rows_of(completions[:4]))
    began = now(device)
    made = learner.update(rows_of(completions))
    return {
        "parameters": model.module.num_parameters(),
        "sampling_tokens_per_s": round(sum(one.completion_tokens for one in completions) / seconds, 1),
        "update_tokens_per_s": round(made.tokens_run * made.steps / (now(device) - began), 1),
        "logprob_drift": made.logprob_drift,
        "right": made.logprob_drift < (0.1 if dtype == torch.bfloat16 else 1e-2),
    }


def learning(device: str, small: bool) -> dict[str, Any]:
    """Sampling, advantage, update, publishing: the share of even ids in replies."""
    sizes = {"hidden": 32, "layers": 1} if small else {}
    model = build_tiny([" ".join(WORDS)] * 50, seed=0, max_positions=512, **sizes)
    model.module.to(device)
    policy = full_policy(model.module)
    learner = PolicyUpdate(
        policy.module, UpdateConfig(learning_rate=2e-3, kl=0.0, epochs=1, precision="float32"), reference=None
    )

    async def trained() -> list[float]:
        engine = EmbeddedEngine(model, max_new_tokens=16)
        await engine.start()
        means: list[float] = []
        try:
            for update in range(3 if small else 30):
                asked = [
                    ChatRequest(
                        {}, model.name, [{"role": "user", "content": "go"}], max_tokens=16, seed=update * 64 + n
                    )
                    for n in range(8 if small else 64)
                ]
                replies = await asyncio.gather(*(engine.chat(one) for one in asked))
                rewards = [sum(i % 2 == 0 for i in one.response_ids) / max(1, len(one.response_ids)) for one in replies]
                means.append(sum(rewards) / len(rewards))
                rows = [
                    replace(row, advantages=tuple(means_off * mask for mask in row.mask))
                    for row, means_off in zip(rows_of(replies), (one - means[-1] for one in rewards), strict=True)
                ]
                learner.update(rows)
                engine.publish(policy.served())
        finally:
            await engine.close()
        return means

    means = asyncio.run(trained())
    return {"rewards": [round(mean, 4) for mean in means], "right": small or means[-1] > means[0] + 0.1}


def now(device: str) -> float:
    """Seconds, after all that the device was given to do."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def part(device: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The figures of one part with seconds and peak memory; an exception is one of them."""
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    try:
        found = work()
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}", "right": False}
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {**found, "seconds_in_all": round(time.perf_counter() - began, 1), "peak_bytes": peak}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny shapes: to see that everything runs")
    given = parser.parse_args(arguments)
    device, small = given.device, given.small
    if device == "cuda" and not torch.cuda.is_available():
        print("gpu: no CUDA device here, nothing was measured", file=sys.stderr)
        return 1
    shapes = {"small": SMALL} if small else SHAPES
    named = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    result: dict[str, Any] = {"device": named, "torch": torch.__version__}
    result["attention"] = part(device, lambda: attention(device, small))
    for name, shape in shapes.items():
        for dtype in (torch.bfloat16, torch.float32):
            key = f"{name} {str(dtype).removeprefix('torch.')}"
            result[key] = part(device, lambda shape=shape, dtype=dtype: speed(device, shape, dtype, small))
    result["learning"] = part(device, lambda: learning(device, small))
    print(json.dumps(result, indent=2))
    return 0 if all(found["right"] for found in result.values() if isinstance(found, dict)) else 1


if __name__ == "__main__":
    sys.exit(main())
