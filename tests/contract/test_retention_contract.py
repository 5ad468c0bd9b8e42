"""What every store deletes, and what it leaves alone."""

from __future__ import annotations

import pytest

from lgov_core.errors import StoreError
from lgov_core.store import Pruned, RolloutConfig, RolloutQueue, RolloutState, rollout_queue
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span
from tests.contract.backends import Place


def add(store: RolloutQueue, rollout_id: str | None, at: float, *, run: str | None = "run1", turns: int = 2) -> None:
    """A rollout that was last heard of at ``at``; announced only when it has a run."""
    if run is not None and rollout_id is not None:
        store.add_rollouts([Rollout(rollout_id, "t1", run, {}, at - 10)])
    tokens: tuple[int, ...] = tuple(range(100))
    for turn in range(turns):
        store.add_call(
            CapturedCall(
                f"{rollout_id}-{at}-{turn}", "m", {"messages": ["x" * 100] * turn}, {}, tokens, (turn,), None, "stop", 0,
                1.0, 1.0, at - 5, at - 1, rollout_id, 1,
            )
        )  # fmt: skip
        tokens = (*tokens, turn, 7)
    store.add_rewards([Reward(1.0, rollout_id=rollout_id, response_id=f"{rollout_id}-{at}-0")])
    store.add_spans([Span("x", f"s-{rollout_id}-{at}", at - 2, at, {}, rollout_id)])


def left(store: RolloutQueue) -> set[str | None]:
    calls, spans = {c.rollout_id for c in store.calls()}, {s.rollout_id for s in store.spans()}
    assert calls == spans == {r.rollout_id for r in store.rewards()}
    assert {r.rollout_id for r in store.rollouts()} <= calls
    return calls


def test_nothing_is_deleted_unless_something_says_what(store: RolloutQueue) -> None:
    with pytest.raises(StoreError, match="what to delete"):
        store.prune()
    for wrong in ({"keep_last": -1}, {"before": float("nan")}):
        with pytest.raises(StoreError):
            store.prune(**wrong)  # type: ignore[arg-type]


def test_what_holds_a_text_is_erased(store: RolloutQueue, reopen: Place) -> None:
    for rollout_id in ("a", "b", "c", "waits", None):
        add(store, rollout_id, 1000.0, run=None if rollout_id == "waits" else "run1")
    said = {"messages": [{"content": "write to Ann@example.org"}]}
    for rollout_id, request in (("a", said), (None, said), ("b", {"messages": []})):
        store.add_call(
            CapturedCall(
                f"more-{rollout_id}", "m", request, {}, None, None, None, "stop", 0, 1.0, 1.0, 1, 2, rollout_id, 1
            )
        )
    store.add_spans(
        [Span("tool", "s1", 1.0, 2.0, {"to": "ann@example.org"}, "c"), Span("ann@example.org", "s2", 1.0, 2.0, {})]
    )
    store.enqueue([Rollout("waits", "t1", "run1", {"to": "ann@example.org"}, 1.0)])

    def holds(value: object) -> bool:
        return "ann@example.org" in str(value).casefold()

    expected = Pruned(rollouts=2, attempts=0, calls=6, rewards=2, spans=4, spared=("waits",))
    assert store.erase(holds, dry_run=True) == expected
    assert left(store) == {"a", "b", "c", "waits", None}
    assert store.erase(holds) == expected
    assert left(store) == {"b", "waits", None}
    assert {call.response_id for call in store.calls() if call.rollout_id is None} == {"None-1000.0-0", "None-1000.0-1"}
    assert store.erase(holds) == Pruned(spared=("waits",))
    again = reopen()
    assert left(again) == {"b", "waits", None}
    again.close()


def test_by_age(store: RolloutQueue, reopen: Place) -> None:
    for rollout_id, at in (("a", 1000.0), ("b", 2000.0), ("unannounced", 1500.0), (None, 1200.0), (None, 2200.0)):
        add(store, rollout_id, at, run=None if rollout_id == "unannounced" else "run1")
    assert store.prune(before=999.0) == Pruned()
    expected = Pruned(rollouts=2, attempts=0, calls=6, rewards=3, spans=3)
    assert store.prune(before=1600.0, dry_run=True) == expected
    assert left(store) == {"a", "b", "unannounced", None}
    assert store.prune(before=1600.0) == expected
    assert left(store) == {"b", None}
    assert [c.response_id for c in store.calls() if c.rollout_id is None] == ["None-2200.0-0", "None-2200.0-1"]
    assert [c.prompt_ids for c in store.calls(["b"])] == [tuple(range(100)), (*range(100), 0, 7)]
    # What was deleted may come back, as something else.
    store.add_call(
        CapturedCall("a-1000.0-0", "m", {}, {}, tuple(range(50, 200)), None, None, "stop", 0, 1, 1, 1, 2, "a", 1)
    )
    again = reopen()
    assert [c.prompt_ids for c in again.calls(["a"])] == [tuple(range(50, 200))]
    again.close()


def test_by_run_and_by_number(store: RolloutQueue) -> None:
    for i in range(6):
        add(store, f"r{i}", 1000.0 + i, run="odd" if i % 2 else "even", turns=1)
    add(store, "unannounced", 500.0, run=None, turns=1)
    add(store, None, 400.0, turns=1)
    assert store.prune(run_id="nobody") == Pruned()
    assert store.prune(run_id="odd", keep_last=1).rollouts == 2
    assert left(store) == {"r0", "r2", "r4", "r5", "unannounced", None}
    assert store.prune(run_id="even", before=1002.0).rollouts == 1
    assert store.prune(keep_last=2).rollouts == 2
    assert left(store) == {"r4", "r5", None}
    assert store.prune(keep_last=1, before=1004.5) == Pruned(1, 0, 2, 2, 2)
    assert left(store) == {"r5"}
    assert store.prune(rollout_ids={"r4", "nobody"}) == Pruned()
    assert store.prune(rollout_ids={"r5"}, run_id="odd").rollouts == 1
    assert left(store) == set()


