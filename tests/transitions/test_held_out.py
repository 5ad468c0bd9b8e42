"""Rollouts that measure a model come into no training data, unless they are asked for; then each row is marked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lgov_core import Effect, GovernedRunner, KernelSpace
from lgov_core.commands import cli
from lgov_core.policies import ConstantPolicy
from lgov_core.store import open_store
from lgov_core.trace import semconv
from lgov_core.trace.rollout_spans import rollout_spans
from lgov_core.trace.sink import StoreSink
from lgov_core.transitions import (
    DataFinding,
    Selection,
    assign_credit,
    build_transitions,
    make_transitions,
    read_spans,
    read_store,
    write_parquet,
)
from lgov_core.transitions.messages import preference_pairs
from lgov_core.transitions.records import Records, join
from lgov_core.transitions.rows import read_parquet
from lgov_core.types import CapturedCall, JSONValue, Outcome, Reward, Rollout, Span

#: The input of a rollout to train on, and of those that measure: as lgov, agent-lightning and a runner write it.
TRAIN: Mapping[str, JSONValue] = {"task": {}, "mode": "train"}
MEASURE: dict[str, Mapping[str, JSONValue]] = {
    "test": {"task": {}, "mode": "test"},
    "val": {"input": None, "is_train": False},
    "eval": {"mode": "eval"},
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with two rollouts of one task to train on, and one of each kind that measures."""
    path = tmp_path / "store.sqlite"
    with contextlib.closing(open_store(str(path))) as store:
        for number, given in enumerate([TRAIN, {**TRAIN, "is_train": True}, *MEASURE.values()]):
            rollout_id = f"ro_{number}"
            store.add_rollouts([Rollout(rollout_id, "t", "run", given, float(number))])
            store.start_attempt(rollout_id, 1)
            request = {"messages": [{"role": "user", "content": "q"}]}
            response = {"choices": [{"message": {"role": "assistant", "content": f"answer {number}"}}]}
            store.add_call(
                CapturedCall(
                    f"call_{number}", "m", request, response, (1, 2), (3, number), (-0.5, -0.5), "stop", 0, 1.0, 1.0,
                    1.0, 2.0, rollout_id, 1,
                )
            )  # fmt: skip
            store.finish_attempt(rollout_id, 1, Outcome.SUCCEEDED, rewards=[Reward(number % 2, "task", rollout_id, 1)])
    return path


def transitions(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["transitions", *arguments])


def test_only_rollouts_to_train_on_become_transitions(place: Path) -> None:
    with contextlib.closing(open_store(str(place))) as store:
        data = build_transitions(store)
        everything = build_transitions(store, selection=Selection(held_out=True))
    assert [one.rollout_id for one in data.transitions] == ["ro_0", "ro_1"]
    assert not data.diagnostics
    assert [one.held_out for one in everything.transitions] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ([], ["ro_0", "ro_1"]),
        (["--split", "train"], ["ro_0", "ro_1"]),
        (["--split", "held-out"], ["ro_2", "ro_3", "ro_4"]),
        (["--split", "all"], ["ro_0", "ro_1", "ro_2", "ro_3", "ro_4"]),
    ],
)
def test_a_split_is_chosen(place: Path, options: list[str], ids: list[str]) -> None:
    rows = json.loads(transitions(str(place), "--json", *options).stdout)
    assert [row["rollout_id"] for row in rows] == ids


def test_a_run_folder_is_its_store(place: Path) -> None:
    assert transitions(str(place.parent), "--json").stdout == transitions(str(place), "--json").stdout


def test_a_cancelled_rollout_is_not_an_open_attempt(place: Path) -> None:
    with contextlib.closing(open_store(str(place))) as store:
        store.add_rollouts([Rollout("ro_9", "t", "run", TRAIN, 9.0)])
        assert build_transitions(store).counts() == {"no_attempt": 1}


def test_attempts_are_chosen_by_what_they_earned(place: Path) -> None:
    rows = json.loads(transitions(str(place), "--json").stdout)
    earned = {row["rollout_id"]: sum(row["rewards"].values()) for row in rows}
    low, high = sorted(set(earned.values()))
    for options, wanted in (
        (["--min-reward", str(high)], high),
        (["--max-reward", f"task={low}"], low),
        (["--min-reward", str(low), "--max-reward", str(low)], low),
    ):
        chosen = json.loads(transitions(str(place), "--json", *options).stdout)
        assert {row["rollout_id"] for row in chosen} == {name for name, value in earned.items() if value == wanted}
        assert all(row in rows for row in chosen), "credit stays what it was among all"
    assert json.loads(transitions(str(place), "--json", "--min-reward", "air=1").stdout) == []
    assert transitions(str(place), "--min-reward", "task=").exit_code == 2


def test_spans_keep_what_a_rollout_is_for(place: Path) -> None:
    with contextlib.closing(open_store(str(place))) as store:
        spans = [span for number in range(5) for span in rollout_spans(store, f"ro_{number}")]
    records = read_spans(spans)
    assert [one.rollout_id for one in make_transitions(records).transitions] == ["ro_0", "ro_1"]
    assert len(make_transitions(records, Selection(held_out=True)).transitions) == 5


