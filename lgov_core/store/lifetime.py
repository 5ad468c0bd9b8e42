"""The life of a store object: it works until it is closed, in the process that opened it."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Generic, Protocol, Self, TypeVar

from lgov_core._util.sqlite_file import keep_quiet_across_fork
from lgov_core.errors import StoreError


class Side(Protocol):
    """The writing or the reading side of a store, which has a connection."""

    def close(self) -> None:
        """Ends what is under way, and closes the connection for good."""
        ...

    def hold(self) -> None:
        """Waits for what is under way, closes the connection, and opens none until `release`."""
        ...

    def release(self) -> None:
        """Ends `hold`."""
        ...


W = TypeVar("W", bound=Side)
R = TypeVar("R", bound=Side)


class OpenStore(Generic[W, R]):
    """A store that is open: ``shown`` is what errors call it. In a forked child it refuses to work.

    What still waits to be written when it is forgotten, or the program ends without closing it, is written all the same.
    """

    def __init__(self, shown: str, writer: W, reader: R) -> None:
        self._shown = shown
        self._writer, self._reader = writer, reader
        self._pid = os.getpid()
        self._closed = False
        self._close_lock = threading.Lock()
        keep_quiet_across_fork(self)
        weakref.finalize(self, _write_out, writer, self._pid)

    def close(self) -> None:
        """Flushes and closes. Calling it again does nothing; any other call after it raises `StoreError`."""
        if self._pid == os.getpid():
            with self._close_lock:
                self._writer.close()
                self._reader.close()
                self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def before_fork(self) -> None:
        """Closes the connections, so that a child inherits none. Called by the interpreter."""
        if self._pid == os.getpid():
            self._reader.hold()
            self._writer.hold()

    def after_fork_in_parent(self) -> None:
        """Lets work go on, on fresh connections. Called by the interpreter."""
        if self._pid == os.getpid():
            self._writer.release()
            self._reader.release()

    def after_fork_in_child(self) -> None:
        """Nothing: the writer's thread is not in the child, so every method refuses there."""

    def _check(self) -> None:
        """Raises `StoreError` when the store is closed, or was opened by the parent process."""
        if self._pid != os.getpid():
            raise StoreError(
                f"trace store {self._shown} was opened by the parent process", hint="open it again after the fork"
            )
        if self._closed:
            raise StoreError(f"trace store {self._shown} is closed", hint="open it again to go on")


def _write_out(writer: Side, pid: int) -> None:
    if pid == os.getpid():
        writer.close()
