"""Every point at which something is judged, and what becomes of it: text, replies, results, and the forms of replies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Point
from lgov_openai import govern_client
from tests.cells import Seen, asks, says
from tests.openai import openai_programs as programs

USER = {"role": "user", "content": "go"}


class Rule(BoundedPolicy):
    """Asks a function at one point; allows at the others."""

    name = "rule"

    def __init__(self, point: Point, judge: Callable[[Rule, Action], Decision | None]) -> None:
        self.point, self.asked = point, judge

    def judge(self, action: Action) -> Decision | None:
        if action.point is not self.point:
            return self.allow("fine") if action.point is Point.PRE_TOOL_CALL else None
        return self.asked(self, action) or self.allow("fine")


def denies(rule: Rule, action: Action) -> Decision:
    return rule.deny("no", "not here")


def hides(rule: Rule, action: Action) -> Decision | None:
    text = action.text or ""
    return rule.transform("hide", "hidden", text=text.replace("4711", "****")) if "4711" in text else None


class Served:
    def __init__(self, server: ScriptedModelServer, rule: Rule) -> None:
        self.server, self.rule, self.seen = server, rule, Seen()
        self.governor = Governor([rule], plugins=[self.seen], capture_content=True)
        self.client = govern_client(programs.client(server.base_url), self.governor)

    def chat(self, *messages: Any, **asked: Any) -> Any:
        return self.client.chat.completions.create(model="m", messages=list(messages) or [USER], **asked)

    @property
    def judged(self) -> list[Action]:
        """What was judged at the rule's point, as it came."""
        return [event.action for event in self.seen.decisions(self.rule.point)]

    def sent(self, number: int = -1) -> Any:
        body = self.server.requests[number].body
        return body.get("messages") or body["input"]


@contextmanager
def served(point: Point, judge: Any, *script: ScriptedReply) -> Iterator[Served]:
    with ScriptedModelServer(list(script)) as server:
        one = Served(server, Rule(point, judge))
        yield one
        one.governor.close()


# ---------------------------------------------------------------------- what the user says


@pytest.mark.surface("openai", "input", "block", "stream", "sync")
def test_a_denied_text_is_not_sent_and_the_program_gets_the_denial_in_every_form():
    with served(Point.INPUT, denies) as one:
        whole = one.chat()
        chunks = list(one.chat(stream=True, stream_options={"include_usage": True}))
        response = one.client.responses.create(model="m", input="go")
        events = list(one.client.responses.create(model="m", input="go", stream=True))
        with one.client.responses.stream(model="m", input="go") as stream:
            helped = stream.get_final_response()
    told = "DENIED by policy rule/no: not here. It was not run; do not repeat it."
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (told, "stop")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == told
    assert chunks[-1].usage.total_tokens == 0
    assert [response.output_text, events[-1].response.output_text, helped.output_text] == [told] * 3
    assert one.server.requests == []


@pytest.mark.surface("openai", "input", "observe", "transform", "sync")
def test_a_text_is_judged_once_and_stays_rewritten_in_every_later_request():
    with served(Point.INPUT, hides, says("ok"), says("ok"), ScriptedReply("busy", status=500), says("ok")) as one:
        client = one.client.with_options(max_retries=1)
        pin = {"role": "user", "content": "my pin is 4711"}
        one.chat(pin)
        later = [
            pin,
            {"role": "assistant", "content": "ok"},
            {"role": "user", "content": [{"type": "text", "text": "4711!"}]},
        ]
        one.chat(*later)
        client.chat.completions.create(model="m", messages=[*later, {"role": "assistant", "content": "ok"}, USER])
    assert [action.text for action in one.judged] == ["my pin is 4711", "4711!", "go"]
    assert "4711" not in json.dumps([request.body for request in one.server.requests])
    assert one.sent(1)[0] == {"role": "user", "content": "my pin is ****"}
    assert one.sent(1)[2]["content"] == [{"type": "text", "text": "****!"}]
    assert len(one.server.requests) == 4


# ---------------------------------------------------------------------- the call


