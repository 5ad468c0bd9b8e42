"""What every queue of rollouts does, whatever it is kept in; `backends` says in what. Time is given, never waited for."""

from __future__ import annotations

import threading
from itertools import pairwise, product

import pytest

from lgov_core.errors import StoreError
from lgov_core.store import STATE_MOVES, EndedRollouts, RolloutConfig, RolloutQueue, RolloutState
from lgov_core.store.rollout_states import require_move
from lgov_core.types import Outcome, Reward, Rollout
from tests.contract.backends import Place

S = RolloutState
#: An hour is more than any of these tests takes: what is leased for so long does not run out by itself.
HOUR = 3600.0


def rollouts(*ids: str, run: str = "run1") -> list[Rollout]:
    return [Rollout(rollout_id, "t1", run, {"q": rollout_id}, 1000.0) for rollout_id in ids]


def states(store: RolloutQueue) -> dict[str, RolloutState]:
    return {entry.rollout_id: entry.state for entry in store.queue_entries()}


def test_the_states_are_a_table_and_nothing_else_is_allowed() -> None:
    allowed = {(now, then) for now, after in STATE_MOVES.items() for then in after}
    assert set(STATE_MOVES) == set(S)
    for now, then in product(S, S):
        if (now, then) in allowed:
            require_move("r1", now, then)
        else:
            with pytest.raises(StoreError, match=f"r1 is {now} and cannot become {then}"):
                require_move("r1", now, then)
    assert {state for state in S if state.ended} == {S.SUCCEEDED, S.FAILED, S.CANCELLED}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"timeout_s": "10"},
        {"timeout_s": 0.0},
        {"unresponsive_s": -1.0},
        {"timeout_s": float("nan")},
        {"retry_delay_s": float("inf")},
        {"retry_on": frozenset({Outcome.SUCCEEDED})},
        {"retry_on": {"never"}},
        {"retry_on": None},
    ],
)
def test_a_configuration_without_meaning_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(StoreError):
        RolloutConfig(**changes)  # type: ignore[arg-type]


def test_delays_double_up_to_an_hour() -> None:
    config = RolloutConfig(max_attempts=99, retry_delay_s=10.0)
    assert [config.delay_after(attempt) for attempt in (1, 2, 3, 98)] == [10.0, 20.0, 40.0, 3600.0]
    assert RolloutConfig(retry_delay_s=7200.0).delay_after(5) == 7200.0


def test_first_come_first_served_and_everything_comes_back(store: RolloutQueue, reopen: Place) -> None:
    config = RolloutConfig(3, 60.0, 5.0, frozenset({Outcome.FAILED}), 1.5)
    store.enqueue(rollouts("a", "b"), config, now=100.0)
    store.enqueue(rollouts("c"), now=101.0)
    other = reopen()
    first = other.claim("w1", 2, lease_s=HOUR, now=102.0)
    assert [claim.rollout for claim in first] == rollouts("a", "b")
    assert [(c.attempt.rollout_id, c.attempt.attempt, c.attempt.started_at) for c in first] == [
        ("a", 1, 102.0),
        ("b", 1, 102.0),
    ]
    assert [claim.config for claim in first] == [config, config]
    assert first[0].lease_until == 107.0  # the worker asked for an hour, the configuration grants five seconds
    assert first[0].deadline == 162.0
    (third,) = store.claim("w2", 5, lease_s=HOUR, now=103.0)
    assert (third.rollout.rollout_id, third.lease_until, third.deadline) == ("c", 103.0 + HOUR, None)
    assert third.config == RolloutConfig()
    assert store.claim("w2", 5, lease_s=HOUR, now=103.0) == []
    a, b, c = store.queue_entries()
    assert (a.rollout_id, a.run_id, a.state, a.config) == ("a", "run1", S.RUNNING, config)
    assert (a.enqueued_at, a.attempt, a.worker_id, a.lease_until, a.deadline) == (100.0, 1, "w1", 107.0, 162.0)
    assert (b.state, c.worker_id, c.outcome, c.ended_at, c.reason) == (S.RUNNING, "w2", None, None, None)
    assert store.attempts() == [claim.attempt for claim in (*first, third)]
    assert store.rollouts() == rollouts("a", "b", "c")
    other.close()


