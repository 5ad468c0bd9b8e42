"""A scripted model on real HTTP, and governors over hand-written policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pluggy

from lgov_core import hookspecs
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Effect, Point, Reward, Span, ToolOutcome

# LangChain keeps its HTTP clients, and their open connections, for longer than the event loop of one test lives.
_ALONE = {"connection": "close"}


def says(text: str) -> ScriptedReply:
    return ScriptedReply(text, headers=_ALONE)


def calls(*tool_calls: tuple[str, str, dict[str, Any] | str]) -> ScriptedReply:
    """A reply with tool calls of ``(id, name, arguments)``."""
    return ScriptedReply(
        tool_calls=[ScriptedCall(name, args, call_id) for call_id, name, args in tool_calls], headers=_ALONE
    )


class ModelServer:
    """A `ScriptedModelServer` whose script is chosen after it has started."""

    def __init__(self) -> None:
        self.script: Callable[[Mapping[str, Any]], ScriptedReply] = lambda body: says("nothing to do")
        self._server = ScriptedModelServer(lambda body: self.script(body))

    def play(self, *replies: ScriptedReply) -> None:
        """One reply after the other."""
        left = list(replies)
        self.script = lambda body: left.pop(0)

    def forget(self) -> None:
        """Drops what was asked so far."""
        self._server.requests.clear()

    @property
    def url(self) -> str:
        """Where the server is, without ``/v1``."""
        return self._server.base_url.removesuffix("/v1")

    @property
    def bodies(self) -> list[Mapping[str, Any]]:
        return [request.body for request in self._server.requests]

    @property
    def headers(self) -> list[Mapping[str, str]]:
        return [request.headers for request in self._server.requests]

    def last_results(self) -> dict[str, str]:
        """What the model read as tool results in its last prompt, by tool call id."""
        return {m["tool_call_id"]: m["content"] for m in self.bodies[-1]["messages"] if m["role"] == "tool"}


@contextmanager
def serve_model() -> Iterator[ModelServer]:
    server = ModelServer()
    with server._server:
        yield server


class Judging:
    """A policy out of a function."""

    bounded = True

    def __init__(self, judge: Callable[[Action], Decision | None], name: str = "test") -> None:
        self.name = name
        self.judge = judge


def deny(reason: str, *, abort: bool = False) -> Decision:
    return Decision(Effect.DENY, policy="test", rule="no", reason=reason, abort=abort)


def allow() -> Decision:
    return Decision(Effect.ALLOW, policy="test")


def at(point: Point, judge: Callable[[Action], Decision | None], *, otherwise: bool = True) -> Judging:
    """Judges one point by ``judge`` and allows every act that it says nothing about."""

    def both(action: Action) -> Decision | None:
        decision = judge(action) if action.point is point else None
        if decision is None and otherwise and action.point is Point.PRE_TOOL_CALL:
            return allow()
        return decision

    return Judging(both)


class Witness:
    """Keeps everything that a governor showed its observers."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        self.events.append(event)

    def decisions(self, point: Point = Point.PRE_TOOL_CALL) -> list[ObservedDecision]:
        return [e for e in self.events if isinstance(e, ObservedDecision) and e.action.point is point]

    @property
    def outcomes(self) -> list[ToolOutcome]:
        return [event for event in self.events if isinstance(event, ToolOutcome)]

    @property
    def spans(self) -> list[Span]:
        return [event for event in self.events if isinstance(event, Span)]

    @property
    def rewards(self) -> list[Reward]:
        return [event for event in self.events if isinstance(event, Reward)]


def make_governor(*policies: Any, witness: Witness) -> Governor:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return Governor(policies, plugins=[witness], manager=manager)
