"""Numbers with their nouns."""

from __future__ import annotations


def counted(count: int, singular: str, several: str = "") -> str:
    """A number and its noun: ``1 entry``, ``2 entries``; ``several`` defaults to ``singular`` with an s."""
    return f"{count} {singular if count == 1 else several or singular + 's'}"
