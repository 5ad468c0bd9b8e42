"""Spans handed to stores and written to files, and a real flight recorder."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from emitter_cases import ALL, CALL, CHECK, Recorder

from lgov_core import Action, Decision, Effect, FlightRecorder, Governor, Point, open_store
from lgov_core._util.sqlite_file import is_database
from lgov_core.audit import verify
from lgov_core.emitter import FlightRecorderEmitter
from lgov_core.errors import ExportError
from lgov_core.policies import ConstantPolicy
from lgov_core.store.sqlite import SQLiteStore


class Taking:
    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def emit_span(self, span: dict[str, Any]) -> None:
        self.spans.append(span)


class AsyncTaking:
    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    async def add_span(self, span: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.spans.append(span)
        return span


class Hidden(AsyncTaking):
    def add_span(self, span: dict[str, Any]) -> Any:  # type: ignore[override]  # a plain function that answers a coroutine
        return super().add_span(span)


@pytest.mark.parametrize("make", [Taking, AsyncTaking, Hidden])
def test_any_store_gets_every_span(make: Any) -> None:
    store = make()
    assert FlightRecorderEmitter(Recorder(*ALL)).emit_to_store(store) == 4
    assert [span["span_id"] for span in store.spans] == ["e1", "e2", "e3", "e4"]


def test_an_asynchronous_store_lives_in_one_loop() -> None:
    loops: list[Any] = []

    class Bound(AsyncTaking):
        async def add_span(self, span: dict[str, Any]) -> dict[str, Any]:
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
async def test_an_asynchronous_store_inside_a_loop_is_refused(make: Any) -> None:
    with pytest.raises(ExportError, match="aemit_to_store"):
        FlightRecorderEmitter(Recorder(*ALL)).emit_to_store(make())


class Picky(Taking):
    def emit_span(self, span: dict[str, Any]) -> Any:
        if span["span_id"] == "e2":
            raise OSError("disk full")
        if span["span_id"] == "e3":
            return False
        return super().emit_span(span)


class AsyncPicky(Picky):
    async def emit_span(self, span: dict[str, Any]) -> Any:
        return super().emit_span(span)


@pytest.mark.parametrize("make", [Picky, AsyncPicky])
def test_spans_that_were_not_stored_are_logged(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = make()
    assert FlightRecorderEmitter(Recorder(*ALL)).emit_to_store(store) == 2
    assert "2 of 4 spans were not stored: OSError('disk full')" in caplog.text
    assert [span["span_id"] for span in store.spans] == ["e1", "e4"]


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


def test_spans_that_a_store_dropped_are_not_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "traces.db"
    store = SQLiteStore(path, span_queue=0)  # always full
    emitter = FlightRecorderEmitter(Recorder(*({**CHECK, "entry_id": f"e{number}"} for number in range(2000))))
    assert emitter.emit_to_store(store) == len(store.spans()) == 0
    assert "2000 of 2000 spans were not stored" in caplog.text
    store.close()


def test_a_store_that_is_closed_is_no_success(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(str(tmp_path / "traces.db"))
    store.close()
    assert FlightRecorderEmitter(Recorder(CHECK, CALL)).emit_to_store(store) == 0
    assert "2 of 2" in caplog.text


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


def test_checking_for_a_database_keeps_its_locks(tmp_path: Path) -> None:
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


def test_a_link_made_meanwhile_is_replaced_not_followed(tmp_path: Path) -> None:
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


class Broken:
    name = "broken"
    bounded = True

    def judge(self, action: Action) -> Decision | None:
        raise RuntimeError("no")


def test_a_failed_policy_in_a_flight_recorder_is_no_violation(tmp_path: Path) -> None:
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
