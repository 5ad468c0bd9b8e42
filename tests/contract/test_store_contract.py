"""What every trace store does, whatever it is kept in; `backends` says in what."""

from __future__ import annotations

import asyncio
import json
import math
import threading

import pytest

from lgov_core._util.json_text import ReceivedBody
from lgov_core.errors import StoreError
from lgov_core.store import RolloutQueue
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span, SpanEvent
from tests.contract.backends import Place


def rollout(rollout_id: str, *, task: str = "t1", run: str = "run1") -> Rollout:
    return Rollout(rollout_id, task, run, {"question": "how many?", "n": [1, 2.5, None, "ünïcode \ud800"]}, 1000.25)


def call(response_id: str, rollout_id: str | None = "r1", **changes: object) -> CapturedCall:
    values: dict[str, object] = {
        "response_id": response_id,
        "model": "tiny",
        "request": {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.7},
        "response": {"choices": [{"message": {"content": None}}]},
        "prompt_ids": (0, 1, 151_643, 2**31 - 1),
        "response_ids": (5, 6, 7),
        "logprobs": (-0.1, -1e-300, -math.pi),
        "finish_reason": "stop",
        "weights_version": 3,
        "temperature": 0.7,
        "top_p": 1.0,
        "started_at": 10.125,
        "ended_at": 11.5,
        "rollout_id": rollout_id,
        "attempt": 1,
        "agent": "clerk",
        "tool_call_ids": ("call_a", "call_b"),
        "engine": "embedded",
    }
    return CapturedCall(**{**values, **changes})  # type: ignore[arg-type]


def span(span_id: str, rollout_id: str | None = "r1") -> Span:
    return Span("chat tiny", span_id, 1.0, None, {"gen_ai.response.id": "x", "n": 3}, rollout_id, 1, "parent")


def test_everything_comes_back_as_it_was_written(store: RolloutQueue, reopen: Place) -> None:
    store.add_rollouts([rollout("r1"), rollout("r2", task="t2", run="run2")])
    opened = store.start_attempt("r1", 1)
    assert (opened.rollout_id, opened.attempt, opened.ended_at, opened.outcome) == ("r1", 1, None, None)
    calls = [
        call("c1"),
        call("c2", None, prompt_ids=None, response_ids=None, logprobs=None, weights_version=None, tool_call_ids=()),
        call("c3", response_ids=(), logprobs=()),
        call("c4", logprobs=None),
    ]
    for one in calls:
        store.add_call(one)
    rewards = [
        Reward(0.1, "air", "r1", 1, tool_call_id="call_a", source="rule"),
        Reward(-1 / 3, response_id="c1", rollout_id="r1", attempt=1, choice=1),
        Reward(2, rollout_id=None),
    ]
    store.add_rewards(rewards)
    store.add_span(span("s1"))
    store.flush()
    final = Reward(1.0, "task", reward_id="rwd_final")
    closed = store.finish_attempt("r1", 1, Outcome.SUCCEEDED, result={"answer": [1]}, rewards=[final])
    assert (closed.outcome, closed.result, closed.error) == (Outcome.SUCCEEDED, {"answer": [1]}, None)
    assert closed.ended_at is not None
    assert closed.ended_at >= closed.started_at == opened.started_at

    again = reopen()
    try:
        for reader in (store, again):
            assert reader.rollouts() == [rollout("r1"), rollout("r2", task="t2", run="run2")]
            assert reader.attempts() == [closed]
            assert list(reader.calls()) == calls
            assert reader.rewards() == [
                *rewards,
                Reward(1.0, "task", "r1", 1, reward_id="rwd_final"),
            ]
            assert reader.spans() == [span("s1")]
    finally:
        again.close()


def test_selection(store: RolloutQueue) -> None:
    store.add_rollouts([rollout(f"r{i}", run="odd" if i % 2 else "even") for i in range(6)])
    for i in (3, 1, 2):
        store.start_attempt(f"r{i}", 1)
        store.add_call(call(f"c{i}", f"r{i}"))
        store.add_rewards([Reward(i, rollout_id=f"r{i}")])
        store.add_span(span(f"s{i}", f"r{i}"))
    store.flush()
    assert [r.rollout_id for r in store.rollouts(run_id="odd")] == ["r1", "r3", "r5"]
    assert [r.rollout_id for r in store.rollouts(ids=["r4", "r0", "nobody"])] == ["r0", "r4"]
    assert [r.rollout_id for r in store.rollouts(run_id="odd", ids=["r4", "r5"])] == ["r5"]
    assert [a.rollout_id for a in store.attempts(["r1", "r3"])] == ["r3", "r1"]
    assert [c.response_id for c in store.calls(["r2", "r3"])] == ["c3", "c2"]
    assert [r.value for r in store.rewards(["r1"])] == [1.0]
    assert [s.span_id for s in store.spans(["r2", "r3"])] == ["s3", "s2"]
    assert store.rollouts(ids=[]) == []
    assert store.attempts([]) == []
    assert list(store.calls([])) == []


