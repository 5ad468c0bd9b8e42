"""AutoGen's messages as `lgov_core.instrumentation.turn_memory` reads them.

A reply is recognised by identity (the same `FunctionCall`, the same text object), never by what it says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from autogen_core.models import AssistantMessage, FunctionExecutionResultMessage, LLMMessage

from lgov_autogen.messages import as_mappings
from lgov_core.instrumentation.turn_memory import SameObject, TurnMemory


class MessageReader:
    """Recognises the messages of the model: see `TranscriptReader`."""

    def from_model(self, entry: LLMMessage) -> bool:
        """See `TranscriptReader.from_model`."""
        return isinstance(entry, AssistantMessage)

    def marks(self, entry: LLMMessage) -> Sequence[SameObject]:
        """See `TranscriptReader.marks`: the objects that the client returned."""
        if not isinstance(entry, AssistantMessage):
            return []
        return [SameObject(entry.content)] if isinstance(entry.content, str) else list(map(SameObject, entry.content))

    def has_calls(self, entry: LLMMessage) -> bool:
        """See `TranscriptReader.has_calls`. True: a text is recognised by its object, too."""
        return True

    def canonical(self, entry: LLMMessage) -> str:
        """See `TranscriptReader.canonical`."""
        mappings = as_mappings([entry])
        return json.dumps([{**each, "content": ""} if each.get("tool_calls") else each for each in mappings])


_READER = MessageReader()


def restored(memory: TurnMemory[LLMMessage], messages: Sequence[LLMMessage]) -> list[LLMMessage]:
    """``messages`` with what the agent never received back in place; the results of one reply in one message."""
    program = {mark: message for message in messages for mark in _READER.marks(message)}
    whole: list[LLMMessage] = []
    for message in memory.restored(_READER, messages, [""] * len(messages), messages):
        theirs = next((program[mark] for mark in _READER.marks(message) if mark in program), None)
        if theirs is not None:  # what else the agent says of its message stays
            message = (
                theirs if theirs.content == message.content else theirs.model_copy(update={"content": message.content})
            )
        if whole and isinstance(message, FunctionExecutionResultMessage):
            before = whole[-1]
            if isinstance(before, FunctionExecutionResultMessage):
                whole[-1] = FunctionExecutionResultMessage(content=[*message.content, *before.content])
                continue
        whole.append(message)
    return whole


def remember(
    memory: TurnMemory[LLMMessage],
    received: AssistantMessage,
    actual: AssistantMessage,
    before: Sequence[LLMMessage] = (),
    after: Sequence[LLMMessage] = (),
) -> None:
    """Notes that the agent got ``received`` and the model wrote ``actual``, and read what is ``before`` and ``after`` it."""
    turn: list[tuple[LLMMessage, int | None]] = [(message, None) for message in before]
    turn += [(actual, 0), *((message, None) for message in after)]
    memory.add(_READER, "", [received], turn)


def unique_text(text: str) -> str:
    """``text`` as a new object, which can be recognised by identity."""
    return "".join([text[:1], text[1:]]) if len(text) > 1 else text
