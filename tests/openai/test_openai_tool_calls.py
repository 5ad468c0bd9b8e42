"""Proposed tool calls, and the results that programs send back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lgov_core.testing import ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from tests.cells import asks, says
from tests.openai.rules import USER, Rule, denies, hides, served


@pytest.mark.surface("openai", "pre_tool_call", "transform", "sync")
def test_a_call_is_rewritten_for_the_program_only():
    def elsewhere(rule: Rule, action: Action) -> Decision | None:
        if action.arguments["path"] == "/tmp/safe":
            return None
        return rule.transform("move", "moved", arguments={"path": "/tmp/safe"})

    with served(Point.PRE_TOOL_CALL, elsewhere, asks(("c1", "look", {"path": "/etc"})), says("ok")) as one:
        message = one.chat().choices[0].message
        assert json.loads(message.tool_calls[0].function.arguments) == {"path": "/tmp/safe"}
        one.chat(USER, message, {"role": "tool", "tool_call_id": "c1", "content": "seen"})
    assert json.loads(one.sent()[1]["tool_calls"][0]["function"]["arguments"]) == {"path": "/etc"}
    (outcome,) = one.seen.outcomes
    assert (outcome.status, outcome.result, outcome.action.call_id) == ("ok", "seen", "c1")


@pytest.mark.parametrize("written", ['{"path": ', "[1]", '{"path": "/tmp/a", "path": "/etc"}'])
def test_ambiguous_arguments_are_denied(written: str):
    script = [asks(("c1", "look", written)), says("sorry"), asks(("c2", "look", written)), says("sorry")]
    with served(Point.PRE_TOOL_CALL, lambda rule, action: None, *script) as one:
        assert one.chat().choices[0].message.content == "sorry"
        assert one.client.responses.create(model="m", input="go").output_text == "sorry"
    assert "not one JSON object" in one.sent(1)[-1]["content"]
    assert [outcome.status for outcome in one.seen.outcomes] == ["invalid_args", "invalid_args"]
    assert [event.decision.rule for event in one.seen.decisions()] == ["unreadable-arguments"] * 2


def test_a_call_of_a_tool_that_was_not_offered_is_recorded_as_that():
    tool = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    calls = asks(("c1", "look", {}), ("c2", "no_such_tool", {}))
    with served(Point.PRE_TOOL_CALL, lambda rule, action: None, calls, says("ok"), asks(("c3", "nor_this", {}))) as one:
        message = one.chat(tools=[{"type": "function", "function": tool}]).choices[0].message
        results = [{"role": "tool", "tool_call_id": name, "content": "done"} for name in ("c1", "c2")]
        one.chat(USER, message, *results)
        one.client.responses.create(model="m", input="go", tools=[{"type": "function", "strict": False, **tool}])
    found = {outcome.action.name: outcome.status for outcome in one.seen.outcomes}
    assert found == {"look": "ok", "no_such_tool": "unknown_tool", "nor_this": "unknown_tool"}
    assert len(one.seen.outcomes) == 3


@pytest.mark.parametrize(
    "tools", [None, [], [{"type": "mcp", "server_label": "files", "server_url": "https://files.invalid"}]]
)
def test_where_it_is_not_known_what_was_offered_no_tool_is_unknown(tools: Any):
    given = {} if tools is None else {"tools": tools}
    with served(Point.PRE_TOOL_CALL, lambda rule, action: None, asks(("c1", "look", {})), says("ok")) as one:
        first = one.client.responses.create(model="m", input="go", **given)
        output = {"type": "function_call_output", "call_id": "c1", "output": "done"}
        one.client.responses.create(model="m", input=[output], previous_response_id=first.id)
    assert [outcome.status for outcome in one.seen.outcomes] == ["ok"]


@pytest.mark.parametrize(
    ("item", "name", "kind", "answer"),
    [
        ({"type": "custom_tool_call", "name": "run", "input": "rm x"}, "run", "function", "custom_tool_call_output"),
        ({"type": "local_shell_call", "action": {"type": "exec", "command": ["rm", "x"], "env": {}}}, "local_shell",
         "shell", "local_shell_call_output"),
        ({"type": "shell_call", "action": {"commands": ["rm x"]}}, "shell", "shell", "shell_call_output"),
        ({"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "x"}}, "apply_patch", "function",
         "apply_patch_call_output"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
@pytest.mark.surface("openai", "pre_tool_call", "observe", "block", "tell", "sync")
def test_every_kind_of_proposed_call_is_evaluated(item: Any, name: str, kind: str, answer: str):
    item = {"id": "it_1", "call_id": "c1", "status": "completed", **item}
    body = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [item],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    reply = ScriptedReply(body=json.dumps(body).encode())
    with served(Point.PRE_TOOL_CALL, denies, reply, says("no")) as one:
        assert one.client.responses.create(model="m", input="go").output_text == "no"
    (action,) = one.judged
    assert (action.name, action.kind, action.call_id) == (name, kind, "c1")
    assert any(word in json.dumps(dict(action.arguments)) for word in ("rm", "delete_file"))
    assert one.sent()[-2] == item
    assert one.sent()[-1]["type"] == answer
    assert "DENIED" in json.dumps(one.sent()[-1])


def test_a_denied_mcp_approval_is_refused():
    item = {"id": "mcpr_1", "type": "mcp_approval_request", "name": "erase", "arguments": "{}", "server_label": "files"}
    body = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [item],
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    with served(Point.PRE_TOOL_CALL, denies, ScriptedReply(body=json.dumps(body).encode()), says("no")) as one:
        assert one.client.responses.create(model="m", input="go").output_text == "no"
    assert (one.judged[0].kind, one.judged[0].name) == ("mcp", "erase")
    answer = one.sent()[-1]
    assert (answer["type"], answer["approval_request_id"], answer["approve"]) == (
        "mcp_approval_response",
        "mcpr_1",
        False,
    )


@pytest.mark.parametrize(
    "judge",
    [
        pytest.param(hides, marks=pytest.mark.surface("openai", "post_tool_call", "observe", "transform", "sync")),
        pytest.param(denies, marks=pytest.mark.surface("openai", "post_tool_call", "observe", "block", "tell", "sync")),
    ],
)
def test_a_result_is_evaluated_and_recorded_once(judge: Any):
    with served(Point.POST_TOOL_CALL, judge, asks(("c1", "look", {})), says("ok"), says("ok")) as one:
        message = one.chat().choices[0].message
        result = {"role": "tool", "tool_call_id": "c1", "content": "the pin is 4711"}
        one.chat(USER, message, result)
        one.chat(USER, message, result, {"role": "assistant", "content": "ok"}, USER)
    assert one.sent(1)[2] == one.sent(2)[2]
    read = one.sent(1)[2]["content"]
    assert read == "the pin is ****" if judge is hides else "its result is withheld" in read
    (action,) = one.judged
    assert (action.name, action.call_id, action.text) == ("look", "c1", "the pin is 4711")
    (outcome,) = one.seen.outcomes
    assert (outcome.status, outcome.result) == ("ok", "the pin is 4711")
    (span,) = [span for span in one.seen.spans if span.attributes[semconv.OPERATION] == semconv.EXECUTE_TOOL]
    assert (span.attributes[semconv.TOOL_STATUS], span.attributes[semconv.TOOL_CALL_ID]) == ("ok", "c1")
    pre = one.seen.decisions()[0].action
    assert (pre.operation_id, pre.span_id) == (action.operation_id, span.span_id)


def test_a_shortened_result_is_evaluated_again():
    with served(Point.POST_TOOL_CALL, hides, asks(("c1", "look", {})), says("ok"), says("ok")) as one:
        message = one.chat().choices[0].message
        one.chat(USER, message, {"role": "tool", "tool_call_id": "c1", "content": "the pin is 4711"})
        one.chat(USER, message, {"role": "tool", "tool_call_id": "c1", "content": "4711"})
    assert one.sent(2)[2]["content"] == "****"
    assert [action.text for action in one.judged] == ["the pin is 4711", "4711"]
    assert [outcome.result for outcome in one.seen.outcomes] == ["the pin is 4711"]


def test_results_of_stored_and_of_unknown_calls():
    with served(Point.POST_TOOL_CALL, hides, asks(("c1", "look", {})), says("ok"), says("ok")) as one:
        first = one.client.responses.create(model="m", input="go")
        output = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "4711"}]}
        one.client.responses.create(model="m", input=[output], previous_response_id=first.id)
        one.chat(USER, {"role": "tool", "tool_call_id": "loaded", "name": "old", "content": "4711"})
    assert one.sent(1)[0]["output"] == "****"
    assert one.sent(2)[1]["content"] == "****"
    assert [outcome.action.call_id for outcome in one.seen.outcomes] == ["c1"]
    assert [(action.name, action.call_id) for action in one.judged] == [("look", "c1"), ("old", "loaded")]


def test_a_call_between_two_rewritten_texts_keeps_its_decision():
    def part(text: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        return {"type": "message", "id": f"msg_{text}", "role": "assistant", "status": "completed", "content": content}

    def judge(rule: Rule, action: Action) -> Decision | None:
        if action.point is Point.POST_MODEL_CALL:
            return rule.transform("hide", "hidden", text="hidden") if action.text != "hidden" else rule.allow()
        return rule.deny("no", "not here") if action.name == "erase_file" else rule.allow()

    calls = [{"type": "function_call", "id": f"fc_{name}", "call_id": name, "name": name, "arguments": "{}"}
             for name in ("erase_file", "look")]  # fmt: skip
    body = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
            "output": [part("one"), calls[0], part("two"), calls[1]], "parallel_tool_calls": True,
            "tool_choice": "auto", "tools": []}  # fmt: skip
    with served(Point.POST_MODEL_CALL, judge, ScriptedReply(body=json.dumps(body).encode())) as one:
        one.rule.judge = lambda action: judge(one.rule, action)  # type: ignore[method-assign]
        response = one.client.responses.create(model="m", input="go")
    assert [item.name for item in response.output if item.type == "function_call"] == ["look"]
    assert response.output_text == "hidden"