def test_many_rows_come_back_in_the_order_of_writing(store: RolloutQueue) -> None:
    for i in range(1203):
        store.add_span(span(f"s{i}", f"r{i % 7}"))
    store.flush()
    assert [s.span_id for s in store.spans()] == [f"s{i}" for i in range(1203)]
    assert [s.span_id for s in store.spans(["r2", "r5"])] == [f"s{i}" for i in range(1203) if i % 7 in (2, 5)]
    assert store.dropped_spans == 0


def test_every_choice_of_a_reply_is_kept(store: RolloutQueue) -> None:
    calls = [call("c1", choice=0, route="responses"), call("c1", choice=1, route="responses", response_ids=(9, 9, 9))]
    for one in calls:
        store.add_call(one)
    with pytest.raises(StoreError, match="call c1, choice 1 exists"):
        store.add_call(call("c1", choice=1))
    assert list(store.calls()) == calls


def test_a_batch_of_spans_is_durable_whole_and_may_be_sent_twice(store: RolloutQueue, reopen: Place) -> None:
    events = (SpanEvent("gen_ai.evaluation.result", 1.25, {"score": 1, "ünï": None}), SpanEvent("x", 2.0))
    first = [
        span("s1"),
        Span("chat", "s2", 1.0, 2.0, {"a": [1, 2.5]}, None, None, None, "trace9", events, claimed=True),
    ]
    assert store.add_spans(first) == 2
    assert store.add_spans(iter([])) == 0
    assert store.add_spans([first[1], span("s3"), first[0], span("s3")]) == 1
    store.add_span(span("s1"))
    store.add_span(span("s4"))
    store.flush()
    # The same id for something else: both are kept, as they came.
    other = Span("chat", "s2", 1.0, 2.0, {"a": [1, 2.5]}, None, None, None, "trace9", events)
    assert store.add_spans([other]) == 1
    again = reopen()
    assert again.spans() == [*first, span("s3"), span("s4"), other]
    assert store.dropped_spans == 0
    with pytest.raises(StoreError):
        store.add_spans([span("s5"), Span("x", "s6", 1.0, 2.0, {"x": object()})])  # type: ignore[dict-item]
    with pytest.raises(StoreError):
        store.add_spans([span("s5"), Span("lone \ud800 surrogate", "s6", 1.0, 2.0, {})])
    assert len(again.spans()) == 5
    again.close()


def test_a_batch_of_rollouts_is_added_whole_or_not_at_all(store: RolloutQueue) -> None:
    store.add_rollouts([rollout("r1")])
    with pytest.raises(StoreError, match="rollout r1 exists"):
        store.add_rollouts([rollout("r0"), rollout("r1"), rollout("r2")])
    with pytest.raises(StoreError, match="JSON"):
        store.add_rollouts([rollout("r3"), Rollout("r4", "t", "run", {"x": object()})])  # type: ignore[dict-item]
    assert [r.rollout_id for r in store.rollouts()] == ["r1"]
    store.add_rollouts([])


def test_attempts_open_once_and_close_once(store: RolloutQueue) -> None:
    with pytest.raises(StoreError, match="no rollout r1"):
        store.start_attempt("r1", 1)
    store.add_rollouts([rollout("r1")])
    with pytest.raises(StoreError, match="no attempt 1"):
        store.finish_attempt("r1", 1, Outcome.FAILED)
    with pytest.raises(StoreError, match="from 1"):
        store.start_attempt("r1", 0)
    store.start_attempt("r1", 1)
    with pytest.raises(StoreError, match="attempt 1 of rollout r1 exists"):
        store.start_attempt("r1", 1)
    store.finish_attempt("r1", 1, Outcome.FAILED, error="lone \ud800 surrogate")
    with pytest.raises(StoreError, match="ended already, as failed"):
        store.finish_attempt("r1", 1, Outcome.SUCCEEDED, rewards=[Reward(1.0)])
    store.start_attempt("r1", 2)
    assert [(a.attempt, a.outcome) for a in store.attempts()] == [(1, Outcome.FAILED), (2, None)]
    assert store.rewards() == []


