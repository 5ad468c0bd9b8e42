"""What a call costs that goes through the endpoint: CPU of its process, added latency, memory.

Three processes over loopback: a scripted upstream that answers after a fixed time, the endpoint (with the capture of every
call, a policy, the audit record and the store), and the clients of this process. The CPU time is that of the endpoint's
process alone. Beside it stands a plain pass-through, Starlette with aiohttp, which hands every request on and does nothing
else: what any proxy of that kind costs on the machine. With ``--peer PYTHON``, an interpreter that has agentlightning 1,
its server is measured beside it (see `tests.bench.gateway_peer`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: The calls are made in so many turns.
SLICES = 20
ROOT = Path(__file__).parents[2]
GOAL_CPU_US = 350.0
GOAL_ADDED_P99_MS = 10.0
PASS_THROUGH = "pass-through"
PEER = "agentlightning 1"

POLICY = """\
version: 1
name: bench
default: deny
rules:
  - name: reads
    tools: ["sql_query"]
    use: sql
    with: {dialect: sqlite, mode: read_only, argument: query}
  - name: pace
    "on": [pre_model_call]
    use: rate
    with: {max_calls: 1000000000, per_seconds: 3600}
"""

# ---------------------------------------------------------------------- the scripted upstream


def reply_of(prompt_tokens: int, tokens: int, number: int) -> bytes:
    """A chat completion with the token ids and logprobs of a vLLM server."""
    words = [(number * 31 + place * 7) % 50_000 for place in range(tokens)]
    body = {
        "id": f"chatcmpl-{os.getpid()}-{number}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "The answer is a number. " * 4},
                "finish_reason": "stop",
                "logprobs": {
                    "content": [
                        {"token": f"t{word}", "logprob": -0.25 - place / 97, "bytes": None, "top_logprobs": []}
                        for place, word in enumerate(words)
                    ]
                },
                "token_ids": words,
            }
        ],
        "prompt_token_ids": [place % 50_000 for place in range(prompt_tokens)],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens},
    }
    return json.dumps(body, separators=(",", ":")).encode()


class Upstream(asyncio.Protocol):
    """Answers every request after ``delay_s`` with as little work as it can."""

    served = 0

    def __init__(self, delay_s: float, parts: tuple[bytes, bytes]) -> None:
        self.delay_s, self.parts, self.buffer = delay_s, parts, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + size:
                return
            self.buffer = self.buffer[end + 4 + size :]
            if head.startswith(b"get"):
                body = b'{"object":"list","data":[]}'
            else:
                Upstream.served += 1
                body = self.parts[0] + f"{Upstream.served:09d}".encode() + self.parts[1]
            answer = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )
            if head.startswith(b"get"):
                self.transport.write(answer)
            else:
                asyncio.get_running_loop().call_later(self.delay_s, self.transport.write, answer)


async def serve_upstream(delay_s: float, prompt_tokens: int, tokens: int) -> None:
    """Runs until it is killed; writes its port."""
    body = reply_of(prompt_tokens, tokens, 0)
    mark = f"chatcmpl-{os.getpid()}-".encode()
    head, _, tail = body.partition(mark + b"0")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(delay_s, (head + mark, tail)), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# ---------------------------------------------------------------------- the endpoint


def serve_endpoint(upstream: str, folder: Path, what: str) -> None:
    """The endpoint with everything (``full``), or with what is named; runs until its input ends."""
    from lgov_core.gateway.access import KeyRing
    from lgov_core.gateway.app import create_app
    from lgov_core.gateway.server import EndpointServer
    from lgov_core.gateway.upstream import UpstreamEngine
    from lgov_core.store import open_store
    from lgov_core.types import Rollout

    store = None
    options: dict[str, Any] = {}
    if what != "bare":
        store = open_store(str(folder / "store.db"))
        store.add_rollouts([Rollout("r1", task_id="t", run_id="r", input={})])
        store.start_attempt("r1", 1)
    if what == "full":
        from lgov_core.gateway.policy_gate import open_gate
        from lgov_core.governance import Governance

        (folder / "policy.yaml").write_text(POLICY)
        options["gate"] = open_gate(Governance(policy=folder / "policy.yaml", audit=folder / "audit.db"))
    app = create_app([UpstreamEngine(upstream)], store, keys=KeyRing(required=False), **options)
    with EndpointServer(app) as server:
        print(server.port, flush=True)
        sys.stdin.read()


def serve_pass_through(upstream: str) -> None:
    """A proxy that hands each request on and its answer back; runs until it is killed."""
    import socket

    import aiohttp
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    @contextlib.asynccontextmanager
    async def session(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as app.state.session:
            yield

    async def pass_on(request: Request) -> Response:
        body = await request.body()
        headers = {"content-type": "application/json"}
        async with request.app.state.session.post(f"{upstream}/chat/completions", data=body, headers=headers) as answer:
            return Response(await answer.read(), answer.status, media_type="application/json")

    app = Starlette(routes=[Route("/v1/chat/completions", pass_on, methods=["POST"])], lifespan=session)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_config=None)
    uvicorn.Server(config).run(sockets=[listener])


# ---------------------------------------------------------------------- clients


@dataclass(frozen=True, slots=True)
class Measure:
    """One arrangement: microseconds of CPU a request, milliseconds of latency, requests a second, MiB of memory.

    ``cpu_us`` is the median of the slices of the run, ``cpu_best_us`` the best: what others do on the machine at the same
    time counts against every slice but that one.
    """

    what: str
    calls: int
    cpu_us: float | None
    cpu_best_us: float | None
    p50_ms: float
    p99_ms: float
    per_second: float
    added_p50_ms: float | None = None
    added_p99_ms: float | None = None
    rss_before_mib: float | None = None
    rss_after_mib: float | None = None


def request_of(path: str, messages: int, size: int, headers: dict[str, str]) -> bytes:
    turns = [{"role": "system", "content": "You answer questions about a database."}]
    turns += [{"role": "user" if n % 2 == 0 else "assistant", "content": "x" * size} for n in range(messages)]
    body = json.dumps({"model": "m", "messages": turns, "temperature": 0.7, "max_tokens": 256}).encode()
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


async def ask(port: int, request: bytes, calls: int, concurrency: int) -> list[float]:
    """Sends ``calls`` requests over ``concurrency`` connections; milliseconds of each."""
    times: list[float] = []
    left = iter(range(calls))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            began = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the endpoint answered {head!r} {await reader.read(2000)!r}")
            at = head.lower().find(b"content-length:")
            await reader.readexactly(int(head[at + 15 :].split(b"\r\n", 1)[0]))
            times.append((time.perf_counter() - began) * 1000)
        writer.close()

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return times


def cpu_s(pid: int) -> float:
    """Seconds that all threads of a process were on a processor."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def measured(what: str, port: int, pid: int | None, request: bytes, calls: int, concurrency: int) -> Measure:
    asyncio.run(ask(port, request, min(calls, 400), concurrency))
    memory, began = rss_mib(pid) if pid else None, time.perf_counter()
    times: list[float] = []
    spent: list[float] = []
    for _ in range(SLICES):
        before = cpu_s(pid) if pid else 0.0
        times += asyncio.run(ask(port, request, calls // SLICES, concurrency))
        if pid:
            spent.append((cpu_s(pid) - before) / (calls // SLICES) * 1e6)
    took = time.perf_counter() - began
    times.sort()
    return Measure(
        what,
        calls,
        statistics.median(spent) if spent else None,
        min(spent) if spent else None,
        times[len(times) // 2],
        times[int(len(times) * 0.99)],
        calls / took,
        rss_before_mib=memory,
        rss_after_mib=rss_mib(pid) if pid else None,
    )


@contextlib.contextmanager
def child(*arguments: str, python: str = sys.executable) -> Iterator[tuple[int, int]]:
    """A process of this module, or another one of this folder; yields its id and port."""
    process = subprocess.Popen(
        [python, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.strip().isdigit():
            raise SystemExit(f"{arguments} did not start: {line!r}")
        yield process.pid, int(line)
    finally:
        process.kill()
        process.communicate()


def run(options: argparse.Namespace) -> list[Measure]:
    me = ("-m", "tests.bench.gateway")
    headers = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"}
    request = request_of("/v1/chat/completions", options.messages, options.size, headers)
    shape = (str(options.delay_ms / 1000), str(options.prompt_tokens), str(options.tokens))
    found: list[Measure] = []
    with child(*me, "--upstream", *shape) as (_, port), tempfile.TemporaryDirectory() as folder:
        direct = measured("the upstream alone", port, None, request, options.calls, options.concurrency)
        found.append(direct)
        for what in options.what.split(","):
            place = Path(folder) / what
            place.mkdir()
            named = PASS_THROUGH if what == PASS_THROUGH else f"endpoint, {what}"
            with child(*me, "--endpoint", f"http://127.0.0.1:{port}/v1", str(place), what) as (pid, own):
                row = measured(named, own, pid, request, options.calls, options.concurrency)
            found.append(_beside(row, direct))
        if options.peer:
            path = "/proxy/rollout/r1/attempt/1/mode/train/openai/v1/chat/completions"
            request = request_of(path, options.messages, options.size, {})
            upstream = f"http://127.0.0.1:{port}/v1"
            with child("-m", "tests.bench.gateway_peer", upstream, python=options.peer) as (pid, own):
                row = measured(PEER, own, pid, request, options.calls, options.concurrency)
            found.append(_beside(row, direct))
    return found


def _beside(row: Measure, direct: Measure) -> Measure:
    added = {"added_p50_ms": row.p50_ms - direct.p50_ms, "added_p99_ms": row.p99_ms - direct.p99_ms}
    return Measure(**{**asdict(row), **added})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--messages", type=int, default=6, help="messages in a request")
    parser.add_argument("--size", type=int, default=300, help="characters in a message")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--what", default=f"{PASS_THROUGH},bare,captured,full")
    parser.add_argument("--peer", help="a Python interpreter that has agentlightning 1")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--upstream", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.upstream:
        asyncio.run(serve_upstream(float(options.upstream[0]), int(options.upstream[1]), int(options.upstream[2])))
    if options.endpoint and options.endpoint[2] == PASS_THROUGH:
        serve_pass_through(options.endpoint[0])
    if options.endpoint:
        serve_endpoint(options.endpoint[0], Path(options.endpoint[1]), options.endpoint[2])
        return
    found = run(options)
    if options.json:
        json.dump({"measures": [asdict(row) for row in found]}, sys.stdout, indent=2)
        print()
        return
    heads = ["calls", "CPU µs", "best", "p50 ms", "p99 ms", "added p99", "a second", "memory MiB"]
    widths = (6, 7, 5, 7, 7, 9, 8, 10)
    print(f"{'':24}  " + "  ".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    for row in found:
        cpu = "" if row.cpu_us is None else f"{row.cpu_us:.0f}"
        best = "" if row.cpu_best_us is None else f"{row.cpu_best_us:.0f}"
        added = "" if row.added_p99_ms is None else f"{row.added_p99_ms:.1f}"
        memory = "" if row.rss_after_mib is None else f"{row.rss_before_mib:.0f} to {row.rss_after_mib:.0f}"
        print(
            f"{row.what:24}  {row.calls:>6}  {cpu:>7}  {best:>5}  {row.p50_ms:>7.1f}  {row.p99_ms:>7.1f}  {added:>9}"
            f"  {row.per_second:>8.0f}  {memory}"
        )
    full = next((row for row in found if row.what == "endpoint, full"), None)
    if full is not None and full.cpu_us is not None and full.added_p99_ms is not None:
        print(f"CPU a request {full.cpu_us:.0f} µs, goal {GOAL_CPU_US:g}: {_met(full.cpu_us <= GOAL_CPU_US)}")
        print(
            f"added p99 {full.added_p99_ms:.1f} ms, goal {GOAL_ADDED_P99_MS:g}: {_met(full.added_p99_ms <= GOAL_ADDED_P99_MS)}"
        )
    plain = next((row.cpu_us for row in found if row.what == PASS_THROUGH), None)
    for row in found:
        if plain and row.cpu_us and row.what != PASS_THROUGH:
            print(f"{row.what}: {row.cpu_us / plain:.1f} times the CPU of the pass-through")
    if not options.peer:
        print("no agentlightning 1 to compare with: make bench-peer")


def _met(met: bool) -> str:
    return "met" if met else "NOT met"


if __name__ == "__main__":
    main()
