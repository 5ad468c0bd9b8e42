"""The one flow of a governed model call, by the programs of `tests.golden.governed_programs`: one contract in every adapter."""

from __future__ import annotations

from typing import Any

import pytest

from lgov_core.instrumentation.model_flow import MAX_ROUNDS
from tests.golden.governed_programs import CASES, PROGRAMS, run_case

ADAPTERS = [(name, way) for name in ("langchain", "autogen", "openai", "openai_agents") for way in PROGRAMS[name]]
EVERY_ADAPTER = pytest.mark.parametrize(("framework", "program"), ADAPTERS)


def decided(record: Any) -> list[tuple[Any, Any]]:
    """Action and decision of each act that was judged, in their order, without those of a self-test."""
    events = (event for event in record["events"] if event[0] == "decided")
    return [(action, decision) for _, action, decision in events if decision["policy"] in ("golden", "lgov")]


@EVERY_ADAPTER
@pytest.mark.parametrize("case", ["request with what is no message", "request without messages"])
def test_messages_that_cannot_be_sent_are_a_recorded_denial(framework: str, program: str, case: str) -> None:
    record = run_case(CASES[case], PROGRAMS[framework][program])
    assert record["sent"] == [], "nothing may reach the model"
    requests = [
        decision
        for action, decision in decided(record)
        if action["point"] == "pre_model_call" and action["name"] in ("scripted", "m")
    ]
    assert [(decision["rule"], decision["effect"]) for decision in requests] == [
        ("change", 2),
        ("unclear-transform", 4),
    ]
    assert record["got"] == [
        "DENIED by policy lgov/unclear-transform: a policy rewrote the messages in a way that cannot be sent. "
        "It was not run; this is a failure, so it may be tried again later."
    ]


@EVERY_ADAPTER
@pytest.mark.parametrize("case", ["question aborted", "request aborted", "reply aborted"])
def test_a_decision_that_says_abort_is_raised(framework: str, program: str, case: str) -> None:
    record = run_case(CASES[case], PROGRAMS[framework][program])
    assert record["got"] == ["PolicyDenied: DENIED by policy golden/no: not here. It was not run; do not repeat it."]
    assert len(record["sent"]) == (1 if case == "reply aborted" else 0)


@pytest.mark.parametrize("framework", ["autogen", "openai_agents"])
def test_a_model_that_insists_is_asked_again_as_often_in_every_framework(framework: str) -> None:
    """Plain openai is the third: `tests/openai/test_openai_transcript.py`."""
    program = next(iter(PROGRAMS[framework].values()))
    case = CASES["hand-off denied again and again"]
    record = run_case(case, program)
    ids = [f"c{number}" for number in range(MAX_ROUNDS + 1)]
    calls = [action["call_id"] for action, _ in decided(record) if action["point"] == "pre_tool_call"]
    assert calls[: len(ids)] == ids
    assert "DENIED by policy golden/no" in str(record["got"]) or len(calls) > len(ids), "the denial is the answer"
