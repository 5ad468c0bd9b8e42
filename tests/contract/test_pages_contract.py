"""The table of decisions, a row for each rollout, and the pages over them: the same in every database."""

from __future__ import annotations

from typing import Any

import pytest

from lgov_core.errors import StoreError
from lgov_core.store import RolloutQueue, pages
from lgov_core.store.database import QueryTooSlow
from lgov_core.store.pages import DecisionKind, Filters
from lgov_core.trace import semconv
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span
from tests.contract.backends import Place


def call(response_id: str, rollout_id: str | None, at: float, agent: str | None = None) -> CapturedCall:
    return CapturedCall(
        response_id, "m", {}, {}, (1,), (2,), None, "stop", 0, 1.0, 1.0, at, at + 1, rollout_id, 1, agent
    )


def decision(
    span_id: str, rollout_id: str | None, at: float, effect: str = "deny", *, claimed: bool = False, **values: Any
) -> Span:
    attributes = {
        semconv.POINT: values.get("point", "pre_tool_call"),
        semconv.ACTION_NAME: values.get("action", "drop"),
        semconv.ACTION_KIND: values.get("action_kind", "function"),
        semconv.DECISION_POLICY: values.get("policy", "tables"),
        semconv.DECISION_RULE: values.get("rule", "no-drop"),
        semconv.DECISION_EFFECT: effect,
        **({semconv.DECISION_WOULD: values["would"]} if "would" in values else {}),
    }
    return Span(semconv.DECISION_SPAN_NAME, span_id, at, at, attributes, rollout_id, 1, claimed=claimed)


def listed(store: RolloutQueue, **filters: str) -> list[str]:
    return [head.rollout_id for head in store.pages.rollouts_before(None, 99, Filters(**filters))]


def times(store: RolloutQueue) -> dict[str, float]:
    return {head.rollout_id: head.created_at for head in store.pages.rollouts_before(None, 99, Filters())}


def test_each_rollout_that_a_call_or_a_span_names_has_a_row(store: RolloutQueue) -> None:
    store.add_call(call("c1", "by-call", 50.0))
    store.add_spans([Span("x", "s1", 60.0, None, {}, "by-span"), Span("x", "s2", 40.0, None, {}, "by-call")])
    store.add_span(Span("x", "s3", 70.0, None, {}, "queued-span"))
    store.add_call(call("c2", None, 1.0))
    store.add_rewards([Reward(1.0, rollout_id="by-reward")])
    store.flush()
    assert listed(store) == ["queued-span", "by-span", "by-call"]
    assert times(store) == {"queued-span": 70.0, "by-span": 60.0, "by-call": 40.0}  # when the first of them began
    head = store.pages.rollouts_before(None, 1, Filters(task="by-call"))[0]
    assert (head.task_id, head.run_id) == ("by-call", "")
    # Nobody added them.
    assert store.rollouts() == store.rollouts(ids=["by-call"]) == store.rollouts(run_id="") == []
    assert store.pages.runs(9) == []
    with pytest.raises(StoreError, match="no rollout by-call"):
        store.start_attempt("by-call", 1)


def test_a_rollout_that_was_named_before_it_is_added(store: RolloutQueue) -> None:
    store.add_spans([Span("x", "s1", 60.0, None, {}, "r1"), Span("x", "s2", 60.0, None, {}, "r2")])
    added = Rollout("r1", "t1", "run", {"q": 1}, 99.0)
    store.add_rollouts([added])
    store.enqueue([Rollout("r2", "t2", "run", {"q": 2}, 98.0)])
    store.add_spans([Span("x", "s3", 5.0, None, {}, "r1")])
    assert store.rollouts(ids=["r1"]) == [added]
    assert times(store) == {"r1": 99.0, "r2": 98.0}
    assert store.start_attempt("r1", 1).attempt == 1
    assert [claim.rollout.rollout_id for claim in store.claim("w", lease_s=9)] == ["r2"]
    for twice in ([added], [Rollout("r3", "t", "run", {}), Rollout("r3", "t", "run", {})]):
        with pytest.raises(StoreError, match=f"rollout {twice[0].rollout_id} exists already"):
            store.add_rollouts(twice)
    assert listed(store) == ["r2", "r1"]


