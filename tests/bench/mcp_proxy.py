"""How much longer a call of an MCP tool takes behind ``lgov mcp``: ``python -m tests.bench.mcp_proxy [CALLS]``.

The same client calls the same tool of the same server on standard input and output: directly, through a proxy that is nothing
but the transports of the official SDK, and through lgov, in turns, so that all see the same load of the machine, which is
printed, too: the median, and the time that one call in ten stays below. Then what judges and records is measured without any
process, and in it the record alone.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.stdio import stdio_server

from lgov_core.governance import Governance
from lgov_core.process.mcp_flow import GovernedMCPServer, GovernedMCPSession
from lgov_core.scope import RolloutScope
from tests.mcp_proxy.proxied import FILES, connected, governed, write_policy

WARM_UP = 20
BARE = [sys.executable, "-m", "tests.bench.mcp_proxy", "--bare"]


async def be_bare_proxy(program: str, *arguments: str) -> None:
    """Passes messages on between standard input and output and a server, and does nothing else."""

    async def pass_on(source: Any, target: Any) -> None:
        async for message in source:
            await target.send(message)

    parameters = StdioServerParameters(command=program, args=list(arguments), env=dict(os.environ))
    async with stdio_server() as client, stdio_client(parameters) as server:
        back = asyncio.create_task(pass_on(server[0], client[1]))
        await pass_on(client[0], server[1])
        back.cancel()


async def measure_calls(folder: Path, calls: int) -> dict[str, list[float]]:
    """The milliseconds of each call, by the way it took."""
    times: dict[str, list[float]] = {"directly": [], "through the SDK alone": [], "through lgov": []}
    async with (
        connected(folder, FILES) as direct,
        connected(folder, [*BARE, *FILES]) as bare,
        connected(folder, governed(*FILES)) as behind,
    ):
        for number in range(calls + WARM_UP):
            for way, client in zip(times, (direct, bare, behind), strict=True):
                began = time.perf_counter()
                result = await client.call_tool("add", {"a": 1, "b": number})
                took = 1000 * (time.perf_counter() - began)
                assert result.structured_content == {"result": number + 1}
                if number >= WARM_UP:
                    times[way].append(took)
    return times


async def measure_judging(folder: Path, calls: int) -> tuple[list[float], list[float]]:
    """The milliseconds in which a call and its result are judged and recorded, and those of the record in it."""
    judged, recorded = [], []
    with Governance(policy=folder / "policy.yaml", audit=folder / "judged.db").open(rewards=False) as opened:
        audit: Any = opened.audit
        commits = [0.0]

        def timed(commit: Any) -> Any:
            def commit_timed(*what: Any) -> Any:
                began = time.perf_counter()
                try:
                    return commit(*what)
                finally:
                    commits[-1] += 1000 * (time.perf_counter() - began)

            return commit_timed

        audit.commit, audit.commit_outcome = timed(audit.commit), timed(audit.commit_outcome)
        session = GovernedMCPSession(GovernedMCPServer(opened, "files"), RolloutScope("r"))

        async def send(method: str, params: Any) -> dict[str, Any]:
            return {"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 3}}

        for number in range(calls + WARM_UP):
            began = time.perf_counter()
            await session.respond("tools/call", {"name": "add", "arguments": {"a": 1, "b": number}}, send)
            judged.append(1000 * (time.perf_counter() - began))
            commits.append(0.0)
        recorded = commits[:-1]
    return judged[WARM_UP:], recorded[WARM_UP:]


def main(calls: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_policy(folder, "add")
        times = asyncio.run(measure_calls(folder, calls))
        judged, recorded = asyncio.run(measure_judging(folder, calls))
    ways = {
        way: (statistics.median(measured), statistics.quantiles(measured, n=10)[0]) for way, measured in times.items()
    }
    for way, (median, fastest) in ways.items():
        print(f"{way:<22}{median:6.2f} ms {fastest:6.2f} ms")
    added = [behind - direct for direct, behind in zip(ways["directly"], ways["through lgov"], strict=True)]
    bare = [behind - direct for direct, behind in zip(ways["directly"], ways["through the SDK alone"], strict=True)]
    print(
        f"added by lgov         {added[0]:6.2f} ms {added[1]:6.2f} ms, {added[1] / bare[1]:.1f} times what the SDK adds"
    )
    print(
        f"  judged and recorded {statistics.median(judged):6.2f} ms, of it the record {statistics.median(recorded):.2f} ms"
    )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, {calls} calls each")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        asyncio.run(be_bare_proxy(*sys.argv[2:]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
