"""A governor with AIR rules, and the rewards it has shown."""

from __future__ import annotations

from typing import Any

from lgov_core.governor import Governor, PluginFailure
from lgov_core.hookspecs import hookimpl
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.plugins import make_plugin_manager
from lgov_core.scope import RolloutScope
from lgov_core.trace import semconv
from lgov_core.types import Action, Point, Reward, ToolOutcome


class Seen:
    """Keeps the rewards and failures that a governor shows."""

    def __init__(self) -> None:
        self.rewards: list[Reward] = []
        self.failures: list[PluginFailure] = []

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        if isinstance(event, Reward):
            self.rewards.append(event)
        elif isinstance(event, PluginFailure):
            self.failures.append(event)


class Bench:
    """A governor that allows everything, with plugins of rewards, and what it showed."""

    def __init__(self, *plugins: Any) -> None:
        self.seen = Seen()
        self.governor = Governor(
            plugins=[*plugins, self.seen], manager=make_plugin_manager(builtin=(), third_party=False)
        )

    def tool(self, name: str, call_id: str | None, status: Any = "ok", **given: Any) -> list[tuple[float, str]]:
        action = Action(
            Point.PRE_TOOL_CALL,
            name,
            arguments=given.pop("arguments", {}),
            agent=given.pop("agent", None),
            call_id=call_id,
        )
        outcome = ToolOutcome(action, status, **given)
        return [(reward.value, reward.dimension) for reward in self.governor.record(outcome)]

    def chat(self, response_id: str | None, *, model: str = "m", agent: str = "a", error: str | None = None) -> None:
        span = LiveSpan(self.governor, semconv.CHAT, model, {semconv.REQUEST_MODEL: model, semconv.AGENT_NAME: agent})
        span.set({semconv.RESPONSE_ID: response_id, semconv.FINISH_REASONS: ["stop"], semconv.OUTPUT_TOKENS: 7})
        span.end(error)

    def paid(self) -> list[tuple[float, str, str | None, str | None]]:
        return [(r.value, r.dimension, r.tool_call_id, r.response_id) for r in self.seen.rewards]


ATTEMPT = RolloutScope("r1", 2)
