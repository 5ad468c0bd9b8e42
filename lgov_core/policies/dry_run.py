"""Judging without consequences: a policy that is made within a dry_run keeps its counts in memory.

``lgov policy eval`` and similar commands judge actions that never happen. They must not spend from the budgets, or use up the
approvals, that a running agent shares through a file.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_IN_DRY_RUN: ContextVar[bool] = ContextVar("lgov_dry_run", default=False)


@contextmanager
def dry_run() -> Generator[None]:
    """Policies that are made inside the block share no file with other processes."""
    token = _IN_DRY_RUN.set(True)
    try:
        yield
    finally:
        _IN_DRY_RUN.reset(token)


def in_dry_run() -> bool:
    """Whether the running code is within a `dry_run`."""
    return _IN_DRY_RUN.get()