def test_a_batch_is_enqueued_whole_or_not_at_all(store: RolloutQueue) -> None:
    store.enqueue(rollouts("a"))
    store.add_rollouts(rollouts("x"))
    for taken in ("a", "x"):
        with pytest.raises(StoreError, match=f"rollout {taken} exists"):
            store.enqueue(rollouts("b", taken))
    assert list(states(store)) == ["a"]
    assert [r.rollout_id for r in store.rollouts()] == ["a", "x"]
    store.enqueue([])
    # What was only announced is not handed out, and what is handed out is not started by hand.
    assert [c.rollout.rollout_id for c in store.claim("w", 9, lease_s=HOUR)] == ["a"]
    store.enqueue(rollouts("c"))
    with pytest.raises(StoreError, match="c is handed out by the queue"):
        store.start_attempt("c", 1)
    store.start_attempt("x", 1)


def test_selection(store: RolloutQueue) -> None:
    store.enqueue(rollouts("a", "b"))
    store.enqueue(rollouts("c", "d", run="run2"))
    assert [c.rollout.rollout_id for c in store.claim("w", lease_s=HOUR, run_id="run2")] == ["c"]
    store.cancel("b", "not needed")

    def ids(**given: object) -> list[str]:
        return [entry.rollout_id for entry in store.queue_entries(**given)]  # type: ignore[arg-type]

    assert ids() == ["a", "b", "c", "d"]
    assert ids(run_id="run2") == ["c", "d"]
    assert ids(ids=["d", "a", "nobody"]) == ["a", "d"]
    assert ids(states=[S.QUEUED]) == ["a", "d"]
    assert ids(states=[S.RUNNING, S.CANCELLED]) == ["b", "c"]
    assert ids(run_id="run2", states=[S.QUEUED], ids=["a", "d"]) == ["d"]
    assert ids(ids=[]) == ids(states=[]) == []


def test_a_success_ends_the_rollout(store: RolloutQueue) -> None:
    store.enqueue(rollouts("a"), RolloutConfig(max_attempts=3))
    (claim,) = store.claim("w", lease_s=HOUR)
    closed = store.finish_attempt("a", 1, Outcome.SUCCEEDED, result=[1], rewards=[Reward(1.0)])
    (entry,) = store.queue_entries()
    assert (entry.state, entry.outcome, entry.attempt, entry.ended_at) == (
        S.SUCCEEDED,
        Outcome.SUCCEEDED,
        1,
        closed.ended_at,
    )
    assert (entry.worker_id, entry.lease_until, entry.deadline, entry.reason) == (None, None, None, None)
    assert [(r.rollout_id, r.attempt) for r in store.rewards()] == [("a", 1)]
    with pytest.raises(StoreError, match="ended already"):
        store.finish_attempt("a", claim.attempt.attempt, Outcome.FAILED)
    assert store.claim("w", lease_s=HOUR) == []


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.SUCCEEDED])
def test_what_is_retried_and_what_is_not(store: RolloutQueue, outcome: Outcome) -> None:
    store.enqueue(rollouts("a"), RolloutConfig(max_attempts=2))
    store.claim("w", lease_s=HOUR)
    store.finish_attempt("a", 1, outcome, error="bad luck")
    (entry,) = store.queue_entries()
    assert (entry.outcome, entry.reason, entry.worker_id) == (outcome, "bad luck", None)
    if outcome.trainable:
        assert entry.state is S.FAILED
        return
    assert (entry.state, entry.ended_at) == (S.REQUEUED, None)
    (claim,) = store.claim("w", lease_s=HOUR)
    assert claim.attempt.attempt == 2
    assert store.queue_entries()[0].outcome is None
    store.finish_attempt("a", 2, outcome)
    assert states(store) == {"a": S.FAILED}
    assert [a.outcome for a in store.attempts()] == [outcome, outcome]


def test_a_retry_waits_its_time_and_comes_before_what_was_enqueued_later(store: RolloutQueue) -> None:
    store.enqueue(rollouts("a", "b"), RolloutConfig(3, retry_on=frozenset({Outcome.FAILED}), retry_delay_s=50.0))
    store.claim("w", lease_s=HOUR)
    closed = store.finish_attempt("a", 1, Outcome.FAILED)
    assert closed.ended_at is not None
    entry = store.queue_entries()[0]
    assert entry.available_at == pytest.approx(closed.ended_at + 50.0)
    assert [c.rollout.rollout_id for c in store.claim("w", lease_s=HOUR, now=entry.available_at - 1)] == ["b"]
    store.enqueue(rollouts("c"))
    later = entry.available_at + 1
    assert [c.rollout.rollout_id for c in store.claim("w", 2, lease_s=HOUR, now=later)] == ["a", "c"]


