"""Remembers the decision on each user message, so that the same message in a later request is not judged again.

A program sends its whole transcript with each model call, or a framework keeps it. A message that was denied reached no
model, and one that was rewritten reached it in its new form: the same must hold for every later call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from lgov_core._util.bounded import BoundedDict
from lgov_core.scope import current_scope

#: How many messages are remembered; the oldest are forgotten first.
MAX_REMEMBERED = 20_000

_Key: TypeAlias = tuple[str | None, str]


class Instead(NamedTuple):
    """The replacement of a user's message: ``text``, and of the message nothing else if it was ``denied``."""

    text: str
    denied: bool


class MessageDecisionCache:
    """The decisions on user messages, by rollout. Callable from any thread or task."""

    def __init__(self) -> None:
        self._allowed: BoundedDict[_Key, str] = BoundedDict(MAX_REMEMBERED)
        self._rewritten: BoundedDict[_Key, str] = BoundedDict(MAX_REMEMBERED)
        self._denied: BoundedDict[_Key, str] = BoundedDict(MAX_REMEMBERED)

    def let_through(self, text: str, instead: str | None) -> None:
        """Notes that ``text`` was allowed, unchanged or with ``instead`` in its place."""
        self._allowed.put(_key(text), "")
        if instead is not None:
            self._rewritten.put(_key(text), instead)
        else:
            self._rewritten.pop(_key(text))

    def withheld(self, text: str, denial: str) -> None:
        """Notes that ``text``, from a transcript that lgov did not see grow, was denied; ``denial`` replaces it."""
        self._rewritten.put(_key(text), denial)

    def knows(self, text: str, answer: str | None) -> bool:
        """Whether ``text`` was judged here; ``answer`` is the agent's reply to it."""
        key = _key(text)
        return (
            key in self._allowed or key in self._rewritten or (answer is not None and self._denied.get(key) == answer)
        )

    def denied(self, text: str, denial: str) -> None:
        """Notes that ``text`` was answered with ``denial`` and reached no model."""
        self._denied.put(_key(text), denial)

    def instead_of(self, transcript: Callable[[], Sequence[tuple[str, str]]]) -> Mapping[int, Instead]:
        """The replacements by position: the new form of a rewritten message, the denial of a denied one.

        ``transcript`` gives role and text of each message; it is called only if there is anything to look for. A text
        was denied if its denial is the answer to it: the same text may have been allowed elsewhere.
        """
        if not len(self._rewritten) and not len(self._denied):
            return {}
        instead: dict[int, Instead] = {}
        unanswered: list[tuple[int, str]] = []
        for position, (role, text) in enumerate(transcript()):
            if role == "user":
                unanswered.append((position, text))
                new = self._rewritten.get(_key(text))
                if new is not None:
                    instead[position] = Instead(new, denied=False)
            elif role == "assistant":
                denied = (at for at, said in unanswered if self._denied.get(_key(said)) == text)
                instead.update((at, Instead(text, denied=True)) for at in denied)
                unanswered.clear()
        return instead


def _key(text: str) -> _Key:
    scope = current_scope()
    return (scope.rollout_id if scope is not None else None), text
