"""Tool calls on record in a real store, as an endpoint, a governor and its sink write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lgov_core.authoring.replay import RecordedAction, from_store
from lgov_core.governor import Governor
from lgov_core.policies import PolicySet, load_policies
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import TraceStore, open_store
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Action, CapturedCall, Point, ToolOutcome, ToolStatus

EVERYTHING = {"version": 1, "rules": [{"use": "allow"}]}


class ActRecord:
    """A store in memory with tool calls of rollouts. ``policy`` judges them when they are recorded."""

    def __init__(self, policy: Mapping[str, Any] | PolicySet = EVERYTHING, *, content: bool = True) -> None:
        self.store: TraceStore = open_store("memory://")
        policies = policy if isinstance(policy, PolicySet) else load_policies(policy)
        self.governor = Governor(policies, plugins=[StoreSink(self.store, content=content)])
        self.count = 0

    def say(
        self, rollout_id: str, text: str, *written: dict[str, Any], offered: Mapping[str, Any] | None = None
    ) -> None:
        """What the user says in a rollout's first model call, with the tools ``offered``; and the tool calls in the reply."""
        functions = [{"name": name, "parameters": schema} for name, schema in (offered or {}).items()]
        tools: dict[str, Any] = {"tools": [{"type": "function", "function": each} for each in functions]}
        self.store.add_call(
            CapturedCall(
                response_id=f"resp-{rollout_id}",
                model="tiny",
                request={"messages": [{"role": "user", "content": text}], **(tools if functions else {})},
                response={"choices": [{"message": {"tool_calls": list(written)}}]},
                prompt_ids=(1,),
                response_ids=(2,),
                logprobs=(-0.5,),
                finish_reason="stop",
                weights_version=0,
                temperature=1.0,
                top_p=1.0,
                started_at=0.0,
                ended_at=1.0,
                rollout_id=rollout_id,
                attempt=1,
            )
        )

    def act(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        rollout_id: str = "r",
        status: ToolStatus = "ok",
        times: int = 1,
        result: str = "",
    ) -> None:
        """A tool call, as often as ``times`` says."""
        for _ in range(times):
            self.count += 1
            with enter_scope(RolloutScope(rollout_id, 1)):
                action = Action(Point.PRE_TOOL_CALL, tool, arguments=arguments, call_id=f"call-{self.count}")
                decision = self.governor.decide(action)
                ended: ToolStatus = "denied" if decision.blocks else status
                self.governor.record(ToolOutcome(action, ended, result=result, decision=decision))

    def acts(self) -> list[RecordedAction | None]:
        """What is on record."""
        self.store.flush()
        return list(from_store(self.store))
