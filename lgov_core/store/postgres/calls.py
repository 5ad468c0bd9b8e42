"""The calls of a PostgreSQL store: written folded, read whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from lgov_core.errors import StoreError
from lgov_core.store import rows
from lgov_core.store.prefixes import WHOLE, AttemptKey, Earlier, Fold, PrefixIndex
from lgov_core.store.unfold import Unfolding

#: Runs a statement and answers with its rows.
Execute: TypeAlias = Callable[[str, Sequence[Any]], list[rows.Row]]

#: What `Unfolding` reads.
FOLDED_ROW: Final = f"seq, {rows.FOLDED_COLUMNS}"
#: A call and all that it refers to. UNION, not UNION ALL: damaged rows may go in circles.
CHAIN: Final = (
    "WITH RECURSIVE chain (seq, base) AS (SELECT seq, base FROM calls WHERE seq = %s"
    " UNION SELECT calls.seq, calls.base FROM calls JOIN chain ON calls.seq = chain.base)"
    f" SELECT {FOLDED_ROW} FROM calls WHERE seq IN (SELECT seq FROM chain) ORDER BY seq"
)
#: Places for so many calls, and of each attempt its first and its last call.
_PLACES: Final = """
    WITH places AS MATERIALIZED (SELECT array_agg(nextval('calls_order')) AS seqs FROM generate_series(1, %s))
    SELECT seqs, nth, oldest, newest FROM places
        LEFT JOIN unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS attempts (rollout, number, nth) ON true
        LEFT JOIN LATERAL (
            SELECT min(seq) AS oldest, max(seq) AS newest FROM calls WHERE rollout_id = rollout AND attempt = number
        ) AS there ON true
"""
#: The calls of an attempt that no other refers to, which are the ends of its conversations, the last first.
_ENDS: Final = (
    "SELECT seq FROM calls WHERE rollout_id = %s AND attempt = %s AND seq > %s AND seq <= %s AND NOT EXISTS"
    " (SELECT 1 FROM calls AS later WHERE later.rollout_id = calls.rollout_id AND later.attempt = calls.attempt"
    " AND later.base = calls.seq) ORDER BY seq DESC LIMIT 256"
)


@dataclass(frozen=True, slots=True)
class CallParts:
    """A call to be written: a row of ``CALL_COLUMNS``, and the JSON text of each value of its request by name."""

    row: rows.Row
    request: Mapping[str, str]

    @property
    def key(self) -> AttemptKey | None:
        """The attempt, whose calls may refer to each other; None: it refers to none."""
        rollout_id, attempt = self.row[rows.ROLLOUT_ID], self.row[rows.ATTEMPT]
        return None if rollout_id is None or attempt is None else (rollout_id, attempt)


class FoldingCalls:
    """Makes rows of calls so that what one repeats of an earlier call of its attempt is not stored again.

    Used by the thread that writes, inside its transaction, which nobody deletes calls beside. What other stores wrote to
    an attempt is found too, and a call that was deleted meanwhile is not referred to. Calls of no attempt are left whole.
    """

    def __init__(self) -> None:
        self._index = PrefixIndex()

    def fold(self, execute: Execute, new: Sequence[CallParts]) -> list[rows.Row]:
        """Rows of ``FOLDED_COLUMNS`` and ``seq``."""
        keys = list(dict.fromkeys(call.key for call in new if call.key is not None))
        names, numbers = [key[0] for key in keys], [key[1] for key in keys]
        found = execute(_PLACES, (len(new), names, numbers))
        oldest: dict[AttemptKey, int] = {}
        for _, nth, first, newest in found:
            if nth is not None:
                oldest[keys[nth - 1]] = self._refresh(execute, keys[nth - 1], first, newest)
        return [self._folded(call, seq, oldest) for call, seq in zip(new, sorted(found[0][0]), strict=True)]

    def forget(self) -> None:
        """To be called when something was not written: the calls that were folded may not be there."""
        self._index.clear()

    def _refresh(self, execute: Execute, key: AttemptKey, oldest: int | None, newest: int | None) -> int:
        """Learns what others wrote to an attempt. Returns its first call: what is known from before it was deleted."""
        if oldest is None or newest is None:
            self._index.forget(key)
            return 0
        known = self._index.newest(key)
        if known is None or known < newest:
            unfolding = Unfolding(lambda seq: execute(CHAIN, (seq,)))
            try:
                for (seq,) in reversed(execute(_ENDS, (*key, known or 0, newest))):
                    self._index.add(key, unfolding.earlier(seq))
            except StoreError:  # a damaged call is no reason not to write this one
                self._index.forget(key)
        return oldest

    def _folded(self, call: CallParts, seq: int, oldest: Mapping[AttemptKey, int]) -> rows.Row:
        row, key = list(call.row), call.key
        prompt = row[rows.PROMPT]
        repeats = WHOLE
        if key is not None:
            repeats = self._find(key, prompt, call.request, oldest[key], seq)
            tokens = (prompt or b"") + (row[rows.RESPONSE_IDS] or b"")
            self._index.add(key, Earlier(seq, tokens, call.request), repeats)
        if repeats is not WHOLE:
            row[rows.PROMPT] = repeats.rest_of_prompt(prompt)
            row[rows.REQUEST] = repeats.rest_of_request(call.request)
        return (*row, *repeats.as_row(), seq)

    def _find(self, key: AttemptKey, prompt: bytes | None, request: Mapping[str, str], oldest: int, seq: int) -> Fold:
        repeats = self._index.find(key, prompt, request)
        if repeats.base is not None and not oldest <= repeats.base < seq:
            self._index.forget(key)
            return WHOLE
        return repeats
