"""Vectors in the kit's format for what the kit does not ask: changes at the other points, and calls made side by side."""

from __future__ import annotations

from typing import Any


def _vector(
    number: int,
    title: str,
    rules: list[dict[str, Any]],
    expect: dict[str, Any],
    *,
    tools: list[dict[str, Any]] | None = None,
    replies: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    return {
        "id": f"LGOV-{number:03}",
        "title": title,
        "spec_clause": "5.2",
        "capabilities": ["model_calls", "tool_calls"],
        "scenario": {
            "input": {"content": "my number is 4711", "role": "user"},
            "tools": tools if tools is not None else [LOOK_UP],
            "model_script": [{"respond": one} for one in (replies or [CALL, ANSWER])],
        },
        "interceptor_script": rules,
        "expect": {"sequence_strict": False, "interceptions": [], "run_outcome": "completed", **expect},
    }


def _changes(point: str, path: str, value: Any) -> dict[str, Any]:
    transform = {"path": path, "value": value}
    return {"at": point, "return": {"decision": "transform", "reason": "own:changed", "transform": transform}}


LOOK_UP = {"name": "look_up", "schema": {"key": "string"}, "behavior": [{"return": {"secret": "4711", "n": 1}}]}
CALL = {
    "content": None,
    "tool_calls": [{"id": "tc-1", "name": "look_up", "args": {"key": "a"}}],
    "finish_reason": "tool_calls",
}
ANSWER = {"content": "it is 4711", "tool_calls": [], "finish_reason": "stop"}
BOTH = {
    "content": None,
    "tool_calls": [
        {"id": "tc-1", "name": "look_up", "args": {"key": "a"}},
        {"id": "tc-2", "name": "look_up", "args": {"key": "b"}},
        {"id": "tc-3", "name": "look_up", "args": {"key": "c"}},
    ],
    "finish_reason": "tool_calls",
}

MORE: list[dict[str, Any]] = [
    _vector(
        1,
        "the model reads the input as an interceptor left it, at every call",
        [_changes("input", "$target.content", "my number is withheld")],
        {
            "interceptions": [
                {"interception_point": "input", "context": {"input.content": "my number is 4711"}},
                {"interception_point": "pre_model_call", "context_must_contain": ["my number is withheld"]},
                {"interception_point": "post_tool_call"},
                {"interception_point": "pre_model_call", "context_must_not_contain": ["my number is 4711"]},
            ],
            "final_output": "it is 4711",
        },
    ),
    _vector(
        2,
        "the model reads a tool's result as an interceptor left it",
        [_changes("post_tool_call", "$target.secret", "withheld")],
        {
            "interceptions": [
                {"interception_point": "post_tool_call", "context": {"tool_result.value.secret": "4711"}},
                {
                    "interception_point": "pre_model_call",
                    "context_must_contain": ["withheld"],
                    "context_must_not_contain": ['"secret": "4711"', '\\"secret\\": \\"4711\\"'],
                },
            ]
        },
    ),
    _vector(
        3,
        "the caller gets the output as an interceptor left it",
        [_changes("output", "$target.content", "it is withheld")],
        {"final_output": "it is withheld"},
    ),
    _vector(
        4,
        "a reply's text can be changed before it is the output",
        [_changes("post_model_call", "$target.content", "it is withheld")],
        {
            "interceptions": [
                {"interception_point": "post_model_call", "context": {"response.content": "it is 4711"}},
                {"interception_point": "output", "context": {"output.content": "it is withheld"}},
            ],
            "final_output": "it is withheld",
        },
        tools=[],
        replies=[ANSWER],
    ),
    _vector(
        5,
        "of three calls made side by side one is denied and one changed",
        [
            {
                "at": "pre_tool_call",
                "match": {"tool_call.id": "tc-1"},
                "return": {"decision": "deny", "reason": "own:no"},
            },
            {
                "at": "pre_tool_call",
                "match": {"tool_call.id": "tc-2"},
                "return": {"decision": "transform", "transform": {"path": "$target.key", "value": "z"}},
            },
        ],
        {
            "interceptions": [
                {"interception_point": "pre_tool_call"},
                {"interception_point": "pre_model_call", "context_must_contain": ["own:no"]},
            ]
        },
        replies=[BOTH, ANSWER],
    ),
    _vector(
        6,
        "the proposed calls of a reply cannot be changed by lgov's agents: the reply is denied",
        [_changes("post_model_call", "$target.tool_calls", [])],
        {"tool_not_invoked": ["look_up"], "run_outcome": "blocked", "final_output": None},
    ),
]