@pytest.mark.surface("openai", "pre_model_call", "block", "sync")
def test_a_denied_model_call_is_not_sent_and_one_that_says_abort_raises():
    def aborts(rule: Rule, action: Action) -> Decision:
        return Decision(denies(rule, action).effect, "rule", "stop", "enough", abort=True)

    with served(Point.PRE_MODEL_CALL, denies) as one:
        assert one.chat().choices[0].message.content.startswith("DENIED")
    with served(Point.PRE_MODEL_CALL, aborts) as one:
        with pytest.raises(PolicyDenied, match="enough"):
            one.chat()
        with pytest.raises(PolicyDenied, match="enough"):
            one.client.responses.create(model="m", input="go")
    assert one.server.requests == []


@pytest.mark.surface("openai", "pre_model_call", "observe", "transform", "sync")
def test_messages_are_rewritten_and_what_cannot_be_sent_is_denied():
    def rewrites(rule: Rule, action: Action) -> Decision:
        first, *rest = [dict(message) for message in action.arguments["messages"]]
        if first.get("content") in ("odd", None):
            return rule.transform("odd", "odd", arguments={**action.arguments, "messages": [{"role": "tool", "x": 1}]})
        first["content"] = first["content"].replace("secret", "******")
        policy = {"role": "system", "content": "Be kind."}
        rest = rest if rest and rest[-1] == policy else [*rest, policy]
        return rule.transform("tidy", "tidied", arguments={**action.arguments, "messages": [first, *rest]})

    with served(Point.PRE_MODEL_CALL, rewrites, says("ok"), says("ok")) as one:
        one.chat({"role": "user", "content": "a secret"}, max_tokens=7)
        one.client.responses.create(model="m", input="a secret")
        odd = one.chat({"role": "user", "content": "odd"})
    expected = [{"role": "user", "content": "a ******"}, {"role": "system", "content": "Be kind."}]
    assert [one.sent(0), one.sent(1)] == [expected, expected]
    assert one.judged[0].arguments["max_output_tokens"] == 7
    assert "cannot be sent" in odd.choices[0].message.content


def masks(rule: Rule, action: Action) -> Decision:
    """Masks a number wherever it stands in the messages, as a policy that redacts does."""

    def masked(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("4711", "****")
        if isinstance(value, Mapping):
            return {key: masked(one) for key, one in value.items()}
        return [masked(one) for one in value] if isinstance(value, list | tuple) else value

    return rule.transform("mask", "masked", arguments={"messages": masked(action.arguments["messages"])})


def test_the_arguments_of_earlier_calls_are_rewritten_too():
    two = {"id": "c2", "type": "custom", "custom": {"name": "do", "input": "of 4711"}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "é4711"}'}}
    made = {"role": "assistant", "content": "4711 it is", "tool_calls": [call, two]}
    legacy = {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": '{"x": "4711"}'}}
    results = [{"role": "tool", "tool_call_id": name, "content": "4711"} for name in ("c1", "c2")]
    with served(Point.PRE_MODEL_CALL, masks, says("ok")) as one:
        one.chat(USER, made, *results, legacy)
        _, sent, *_, old = one.sent()
    assert "4711" not in str(one.server.requests[0].body)
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"path": "é****"}
    assert sent["tool_calls"][1] == {**two, "custom": {"name": "do", "input": "of ****"}}
    assert sent["content"] == "**** it is"
    assert json.loads(old["function_call"]["arguments"]) == {"x": "****"}


def test_every_kind_of_item_is_rewritten_where_it_stands():
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "it is 4711"}]}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"path": "4711"}'}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "do", "input": "of 4711"}
    shell = {"type": "local_shell_call", "id": "ls_1", "call_id": "c3", "status": "completed"}
    action = {"type": "exec", "command": ["cat", "4711"], "env": {}}
    outputs = [
        {"type": "function_call_output", "call_id": "c1", "output": "4711"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "4711"},
    ]
    items = [USER, thought, call, custom, {**shell, "action": action}, *outputs]
    with served(Point.PRE_MODEL_CALL, masks, says("ok")) as one:
        one.client.responses.create(model="m", input=items)
        sent = one.sent()
    assert sent[:2] == [USER, {**thought, "summary": [{"type": "summary_text", "text": "it is ****"}]}]
    assert json.loads(sent[2]["arguments"]) == {"path": "****"}
    assert sent[3:5] == [
        {**custom, "input": "of ****"},
        {**shell, "action": {"type": "exec", "command": ["cat", "****"], "env": {}}},
    ]
    assert sent[5:] == [{**one, "output": "****"} for one in outputs]


