"""Texts and rollouts at the edges, and payloads in every field, over HTTP."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lgov_core.errors import StoreError
from lgov_core.store import RolloutQueue, open_store
from lgov_core.types import Outcome, Reward, Rollout, Span
from lgov_core.views.web.window import Window
from tests.window.conftest import Opened
from tests.window.recorded_rollouts import call, decision, record_rollout

PAYLOAD = "</script><img src=x onerror=alert(1)>javascript:\u202e\x00\x1b[2J\ud800'\"`${1}"


def test_a_long_text_is_cut_and_read_in_parts(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    text = "".join(chr(0x4E00 + n % 1000) for n in range(5_000_000))
    record_rollout(store, "ro", "task", Outcome.FAILED, 0.0, said=text)
    browser = opened(tmp_path)
    shown = browser.get("rollouts/ro")["steps"][0]["messages"][1]["text"]
    assert (shown["text"], shown["length"]) == (text[:4000], 5_000_000)
    part = browser.get("text", ref=shown["ref"], **{"from": 4_999_990, "count": 100})
    assert (part["text"], part["next"]) == (text[-10:], None)
    part = browser.get("text", ref=shown["ref"], **{"from": 10, "count": 5})
    assert (part["text"], part["next"], part["length"]) == (text[10:15], 15, 5_000_000)


def test_references_lead_to_texts_only(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    record_rollout(store, "ro", "task", Outcome.FAILED, 0.0)
    browser = opened(tmp_path)
    assert browser.get("text", ref="ro~1~steps.1.wrote")["text"] == "Done."
    for path in ("__class__", "steps", "steps.9.wrote", "steps.0.__class__.__name__", "steps.-1.wrote", "x", ""):
        assert browser.error("text", 404, ref=f"ro~1~{path}") == "store"


def test_a_rollout_of_two_thousand_spans_is_shown_in_pages(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    store.add_rollouts([Rollout("ro", "task", "run", {})])
    store.start_attempt("ro", 1)
    said: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
    for turn in range(600):
        wrote = {"role": "assistant", "content": f"step {turn}"}
        tokens = tuple(range(2 * turn + 1))
        store.submit_call(call(f"c{turn}", "ro", list(said), wrote, tokens, (2 * turn + 1,), started_at=float(turn)))
        said += [wrote, {"role": "user", "content": "more"}]
        for number in range(3):
            store.add_span(replace(decision("ro", "output", "text", "allow"), span_id=f"d{turn}-{number}"))
    store.add_spans([Span("root", f"x{n}", 1.0, 2.0, {}, "ro", 1) for n in range(200)])
    store.flush()
    browser = opened(tmp_path)
    page = browser.get("rollouts/ro")
    assert (page["steps_total"], len(page["steps"]), page["next"]) == (600, 200, 200)
    seen = [step["turn"] for first in (0, 200, 400) for step in browser.get("rollouts/ro", **{"from": first})["steps"]]
    assert seen == list(range(1, 601))
    assert browser.get("rollouts/ro", **{"from": 400})["next"] is None


def test_a_call_of_many_tokens_is_one_compact_answer(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    store.add_rollouts([Rollout("ro", "task", "run", {})])
    store.start_attempt("ro", 1)
    reply = {"role": "assistant", "content": "x"}
    asked = [{"role": "user", "content": "x"}]
    store.add_call(call("c", "ro", asked, reply, tuple(range(30_000)), tuple(range(2_000)), finish="length"))
    browser = opened(tmp_path)
    path = "rollouts/ro/calls/c%3A0/tokens"
    began = time.monotonic()
    whole = browser.get(path, count=40_000)
    assert time.monotonic() - began < 5
    assert {len(whole[name]) for name in ("ids", "mask", "logprobs")} == {32_000}
    assert (sum(whole["mask"]), whole["truncated"], whole["next"]) == (2_000, True, None)
    parts: list[int] = []
    at: int | None = 0
    while at is not None:
        part = browser.get(path, **{"from": at, "count": 5_000})
        parts += part["ids"]
        at = part["next"]
    assert parts == whole["ids"]


def test_entropy_is_that_of_the_likeliest_tokens_listed(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    store.add_rollouts([Rollout("ro", "task", "run", {})])
    store.start_attempt("ro", 1)
    tops = [[], [0.5, 0.25], [1.0]]
    content = [{"token": "x", "top_logprobs": [{"logprob": math.log(one)} for one in top]} for top in tops]
    made = call("c", "ro", [], {"role": "assistant", "content": "x"}, (1, 2), (3, 4, 5))
    for name, listed in (("whole", content), ("short", content[1:]), ("none", "?")):
        choice = {"message": {"content": "x"}, "logprobs": {"content": listed}}
        store.add_call(replace(made, response_id=name, response={"choices": [choice]}))
    browser = opened(tmp_path)
    entropy = {
        name: browser.get(f"rollouts/ro/calls/{name}%3A0/tokens")["entropy"] for name in ("whole", "short", "none")
    }
    assert entropy.pop("whole") == [None, None, None, pytest.approx(1.5 * math.log(2)), 0.0]
    assert entropy == {"short": None, "none": None}


def test_a_call_without_token_ids_has_messages_and_no_tokens(
    opened: Opened, store: RolloutQueue, tmp_path: Path
) -> None:
    store.add_rollouts([Rollout("ro", "task", "run", {})])
    store.start_attempt("ro", 1)
    reply = {"role": "assistant", "content": "Hello"}
    store.add_call(call("c", "ro", [{"role": "user", "content": "x"}], reply, None, None))
    browser = opened(tmp_path)
    (step,) = browser.get("rollouts/ro")["steps"]
    assert (step["has_tokens"], step["prompt_tokens"], step["wrote"]["text"]) == (False, None, "Hello")
    assert browser.error("rollouts/ro/calls/c%3A0/tokens", 404) == "no_tokens"
    (row,) = browser.get("rollouts")["items"]
    assert (row["prompt_tokens"], row["turns"]) == (None, 1)


def test_a_prompt_in_other_tokens_is_marked(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    store.add_rollouts([Rollout("ro", "task", "run", {})])
    store.start_attempt("ro", 1)
    asked = [{"role": "user", "content": "x"}]
    reply = {"role": "assistant", "content": "Hello"}
    store.add_call(call("c1", "ro", asked, reply, (1, 2), (3, 4)))
    more = [*asked, reply, {"role": "user", "content": "y"}]
    store.add_call(call("c2", "ro", more, reply, (1, 2, 3, 9, 5), (6,), started_at=2.0))
    store.finish_attempt("ro", 1, Outcome.SUCCEEDED)
    browser = opened(tmp_path)
    assert [step["drift"] for step in browser.get("rollouts/ro")["steps"]] == [False, True]
    tokens = browser.get("rollouts/ro/calls/c2%3A0/tokens")
    assert (tokens["shared"], tokens["drift"]["at"]) == (3, 3)


@pytest.mark.parametrize("path", ["rollouts", "tasks", "rollouts/{}", "governance", "governance/decisions", "filters"])
def test_payloads_stay_texts(opened: Opened, store: RolloutQueue, tmp_path: Path, path: str) -> None:
    rollout_id = _record_payloads(store)
    browser = opened(tmp_path)
    answer = browser.client.get("api/" + path.format(_encoded(rollout_id)))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.content.isascii()
    assert "onerror=alert(1)" in json.dumps(answer.json())


def test_what_was_recorded_is_shown_as_it_is(opened: Opened, store: RolloutQueue, tmp_path: Path) -> None:
    rollout_id = _record_payloads(store)
    browser = opened(tmp_path)
    shown = browser.get(f"rollouts/{_encoded(rollout_id)}")
    (step,) = shown["steps"]
    assert step["messages"][0] == {"role": PAYLOAD, "text": {"text": PAYLOAD, "length": len(PAYLOAD), "ref": None}}
    assert step["wrote"]["text"] == PAYLOAD
    assert step["tools"][0]["arguments"]["text"] == PAYLOAD
    assert shown["loose_rewards"] == []
    (row,) = browser.get("rollouts", text="onerror=alert(1)")["items"]
    assert row["rollout_id"] == rollout_id


def _record_payloads(store: RolloutQueue) -> str:
    """One rollout with the payload in every field that a model, a tool, a task or a policy can fill."""
    name = PAYLOAD.replace("\x00", "").replace("\ud800", "")
    store.add_rollouts([Rollout(name, name, name, {name: PAYLOAD})])
    store.start_attempt(name, 1)
    function = {"name": PAYLOAD, "arguments": PAYLOAD}
    wrote = {
        "role": "assistant",
        "content": PAYLOAD,
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }
    one = call(name, name, [{"role": PAYLOAD, "content": PAYLOAD}], wrote, (1,), (2,), tools=(name,))
    store.add_call(replace(one, agent=name, model=name, finish_reason=name))
    decided = decision(name, "pre_tool_call", PAYLOAD, "deny", tool=name)
    kept = ("lgov.decision.effect", "gen_ai.tool.call.id")
    attributes = {key: value if key in kept else PAYLOAD for key, value in decided.attributes.items()}
    store.add_span(replace(decided, attributes=attributes))
    store.finish_attempt(name, 1, Outcome.FAILED, error=name, result=PAYLOAD, rewards=[Reward(1.0, name, source=name)])
    store.flush()
    return name


def _encoded(name: str) -> str:
    return quote(name, safe="")


def test_without_a_store_the_error_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as error:
        Window(str(tmp_path))
    assert "lgov run --store traces.sqlite" in str(error.value.hint)


def test_a_store_that_another_process_holds_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    with open_store(path) as store:
        store.add_rollouts([Rollout("r", "t", "", {}, 1.0)])
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    with closing(Window(str(path))) as window, ThreadPoolExecutor(6) as pages, closing(holder):
        began = time.monotonic()
        described = list(pages.map(lambda _: window.source(None).describe(), range(6)))
        assert time.monotonic() - began < 2
        for about in described:
            assert about["state"] == "unreadable"
            assert "is locked" in about["error"]["message"]
            assert "another process holds the file" in about["error"]["hint"]
        holder.execute("ROLLBACK")
        holder.close()
        time.sleep(0.6)
        assert window.source(None).describe()["counts"]["rollouts"] == 1
