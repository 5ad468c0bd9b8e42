"""Errors of the window, and the HTTP status of every error."""

from __future__ import annotations

from typing import ClassVar, Final

from lgov_core.errors import LgovError, StoreError
from lgov_core.store.sql.database import QueryTooSlow
from lgov_core.views.attempt_builder import NotRecorded


class WindowError(LgovError):
    """A request that cannot be answered. ``status`` is the HTTP status."""

    code = "window"
    status: ClassVar[int] = 500


class QueryError(WindowError):
    """A parameter or a body without meaning."""

    code = "query"
    status = 400


class NoSessionError(WindowError):
    """The browser has no session."""

    code = "unauthorized"
    status = 401


class RefusedError(WindowError):
    """The request comes from elsewhere."""

    code = "refused"
    status = 403


class NotFoundError(WindowError):
    """There is no such source, side or address."""

    code = "not_found"
    status = 404


_STATUS: Final = {"not_found": 404, "changed": 409, "answered": 409, "policy": 400, "policy_file": 400, "train": 503}


def status_of(error: LgovError) -> int:
    """The status for an error: what is not in a store is missing, and one that cannot be read is unavailable."""
    if isinstance(error, WindowError):
        return error.status
    if isinstance(error, QueryTooSlow):
        return 504  # which a page does not ask again by itself
    if isinstance(error, StoreError):
        return 404 if isinstance(error, NotRecorded) else 503
    return _STATUS.get(error.code, 500)
