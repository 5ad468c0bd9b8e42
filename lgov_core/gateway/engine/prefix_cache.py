"""Keys and values of token sequences for prompts that begin with the same tokens: a radix tree, bounded in memory.

The turns of a rollout, the rollouts of a task and the calls of one agent share prefixes. Each prefix is kept once, as a
path of segments; a new prompt takes the longest path that it begins with (RadixAttention: Zheng et al. 2024, arXiv
2312.07104, section 3). Imports torch; import it only where it is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import groupby

from lgov_core.gateway.engine.kv_cache import Piece

Ids = tuple[int, ...]


class _Segment:
    """Some tokens after those of the parent, with their keys and values."""

    __slots__ = ("children", "ids", "parent", "pieces", "size")

    def __init__(self, parent: _Segment | None, ids: Ids, pieces: Sequence[Piece]) -> None:
        self.parent = parent
        self.ids = ids
        self.pieces = pieces
        self.children: dict[int, _Segment] = {}
        self.size = sum(part.numel() * part.element_size() for piece in pieces for part in piece)


class PrefixCache:
    """Keys and values by policy and tokens. For one thread.

    ``limit`` is in bytes. `put` may exceed it; `trim` then drops the least recently used segments, ends of sequences
    before their beginnings.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._roots: dict[str, _Segment] = {}
        #: Least recently used first; a segment is always more recent than those below it.
        self._by_age: OrderedDict[_Segment, str] = OrderedDict()
        self.size = 0

    def longest(self, policy: str, ids: Ids) -> tuple[int, list[tuple[_Segment, int]]]:
        """How many tokens at the beginning of ``ids`` are kept, and the segments that hold them, each with how many."""
        found: list[tuple[_Segment, int]] = []
        node = self._roots.get(policy)
        length = 0
        while node is not None and length < len(ids):
            node = node.children.get(ids[length])
            if node is None:
                break
            taken = common_length(node.ids, ids[length : length + len(node.ids)])
            found.append((node, taken))
            length += taken
            if taken < len(node.ids):
                break
        for segment, _ in reversed(found):
            self._by_age.move_to_end(segment)
        return length, found

    def put(self, policy: str, ids: Ids, pieces: Callable[[int], Sequence[Piece]]) -> None:
        """Adds ``ids``. ``pieces(start)`` returns the keys and values of the tokens from ``start``, if they are needed."""
        length, found = self.longest(policy, ids)
        if length == len(ids):
            return
        above = found[-1][0] if found else self._roots.setdefault(policy, _Segment(None, (), ()))
        if found and found[-1][1] < len(above.ids):
            above = self._split(policy, above, found[-1][1])
        self._add(policy, _Segment(above, ids[length:], pieces(length)))
        while above.parent is not None:
            self._by_age.move_to_end(above)
            above = above.parent

    def trim(self) -> None:
        """Drops least recently used segments until the limit holds."""
        while self.size > self._limit and self._by_age:
            oldest = next(iter(self._by_age))
            assert not oldest.children, "what is below a segment is older"
            assert oldest.parent is not None, "a root has no age"
            del oldest.parent.children[oldest.ids[0]]
            self._forget(oldest)

    def forget(self, policy: str | None = None) -> None:
        """Drops everything, or everything of one policy."""
        if policy is None:
            self._roots.clear()
            self._by_age.clear()
            self.size = 0
            return
        self._roots.pop(policy, None)
        for segment, owner in list(self._by_age.items()):
            if owner == policy:
                self._forget(segment)

    def _split(self, policy: str, segment: _Segment, at: int) -> _Segment:
        """Cuts a segment in two; returns the first. Both get memory of their own, so that each can be dropped."""
        parent = segment.parent
        assert parent is not None, "the root has no tokens"
        halves = [
            [(keys[:, part].clone(), values[:, part].clone()) for keys, values in segment.pieces]
            for part in (slice(0, at), slice(at, None))
        ]
        front = _Segment(parent, segment.ids[:at], halves[0])
        back = _Segment(front, segment.ids[at:], halves[1])
        back.children = segment.children
        for child in back.children.values():
            child.parent = back
        self._forget(segment)
        self._add(policy, back)
        self._add(policy, front)
        return front

    def _add(self, policy: str, segment: _Segment) -> None:
        assert segment.parent is not None, "a root is not added"
        segment.parent.children[segment.ids[0]] = segment
        self._by_age[segment] = policy
        self.size += segment.size

    def _forget(self, segment: _Segment) -> None:
        del self._by_age[segment]
        self.size -= segment.size


def common_length(left: Ids, right: Ids) -> int:
    """The number of equal tokens at the beginning of both."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def shared_prefixes(prompts: Sequence[Ids], worth: int) -> list[list[Ids]]:
    """Prefixes that several prompts share and that should be read once, by how many other ones they extend.

    One is listed when reading it once instead of for every prompt saves at least ``worth`` tokens.
    """
    levels: dict[int, list[Ids]] = {}

    def search(group: Sequence[Ids], floor: int, level: int) -> None:
        depth = common_length(group[0], group[-1])  # sorted: what the first and the last share, all share
        if (depth - floor) * (len(group) - 1) >= worth:
            levels.setdefault(level, []).append(group[0][:depth])
            floor, level = depth, level + 1
        for _, part in groupby((ids for ids in group if len(ids) > depth), key=lambda ids: ids[depth]):
            several = list(part)
            if len(several) > 1:
                search(several, floor, level)

    if len(prompts) > 1:
        search(sorted(prompts), 0, 0)
    return [levels[level] for level in sorted(levels)]
