"""A run's folder with everything in it: batches, tokenizer, audit record, policy files."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog
from lgov_core.store import RolloutQueue
from lgov_core.train.loop.run_files import write_batch
from lgov_core.transitions import assign_credit, build_transitions
from lgov_core.types import Action, Decision, Effect, Outcome, Point, Rollout
from tests.window.conftest import Browser, Opened
from tests.window.recorded_rollouts import call, decision, record

POLICY = "version: 1\nname: strict\ndefault: deny\nrules:\n  - {name: tools, use: tool, with: {allow: [nothing]}}\n"


def until_done(answer: Callable[[], Any], *busy: str) -> Any:
    """The answer once its state is none of ``busy``."""
    deadline = time.monotonic() + 30
    while (found := answer())["state"] in busy and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.fixture
def browser(store: RolloutQueue, tmp_path: Path, opened: Opened) -> Browser:
    """A window on a run with a batch, in which the trainer saw other advantages than the default rules give."""
    record(store)
    data = assign_credit(build_transitions(store, ["mixed-0", "mixed-1", "mixed-2"], need_logprobs=False))
    trained = [
        replace(one, advantages=(7.0,) * len(one.response_ids), response_mask=(0,) * len(one.response_ids))
        for one in data.transitions
    ]
    for step in (8, 9):  # the weights are of version 7: the rollouts are in the second batch after it
        write_batch(tmp_path / "transitions", step, trained if step == 9 else [], {})
    line = {
        "phase": "train",
        "step": 9,
        "kl": 0.5,
        "rewards": {"task": {"mean": 0.5, "low": 0.1, "high": 0.9, "count": 3}},
    }
    test = {"phase": "test", "step": 9, "accuracy": 0.75}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(test) + "\n")
    (tmp_path / "config.json").write_text('{"seed": 3}')
    (tmp_path / "policy.yaml").write_text(POLICY)
    return opened(tmp_path)


def test_a_run_has_its_figures(browser: Browser, tmp_path: Path) -> None:
    (run,) = browser.get("runs")["items"]
    assert (run["steps"], run["latest"]["rewards/task"], run["latest"]["kl"]) == (1, 0.5, 0.5)
    assert run["phases"] == [{"phase": "test", "step": 9, "figures": {"step": 9.0, "accuracy": 0.75}}]
    figures = browser.get(f"runs/{tmp_path.name}")
    assert figures["series"]["rewards/task"] == {"values": [0.5], "low": [0.1], "high": [0.9]}
    assert figures["settings"] == {"seed": 3}
    (source,) = browser.get("sources")["sources"]
    assert source["kind"] == "run"
    assert source["has"] == {
        "metrics": True,
        "training": True,
        "audit": False,
        "batches": True,
        "tokenizer": False,
        "approvals": False,
    }


def test_advantages_and_masks_are_those_that_were_trained_on(browser: Browser) -> None:
    shown = browser.get("rollouts/mixed-0")
    assert (shown["advantage_source"], shown["trained_step"]) == ("trainer", 9)
    tokens = browser.get("rollouts/mixed-0/calls/c1_mixed-0%3A0/tokens")
    assert (tokens["advantage_source"], tokens["advantages"][3:], tokens["mask"]) == ("trainer", [7.0, 7.0], [0] * 5)
    assert browser.get("rollouts/alike-0")["advantage_source"] == "recomputed"


def test_tokens_have_texts_where_the_tokenizer_is_known(store: RolloutQueue, tmp_path: Path, opened: Opened) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({"</script>": 0, "one": 1, "two": 2, "three": 3, "?": 4}, unk_token="?"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    record(store)
    tokens = opened(tmp_path).get("rollouts/mixed-0/calls/c1_mixed-0%3A0/tokens")
    assert tokens["texts"] == ["one", "two", "three", "?", "[5]"]


def test_the_audit_record_is_verified_beside_the_answers(browser: Browser, tmp_path: Path, opened: Opened) -> None:
    assert browser.get("governance/audit")["state"] == "absent"
    action = Action(Point.PRE_TOOL_CALL, "wire", arguments={"to": "me"}, rollout_id="mixed-0")
    with AuditLog(tmp_path / "audit.sqlite", signer=None) as log:
        log.commit(action, Decision(Effect.ALLOW, "desk", "default", "fine"))
    browser = opened(tmp_path)
    found = until_done(lambda: browser.get("governance/audit"), "checking")
    assert (found["state"], found["entries"], found["heads"], found["signed"]) == ("ok", 1, [], 0)
    with sqlite3.connect(tmp_path / "audit.sqlite") as connection:
        connection.execute("DROP TRIGGER entries_are_not_changed")
        connection.execute("UPDATE entries SET body = replace(body, 'allow', 'deny')")
    browser.get("governance/audit", again=1)
    found = until_done(lambda: browser.get("governance/audit"), "checking")
    assert (found["state"], found["first_bad"]) == ("broken", 1)
    assert found["problem"] == "its contents do not match its hash"


@pytest.mark.parametrize(("effect", "would"), [("transform", ""), ("allow", "transform")])
def test_what_a_transform_replaced_is_shown(
    store: RolloutQueue, tmp_path: Path, opened: Opened, effect: str, would: str
) -> None:
    store.add_rollouts([Rollout("ro", "task", "run", {})])
    store.start_attempt("ro", 1)
    tool = [{"id": "t1", "type": "function", "function": {"name": "wire", "arguments": '{"to": "me"}'}}]
    store.add_call(call("c", "ro", [], {"role": "assistant", "tool_calls": tool}, (1,), (2,), tools=("t1",)))
    action = Action(Point.PRE_TOOL_CALL, "wire", arguments={"to": "me"}, rollout_id="ro", attempt=1, call_id="t1")
    with AuditLog(tmp_path / "audit.sqlite", signer=None) as log:
        made = Decision(Effect.TRANSFORM, "desk", "mask", "hidden", arguments={"to": "you"})
        entry = log.commit(action, made)
    span = decision("ro", "pre_tool_call", "wire", effect, tool="t1")
    more = {"lgov.decision.id": entry, "lgov.decision.would": would}
    store.add_span(replace(span, attributes={**span.attributes, **more}))
    store.finish_attempt("ro", 1, Outcome.SUCCEEDED)
    (step,) = opened(tmp_path).get("rollouts/ro")["steps"]
    rewritten = step["tools"][0]["decisions"][0]["rewritten"]
    assert (rewritten["before"]["text"], rewritten["after"]["text"]) == ('{"to":"me"}', '{"to": "you"}')


def test_a_policy_file_of_the_run_is_replayed(browser: Browser, tmp_path: Path) -> None:
    assert browser.get("governance/policies")["items"] == [
        {"name": "policy.yaml", "path": str(tmp_path / "policy.yaml")}
    ]
    found = until_done(lambda: browser.get("governance/replay", policy="policy.yaml"), "running")
    assert (found["state"], found["error"]) == ("done", None)
    assert found["incomplete"] + found["judged"] == 7
    assert browser.error("governance/replay", 400, policy="../policy.yaml") == "policy"
    (tmp_path / "policy-none.yaml").write_text(
        "version: 1\nrules:\n  - {name: none, use: tool, with: {allow: [other]}}\n"
    )
    found = until_done(lambda: browser.get("governance/replay", policy="policy-none.yaml", limit=1), "running")
    assert (len(found["items"]), found["cursor"]) == (1, "1")
    changes = browser.all("governance/replay", policy="policy-none.yaml", limit=1)
    assert [one["now"] for one in changes] == ["deny"] * found["changed"]
    (tmp_path / "policy.yaml").write_text("version: 1\nrules: 5\n")
    found = until_done(lambda: browser.get("governance/replay", policy="policy.yaml"), "running")
    assert (found["state"], found["error"]["code"]) == ("failed", "policy_file")
