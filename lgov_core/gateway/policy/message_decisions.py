"""Remembers the decision on each text of a conversation, so that later calls which repeat it are not judged again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lgov_core._util.bounded import BoundedDict


@dataclass(frozen=True, slots=True)
class TextDecision:
    """``replacement`` is what the model reads instead of the text, None for the text itself. ``denied``: by a denial."""

    replacement: str | None = None
    denied: bool = False


class MessageDecisionCache:
    """The decisions on the last ``size`` texts, by attempt and place. Texts are kept as digests."""

    def __init__(self, size: int) -> None:
        self._decisions: BoundedDict[bytes, TextDecision] = BoundedDict(size)

    def get(self, key: bytes) -> TextDecision | None:
        """The decision on the text, or None if it is not known."""
        return self._decisions.get(key)

    def put(self, key: bytes, decision: TextDecision) -> None:
        """Remembers the decision on the text."""
        self._decisions.put(key, decision)


def text_key(rollout_id: str | None, attempt: int | None, where: str, text: str) -> bytes:
    """The key of ``text`` in one attempt, at one place."""
    whole = f"{rollout_id}\0{attempt}\0{where}\0{text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(whole, digest_size=16).digest()