# ---------------------------------------------------------------------- what the model says


@pytest.mark.surface("openai", "post_model_call", "block", "stream", "sync")
def test_a_denied_reply_is_withheld_with_its_calls():
    script = ScriptedReply("4711", tool_calls=[ScriptedCall("look", {}, "c1")])
    with served(Point.POST_MODEL_CALL, denies, script, script, script) as one:
        whole = one.chat().choices[0]
        chunks = list(one.chat(stream=True))
        response = one.client.responses.create(model="m", input="go")
    assert whole.message.content.startswith("DENIED")
    assert (whole.message.tool_calls, whole.finish_reason) == (None, "stop")
    assert "4711" not in str(chunks)
    assert not any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)
    assert [item.type for item in response.output] == ["message"]
    assert one.seen.decisions() == []


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            Point.POST_MODEL_CALL, marks=pytest.mark.surface("openai", "post_model_call", "transform", "stream", "sync")
        ),
        pytest.param(Point.OUTPUT, marks=pytest.mark.surface("openai", "output", "transform", "stream", "sync")),
    ],
)
def test_text_is_rewritten_for_the_program_and_stays_true_for_the_model(point: Point):
    with served(point, hides, *[says("it is 4711")] * 5) as one:
        message = one.chat().choices[0].message
        one.chat(USER, message, USER)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in one.chat(stream=True) if chunk.choices)
        with one.client.chat.completions.stream(model="m", messages=[USER]) as stream:
            helped = stream.get_final_completion().choices[0].message.content
        events = list(one.client.responses.create(model="m", input="go", stream=True))
    assert [message.content, streamed, helped, events[-1].response.output_text] == ["it is ****"] * 4
    assert "4711" not in str(events)
    assert one.sent(1)[1]["content"] == "it is 4711"


@pytest.mark.surface("openai", "output", "block", "sync")
def test_a_denied_answer_does_not_pass_for_a_structure():
    class City(BaseModel):
        name: str

    with served(Point.OUTPUT, denies, says('{"name": "Lyon"}'), says('{"name": "Lyon"}')) as one:
        parsed = one.client.chat.completions.parse(model="m", messages=[USER], response_format=City).choices[0].message
        response = one.client.responses.parse(model="m", input="go", text_format=City)
    assert (parsed.parsed, parsed.content) == (None, None)
    assert parsed.refusal.startswith("DENIED")
    assert response.output_parsed is None
    assert response.output[0].content[0].refusal.startswith("DENIED")


