"""Words for people: numbers with their nouns, and suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, singular: str, several: str = "") -> str:
    """A number and its noun: ``1 entry``, ``2 entries``; ``several`` defaults to ``singular`` with an s."""
    return f"{count} {singular if count == 1 else several or singular + 's'}"


def suggest_name(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """A hint: the name in ``names`` that is spelt most like ``name``, else ``otherwise``, or all that are known."""
    import difflib

    every = list(names)
    close = difflib.get_close_matches(name, every, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"write one of: {', '.join(every)}" if otherwise is None else otherwise
