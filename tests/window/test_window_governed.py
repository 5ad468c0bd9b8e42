"""The window on rollouts that no training made: of programs that an endpoint or an adapter recorded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from lgov_core.audit import AuditLog
from lgov_core.governor import Governor
from lgov_core.policies import ConstantPolicy, PolicySet, Rule
from lgov_core.store import RolloutQueue
from lgov_core.trace import semconv
from lgov_core.types import Action, CapturedCall, Effect, Outcome, Point, Rollout, Span
from tests.window.conftest import Opened
from tests.window.recorded_rollouts import call, record_rollout

REPLY = {"role": "assistant", "content": "Hello"}


def reported(name: str, rollout_id: str, usage: Any, *, choice: int = 0) -> CapturedCall:
    """A call of a server that says no token ids."""
    made = call(name, rollout_id, [{"role": "user", "content": "x"}], REPLY, None, None)
    return dataclasses.replace(made, choice=choice, response={**made.response, "usage": usage})


def test_each_rollout_that_only_calls_name_is_a_task(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    for number in range(5):
        store.add_call(call(f"c{number}", f"alone-{number}", [], REPLY, (1,), (2,), started_at=float(number)))
    record_rollout(store, "known-0", "known", Outcome.SUCCEEDED, 1.0)
    browser = opened(tmp_path)
    groups = browser.all("tasks", limit=2)
    assert [group["task_id"] for group in groups] == ["known", *(f"alone-{number}" for number in (4, 3, 2, 1, 0))]
    assert [row["rollout_id"] for row in groups[1]["rollouts"]] == ["alone-4"]
    assert [group["task_id"] for group in browser.all("tasks", outcome="unknown")] == [
        group["task_id"] for group in groups[1:]
    ]
    assert [group["task_id"] for group in browser.all("tasks", task="alone-3")] == ["alone-3"]
    assert browser.get("sources")["sources"][0]["counts"]["rollouts"] == 6


def test_a_rollout_that_only_a_call_names_is_a_change(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    record_rollout(store, "known-0", "known", Outcome.SUCCEEDED, 1.0)
    browser = opened(tmp_path)
    since = browser.get("changes")["since"]
    store.add_call(call("c0", "alone-0", [], REPLY, (1,), (2,)))
    (changed,) = browser.get("changes", since=since, wait=2)["changed"]
    assert set(changed["what"]) == {"rollouts", "calls"}


def test_turns_are_counted_where_only_spans_are_kept(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    store.add_rollouts([Rollout("ro", "agent.py", "run", {})])
    store.start_attempt("ro", 1)
    found = {semconv.OPERATION: semconv.CHAT, semconv.INPUT_TOKENS: 100, semconv.OUTPUT_TOKENS: 20}
    for number in range(3):
        attributes = {**found, semconv.RESPONSE_ID: f"c{number}", semconv.OUTPUT_MESSAGES: "[]"}
        store.add_span(Span("chat", f"span_{number}", 1.0, 2.0, attributes, "ro", 1))
    store.add_span(Span("chat", "span_claimed", 1.0, 2.0, found, "ro", 1, claimed=True))
    browser = opened(tmp_path)
    assert [row["turns"] for row in browser.get("rollouts")["items"]] == [3]
    shown = browser.get("rollouts/ro")
    assert (shown["steps_total"], shown["prompt_tokens"], shown["response_tokens"]) == (3, 300, 60)


def test_without_token_ids_counts_are_what_the_server_says(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    store.add_call(reported("chat", "ro", {"prompt_tokens": 100, "completion_tokens": 20}))
    store.add_call(reported("responses", "ro", {"input_tokens": 50, "output_tokens": 5}))
    shown = opened(tmp_path).get("rollouts/ro")
    assert [(one["prompt_tokens"], one["response_tokens"], one["has_tokens"]) for one in shown["steps"]] == [
        (100, 20, False),
        (50, 5, False),
    ]
    assert (shown["prompt_tokens"], shown["response_tokens"]) == (150, 25)


def test_usage_of_several_choices_is_no_count_of_one(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    for choice in range(2):
        store.add_call(reported("c", "ro", {"prompt_tokens": 100, "completion_tokens": 20}, choice=choice))
    shown = opened(tmp_path).get("rollouts/ro")
    assert [one["response_tokens"] for one in shown["steps"]] == [None, None]
    assert shown["response_tokens"] is None


def test_an_audit_record_alone_shows_its_decisions(opened: Opened, tmp_path: Path) -> None:
    deny = PolicySet([Rule(ConstantPolicy(Effect.DENY, name="never", reason="no"))])
    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        for policies in (deny, deny.in_shadow()):
            action = Action(Point.PRE_TOOL_CALL, "rm", agent="clerk", rollout_id="ro", attempt=1, call_id="c")
            Governor(policies, audit=log).decide(action)
        browser = opened(tmp_path / "audit.db")
        assert browser.get("governance")["effects"] == {"deny": 1, "allow": 1}
        assert browser.get("governance")["would"] == {"deny": 1}
        shown = [
            (one["tool"], one["agent"], one["policy"], one["reason"], one["rollout_id"], one["effect"])
            for one in browser.all("governance/decisions")
        ]
        assert shown == [("rm", "clerk", "never", "no", "ro", effect) for effect in ("allow", "deny")]
        Governor(deny, audit=log).decide(Action(Point.PRE_TOOL_CALL, "rm"))
        assert browser.get("governance")["effects"] == {"deny": 2, "allow": 1}
    assert browser.get("doctor")["findings"] == []
