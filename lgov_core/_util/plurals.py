"""Numbers with their nouns."""

from __future__ import annotations


def counted(count: int, one: str, several: str = "") -> str:
    """A number and its noun: ``1 entry``, ``2 entries``; ``several`` defaults to ``one`` with an s."""
    return f"{count} {one if count == 1 else several or one + 's'}"
