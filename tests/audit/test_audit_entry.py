"""The canonical JSON of the audit record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lgov_core.audit.entry import (
    action_fields,
    body_text,
    canonical,
    content_payload,
    decision_fields,
    outcome_fields,
    payload,
)
from lgov_core.types import Action, Decision, Effect, Point, Severity, ToolOutcome

texts = st.text(max_size=12) | st.sampled_from(["", '"\\', "\ud800", "é\n", "x" * 3000, "\x7f\x00"])


@given(st.dictionaries(texts, texts | st.integers() | st.none() | st.lists(texts, max_size=2), max_size=4))
def test_keys_are_sorted_and_the_text_is_ascii(value: dict[str, Any]) -> None:
    text = canonical(value)
    assert text == json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert text.isascii()
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": {2, 1}, "a": MappingProxyType({"x": 1})}, '{"a":{"x":1},"b":[1,2]}'),
        ({"a": float("nan")}, '{"a":"nan"}'),
        ({"a": {1, "b"}}, '{"a":["b",1]}'),
        ({1: "a", None: b"x"}, '{"1":"a","None":"b\'x\'"}'),
    ],
)
def test_what_json_cannot_hold_is_written_by_its_repr(value: Mapping[Any, Any], text: str) -> None:
    assert canonical(value) == text


def test_the_body_of_an_entry_leaves_out_none_and_refuses_nan() -> None:
    assert body_text({"b": 1, "a": None}) == '{"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        body_text({"latency_us": float("inf")})


ACTION = Action(
    Point.PRE_TOOL_CALL, "erase", "mcp", {"path": "/x"}, None, "clerk", "autogen", "s_1", "ro_1", 2, "call_1", "span_1", "agent"
)  # fmt: skip
OF_THE_ACTION = {
    "point": "pre_tool_call", "action_kind": "mcp", "name": "erase", "agent": "clerk", "framework": "autogen",
    "session_id": "s_1", "rollout_id": "ro_1", "attempt": 2, "call_id": "call_1", "parent_id": "span_1", "source": "agent",
}  # fmt: skip
BROKEN = Decision(Effect.DENY, "q", "broken", "It broke.", Severity.CRITICAL, fault=True)


def part(effect: str, policy: str, rule: str, reason: str, severity: str, **more: bool) -> dict[str, Any]:
    return {
        "effect": effect,
        "policy": policy,
        "rule": rule,
        "reason": reason,
        "severity": severity,
        "shadowed": False,
        **more,
    }


def test_an_entry_says_what_was_decided_on_which_action() -> None:
    decision = Decision(
        Effect.WARN,
        "p",
        "odd",
        "Odd.",
        Severity.HIGH,
        abort=True,
        latency_us=1.23456,
        policy_digest="d",
        parts=(BROKEN,),
    )
    assert decision_fields(ACTION, decision) == {
        "kind": "decision",
        **OF_THE_ACTION,
        **part("warn", "p", "odd", "Odd.", "high"),
        "abort": True,
        "policy_digest": "d",
        "latency_us": 1.235,
        "parts": [part("deny", "q", "broken", "It broke.", "critical", fault=True)],
    }
    alone = decision.changed(parts=(decision,))
    assert decision_fields(ACTION, alone)["parts"] is None, "a part that says the same is not said twice"
    assert len(decision_fields(ACTION, decision.changed(parts=(decision, decision)))["parts"]) == 2
    assert decision_fields(ACTION, Decision(Effect.ALLOW, "p"))["policy_digest"] is None
    told = Decision(Effect.ALLOW, "p", sources={"to": ["inbox"]})
    with_sources, without = decision_fields(ACTION, alone.changed(parts=(told, Decision(Effect.ALLOW, "q"))))["parts"]
    assert with_sources["sources"] == {"to": ["inbox"]}
    assert "sources" not in without


def test_an_entry_says_how_a_call_ended() -> None:
    decision = Decision(Effect.ALLOW, "p", policy_digest="d")
    outcome = ToolOutcome(ACTION, "error", "text", "OSError", "disk full", decision, 5.0, 0.5)
    ended = {"status": "error", "error_type": "OSError", "started_at": 5.0, "duration_s": 0.5}
    assert outcome_fields(outcome, "aud_1") == {
        "kind": "outcome",
        **OF_THE_ACTION,
        "refers_to": "aud_1",
        "policy_digest": "d",
        **ended,
    }
    assert outcome_fields(replace(outcome, decision=None), None)["policy_digest"] is None


@pytest.mark.parametrize("field", ["name", "agent", "framework", "session_id", "call_id", "parent_id"])
def test_names_and_ids_are_cut_with_their_length_and_hash(field: str) -> None:
    for text in ("x" * 2048, "\ud800" + "x" * 2048):
        written = action_fields(replace(ACTION, **{field: text}))[field]
        if len(text) == 2048:
            assert written == text
        else:
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            assert written == f"{text[:2048]}… [2049 characters, SHA-256 {digest}]"
    reason = decision_fields(ACTION, Decision(Effect.DENY, "p", "r", "x" * 2049))["reason"]
    assert reason.startswith("x" * 2048 + "… [2049 characters")


def test_a_long_payload_is_kept_as_its_beginning_size_and_hash() -> None:
    whole = payload({"a": "x" * (64 * 1024 - 8)})
    assert (len(whole.stored), whole.size) == (64 * 1024, 64 * 1024)
    text = canonical({"a": "x" * (64 * 1024 - 7)})
    cut = payload({"a": "x" * (64 * 1024 - 7)})
    assert cut.size == len(text) == 64 * 1024 + 1
    digest = hashlib.sha256(text.encode()).hexdigest()
    marker = {"characters": len(text), "sha256": digest, "begins": text[:4096]}
    assert json.loads(cut.stored) == {"lgov.cut": marker}
    assert content_payload({"a": None, "b": None}) is None
    assert content_payload({"a": None, "b": "x"}) == payload({"b": "x"})
