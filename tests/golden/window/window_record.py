"""The content of the golden store: rollouts of two runs, and rollouts that nobody added, through the store's own writer."""

from __future__ import annotations

import random
from typing import Any

from lgov_core.store import RolloutQueue
from lgov_core.trace import semconv
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span

BEGIN = 1_795_500_000.0
TOOLS = ("search", "read_file", "run_sql", "send_mail")
AGENTS = ("desk", "clerk", "planner")
#: Effects as they are drawn: most decisions only allow.
EFFECTS = (*["allow"] * 14, "warn", "transform", "deny", "deny", "escalate")


def fill(store: RolloutQueue) -> None:
    """Writes everything; the same each time, but for the times of attempts (see `settle`)."""
    draw = random.Random(41)
    for number in range(96):  # a run: groups of four
        _added(store, draw, number, "run-a", f"train-{number // 4}")
    for number in range(96, 126):  # its evaluations
        task = f"{'before' if number < 111 else 'after'}-{(number - 96) % 15}"
        _added(store, draw, number, "run-a", task)
    for number in range(126, 150):
        _added(store, draw, number, "run-b", f"t-{number % 5}")
    for number in range(150, 200):
        _named_only(store, draw, number)
    for number in range(40):  # of no rollout
        store.add_spans([_decision(draw, f"free-{number}", BEGIN + 40_000 + number * 7, None, None)])
    store.flush()


def settle(execute: Any) -> None:
    """Gives the attempts times that are the same in every recording: ``execute`` runs a statement of SQL."""
    execute(f"UPDATE attempts SET started_at = {BEGIN} + seq * 60 + attempt, ended_at = NULL WHERE ended_at IS NULL")
    execute(
        f"UPDATE attempts SET started_at = {BEGIN} + seq * 60 + attempt, ended_at = {BEGIN} + seq * 60 + 30 + attempt"
        " WHERE ended_at IS NOT NULL"
    )


def _added(store: RolloutQueue, draw: random.Random, number: int, run_id: str, task_id: str) -> None:
    rollout_id, at = f"ro-{number:03}", BEGIN + number * 60.0
    question = f"How many of {task_id.rpartition('-')[2]}?"
    store.add_rollouts([Rollout(rollout_id, task_id, run_id, {"question": question}, at)])
    if number % 31 == 30:
        return  # nobody began it
    attempts = 2 if number % 9 == 0 else 1
    for attempt in range(1, attempts + 1):
        store.start_attempt(rollout_id, attempt)
        turns = draw.randint(1, 4)
        for turn in range(turns):
            _turn(store, draw, rollout_id, attempt, turn, at + 100 * (attempt - 1) + turn * 5, last=turn == turns - 1)
        if number % 23 == 22 and attempt == attempts:
            return  # it is still open
        outcome = draw.choice([Outcome.SUCCEEDED] * 4 + [Outcome.FAILED] * 3 + [Outcome.BLOCKED, Outcome.TIMEOUT])
        reward = 1.0 if outcome is Outcome.SUCCEEDED else 0.0
        error = None if outcome is Outcome.SUCCEEDED else f"the answer was wrong {'x' * draw.randint(0, 600)}"
        rewards = [Reward(reward, "task", reward_id=f"{rollout_id}-{attempt}-final", source="grader")]
        if number % 7 == 0:
            rewards.append(Reward(draw.choice([0.25, -0.5]), "style", reward_id=f"{rollout_id}-{attempt}-style"))
        store.finish_attempt(rollout_id, attempt, outcome, error=error, result={"said": "Done."}, rewards=rewards)
    if number % 13 == 0:  # of which attempt is not said
        store.add_rewards([Reward(0.125, "late", rollout_id, reward_id=f"{rollout_id}-late")])


def _named_only(store: RolloutQueue, draw: random.Random, number: int) -> None:
    """A rollout that nobody added: calls and spans, spans alone, or calls alone."""
    rollout_id, at, kind = f"ghost-{number:03}", BEGIN + number * 60.0, number % 3
    attempt = None if number % 4 == 0 else 1 + number % 2
    for turn in range(draw.randint(1, 3)):
        started_at = at + turn * 5
        if kind != 1:
            store.add_call(_call(draw, f"c-{rollout_id}-{turn}", rollout_id, attempt, turn, started_at, ()))
        if kind != 2:
            span_id = f"s-{rollout_id}-{turn}"
            store.add_spans(
                [
                    _chat(
                        rollout_id, attempt, span_id, f"c-{rollout_id}-{turn}" if kind == 0 else span_id, started_at + 1
                    ),
                    _decision(draw, f"d-{rollout_id}-{turn}", started_at + 2, rollout_id, attempt, tool=f"t-{span_id}"),
                ]
            )
    if number % 5 == 0:
        store.add_rewards([Reward(0.5, "task", rollout_id, attempt, reward_id=f"{rollout_id}-task")])


