"""A trie of tokens: what the calls of a group have in common is in it once. Pure structure, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lgov_core._util.prefixes import common_prefix
from lgov_core.transitions.transition_set import Transition


@dataclass(frozen=True, slots=True)
class Served:
    """A node's tokens are those at ``start`` to ``stop`` (without) of sequence number ``index``.

    The sequence of a transition is its prompt and reply.
    """

    index: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Node:
    """A run of tokens that no sequence parts from in the middle.

    ``parent`` is the number of the node above, -1 at a top; ``depth`` how many tokens are above the first of ``ids``
    (its position). ``serves`` names every sequence whose tokens lead through the whole node.
    """

    parent: int
    depth: int
    ids: tuple[int, ...]
    serves: tuple[Served, ...]


@dataclass(frozen=True, slots=True)
class TokenTree:
    """The trie over prompt and reply of ``transitions``.

    ``nodes`` are in depth-first order: a node is after its parent, and its descendants follow it directly, so
    that the tokens one after the other are a layout in which every ancestor comes before its descendants. ``total``
    tokens of all transitions are ``distinct`` tokens in the tree.
    """

    transitions: tuple[Transition, ...]
    nodes: tuple[Node, ...]

    @property
    def total(self) -> int:
        """Tokens of prompt and reply over all transitions."""
        return sum(len(one.prompt_ids) + len(one.response_ids) for one in self.transitions)

    @property
    def distinct(self) -> int:
        """Tokens in the tree: what a shared-prefix update computes."""
        return sum(len(node.ids) for node in self.nodes)

    def statistics(self) -> dict[str, float]:
        """``transitions``, ``nodes``, ``total``, ``distinct`` and how many times less (``saved_factor``)."""
        total, distinct = self.total, self.distinct
        return {
            "transitions": len(self.transitions),
            "nodes": len(self.nodes),
            "total": total,
            "distinct": distinct,
            "saved_factor": total / distinct if distinct else 1.0,
        }


def make_tree(transitions: Sequence[Transition]) -> TokenTree:
    """The trie of ``transitions``, in practice those of one group. Linear in their tokens, without recursion; pure."""
    return TokenTree(tuple(transitions), make_nodes([one.prompt_ids + one.response_ids for one in transitions]))


def make_nodes(sequences: Sequence[tuple[int, ...]]) -> tuple[Node, ...]:
    """The trie of token sequences, in depth-first order. What a node serves are numbers of ``sequences``. Pure."""
    tops: dict[int, _Run] = {}
    for index, ids in enumerate(sequences):
        _insert(tops, ids, index)
    nodes: list[Node] = []
    waiting = [(run, -1, 0) for run in reversed(tops.values())]
    while waiting:
        run, parent, depth = waiting.pop()
        stop = depth + len(run.ids)
        waiting.extend((below, len(nodes), stop) for below in reversed(run.below.values()))
        nodes.append(Node(parent, depth, run.ids, tuple(Served(index, depth, stop) for index in run.serves)))
    return tuple(nodes)


@dataclass(slots=True)
class _Run:
    """A node in the making: ``ids``, what follows by its first token, and which transitions lead through it."""

    ids: tuple[int, ...]
    below: dict[int, _Run]
    serves: list[int]


def _insert(below: dict[int, _Run], ids: tuple[int, ...], index: int) -> None:
    at = 0
    while at < len(ids):
        run = below.get(ids[at])
        if run is None:
            below[ids[at]] = _Run(ids[at:], {}, [index])
            return
        common = common_prefix(run.ids, ids[at : at + len(run.ids)])
        if common < len(run.ids):
            # The new sequence parts from the run, or ends in it: what comes after is a node of its own.
            rest = _Run(run.ids[common:], run.below, list(run.serves))
            run.ids, run.below = run.ids[:common], {rest.ids[0]: rest}
        run.serves.append(index)
        below, at = run.below, at + common
