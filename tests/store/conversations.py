"""Calls of conversations, and the bytes that a store takes for them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from lgov_core.types import CapturedCall


def call(
    response_id: str,
    prompt: tuple[int, ...] | None,
    response: tuple[int, ...] | None,
    request: dict[str, Any],
    *,
    rollout: str | None = "r1",
    attempt: int | None = 1,
    agent: str = "a",
) -> CapturedCall:
    logprobs = None if response is None else tuple(-0.1 * token for token in response)
    return CapturedCall(
        response_id, "m", request, {"id": response_id}, prompt, response, logprobs, "stop", 0, 1.0, 1.0, 1.0, 2.0,
        rollout, attempt, agent,
    )  # fmt: skip


class Conversation:
    """An agent that sends all it has seen with every call, as agents do."""

    def __init__(self, agent: str, seed: int, turn_tokens: int = 60) -> None:
        self.agent, self.seed, self.turn_tokens, self.turn = agent, seed, turn_tokens, 0
        self.tokens: tuple[int, ...] = tuple(range(400))  # the system prompt, the same for all
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "You are careful. " * 40}]
        self.distinct = 0

    def next(self, *, rollout: str = "r1", attempt: int = 1) -> CapturedCall:
        self.turn += 1
        new = tuple(self.seed * 1000 + self.turn * 10 + i % 7 for i in range(self.turn_tokens))
        prompt, response = self.tokens + new, tuple(i + 5 for i in new[:20])
        self.distinct += len(new) + len(response)
        self.messages = [*self.messages, {"role": "user", "content": f"{self.agent} {self.turn}: " + "go on; " * 20}]
        request = {
            "seed": self.turn,
            "messages": self.messages,
            "model": "m",
            "tools": [{"name": "run", "description": "x" * 2000}],
            "user": f"user {self.turn}",
        }
        made = call(
            f"{self.agent}-{self.turn}-{attempt}",
            prompt,
            response,
            request,
            rollout=rollout,
            attempt=attempt,
            agent=self.agent,
        )
        self.tokens = prompt + response
        self.messages = [*self.messages, {"role": "assistant", "content": "done; " * 10}]
        return made


def stored_bytes(path: Path) -> tuple[int, int]:
    """What the file holds of token ids and of requests, in bytes."""
    connection = sqlite3.connect(path)
    found = connection.execute(
        "SELECT sum(ifnull(length(prompt_rest), 0) + ifnull(length(response_ids), 0)), sum(length(request)) FROM calls"
    ).fetchone()
    connection.close()
    return found
