"""Interceptors of every kind, and the ways in which a governor asks them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from agent_hooks import (
    Verdict,
)

from lgov_core import Governor, PolicySet
from lgov_core.integrations.agent_hooks import InterceptorPolicy
from lgov_core.types import Action, Decision, Point

Answer = Callable[[dict[str, Any]], Any]


class Sync:
    """An interceptor that is no coroutine function: it runs in a thread."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[dict[str, Any]] = []
        self.threads: list[int] = []

    def intercept(self, context: dict[str, Any]) -> Any:
        self.seen.append(context)
        self.threads.append(threading.get_ident())
        return self.answer(context)


class Bounded(Sync):
    bounded = True


class Async(Sync):
    async def intercept(self, context: dict[str, Any]) -> Any:
        await asyncio.sleep(0)
        return Sync.intercept(self, context)


KINDS = (Sync, Bounded, Async)


PATHS = ("plugin", "policy", "set", "async plugin", "async policy")


def allows(_context: dict[str, Any]) -> Any:
    return Verdict.allow()


def at(point: str, verdict: Any) -> Answer:
    return lambda context: verdict if context["interception_point"] == point else Verdict.allow()


def call(**arguments: Any) -> Action:
    arguments = arguments or {"url": "https://x"}
    return Action(Point.PRE_TOOL_CALL, "get", arguments=arguments, agent="clerk", call_id="t-1", operation_id="op_1")


def decide(path: str, policy: InterceptorPolicy, action: Action, **options: Any) -> Decision:
    """The decision by one of the ways in which a policy can be given and asked."""
    options.setdefault("timeout_s", 5.0)
    if path.endswith("plugin"):
        governor = Governor(plugins=[policy], **options)
    else:
        governor = Governor(PolicySet.of(policy) if path == "set" else policy, **options)
    if path.startswith("async"):
        return asyncio.run(governor.adecide(action))
    return governor.decide(action)
