"""Where rollouts, calls, rewards and spans are kept."""

from __future__ import annotations

import os

from lgov_core.errors import StoreError
from lgov_core.store.protocol import TraceStore
from lgov_core.store.queue import RolloutQueue
from lgov_core.store.work import STATE_MOVES, Claim, EndedRollouts, QueueEntry, RolloutConfig, RolloutState

__all__ = [
    "STATE_MOVES",
    "Claim",
    "EndedRollouts",
    "QueueEntry",
    "RolloutConfig",
    "RolloutQueue",
    "RolloutState",
    "TraceStore",
    "open_store",
]


def open_store(place: str | os.PathLike[str]) -> RolloutQueue:
    """The store at ``place``: a path, or ``sqlite:///path`` (``sqlite:////path`` when the path is absolute).

    Raises `StoreError` for another kind of address, and when the store cannot be opened.
    """
    from lgov_core.store.sqlite import SQLiteStore

    path = os.fspath(place)
    if path.startswith("sqlite:///"):
        path = path.removeprefix("sqlite:///")
    elif "://" in path or path.startswith("sqlite:"):
        raise StoreError(
            f"there is no trace store for {path.split(':')[0]} addresses", hint="use a file path or sqlite:///path"
        )
    if path in ("", ":memory:"):
        raise StoreError(f"a trace store needs a file, not {path!r}", hint="use a path in a temporary folder")
    return SQLiteStore(path)
