"""Golden cases as they are written down: short records, which become spans in the documented format.

A case of ``cases/*.yaml`` has ``name``, ``about`` (what it is meant to show), ``spans``, perhaps ``options`` (of the command
`lgov transitions`), ``working`` (how the numbers are worked out by hand) and ``expect``. A span is one of

    {agent: NAME, ...}     an ``invoke_agent`` span (NAME ~ for one without a name)
    {call: ID, ...}        a ``chat`` span with response id ID; ``prompt``, ``reply`` and ``logprobs`` are its tokens
    {tool: ID, ...}        an ``execute_tool`` span of tool call ID
    {reward: NUMBER, ...}  an ``lgov.reward`` span; ``for_call``, ``for_tool`` or neither is its target
    {span: NAME, ...}      any other span

each with perhaps ``id`` (of the span; made up where missing), ``under`` (the parent's id), ``rollout``, ``attempt``,
``task``, ``outcome``, ``at: [start, end]`` in seconds (end ~: open), ``trace``, ``events`` and ``with`` (further attributes as
they are). What is not given is not in the span. ``defaults`` of a case are given to all of its spans but where they
say otherwise; tokens only to calls.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).parent / "cases"

_LISTS = {
    "prompt": "lgov.prompt_token_ids",
    "reply": "lgov.response_token_ids",
    "logprobs": "lgov.response_logprobs",
}
_ATTRIBUTES = {
    "rollout": "lgov.rollout_id",
    "attempt": "lgov.attempt",
    "task": "lgov.task_id",
    "outcome": "lgov.outcome",
    "by": "gen_ai.agent.name",
    "model": "gen_ai.request.model",
    "weights": "lgov.weights_version",
    "choice": "lgov.choice",
    "for_call": "gen_ai.response.id",
    "for_tool": "gen_ai.tool.call.id",
    "dimension": "lgov.reward.dimension",
    "proposes": "lgov.tool_call_ids",
}


def read_cases() -> list[dict[str, Any]]:
    """All cases, in the order of files and of cases in them."""
    found: list[dict[str, Any]] = []
    for path in sorted(CASES.glob("*.yaml")):
        for case in yaml.safe_load(path.read_text(encoding="utf-8")):
            found.append({**case, "file": path.name})
    return found


def otlp_spans(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The spans of a case in OTLP's JSON encoding."""
    defaults = case.get("defaults", {})
    return [_span({**defaults, **given}, position) for position, given in enumerate(case["spans"])]


def request_line(spans: Sequence[Mapping[str, Any]]) -> str:
    """One line of a file of spans."""
    scopes = [{"scope": {"name": "golden"}, "spans": list(spans)}]
    return json.dumps({"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": scopes}]})


def span_id(name: object) -> str:
    """The id that a span of this name gets: 16 hexadecimal digits."""
    return hashlib.sha256(str(name).encode()).hexdigest()[:16]


def _span(given: Mapping[str, Any], position: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    name = "span"
    if "agent" in given:
        name = f"invoke_agent {given['agent'] or ''}".strip()
        attributes["gen_ai.operation.name"] = "invoke_agent"
        if given["agent"]:
            attributes["gen_ai.agent.name"] = given["agent"]
    elif "call" in given:
        name = "chat m"
        attributes["gen_ai.operation.name"] = "chat"
        if given["call"]:
            attributes["gen_ai.response.id"] = given["call"]
    elif "tool" in given:
        name = "execute_tool t"
        attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": given["tool"]}
    elif "reward" in given:
        name = "lgov.reward"
        attributes["lgov.reward.value"] = given["reward"]
    elif "span" in given:
        name = given["span"]
    if "finish" in given:
        attributes["gen_ai.response.finish_reasons"] = [given["finish"]]
    for short, full in {**_LISTS, **_ATTRIBUTES}.items():
        if given.get(short) is not None and ("call" in given or short not in _LISTS):
            attributes[full] = given[short]
    attributes |= given.get("with", {})
    started, ended = given.get("at", [position, position + 1])
    made: dict[str, Any] = {
        "traceId": hashlib.sha256(str(given.get("trace", "trace")).encode()).hexdigest()[:32],
        "spanId": span_id(given.get("id", f"span {position}")),
        "name": name,
        "startTimeUnixNano": str(round(started * 1e9)),
        "attributes": _attributes(attributes),
    }
    if ended is not None:
        made["endTimeUnixNano"] = str(round(ended * 1e9))
    if given.get("under") is not None:
        made["parentSpanId"] = span_id(given["under"])
    if "events" in given:
        made["events"] = [
            {
                "name": event.get("name", "gen_ai.evaluation.result"),
                "timeUnixNano": str(round(started * 1e9)),
                "attributes": _attributes(event["with"]),
            }
            for event in given["events"]
        ]
    return made


def _attributes(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {
            "doubleValue": value if value == value and abs(value) != float("inf") else str(value).replace("nan", "NaN")
        }
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [_value(one) for one in value]}}
