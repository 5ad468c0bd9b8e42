"""What is remembered from one run to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lgov_core.instrumentation import BoundedDict
from lgov_core.instrumentation.message_decisions import MessageDecisionCache
from lgov_openai_agents import items

#: How many conversations that a server keeps are remembered; the oldest are dropped.
MAX_CONVERSATIONS = 20_000


class RunMemory:
    """The decisions on users' messages, and the answers to calls that the SDK never saw.

    A session gives back what users said in its first form; a conversation that the server keeps cannot go on before each
    call in it has an answer. One for each `LgovRunner` and each instrumented process. Callable from any thread or task.
    """

    def __init__(self) -> None:
        self.decisions = MessageDecisionCache()
        self._answers: BoundedDict[str, list[Any]] = BoundedDict(MAX_CONVERSATIONS)

    def keep_answers(self, conversation: str | None, answers: list[Any]) -> None:
        """Notes what has to be sent first when the reply or the conversation of this id goes on."""
        if conversation is not None and answers:
            self._answers.put(conversation, [*self.answers_for(conversation), *answers])

    def answers_for(self, conversation: str | None) -> list[Any]:
        """What `keep_answers` noted."""
        return [] if conversation is None else self._answers.get(conversation) or []

    def answers_sent(self, conversation: str | None) -> None:
        """The server has the answers for this conversation."""
        if conversation is not None:
            self._answers.pop(conversation)

    def with_decisions(self, given: Sequence[Any]) -> Sequence[Any]:
        """``given`` as a model may read it; the same object where nothing is replaced."""
        instead = self.decisions.instead_of(
            lambda: [(one["role"], one["content"]) for one in map(items.as_mapping, given)]
        )
        if not instead:
            return given
        return [
            items.with_text(item, instead[position].text) if position in instead else item
            for position, item in enumerate(given)
        ]
