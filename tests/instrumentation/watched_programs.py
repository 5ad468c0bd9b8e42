"""Runs a program whose framework is watched by a governor that only observes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.testing import ScriptedCall, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Span
from tests.bench.adapter_agents import ADAPTERS

pytest.importorskip("openai")


PACKAGES = {"langchain": "langchain_openai", "autogen": "autogen_ext", "openai-agents": "agents", "openai": "openai"}

#: Only keeps a program that is given nothing from waiting for ever.
PATIENCE_S = 30


@dataclass
class Kept:
    """The part of a store that a sink writes to."""

    spans: list[Span] = field(default_factory=list[Span])

    def add_span(self, span: Span) -> None:
        self.spans.append(span)

    def add_rewards(self, rewards: Any) -> None:
        raise AssertionError("nobody rewards here")

    def of(self, operation: str) -> list[Span]:
        return [span for span in self.spans if span.attributes.get(semconv.OPERATION) == operation]


#: Watches the program that runs now.
GOVERNORS: list[Governor] = []


@contextlib.contextmanager
def watched(framework: str, *, instrumented: bool = True) -> Generator[Kept]:
    store = Kept()
    manager = make_plugin_manager(builtin=(), third_party=False)
    governor = Governor(plugins=[StoreSink(store)], manager=manager, capture_content=True, observe_only=True)
    pytest.importorskip(PACKAGES[framework])
    adapter = importlib.import_module(ADAPTERS[framework])
    GOVERNORS.append(governor)
    if instrumented:
        adapter.instrument(governor)
    try:
        yield store
    finally:
        GOVERNORS.remove(governor)
        adapter.uninstrument()


async def settled(done: Callable[[], bool]) -> None:
    """Waits for what the event loop does when a generator is dropped."""
    for _ in range(500):
        if done():
            return
        await asyncio.sleep(0.01)


def script(body: Any) -> ScriptedReply:
    done = sum(message["role"] == "tool" for message in body["messages"])
    return ScriptedReply("done") if done == 2 else ScriptedReply(tool_calls=[ScriptedCall("add", {"a": done})])
