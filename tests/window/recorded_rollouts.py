"""What the window is shown: rollouts of three tasks, written through the store's own writer and a governor's sink."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lgov_core.store import TraceStore
from lgov_core.trace import semconv
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span

RUN = "run-1"
#: How the rollouts of the tasks end, with their task reward.
GROUPS = {
    "mixed": [("succeeded", 1.0), ("failed", 0.0), ("failed", 0.0)],
    "alike": [("failed", 0.0), ("failed", 0.0)],
    "before-0": [("failed", 0.0)],
    "after-0": [("succeeded", 1.0)],
}


def record(store: TraceStore, *, run_id: str = RUN, prefix: str = "") -> list[str]:
    """Writes the groups; returns the ids of the rollouts, which are ``{prefix}{task}-{number}``."""
    ids: list[str] = []
    for task, ends in GROUPS.items():
        question = task.split("-")[1] if "-" in task else task
        for number, (outcome, reward) in enumerate(ends):
            ids.append(f"{prefix}{task}-{number}")
            record_rollout(store, ids[-1], task, Outcome(outcome), reward, question=question, run_id=run_id)
    store.flush()
    return ids


def record_rollout(
    store: TraceStore,
    rollout_id: str,
    task_id: str,
    outcome: Outcome | None,
    reward: float,
    *,
    question: str = "q",
    run_id: str = RUN,
    said: str = "Hello",
    weights_version: int = 7,
) -> None:
    """One rollout of two model calls: a tool call that is denied where the reward is 0, and an answer."""
    store.add_rollouts([Rollout(rollout_id, task_id, run_id, {"question": question})])
    store.start_attempt(rollout_id, 1)
    denied = reward == 0.0
    first, second = f"c1_{rollout_id}", f"c2_{rollout_id}"
    asked = [{"role": "system", "content": "Answer."}, {"role": "user", "content": said}]
    tool = f"t_{rollout_id}"
    wrote = {"role": "assistant", "content": None, "tool_calls": [proposed(tool, "drop" if denied else "read")]}
    told = {"role": "tool", "content": "DENIED" if denied else "42", "tool_call_id": tool}
    store.add_call(
        call(first, rollout_id, asked, wrote, (1, 2, 3), (4, 5), tools=(tool,), weights_version=weights_version)
    )
    done = {"role": "assistant", "content": "Done."}
    store.add_call(
        call(
            second,
            rollout_id,
            [*asked, wrote, told],
            done,
            (1, 2, 3, 4, 5, 6),
            (7,),
            started_at=2.0,
            weights_version=weights_version,
        )
    )
    for span in spans(rollout_id, first, second, tool, denied=denied):
        store.add_span(span)
    rewards = [Reward(-0.5, "compliance", tool_call_id=tool, source="air:denied")] if denied else []
    if outcome is not None:
        store.finish_attempt(rollout_id, 1, outcome, result={"said": "Done."}, rewards=[*rewards, Reward(reward)])
    store.flush()


def proposed(call_id: str, name: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps({"table": "staff"})}}


def call(
    response_id: str,
    rollout_id: str,
    messages: list[dict[str, Any]],
    reply: dict[str, Any],
    prompt: tuple[int, ...] | None,
    response: tuple[int, ...] | None,
    *,
    tools: tuple[str, ...] = (),
    finish: str = "stop",
    started_at: float = 1.0,
    weights_version: int = 7,
) -> CapturedCall:
    return CapturedCall(
        response_id=response_id,
        model="tiny",
        request={"model": "tiny", "messages": messages},
        response={"id": response_id, "choices": [{"message": reply}]},
        prompt_ids=prompt,
        response_ids=response,
        logprobs=None if response is None else tuple(-0.25 for _ in response),
        finish_reason="tool_calls" if tools else finish,
        weights_version=weights_version,
        temperature=1.0,
        top_p=1.0,
        started_at=started_at,
        ended_at=started_at + 1,
        rollout_id=rollout_id,
        attempt=1,
        agent="desk",
        tool_call_ids=tools,
    )


def spans(rollout_id: str, first: str, second: str, tool: str, *, denied: bool) -> Iterable[Span]:
    """An agent inside another makes both calls; a decision on the tool call, and one that shadow mode did not enforce."""

    def span(name: str, parent: str | None, **attributes: Any) -> Span:
        common = {semconv.ROLLOUT_ID: rollout_id, semconv.AGENT_NAME: "desk"}
        return Span(name, f"{name}|{rollout_id}", 1.0, 2.0, common | attributes, rollout_id, 1, parent)

    agent = {semconv.OPERATION: semconv.INVOKE_AGENT}
    yield span("outer", None, **agent | {semconv.AGENT_NAME: "planner"})
    yield span("inner", f"outer|{rollout_id}", **agent)
    for name, response in (("chat1", first), ("chat2", second)):
        yield span(name, f"inner|{rollout_id}", **{semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: response})
    yield decision(rollout_id, "pre_model_call", "tiny", "allow", parent=f"chat2|{rollout_id}", would="deny")
    yield decision(rollout_id, "pre_tool_call", "drop" if denied else "read", "deny" if denied else "allow", tool=tool)
    status = {semconv.TOOL_STATUS: "denied" if denied else "ok", semconv.TOOL_CALL_ID: tool}
    kind = {semconv.OPERATION: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: "drop" if denied else "read"}
    yield span("tool", f"inner|{rollout_id}", **status | kind | {semconv.TOOL_TYPE: "function"})


def decision(
    rollout_id: str,
    point: str,
    action: str,
    effect: str,
    *,
    parent: str | None = None,
    tool: str | None = None,
    would: str | None = None,
) -> Span:
    named = {semconv.TOOL_CALL_ID: tool, semconv.DECISION_WOULD: would}
    attributes: dict[str, Any] = {
        semconv.POINT: point,
        semconv.ACTION_NAME: action,
        semconv.ACTION_KIND: "function" if tool else "model",
        semconv.AGENT_NAME: "desk",
        semconv.DECISION_EFFECT: effect,
        semconv.DECISION_POLICY: "tables" if tool else "budget",
        semconv.DECISION_RULE: "no-drop" if effect == "deny" else "default",
        semconv.DECISION_REASON: "Not this table.",
        semconv.DECISION_SEVERITY: "high",
        **{name: value for name, value in named.items() if value is not None},
    }
    return Span(semconv.DECISION_SPAN_NAME, f"{point}|{rollout_id}", 1.0, 1.0, attributes, rollout_id, 1, parent)
