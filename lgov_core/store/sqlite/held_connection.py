"""What the connections of a store have in common: one thread at a time, and none of them lives across a fork."""

from __future__ import annotations

import threading
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A connection to a database."""

    def close(self) -> None:
        """Closes it; what was not committed is rolled back."""
        ...


C = TypeVar("C", bound=Closable)


class HeldConnection(Generic[C]):
    """A connection that is used under a lock and can be closed at any time: whoever uses it opens another when needed.

    `hold`, `release` and `close` may be called from any thread.
    """

    _connection: C | None = None

    def __init__(self) -> None:
        #: Held while the connection is in use; whoever holds it may close the connection, which is then opened again.
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Waits for whoever uses the connection, closes it, and keeps everyone from using it until `release`."""
        self._lock.acquire()
        self._let_go()

    def release(self) -> None:
        """Ends `hold`."""
        self._lock.release()

    def close(self) -> None:
        """Closes the connection, once it is not in use."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        """Closes the connection; the caller holds the lock. Who needs it next opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