def test_decisions_are_counted_listed_and_found(store: RolloutQueue) -> None:
    store.add_rollouts([Rollout(name, "t", "run", {}) for name in ("r1", "r2", "r3", "r4")])
    spans = [
        decision("d1", "r1", 100.5),
        decision("d2", "r2", 101.0, "allow", would="deny", rule="soft"),
        decision("d3", "r3", 102.0, "allow", rule="default", action="m", action_kind="model", point="pre_model_call"),
        decision("d4", "r3", 103.0, "warn", policy="budget"),
        decision("d5", "r4", 104.0, claimed=True),
        decision("d6", None, 900.0, "escalate"),
    ]
    assert (store.add_spans(spans), store.add_spans(spans)) == (6, 0)  # sent again, they count once
    counted = store.pages.decisions_over_time(60)
    assert counted.width_s == 16
    by_effect = {(kind.effect, kind.would): dict(counts) for kind, counts in counted.counts.items()}
    assert by_effect == {
        ("deny", ""): {96: 1}, ("allow", "deny"): {96: 1}, ("allow", ""): {96: 1}, ("warn", ""): {96: 1},
        ("escalate", ""): {896: 1},
    }  # fmt: skip
    assert {kind.tool for kind in counted.counts} == {"drop", "(pre_model_call)"}

    def found(effect: str | None = None, before: int | None = None, limit: int = 9, **columns: str) -> list[float]:
        return [one.at for one in store.pages.decisions_before(before, limit, effect, columns)]

    assert found() == [900.0, 103.0, 101.0, 100.5]
    assert (found("blocked"), found("would"), found("warn")) == ([900.0, 100.5], [101.0], [103.0])
    assert found("allow") == [102.0, 101.0]
    assert (found(policy="budget"), found(tool="drop", limit=2), found(rule="none")) == ([103.0], [900.0, 103.0], [])
    assert found("allow", tool="(pre_model_call)") == [102.0]
    newest = store.pages.decisions_before(None, 1, None, {})[0]
    assert (newest.rollout_id, found(before=newest.seq)) == (None, [103.0, 101.0, 100.5])

    assert (listed(store, denied="1"), listed(store, denied="would")) == (["r1"], ["r2"])
    assert (listed(store, denied="0"), listed(store, policy="budget")) == (["r4", "r3"], ["r3"])
    assert (listed(store, rule="default"), listed(store, policy="budget", rule="no-drop")) == ([], ["r3"])
    assert [(one, kind.effect) for one, _, kind in store.pages.decisions_of(["r1", "r3", "r4"])] == [
        ("r1", "deny"), ("r3", "warn"),
    ]  # fmt: skip
    assert store.pages.first_blocked() == ("r1", 1)
    store.prune(rollout_ids={"r1"})
    assert (found("blocked"), store.pages.first_blocked()) == ([900.0], ("r2", 1))
    store.prune(before=1e9)  # those of no rollout too
    assert found() == [103.0, 101.0]
    assert len(store.pages.decision_kinds()) == 3


def test_texts_of_any_kind_and_length(store: RolloutQueue) -> None:
    strange = "a\0b\ud800 'ü" + "€" * 5_000
    store.add_spans(
        [decision("d1", "r1", 1.0, policy=strange, rule=strange, action=strange), decision("d2", "r1", 2.0)]
    )
    kind = next(kind for kind in store.pages.decision_kinds() if kind.policy != "tables")
    assert kind.policy.startswith("a\\x00b\\ud800 'ü€")
    assert len(kind.policy) < 220
    assert [one.at for one in store.pages.decisions_before(None, 9, None, {"policy": strange})] == [1.0]
    assert listed(store, policy=strange, rule=strange) == ["r1"]
    store.add_spans([Span(semconv.DECISION_SPAN_NAME, "d3", 3.0, 3.0, {semconv.DECISION_EFFECT: 7}, "r1", 1)])
    assert DecisionKind("", "", "", "", "7", "", "", "") in store.pages.decision_kinds()


