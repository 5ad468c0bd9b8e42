"""Reads folded calls back, whole."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lgov_core.errors import StoreError
from lgov_core.store import encoding, rows
from lgov_core.store.fold import TOKEN, Earlier
from lgov_core.types import CapturedCall


class Unfolding:
    """Makes folded rows (``seq``, then `rows.FOLDED_COLUMNS`) whole. For one thread.

    ``chain`` gets a ``seq`` and answers with the folded row of that call and those of all that it refers to, directly or
    not, by ``seq``. It is asked when a row refers to one that was not read, or longer ago than ``limit_bytes`` of memory
    remember. Rows that refer to what is not there raise `StoreError`.
    """

    def __init__(self, chain: Callable[[int], Iterable[rows.Row]], *, limit_bytes: int = 64 << 20) -> None:
        self._chain = chain
        self._limit = limit_bytes
        self._known: OrderedDict[int, Earlier] = OrderedDict()
        self._size = 0

    def calls(self, folded: Iterable[rows.Row]) -> Iterator[CapturedCall]:
        """The calls of folded rows."""
        return (rows.call_of(self.whole(row)) for row in folded)

    def whole(self, folded: rows.Row) -> rows.Row:
        """A row of ``CALL_COLUMNS``, with token ids as tuples and the request as a mapping."""
        seq, *values, base, shared, repeats = folded
        response, prompt = values[rows.RESPONSE_IDS], values[rows.PROMPT]
        texts, request = encoding.object_values(values[rows.REQUEST])
        if base is not None:
            if base >= seq:
                raise _damaged(seq, base)
            before = self._base(seq, base)
            if len(before.tokens) < shared * TOKEN:
                raise _damaged(seq, base)
            if prompt is not None:
                prompt = before.tokens[: shared * TOKEN] + prompt
            for name, (head, tail) in json.loads(repeats or "{}").items():
                text, new = before.request.get(name, ""), request.get(name)
                if len(text) < head + tail or not isinstance(new, str):
                    raise _damaged(seq, base)
                texts[name] = text[:head] + new + text[len(text) - tail :]
                request[name] = json.loads(texts[name])
        self._remember(Earlier(seq, (prompt or b"") + (response or b""), texts))
        values[rows.RESPONSE_IDS] = encoding.numbers("i", response)
        values[rows.PROMPT], values[rows.REQUEST] = encoding.numbers("i", prompt), request
        return tuple(values)

    def earlier(self, seq: int) -> Earlier:
        """A call as others may refer to it."""
        return self._base(seq, seq)

    def _base(self, seq: int, base: int) -> Earlier:
        if base not in self._known:
            for row in self._chain(base):
                if row[0] not in self._known:
                    self.whole(row)
        if base not in self._known:
            raise _damaged(seq, base)
        self._known.move_to_end(base)
        return self._known[base]

    def _remember(self, read: Earlier) -> None:
        self._known[read.seq] = read
        self._size += read.size
        while self._size > self._limit and len(self._known) > 1:
            _, gone = self._known.popitem(last=False)
            self._size -= gone.size


def _damaged(seq: Any, base: Any) -> StoreError:
    return StoreError(
        f"call {seq} refers to call {base}, which is not there",
        hint="it was deleted meanwhile, or the store is damaged",
    )
