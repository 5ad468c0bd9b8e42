"""The calls of a SQLite store: written folded, read whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.prefixes import WHOLE, AttemptKey, Earlier, Fold, PrefixIndex
from lgov_core.store.unfold import Unfolding

#: What `Unfolding` reads.
FOLDED_ROW: Final = f"seq, {rows.FOLDED_COLUMNS}"
#: A call and all that it refers to. UNION, not UNION ALL: a damaged file may go in circles.
CHAIN: Final = (
    "WITH RECURSIVE chain (seq, base) AS (SELECT seq, base FROM calls WHERE seq = ?"
    " UNION SELECT calls.seq, calls.base FROM calls JOIN chain ON calls.seq = chain.base)"
    f" SELECT {FOLDED_ROW} FROM calls WHERE seq IN (SELECT seq FROM chain) ORDER BY seq"
)
_INSERT: Final = rows.insert("calls", rows.FOLDED_COLUMNS)
_NEWEST: Final = "SELECT max(seq) FROM calls WHERE rollout_id = ? AND attempt IS ?"
#: The calls of an attempt that no other refers to, which are the ends of its conversations, the last first.
_ENDS: Final = (
    "SELECT seq FROM calls WHERE rollout_id = ? AND attempt IS ? AND seq > ? AND seq NOT IN"
    " (SELECT base FROM calls WHERE rollout_id = ? AND attempt IS ? AND base IS NOT NULL) ORDER BY seq DESC LIMIT 256"
)


class FoldingWriter:
    """Writes calls so that what one repeats of an earlier call of its attempt is not stored again.

    Used by the thread that writes, inside its transaction. What other processes wrote to an attempt is found too, and a
    call that was deleted meanwhile is not referred to. Calls of no rollout are written whole.
    """

    def __init__(self) -> None:
        self._index = PrefixIndex()

    def write(self, connection: sqlite3.Connection, row: rows.Row, request: Mapping[str, str]) -> None:
        """Writes a row of ``CALL_COLUMNS``, the values of whose request are ``request``. Raises ``sqlite3.Error``."""
        rollout_id, prompt = row[rows.ROLLOUT_ID], row[rows.PROMPT]
        key: AttemptKey | None = None if rollout_id is None else (rollout_id, row[rows.ATTEMPT])
        repeats = WHOLE if key is None else self._find(connection, key, prompt, request)
        folded = list(row)
        if repeats is not WHOLE:
            folded[rows.PROMPT] = repeats.rest_of_prompt(prompt)
            folded[rows.REQUEST] = repeats.rest_of_request(request)
        seq = connection.execute(_INSERT, (*folded, *repeats.as_row())).lastrowid
        if key is not None and seq is not None:
            tokens = (prompt or b"") + (row[rows.RESPONSE_IDS] or b"")
            self._index.add(key, Earlier(seq, tokens, request), repeats)

    def forget(self) -> None:
        """To be called when a transaction was lost: the calls that it held are not there."""
        self._index.clear()

    def _find(
        self, connection: sqlite3.Connection, key: AttemptKey, prompt: bytes | None, request: Mapping[str, str]
    ) -> Fold:
        newest = connection.execute(_NEWEST, key).fetchone()[0]
        if newest is None:
            self._index.forget(key)
            return WHOLE
        known = self._index.newest(key)
        if known is None or known < newest:
            self._learn(connection, key, known or 0)
        repeats = self._index.find(key, prompt, request)
        if repeats.base is not None and not _exists(connection, repeats.base):
            self._index.forget(key)
            return WHOLE
        return repeats

    def _learn(self, connection: sqlite3.Connection, key: AttemptKey, after: int) -> None:
        def chain(seq: int) -> Iterable[rows.Row]:
            return connection.execute(CHAIN, (seq,))

        unfolding = Unfolding(chain)
        ends = [seq for (seq,) in connection.execute(_ENDS, (*key, after, *key))]
        try:
            for seq in reversed(ends):
                self._index.add(key, unfolding.earlier(seq))
        except StoreError:  # a damaged call is no reason not to write this one
            self._index.forget(key)


def _exists(connection: sqlite3.Connection, seq: int) -> bool:
    return connection.execute("SELECT 1 FROM calls WHERE seq = ?", (seq,)).fetchone() is not None