def test_an_attempt_does_not_close_without_its_rewards(store: RolloutQueue) -> None:
    store.add_rollouts([rollout("r1")])
    store.start_attempt("r1", 1)
    taken = Reward(1.0, rollout_id="r1")
    store.add_rewards([taken])
    for bad in (Reward(math.nan), taken, Reward(1.0, rollout_id="r9"), Reward(1.0, attempt=2)):
        with pytest.raises(StoreError):
            store.finish_attempt("r1", 1, Outcome.SUCCEEDED, rewards=[Reward(0.5), bad])
    assert store.attempts()[0].outcome is None
    assert store.rewards() == [taken]
    store.finish_attempt("r1", 1, Outcome.SUCCEEDED, rewards=[Reward(0.5)])
    assert [r.value for r in store.rewards()] == [1.0, 0.5]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "much", 10**400])
def test_rewards_are_finite(store: RolloutQueue, value: object) -> None:
    with pytest.raises(StoreError, match="finite"):
        store.add_rewards([Reward(1.0), Reward(value)])  # type: ignore[arg-type]
    assert store.rewards() == []


@pytest.mark.parametrize("choice", [-1, True, 0.0, "1", 2**70])
def test_the_choice_of_a_reward_is_counted_from_0(store: RolloutQueue, choice: object) -> None:
    with pytest.raises(StoreError, match="choice"):
        store.add_rewards([Reward(1.0), Reward(1.0, choice=choice)])  # type: ignore[arg-type]
    assert store.rewards() == []


def test_an_id_that_nobody_could_look_up_is_refused(store: RolloutQueue) -> None:
    with pytest.raises(StoreError, match="NUL"):
        store.add_rollouts([rollout("r1"), rollout("r\0")])
    assert store.rollouts() == []


def test_ids_are_written_once(store: RolloutQueue) -> None:
    store.add_call(call("c1"))
    with pytest.raises(StoreError, match="call c1 exists"):
        store.add_call(call("c1", agent="other"))
    reward = Reward(1.0)
    store.add_rewards([reward])
    with pytest.raises(StoreError, match="exists"):
        store.add_rewards([Reward(2.0), reward])
    assert [c.agent for c in store.calls()] == ["clerk"]
    assert store.rewards() == [reward]


@pytest.mark.parametrize(
    "received",
    [
        b'{"id":"x","prompt_token_ids":[7,8,9],"choices":[{"token_ids":[5,6,7]}]}',
        b' {"prompt_token_ids": [7, 8,\n 9], "note": "\xc3\xa9"}',
        b'{"choices":[{"prompt_token_ids":[7,8,9],"text":"hm"}]}',
        b'{"prompt_token_ids":[7,8,9],"choices":[{"prompt_token_ids":[7,8,9]},{"prompt_token_ids":[7,8,9]}]}',
        b'{"inner":{"prompt_token_ids":[7,8,9]},"prompt_token_ids" : [7,8,9]}',
        b'{"inner":{"prompt_token_ids":[1]},"prompt_token_\\u0069ds":[7,8,9]}',
        b'{"inner":{"prompt_token_ids":[1]},"prompt_token_ids":[7,8,9]}',
        b'{"prompt_token_ids":[7,8,9.0]}',
        b'{"prompt_token_ids":[7,8]}',
        b'{"prompt_token_ids":[]}',
        b'{"prompt_token_ids":null,"choices":[{"prompt_token_ids":null}]}',
        b'{"text":"\\"prompt_token_ids\\":[7,8,9]","prompt_token_ids":[7,8,9]}',
        b'{"choices":[]}',
        b'{"choices":[null]}',
        b'{"prompt_token_ids":[7.0,8,9],"choices":[{"prompt_token_ids":[7,8,9]}]}',
        b'\xef\xbb\xbf{"id":"x","prompt_token_ids":[7,8,9]}',
        b'\xef\xbb\xbf{"id":"with a byte order mark"}',
        '{"id":"x"}'.encode("utf-16-le"),
        b'{"floats":[-0.25,1e-07,1E22,0.1,-0.0,3.0e0,5e-324,1.7976931348623157e308],"whole":[9,9.0,-1,18446744073709551615]}',
        b'{"more_than_json":[NaN,-Infinity,1e999],"long":123456789012345678901234567890}',
        b'{"texts":["\\ud800","\\u0000","\xc3\xa9","\\u00e9","\\/","\\u2028"],"\\u00e9":[true,false,null,{},[]]}',
    ],
)
def test_a_reply_comes_back_whatever_it_says_of_its_prompts_tokens(store: RolloutQueue, received: bytes) -> None:
    body = json.loads(received)
    made = [
        call("as_it_came", prompt_ids=(7, 8, 9), response=ReceivedBody.read(received)),
        call("read", prompt_ids=(7, 8, 9), response=body),
        call("unknown", prompt_ids=None, response=body),
        call("empty", prompt_ids=(), response=body),
    ]
    for one in made:
        store.add_call(one)
    kept = list(store.calls())
    written = {one.response_id: json.dumps(one.response) for one in kept}  # in which 9.0 is not 9
    assert written == dict.fromkeys((one.response_id for one in made), json.dumps(body))
    assert {one.response_id: one.prompt_ids for one in kept} == {one.response_id: one.prompt_ids for one in made}


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": (-1.0,)},
        {"response_ids": None},
        {"prompt_ids": (2**31,)},
        {"prompt_ids": (1, -1)},
        {"prompt_ids": ("a",)},
        {"request": {"x": object()}},
        {"model": None},
        {"model": "lone \ud800 surrogate"},
    ],
)
def test_a_call_that_cannot_be_kept_exactly_is_refused(store: RolloutQueue, changes: dict[str, object]) -> None:
    with pytest.raises(StoreError):
        store.add_call(call("c1", **changes))
    assert list(store.calls()) == []
    store.add_call(call("c1"))


