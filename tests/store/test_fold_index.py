"""What a call repeats of an earlier one, and the index that finds the earlier one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lgov_core.store import rows
from lgov_core.store.folding import WHOLE, Earlier, FoldIndex, fold


def test_no_more_is_remembered_than_was_allowed() -> None:
    index = FoldIndex(limit_bytes=10_000)
    for rollout in range(50):
        for turn in range(30):
            key = (f"r{rollout}", 1)
            tokens = rows.token_blob([rollout, turn] * 50)
            repeats = index.find(key, tokens, {})
            index.add(key, Earlier(rollout * 1000 + turn, tokens, {}), repeats)
            assert index.size <= 10_000 or index.newest((f"r{rollout - 1}", 1)) is None
    assert index.newest(("r0", 1)) is None
    assert index.newest(("r49", 1)) == 49_029
    index.clear()
    tokens = b""
    for turn in range(100):  # a conversation is remembered by its end
        tokens += rows.token_blob([turn] * 100)
        index.add(("long", 1), Earlier(turn, tokens, {}), index.find(("long", 1), tokens, {}))
    assert index.size == len(tokens)
    index.clear()
    for turn in range(1000):  # one attempt that never goes on from where it was
        index.add(("wild", 1), Earlier(turn, rows.token_blob([turn] * 10), {}))
    assert index.size == 256 * 40
    index.forget(("wild", 1))
    assert index.size == 0


def test_the_call_with_most_in_common_is_found() -> None:
    index = FoldIndex()
    key = ("r1", 1)
    assert index.find(key, b"\0" * 400, {}) == WHOLE
    for seq, length in ((1, 10), (2, 40), (3, 30)):
        index.add(key, Earlier(seq, rows.token_blob([*range(length), 999]), {}))
    found = index.find(key, rows.token_blob(range(100)), {})
    assert (found.base, found.prompt_shared) == (2, 40)
    assert index.find(key, rows.token_blob([5] * 50), {}) == WHOLE  # too little to be worth it


@given(st.text("ab", min_size=60, max_size=72), st.text("ab", min_size=60, max_size=72), st.text("ab", max_size=9))
def test_head_and_tail_never_overlap(one: str, other: str, both: str) -> None:
    one, other = both + one * 2, both + other + one
    found = fold(Earlier(1, b"", {"messages": other}), None, {"messages": one})
    head, tail = found.request.get("messages", (0, 0))
    rest = one[head : len(one) - tail]
    assert other[:head] + rest + other[len(other) - tail :] == one
    assert head + tail <= min(len(one), len(other))