def test_a_worker_that_falls_silent_loses_its_attempt(store: RolloutQueue) -> None:
    store.enqueue(rollouts("a", "b"), RolloutConfig(max_attempts=2), now=100.0)
    store.claim("w1", 2, lease_s=10.0, now=100.0)
    assert store.expire(now=110.0) == []
    (held,) = store.heartbeat("w1", lease_s=10.0, attempts=[("b", 1), ("b", 2), ("z", 1)], now=109.0)
    assert (held.rollout_id, held.attempt) == ("b", 1)
    (closed,) = store.expire(now=110.5)
    assert (closed.rollout_id, closed.outcome, closed.ended_at) == ("a", Outcome.INFRASTRUCTURE, 110.5)
    assert closed.error is not None
    assert "w1" in closed.error
    assert closed == store.attempts(["a"])[0]
    assert states(store) == {"a": S.REQUEUED, "b": S.RUNNING}
    (again,) = store.claim("w2", lease_s=10.0, now=111.0)
    assert (again.rollout.rollout_id, again.attempt.attempt) == ("a", 2)
    # The first worker comes back: it has only what is still its own, and cannot end what is not.
    assert [a.rollout_id for a in store.heartbeat("w1", lease_s=10.0, now=112.0)] == ["b"]
    with pytest.raises(StoreError, match="ended already, as infrastructure"):
        store.finish_attempt("a", 1, Outcome.SUCCEEDED, rewards=[Reward(1.0)])
    assert states(store)["a"] is S.RUNNING
    assert store.rewards() == []
    store.expire(now=200.0)
    assert states(store) == {"a": S.FAILED, "b": S.REQUEUED}
    assert store.expire(now=9999.0) == []


def test_an_attempt_that_takes_too_long_is_a_timeout_however_alive_its_worker_is(store: RolloutQueue) -> None:
    store.enqueue(rollouts("a"), RolloutConfig(timeout_s=60.0, unresponsive_s=20.0), now=100.0)
    store.claim("w", lease_s=HOUR, now=100.0)
    for now in (115.0, 130.0, 145.0, 160.0):
        assert [a.rollout_id for a in store.heartbeat("w", lease_s=HOUR, now=now)] == ["a"]
        assert store.queue_entries()[0].lease_until == now + 20.0
    assert store.heartbeat("w", lease_s=HOUR, now=161.0) == []
    assert states(store) == {"a": S.RUNNING}
    (closed,) = store.expire(now=161.0)
    assert closed.outcome is Outcome.TIMEOUT
    assert "60 s" in str(closed.error)
    (entry,) = store.queue_entries()
    assert (entry.state, entry.outcome, entry.reason, entry.ended_at) == (
        S.FAILED,
        Outcome.TIMEOUT,
        closed.error,
        161.0,
    )


def test_asking_for_work_expires_what_has_run_out(store: RolloutQueue) -> None:
    store.enqueue(rollouts("a"), RolloutConfig(max_attempts=2), now=100.0)
    store.claim("dead", lease_s=10.0, now=100.0)
    assert store.claim("w", lease_s=10.0, now=109.0) == []
    (claim,) = store.claim("w", lease_s=10.0, now=111.0)
    assert (claim.rollout.rollout_id, claim.attempt.attempt) == ("a", 2)
    assert store.attempts()[0].outcome is Outcome.INFRASTRUCTURE


def test_cancel(store: RolloutQueue) -> None:
    store.enqueue(rollouts("waits", "runs", "again", "done"), RolloutConfig(max_attempts=5))
    store.cancel("waits", "enough groups", now=100.0)
    store.claim("w", 3, lease_s=HOUR)
    store.finish_attempt("again", 1, Outcome.INFRASTRUCTURE)
    store.finish_attempt("done", 1, Outcome.SUCCEEDED)
    store.cancel("runs", "enough groups")
    entry = store.cancel("again", "enough groups", now=200.0)
    assert (entry.state, entry.reason, entry.ended_at) == (S.CANCELLED, "enough groups", 200.0)
    assert states(store) == {"waits": S.CANCELLED, "runs": S.CANCELLED, "again": S.CANCELLED, "done": S.SUCCEEDED}
    (closed,) = store.attempts(["runs"])
    assert (closed.outcome, closed.error) == (Outcome.INFRASTRUCTURE, "cancelled: enough groups")
    assert store.heartbeat("w", lease_s=HOUR) == []
    assert store.claim("w", 9, lease_s=HOUR) == []
    with pytest.raises(StoreError, match="ended already"):
        store.finish_attempt("runs", 1, Outcome.SUCCEEDED)
    with pytest.raises(StoreError, match="done is succeeded and cannot become cancelled"):
        store.cancel("done", "late")
    with pytest.raises(StoreError, match="no rollout nobody in the queue"):
        store.cancel("nobody", "x")


