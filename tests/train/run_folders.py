"""Run folders written by the code that writes them in a training (store, governor, metrics, ...), without a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgov_core._util.json_text import json_object
from lgov_core.governor import Governor
from lgov_core.policies import load_policies
from lgov_core.reward import AirPlugin, AirRules
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import TraceStore, open_store
from lgov_core.trace.sink import StoreSink
from lgov_core.train.loop.run_files import MetricsLog, write_batch
from lgov_core.transitions import CreditRules, assign_credit, build_transitions
from lgov_core.types import Action, CapturedCall, Outcome, Point, Reward, Rollout, ToolOutcome

POLICY = {
    "version": 1,
    "rules": [
        {"use": "tool", "with": {"allow": ["run_sql"]}},
        {"use": "sql", "with": {"dialect": "sqlite", "mode": "read_only", "deny": ["table:answer_key"]}},
    ],
}
PEEK = "SELECT answer FROM answer_key"


@dataclass(frozen=True)
class Rolled:
    """A rollout to be written: what it earned, and the arguments of its tool calls as written, one a model call."""

    task: float
    calls: Sequence[str] = ('{"query": "SELECT max(pay) FROM staff"}',)
    truncated: bool = False
    drift: bool = False


def sql(*queries: str) -> list[str]:
    return [json.dumps({"query": query}) for query in queries]


class RunFolder:
    """A run folder, update by update. ``shadow``: the policy judges and blocks nothing. ``air``: tool rewards as they are."""

    def __init__(self, folder: Path, *, shadow: bool = False, air: float = 0.0, denied: float = -0.5) -> None:
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "train.jsonl").write_text('{"question": "Who earns most?"}\n')
        self.folder, self.shadow, self.air = folder, shadow, AirRules(air, -air, denied, shaped=False)
        self.metrics = MetricsLog(folder / "metrics.jsonl")
        self.count = self.steps = 0

    def update(self, groups: Mapping[str, Sequence[Rolled]], **figures: Any) -> None:
        """One update on the given groups. ``figures`` are those of its line that do not come from the rollouts."""
        self.steps += 1
        known = {"kl": 0.01, "entropy": 0.5, "staleness": 0.0, "staleness_max": 0, **figures}
        policies = load_policies({**POLICY, "mode": "shadow" if self.shadow else "enforce"})
        with closing(open_store(self.folder / "store.sqlite")) as store:
            wanted = [(self._rollout(task), rolled) for task, group in groups.items() for rolled in group]
            store.add_rollouts([rollout for rollout, _ in wanted])
            with closing(Governor(policies, plugins=[StoreSink(store), AirPlugin(self.air)])) as governor:
                for rollout, rolled in wanted:
                    _roll(store, governor, rollout, rolled)
            store.flush()
            # AIR may tell rollouts apart on its own, as where it is asked for.
            rules = CreditRules(air_cap=None, caps={"air": 0.1})
            data = assign_credit(build_transitions(store, [rollout.rollout_id for rollout, _ in wanted]), rules)
        write_batch(self.folder / "transitions", self.steps, data.transitions, known)
        self.metrics.add("train", self.steps, {**known, "diagnostics": data.counts()})

    def _rollout(self, task_id: str) -> Rollout:
        self.count += 1
        return Rollout(f"ro-{self.count:05d}", task_id, "run", {}, created_at=float(self.count))


def _roll(store: TraceStore, governor: Governor, rollout: Rollout, rolled: Rolled) -> None:
    rollout_id = rollout.rollout_id
    store.start_attempt(rollout_id, 1)
    prompt: tuple[int, ...] = (1, 2, 3)
    messages: list[dict[str, Any]] = [{"role": "user", "content": rollout.task_id}]
    with enter_scope(RolloutScope(rollout_id, 1)):
        for turn, arguments in enumerate([*rolled.calls, None]):
            call_id = f"call-{rollout_id}-{turn}"
            reply: dict[str, Any] = {"role": "assistant", "content": "done" if arguments is None else None}
            if arguments is not None:
                function = {"name": "run_sql", "arguments": arguments}
                reply["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
            ended = "length" if rolled.truncated and arguments is None else "stop"
            store.submit_call(_captured(rollout_id, turn, prompt, list(messages), reply, ended))
            if arguments is not None:
                _act(governor, call_id, arguments)
            messages += [reply, {"role": "tool", "tool_call_id": call_id, "content": "7"}]
            prompt += (99, 99, 30) if rolled.drift else (*_reply_ids(rollout_id, turn), 30)
    final = Reward(rolled.task, "task", rollout_id, 1, source="result")
    store.finish_attempt(rollout_id, 1, Outcome.SUCCEEDED, rewards=[final])


def _act(governor: Governor, call_id: str, arguments: str) -> None:
    """What an adapter does around a tool call; arguments that are not an object never get so far."""
    if (parsed := json_object(arguments)) is None:
        return
    action = Action(Point.PRE_TOOL_CALL, "run_sql", arguments=parsed, call_id=call_id)
    decision = governor.decide(action)
    governor.record(ToolOutcome(action, "denied" if decision.blocks else "ok", result="7", decision=decision))


def _reply_ids(rollout_id: str, turn: int) -> tuple[int, int]:
    """Tokens that differ from those of all other rollouts."""
    return (10 + turn, 100 + int(rollout_id.rpartition("-")[2]))


def _captured(
    rollout_id: str,
    turn: int,
    prompt: tuple[int, ...],
    messages: list[dict[str, Any]],
    reply: dict[str, Any],
    ended: str,
) -> CapturedCall:
    return CapturedCall(
        response_id=f"resp-{rollout_id}-{turn}",
        model="tiny",
        request={"model": "tiny", "messages": messages, "tools": [{"type": "function"}]},
        response={"choices": [{"message": reply, "finish_reason": ended}]},
        prompt_ids=prompt,
        response_ids=_reply_ids(rollout_id, turn),
        logprobs=(-0.5, -0.5),
        finish_reason=ended,
        weights_version=0,
        temperature=1.0,
        top_p=1.0,
        started_at=float(turn),
        ended_at=float(turn) + 0.5,
        rollout_id=rollout_id,
        attempt=1,
        agent="clerk",
        tool_call_ids=tuple(call["id"] for call in reply.get("tool_calls", ())),
    )
