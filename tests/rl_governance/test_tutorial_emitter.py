"""Section 6 of the tutorial: FlightRecorderEmitter."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gymnasium", reason="needs the extra gym")
import lgov_core
from tests.rl_governance.tutorial_code import DROP_STEP, Database, run

EMITTER = """
from agent_os import FlightRecorder
from agent_lightning_gov import FlightRecorderEmitter

recorder = FlightRecorder()

emitter = FlightRecorderEmitter(
    recorder,
    include_policy_checks=True,   # include policy evaluation spans
    include_signals=True,         # include kernel signal spans
    include_tool_calls=True,      # include tool invocation spans
    trace_id_prefix="agentos",    # prefix for generated trace IDs
)
"""
SPAN = """
from agent_lightning_gov.emitter import LightningSpan

span = LightningSpan(
    span_id="entry-001",
    trace_id="agentos-agent-42",
    name="agent_os.policy_check",
    start_time=datetime.now(timezone.utc),
    end_time=datetime.now(timezone.utc),
    attributes={
        "agent_os.entry_type": "policy_check",
        "agent_os.agent_id": "agent-42",
        "agent_os.policy_name": "SQLPolicy",
        "agent_os.policy_result": "denied",
        "agent_os.policy_violated": True,
    },
    events=[],
)

# Serialise for storage
span_dict = span.to_dict()
span_json = span.to_json()
"""
EXPORT = """
count = emitter.export_to_file("training_audit.json")
print(f"Exported {count} spans to training_audit.json")
"""
STREAM = """
async for span in emitter.stream():
    print(f"{span.name}: {span.attributes}")
    # Or forward to your own telemetry backend
    otel_exporter.export(span.to_dict())
"""
SUMMARY = """
summary = emitter.get_violation_summary()
print(summary)
# {
#     "total_entries": 1200,
#     "total_violations": 34,
#     "violation_rate": 0.028,
#     "policies_violated": {
#         "SQLPolicy": 22,
#         "CostControlPolicy": 12,
#     },
# }
"""
INCREMENTAL = """
# First call: gets all spans
batch_1 = emitter.get_new_spans()

# ... training continues ...

# Second call: only spans added since batch_1
batch_2 = emitter.get_new_spans()
"""
EMITTER_FACTORY = """
from agent_lightning_gov.emitter import create_emitter

emitter = create_emitter(
    recorder,
    include_policy_checks=True,
    include_signals=False,
    trace_id_prefix="my-training-run",
)
"""


@pytest.fixture
def recorded(scored: dict[str, Any]) -> dict[str, Any]:
    """The namespace after a few steps, with an emitter of the record that a kernel without recorder writes to."""
    run(EMITTER, scored)
    return scored


def test_6_1_and_6_4_n_entries_are_n_spans(recorded: dict[str, Any], tmp_path: Path) -> None:
    entries = recorded["recorder"].get_log()
    spans = recorded["emitter"].get_spans()
    assert len(spans) == len(entries) > 0
    denied = [span for span in spans if span.attributes.get("agent_os.policy_violated")]
    assert [span.name for span in denied] == ["agent_os.policy_check"]
    assert denied[0].attributes["agent_os.policy_name"] == "SQLPolicy"
    assert denied[0].attributes["agent_os.policy_result"] == "denied"
    assert {"agent_os.policy_check", "agent_os.tool_call"} <= {span.name for span in spans}
    run(EXPORT, recorded)
    assert recorded["count"] == len(entries)
    assert len(json.loads((tmp_path / "training_audit.json").read_text())) == len(entries)


def test_6_2_a_span_serialises(names: dict[str, Any]) -> None:
    names |= {"datetime": datetime, "timezone": timezone}  # the tutorial does not import them
    run(SPAN, names)
    assert json.loads(names["span_json"]) == names["span_dict"]
    assert names["span_dict"]["attributes"]["agent_os.policy_violated"] is True


def test_6_3_a_store_takes_every_span(recorded: dict[str, Any], database: Database) -> None:
    store = lgov_core.open_store(str(database.path.with_name("traces.db")))
    recorded["lightning_store"] = store
    run("emitter.emit_to_store(lightning_store)", recorded)
    assert len(store.spans()) == len(recorded["recorder"].get_log())
    store.close()


def test_6_5_the_stream_yields_what_is_recorded(recorded: dict[str, Any]) -> None:
    exported: list[dict[str, Any]] = []
    recorded["otel_exporter"] = SimpleNamespace(export=exported.append)
    expected = len(recorded["recorder"].get_log())

    async def until_all_are_there() -> None:
        while len(exported) < expected:
            await asyncio.sleep(0.01)

    run(STREAM, recorded, beside=until_all_are_there)
    assert [span["span_id"] for span in exported] == [span.span_id for span in recorded["emitter"].get_spans()]


def test_6_6_the_summary_names_the_policies_violated(recorded: dict[str, Any]) -> None:
    run(SUMMARY, recorded)
    total = len(recorded["recorder"].get_log())
    assert recorded["summary"] == {
        "total_entries": total,
        "total_violations": 1,
        "violation_rate": 1 / total,
        "policies_violated": {"SQLPolicy": 1},
    }


def test_6_7_new_spans_come_once(recorded: dict[str, Any]) -> None:
    run(INCREMENTAL, recorded)
    assert len(recorded["batch_1"]) == len(recorded["recorder"].get_log())
    assert recorded["batch_2"] == []
    run(DROP_STEP, recorded)
    run("batch_3 = emitter.get_new_spans()", recorded)
    assert [span.attributes["agent_os.policy_violated"] for span in recorded["batch_3"]
            if "agent_os.policy_violated" in span.attributes].count(True) == 1  # fmt: skip


def test_6_8_the_factory(recorded: dict[str, Any]) -> None:
    run(EMITTER_FACTORY, recorded)
    spans = recorded["emitter"].get_spans()
    assert spans
    assert all(span.trace_id.startswith("my-training-run-") for span in spans)
    assert all(span.name != "agent_os.signal" for span in spans)
