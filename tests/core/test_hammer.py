"""64 threads and 64 tasks on one governor: no budget is overspent, no decision is lost, the record holds."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog
from lgov_core.audit.verify import verify
from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies import CostControlPolicy, LoopPolicy, PolicySet, RateLimitPolicy, Rule, ToolPolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome

WORKERS, TURNS, ROLLOUTS = 64, 6, 4
MAX_TOKENS, MAX_CALLS, RATE = 4_000, 60, 150


class Redacts:
    """Transforms every call once, so that each is judged in two rounds."""

    name = "redacts"
    bounded = True

    def judge(self, action: Action) -> Decision | None:
        if action.point is Point.PRE_TOOL_CALL and "secret" in action.arguments:
            return Decision(Effect.TRANSFORM, self.name, arguments={"q": action.arguments["q"]})
        return None


class Hammer:
    """What every worker does, and what is watched while they do it."""

    def __init__(self, governor: Governor, cost: CostControlPolicy) -> None:
        self.governor = governor
        self.cost = cost
        self.decisions: list[Decision] = []
        self.outcomes = 0
        self.overspent: list[str] = []
        self.used: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.lock = threading.Lock()

    def look(self) -> None:
        """Compares every budget with its limits, at this moment."""
        for number in range(ROLLOUTS):
            spent = self.cost.spent(f"ro_{number}")
            if spent.tokens + spent.reserved_tokens > MAX_TOKENS or spent.calls + spent.reserved_calls > MAX_CALLS:
                self.overspent.append(f"{number}: {spent}")

    def take(self, decision: Decision) -> bool:
        with self.lock:
            self.decisions.append(decision)
        return not decision.blocks

    def count(self, rollout: str, tokens: int, outcomes: int = 0) -> None:
        with self.lock:
            self.used[rollout] += tokens
            self.made[rollout] += 1
            self.outcomes += outcomes


def steps(worker: str, turn: int) -> tuple[Action, Action, Action]:
    operation = f"op_{worker}_{turn}"
    prompt = {"messages": [{"role": "user", "content": f"{worker} {turn}"}], "max_tokens": 50}
    before = Action(Point.PRE_MODEL_CALL, "m", "model", arguments=prompt, operation_id=operation)
    usage = {"usage": {"input_tokens": 20 + turn, "output_tokens": 5}}
    after = Action(Point.POST_MODEL_CALL, "m", "model", arguments=usage, operation_id=operation)
    name = ("search", "forbidden", "search")[turn % 3]
    # Every worker of a rollout makes the same call in its last turns, so that the loop stop has something to do.
    question = "the same" if turn >= 4 else f"{worker} {turn}"
    act = Action(Point.PRE_TOOL_CALL, name, arguments={"q": question, "secret": 1}, operation_id=f"{operation}_tool")
    return before, after, act


def thread_worker(hammer: Hammer, number: int, start: threading.Barrier) -> None:
    rollout = f"ro_{number % ROLLOUTS}"
    start.wait()
    with enter_scope(RolloutScope(rollout)):
        for turn in range(TURNS):
            before, after, act = steps(f"thread{number}", turn)
            if hammer.take(hammer.governor.decide(before)):
                hammer.take(hammer.governor.decide(after))
                hammer.count(rollout, 25 + turn)
            hammer.look()
            decision = hammer.governor.decide(act)
            if hammer.take(decision):
                hammer.governor.record(ToolOutcome(act, "ok", decision=decision))
                hammer.count(rollout, 0, outcomes=1)
            hammer.look()


async def task_worker(hammer: Hammer, number: int) -> None:
    rollout = f"ro_{number % ROLLOUTS}"
    with enter_scope(RolloutScope(rollout)):
        for turn in range(TURNS):
            before, after, act = steps(f"task{number}", turn)
            if hammer.take(await hammer.governor.adecide(before)):
                await asyncio.sleep(0)
                hammer.take(await hammer.governor.adecide(after))
                hammer.count(rollout, 25 + turn)
            decision = await hammer.governor.adecide(act)
            if hammer.take(decision):
                await hammer.governor.arecord(ToolOutcome(act, "ok", decision=decision))
                hammer.count(rollout, 0, outcomes=1)
            hammer.look()


@pytest.mark.parametrize("shared_file", [False, True], ids=["memory", "file"])
def test_budgets_hold_and_no_decision_is_lost(tmp_path: Path, shared_file: bool) -> None:
    frozen = 0.0
    options: dict[str, Any] = {"ledger": tmp_path / "budgets.sqlite"} if shared_file else {}
    cost = CostControlPolicy(max_tokens=MAX_TOKENS, max_calls=MAX_CALLS, **options)
    rate = RateLimitPolicy(RATE, 60, per="global", clock=lambda: frozen)
    policies = PolicySet(
        [
            Rule(Redacts()),
            Rule(ToolPolicy(allow=["search"])),
            Rule(cost),
            Rule(rate, on=(Point.PRE_TOOL_CALL,)),
            Rule(LoopPolicy(3)),
        ]
    )
    path = tmp_path / "audit.sqlite"
    with AuditLog(path, busy_timeout_s=60) as audit:
        manager = make_plugin_manager(builtin=(), third_party=False)
        governor = Governor(policies, audit=audit, manager=manager, timeout_s=60)
        hammer = Hammer(governor, cost)
        start = threading.Barrier(WORKERS + 1)
        threads = [threading.Thread(target=thread_worker, args=(hammer, n, start)) for n in range(WORKERS)]
        for thread in threads:
            thread.start()

        async def tasks() -> None:
            start.wait()
            await asyncio.gather(*(task_worker(hammer, number) for number in range(WORKERS)))

        asyncio.run(tasks())
        for thread in threads:
            thread.join()
        governor.close()
        entries = audit.entries()

    assert hammer.overspent == []
    assert not governor.failures
    decided = [entry for entry in entries if entry.effect is not None]
    assert len(decided) == len(hammer.decisions) == sum(governor.effects.values())
    assert {entry.entry_id for entry in decided} == {decision.decision_id for decision in hammer.decisions}
    assert len(entries) - len(decided) == hammer.outcomes
    report = verify(path)
    assert report.ok, report.problem
    assert report.entries == len(entries)

    # What the books say is what the workers did: no call was counted twice, and none is still set aside.
    for number in range(ROLLOUTS):
        rollout = f"ro_{number}"
        spent = cost.spent(rollout)
        assert (spent.reserved_tokens, spent.reserved_calls) == (0, 0)
        assert (spent.tokens, spent.calls) == (hammer.used[rollout], hammer.made[rollout])
    rules = Counter(part.rule for decision in hammer.decisions for part in decision.parts if part.effect is Effect.DENY)
    assert rules["token-budget"] + rules["call-budget"] > 0
    assert rules["tool-unknown"] > 0
