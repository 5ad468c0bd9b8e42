"""How an attempt ended whose agent raised: distinguishes the machines' failures from the agent's."""

from __future__ import annotations

import errno
import sqlite3
from typing import Final

from lgov_core.errors import AuditError, PolicyDenied, StoreError
from lgov_core.types import Outcome

#: The error of an attempt in which acts were denied by a failure, not by the policy.
DENIED_BY_FAILURE: Final = "a policy or the audit record failed, so acts were denied that the policy may allow"

#: Exception classes (by package and name, for no framework may be imported here) that speak of the endpoint or of the
#: way to it, not of what the agent asked.
_INFRASTRUCTURE = {
    (package, name)
    for package in ("openai", "anthropic")
    for name in (
        "APIConnectionError",
        "APITimeoutError",
        "AuthenticationError",
        "InternalServerError",
        "PermissionDeniedError",
        "RateLimitError",
    )
}

#: What the operating system says when it has run out of something, or has lost a device or a network. A missing file
#: or a forbidden one is not among them: those an agent's own tool may ask for.
_EXHAUSTED = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EIO,
    errno.EROFS,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
}
_SQLITE_EXHAUSTED = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM}


def is_infrastructure(error: BaseException) -> bool:
    """True if ``error``, or what caused it, speaks of the machines (connection, memory, disk) rather than of the agent.

    Follows ``raise ... from`` and exceptions that were raised while another was handled (unless ``from None``).
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if _speaks_of_machines(current):
            return True
        hidden = current.__suppress_context__ and current.__cause__ is None
        current = None if hidden else current.__cause__ or current.__context__
    return False


def outcome_of(error: Exception) -> tuple[Outcome, str]:
    """The outcome of an attempt whose agent raised ``error``, and its text.

    A timeout that a tool raised says nothing about the agent either, but is an outcome of its own.
    """
    if isinstance(error, PolicyDenied):
        return Outcome.BLOCKED, str(error)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, TimeoutError):
        return Outcome.TIMEOUT, text
    return Outcome.INFRASTRUCTURE if is_infrastructure(error) else Outcome.FAILED, text


def _speaks_of_machines(error: BaseException) -> bool:
    if isinstance(error, ConnectionError | MemoryError | StoreError | AuditError):
        return True
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return True
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_EXHAUSTED:
        return True
    return any((kind.__module__.partition(".")[0], kind.__name__) in _INFRASTRUCTURE for kind in type(error).__mro__)
