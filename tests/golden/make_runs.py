"""Makes the recorded runs of `test_recorded_runs`: 50 seeded runs in one store, written through the public store.

``python tests/golden/make_runs.py FOLDER`` writes ``FOLDER/seeded.db``. The stores in ``recorded_runs/`` were
made by the code as it was before the rows were first compared; they are not made anew: a store of today would not prove that
old records still give the rows that they gave.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from lgov_core.store import open_store
from lgov_core.trace import semconv
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span

RUNS = 50
ROUTES = ("chat", "responses", "messages", "completions")
ENDS = (*(Outcome.SUCCEEDED, Outcome.FAILED) * 4, Outcome.BLOCKED, Outcome.TRUNCATED)
ABORTED = (Outcome.INFRASTRUCTURE, Outcome.TIMEOUT)


class Maker:
    """Writes one run. All numbers come from ``chance``; times count up from 1,000,000 s."""

    def __init__(self, store: Any, number: int) -> None:
        self.store, self.run = store, f"run-{number:02}"
        self.chance = random.Random(f"recorded run {number}")
        self.clock = 1_000_000.0 + 1_000 * number
        self.several_agents = number % 3 == 0
        self.several_choices = number % 5 == 0
        self.streams = number % 2 == 0
        self.ids = 0

    def now(self) -> float:
        self.clock += self.chance.choice((0.0, 0.125, 0.5, 1.0))  # two calls may begin at the same time
        return self.clock

    def fresh(self, kind: str) -> str:
        self.ids += 1
        return f"{self.run}-{kind}-{self.ids}"

    def make(self) -> None:
        chance = self.chance
        for task in range(chance.randint(1, 2)):
            for member in range(chance.randint(1, 3)):
                name = f"{self.run}-{task}-{member}"
                given: dict[str, Any] = {"question": f"Question {task} of {self.run}?"}
                if chance.random() < 0.3:
                    given["mode"] = chance.choice(("train", "val", "test"))
                if chance.random() < 0.05:
                    given["is_train"] = False
                self.store.add_rollouts([Rollout(name, f"{self.run}-task-{task}", self.run, given, self.clock)])
                self.rollout(name, given["question"])
        if chance.random() < 0.3:  # a reward for what nobody recorded
            self.reward(1.0, rollout_id=chance.choice((f"{self.run}-unknown", None)), response_id="nobody")

    def rollout(self, name: str, question: str) -> None:
        chance = self.chance
        if chance.random() < 0.05:
            return  # never begun
        attempts = chance.choice((1, 1, 1, 2, 3))
        for attempt in range(1, attempts + 1):
            self.store.start_attempt(name, attempt)
            self.attempt(name, attempt, question)
            if attempt < attempts:
                outcome = chance.choice((*ABORTED, Outcome.FAILED))
            elif chance.random() < 0.08:
                continue  # still open
            else:
                outcome = chance.choice((*ENDS, *ABORTED))
            error = None if outcome is Outcome.SUCCEEDED else f"ended by {outcome.value}"
            self.store.finish_attempt(name, attempt, outcome, error=error, result={"answer": attempt})
            for dimension in ("task", "compliance", "air"):
                if chance.random() < 0.6:
                    value = chance.choice((1.0, 0.0, -0.5, 0.25))
                    self.reward(value, dimension, name, chance.choice((attempt, attempt, None)))

    def attempt(self, name: str, attempt: int, question: str) -> None:
        chance = self.chance
        agents = ["planner", "coder", None] if self.several_agents else ["solo"]
        conversations: dict[Any, tuple[list[int], list[dict[str, Any]]]] = {}
        inside: str | None = None
        for _ in range(chance.randint(0, 4)):
            agent = chance.choice(agents)
            ids, messages = conversations.get(agent, ([], []))
            if not messages:
                messages = [{"role": "system", "content": f"You are {agent}."}, {"role": "user", "content": question}]
                ids = self.tokens(6)
            elif chance.random() < 0.2:
                ids = self.tokens(5)  # the history was written anew: tokens do not extend one another
            answered, proposed = self.call(name, attempt, agent, ids, messages, inside)
            reply, text = answered
            messages = [*messages, self.assistant(text, proposed)]
            for tool in proposed:
                result = self.tool(name, attempt, agent, tool)
                messages.append({"role": "tool", "tool_call_id": tool, "content": result})
            if not proposed:
                messages.append({"role": "user", "content": chance.choice(("Go on.", "Are you sure?"))})
            conversations[agent] = ([*ids, *reply, *self.tokens(3)], messages)
            inside = proposed[0] if proposed and chance.random() < 0.4 else None

    def tokens(self, most: int) -> list[int]:
        return [self.chance.randrange(5_000) for _ in range(self.chance.randint(1, most))]

    def assistant(self, text: str, tools: list[str]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if tools:
            message["tool_calls"] = [
                {"id": tool, "type": "function", "function": {"name": "search", "arguments": json.dumps({"q": text})}}
                for tool in tools
            ]
        return message

    def call(
        self, name: str, attempt: int, agent: str | None, ids: list[int], messages: list[Any], inside: str | None
    ) -> tuple[tuple[list[int], str], list[str]]:
        chance = self.chance
        response_id, route = self.fresh("reply"), chance.choice(ROUTES[:1] * 5 + ROUTES)
        choices = chance.choice((2, 3)) if self.several_choices and route == "chat" and chance.random() < 0.5 else 1
        begun, went_on = self.now(), chance.randrange(choices)
        model = chance.choice(("tiny", "tiny", "other")) if self.several_agents else "tiny"
        version = None if chance.random() < 0.1 else chance.randint(0, 2)
        replies: list[tuple[list[int], str]] = []
        tools: list[list[str]] = []
        for choice in range(choices):
            reply = self.tokens(8)
            text = f"Reply {choice} {' '.join(map(str, reply))}"
            several = [self.fresh("tool") for _ in range(chance.choice((0, 0, 1, 2)))] if route != "completions" else []
            replies.append((reply, text))
            tools.append(several)
        for choice in range(choices):
            reply, text = replies[choice]
            logprobs: tuple[float, ...] | None = tuple(-chance.randrange(1, 400) / 128 for _ in reply)
            unusable = chance.random()
            finish = "tool_calls" if tools[choice] else "stop"
            if unusable < 0.06:
                logprobs = None
            elif unusable < 0.09:
                logprobs = (*(logprobs or ()), -0.5)
            elif unusable < 0.14:
                finish = "length"
            elif unusable < 0.17:
                finish = "cancelled"
            without_ids = 0.17 <= unusable < 0.21
            if logprobs is not None and len(logprobs) != len(reply):
                logprobs = None
            self.store.add_call(
                CapturedCall(
                    response_id=response_id,
                    model=model,
                    request=self.request(route, model, messages, choices),
                    response=self.response(route, response_id, replies, tools),
                    prompt_ids=None if without_ids else tuple(ids),
                    response_ids=None if without_ids else tuple(reply),
                    logprobs=None if without_ids else logprobs,
                    finish_reason=finish,
                    weights_version=version,
                    temperature=chance.choice((1.0, 0.5)),
                    top_p=1.0,
                    started_at=begun,
                    ended_at=begun + 0.25,
                    rollout_id=name,
                    attempt=attempt,
                    agent=agent if chance.random() < 0.7 else None,
                    tool_call_ids=tuple(tools[choice]),
                    engine="seeded",
                    choice=choice,
                    route=route,
                )
            )
        self.model_span(name, attempt, agent, response_id, begun, inside)
        for dimension, likely in (("air", 0.3), ("style", 0.15)):
            if chance.random() < likely:
                choice = chance.randrange(choices) if choices > 1 and chance.random() < 0.5 else None
                where = {"response_id": response_id, "choice": choice}
                self.reward(chance.choice((0.05, -0.1, 0.5)), dimension, name, attempt, **where)
        return replies[went_on], tools[went_on]

    def request(self, route: str, model: str, messages: list[Any], choices: int) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, **({"stream": True} if self.streams else {})}
        if choices > 1:
            body["n"] = choices
        if route == "completions":
            return {**body, "prompt": "\n".join(str(message["content"]) for message in messages)}
        if route == "responses":
            plain = [one for one in messages if one["role"] in ("user", "assistant", "system")]
            return {**body, "input": [{"role": one["role"], "content": one["content"]} for one in plain]}
        if route == "messages":
            plain = [one for one in messages if one["role"] in ("user", "assistant")]
            written = [{"role": one["role"], "content": one["content"]} for one in plain]
            return {**body, "max_tokens": 64, "system": messages[0]["content"], "messages": written}
        search = {"name": "search", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
        return {**body, "messages": messages, "tools": [{"type": "function", "function": search}]}

    def response(
        self, route: str, response_id: str, replies: list[tuple[list[int], str]], tools: list[list[str]]
    ) -> dict[str, Any]:
        text = replies[0][1]
        if route == "completions":
            return {"id": response_id, "choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}
        if route == "responses":
            content = [{"type": "output_text", "text": text, "annotations": []}]
            items: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": content}]
            for tool in tools[0]:
                items.append({"type": "function_call", "call_id": tool, "name": "search", "arguments": "{}"})
            return {"id": response_id, "output": items}
        if route == "messages":
            blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
            blocks += [{"type": "tool_use", "id": tool, "name": "search", "input": {"q": text}} for tool in tools[0]]
            return {"id": response_id, "role": "assistant", "content": blocks}
        choices = [
            {"index": at, "message": self.assistant(said, tools[at]), "finish_reason": "stop"}
            for at, (_, said) in enumerate(replies)
        ]
        return {"id": response_id, "choices": choices}

    def model_span(
        self, name: str, attempt: int, agent: str | None, response_id: str, begun: float, inside: str | None
    ) -> None:
        if self.chance.random() < 0.1:
            return
        attributes: dict[str, Any] = {semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: response_id}
        if agent is not None:
            attributes[semconv.AGENT_NAME] = agent
        parent = f"span-{inside}" if inside is not None else None
        self.span("chat tiny", self.fresh("span"), begun, attributes, name, attempt, parent)

    def tool(self, name: str, attempt: int, agent: str | None, tool: str) -> str:
        chance, begun = self.chance, self.now()
        denied = chance.random() < 0.15
        attributes: dict[str, Any] = {
            semconv.POINT: "pre_tool_call",
            semconv.ACTION_NAME: "search",
            semconv.TOOL_CALL_ID: tool,
            semconv.DECISION_EFFECT: "deny" if denied else "allow",
        }
        if denied:
            named = {semconv.DECISION_POLICY: "searches", semconv.DECISION_REASON: "No rule allows this search."}
            attributes |= {**named, semconv.DECISION_SEVERITY: "high", semconv.DECISION_SHADOWED: chance.random() < 0.2}
            self.reward(-0.1, "compliance", name, attempt, tool_call_id=tool, source="policy:high")
        self.span(semconv.DECISION_SPAN_NAME, self.fresh("span"), begun, attributes, name, attempt, None)
        if denied:
            return "Denied: no rule allows this search."
        status = chance.choice(("ok", "ok", "error", "invalid_args"))
        ran = {semconv.OPERATION: semconv.EXECUTE_TOOL, semconv.TOOL_CALL_ID: tool, semconv.TOOL_STATUS: status}
        self.span("execute_tool search", f"span-{tool}", begun, ran, name, attempt, None)
        if chance.random() < 0.6:
            value = 0.05 if status == "ok" else -0.05
            self.reward(value, "air", name, attempt, tool_call_id=tool, source=f"air:{status}")
        return f"Result {status}"

    def span(
        self,
        title: str,
        span_id: str,
        begun: float,
        attributes: dict[str, Any],
        name: str,
        attempt: int,
        parent: str | None,
    ) -> None:
        claimed = self.chance.random() < 0.05
        span = Span(title, span_id, begun, begun + 0.125, attributes, name, attempt, parent, claimed=claimed)
        self.store.add_span(span)

    def reward(
        self,
        value: float,
        dimension: str = "task",
        rollout_id: str | None = None,
        attempt: int | None = None,
        **target: Any,
    ) -> None:
        reward_id = self.fresh("reward")
        self.store.add_rewards([Reward(value, dimension, rollout_id, attempt, reward_id=reward_id, **target)])


def main() -> None:
    """Writes the store."""
    path = Path(sys.argv[1]) / "seeded.db"
    with open_store(path) as store:
        for number in range(RUNS):
            Maker(store, number).make()
        store.flush()


if __name__ == "__main__":
    main()
