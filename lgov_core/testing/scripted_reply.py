"""What a scripted model answers, and what the writers of the APIs share."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lgov_core.types import new_id


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call in a reply. ``arguments`` is an object, or the text itself (which may be broken JSON)."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict[str, Any])
    call_id: str = field(default_factory=lambda: new_id("call"))

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """One answer of the scripted model.

    ``status`` other than 200 answers with an error whose message is ``text``. ``body`` is sent instead of the JSON
    (with ``content_type``). The reply comes after ``delay_s`` seconds and once ``gate`` is set; a streamed reply waits
    for the gate before chunk number ``gate_at``. ``cut_at`` closes the connection of a streamed reply before that chunk.
    ``finish_reason`` is ``tool_calls`` or ``stop`` unless given. ``extra`` is added to the body (each chunk, if streamed).
    """

    text: str | None = None
    tool_calls: Sequence[ScriptedCall] = ()
    finish_reason: str | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    content_type: str = "application/json"
    delay_s: float = 0.0
    gate: threading.Event | None = None
    gate_at: int = 0
    cut_at: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


def call(name: str, arguments: str | None = None, /, **values: Any) -> ScriptedReply:
    """A reply that is one tool call, with the given values or the given arguments text."""
    return ScriptedReply(tool_calls=[ScriptedCall(name, values if arguments is None else arguments)])


def token_logprob(token_id: int) -> float:
    """The logprob that the scripted model gives a token."""
    return -0.01 * (token_id % 50 + 1)


def words(text: str) -> Iterator[str]:
    """The words of a text, each but the first with the space before it."""
    for number, word in enumerate(text.split(" ")):
        yield f" {word}" if number else word


def halves(text: str) -> tuple[str, str]:
    """A text in two parts."""
    return text[: len(text) // 2], text[len(text) // 2 :]


def sse(data: Mapping[str, Any], event: str | None = None) -> str:
    """One server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data)}\n\n"


def openai_usage(prompt: int, generated: int) -> dict[str, int]:
    """The usage object of OpenAI's chat completions and completions."""
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
