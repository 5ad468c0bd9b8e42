"""``lgov traces list | export | prune | stats`` on a real store."""

from __future__ import annotations

import functools
import json
import operator
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lgov_core.commands import cli
from lgov_core.commands.group import Exit
from lgov_core.store import RolloutConfig, open_store
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout, Span, SpanEvent


def lgov(*arguments: str, given: str | None = None) -> Result:
    result = CliRunner().invoke(cli, arguments, prog_name="lgov", input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def call(response_id: str, rollout_id: str | None, at: float, prompt: tuple[int, ...] = (1, 2)) -> CapturedCall:
    return CapturedCall(
        response_id, "m", {"messages": [{"role": "user", "content": "hi ü"}]}, {}, prompt, (3,), (-0.1,), "stop", 0, 1.0,
        1.0, at, at + 1, rollout_id, 1, "a", ("t1",),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> str:
    place = str(tmp_path / "store.sqlite")
    with open_store(place) as made:  # type: ignore[attr-defined]
        made.add_rollouts([Rollout("told", "t1", "run1", {"q": 1}, 1000.0), Rollout("other", "t2", "run2", {}, 1500.0)])
        made.start_attempt("told", 1)
        made.add_call(call("c1", "told", 1001.0, tuple(range(50))))
        made.add_call(call("c2", "told", 1002.0, (*range(50), 3, 9)))
        made.finish_attempt("told", 1, Outcome.SUCCEEDED, rewards=[Reward(0.5), Reward(2.0, "air")])
        made.add_call(call("c3", "proxied", 900.0))
        made.add_rewards([Reward(1.0, rollout_id="proxied", response_id="c3")])
        made.add_spans([Span("execute_tool x", "s1", 800.0, 801.0, {"n": 1}, "spans-only", None, None, "tr",
                             (SpanEvent("e", 800.5, {"a": [1]}),), True)])  # fmt: skip
        made.add_call(call("c4", None, 10.0))
        made.enqueue([Rollout("waits", "t3", "run2", {}, 1000.0)], RolloutConfig(max_attempts=2))
    return place


def test_list_shows_also_what_nobody_announced(store: str) -> None:
    entries = json.loads(lgov("traces", "list", store, "--json").stdout)["attempts"]
    assert [(e["rollout_id"], e["attempt"], e["run_id"], e["outcome"]) for e in entries] == [
        ("spans-only", 1, None, "unknown"),
        ("proxied", 1, None, "unknown"),
        ("told", 1, "run1", "succeeded"),
    ]
    assert [e["rewards"] for e in entries] == [{}, {"task": 1.0}, {"task": 0.5, "air": 2.0}]
    shown = lgov("traces", "list", store, "--where", "outcome=unknown", "--limit", "1")
    assert "proxied" in shown.stdout
    assert "spans-only" not in shown.stdout
    assert shown.stderr == "1 of 2 attempts\n"
    assert (
        json.loads(lgov("traces", "list", store, "--where", "run=run1", "--json").stdout)["attempts"][0]["rollout_id"]
        == "told"
    )
    assert json.loads(lgov("traces", "list", store, "--where", "run=nobody", "--json").stdout)["attempts"] == []
    for rollout in ("proxied", "spans-only"):
        assert json.loads(lgov("traces", "show", store, rollout, "--json").stdout)["rollout_id"] == rollout


def test_rewards_stand_with_the_attempt_and_the_choice_that_they_are_of(tmp_path: Path) -> None:
    place = str(tmp_path / "retried.sqlite")
    with open_store(place) as made:  # type: ignore[attr-defined]
        made.add_rollouts([Rollout("r", "t", "run", {}, 1000.0)])
        for attempt, outcome in ((1, Outcome.TIMEOUT), (2, Outcome.SUCCEEDED)):
            made.start_attempt("r", attempt)
            for choice in (0, 1):
                one = call(f"c{attempt}", "r", 1000.0 + attempt)
                made.add_call(replace(one, attempt=attempt, choice=choice, tool_call_ids=()))
            made.finish_attempt("r", attempt, outcome)
        made.add_rewards(
            [
                Reward(1.0, rollout_id="r"),
                Reward(0.25, rollout_id="r", response_id="c2", choice=1),
                Reward(0.5, rollout_id="r", response_id="c1"),
            ]
        )
    entries = json.loads(lgov("traces", "list", place, "--json").stdout)["attempts"]
    assert [(one["attempt"], one["rewards"]) for one in entries] == [(1, {"task": 0.5}), (2, {"task": 1.25})]
    shown = [json.loads(lgov("traces", "show", place, "r", "--attempt", n, "--json").stdout) for n in ("1", "2")]
    assert [[one["value"] for one in each["rewards"]] for each in shown] == [[], [1.0]]
    assert [[[one["value"] for one in step["rewards"]] for step in each["steps"]] for each in shown] == [
        [[0.5], []],
        [[], [0.25]],
    ]
    assert "turn 2, choice 1" in lgov("traces", "show", place, "r").stdout
    table = lgov("transitions", place).stdout
    assert "c2, choice 1, set aside" in table


def test_rewards_that_cancel_out_are_nothing(tmp_path: Path) -> None:
    """What shaped rewards earn is taken back at the end: what is left of the sum in floating point is not a reward."""
    place = str(tmp_path / "s.sqlite")
    with open_store(place) as made:  # type: ignore[attr-defined]
        made.add_rollouts([Rollout("r", "t", "run", {}, 1000.0)])
        made.start_attempt("r", 1)
        values = [*[0.05] * 12, -0.2, -0.2, -0.1, -0.1]
        rewards = [Reward(value, "air") for value in values]
        assert functools.reduce(operator.add, values) != 0  # as floats add up; newer Pythons' sum is more exact
        made.finish_attempt("r", 1, Outcome.SUCCEEDED, rewards=[*rewards, Reward(1e-7), Reward(-2e-7)])
    assert json.loads(lgov("traces", "list", place, "--json").stdout)["attempts"][0]["rewards"] == {
        "air": 0.0,
        "task": -1e-7,
    }
    assert "air +0 " in f"{lgov('traces', 'list', place).stdout} "


def test_export_as_json_lines_has_everything(store: str, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in lgov("export", store).stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["rollout"] * 3 + ["attempt"] + ["call"] * 4 + ["reward"] * 3 + ["span"]
    calls = {line["response_id"]: line for line in lines if line["kind"] == "call"}
    assert calls["c2"]["prompt_ids"] == [*range(50), 3, 9]
    assert calls["c2"]["request"] == {"messages": [{"role": "user", "content": "hi ü"}]}
    assert (calls["c2"]["logprobs"], calls["c2"]["tool_call_ids"], calls["c4"]["rollout_id"]) == ([-0.1], ["t1"], None)
    assert lines[-1]["events"] == [{"name": "e", "at": 800.5, "attributes": {"a": [1]}}]
    assert lines[-1]["claimed"] is True
    told = lgov("export", store, "--to", "out.jsonl", "--where", "run=run1", "--json")
    assert json.loads(told.stdout) == {"to": "out.jsonl", "format": "jsonl", "rows": 6}
    some = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {line.get("rollout_id") for line in some} == {"told"}
    only = lgov("export", store, "--where", "rollout=proxied", "--where", "rollout=spans-only").stdout
    assert [json.loads(line)["kind"] for line in only.splitlines()] == ["call", "reward", "span"]


def test_export_overwrites_no_store(store: str, tmp_path: Path) -> None:
    before = Path(store).read_bytes()
    (tmp_path / "link").symlink_to(store)
    for name in ("store.sqlite", "link"):
        result = lgov("export", store, "--to", name, "--json")
        assert result.exit_code == Exit.FINDING
        assert json.loads(result.stderr)["error"]["code"] == "export"
    assert Path(store).read_bytes() == before
    assert lgov("export", store, "--format", "parquet").exit_code == Exit.USAGE


def test_export_as_parquet(store: str, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    assert lgov("export", store, "--format", "parquet", "--to", "out").stdout == "wrote 12 rows to out\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        f"{kind}.parquet" for kind in ("attempts", "calls", "rewards", "rollouts", "spans")
    ]
    calls = pq.read_table(tmp_path / "out" / "calls.parquet").to_pylist()
    assert calls[1]["prompt_ids"] == [*range(50), 3, 9]
    assert (calls[0]["logprobs"], calls[0]["rollout_id"], calls[3]["rollout_id"]) == ([-0.1], "told", None)
    assert json.loads(calls[0]["request"])["messages"][0]["content"] == "hi ü"
    (span,) = pq.read_table(tmp_path / "out" / "spans.parquet").to_pylist()
    assert (span["ended_at"], json.loads(span["events"])[0]["name"]) == (801.0, "e")


def test_prune_asks_first_and_spares_what_runs(store: str) -> None:
    assert lgov("traces", "prune", store).exit_code == Exit.USAGE
    assert lgov("traces", "prune", store, "--before", "yesterday").exit_code == Exit.USAGE
    dry = json.loads(lgov("traces", "prune", store, "--before", "0s", "--dry-run", "--json").stdout)
    assert dry == {
        "store": store, "dry_run": True, "vacuum": False,
        "rollouts": 4, "attempts": 1, "calls": 4, "rewards": 3, "spans": 1, "spared": ["waits"],
    }  # fmt: skip
    refused = lgov("traces", "prune", store, "--before", "0s", given="n\n")
    assert refused.exit_code == Exit.INTERRUPTED
    assert len(lgov("export", store).stdout.splitlines()) == 12
    assert lgov("traces", "prune", store, "--before", "1970-01-01T00:15", "--yes").stdout.startswith(
        "deleted 1 rollout,"
    )
    names = {e["rollout_id"] for e in json.loads(lgov("traces", "list", store, "--json").stdout)["attempts"]}
    assert names == {"proxied", "told"}
    done = lgov("traces", "prune", store, "--keep-last", "0", "--vacuum", "--yes")
    assert done.stdout.startswith("deleted 3 rollouts, 1 attempt, 3 calls")
    assert "spared because they wait or run: 1 rollout" in done.stdout
    assert lgov("traces", "prune", store, "--vacuum").exit_code == Exit.OK
    with open_store(store) as left:  # type: ignore[attr-defined]
        assert [r.rollout_id for r in left.rollouts()] == ["waits"]
        assert list(left.calls()) == []


def test_ages_count_back_from_now(store: str) -> None:
    with open_store(store) as made:  # type: ignore[attr-defined]
        made.add_rollouts([Rollout("fresh", "t", "run1", {}, time.time() - 3000)])
    for age, gone in (("1h", False), ("30m", True)):
        lgov("traces", "prune", store, "--before", age, "--yes")
        with open_store(store) as left:  # type: ignore[attr-defined]
            assert ("fresh" not in {r.rollout_id for r in left.rollouts()}) is gone


def test_stats(store: str) -> None:
    found = json.loads(lgov("traces", "list", store, "--json").stdout)["store"]
    assert (found["rollouts"], found["named_only"], found["calls"], found["queue"]) == (3, 2, 4, {"queued": 1})
    assert found["size_bytes"] > 0
    text = lgov("traces", "list", store).stdout
    assert "3 rollouts, and 2 that only calls" in text
    assert "1970-01-01 00:13:21" in text
