"""A call is stored without what it repeats of an earlier call of its attempt, and read back whole.

An agent sends its whole conversation with every call: the prompt mostly begins with the prompt and the response of the call
before it, the messages with the messages of that one, and the tools are the same. The invariant: every row of ``calls`` is
either whole (``base`` NULL), or ``base`` is the ``seq`` of an earlier call of the same attempt, and the row and that call,
read whole, give back exactly what was written. An attempt is deleted only as a whole, and no ``seq`` is used twice.

For example, token ids and messages of two calls::

    seq 1  prompt  [5 6 7]        response [8]   messages [a]          stored as they are
    seq 2  prompt  [5 6 7 8 9]    response [4]   messages [a, b, c]    base 1, prompt_shared 4, prompt_rest [9],
                                                                       request_repeats {"messages": [2, 1]}: ``[a`` and ``]``

`Fold` says how much of an earlier call a call repeats, `FoldIndex` finds the earlier call of which it repeats most,
`FoldingWriter` writes, `Unfolding` reads.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from lgov_core._util.containers import PrefixIndex, common_prefix
from lgov_core.errors import AttemptEnded, StoreError
from lgov_core.store import rows
from lgov_core.store.database import Transaction
from lgov_core.store.rows import object_text
from lgov_core.types import CapturedCall

#: Whose calls may refer to each other: a rollout and the number of an attempt.
AttemptKey: TypeAlias = "tuple[str, int | None]"

#: Bytes of a token id.
TOKEN: Final = 4
#: The least that must be repeated for a reference to be worthwhile, in bytes.
_WORTH: Final = 64
#: The most ends of conversations that are remembered of one attempt.
_ENDS_OF_AN_ATTEMPT: Final = 256


@dataclass(frozen=True, slots=True)
class Earlier:
    """A call that others may refer to.

    ``tokens`` are the token ids of its prompt and, right after them, of its response (little-endian int32; empty when
    they are not known); ``request`` has the JSON text (ASCII) of each value in its body, by name.
    """

    seq: int
    tokens: bytes
    request: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.tokens) + sum(map(len, self.request.values()))


@dataclass(frozen=True, slots=True)
class Fold:
    """The parts that a call has in common with the call ``base``, which is its ``seq``; None: nothing.

    Its prompt begins with the first ``prompt_shared`` tokens of that call's prompt and response. The values of its request
    that ``request`` names begin, as JSON texts, with ``head`` characters of that call's value of the name, and end
    with its last ``tail``: (head, tail).
    """

    base: int | None = None
    prompt_shared: int = 0
    request: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    @property
    def saved(self) -> int:
        """How many bytes need not be stored."""
        return self.prompt_shared * TOKEN + sum(head + tail for head, tail in self.request.values())

    def rest_of_prompt(self, prompt: bytes | None) -> bytes | None:
        """Returns the token ids of a prompt that still have to be stored."""
        return prompt if prompt is None else prompt[self.prompt_shared * TOKEN :]

    def rest_of_request(self, values: Mapping[str, str]) -> str:
        """Returns what still has to be stored of a request, as JSON text: of a folded value, a string with what is new."""
        texts = dict(values)
        for name, (head, tail) in self.request.items():
            texts[name] = json.dumps(values[name][head : len(values[name]) - tail])
        return object_text(texts)

    def as_row(self) -> tuple[int | None, int, str | None]:
        """``base, prompt_shared, request_repeats``, as `rows.FOLDED_COLUMNS` has them."""
        return self.base, self.prompt_shared, json.dumps(self.request) if self.request else None


#: Nothing in common with any call.
WHOLE: Final = Fold()


def fold(earlier: Earlier, prompt: bytes | None, request: Mapping[str, str]) -> Fold:
    """Compares a call with this prompt (token ids) and this request, as in `Earlier`, with ``earlier``."""
    shared = 0 if prompt is None else common_prefix(prompt, earlier.tokens) // TOKEN
    repeats: dict[str, tuple[int, int]] = {}
    for name, text in request.items():
        before = earlier.request.get(name, "")
        if min(len(text), len(before)) < _WORTH:
            continue
        head = common_prefix(text, before)
        tail = min(common_prefix(text[::-1], before[::-1]), min(len(text), len(before)) - head)
        if head + tail >= _WORTH:
            repeats[name] = head, tail
    return Fold(earlier.seq, shared, repeats)


@dataclass(slots=True)
class _Ends:
    """The ends of the conversations of one attempt, in the order of use, and by their beginnings."""

    newest: int = 0
    of: OrderedDict[int, Earlier] = field(default_factory=OrderedDict[int, Earlier])
    by_tokens: PrefixIndex[bytes] = field(default_factory=PrefixIndex[bytes])
    by_request: PrefixIndex[str] = field(default_factory=PrefixIndex[str])

    def similar(self, prompt: bytes | None, request: Mapping[str, str]) -> Iterable[Earlier]:
        neighbours = {*self.by_request.neighbours(_conversation(request)[1])}
        if prompt is not None:
            neighbours |= {*self.by_tokens.neighbours(prompt)}
        return (self.of[seq] for seq in sorted(neighbours))

    def add(self, end: Earlier) -> None:
        self.of[end.seq] = end
        self.by_tokens.add(end.tokens, end.seq)
        self.by_request.add(_conversation(end.request)[1], end.seq)
        self.newest = max(self.newest, end.seq)

    def remove(self, end: Earlier) -> None:
        del self.of[end.seq]
        self.by_tokens.remove(end.tokens, end.seq)
        self.by_request.remove(_conversation(end.request)[1], end.seq)


def _conversation(request: Mapping[str, str]) -> tuple[str, str]:
    """The name and the text of what grows from call to call, in each of the APIs."""
    return next(((name, request[name]) for name in ("messages", "input", "prompt") if name in request), ("", ""))


class FoldIndex:
    """Finds, for a call that is about to be written, the earlier call of its attempt that it repeats most of.

    However many agents take turns in one attempt, each finds its own conversation. What is known takes at most
    ``limit_bytes``, the attempt in use excepted: the attempts that were used longest ago are forgotten, and in an attempt
    all but the 256 ends of conversations used last. What is not known is only stored whole. For one thread.
    """

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self._limit = limit_bytes
        self._attempts: OrderedDict[AttemptKey, _Ends] = OrderedDict()
        self.size = 0

    def newest(self, key: AttemptKey) -> int | None:
        """The greatest ``seq`` among the calls of an attempt that were added; None when nothing is known of it."""
        ends = self._attempts.get(key)
        return None if ends is None else ends.newest

    def find(self, key: AttemptKey, prompt: bytes | None, request: Mapping[str, str]) -> Fold:
        """Finds the earlier call of an attempt that a call repeats most of; `WHOLE` if that is not worth it."""
        ends = self._attempts.get(key)
        if ends is None:
            return WHOLE
        best = max(
            (fold(end, prompt, request) for end in ends.similar(prompt, request)),
            key=lambda fold_: fold_.saved,
            default=WHOLE,
        )
        if best.base is None or best.saved < _WORTH:
            return WHOLE
        ends.of.move_to_end(best.base)
        return best

    def add(self, key: AttemptKey, call: Earlier, repeats: Fold = WHOLE) -> None:
        """Adds a call that was written; ``repeats`` is what `find` returned for it.

        An earlier call of which it repeats everything is known through it from now on.
        """
        ends = self._attempts.setdefault(key, _Ends())
        self._attempts.move_to_end(key)
        before = None if repeats.base is None else ends.of.get(repeats.base)
        if before is not None:
            name, text = _conversation(before.request)
            all_tokens = repeats.prompt_shared * TOKEN == len(before.tokens)
            if all_tokens and sum(repeats.request.get(name, ())) == len(text):
                self._remove(ends, before)
        ends.add(call)
        self.size += call.size
        if len(ends.of) > _ENDS_OF_AN_ATTEMPT:
            self._remove(ends, next(iter(ends.of.values())))
        while self.size > self._limit and len(self._attempts) > 1:
            self.forget(next(iter(self._attempts)))

    def forget(self, key: AttemptKey) -> None:
        """Forgets an attempt."""
        ends = self._attempts.pop(key, None)
        if ends is not None:
            self.size -= sum(end.size for end in ends.of.values())

    def clear(self) -> None:
        """Forgets everything: what was added may not have been written after all."""
        self._attempts.clear()
        self.size = 0

    def _remove(self, ends: _Ends, end: Earlier) -> None:
        ends.remove(end)
        self.size -= end.size


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
        prompt, texts, request = self._unfold(folded)
        values = list(folded[1:-3])
        values[rows.RESPONSE_IDS] = rows.numbers("i", values[rows.RESPONSE_IDS])
        values[rows.PROMPT] = rows.numbers("i", prompt)
        values[rows.REQUEST] = {
            name: request[name] if name in request else json.loads(text) for name, text in texts.items()
        }
        return tuple(values)

    def _unfold(self, folded: rows.Row) -> tuple[bytes | None, dict[str, str], dict[str, Any]]:
        """The prompt and the JSON texts of a call, which is remembered, and the values of those that were not folded.

        Parsing the others takes longer than all the rest, and who follows a chain needs only the texts.
        """
        seq, *values, base, shared, repeats = folded
        response, prompt = values[rows.RESPONSE_IDS], values[rows.PROMPT]
        texts, request = rows.object_values(values[rows.REQUEST])
        if base is not None:
            if base >= seq:
                raise _damaged(seq, base)
            before = self._base(seq, base)
            if len(before.tokens) < shared * TOKEN:
                raise _damaged(seq, base)
            if prompt is not None:
                prompt = before.tokens[: shared * TOKEN] + prompt
            for name, (head, tail) in json.loads(repeats or "{}").items():
                text, new = before.request.get(name, ""), request.pop(name, None)
                if len(text) < head + tail or not isinstance(new, str):
                    raise _damaged(seq, base)
                texts[name] = text[:head] + new + text[len(text) - tail :]
        self._remember(Earlier(seq, (prompt or b"") + (response or b""), texts))
        return prompt, texts, request

    def earlier(self, seq: int) -> Earlier:
        """A call as others may refer to it."""
        return self._base(seq, seq)

    def _base(self, seq: int, base: int) -> Earlier:
        if base not in self._known:
            for row in self._chain(base):
                if row[0] not in self._known:
                    self._unfold(row)
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


#: What `Unfolding` reads.
FOLDED_ROW: Final = f"seq, {rows.FOLDED_COLUMNS}"
#: A call and all that it refers to. UNION, not UNION ALL: the references of a damaged store may form a cycle.
CHAIN: Final = (
    "WITH RECURSIVE chain (seq, base) AS (SELECT seq, base FROM calls WHERE seq = ?"
    " UNION SELECT calls.seq, calls.base FROM calls JOIN chain ON calls.seq = chain.base)"
    f" SELECT {FOLDED_ROW} FROM calls WHERE seq IN (SELECT seq FROM chain) ORDER BY seq"
)
#: The newest call of an attempt, and when that ended.
_NEWEST: Final = (
    "SELECT (SELECT max(seq) FROM calls WHERE rollout_id = ? AND attempt = ?),"
    " (SELECT ended_at FROM attempts WHERE rollout_id = ? AND attempt = ?)"
)
_EXISTS: Final = "SELECT 1 FROM calls WHERE seq = ?"
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
        """Writes a row of ``CALL_COLUMNS``; ``request`` has the JSON text of each value of its request.

        Raises `AttemptEnded` for a call of an attempt that has ended, in whatever process: before it is what was committed
        before, whatever clocks say.
        """
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
        ((newest, ended_at),) = transaction.execute(_NEWEST, (*key, *key))
        if ended_at is not None:
            raise AttemptEnded(*key)
        if newest is None:
            self._index.forget(key)
            return WHOLE
        newest_known = self._index.newest(key)
        if newest_known != newest:  # others wrote, or deleted the attempt: its newest call is gone then
            if newest_known is not None and not transaction.execute(_EXISTS, (newest_known,)):
                self._index.forget(key)
                newest_known = None
            self._learn(transaction, key, newest_known or 0)
        return self._index.find(key, prompt, request)

    def _learn(self, transaction: Transaction, key: AttemptKey, after: int) -> None:
        """Adds the calls that others wrote to the attempt."""
        unfolding = Unfolding(lambda seq: transaction.execute(CHAIN, (seq,)))
        try:
            for (seq,) in reversed(transaction.execute(_ENDS, (*key, after, *key))):
                self._index.add(key, unfolding.earlier(seq))
        except StoreError:  # a damaged call must not keep this one from being written
            self._index.forget(key)
