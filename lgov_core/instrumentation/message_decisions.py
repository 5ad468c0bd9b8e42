"""What became of what users said, kept until a transcript brings it back as it was said.

A program sends its whole transcript with each model call, or a framework keeps it. What was denied reached no model then,
and what was rewritten reached it in its new form: the same must hold for every later call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lgov_core.scope import current_scope

#: How many texts are remembered; the oldest are forgotten first.
MAX_REMEMBERED = 20_000


class Instead(NamedTuple):
    """What stands in place of a user's message: ``text``, and of the message nothing else if it was ``denied``."""

    text: str
    denied: bool


class MessageDecisionCache:
    """Texts of users that were judged, by rollout. Callable from any thread or task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed: OrderedDict[tuple[str | None, str], str] = OrderedDict()
        self._rewritten: OrderedDict[tuple[str | None, str], str] = OrderedDict()
        self._denied: OrderedDict[tuple[str | None, str], str] = OrderedDict()

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

    def instead_of(self, transcript: Callable[[], Sequence[tuple[str, str]]]) -> Mapping[int, Instead]:
        """What a model may read at which place: the new form of what was rewritten, the denial of what was denied.

        ``transcript`` gives role and text of each message; it is asked only where there is something to look for. A text
        was denied if its denial is what was answered to it: the same text may have been allowed elsewhere.
        """
        if not self._rewritten and not self._denied:
            return {}
        rollout = _rollout()
        instead: dict[int, Instead] = {}
        unanswered: list[tuple[int, str]] = []
        for position, (role, text) in enumerate(transcript()):
            if role == "user":
                unanswered.append((position, text))
                new = self._rewritten.get((rollout, text))
                if new is not None:
                    instead[position] = Instead(new, denied=False)
            elif role == "assistant":
                denied = (at for at, said in unanswered if self._denied.get((rollout, said)) == text)
                instead.update((at, Instead(text, denied=True)) for at in denied)
                unanswered.clear()
        return instead

    def _put(self, kept: OrderedDict[tuple[str | None, str], str], text: str, value: str) -> None:
        with self._lock:
            kept[(_rollout(), text)] = value
            kept.move_to_end((_rollout(), text))
            if len(kept) > MAX_REMEMBERED:
                kept.popitem(last=False)


def _rollout() -> str | None:
    scope = current_scope()
    return scope.rollout_id if scope is not None else None