def test_several_choices_are_judged_one_by_one():
    def choice(index: int, name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": "{}"}
        message = {"role": "assistant", "content": None, "tool_calls": [
            {"id": f"c{index}", "type": "function", "function": function}
        ]}  # fmt: skip
        return {"index": index, "message": message, "finish_reason": "tool_calls"}

    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    reply = ScriptedReply(body=json.dumps({**body, "choices": [choice(0, "erase_file"), choice(1, "look")]}).encode())

    def judge(rule: Rule, action: Action) -> Decision | None:
        return denies(rule, action) if action.name == "erase_file" else None

    with served(Point.PRE_TOOL_CALL, judge, reply) as one:
        first, second = one.chat(n=2).choices
    assert (first.message.tool_calls, first.finish_reason) == (None, "stop")
    assert first.message.content.startswith("DENIED")
    assert second.message.tool_calls[0].id == "c1"


# ---------------------------------------------------------------------- calls


@pytest.mark.surface("openai", "pre_tool_call", "transform", "sync")
def test_a_call_is_rewritten_for_the_program_and_stays_true_for_the_model():
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
def test_arguments_that_nobody_can_be_sure_of_do_not_reach_the_program(written: str):
    script = [asks(("c1", "look", written)), says("sorry"), asks(("c2", "look", written)), says("sorry")]
    with served(Point.PRE_TOOL_CALL, lambda rule, action: None, *script) as one:
        assert one.chat().choices[0].message.content == "sorry"
        assert one.client.responses.create(model="m", input="go").output_text == "sorry"
    assert one.judged == []
    assert "not one JSON object" in one.sent(1)[-1]["content"]
    assert [outcome.status for outcome in one.seen.outcomes] == ["invalid_args", "invalid_args"]


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
def test_every_kind_of_call_that_the_program_would_make_is_judged(item: Any, name: str, kind: str, answer: str):
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


def test_a_remote_tool_that_asks_for_approval_is_refused_for_the_program():
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


# ---------------------------------------------------------------------- results


@pytest.mark.parametrize(
    "judge",
    [
        pytest.param(hides, marks=pytest.mark.surface("openai", "post_tool_call", "observe", "transform", "sync")),
        pytest.param(denies, marks=pytest.mark.surface("openai", "post_tool_call", "observe", "block", "tell", "sync")),
    ],
)
def test_a_result_is_judged_before_the_model_reads_it_and_recorded_once(judge: Any):
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


def test_a_result_that_a_program_shortens_later_is_judged_anew_and_recorded_once():
    with served(Point.POST_TOOL_CALL, hides, asks(("c1", "look", {})), says("ok"), says("ok")) as one:
        message = one.chat().choices[0].message
        one.chat(USER, message, {"role": "tool", "tool_call_id": "c1", "content": "the pin is 4711"})
        one.chat(USER, message, {"role": "tool", "tool_call_id": "c1", "content": "4711"})
    assert one.sent(2)[2]["content"] == "****"
    assert [action.text for action in one.judged] == ["the pin is 4711", "4711"]
    assert [outcome.result for outcome in one.seen.outcomes] == ["the pin is 4711"]


def test_results_through_the_servers_transcript_and_of_calls_nobody_saw():
    with served(Point.POST_TOOL_CALL, hides, asks(("c1", "look", {})), says("ok"), says("ok")) as one:
        first = one.client.responses.create(model="m", input="go")
        output = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "4711"}]}
        one.client.responses.create(model="m", input=[output], previous_response_id=first.id)
        one.chat(USER, {"role": "tool", "tool_call_id": "loaded", "name": "old", "content": "4711"})
    assert one.sent(1)[0]["output"] == "****"
    assert one.sent(2)[1]["content"] == "****"
    assert [outcome.action.call_id for outcome in one.seen.outcomes] == ["c1"]
    assert [(action.name, action.call_id) for action in one.judged] == [("look", "c1"), ("old", "loaded")]


# ---------------------------------------------------------------------- what stays as it was


def test_a_reply_with_which_nothing_is_wrong_comes_byte_for_byte():
    extra = {"system_fingerprint": "fp", "service_tier": "default", "vendor_field": {"a": 1}}
    with served(Point.OUTPUT, lambda rule, action: None, ScriptedReply("hé", extra=extra)) as one:
        raw = one.client.chat.completions.with_raw_response.create(model="m", messages=[USER])
    given = json.loads(raw.content)
    assert given["vendor_field"] == {"a": 1}
    assert raw.parse().choices[0].message.content == "hé"


def test_usage_of_rounds_that_the_program_did_not_see_is_counted():
    script = [asks(("c1", "erase_file", {})), says("no")]
    with served(Point.PRE_TOOL_CALL, denies, *script, *script) as one:
        whole = one.chat().usage
        *_, last = one.chat(stream=True, stream_options={"include_usage": True})
    chats = [span for span in one.seen.spans if span.attributes[semconv.OPERATION] == semconv.CHAT]
    used = [span.attributes[semconv.INPUT_TOKENS] for span in chats]
    assert (whole.prompt_tokens, last.usage.prompt_tokens) == (used[0] + used[1], used[2] + used[3])
    assert len({span.attributes[semconv.RESPONSE_ID] for span in chats}) == 4


def test_copies_are_governed_and_other_calls_pass():
    with served(Point.PRE_TOOL_CALL, denies, asks(("c1", "look", {})), says("no")) as one:
        copied = one.client.with_options(timeout=30).copy()
        assert isinstance(copied, openai.OpenAI)
        assert copied.chat.completions.create(model="m", messages=[USER]).choices[0].message.content == "no"
        assert [model.id for model in copied.models.list()] == ["scripted"]
        assert govern_client(one.client, one.governor) is one.client
    assert len(one.judged) == 1


def test_a_client_on_the_older_http_library_is_governed():
    import httpx

    with served(Point.PRE_TOOL_CALL, denies, asks(("c1", "look", {})), says("no")) as one, httpx.Client() as http:
        on = govern_client(programs.client(one.server.base_url, http_client=http), one.governor)
        assert on.chat.completions.create(model="m", messages=[USER]).choices[0].message.content == "no"
