"""Whether the caller of a policy that waits has gone: its task was cancelled, it was interrupted, or it waits no longer."""

from __future__ import annotations

import threading
from contextvars import ContextVar

_GONE: ContextVar[threading.Event | None] = ContextVar("lgov_caller_gone", default=None)


def caller_gone() -> threading.Event:
    """Is set when the caller no longer waits for the running judgement; a policy that waits stops then."""
    return _GONE.get() or threading.Event()


def set_caller_gone(event: threading.Event) -> None:
    """Makes ``event`` that of the judgement which begins in this context."""
    _GONE.set(event)
