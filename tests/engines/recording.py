"""What the emitter makes of the flight recorder of an agent-os package; run by the interpreter that has one."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from agent_os import FlightRecorder  # type: ignore[import-not-found]

from lgov_core.emitter import FlightRecorderEmitter


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        recorder = FlightRecorder(str(Path(folder) / "flight.db"))
        emitter = FlightRecorderEmitter(recorder)
        for number in range(150):
            trace = recorder.start_trace(f"agent-{number}", "run_sql", {"query": "DROP"}, "please")
            if number % 3:
                recorder.log_success(trace, "done")
            else:
                recorder.log_violation(trace, "no drop")
        spans = emitter.get_spans()
        found = {
            "entries": len(recorder.get_log()),
            "spans": len(spans),
            "ids": len({span.span_id for span in spans}),
            "names": sorted({span.name for span in spans}),
            "first": [spans[0].trace_id, spans[0].attributes["agent_os.policy_result"]],
            "summary": emitter.get_violation_summary(),
            "exported": emitter.export_to_file(Path(folder) / "audit.json"),
            "new": [len(emitter.get_new_spans()), len(emitter.get_new_spans())],
        }
        recorder.log_error(recorder.start_trace("late", "run_sql", {}), "it broke")
        found["late"] = [span.trace_id for span in emitter.get_new_spans()]
        if hasattr(recorder, "close"):
            recorder.close()
        return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # the recorder may print
        answer = main()
    print(json.dumps(answer))