def _turn(
    store: RolloutQueue, draw: random.Random, rollout_id: str, attempt: int, turn: int, at: float, *, last: bool
) -> None:
    response_id = f"c-{rollout_id}-{attempt}-{turn}"
    tool = f"t-{response_id}"
    store.add_call(_call(draw, response_id, rollout_id, attempt, turn, at, () if last else (tool,)))
    model = _decision(draw, f"m-{response_id}", at, rollout_id, attempt, response_id=response_id)
    spans = [_chat(rollout_id, attempt, f"s-{response_id}", response_id, at), model]
    if not last:
        decided = _decision(draw, f"d-{response_id}", at + 1, rollout_id, attempt, tool=tool)
        blocked = decided.attributes[semconv.DECISION_EFFECT] in ("deny", "escalate")
        status = {
            semconv.OPERATION: semconv.EXECUTE_TOOL,
            semconv.TOOL_NAME: decided.attributes[semconv.ACTION_NAME],
            semconv.TOOL_CALL_ID: tool,
            semconv.TOOL_TYPE: "function",
            semconv.TOOL_STATUS: "denied" if blocked else "ok",
            semconv.TOOL_RESULT: "DENIED" if blocked else f"found {turn}",
        }
        spans += [decided, Span("tool", f"x-{response_id}", at + 2, at + 3, status, rollout_id, attempt)]
        if blocked:
            store.add_rewards(
                [Reward(-0.5, "compliance", rollout_id, attempt, None, tool, "air:denied", reward_id=f"{tool}-air")]
            )
    if turn == 1:  # reported from outside, which counts as no decision of ours
        outside = _decision(draw, f"o-{response_id}", at + 1, rollout_id, attempt, tool=tool)
        spans.append(
            Span(outside.name, f"o2-{response_id}", at, at, outside.attributes, rollout_id, attempt, claimed=True)
        )
    store.add_spans(spans)


def _call(
    draw: random.Random,
    response_id: str,
    rollout_id: str,
    attempt: int | None,
    turn: int,
    at: float,
    tools: tuple[str, ...],
) -> CapturedCall:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Answer from the database. " + "Be brief. " * 20},
        {"role": "user", "content": f"Question of {rollout_id}"},
    ]
    for earlier in range(turn):
        messages += [{"role": "assistant", "content": f"step {earlier}"}, {"role": "user", "content": f"go {earlier}"}]
    calls = [
        {"id": tool, "type": "function", "function": {"name": "search", "arguments": '{"q": "Ä"}'}} for tool in tools
    ]
    reply = {
        "role": "assistant",
        "content": None if calls else f"Done: {draw.randint(0, 9)}.",
        "tool_calls": calls or None,
    }
    has_tokens = draw.random() > 0.1
    prompt = tuple(range(20 + 8 * turn))
    response = tuple(draw.randrange(100) for _ in range(draw.randint(2, 9)))
    return CapturedCall(
        response_id=response_id,
        model="tiny",
        request={"model": "tiny", "messages": messages},
        response={
            "id": response_id,
            "choices": [{"message": reply}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 3},
        },
        prompt_ids=prompt if has_tokens else None,
        response_ids=response if has_tokens else None,
        logprobs=tuple(-0.25 for _ in response) if has_tokens else None,
        finish_reason="tool_calls" if tools else draw.choice(["stop", "stop", "length"]),
        weights_version=draw.choice([None, 1, 2, 3]),
        temperature=1.0,
        top_p=1.0,
        started_at=at,
        ended_at=at + 1.5,
        rollout_id=rollout_id,
        attempt=attempt,
        agent=draw.choice([*AGENTS, None]),
        tool_call_ids=tools,
    )


def _chat(rollout_id: str, attempt: int | None, span_id: str, response_id: str, at: float) -> Span:
    attributes: dict[str, Any] = {
        semconv.OPERATION: semconv.CHAT,
        semconv.RESPONSE_ID: response_id,
        semconv.AGENT_NAME: "desk",
        semconv.OUTPUT_MESSAGES: '[{"role": "assistant", "content": "From a span."}]',
    }
    return Span("chat", span_id, at, at + 1, attributes, rollout_id, attempt)


def _decision(
    draw: random.Random,
    span_id: str,
    at: float,
    rollout_id: str | None,
    attempt: int | None,
    *,
    tool: str | None = None,
    response_id: str | None = None,
) -> Span:
    effect = draw.choice(EFFECTS)
    would = draw.choice(["deny", "warn", "escalate"]) if effect == "allow" and draw.random() < 0.1 else None
    policy = "tools" if tool else "budget"
    values = {
        semconv.POINT: "pre_tool_call" if tool else "pre_model_call",
        semconv.ACTION_NAME: draw.choice(TOOLS) if tool else "tiny",
        semconv.ACTION_KIND: "function" if tool else "model",
        semconv.AGENT_NAME: draw.choice([*AGENTS, None]),
        semconv.TOOL_CALL_ID: tool,
        semconv.CALL_ID: response_id,
        semconv.DECISION_ID: span_id,
        semconv.DECISION_EFFECT: effect,
        semconv.DECISION_WOULD: would,
        semconv.DECISION_POLICY: policy,
        semconv.DECISION_RULE: "default"
        if effect == "allow" and not would
        else draw.choice(["no-drop", "limits", "Maß"]),
        semconv.DECISION_REASON: "Not this one." if effect != "allow" else None,
        semconv.DECISION_SEVERITY: draw.choice(["low", "high"]),
    }
    attributes = {name: value for name, value in values.items() if value is not None}
    return Span(semconv.DECISION_SPAN_NAME, span_id, at, at, attributes, rollout_id, attempt)
