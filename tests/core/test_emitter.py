"""What a flight recorder wrote, as spans: one an entry, none lost, none twice, and nothing silent."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lgov_core import Action, Decision, Effect, Governor, LgovError, Point, open_store
from lgov_core._util.sqlite_file import is_database
from lgov_core.audit import FlightRecorder, verify
from lgov_core.emitter import FlightRecorderEmitter, LightningSpan, create_emitter
from lgov_core.errors import ExportError
from lgov_core.policies import ConstantPolicy
from lgov_core.store.sqlite.store import SQLiteStore


class Recorder:
    """The smallest recorder there is: a list of entries."""

    def __init__(self, *entries: Any) -> None:
        self.entries = list(entries)
        self.reads = 0

    def get_log(self) -> list[Any]:
        self.reads += 1
        return list(self.entries)


CHECK = {
    "entry_type": "policy_check",
    "entry_id": "e1",
    "agent_id": "agent-42",
    "policy_name": "SQLPolicy",
    "policy_verdict": "blocked",
    "violation_reason": "it destroys a table",
    "severity": "critical",
    "timestamp": "2026-11-21T10:00:00Z",
    "rollout_id": "r1",
}
SIGNAL = {"entry_type": "signal", "entry_id": "e2", "agent_id": "agent-42", "signal_type": "SIGTERM", "timestamp": 5.5}
CALL = {
    "entry_type": "tool_call",
    "entry_id": "e3",
    "agent_id": "agent-42",
    "tool_name": "run_sql",
    "tool_args": {"query": "x" * 2000},
    "tool_result": "y" * 2000,
    "timestamp": datetime(2026, 11, 21, 10, 0, 1),
    "execution_time_ms": 250.0,
    "metadata": {"step": 3},
}
OTHER = {"entry_type": "note", "entry_id": "e4"}
ALL = (CHECK, SIGNAL, CALL, OTHER)


# ---------------------------------------------------------------------- entries to spans


def test_each_entry_is_one_span_with_the_documented_names_and_attributes() -> None:
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


def test_the_prefix_is_that_of_the_trace_and_an_unknown_option_is_an_error() -> None:
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
def test_what_is_no_recorder_is_refused(thing: Any) -> None:
    with pytest.raises(ExportError, match="not a flight recorder") as raised:
        FlightRecorderEmitter(thing)
    assert isinstance(raised.value, LgovError)


def test_a_recorder_that_answers_no_list_is_an_error_and_not_an_empty_record() -> None:
    with pytest.raises(ExportError, match="not return a list"):
        FlightRecorderEmitter(SimpleNamespace(get_log=lambda: None)).get_spans()


# ---------------------------------------------------------------------- the summary


def test_the_summary_counts_enforced_findings_by_policy_whatever_is_left_out() -> None:
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


# ---------------------------------------------------------------------- news


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
def test_a_recorder_that_can_be_asked_by_position_is_asked_for_news_only(step: int) -> None:
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


def test_a_query_with_a_limit_of_its_own_is_asked_for_everything() -> None:
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


# ---------------------------------------------------------------------- the stream


async def test_the_stream_yields_what_comes_and_ends_after_the_rest_when_told() -> None:
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
async def test_a_stream_that_was_told_to_stop_before_still_drains(make: Any) -> None:
    stop = make()
    stop.set()
    emitter = FlightRecorderEmitter(Recorder(*numbered(0, 3)))
    assert [span.span_id async for span in emitter.stream(stop)] == ["e0", "e1", "e2"]


async def test_who_leaves_a_stream_early_finds_the_rest_later() -> None:
    emitter = FlightRecorderEmitter(Recorder(*numbered(0, 5)))
    async for _ in emitter.stream():
        break
    assert [span.span_id for span in emitter.get_new_spans()] == ["e1", "e2", "e3", "e4"]


async def test_a_stream_that_would_never_rest_is_refused() -> None:
    with pytest.raises(ExportError, match="poll_interval"):
        _ = [span async for span in FlightRecorderEmitter(Recorder()).stream(poll_interval=0)]


# ---------------------------------------------------------------------- stores


class Taking:
    def __init__(self) -> None:
        self.spans: list[LightningSpan] = []

    def emit_span(self, span: LightningSpan) -> None:
        self.spans.append(span)


class AsyncTaking:
    def __init__(self) -> None:
        self.spans: list[LightningSpan] = []

    async def add_span(self, span: LightningSpan) -> LightningSpan:
        await asyncio.sleep(0)
        self.spans.append(span)
        return span


class Hidden(AsyncTaking):
    def add_span(self, span: LightningSpan) -> Any:  # type: ignore[override]  # a plain function that answers a coroutine
        return super().add_span(span)


@pytest.mark.parametrize("make", [Taking, AsyncTaking, Hidden])
def test_any_store_gets_every_span(make: Any) -> None:
    store = make()
    assert FlightRecorderEmitter(Recorder(*ALL)).emit_to_store(store) == 4
    assert [span.span_id for span in store.spans] == ["e1", "e2", "e3", "e4"]


def test_an_asynchronous_store_lives_in_one_loop() -> None:
    loops: list[Any] = []

    class Bound(AsyncTaking):
        async def add_span(self, span: LightningSpan) -> LightningSpan:
            loops.append(asyncio.get_running_loop())
            return await super().add_span(span)

    FlightRecorderEmitter(Recorder(*ALL)).emit_to_store(Bound())
    assert len(loops) == 4
    assert len({id(loop) for loop in loops}) == 1


@pytest.mark.parametrize("make", [Taking, AsyncTaking, Hidden])
async def test_any_store_gets_every_span_inside_a_loop(make: Any) -> None:
    store = make()
    assert await FlightRecorderEmitter(Recorder(*ALL)).aemit_to_store(store) == 4
    assert len(store.spans) == 4


@pytest.mark.parametrize("make", [AsyncTaking, Hidden])
async def test_an_asynchronous_store_inside_a_loop_is_refused_and_not_forgotten(make: Any) -> None:
    with pytest.raises(ExportError, match="aemit_to_store"):
        FlightRecorderEmitter(Recorder(*ALL)).emit_to_store(make())


class Picky(Taking):
    def emit_span(self, span: LightningSpan) -> Any:
        if span.span_id == "e2":
            raise OSError("disk full")
        if span.span_id == "e3":
            return False
        return super().emit_span(span)


class AsyncPicky(Picky):
    async def emit_span(self, span: LightningSpan) -> Any:
        return super().emit_span(span)


@pytest.mark.parametrize("make", [Picky, AsyncPicky])
def test_what_was_not_stored_is_not_counted_and_is_told(make: Any) -> None:
    store = make()
    with pytest.raises(ExportError, match=r"2 of 4 spans were not stored: OSError\('disk full'\)") as raised:
        FlightRecorderEmitter(Recorder(*ALL)).emit_to_store(store)
    assert raised.value.stored == 2
    assert isinstance(raised.value.__cause__, OSError)
    assert [span.span_id for span in store.spans] == ["e1", "e4"]


def test_a_store_without_spans_is_refused() -> None:
    with pytest.raises(ExportError, match="takes no spans"):
        FlightRecorderEmitter(Recorder()).emit_to_store(object())


def test_lgovs_own_store_keeps_them_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    store = open_store(str(path))
    entries = [{**CHECK, "entry_id": f"e{number}", "attempt": 2} for number in range(3000)]
    assert FlightRecorderEmitter(Recorder(*entries, CALL)).emit_to_store(store) == 3001
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM spans").fetchone() == (3001,)
    (*_, last) = store.spans(["r1"])
    assert (last.name, last.span_id, last.attempt) == ("agent_os.policy_check", "e2999", 2)
    assert last.attributes["agent_os.trace_id"] == "agentos-agent-42"
    store.close()


def test_spans_that_a_store_dropped_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    store = SQLiteStore(path, span_queue=0)  # always full
    emitter = FlightRecorderEmitter(Recorder(*({**CHECK, "entry_id": f"e{number}"} for number in range(2000))))
    with pytest.raises(ExportError, match="2000 of 2000 spans were not stored") as raised:
        emitter.emit_to_store(store)
    assert raised.value.stored == len(store.spans()) == 0
    store.close()


def test_a_store_that_is_closed_is_no_success(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "traces.db"))
    store.close()
    with pytest.raises(ExportError, match="2 of 2") as raised:
        FlightRecorderEmitter(Recorder(CHECK, CALL)).emit_to_store(store)
    assert raised.value.stored == 0


# ---------------------------------------------------------------------- files


def test_the_file_is_a_json_array_with_one_object_an_entry(tmp_path: Path) -> None:
    emitter = FlightRecorderEmitter(Recorder(*ALL))
    path = tmp_path / "audit.json"
    assert emitter.export_to_file(str(path)) == 4
    text = path.read_text()
    assert json.loads(text) == [span.to_dict() for span in emitter.get_spans()]
    assert text == json.dumps(json.loads(text), indent=2) + "\n"
    assert FlightRecorderEmitter(Recorder()).export_to_file(path) == 0
    assert json.loads(path.read_text()) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["audit.json"]


def test_a_link_is_refused_and_what_it_names_stays(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    for name, target in (("link", precious), ("dangling", tmp_path / "nowhere")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(ExportError, match="symbolic link"):
            FlightRecorderEmitter(Recorder(CHECK)).export_to_file(tmp_path / name)
        assert (tmp_path / name).is_symlink()
    assert precious.read_text() == "keep"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("beside", ["", "-wal"])
def test_the_record_itself_is_not_overwritten(tmp_path: Path, beside: str) -> None:
    recorder = FlightRecorder(tmp_path / "audit.db")
    recorder.log_success(recorder.start_trace("agent", "tool"))
    with pytest.raises(ExportError, match="is a database"):
        FlightRecorderEmitter(recorder).export_to_file(tmp_path / f"audit.db{beside}")
    recorder.close()
    with pytest.raises(ExportError, match="is a database"):  # nor when nobody has it open
        FlightRecorderEmitter(Recorder(CHECK)).export_to_file(tmp_path / "audit.db")
    assert verify(tmp_path / "audit.db").entries == 2


def test_to_look_whether_a_file_is_a_database_lets_go_of_no_lock(tmp_path: Path) -> None:
    """To close any descriptor of a file drops the locks that the process holds on it."""
    path = tmp_path / "held.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    holder.execute("INSERT INTO t VALUES (1)")
    assert is_database(path)
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    other = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    holder.close()
    assert "database is locked" in other.stderr


def test_a_link_that_came_in_between_is_replaced_and_not_followed(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "audit.json"
    precious.write_text("keep")

    class Attacked(Recorder):
        def get_log(self) -> list[Any]:
            path.symlink_to(precious)
            return super().get_log()

    assert FlightRecorderEmitter(Attacked(CHECK)).export_to_file(path) == 1
    assert precious.read_text() == "keep"
    assert not path.is_symlink()


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.json"
    path.write_text("old")

    def broken(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(ExportError, match="No space left"):
        FlightRecorderEmitter(Recorder(*ALL)).export_to_file(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["audit.json"]


def test_places_that_cannot_be_written_are_errors(tmp_path: Path) -> None:
    emitter = FlightRecorderEmitter(Recorder(CHECK))
    for path in (tmp_path, tmp_path / "no" / "folder.json"):
        with pytest.raises(ExportError):
            emitter.export_to_file(path)
    if hasattr(os, "mkfifo") and sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ExportError, match="not a regular file"):
            emitter.export_to_file(tmp_path / "pipe")


# ---------------------------------------------------------------------- the real recorder


class Broken:
    name = "broken"
    bounded = True

    def judge(self, action: Action) -> Decision | None:
        raise RuntimeError("no")


def test_a_flight_recorders_entries_are_spans_and_a_policy_that_failed_is_no_violation(tmp_path: Path) -> None:
    with FlightRecorder(tmp_path / "flight.db") as recorder:
        emitter = FlightRecorderEmitter(recorder)
        denied = Governor(ConstantPolicy(Effect.DENY, name="NoPolicy"), audit=recorder)
        failing = Governor(Broken(), audit=recorder)
        action = Action(Point.PRE_TOOL_CALL, "run_sql", arguments={"query": "DROP"}, agent="a1", rollout_id="r1")
        for governor in (denied, failing, denied):
            assert governor.decide(action).blocks
        trace = recorder.start_trace("a2", "search", {"q": "x"})
        recorder.log_success(trace, "found", 12.5)
        recorder.log_signal("a2", "SIGSTOP")
        entries, spans = recorder.get_log(), emitter.get_spans()
        assert len(spans) == len(entries) == 5
        assert [span.attributes.get("agent_os.policy_violated") for span in spans] == [True, False, True, None, None]
        assert [span.name for span in spans[3:]] == ["agent_os.tool_call", "agent_os.signal"]
        assert spans[0].trace_id == "agentos-a1"
        assert spans[4].attributes["agent_os.signal_type"] == "SIGSTOP"
        assert spans[4].attributes["agent_os.signal_target"] == "a2"
        assert spans[3].attributes["agent_os.tool_args"] == '{"q": "x"}'
        assert spans[3].attributes["agent_os.tool_result"] == "found"
        assert emitter.get_violation_summary()["policies_violated"] == {"NoPolicy": 2}
        assert emitter.get_new_spans() == spans
        assert emitter.get_new_spans() == []
        denied.decide(action)
        assert [span.name for span in emitter.get_new_spans()] == ["agent_os.policy_check"]
        assert verify(recorder.path).ok


def test_a_recorder_of_another_process_is_read_in_whole(tmp_path: Path) -> None:
    path = tmp_path / "flight.db"
    with FlightRecorder(path) as recorder, FlightRecorder(path) as other:
        emitter = FlightRecorderEmitter(recorder)
        for number in range(10):
            (other, recorder)[number % 2].log_signal(f"a{number}", "SIGSTOP")
            assert [span.attributes["agent_os.agent_id"] for span in emitter.get_new_spans()] == [f"a{number}"]
