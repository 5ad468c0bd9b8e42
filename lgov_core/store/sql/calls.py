"""The calls of a store: written folded (`lgov_core.store.fold`), read whole (`lgov_core.store.unfold`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.fold import WHOLE, AttemptKey, Earlier, Fold, FoldIndex
from lgov_core.store.sql.database import Transaction
from lgov_core.store.unfold import Unfolding

#: What `Unfolding` reads.
FOLDED_ROW: Final = f"seq, {rows.FOLDED_COLUMNS}"
#: A call and all that it refers to. UNION, not UNION ALL: the references of a damaged store may form a cycle.
CHAIN: Final = (
    "WITH RECURSIVE chain (seq, base) AS (SELECT seq, base FROM calls WHERE seq = ?"
    " UNION SELECT calls.seq, calls.base FROM calls JOIN chain ON calls.seq = chain.base)"
    f" SELECT {FOLDED_ROW} FROM calls WHERE seq IN (SELECT seq FROM chain) ORDER BY seq"
)
_NEWEST: Final = "SELECT max(seq) FROM calls WHERE rollout_id = ? AND attempt = ?"
#: The calls of an attempt that no other refers to, which are the ends of its conversations, the last first.
_ENDS: Final = (
    "SELECT seq FROM calls WHERE rollout_id = ? AND attempt = ? AND seq > ? AND seq NOT IN"
    " (SELECT base FROM calls WHERE rollout_id = ? AND attempt = ? AND base IS NOT NULL) ORDER BY seq DESC LIMIT 256"
)


class FoldingWriter:
    """Writes calls so that what one repeats of an earlier call of its attempt is not stored again.

    Used by the writer's thread, inside its transaction. Calls that other processes wrote to an attempt are found too, and a
    call that was deleted is not referred to. Calls of no attempt are written whole.
    """

    def __init__(self) -> None:
        self._index = FoldIndex()

    def write(self, transaction: Transaction, row: rows.Row, request: Mapping[str, str]) -> None:
        """Writes a row of ``CALL_COLUMNS``; ``request`` has the JSON text of each value of its request."""
        rollout_id, attempt, prompt = row[rows.ROLLOUT_ID], row[rows.ATTEMPT], row[rows.PROMPT]
        key: AttemptKey | None = None if rollout_id is None or attempt is None else (rollout_id, attempt)
        repeats = WHOLE if key is None else self._find(transaction, key, prompt, request)
        folded = list(row)
        if repeats is not WHOLE:
            folded[rows.PROMPT] = repeats.rest_of_prompt(prompt)
            folded[rows.REQUEST] = repeats.rest_of_request(request)
        seq = transaction.insert_call((*folded, *repeats.as_row()))
        transaction.name_rollout(rollout_id, row[rows.STARTED_AT])
        if key is not None:
            tokens = (prompt or b"") + (row[rows.RESPONSE_IDS] or b"")
            self._index.add(key, Earlier(seq, tokens, request), repeats)

    def forget(self) -> None:
        """To be called after a rollback: the calls that were added to the index may not exist."""
        self._index.clear()

    def _find(
        self, transaction: Transaction, key: AttemptKey, prompt: bytes | None, request: Mapping[str, str]
    ) -> Fold:
        ((newest,),) = transaction.execute(_NEWEST, key)
        if newest is None:
            self._index.forget(key)
            return WHOLE
        known = self._index.newest(key)
        if known is None or known < newest:
            self._learn(transaction, key, known or 0)
        repeats = self._index.find(key, prompt, request)
        if repeats.base is not None and not transaction.execute("SELECT 1 FROM calls WHERE seq = ?", (repeats.base,)):
            self._index.forget(key)
            return WHOLE
        return repeats

    def _learn(self, transaction: Transaction, key: AttemptKey, after: int) -> None:
        """Adds the calls that others wrote to the attempt."""
        unfolding = Unfolding(lambda seq: transaction.execute(CHAIN, (seq,)))
        try:
            for (seq,) in reversed(transaction.execute(_ENDS, (*key, after, *key))):
                self._index.add(key, unfolding.earlier(seq))
        except StoreError:  # a damaged call must not keep this one from being written
            self._index.forget(key)
