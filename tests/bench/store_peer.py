"""agent-lightning's in-memory store, measured by its own interpreter for `tests.bench.store`. Prints JSON rows."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
logging.disable(logging.WARNING)

from agentlightning.store.memory import InMemoryLightningStore  # type: ignore[import-not-found]  # noqa: E402
from agentlightning.types import Span  # type: ignore[import-not-found]  # noqa: E402


def span(i: int, rollout_id: str, attempt_id: str) -> Any:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.id": f"chatcmpl-{i}",
        "gen_ai.usage.input_tokens": 512,
        "gen_ai.usage.output_tokens": 64,
        "gen_ai.agent.name": "clerk",
        "lgov.framework": "langchain",
        "gen_ai.tool.call.arguments": "SELECT count(*) FROM staff WHERE city = 'Bern' " * 2,
    }
    return Span.from_attributes(
        attributes=attributes, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=i, name="chat tiny",
        trace_id=f"{i:032x}", span_id=f"{i:016x}", start_time=1.7e9 + i, end_time=1.7e9 + i + 0.5,
    )  # fmt: skip


async def measure(count: int) -> list[dict[str, Any]]:
    store = InMemoryLightningStore()
    spans: list[Any] = []
    for first in range(0, count, 20):
        one = await store.start_rollout(input={"q": first})
        spans += [span(first + i, one.rollout_id, one.attempt.attempt_id) for i in range(20)]
    wall, cpu = time.perf_counter(), time.process_time()
    for one in spans:
        await store.add_span(one)
    found = [row("agent-lightning 0.3, memory: spans added", count, wall, cpu)]
    wall, cpu = time.perf_counter(), time.process_time()
    for rollout_id in dict.fromkeys(one.rollout_id for one in spans):
        await store.query_spans(rollout_id)
    found.append(row("agent-lightning 0.3, memory: spans read", count, wall, cpu))
    return found


def row(what: str, count: int, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "what": what,
        "count": count,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
    }


print(json.dumps(asyncio.run(measure(int(sys.argv[1])))))
