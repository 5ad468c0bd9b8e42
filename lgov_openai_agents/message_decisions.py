"""What is remembered from one run to the next: what became of what users said, and answers that a server waits for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from lgov_core.instrumentation.message_decisions import MAX_REMEMBERED, MessageDecisionCache
from lgov_openai_agents import items


class Heard(MessageDecisionCache):
    """Texts of users that were judged, which a session gives back as they were said. And the answers to calls that the SDK
    never saw, which a transcript on the server needs before it can go on.

    One for each `LgovRunner` and each instrumented process. Callable from any thread or task.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._owed: OrderedDict[str, list[Any]] = OrderedDict()

    def owe(self, place: str | None, answers: list[Any]) -> None:
        """Notes what has to be sent first when the reply or the conversation of this id goes on."""
        if place is None or not answers:
            return
        with self._lock:
            self._owed[place] = [*self._owed.pop(place, ()), *answers]
            if len(self._owed) > MAX_REMEMBERED:
                self._owed.popitem(last=False)

    def owed(self, place: str | None) -> list[Any]:
        """What `owe` noted."""
        return list(self._owed.get(place, ())) if place is not None and self._owed else []

    def settled(self, place: str | None) -> None:
        """The server has what was owed to this conversation."""
        if self._owed:
            with self._lock:
                self._owed.pop(place or "", None)

    def as_judged(self, given: Sequence[Any]) -> Sequence[Any]:
        """``given`` as a model may read it."""
        instead = self.instead_of(lambda: [(one["role"], one["content"]) for one in map(items.as_mapping, given)])
        if not instead:
            return given
        return [
            items.with_text(item, instead[position].text) if position in instead else item
            for position, item in enumerate(given)
        ]
