"""The turn that a prompt goes on from, against looking at every turn there is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lgov_core.transitions.tokens.prefixes import PrefixIndex

TOKENS = st.lists(st.integers(0, 1), max_size=4).map(tuple)
REPLY = st.lists(st.integers(0, 1), min_size=1, max_size=2).map(tuple)


@given(st.lists(st.tuples(TOKENS, st.none() | REPLY), max_size=12))
def test_the_longest_turn_is_taken_and_of_equal_ones_the_latest(
    steps: list[tuple[tuple[int, ...], tuple[int, ...] | None]],
) -> None:
    """A step with a reply is a turn that is added, one without is a prompt that is looked up."""
    ends = PrefixIndex()
    there: dict[int, tuple[int, ...]] = {}
    for number, (prompt, reply) in enumerate(steps):
        if reply is not None:
            ends.add(prompt, reply, number)
            there[number] = prompt + reply
            continue
        fits = [(len(turn), at) for at, turn in there.items() if prompt[: len(turn)] == turn]
        expected = max(fits)[1] if fits else None
        assert ends.take(prompt) == expected
        if expected is not None:
            del there[expected]
