"""The index of sequences by their beginnings, compared with a search of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lgov_core._util.containers import PrefixIndex, common_prefix

TOKENS = st.lists(st.integers(0, 1), max_size=4).map(tuple)
REPLY = st.lists(st.integers(0, 1), min_size=1, max_size=2).map(tuple)


@given(st.lists(st.tuples(TOKENS, st.none() | REPLY), max_size=12))
def test_the_longest_beginning_is_taken_then_the_latest(
    steps: list[tuple[tuple[int, ...], tuple[int, ...] | None]],
) -> None:
    """A step with a reply is a turn that is added, one without is a prompt that is looked up."""
    ends: PrefixIndex[tuple[int, ...]] = PrefixIndex()
    there: dict[int, tuple[int, ...]] = {}
    for number, (prompt, reply) in enumerate(steps):
        if reply is not None:
            ends.add(prompt + reply, number)
            there[number] = prompt + reply
            continue
        fits = [(len(turn), at) for at, turn in there.items() if prompt[: len(turn)] == turn]
        expected = max(fits)[1] if fits else None
        assert ends.take_longest(prompt) == expected
        if expected is not None:
            del there[expected]


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_common_prefix(head: bytes, one: bytes, other: bytes) -> None:
    one, other = head + one, head + other
    found = common_prefix(one, other)
    assert one[:found] == other[:found]
    assert found == min(len(one), len(other)) or one[found] != other[found]


@given(st.lists(TOKENS, min_size=1, max_size=8), TOKENS)
def test_a_neighbour_has_the_longest_common_beginning(
    entries: list[tuple[int, ...]], sequence: tuple[int, ...]
) -> None:
    index: PrefixIndex[tuple[int, ...]] = PrefixIndex()
    for number, entry in enumerate(entries):
        index.add(entry, number)
    found = [common_prefix(entries[number], sequence) for number in index.neighbours(sequence)]
    assert max(found) == max(common_prefix(entry, sequence) for entry in entries)
