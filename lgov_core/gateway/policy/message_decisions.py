"""What a gate has judged already: texts of the conversations that go through it, by digest."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a text: ``instead`` stands for it from now on, None leaves it. ``denied``: it was not let through."""

    instead: str | None = None
    denied: bool = False


_LEFT = Verdict()


class Heard:
    """The last ``limit`` texts and what became of them; the oldest is forgotten first. For one thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    @staticmethod
    def key(rollout_id: str | None, attempt: int | None, where: str, text: str) -> bytes:
        """What names ``text`` in one attempt, at one place: 16 bytes."""
        whole = f"{rollout_id}\0{attempt}\0{where}\0{text}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(whole, digest_size=16).digest()

    def get(self, key: bytes) -> Verdict | None:
        """What became of the text, None if it is not known."""
        found = self._verdicts.get(key)
        if found is not None:
            self._verdicts.move_to_end(key)
        return found

    def put(self, key: bytes, instead: str | None, *, denied: bool = False) -> None:
        """Remembers it."""
        self._verdicts[key] = Verdict(instead, denied) if instead is not None or denied else _LEFT
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > self._limit:
            self._verdicts.popitem(last=False)
