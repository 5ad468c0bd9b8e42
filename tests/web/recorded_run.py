"""Runs as lgov records them, for the window to show: a real store, audit record, approvals file and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lgov_core.audit import AuditLog
from lgov_core.governor import Governor
from lgov_core.policies import ApprovalPolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.store import RolloutQueue, open_store
from lgov_core.trace.sink import StoreSink
from lgov_core.types import (
    Action,
    CapturedCall,
    Decision,
    Effect,
    Outcome,
    Point,
    Reward,
    Rollout,
    Severity,
    ToolOutcome,
)

RUN = "run_1"
WORDS = ("Answer", " from", " the", " company", " database", ".", "\n", " SELECT", " pay", " FROM", " staff", " 42")


@dataclass(frozen=True, slots=True)
class Planted:
    """What is added to every text that a model, a tool, a task or a policy can fill."""

    text: str = ""

    def __call__(self, text: str) -> str:
        return text + self.text


class DeniesDrops:
    """Denies what holds DROP, and replaces SLOW; its names and reasons are texts too."""

    bounded = True

    def __init__(self, planted: Planted) -> None:
        self.name = planted("read-only")
        self._planted = planted

    def judge(self, action: Action) -> Decision | None:
        if action.point is not Point.PRE_TOOL_CALL:
            return None
        query = str(action.arguments.get("query"))
        effect = Effect.DENY if "DROP" in query else Effect.ALLOW
        rule, reason = self._planted("no-drop"), self._planted("Only SELECT is allowed here.")
        return Decision(effect, self.name, rule, reason, severity=Severity.HIGH)


class Recording:
    """A run's folder that is being written. Close it, or use it as a context."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.store: RolloutQueue = open_store(folder / "store.sqlite")
        self.audit = AuditLog(folder / "audit.sqlite", signer=None)
        self._calls = 0

    def close(self) -> None:
        self.audit.close()
        self.store.close()

    def rollout(
        self,
        rollout_id: str,
        task_id: str,
        queries: Sequence[str] = (),
        *,
        task: float | None = 1.0,
        answer: str = "There are 42.",
        planted: Planted = Planted(),
    ) -> None:
        """One rollout: a call for each query, and one that answers. ``task`` None leaves the attempt open."""
        store, agent = self.store, planted("clerk")
        asked = planted(f"How many staff in {task_id.rpartition('-')[2]}?")
        store.add_rollouts([Rollout(rollout_id, planted(task_id), RUN, {"question": asked})])
        store.start_attempt(rollout_id, 1)
        governor = Governor([DeniesDrops(planted)], audit=self.audit, plugins=[StoreSink(store)], capture_content=True)
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": planted("Answer from the company database.")},
            {"role": "user", "content": asked},
        ]
        with enter_scope(RolloutScope(rollout_id)):
            for query in queries:
                call_id = f"call_{rollout_id}_{len(messages)}"
                arguments = {"query": planted(query)}
                function = {"name": planted("run_sql"), "arguments": json.dumps(arguments)}
                reply = {"content": None, "tool_calls": [{"id": call_id, "type": "function", "function": function}]}
                self.call(rollout_id, messages, reply, agent=agent, model=planted("tiny"))
                action = Action(
                    Point.PRE_TOOL_CALL, planted("run_sql"), arguments=arguments, call_id=call_id, agent=agent
                )
                decision = governor.decide(action)
                result = decision.denial_message() if decision.blocks else planted("[[42]]")
                status = "denied" if decision.blocks else "ok"
                error = planted("denied") if decision.blocks else None
                governor.record(ToolOutcome(action, status, result=result, error=error, decision=decision))
                value, dimension = (-0.5, "compliance") if decision.blocks else (0.05, "air")
                store.add_rewards(
                    [Reward(value, planted(dimension), rollout_id, 1, tool_call_id=call_id, source=planted("air"))]
                )
                messages += [
                    {"role": "assistant", **reply},
                    {"role": "tool", "tool_call_id": call_id, "content": result},
                ]
            self.call(rollout_id, messages, {"content": planted(answer)}, agent=agent, model=planted("tiny"))
        if task is None:
            return
        outcome = Outcome.SUCCEEDED if task > 0 else Outcome.FAILED
        store.finish_attempt(
            rollout_id,
            1,
            outcome,
            result={"said": planted(answer)},
            error=None if task > 0 else planted("wrong answer"),
            rewards=[Reward(task, "task", rollout_id, 1, source=planted("grader"))],
        )

    def call(
        self,
        rollout_id: str,
        messages: Sequence[Any],
        reply: dict[str, Any],
        *,
        agent: str = "clerk",
        model: str = "tiny",
        prompt: int = 12,
        response: int = 7,
    ) -> str:
        """A model call with token ids; ``prompt`` and ``response`` are how many."""
        self._calls += 1
        response_id = f"resp_{rollout_id}_{self._calls}"
        tools = reply.get("tool_calls") or ()
        started = 1_795_500_000.0 + self._calls
        self.store.add_call(
            CapturedCall(
                response_id=response_id,
                model=model,
                request={"model": model, "messages": list(messages)},
                response={"id": response_id, "choices": [{"message": {"role": "assistant", **reply}}]},
                prompt_ids=tuple(at % len(WORDS) for at in range(prompt)),
                response_ids=tuple((7 + at) % len(WORDS) for at in range(response)),
                logprobs=tuple(-0.07 * (at % 60) for at in range(response)),
                finish_reason="tool_calls" if tools else "stop",
                weights_version=3,
                temperature=1.0,
                top_p=1.0,
                started_at=started,
                ended_at=started + 0.8,
                rollout_id=rollout_id,
                attempt=1,
                agent=agent,
                tool_call_ids=tuple(call["id"] for call in tools),
            )
        )
        return response_id

    def step(self, step: int, *, task: float) -> None:
        """A line of metrics.jsonl, with the figures that a training writes."""
        interval = {"mean": task, "low": task - 0.1, "high": task + 0.1, "count": 16}
        line = {
            "phase": "train",
            "step": step,
            "rollouts": 4,
            "rewards": {"task": interval, "return": interval},
            "violation_rate": {**interval, "mean": 1 - task},
            "kl": 0.01 * step,
            "entropy": 0.2,
            "staleness": 0.0,
            "response_tokens": 12.0,
            "turns": 2.0,
            "executed": 0.0,
        }
        self._write(line)

    def evaluation(self, phase: str, step: int, *, accuracy: float) -> None:
        """A line of metrics.jsonl for an evaluation ``before`` or ``after`` the training."""
        self._write({"phase": phase, "step": step, "rollouts": 3, "accuracy": accuracy, "executed": 0.0})

    def _write(self, line: dict[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


@contextmanager
def recording(folder: Path) -> Iterator[Recording]:
    made = Recording(folder)
    try:
        yield made
    finally:
        made.close()


def make_run(folder: Path, planted: Planted = Planted()) -> None:
    """A finished run: a group with a denial, a group that is alike, two evaluations that differ, curves, tokens as text."""
    with recording(folder) as run:
        for at, (queries, task) in enumerate(
            [(["SELECT 1"], 1.0), (["DROP TABLE staff", "SELECT 1"], 1.0), (["SELECT 2"], 0.0), ([], 0.0)]
        ):
            run.rollout(f"ro_mixed{at}", "train-mixed", queries, task=task, planted=planted)
        for at in range(3):
            run.rollout(f"ro_alike{at}", "train-alike", task=1.0)
        for at in range(3):
            run.rollout(f"ro_before{at}", f"before-{at}", ["DROP TABLE staff"], task=0.0, answer="I do not know.")
            run.rollout(f"ro_after{at}", f"after-{at}", ["SELECT 1"], task=1.0 if at else 0.0)
        for step in range(1, 9):
            run.step(step, task=step / 8)
        run.evaluation("before", 0, accuracy=0.0)
        run.evaluation("after", 8, accuracy=2 / 3)
    write_tokenizer(folder, planted)


def write_tokenizer(folder: Path, planted: Planted = Planted()) -> None:
    """A tokenizer.json whose tokens are `WORDS`."""
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.WordLevel({planted(word): at for at, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))


def ask_for_approval(
    folder: Path, arguments: dict[str, Any], *, name: str = "send_money", agent: str = "clerk"
) -> None:
    """A call that waits for a person, in the approvals file of a run."""
    policy = ApprovalPolicy(["*"], store=folder / "approvals.sqlite", name="a-person-decides")
    decision = Governor([policy]).decide(
        Action(Point.PRE_TOOL_CALL, name, arguments=arguments, agent=agent, call_id="call_a", rollout_id="ro_mixed0")
    )
    assert decision.effect is Effect.ESCALATE
