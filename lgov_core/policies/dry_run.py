"""Judging without consequences: a policy that is made within a dry_run keeps its books in memory.

``lgov policy eval`` and its kin judge actions that never happen. They must not spend from the budgets, or use up the
approvals, that a running agent shares through a file.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_REHEARSING: ContextVar[bool] = ContextVar("lgov_rehearsal", default=False)


@contextmanager
def dry_run() -> Generator[None]:
    """Policies that are made inside the block share no file with anybody."""
    token = _REHEARSING.set(True)
    try:
        yield
    finally:
        _REHEARSING.reset(token)


def rehearsing() -> bool:
    """Whether the running code rehearses."""
    return _REHEARSING.get()
