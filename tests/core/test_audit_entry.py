"""The bytes of an entry: what is written fast, on the path of every act, is what JSON itself would write."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lgov_core.audit.entry import Payload, SortedBody, canonical, decision_body, in_json, stamp_of, texts_of
from lgov_core.types import Action, Decision, Effect, Point, Severity

texts = st.text(max_size=12) | st.sampled_from(["", '"\\', "\ud800", "é\n", "x" * 3000, "\x7f\x00"])
maybe = st.none() | texts
actions = st.builds(
    Action,
    st.sampled_from(Point),
    texts,
    kind=st.sampled_from(["function", "mcp", "model"]),
    agent=maybe,
    framework=maybe,
    session_id=maybe,
    rollout_id=maybe,
    attempt=st.none() | st.integers(1, 9),
    call_id=maybe,
    parent_id=maybe,
)
plain = st.builds(
    Decision,
    st.sampled_from(Effect),
    texts,
    texts,
    texts,
    st.sampled_from(Severity),
    st.booleans(),
    latency_us=st.floats(0, 1e9) | st.integers(0, 9),
    shadowed=st.booleans(),
    fault=st.booleans(),
)
decisions = st.builds(lambda one, parts: replace(one, parts=tuple(parts)), plain, st.lists(plain, max_size=3))


def short(text: str | None) -> str | None:
    """What stands for a text in an entry, by way of the entry's own words for it."""
    return text if text is None or len(text) <= 2048 else json.loads(in_json({"a": _cut(text)})["a"])


def _cut(text: str) -> str:
    from hashlib import sha256

    return (
        f"{text[:2048]}… [{len(text)} characters, SHA-256 {sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}]"
    )


def part(one: Decision) -> dict[str, Any]:
    said = {
        "effect": one.effect.label,
        "policy": one.policy,
        "rule": one.rule,
        "reason": short(one.reason),
        "severity": one.severity.value,
        "shadowed": one.shadowed,
    }
    return {**said, "fault": True} if one.fault else said


@settings(max_examples=300, deadline=None)
@given(actions, decisions, texts, maybe, maybe)
def test_a_decision_is_written_as_json_would_write_it(
    action: Action, decision: Decision, digest: str, arguments: str | None, content: str | None
) -> None:
    kept = [None if text is None else Payload(canonical({"a": text}), 7) for text in (arguments, content)]
    beside, stamp = texts_of(b"salt", kept[0], kept[1]), stamp_of(digest, "1.0")
    parts = decision.parts
    said = {
        "abort": decision.abort,
        "action_kind": action.kind,
        "agent": short(action.agent),
        "attempt": action.attempt,
        "call_id": short(action.call_id),
        "effect": decision.effect.label,
        "fault": decision.fault or None,
        "framework": short(action.framework),
        "kind": "decision",
        "latency_us": round(decision.latency_us, 3),
        "name": short(action.name),
        "parent_id": short(action.parent_id),
        "parts": [part(one) for one in parts]
        if len(parts) > 1 or (parts and parts[0].effect is not decision.effect)
        else None,
        "point": action.point.value,
        "policy": decision.policy,
        "reason": short(decision.reason),
        "rollout_id": action.rollout_id,
        "rule": decision.rule,
        "session_id": short(action.session_id),
        "severity": decision.severity.value,
        "shadowed": decision.shadowed,
    }
    last = ("aud_1", "w1", 3, 1_700_000_000_000_000_000, 12345)
    body = decision_body(action, decision, stamp, beside).closed(*last)
    assert body == SortedBody(in_json(said), stamp, beside).closed(*last)
    assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"))
    assert body.isascii()
    assert ('"arguments_sha256"' in body, '"content_sha256"' in body) == (arguments is not None, content is not None)


@given(st.dictionaries(texts, texts | st.integers() | st.none() | st.lists(texts, max_size=2), max_size=4))
def test_arguments_are_written_as_json_would_write_them(arguments: dict[str, Any]) -> None:
    assert canonical(arguments) == json.dumps(arguments, sort_keys=True, separators=(",", ":"))


def test_fields_of_any_name_stand_in_order() -> None:
    body = SortedBody({"tool_name": '"a"', "zone": "1", "aaa": "2"}, stamp_of("d", "1"), texts_of(b"", None, None))
    text = body.closed("x_1", "w", 1, 2, 3)
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    assert json.loads(text)["zone"] == 1
