"""A server that follows vLLM's protocol, with an engine on it that is asked from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lgov_core.train.engines.vllm_engine import VllmEngine
from lgov_core.train.engines.vllm_policy import VllmPolicy
from lgov_core.train.engines.vllm_server import VllmServer
from lgov_core.wire.exchange import ChatRequest, Completion
from tests.gateway.taught import tiny

MODEL = tiny()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def weights(number: int) -> dict[str, torch.Tensor]:
    layer = "model.layers.0.self_attn.q_proj"
    return {f"{layer}.lora_A.weight": torch.zeros(2, 64), f"{layer}.lora_B.weight": torch.full((64, 2), float(number))}


class Fake:
    """A running server, the policy on it, and an engine that is asked from a thread of its own."""

    def __init__(self, folder: Path, server: VllmServer, policy: VllmPolicy) -> None:
        self.folder, self.server, self.policy = folder, server, policy
        self.engine = VllmEngine(MODEL, self.policy, max_new_tokens=8)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(self.engine.start())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def begin(self, **more: Any) -> Any:
        request = ChatRequest(
            **{"body": {}, "model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **more}
        )
        return asyncio.run_coroutine_threadsafe(self.engine.chat(request), self.loop)

    def ask(self, **more: Any) -> Completion:
        return self.begin(**more).result(60)

    @contextmanager
    def under_load(self) -> Generator[list[Completion]]:
        """Four threads ask, one call after another, until the block ends; their replies are in the list then."""
        done, replies = threading.Event(), list[Completion]()

        def keep_asking() -> None:
            while not done.is_set():
                replies.append(self.ask())

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(keep_asking) for _ in range(4)]
            try:
                yield replies
            finally:
                done.set()
        for one in asking:
            one.result()

    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()

    def calls(self) -> int:
        return sum(line.startswith("call") for line in self.log())

    def close(self) -> None:
        self.run(self.engine.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