def test_the_last_attempt_says_how_a_rollout_ended(store: RolloutQueue) -> None:
    store.add_rollouts([Rollout(name, "t", "run", {}) for name in ("ended", "again", "open", "never")])
    for name in ("ended", "again", "open"):
        store.start_attempt(name, 1)
    for name in ("ended", "again"):
        store.finish_attempt(name, 1, Outcome.FAILED)
    store.start_attempt("again", 2)
    store.finish_attempt("again", 2, Outcome.SUCCEEDED)
    ended = {name: listed(store, outcome=name) for name in ("failed", "succeeded", "running", "unknown")}
    assert ended == {"failed": ["ended"], "succeeded": ["again"], "running": ["open"], "unknown": ["never"]}


def test_pages_of_groups_begin_behind_the_last_rollout_of_one(store: RolloutQueue) -> None:
    tasks = [("r0", "a"), ("r1", "b"), ("r2", "a"), ("r3", "c"), ("r4", "b")]
    store.add_rollouts([Rollout(name, task, "run", {}, 1.0) for name, task in tasks])
    store.add_rollouts([Rollout("other", "a", "run-2", {}, 1.0)])
    store.add_call(call("c1", "named-only", 1.0))
    store.add_call(call("c2", "r0", 1.0, "desk"))

    def page(before: int | None = None, limit: int = 9, **filters: str) -> list[tuple[str, str, int]]:
        groups = store.pages.groups_before(before, limit, Filters(**filters))
        return [(group.run_id, group.task_id, group.count) for group in groups]

    every = [("", "named-only", 1), ("run-2", "a", 1), ("run", "b", 2), ("run", "c", 1), ("run", "a", 2)]
    assert page() == every
    assert page(limit=2) == every[:2]
    second = store.pages.groups_before(None, 2, Filters())[1].last
    assert page(before=second) == every[2:]
    assert (page(run="run"), page(task="a")) == (every[2:], [every[1], every[4]])
    assert page(agent="desk") == [("run", "a", 2)]  # one of its rollouts fits
    added = [(group.run_id, group.task_id, group.count) for group in store.pages.added_groups()]
    assert added == every[1:]
    heads = store.pages.rollouts_of_groups(store.pages.groups_before(None, 9, Filters(run="run", task="a")))
    assert [head.rollout_id for head in heads] == store.pages.group_of("run", "a") == ["r0", "r2"]


def test_a_query_that_takes_too_long_is_stopped(store: RolloutQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add_rollouts([Rollout(f"r{number}", "t", "run", {}) for number in range(3)])
    monkeypatch.setattr(pages, "LIMIT_S", 0.05)
    endless = (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT max(i) FROM n"
    )
    with pytest.raises(QueryTooSlow, match=r"did not answer within 0\.05 s"):
        store.pages._fetch(endless)
    assert len(listed(store)) == 3  # the next one has its own time
    assert len(store.rollouts()) == 3


def test_several_stores_name_the_same_rollouts_and_kinds(store: RolloutQueue, reopen: Place) -> None:
    other = reopen()
    for number in range(20):
        store.add_span(decision(f"a{number}", f"r{number % 5}", 10.0 + number, rule=f"rule-{number % 3}"))
        other.add_span(decision(f"b{number}", f"r{number % 5}", 9.0 + number, rule=f"rule-{number % 3}"))
    store.flush()
    other.flush()
    assert times(store) == {f"r{number}": 9.0 + number for number in range(5)}
    assert sum(sum(counts.values()) for counts in other.pages.decisions_over_time(60).counts.values()) == 40
    assert len(store.pages.decision_kinds()) == 3
    other.close()
