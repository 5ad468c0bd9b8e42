"""How much longer a call of an MCP tool takes behind ``lgov mcp``: ``python -m tests.bench.mcp_proxy [CALLS]``.

The same client calls the same tool of the same server, directly and through lgov on standard input and output, in turns, so
that both see the same load of the machine. Prints the medians and the difference.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.mcp_proxy.proxied import FILES, connected, governed, write_policy

WARM_UP = 20


async def measure(calls: int) -> dict[str, list[float]]:
    """The seconds of each call, by the way it took."""
    times: dict[str, list[float]] = {"directly": [], "through lgov": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_policy(folder, "add")
        async with connected(folder, FILES) as direct, connected(folder, governed(*FILES)) as behind:
            for number in range(calls + WARM_UP):
                for way, client in (("directly", direct), ("through lgov", behind)):
                    began = time.perf_counter()
                    result = await client.call_tool("add", {"a": 1, "b": number})
                    took = time.perf_counter() - began
                    assert result.structured_content == {"result": number + 1}
                    if number >= WARM_UP:
                        times[way].append(took)
    return times


if __name__ == "__main__":
    measured = asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
    medians = {way: 1000 * statistics.median(times) for way, times in measured.items()}
    for way, median in medians.items():
        print(f"{way:<13} {median:7.2f} ms")
    added = [1000 * (after - before) for before, after in zip(*measured.values(), strict=True)]
    print(f"added         {statistics.median(added):7.2f} ms")
