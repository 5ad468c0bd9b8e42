"""What the model said and was told inside the client, so that its next prompt holds it although the agent never saw it.

A proposed call that is denied in the client is taken out of the reply, so the agent's own conversation lacks it. The
model must not: at the next call the denied proposal and the denial are put back where they stood. A reply is known
again by its objects (the very `FunctionCall`, the very text), never by what it says.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
)

#: How many replies are remembered; the oldest are forgotten first.
REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class HiddenPart:
    """What stood around a reply: the messages ``before`` it, and the ``denials`` of those of its ``calls`` that are gone."""

    before: tuple[LLMMessage, ...] = ()
    calls: tuple[FunctionCall, ...] = ()
    denials: tuple[FunctionExecutionResult, ...] = ()


class Transcript:
    """The hidden parts of the conversations of one or many clients. May be used by any number of tasks and threads."""

    def __init__(self) -> None:
        self._parts: OrderedDict[int, tuple[object, HiddenPart]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, reply: object, part: HiddenPart) -> None:
        """Keeps ``part`` for the reply that is, or begins with, the object ``reply``."""
        with self._lock:
            self._parts[id(reply)] = (reply, part)
            while len(self._parts) > REMEMBERED:
                self._parts.popitem(last=False)

    def restored(self, messages: Sequence[LLMMessage]) -> list[LLMMessage]:
        """``messages`` with the hidden parts back in place."""
        if not self._parts:
            return list(messages)
        restored: list[LLMMessage] = []
        owed: tuple[FunctionExecutionResult, ...] = ()
        for message in messages:
            if owed and isinstance(message, FunctionExecutionResultMessage):
                restored.append(FunctionExecutionResultMessage(content=[*message.content, *owed]))
                owed = ()
                continue
            if owed:
                restored.append(FunctionExecutionResultMessage(content=list(owed)))
                owed = ()
            part = self._part_of(message)
            if part is None:
                restored.append(message)
                continue
            restored += part.before
            if part.denials and isinstance(message, AssistantMessage):
                message = message.model_copy(update={"content": list(part.calls)})
                owed = part.denials
            restored.append(message)
        if owed:
            restored.append(FunctionExecutionResultMessage(content=list(owed)))
        return restored

    def _part_of(self, message: LLMMessage) -> HiddenPart | None:
        if not isinstance(message, AssistantMessage):
            return None
        marks: Sequence[object] = [message.content] if isinstance(message.content, str) else message.content
        for mark in marks:
            reply, part = self._parts.get(id(mark), (None, None))
            if reply is mark and part is not None:
                return part
        return None


def own_text(text: str) -> str:
    """``text`` as an object that nobody else holds, so that it is known again."""
    return "".join([text[:1], text[1:]]) if len(text) > 1 else text