def test_one_bad_write_among_many_fails_alone(store: RolloutQueue) -> None:
    store.add_call(call("taken"))
    outcomes: dict[int, BaseException | None] = {}
    start = threading.Barrier(16)

    def write(i: int) -> None:
        start.wait()
        try:
            store.add_call(call("taken" if i % 4 == 0 else f"c{i}"))
            outcomes[i] = None
        except StoreError as error:
            outcomes[i] = error

    threads = [threading.Thread(target=write, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {i for i, error in outcomes.items() if error is not None} == {0, 4, 8, 12}
    assert sorted(c.response_id for c in store.calls()) == sorted(["taken", *(f"c{i}" for i in range(16) if i % 4)])


def test_open_attempts_are_failed_after_a_crash(store: RolloutQueue) -> None:
    store.add_rollouts([rollout("r1"), rollout("r2")])
    store.start_attempt("r1", 1)
    store.start_attempt("r2", 1)
    done = store.finish_attempt("r1", 1, Outcome.SUCCEEDED)
    assert store.fail_open_attempts("the endpoint died") == 1
    first, second = store.attempts()
    assert first == done
    assert (second.outcome, second.error) == (Outcome.INFRASTRUCTURE, "the endpoint died")
    assert store.fail_open_attempts("again") == 0


def test_two_stores_on_one_place(store: RolloutQueue, reopen: Place) -> None:
    other = reopen()
    try:
        store.add_rollouts([rollout("r1")])
        other.start_attempt("r1", 1)
        with pytest.raises(StoreError):
            store.start_attempt("r1", 1)
        threads = [
            threading.Thread(target=lambda s=s, n=n: [s.add_call(call(f"{n}{i}")) for i in range(50)])
            for n, s in (("a", store), ("b", other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(store.calls()) == list(other.calls())
        assert len(list(store.calls())) == 100
    finally:
        other.close()


def test_a_reading_in_progress_sees_what_was_there(store: RolloutQueue) -> None:
    store.add_call(call("c1"))
    reading = store.calls()
    assert next(reading).response_id == "c1"
    store.add_call(call("c2"))
    assert list(reading) == []


def test_close(store: RolloutQueue, reopen: Place) -> None:
    store.add_span(span("s1"))
    late = store.calls()
    store.close()
    store.close()
    for refused in (
        lambda: store.add_rollouts([rollout("r1")]),
        lambda: store.start_attempt("r1", 1),
        lambda: store.finish_attempt("r1", 1, Outcome.FAILED),
        lambda: store.add_call(call("c1")),
        lambda: store.add_rewards([Reward(1.0)]),
        lambda: store.add_span(span("s2")),
        lambda: store.add_spans([span("s2")]),
        store.flush,
        store.rollouts,
        store.attempts,
        store.calls,
        lambda: list(late),
        store.rewards,
        store.spans,
        lambda: store.fail_open_attempts("x"),
    ):
        with pytest.raises(StoreError, match="closed"):
            refused()
    again = reopen()
    assert again.spans() == [span("s1")]
    again.close()


async def test_from_many_tasks(store: RolloutQueue) -> None:
    await asyncio.gather(*(asyncio.to_thread(store.add_call, call(f"c{i}")) for i in range(100)))
    assert {c.response_id for c in store.calls()} == {f"c{i}" for i in range(100)}
