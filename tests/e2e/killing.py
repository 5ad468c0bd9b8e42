"""Kills the parts of one training at random moments, and starts again what does not start itself."""

from __future__ import annotations

import multiprocessing
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from lgov_core.store import open_store
from lgov_core.train.loop.run_files import read_metrics
from tests.e2e import killable


class Parts:
    """The processes of a run; server and client are started again, from one that has loaded torch already.

    ``kills`` and ``starts`` count by part. ``orphans`` are processes of a vLLM that outlived the server that started them
    by 20 seconds.
    """

    def __init__(self, folder: Path, vllm: Path | None = None) -> None:
        self.folder, self.vllm = folder, vllm
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([killable.__name__])
        self.running: dict[str, Any] = {}
        self.starts: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.orphans: list[psutil.Process] = []

    def start(self, name: str) -> None:
        given = (name, self.folder, self.port, self.vllm)
        self.running[name] = self.context.Process(target=killable.run, args=given)
        self.running[name].start()
        self.starts[name] += 1

    def children(self, name: str) -> list[psutil.Process]:
        try:
            return psutil.Process(self.running[name].pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self, name: str, chance: random.Random) -> bool:
        """Kills a part at once, and sees to it that there is another; whether there was one."""
        if name in ("worker", "vllm"):
            found = self.children("client" if name == "worker" else "server")
            if not found:
                return False
            chance.choice(found).kill()  # the client starts another, or the server does
        else:
            found = self.children(name) if name == "server" else []
            self.running[name].kill()
            self.running[name].join()
            left = psutil.wait_procs(found, timeout=20)[1]
            for process in left:
                process.kill()
            self.orphans += left
            self.start(name)
        self.kills[name] += 1
        return True

    def check(self) -> None:
        for name, process in self.running.items():
            assert process.is_alive(), self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
            process.join()


def run_with_kills(folder: Path, kills: Mapping[str, int], deadline_s: float, vllm: Path | None = None) -> Parts:
    """The parts of a run that were killed, each so often, in random order; it was then let finish."""
    killable.prepare(folder)
    parts, chance = Parts(folder, vllm), random.Random(20)
    victims = [name for name, count in kills.items() for _ in range(count)]
    chance.shuffle(victims)
    end = time.monotonic() + deadline_s

    def wait_until(true: Callable[[], bool]) -> None:
        while not true():
            parts.check()
            assert time.monotonic() < end, parts.log("server")
            time.sleep(0.05)

    def calls_after(before: int) -> Callable[[], bool]:
        return lambda: calls_of(folder) > before

    parts.start("server")
    parts.start("client")
    try:
        wait_until(calls_after(0))
        for victim in victims:
            # Something happens between two kills, or nothing would be learnt from them; then a random moment.
            wait_until(calls_after(calls_of(folder)))
            time.sleep(chance.random() * 2)
            wait_until(lambda victim=victim: parts.kill(victim, chance))
        steps = done(folder)
        wait_until(lambda: done(folder) >= steps + 2)
        (folder / "enough").touch()
        server = parts.running["server"]
        server.join(max(1.0, end - time.monotonic()))
        assert server.exitcode == 0, parts.log("server")
    finally:
        parts.stop()
    return parts


def lines_of(folder: Path, phase: str) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [line for line in read_metrics(path) if line["phase"] == phase] if path.exists() else []


def done(folder: Path) -> int:
    return max((line["step"] for line in lines_of(folder, "train")), default=0)


def calls_of(folder: Path) -> int:
    if not (folder / "store.sqlite").exists():
        return 0
    with closing(open_store(str(folder / "store.sqlite"))) as store:
        return sum(1 for _ in store.calls())