def test_open_attempts_of_the_queue_are_failed_or_tried_again_after_a_crash(store: RolloutQueue) -> None:
    store.enqueue(rollouts("a"), RolloutConfig(max_attempts=2))
    store.enqueue(rollouts("b"), RolloutConfig(max_attempts=1))
    store.add_rollouts(rollouts("c"))
    store.start_attempt("c", 1)
    store.claim("w", 2, lease_s=HOUR)
    assert store.fail_open_attempts("the machine died") == 3
    assert states(store) == {"a": S.REQUEUED, "b": S.FAILED}
    assert {entry.reason for entry in store.queue_entries()} == {"the machine died"}
    assert {(a.outcome, a.error) for a in store.attempts()} == {(Outcome.INFRASTRUCTURE, "the machine died")}


def test_a_lease_without_meaning_is_refused(store: RolloutQueue) -> None:
    for lease_s in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(StoreError, match="lease"):
            store.claim("w", lease_s=lease_s)
        with pytest.raises(StoreError, match="lease"):
            store.heartbeat("w", lease_s=lease_s)


def test_fewer_than_none_are_none(store: RolloutQueue) -> None:
    store.enqueue([Rollout("a", "t", "run", {}), Rollout("b", "t", "run", {})])
    assert store.claim("w", -1, lease_s=9) == []
    store.cancel("a", "")
    store.cancel("b", "")
    assert store.ended_since(limit=-1) == EndedRollouts()


def test_every_ending_is_seen_once_and_in_order(store: RolloutQueue, reopen: Place) -> None:
    assert store.ended_since() == store.ended_since(0)
    store.enqueue(rollouts(*"abcde"), RolloutConfig(max_attempts=2))
    store.enqueue(rollouts("x", run="run2"))
    store.claim("w", 9, lease_s=HOUR)
    store.finish_attempt("c", 1, Outcome.SUCCEEDED)
    store.finish_attempt("a", 1, Outcome.INFRASTRUCTURE)  # waits again, so it has not ended
    first = store.ended_since()
    assert [entry.rollout_id for entry in first.entries] == ["c"]
    store.finish_attempt("x", 1, Outcome.FAILED)
    store.cancel("a", "x")
    store.finish_attempt("b", 1, Outcome.BLOCKED)
    other = reopen()
    second = other.ended_since(first.cursor, limit=2)
    assert [entry.rollout_id for entry in second.entries] == ["x", "a"]
    third = store.ended_since(second.cursor)
    assert [(entry.rollout_id, entry.state, entry.outcome) for entry in third.entries] == [
        ("b", S.FAILED, Outcome.BLOCKED)
    ]
    assert store.ended_since(third.cursor).entries == ()
    assert store.ended_since(third.cursor).cursor == third.cursor
    assert [entry.rollout_id for entry in store.ended_since(run_id="run2").entries] == ["x"]
    assert [entry.rollout_id for entry in store.ended_since(run_id="run1", limit=2).entries] == ["c", "a"]
    other.close()


def test_a_rollout_is_handed_to_one_worker_only(store: RolloutQueue, reopen: Place) -> None:
    names = [f"r{i}" for i in range(60)]
    store.enqueue(rollouts(*names))
    got: dict[str, list[str]] = {f"w{i}": [] for i in range(4)}
    start = threading.Barrier(4)

    def work(worker: str) -> None:
        mine = reopen()
        start.wait()
        while claims := mine.claim(worker, 3, lease_s=HOUR):
            for claim in claims:
                mine.finish_attempt(claim.rollout.rollout_id, claim.attempt.attempt, Outcome.SUCCEEDED)
                got[worker].append(claim.rollout.rollout_id)
        mine.close()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for taken in got.values() for name in taken) == sorted(names)
    for taken in got.values():
        assert all(int(a[1:]) < int(b[1:]) for a, b in pairwise(taken))
    # Whoever reads along in small steps sees all of them, each once.
    seen: list[str] = []
    cursor = 0
    while (page := store.ended_since(cursor, limit=7)).entries:
        seen += [entry.rollout_id for entry in page.entries]
        cursor = page.cursor
    assert sorted(seen) == sorted(names)


def test_close(store: RolloutQueue) -> None:
    store.close()
    for refused in (
        lambda: store.enqueue(rollouts("a")),
        lambda: store.claim("w", lease_s=HOUR),
        lambda: store.heartbeat("w", lease_s=HOUR),
        store.expire,
        lambda: store.cancel("a", "x"),
        store.queue_entries,
        store.ended_since,
    ):
        with pytest.raises(StoreError, match="closed"):
            refused()