def test_what_is_not_over_is_spared(store: RolloutQueue) -> None:
    for rollout_id in ("open", "over"):
        add(store, rollout_id, 100.0)
        store.start_attempt(rollout_id, 1)
    store.finish_attempt("over", 1, Outcome.SUCCEEDED)
    names = ("waits", "runs", "again", "done")
    store.enqueue([Rollout(one, "t", "run1", {}, 100.0) for one in names], RolloutConfig(max_attempts=2))
    store.cancel("done", "x")
    store.claim("w", 2, lease_s=3600.0, run_id="run1")
    assert {e.rollout_id for e in store.queue_entries(states=[RolloutState.RUNNING])} == {"waits", "runs"}
    store.finish_attempt("waits", 1, Outcome.INFRASTRUCTURE)
    pruned = store.prune(run_id="run1")
    assert (pruned.rollouts, pruned.spared, pruned.attempts) == (2, ("again", "open", "runs", "waits"), 1)
    assert {r.rollout_id for r in store.rollouts()} == {"open", "waits", "runs", "again"}
    assert {e.rollout_id for e in store.queue_entries()} == {"waits", "runs", "again"}
    assert store.finish_attempt("runs", 1, Outcome.SUCCEEDED).outcome is Outcome.SUCCEEDED


def test_a_run_that_was_killed_is_over_some_time_after_its_last_write(
    store: RolloutQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, "killed", 100.0)
    store.start_attempt("killed", 1)
    store.enqueue([Rollout("held", "t", "run1", {}, 100.0)], RolloutConfig())
    store.claim("w", 1, lease_s=3600.0, run_id="run1")
    everything = {"killed", "held"}
    assert store.prune(rollout_ids=everything).spared == ("held", "killed")
    monkeypatch.setattr(rollout_queue, "SILENT_S", -1.0)
    assert store.prune(rollout_ids=everything).spared == ("held",), "a worker holds it"
    assert {rollout.rollout_id for rollout in store.rollouts()} == {"held"}


def test_a_reader_of_endings_sees_no_ending_twice_after_older_ones_were_deleted(store: RolloutQueue) -> None:
    store.enqueue([Rollout(f"r{i}", "t", "run1", {}, 100.0) for i in range(4)])
    for i in range(2):
        store.cancel(f"r{i}", "x")
    page = store.ended_since()
    assert store.prune(run_id="run1").rollouts == 2
    store.cancel("r2", "x")
    after = store.ended_since(page.cursor)
    assert [e.rollout_id for e in after.entries] == ["r2"]
    assert [e.rollout_id for e in store.ended_since().entries] == ["r2"]


def test_many_are_deleted_in_portions(store: RolloutQueue) -> None:
    store.add_rollouts([Rollout(f"r{i:03}", "t", "run1", {}, float(i)) for i in range(250)])
    assert store.prune(keep_last=5).rollouts == 245
    assert [r.rollout_id for r in store.rollouts()] == [f"r{i}" for i in range(245, 250)]


def test_statistics(store: RolloutQueue) -> None:
    empty = store.statistics()
    assert (empty.rollouts, empty.named_only, empty.oldest, empty.newest, dict(empty.queue)) == (0, 0, None, None, {})
    add(store, "a", 1000.0)
    add(store, "b", 2000.0, run=None)
    add(store, None, 3000.0)
    store.start_attempt("a", 1)
    store.enqueue([Rollout("q", "t", "run1", {}, 1500.0)])
    found = store.statistics()
    assert (found.rollouts, found.named_only, found.attempts, found.open_attempts) == (2, 1, 1, 1)
    assert (found.calls, found.rewards, found.spans) == (6, 3, 3)
    assert dict(found.queue) == {RolloutState.QUEUED: 1}
    assert found.oldest == 1500.0  # the attempt of a was only just begun
    assert found.newest == store.attempts()[0].started_at
    assert found.size_bytes >= 0


def test_vacuum_changes_nothing_that_is_read(store: RolloutQueue, reopen: Place) -> None:
    for i in range(30):
        add(store, f"r{i}", 1000.0 + i)
    store.prune(keep_last=3)
    before = [list(store.calls()), store.spans(), store.rewards(), store.rollouts()]
    store.vacuum()
    assert [list(store.calls()), store.spans(), store.rewards(), store.rollouts()] == before
    add(store, "late", 2000.0)
    again = reopen()
    assert len(list(again.calls())) == 8
    again.close()


def test_attempts_that_nobody_opened(store: RolloutQueue) -> None:
    assert store.unopened_attempts() == []
    add(store, "announced", 1000.0)
    store.start_attempt("announced", 1)
    add(store, "by-calls", 900.0, run=None)
    add(store, None, 800.0, run=None)
    store.add_spans([Span("x", "s1", 50.0, 60.0, {}, "by-spans", 2), Span("x", "s2", 40.0, None, {}, "by-spans", 2)])
    store.add_spans([Span("x", "s3", 70.0, 80.0, {}, "announced", 2), Span("x", "s4", 70.0, 80.0, {}, "announced", 1)])
    found = [(one.rollout_id, one.attempt, one.started_at, one.outcome) for one in store.unopened_attempts()]
    assert found == [("by-spans", 2, 40.0, None), ("announced", 2, 70.0, None), ("by-calls", 1, 895.0, None)]
