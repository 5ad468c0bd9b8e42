"""Reads requests for a governor that only watches: of a transcript that goes on, only what is new.

A program sends its whole transcript with each request. Where a request begins, byte for byte, as one before it, what stands
there is known already: only the entries behind it are read, written down for the span and taken into the digest. Nobody
changes what is known, because nobody who judges gets it; so all requests that begin alike share it.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, cast

from lgov_core.instrumentation import json_text
from lgov_core.scope import current_scope
from lgov_openai.prefixes import Prefixes, digest_before, go_on
from lgov_openai.protocol import JSON, Entry, Wire

#: How many conversations are remembered of one rollout, and how many bytes of requests altogether.
MAX_CONVERSATIONS, MAX_BYTES = 16, 4_000_000

_DECODER = json.JSONDecoder()
_EMPTY = digest_before(None)
_EMPTY_DIGEST = _EMPTY.hexdigest()


@dataclass(slots=True, eq=False)
class Request:
    """What a program sends: ``body``, its transcript, and that transcript as a span shows it (None: it is not to).

    ``reply`` is the model's message, once it has come, and ``reply_shown`` a list of it as spans show it: as a rule the
    next request goes on with it, and what was read off it need not be again.
    """

    body: JSON
    entries: Sequence[JSON]
    shown: str | None
    prefixes: Prefixes
    reply: JSON | None = field(default=None, init=False)
    reply_shown: str | None = field(default=None, init=False)


@dataclass(slots=True, eq=False)
class _Known(Request):
    """A request that others may go on with.

    ``text`` is what stands before the place of the next entry, ``head`` the fields before the transcript. ``digest`` is
    that of its entries, ``state`` what makes the next one of it. ``behind`` is what stood behind the transcript, and what
    that says.
    """

    text: bytes
    head: JSON
    state: blake2b
    digest: str
    behind: tuple[str, JSON]


class Requests:
    """Reads requests and remembers them. Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str | None, list[_Known]] = OrderedDict()
        self._bytes = 0
        #: What stood behind the last transcript, and what it says: tools and settings are often the same in all requests.
        self._behind: tuple[str, JSON] = "}", {}

    def read(self, wire: Wire, content: bytes, *, shown: bool) -> Request:
        """The request. Raises ValueError, or what comes of reading something that is none."""
        if wire.opening:
            scope = current_scope()
            rollout = scope.rollout_id if scope is not None else None
            before = self._begins(rollout, content)
            try:
                found = _read_on(wire, content, before or _opened(wire, content, self._behind), shown)
            except Exception:  # noqa: BLE001 - whatever it is, all of it is read then, and says itself what is wrong
                found = None
            if found is not None:
                self._remember(rollout, before, found)
                return found
        return _read_whole(wire, content, shown)

    def _begins(self, rollout: str | None, content: bytes) -> _Known | None:
        with self._lock:
            for known in reversed(self._known.get(rollout, ())):
                if content.startswith(known.text):
                    return known
        return None

    def _remember(self, rollout: str | None, before: _Known | None, known: _Known) -> None:
        with self._lock:
            self._behind = known.behind
            several = self._known.setdefault(rollout, [])
            self._known.move_to_end(rollout)
            if before in several:
                several.remove(before)
                self._bytes -= len(before.text)
            elif len(several) == MAX_CONVERSATIONS:
                self._bytes -= len(several.pop(0).text)
            several.append(known)
            self._bytes += len(known.text)
            while self._bytes > MAX_BYTES:
                self._bytes -= sum(len(one.text) for one in self._known.popitem(last=False)[1])


def _opened(wire: Wire, content: bytes, behind: tuple[str, JSON]) -> _Known:
    """The request up to its transcript; ``behind`` is what may stand behind it.

    Raises ValueError if it is not written as the openai client writes it.
    """
    head, opening, _ = content.partition(wire.opening)
    fields: JSON = {}
    if head != b"{":
        fields = json.loads(head[:-1] + b"}") if head.endswith(b",") else {}  # within anything else this cannot be read
        if not fields or wire.transcript in fields:
            raise ValueError("no whole fields before the transcript, or another one among them")
    prefixes = Prefixes(wire, (), None)
    return _Known({}, (), "[]", prefixes, head + opening, fields, _EMPTY, _EMPTY_DIGEST, behind)


def _read_on(wire: Wire, content: bytes, before: _Known, shown: bool) -> _Known | None:
    """The request that begins with ``before``; None if it is not written as the openai client writes it."""
    rest = content[len(before.text) :].decode()
    read, end = _DECODER.raw_decode(f"[{rest}")  # the bracket is part of ``before``
    tail = rest[end - 1 :]
    behind = before.behind if tail == before.behind[0] else _behind(tail)
    if not read or behind is None or wire.transcript in behind[1]:
        return None
    reply = before.reply
    new = [reply if reply is not None and entry == reply else Entry(entry) for entry in read]
    entries = [*before.entries, *new]
    state = before.state.copy()
    go_on(state, wire, new)
    digest = state.hexdigest()
    text = None
    if shown and before.shown is not None:
        if new[0] is reply and before.reply_shown is not None:
            text = _one_list(before.reply_shown, _shown(wire, new[1:]))
        else:
            text = _shown(wire, new)
        text = _one_list(before.shown, text)
    prefixes = Prefixes(wire, entries, None, {len(before.entries): before.digest, len(entries): digest})
    body = {**before.head, wire.transcript: entries, **behind[1]}
    written = content[: len(content) - len(tail.encode()) - 1] + b","
    return _Known(body, entries, text, prefixes, written, before.head, state, digest, behind)


def _behind(tail: str) -> tuple[str, JSON] | None:
    """What stands behind the transcript of a request, and what that says."""
    if tail == "}":
        return tail, {}
    return (tail, json.loads("{" + tail[1:])) if tail.startswith(',"') else None


def _read_whole(wire: Wire, content: bytes, shown: bool) -> Request:
    body: Any = json.loads(content)
    if not isinstance(body, dict):
        raise ValueError("a request is an object")
    entries = wire.entries(cast(JSON, body))
    text = _shown(wire, entries) if shown else None
    return Request(cast(JSON, body), entries, text, Prefixes(wire, entries, wire.parent(cast(JSON, body))))


def _shown(wire: Wire, entries: Sequence[JSON]) -> str | None:
    """The entries as spans show them; None where one cannot be understood: that is no reason not to send it."""
    try:
        return json_text([wire.mapping(entry) for entry in entries])
    except Exception:  # noqa: BLE001 - as said above
        return None


def _one_list(first: str, second: str | None) -> str | None:
    """Two lists as one, all of them written as spans show them; None where one cannot be understood."""
    if second is None or first == "[]":
        return second
    return first if second == "[]" else f"{first[:-1]}, {second[1:]}"
