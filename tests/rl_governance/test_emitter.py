"""Entries of a flight recorder as spans: names, summary, new spans, streams."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emitter_cases import ALL, CHECK, SIGNAL, Recorder

from lgov_core import LgovError
from lgov_core.emitter import FlightRecorderEmitter, LightningSpan, create_emitter
from lgov_core.errors import ExportError


def test_each_entry_is_one_span_with_documented_attributes() -> None:
    check, signal, call, other = FlightRecorderEmitter(Recorder(*ALL)).get_spans()
    assert [span.name for span in (check, signal, call, other)] == [
        "agent_os.policy_check", "agent_os.signal", "agent_os.tool_call", "agent_os.note"
    ]  # fmt: skip
    assert (check.span_id, check.trace_id, check.start_time) == (
        "e1", "agentos-agent-42", datetime(2026, 11, 21, 10, tzinfo=UTC)
    )  # fmt: skip
    assert check.attributes == {
        "agent_os.entry_type": "policy_check",
        "agent_os.agent_id": "agent-42",
        "agent_os.policy_name": "SQLPolicy",
        "agent_os.policy_result": "denied",
        "agent_os.policy_violated": True,
        "agent_os.entry_id": "e1",
        "agent_os.violation_reason": "it destroys a table",
        "agent_os.severity": "critical",
        "agent_os.rollout_id": "r1",
    }
    assert signal.attributes["agent_os.signal_type"] == "SIGTERM"
    assert signal.attributes["agent_os.signal_target"] == "agent-42"
    assert signal.start_time == datetime.fromtimestamp(5.5, UTC)
    assert call.attributes["agent_os.tool_name"] == "run_sql"
    assert len(call.attributes["agent_os.tool_args"]) == 1000
    assert call.attributes["agent_os.tool_args"].startswith('{"query": "xxx')
    assert call.attributes["agent_os.tool_result"] == "y" * 1000
    assert call.attributes["agent_os.metadata.step"] == 3
    assert call.end_time is not None
    assert (call.end_time - call.start_time).total_seconds() == 0.25
    assert other.trace_id == "agentos-unknown"
    (nobodys,) = FlightRecorderEmitter(Recorder({**CHECK, "agent_id": None})).get_spans()
    assert (nobodys.trace_id, nobodys.attributes["agent_os.agent_id"]) == ("agentos-r1", None)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, ["e1", "e2", "e3", "e4"]),
        ({"include_policy_checks": False}, ["e2", "e3", "e4"]),
        ({"include_signals": False}, ["e1", "e3", "e4"]),
        ({"include_tool_calls": False, "include_signals": False}, ["e1", "e4"]),
    ],
)
def test_types_can_be_left_out(options: dict[str, Any], left: list[str]) -> None:
    emitter = create_emitter(Recorder(*ALL), **options)
    assert [span.span_id for span in emitter.get_spans()] == left
    assert [span.span_id for span in emitter.get_new_spans()] == left


def test_the_prefix_begins_the_trace_id() -> None:
    (span,) = create_emitter(Recorder(CHECK), trace_id_prefix="my-run").get_spans()
    assert span.trace_id == "my-run-agent-42"
    with pytest.raises(TypeError, match="include_signal"):
        create_emitter(Recorder(), include_signal=False)  # type: ignore[call-arg]


class Verdict(Enum):
    DENY = "deny"


class Unwritable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def cyclic() -> dict[str, Any]:
    knot: dict[str, Any] = {}
    knot["again"] = knot
    return knot


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), b"\xff", {1, 2}, {("a", 1): {"b": object()}}, Verdict.DENY, Unwritable(), cyclic(),
     10**6000, "\ud800", datetime(2026, 1, 1), [None, True]],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.parametrize("key", ["tool_args", "result", "metadata", "timestamp", "agent_id", "policy_verdict", "extra"])
def test_whatever_an_entry_holds_becomes_json(key: str, value: Any, tmp_path: Path) -> None:
    emitter = FlightRecorderEmitter(Recorder({"entry_type": "tool_call", "tool_name": "t", key: value}))
    (span,) = emitter.get_spans()
    assert json.loads(span.to_json()) == span.to_dict()
    assert emitter.export_to_file(tmp_path / "a.json") == 1
    assert json.loads((tmp_path / "a.json").read_text())[0]["name"] == "agent_os.tool_call"


@dataclass(slots=True)
class Slotted:
    entry_type: str = "signal"
    signal_type: str = "SIGSTOP"


@pytest.mark.parametrize("entry", [{}, Slotted(), SimpleNamespace(entry_type="signal"), 7, "text"])
def test_an_entry_of_any_shape_is_a_span(entry: Any) -> None:
    (span,) = FlightRecorderEmitter(Recorder(entry)).get_spans()
    assert span.span_id == "entry-1"
    json.loads(span.to_json())


def test_a_span_can_be_made_by_hand_as_documented() -> None:
    now = datetime.now(UTC)
    span = LightningSpan("entry-001", "agentos-agent-42", "agent_os.policy_check", now, now, {"a": 1}, [])
    assert list(span.to_dict()) == [
        "span_id", "trace_id", "name", "start_time", "end_time", "attributes", "events"
    ]  # fmt: skip
    assert json.loads(span.to_json())["start_time"] == now.isoformat()


@pytest.mark.parametrize("thing", [None, object(), [], Recorder, SimpleNamespace(get_log=3)])
def test_an_object_that_is_not_a_recorder_is_refused(thing: Any) -> None:
    with pytest.raises(ExportError, match="not a flight recorder") as raised:
        FlightRecorderEmitter(thing)
    assert isinstance(raised.value, LgovError)


def test_a_recorder_must_return_a_list() -> None:
    with pytest.raises(ExportError, match="not return a list"):
        FlightRecorderEmitter(SimpleNamespace(get_log=lambda: None)).get_spans()


def test_the_summary_counts_enforced_findings_by_policy() -> None:
    denied = {"entry_type": "policy_check", "policy_name": "SQLPolicy", "policy_verdict": "denied"}
    recorder = Recorder(
        denied,
        {**denied, "policy_name": "CostControlPolicy"},
        denied,
        {**denied, "policy_verdict": "allowed"},
        {**denied, "policy_verdict": "shadow"},
        {**denied, "fault": True},
        {**denied, "policy_verdict": "allowed", "metadata": {"effect": "warn"}},
        {**denied, "policy_verdict": "allowed", "metadata": {"effect": "allow"}},
        {**denied, "policy_verdict": "something new", "policy_name": None},
        SIGNAL,
        {"entry_type": "tool_call", "policy_verdict": "blocked"},
        {"policy_verdict": Verdict.DENY, "policy_name": "SQLPolicy", "tool_name": "no type named"},
    )
    emitter = FlightRecorderEmitter(recorder, include_policy_checks=False)
    assert emitter.get_violation_summary() == {
        "total_entries": 12,
        "total_violations": 6,
        "violation_rate": 0.5,
        "policies_violated": {"SQLPolicy": 4, "CostControlPolicy": 1, "unknown": 1},
    }
    assert FlightRecorderEmitter(Recorder()).get_violation_summary() == {
        "total_entries": 0, "total_violations": 0, "violation_rate": 0.0, "policies_violated": {}
    }  # fmt: skip


def numbered(start: int, end: int) -> list[dict[str, Any]]:
    return [{"entry_type": "tool_call", "entry_id": f"e{number}"} for number in range(start, end)]


def test_new_spans_come_once_and_all_spans_always() -> None:
    recorder = Recorder(*numbered(0, 3))
    emitter = FlightRecorderEmitter(recorder)
    assert [span.span_id for span in emitter.get_new_spans()] == ["e0", "e1", "e2"]
    assert emitter.get_new_spans() == []
    recorder.entries += numbered(3, 5)
    assert len(emitter.get_spans()) == 5
    assert [span.span_id for span in emitter.get_new_spans()] == ["e3", "e4"]
    assert len(emitter.get_spans()) == 5


@pytest.mark.parametrize(("kept", "new"), [(slice(2, None), ["e3", "e4"]), (slice(4, None), ["e4"])])
def test_a_recorder_that_forgets_old_entries_loses_no_new_ones(kept: slice, new: list[str]) -> None:
    recorder = Recorder(*numbered(0, 3))
    emitter = FlightRecorderEmitter(recorder)
    emitter.get_new_spans()
    recorder.entries = (recorder.entries + numbered(3, 5))[kept]
    assert [span.span_id for span in emitter.get_new_spans()] == new
    recorder.entries += numbered(5, 6)
    assert [span.span_id for span in emitter.get_new_spans()] == ["e5"]


@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_recorder_with_positions_returns_new_entries_only(step: int) -> None:
    asked: list[int] = []
    entries = [{**entry, **({"position": at * step} if step else {})} for at, entry in enumerate(numbered(0, 100), 1)]

    def get_log(*, after: int = 0) -> list[Any]:
        asked.append(after)
        return [entry for at, entry in enumerate(entries, 1) if entry.get("position", at) > after]

    emitter = FlightRecorderEmitter(SimpleNamespace(get_log=get_log))
    assert len(emitter.get_new_spans()) == 100
    assert emitter.get_new_spans() == []
    entries.append({"entry_id": "e100", **({"position": 101 * step} if step else {})})
    assert [span.span_id for span in emitter.get_new_spans()] == ["e100"]
    assert asked == [0, 100 * (step or 1), 100 * (step or 1)]


def test_a_query_with_a_default_limit_returns_everything() -> None:
    entries = numbered(0, 500)

    class Limited:
        def query_logs(self, limit: int = 100) -> list[Any]:
            return entries[:limit]

    assert len(FlightRecorderEmitter(Limited()).get_spans()) == 500


def test_a_query_that_answers_the_newest_first_loses_nothing() -> None:
    entries = [{**entry, "timestamp": float(at)} for at, entry in enumerate(numbered(0, 3))]
    emitter = FlightRecorderEmitter(SimpleNamespace(query_logs=lambda: entries[::-1]))
    assert [span.span_id for span in emitter.get_new_spans()] == ["e0", "e1", "e2"]
    entries.append({"entry_id": "e3", "timestamp": 9.0})
    assert [span.span_id for span in emitter.get_new_spans()] == ["e3"]


def test_a_recorder_that_buffers_is_flushed_first() -> None:
    waiting, written = numbered(0, 2), []

    class Buffering:
        def flush(self) -> None:
            written.extend(waiting)
            waiting.clear()

        def get_log(self) -> list[Any]:
            return written

    assert len(FlightRecorderEmitter(Buffering()).get_spans()) == 2


def test_many_threads_share_the_news_without_loss_or_repetition() -> None:
    recorder = Recorder()
    emitter = FlightRecorderEmitter(recorder)
    seen: list[list[str]] = [[] for _ in range(4)]
    done = threading.Event()

    def read(mine: list[str]) -> None:
        while True:
            last = done.is_set()
            mine.extend(span.span_id for span in emitter.get_new_spans())
            if last:
                return

    threads = [threading.Thread(target=read, args=(mine,)) for mine in seen]
    for thread in threads:
        thread.start()
    for number in range(2000):
        recorder.entries.append({"entry_type": "tool_call", "entry_id": f"e{number}"})
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(name for mine in seen for name in mine) == sorted(f"e{number}" for number in range(2000))


async def test_the_stream_ends_after_the_rest_once_stopped() -> None:
    recorder = Recorder(*numbered(0, 2))
    stop = asyncio.Event()
    seen: list[str] = []
    async for span in FlightRecorderEmitter(recorder).stream(stop, poll_interval=0.001):
        seen.append(span.span_id)
        if span.span_id == "e1":
            recorder.entries += numbered(2, 4)
        if span.span_id == "e3":
            recorder.entries += numbered(4, 6)
            stop.set()
    assert seen == [f"e{number}" for number in range(6)]


@pytest.mark.parametrize("make", [asyncio.Event, threading.Event])
async def test_a_stream_stopped_before_it_begins_yields_nothing_and_loses_nothing(make: Any) -> None:
    stop = make()
    stop.set()
    emitter = FlightRecorderEmitter(Recorder(*numbered(0, 3)))
    assert [span.span_id async for span in emitter.stream(stop)] == []
    assert [span.span_id for span in emitter.get_new_spans()] == ["e0", "e1", "e2"]


async def test_who_leaves_a_stream_early_finds_the_rest_later() -> None:
    emitter = FlightRecorderEmitter(Recorder(*numbered(0, 5)))
    async for _ in emitter.stream():
        break
    assert [span.span_id for span in emitter.get_new_spans()] == ["e1", "e2", "e3", "e4"]


async def test_a_stream_may_look_again_at_once() -> None:
    recorder, stop = Recorder(*numbered(0, 1)), asyncio.Event()
    seen: list[str] = []
    async for span in FlightRecorderEmitter(recorder).stream(stop, poll_interval=0.0):
        seen.append(span.span_id)
        recorder.entries += numbered(len(seen), len(seen) + 1)
        if len(seen) == 3:
            stop.set()
            recorder.entries.pop()
    assert seen == ["e0", "e1", "e2"]


@pytest.mark.parametrize("interval", [-1, float("nan"), "soon"])
async def test_an_interval_that_is_no_time_is_refused(interval: Any) -> None:
    with pytest.raises(ExportError, match="poll_interval"):
        _ = [span async for span in FlightRecorderEmitter(Recorder()).stream(poll_interval=interval)]


def test_every_span_that_was_handed_out_counts_as_emitted(tmp_path: Path) -> None:
    emitter = FlightRecorderEmitter(Recorder(*numbered(0, 3)))
    emitter.get_spans()
    assert emitter.get_stats() == {"emitted_count": 3, "last_position": 0}
    emitter.get_violation_summary()
    emitter.get_new_spans()
    assert emitter.get_stats() == {"emitted_count": 6, "last_position": 3}
    emitter.export_to_file(tmp_path / "spans.json")
    assert emitter.get_stats()["emitted_count"] == 9