def _in_store(place: Path, given: Mapping[str, JSONValue], **attributes: JSONValue) -> list[str]:
    """The rollouts to train on of the store's first one, whose record is ``given``, and a span with ``attributes``."""
    with contextlib.closing(open_store(str(place))) as store:
        recorded = read_store(store, ["ro_0"])
    span = Span("x", "span", 1.0, 2.0, attributes, "ro_0", 1)
    records = join(replace(recorded, rollouts=(replace(recorded.rollouts[0], input=given),)), [span])
    return [one.rollout_id for one in make_transitions(records).transitions]


def test_a_span_says_what_a_rollout_is_for_where_the_record_does_not(place: Path) -> None:
    mode = {semconv.ROLLOUT_MODE: "test"}
    assert _in_store(place, {"command": ["python", "agent.py"]}) == ["ro_0"]
    assert _in_store(place, {"command": ["python", "agent.py"]}, **mode) == []
    assert _in_store(place, {"command": ["python", "agent.py"]}, **mode, **{semconv.REWARD_VALUE: 1.0}) == []
    assert _in_store(place, TRAIN, **mode) == ["ro_0"], "the record is the truth where it says something"


@pytest.mark.parametrize("mode", [None, "test"])
def test_a_reward_span_says_it_of_a_rollout_that_only_calls_name(place: Path, mode: str | None) -> None:
    with contextlib.closing(open_store(str(place))) as store:
        calls = read_store(store, ["ro_0"]).calls
    attributes = {semconv.REWARD_VALUE: 1.0, **({} if mode is None else {semconv.ROLLOUT_MODE: mode})}
    span = Span(semconv.REWARD_SPAN_NAME, "span", 1.0, 2.0, attributes, "ro_0", 1)
    found = make_transitions(join(Records(calls=calls), [span]))
    assert [one.rollout_id for one in found.transitions] == (["ro_0"] if mode is None else [])


@pytest.mark.parametrize("mode", ["Test", "validation", "dev", ""])
def test_nothing_is_trained_on_a_mode_that_is_not_training(place: Path, mode: str) -> None:
    assert _in_store(place, {"mode": mode}) == []
    assert _in_store(place, {}, **{semconv.ROLLOUT_MODE: mode}) == []


async def test_a_runner_writes_what_its_rollouts_are_for() -> None:
    with contextlib.closing(open_store("memory://")) as store:
        runner = GovernedRunner(KernelSpace(ConstantPolicy(Effect.ALLOW, name="all"), plugins=[StoreSink(store)]))
        runner.init(lambda task: task)
        measured = await runner.step("q", mode="eval")
        trained = await runner.step("q")
        store.add_rollouts([Rollout("mine", "t", "run", {"input": "q", "mode": "eval"})])
        runner.init_worker(0, store)
        await runner.iter()
        store.flush()
        held_out = read_spans(store.spans()).held_out
    assert held_out.keys() == {measured.rollout_id, "mine"}
    assert trained.mode == "train"


def test_a_mode_that_is_not_text_is_a_finding(place: Path) -> None:
    with contextlib.closing(open_store(str(place))) as store:
        spans = list(rollout_spans(store, "ro_0"))
    for mode in (["test"], {"a": 1}, 3):
        odd = [replace(one, attributes={**one.attributes, semconv.ROLLOUT_MODE: mode}) for one in spans]
        records = read_spans(odd)
        assert {one.finding for one in records.diagnostics} == {DataFinding.INVALID_ATTRIBUTE}
        assert [one.rollout_id for one in make_transitions(records).transitions] == ["ro_0"]


def test_a_pair_with_a_held_out_reply_is_marked(place: Path) -> None:
    with contextlib.closing(open_store(str(place))) as store:
        records = read_store(store)
    rollouts = [
        replace(one, input=TRAIN if one.rollout_id == "ro_1" else MEASURE["test"])
        for one in records.rollouts
        if one.rollout_id in ("ro_0", "ro_1")
    ]
    data = make_transitions(replace(records, rollouts=tuple(rollouts)), Selection(held_out=True))
    (pair,) = preference_pairs(assign_credit(data), records.calls).records
    assert (pair["chosen_response_id"], pair["held_out"]) == ("call_1", True)


def test_parquet_keeps_the_mark(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason='needs the extra "train"')
    with contextlib.closing(open_store(str(place))) as store:
        data = build_transitions(store, selection=Selection(held_out=True))
    written = write_parquet(data.transitions, tmp_path / "rows.parquet")
    assert [one.held_out for one in read_parquet(written)] == [False, False, True, True, True]


@pytest.mark.parametrize("form", [None, "chains", "verl", "trl", "sft", "preferences", "prompts"])
def test_no_format_takes_held_out_rollouts_unless_asked(form: str | None, place: Path) -> None:
    chosen = [] if form is None else ["--chains"] if form == "chains" else ["--format", form]
    plain = transitions(str(place), *chosen, "--json")
    asked = transitions(str(place), *chosen, "--json", "--split", "all")
    assert plain.exit_code == asked.exit_code == 0, plain.output + asked.output
    assert "3 held-out rollouts are left out; --split all takes them" in plain.stderr
    assert "left out; --split" not in asked.stderr
    rows, more = json.loads(plain.stdout), json.loads(asked.stdout)
    assert rows
    if form == "preferences":
        compared = {rows[0]["chosen_response_id"], rows[0]["rejected_response_id"]}
        assert compared == {"call_0", "call_1"}
        assert "held_out" in more[0]
    else:
        mark = "lgov_held_out" if form == "verl" else "held_out"
        assert [row[mark] for row in rows] == [False, False]
        assert sorted(row[mark] for row in more) == [False, False, True, True, True]
