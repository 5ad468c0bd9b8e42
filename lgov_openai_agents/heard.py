"""What is remembered from one run to the next: what became of what users said, and answers that a server waits for."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from lgov_core.scope import current_scope
from lgov_openai_agents import items

#: How many texts are remembered; the oldest are forgotten first.
MAX_REMEMBERED = 20_000


class Heard:
    """Texts of users that were judged, by rollout; a session gives them back as they were said. And the answers to calls
    that the SDK never saw, which a transcript on the server needs before it can go on.

    One for each `LgovRunner` and each armed process. Callable from any thread or task.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed: OrderedDict[tuple[str | None, str], str] = OrderedDict()
        self._rewritten: OrderedDict[tuple[str | None, str], str] = OrderedDict()
        self._denied: OrderedDict[tuple[str | None, str], str] = OrderedDict()
        self._owed: OrderedDict[str, list[Any]] = OrderedDict()

    def let_through(self, text: str, instead: str | None) -> None:
        """Notes that ``text`` was allowed, as it was or with ``instead`` in its place."""
        self._put(self._allowed, text, "")
        if instead is not None:
            self._put(self._rewritten, text, instead)
        elif self._rewritten:
            with self._lock:
                self._rewritten.pop((_rollout(), text), None)

    def withheld(self, text: str, denial: str) -> None:
        """Notes that ``text``, which a transcript from elsewhere holds, may not be read; ``denial`` stands for it."""
        self._put(self._rewritten, text, denial)

    def knows(self, text: str, answer: str | None) -> bool:
        """Whether ``text`` has been judged here; ``answer`` is what the agent said to it."""
        key = (_rollout(), text)
        return (
            key in self._allowed or key in self._rewritten or (answer is not None and self._denied.get(key) == answer)
        )

    def denied(self, text: str, denial: str) -> None:
        """Notes that ``text`` was answered with ``denial`` and reached no model."""
        self._put(self._denied, text, denial)

    def _put(self, kept: OrderedDict[tuple[str | None, str], str], text: str, value: str) -> None:
        with self._lock:
            kept[(_rollout(), text)] = value
            kept.move_to_end((_rollout(), text))
            if len(kept) > MAX_REMEMBERED:
                kept.popitem(last=False)

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
        """``given`` as a model may read it: with the new form of what was rewritten and the denial of what was denied.

        A text was denied if its denial is what was answered to it: the same text may have been allowed elsewhere.
        """
        if not self._rewritten and not self._denied:
            return given
        rollout = _rollout()
        sent, unanswered = list(given), list[int]()
        for position, item in enumerate(given):
            plain = items.as_mapping(item)
            text = plain["content"]
            if plain["role"] == "user":
                unanswered.append(position)
                instead = self._rewritten.get((rollout, text))
                if instead is not None:
                    sent[position] = items.with_text(item, instead)
            elif plain["role"] == "assistant":
                for asked in unanswered:
                    said = items.as_mapping(given[asked])["content"]
                    if self._denied.get((rollout, said)) == text:
                        sent[asked] = items.with_text(given[asked], text)
                unanswered.clear()
        return sent


def _rollout() -> str | None:
    scope = current_scope()
    return scope.rollout_id if scope is not None else None
