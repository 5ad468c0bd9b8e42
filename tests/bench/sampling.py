"""Tokens a second that rollouts get from the embedded engine and from vLLM, at 1, 8 and 32 at a time.

Both engines are up in one run and are measured in turns, so that what else the machine does hits both. Rollouts of one task
share their system message and have two turns of ``--tokens`` tokens each; every run has its own task. Needs the Python that
has vLLM (make test-vllm makes .venv-vllm).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from lgov_core.models.load import wait_without_spinning
from tests.bench.engine import words

AT_ONCE = (1, 8, 32)
#: What the engine on vLLM is to reach at 32 rollouts, in tokens/s of the embedded one.
GOAL = 1.5


async def rollouts(engine: Any, model: str, at_once: int, tokens: int, salt: int) -> float:
    """Tokens a second of ``at_once`` rollouts."""
    from lgov_core.wire.exchange import ChatRequest

    async def rollout(number: int) -> int:
        messages = [{"role": "system", "content": words(120, salt)}, {"role": "user", "content": words(20, salt + 1)}]
        made = 0
        for turn in range(2):
            seed = (salt * 64 + number) * 8 + turn
            reply = await engine.chat(ChatRequest({}, model, list(messages), max_tokens=tokens, seed=seed))
            made += reply.completion_tokens
            messages += [
                {"role": "assistant", "content": reply.content or ""},
                {"role": "user", "content": words(12, seed)},
            ]
        return made

    began = time.perf_counter()
    made = await asyncio.gather(*map(rollout, range(at_once)))
    return sum(made) / (time.perf_counter() - began)


async def measure(engines: dict[str, Any], model: str, runs: int, tokens: int) -> float:
    """Prints a line for each number of rollouts; returns vLLM's share of the embedded engine's at the highest."""
    for engine in engines.values():
        await engine.start()
        await rollouts(engine, model, 2, 4, 0)
    ratio = 0.0
    for at_once in AT_ONCE:
        found: dict[str, list[float]] = {name: [] for name in engines}
        for run in range(runs):
            for name, engine in engines.items():
                found[name].append(await rollouts(engine, model, at_once, tokens, 1 + run + 100 * at_once))
        ratio = statistics.median(vllm / own for own, vllm in zip(*found.values(), strict=True))
        speeds = "  ".join(f"{name} {statistics.median(one):7.1f} tokens/s" for name, one in found.items())
        print(f"  {at_once:>2} rollouts at a time  {speeds}  {ratio:5.2f}x", flush=True)
    for engine in engines.values():
        await engine.close()
    return ratio


def main() -> None:
    """Prints the table and whether the goal is met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--vllm-python", type=Path, default=Path(".venv-vllm/bin/python"))
    parser.add_argument("--dtype", default="bfloat16", help="of both")
    parser.add_argument("--runs", type=int, default=3, help="how often; medians are printed")
    parser.add_argument("--tokens", type=int, default=32, help="of a reply, at most")
    given = parser.parse_args()
    if not given.vllm_python.exists():
        print(f"sampling: no vLLM at {given.vllm_python} (make test-vllm), not measured")
        return

    wait_without_spinning()
    from lgov_core.gateway.engine.embedded import EmbeddedEngine
    from lgov_core.models import load_model, model_source
    from lgov_core.train.engines.vllm_engine import open_vllm
    from lgov_core.train.engines.vllm_server import VllmOptions

    model = load_model(given.model, dtype=given.dtype)
    options = VllmOptions(given.vllm_python.absolute(), dtype=given.dtype, context_tokens=1024, cpu=True)
    embedded = EmbeddedEngine(model, max_new_tokens=given.tokens)
    folder = Path(tempfile.mkdtemp(prefix="lgov-bench-vllm-"))
    with open_vllm(model, model_source(given.model), folder, options, max_new_tokens=given.tokens) as vllm:
        print(f"sampling of {model.name} in {given.dtype}, medians of {given.runs} runs; vLLM's output is in {folder}")
        ratio = asyncio.run(measure({"embedded": embedded, "vllm": vllm}, model.name, given.runs, given.tokens))
    print(f"  vllm at {AT_ONCE[-1]} rollouts: {ratio:.2f}x, goal {GOAL}x{'' if ratio >= GOAL else '  NOT REACHED'}")


if __name__ == "__main__":
    main()
