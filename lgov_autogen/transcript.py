"""Remembers what the model wrote and read inside the client, so that its next prompt holds it.

A proposed call that is denied in the client is taken out of the reply, so the agent's own conversation lacks it. At the
next call the denied proposal and the denial are put back where they were. A reply is recognised by identity (the same
`FunctionCall`, the same text object), never by what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
)

from lgov_core.instrumentation import BoundedDict

#: How many replies and calls are remembered; the oldest are dropped.
MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class HiddenPart:
    """The messages ``before`` a reply that the agent lacks, and the ``denials`` of those of its ``calls`` that it lacks."""

    before: tuple[LLMMessage, ...] = ()
    calls: tuple[FunctionCall, ...] = ()
    denials: tuple[FunctionExecutionResult, ...] = ()


class Transcript:
    """The hidden parts of the conversations of any number of clients. Callable from any task and thread."""

    def __init__(self) -> None:
        self._parts: BoundedDict[int, tuple[object, HiddenPart]] = BoundedDict(MAX_REMEMBERED)

    def remember(self, reply: object, part: HiddenPart) -> None:
        """Keeps ``part`` for the reply that is, or contains, the object ``reply``."""
        self._parts.put(id(reply), (reply, part))

    def restored(self, messages: Sequence[LLMMessage]) -> list[LLMMessage]:
        """``messages`` with the hidden parts back in place."""
        restored: list[LLMMessage] = []
        denials: list[FunctionExecutionResult] = []
        for message in messages:
            if denials:
                is_results = isinstance(message, FunctionExecutionResultMessage)
                results = message.content if isinstance(message, FunctionExecutionResultMessage) else []
                restored.append(FunctionExecutionResultMessage(content=[*results, *denials]))
                denials = []
                if is_results:
                    continue
            part = self._part_of(message)
            if part is not None:
                restored += part.before
                if part.denials and isinstance(message, AssistantMessage):
                    message = message.model_copy(update={"content": list(part.calls)})
                    denials = list(part.denials)
            restored.append(message)
        if denials:
            restored.append(FunctionExecutionResultMessage(content=denials))
        return restored

    def _part_of(self, message: LLMMessage) -> HiddenPart | None:
        if not isinstance(message, AssistantMessage):
            return None
        marks: Sequence[object] = [message.content] if isinstance(message.content, str) else message.content
        for mark in marks:
            reply, part = self._parts.get(id(mark)) or (None, None)
            if reply is mark and part is not None:
                return part
        return None


def unique_text(text: str) -> str:
    """``text`` as a new object, which can be recognised by identity."""
    return "".join([text[:1], text[1:]]) if len(text) > 1 else text
