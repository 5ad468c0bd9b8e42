"""What the embedded engine answers in a second: calls and tokens, on rollouts as a trainer collects them.

Groups of rollouts of one task, several turns each: all share a system message, a group shares its task, a turn extends
the one before it. Three ways, each in a process of its own: one call at a time, an engine without what it keeps between
calls, and the engine as it is; with ``--before FOLDER`` also the engine of another checkout. For a sample of the calls the
recorded log-probabilities are compared with a plain forward pass.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WORDS = (
    "pay",
    "staff",
    "eng",
    "sales",
    "over",
    "under",
    "total",
    "mean",
    "count",
    "sum",
    "of",
    "the",
    "in",
    "by",
    "name",
)
#: At most this far may a recorded log-probability be from a plain forward pass.
EXACT = 1e-4


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked: lengths are in words of the prompt, tokens of the reply."""

    model: str
    groups: int
    rollouts: int
    turns: int
    system: int
    task: int
    reply: int
    observation: int
    threads: int


LOADS = {
    "tiny": Load("tiny", 8, 8, 4, 120, 20, 24, 24, 1),
    "smollm2": Load("smollm2", 1, 4, 3, 60, 10, 8, 12, 1),
}


def words(count: int, salt: int) -> str:
    """``count`` words that depend on ``salt``."""
    return " ".join(WORDS[(salt * 7 + place * (salt % 5 + 1)) % len(WORDS)] for place in range(count))


# ---------------------------------------------------------------------- one way, in a process of its own


def make_model(load: Load) -> Any:
    """The model of that name; the tiny one is not trained, so that its replies are long."""
    from lgov_core.models import build_tiny, load_model

    if load.model != "tiny":
        return load_model(load.model)
    return build_tiny([" ".join(WORDS)] * 50, seed=0, max_positions=4096)


async def rollouts(engine: Any, load: Load, at_once: bool) -> list[Any]:
    """Every completion of every rollout."""
    from lgov_core.wire.exchange import ChatRequest

    async def rollout(group: int, number: int) -> list[Any]:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": words(load.system, 1)},
            {"role": "user", "content": f"{group} {words(load.task, group)}"},
        ]
        found: list[Any] = []
        for turn in range(load.turns):
            seed = (group * 64 + number) * 64 + turn
            request = ChatRequest({}, load.model, list(messages), max_tokens=load.reply, seed=seed)
            completion = await engine.chat(request)
            found.append(completion)
            messages.append({"role": "assistant", "content": completion.content or ""})
            messages.append({"role": "user", "content": words(load.observation, seed)})
        return found

    places = [(group, number) for group in range(load.groups) for number in range(load.rollouts)]
    if at_once:
        nested = await asyncio.gather(*(rollout(*place) for place in places))
    else:
        nested = [await rollout(*place) for place in places]
    return [completion for one in nested for completion in one]


def farthest(model: Any, completions: Sequence[Any]) -> float:
    """How far the recorded log-probabilities of these calls are from those of a plain forward pass."""
    import torch

    worst = 0.0
    for completion in completions:
        ids = torch.tensor([[*completion.prompt_ids, *completion.response_ids]])
        start = len(completion.prompt_ids)
        with torch.inference_mode():
            logits = model.module(ids, use_cache=False).logits[0, start - 1 : -1].float()
        plain = torch.log_softmax(logits, dim=-1).gather(-1, ids[0, start:, None])[:, 0]
        worst = max(worst, float((plain - torch.tensor(completion.logprobs)).abs().max()))
    return worst


async def measure(load: Load, way: str) -> dict[str, Any]:
    """Seconds, calls, tokens and exactness of one way."""
    import torch

    from lgov_core.gateway.engine.embedded import EmbeddedEngine

    torch.set_num_threads(load.threads)
    model = make_model(load)
    options: dict[str, Any] = {"max_new_tokens": load.reply, "threads": load.threads, "max_batch": 64}
    if way == "nothing kept" and "keep_bytes" in inspect.signature(EmbeddedEngine).parameters:
        options["keep_bytes"] = 0
    engine = EmbeddedEngine(model, **options)
    await engine.start()
    try:
        warm = replace(load, groups=1, rollouts=2, turns=1, system=5)
        await rollouts(engine, warm, True)
        began, cpu = time.perf_counter(), time.process_time()
        completions = await rollouts(engine, load, way != "one by one")
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    finally:
        await engine.close()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "calls": len(completions),
        "tokens": sum(completion.completion_tokens for completion in completions),
        "prompt_tokens": sum(completion.prompt_tokens for completion in completions),
        "farthest": farthest(model, completions[:: max(1, len(completions) // 16)]),
    }


# ---------------------------------------------------------------------- all ways, side by side


def in_process(load: Load, way: str, root: Path) -> dict[str, Any]:
    """`measure` with the library of ``root``."""
    asked = json.dumps({"load": asdict(load), "way": way})
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, __file__, "--one", asked],
        env=environment,
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr.strip()[-2000:]}")
    return dict(json.loads(str(done.stdout).splitlines()[-1]))


def main() -> None:
    """Prints one line for each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*LOADS], action="append")
    parser.add_argument("--runs", type=int, default=3, help="how often; the median is printed")
    parser.add_argument("--before", type=Path, help="another checkout, whose engine is measured too")
    parser.add_argument("--skip", action="append", default=[], help="a way that is not measured")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        asked = json.loads(given.one)
        print(json.dumps(asyncio.run(measure(Load(**asked["load"]), asked["way"]))))
        return
    for name in given.model or LOADS:
        load = LOADS[name]
        ways = {"one by one": ROOT, "nothing kept": ROOT, "engine": ROOT}
        if given.before:
            ways = {"one by one": ROOT, "before": given.before.resolve(), "nothing kept": ROOT, "engine": ROOT}
        print(f"{name}: {load.groups} groups of {load.rollouts} rollouts of {load.turns} turns, {load.threads} threads")
        first: float | None = None
        for way, root in ways.items():
            if way in given.skip:
                continue
            found = [in_process(load, way, root) for _ in range(1 if way == "one by one" else given.runs)]
            # Time of the processor: what else the machine does changes the clock's time much more.
            cpu = statistics.median(one["cpu"] for one in found)
            worst = max(one["farthest"] for one in found)
            first = first or cpu
            print(
                f"  {way:<13} {cpu:7.2f} s CPU ({min(one['seconds'] for one in found):7.2f} s) "
                f"{found[0]['calls'] / cpu:8.1f} calls/s {found[0]['tokens'] / cpu:9.1f} tokens/s  {first / cpu:5.2f}x  "
                f"off by {worst:.1e}{'' if worst <= EXACT else '  NOT EXACT'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
