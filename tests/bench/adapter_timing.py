"""Times the variants of one framework in one process."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import math
import os
import random
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from tests.bench.adapter_agents import PASSED, Agent, passed, script
from tests.bench.adapter_variants import Variant, ready

#: Turns of one run.
TURNS = 5
#: Runs of a variant in each round.
AGAIN = 3
#: Tool calls at once in a turn of the second shape.
WIDE = 3
#: Rounds before the first that counts.
WARM_UP = 3


def over_http(framework: str, rounds: int) -> dict[str, tuple[tuple[float, float, float], float]]:
    """A turn of each variant, with its interval, and undisturbed."""
    with ready(framework) as variants:
        times = asyncio.run(_in_turns(variants, rounds))
    bare = times.pop("bare")
    found = {"bare": (median_of(_turns(bare)), undisturbed(bare))}
    for variant, taken in times.items():
        added = [mine - other for mine, other in zip(taken, bare, strict=True)]
        found[variant] = median_of(_turns(added)), undisturbed(taken) - undisturbed(bare)
    return found


def beside_bare(framework: str, variant: str, pairs: int) -> dict[str, tuple[float, float, float]]:
    """The turn, model call and tool call of bare and of ``variant``, without a network, in this process."""
    with ready(framework, ("bare", variant)) as variants:
        times = asyncio.run(_in_pairs(variants, pairs))
    bare, taken = ([in_parts(runs) for runs in times[name]] for name in ("bare", variant))
    return {"bare": _parts(*bare), variant: _parts(*[mine - least for mine, least in zip(taken, bare, strict=True)])}


def _parts(turn: float, wide: float) -> tuple[float, float, float]:
    """Of what turns with one tool call and with `WIDE` take: the turn, its model call and its tool call."""
    tool = (wide - turn) / (WIDE - 1)
    return turn, (turn - tool) * TURNS / (TURNS + 1), tool


def _turns(seconds: Sequence[float]) -> list[float]:
    """Of the seconds of whole runs, the microseconds of a turn."""
    return [value / TURNS * 1e6 for value in seconds]


def median_of(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the two values between which the true one lies in 95 of 100 cases."""
    ordered = sorted(values)
    reach = math.ceil(0.98 * math.sqrt(len(ordered)))
    middle = len(ordered) // 2
    return statistics.median(ordered), ordered[max(0, middle - reach)], ordered[min(len(ordered) - 1, middle + reach)]


def undisturbed(values: Sequence[float]) -> float:
    """The bound of the quickest tenth in microseconds a turn."""
    return sorted(values)[len(values) // 10] / TURNS * 1e6


def in_parts(runs: Sequence[Sequence[float]]) -> float:
    """Of the seconds of each part of runs alike, what a run takes if none of them is disturbed: microseconds a turn."""
    return sum(sorted(part)[len(part) // 20] for part in zip(*runs, strict=True)) / TURNS * 1e6


async def _in_turns(variants: Mapping[str, tuple[Variant, Agent]], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    shuffled = random.Random(0)
    for number in range(-WARM_UP, rounds):
        if number == 0:
            gc.collect()
            gc.freeze()  # what is there by now is there for all; a collection looks at what a run made
        for name in shuffled.sample(list(variants), len(variants)):
            variant, run = variants[name]
            variant.begin()
            await run(TURNS)  # what instrumentation has pushed out of the caches comes back
            gc.collect()
            taken: list[float] = []
            for _ in range(AGAIN):
                began = time.process_time()
                await run(TURNS)
                taken.append(time.process_time() - began)
            variant.end()
            if number >= 0:
                times[name] += taken
    return times


async def _in_pairs(
    variants: Mapping[str, tuple[Variant, Agent]], pairs: int
) -> dict[str, tuple[list[list[float]], ...]]:
    """For each variant runs with one tool call a turn, and those with `WIDE`: of each the seconds of its parts."""
    times: dict[str, tuple[list[list[float]], ...]] = {variant: ([], []) for variant in variants}
    shuffled = random.Random(1)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    if cpus is not None:
        os.sched_setaffinity(0, {max(cpus)})  # threads too: one that is woken elsewhere costs what nobody here caused
    with _answering_within():
        for number in range(-WARM_UP, pairs):
            if number == 0:
                gc.collect()
                gc.freeze()
            for name in shuffled.sample(list(variants), len(variants)):
                variant, run = variants[name]
                variant.begin()
                for _ in range(2):
                    await run(TURNS)
                gc.collect(0)
                for _ in range(AGAIN):
                    for runs, wide in zip(times[name], (1, WIDE), strict=True):
                        PASSED.clear()
                        passed()
                        await run(TURNS, wide)
                        passed()
                        if number >= 0:
                            runs.append([after - before for before, after in pairwise(PASSED)])
                variant.end()
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    return times


@contextmanager
def _answering_within() -> Generator[None]:
    """What would go to the scripted model's server is answered in this process, by the transport of the HTTP client."""
    import openai

    from lgov_core.types import new_id

    client = next(one for one in openai.DefaultAsyncHttpxClient.__mro__ if one.__name__ == "AsyncClient")
    library = importlib.import_module(client.__module__.partition(".")[0])
    transport: Any = library.AsyncHTTPTransport
    sends, base_url = transport.handle_async_request, os.environ["OPENAI_BASE_URL"]

    async def answer(self: Any, request: Any) -> Any:
        if not str(request.url).startswith(base_url):
            return await sends(self, request)  # the probes of a self-test
        passed()
        said: Any = script(json.loads(request.content))
        message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
        if not isinstance(said, str):
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.text},
                }
                for call in said.tool_calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        whole = {
            "id": new_id("chatcmpl"),
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "usage": usage,
        }
        return library.Response(200, json={**whole, "choices": [{**choice, "logprobs": None}]})

    transport.handle_async_request = answer
    try:
        yield
    finally:
        transport.handle_async_request = sends
