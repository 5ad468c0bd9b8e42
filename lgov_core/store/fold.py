"""What a call repeats of an earlier call of its attempt, so that it need not be stored again.

An agent sends its whole conversation with every call. The prompt of one call mostly begins with the prompt and the response
of the one before it, its list of messages with the messages of that one, and the tools are the same. `Fold` says how much
of an earlier call is repeated; `FoldIndex` finds the earlier call of which the most is. Pure, for every back end; exact:
what is folded is read back unchanged (see `unfold`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from lgov_core._util.prefixes import PrefixIndex, common_prefix
from lgov_core.store.encoding import object_text

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
    """What a call has in common with the call ``base``, which is its ``seq``; None: nothing.

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
        """What is left to store of a prompt's token ids."""
        return prompt if prompt is None else prompt[self.prompt_shared * TOKEN :]

    def rest_of_request(self, values: Mapping[str, str]) -> str:
        """What is left to store of a request, as JSON text: of a value that is folded, a string with what is new."""
        return object_text({name: self._rest(name, text) for name, text in values.items()})

    def as_row(self) -> tuple[int | None, int, str | None]:
        """``base, prompt_shared, request_repeats``, as `rows.FOLDED_COLUMNS` has them."""
        return self.base, self.prompt_shared, json.dumps(self.request) if self.request else None

    def _rest(self, name: str, text: str) -> str:
        if name not in self.request:
            return text
        head, tail = self.request[name]
        return json.dumps(text[head : len(text) - tail])


#: Nothing in common with any call.
WHOLE: Final = Fold()


def fold(earlier: Earlier, prompt: bytes | None, request: Mapping[str, str]) -> Fold:
    """What a call with this prompt (token ids) and this request, as in `Earlier`, has in common with ``earlier``."""
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
        found = {*self.by_request.neighbours(_conversation(request)[1])}
        if prompt is not None:
            found |= {*self.by_tokens.neighbours(prompt)}
        return (self.of[seq] for seq in sorted(found))

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
        """What a call of an attempt repeats of the call that it repeats most of; `WHOLE` if that is not worth it."""
        ends = self._attempts.get(key)
        if ends is None:
            return WHOLE
        best = max(
            (fold(end, prompt, request) for end in ends.similar(prompt, request)),
            key=lambda one: one.saved,
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
        if before is not None and _all_of(before, repeats):
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


def _all_of(before: Earlier, repeats: Fold) -> bool:
    """Whether a call that repeats so much of ``before`` has all of its tokens and of its conversation."""
    name, text = _conversation(before.request)
    return repeats.prompt_shared * TOKEN == len(before.tokens) and sum(repeats.request.get(name, ())) == len(text)
