"""What the model reads is what it said and was told, whatever the program was given; and nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import openai
import pytest

from lgov_core.errors import PolicyDenied
from lgov_core.governor import Governor
from lgov_core.policies.base import BoundedPolicy
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Action, Decision, Point
from lgov_openai import govern_client
from tests.cells import NoErasing, Seen, asks, says
from tests.openai import openai_programs as programs

USER = {"role": "user", "content": "go"}


@pytest.fixture
def governor() -> Iterator[Governor]:
    with_denial = Governor([NoErasing(["erase_file"])])
    yield with_denial
    with_denial.close()


def on(server: ScriptedModelServer, governor: Governor, **options: Any) -> openai.OpenAI:
    return govern_client(programs.client(server.base_url, **options), governor)


def read(server: ScriptedModelServer, number: int = -1) -> list[dict[str, Any]]:
    body = server.requests[number].body
    return body.get("messages") or body["input"]


def shape(messages: list[dict[str, Any]]) -> list[Any]:
    """Each message in a word: who, and which calls."""
    found: list[Any] = []
    for one in messages:
        calls = [call["id"] for call in one.get("tool_calls") or ()]
        kind = one.get("type", "message")
        found.append(
            f"{kind}:{one['call_id']}"
            if "call_id" in one
            else f"assistant:{','.join(calls)}"
            if calls
            else f"tool:{one['tool_call_id']}"
            if one.get("role") == "tool"
            else f"{one['role']}:{text(one)}"
        )
    return found


def text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def create(client: openai.OpenAI, messages: list[Any]) -> Any:
    return client.chat.completions.create(model="m", messages=messages, tools=programs.CHAT_TOOLS).choices[0].message


def assert_each_continues_the_one_before(server: ScriptedModelServer) -> None:
    for number in range(1, len(server.requests)):
        before, after = read(server, number - 1), read(server, number)
        assert after[: len(before)] == before, (shape(before), shape(after))


def test_rounds_that_the_program_never_saw_stay_where_they_were(governor):
    script = [
        asks(("a", "erase_file", {"path": "x"})),
        asks(("b", "erase_file", {"path": "y"}), ("c", "look", {"path": "y"})),
        asks(("d", "erase_file", {"path": "z"})),
        says("Then not."),
        says("Bye."),
    ]
    with ScriptedModelServer(script) as server:
        client = on(server, governor)
        messages: list[Any] = [USER]
        first = create(client, messages)
        assert [call.id for call in first.tool_calls] == ["c"]
        messages += [first, {"role": "tool", "tool_call_id": "c", "content": "seen"}]
        second = create(client, messages)
        assert (second.content, second.tool_calls) == ("Then not.", None)
        messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "well"}]
        assert create(client, messages).content == "Bye."
        last = read(server)
        assert_each_continues_the_one_before(server)
    assert shape(last) == [
        "user:go", "assistant:a", "tool:a", "assistant:b,c", "tool:b", "tool:c", "assistant:d", "tool:d",
        "assistant:Then not.", "user:well",
    ]  # fmt: skip
    assert [call["function"]["arguments"] for call in last[3]["tool_calls"]] == ['{"path": "y"}'] * 2
    assert all("DENIED" in last[at]["content"] for at in (2, 4, 7))


def test_responses_items_come_back_between_their_siblings(governor):
    script = [
        ScriptedReply("Now.", tool_calls=asks(("a", "erase_file", {"path": "x"}), ("b", "look", {"path": "x"})).tool_calls),
        asks(("c", "erase_file", {"path": "y"})),
        says("Then not."),
        says("Bye."),
    ]  # fmt: skip
    with ScriptedModelServer(script) as server:
        client = on(server, governor)
        items: list[Any] = [USER]
        for result in ([{"type": "function_call_output", "call_id": "b", "output": "seen"}], [USER], []):
            response = client.responses.create(model="m", input=items, tools=programs.RESPONSE_TOOLS)
            items += [*response.output, *result]
        assert response.output_text == "Bye."
        last = read(server)
        assert_each_continues_the_one_before(server)
    assert shape(last) == [
        "user:go", "assistant:Now.", "function_call:a", "function_call:b", "function_call_output:a",
        "function_call_output:b", "function_call:c", "function_call_output:c", "assistant:Then not.", "user:go",
    ]  # fmt: skip


def test_a_transcript_kept_by_the_server_gets_the_answers_it_needs(governor):
    script = [
        asks(("a", "erase_file", {}), ("b", "look", {})),
        asks(("c", "erase_file", {})),
        says("Then not."),
        says("x"),
    ]
    with ScriptedModelServer(script) as server:
        client = on(server, governor)
        first = client.responses.create(model="m", input="go")
        output = {"type": "function_call_output", "call_id": "b", "output": "seen"}
        second = client.responses.create(model="m", input=[output], previous_response_id=first.id)
        branch = client.responses.create(model="m", input=[output], previous_response_id=first.id)
    assert (second.output_text, branch.output_text) == ("Then not.", "x")
    assert [shape(read(server, number)) for number in (1, 2, 3)] == [
        ["function_call_output:a", "function_call_output:b"],
        ["function_call_output:c"],
        ["function_call_output:a", "function_call_output:b"],
    ]
    hidden = server.requests[2].body["previous_response_id"]
    assert hidden not in (first.id, second.id)
    assert server.requests[3].body["previous_response_id"] == first.id


def test_a_conversation_on_the_server_gets_them_once_and_again_after_a_failure(governor):
    script = [asks(("a", "erase_file", {}), ("b", "look", {})), ScriptedReply("no", status=500), says("ok"), says("ok")]
    output = {"type": "function_call_output", "call_id": "b", "output": "seen"}
    with ScriptedModelServer(script) as server:
        client = on(server, governor, max_retries=1)
        client.responses.create(model="m", input="go", conversation="conv_1")
        client.responses.create(model="m", input=[output], conversation="conv_1")
        client.responses.create(model="m", input="more", conversation="conv_1")
    wanted = ["function_call_output:a", "function_call_output:b"]
    assert [shape(read(server, number)) for number in (1, 2)] == [wanted, wanted]
    assert read(server, 3) == "more"


def test_a_program_that_builds_its_messages_anew_each_time(governor):
    script = [asks(("a", "erase_file", {}), ("b", "look", {})), says("ok"), says("ok")]
    with ScriptedModelServer(script) as server:
        client = on(server, governor)
        create(client, [{"role": "system", "content": "It is noon."}, USER])
        rebuilt = [
            {"role": "system", "content": "It is one."},
            {"role": "user", "content": "(summary of what was before)"},
            {"role": "assistant", "tool_calls": [
                {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            ]},
            {"role": "tool", "tool_call_id": "b", "content": "seen"},
        ]  # fmt: skip
        create(client, rebuilt)
        create(client, [rebuilt[0], USER])
    assert shape(read(server, 1))[2:] == ["assistant:a,b", "tool:a", "tool:b"]
    assert shape(read(server, 2)) == ["system:It is one.", "user:go"]


def test_conversations_interleaved_through_one_client_stay_apart(governor):
    def script(body):
        name = body["messages"][0]["content"]
        results = [one for one in body["messages"] if one["role"] == "tool"]
        if not results:
            return asks((f"{name}-a", "erase_file", {}), (f"{name}-b", "look", {"path": name}))
        return asks((f"{name}-c", "erase_file", {})) if len(results) == 2 else says(f"{name} done")

    with ScriptedModelServer(script) as server:
        client = on(server, governor)

        def run(name: str) -> list[Any]:
            messages: list[Any] = [{"role": "user", "content": name}]
            for _ in range(2):
                message = create(client, messages)
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls or ():
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": call.function.arguments})
            create(client, [*messages, {"role": "user", "content": "more"}])
            return messages

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(run, [f"n{number}" for number in range(24)]))
    for number in range(24):
        name = f"n{number}"
        own = [one for one in server.requests if one.body["messages"][0]["content"] == name]
        longest = max((one.body["messages"] for one in own), key=len)
        assert shape(longest) == [
            f"user:{name}", f"assistant:{name}-a,{name}-b", f"tool:{name}-a", f"tool:{name}-b",
            f"assistant:{name}-c", f"tool:{name}-c", f"assistant:{name} done", "user:more",
        ]  # fmt: skip
        assert all(one.body["messages"] == longest[: len(one.body["messages"])] for one in own)


def test_ids_that_a_server_uses_again_tell_nothing_by_themselves(governor):
    """Some servers call every first call `call_0`. What one conversation was denied is not put into another."""
    script = [
        asks(("call_0", "look", {}), ("call_1", "erase_file", {})),
        asks(("call_0", "look", {})),
        says("one"),
        says("two"),
        says("three"),
    ]
    with ScriptedModelServer(script) as server:
        client = on(server, governor)
        told, free = [{"role": "user", "content": "first"}], [{"role": "user", "content": "second"}]
        for messages in (told, free):
            messages += [create(client, messages), {"role": "tool", "tool_call_id": "call_0", "content": "seen"}]
        create(client, told)
        create(client, free)
        create(client, [{"role": "user", "content": "third"}, *free[1:]])
    assert shape(read(server, 2)) == ["user:first", "assistant:call_0,call_1", "tool:call_1", "tool:call_0"]
    assert shape(read(server, 3)) == ["user:second", "assistant:call_0", "tool:call_0"]
    assert shape(read(server, 4)) == ["user:third", "assistant:call_0", "tool:call_0"]


def test_ids_that_come_again_and_again_do_not_fill_the_memory(governor):
    from lgov_openai.transcript import MAX_PER_ID

    seen = Seen()
    governor.manager.register(seen)
    with ScriptedModelServer(lambda body: asks(("call_0", "look", {}))) as server:
        client = on(server, governor)
        (interceptor,) = client._lgov_interceptors
        for number in range(MAX_PER_ID + 20):
            create(client, [{"role": "user", "content": str(number)}])
    ended = [span for span in seen.spans if span.name == "execute_tool look"]
    assert len(ended) == 19, "calls that were forgotten are shown as ones whose end nobody saw"
    assert all(span.ended_at is None for span in ended)
    interceptor.forget()
    assert len([span for span in seen.spans if span.name == "execute_tool look"]) == MAX_PER_ID + 20


def test_equal_answers_of_two_rollouts_keep_their_own_history_and_an_unclear_one_stays_as_it_is(governor):
    script = [
        asks(("a", "erase_file", {"path": "x"})),
        says("same"),
        asks(("b", "erase_file", {"path": "y"})),
        says("same"),
    ]
    after = [USER, {"role": "assistant", "content": "same"}, {"role": "user", "content": "more"}]
    with ScriptedModelServer([*script, says("1"), says("2"), says("3")]) as server:
        client = on(server, governor)
        for number in (1, 2):
            with enter_scope(RolloutScope(f"r{number}")):
                assert create(client, [USER]).content == "same"
        for number in (1, 2):
            with enter_scope(RolloutScope(f"r{number}")):
                create(client, after)
        create(client, after)
    assert [shape(read(server, number))[1] for number in (4, 5)] == ["assistant:a", "assistant:b"]
    assert shape(read(server, 6)) == ["user:go", "assistant:same", "user:more"]


def test_two_histories_that_would_both_fit_are_both_left_alone(governor):
    script = [
        asks(("a", "erase_file", {"path": "x"})),
        says("same"),
        asks(("b", "erase_file", {"path": "y"})),
        says("same"),
    ]
    after = [USER, {"role": "assistant", "content": "same"}, {"role": "user", "content": "more"}]
    with ScriptedModelServer([*script, says("ok")]) as server:
        client = on(server, governor)
        create(client, [USER])
        create(client, [USER])
        create(client, after)
    assert read(server) == after


def test_what_a_program_changed_itself_stays_changed(governor):
    script = [asks(("a", "erase_file", {}), ("b", "look", {})), says("ok")]
    with ScriptedModelServer(script) as server:
        client = on(server, governor)
        message = create(client, [USER]).model_dump(exclude_none=True)
        message["tool_calls"][0]["function"]["arguments"] = '{"path": "mine"}'
        create(client, [USER, message, {"role": "tool", "tool_call_id": "b", "content": "seen"}])
    assert shape(read(server)) == ["user:go", "assistant:b", "tool:b"]
    assert read(server)[1]["tool_calls"][0]["function"]["arguments"] == '{"path": "mine"}'


def test_a_model_that_does_not_give_up_is_stopped_and_the_program_is_told(governor):
    from lgov_openai.exchange import MAX_ROUNDS

    asked = [asks((f"c{number}", "erase_file", {})) for number in range(MAX_ROUNDS + 1)]
    with ScriptedModelServer([*asked, says("ok")]) as server:
        client = on(server, governor)
        message = create(client, [USER])
        assert message.content.startswith("DENIED by policy cells/no-erasing")
        assert not message.tool_calls
        create(client, [USER, message, {"role": "user", "content": "well"}])
    expected = [part for number in range(MAX_ROUNDS + 1) for part in (f"assistant:c{number}", f"tool:c{number}")]
    assert shape(read(server)) == ["user:go", *expected, "user:well"]


def test_a_choice_of_tool_that_names_the_denied_one_is_lifted(governor):
    choice = {"type": "function", "function": {"name": "erase_file"}}
    with ScriptedModelServer([asks(("a", "erase_file", {})), says("no")]) as server:
        on(server, governor).chat.completions.create(
            model="m",
            messages=[USER],
            tools=programs.CHAT_TOOLS,
            tool_choice=choice,
            extra_headers={"Idempotency-Key": "k"},
        )
    assert [one.body["tool_choice"] for one in server.requests] == [choice, "auto"]
    keys = [one.headers["idempotency-key"] for one in server.requests]
    assert keys[0] == "k" != keys[1]


def test_the_old_way_of_calling_functions(governor):
    """`functions` and `function_call` have no ids; they are judged all the same."""
    message = {"role": "assistant", "content": None, "function_call": {"name": "erase_file", "arguments": "{}"}}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    choice = {"index": 0, "message": message, "finish_reason": "function_call"}
    old = ScriptedReply(body=json.dumps({**body, "choices": [choice]}).encode())
    with ScriptedModelServer([old, says("no")]) as server:
        reply = on(server, governor).chat.completions.create(
            model="m", messages=[USER], functions=[{"name": "erase_file"}]
        )
    assert (reply.choices[0].message.content, reply.choices[0].message.function_call) == ("no", None)
    assert read(server)[1]["function_call"]["name"] == "erase_file"
    assert (read(server)[2]["role"], read(server)[2]["name"]) == ("function", "erase_file")


def test_a_text_that_was_denied_is_sent_with_no_later_request():
    seen = Seen()

    class NoPasswords(BoundedPolicy):
        name = "passwords"

        def judge(self, action: Action) -> Decision:
            denied = action.point is Point.INPUT and "hunter2" in (action.text or "")
            return self.deny("no", "a password") if denied else self.allow("fine")

    said, hello = {"role": "user", "content": "hunter2"}, {"role": "user", "content": "hello"}
    with ScriptedModelServer([says("one"), says("two"), says("three"), says("four"), says("5"), says("6")]) as server:
        client = on(server, Governor([NoPasswords()], plugins=[seen]))
        denial = create(client, [said])
        assert "DENIED" in denial.content
        assert create(client, [said, denial, hello]).content == "one"
        assert create(client, [said, denial, hello, {"role": "assistant", "content": "one"}, hello]).content == "two"
        assert_each_continues_the_one_before(server)
        # A server knows nothing of the reply that was the denial.
        first = client.responses.create(model="m", input="hi")
        refused = client.responses.create(model="m", input="hunter2", previous_response_id=first.id)
        assert client.responses.create(model="m", input="so?", previous_response_id=refused.id).output_text == "four"
        assert server.requests[-1].body["previous_response_id"] == first.id
        assert not [request for request in server.requests if "hunter2" in str(request.body)]
        assert len(seen.decisions(Point.INPUT)) == 6
        # Nor where the transcript comes from somewhere else.
        elsewhere = on(server, Governor([NoPasswords()], plugins=[seen]))
        before = [said, {"role": "assistant", "content": "Hm."}, {"role": "user", "content": "early"}]
        for number in range(2):
            create(elsewhere, [*before, {"role": "assistant", "content": "Yes?"}, hello])
            assert len(seen.decisions(Point.INPUT)) == 9, number
        assert not [request for request in server.requests if "hunter2" in str(request.body)]


def test_what_ends_a_run_ends_it_also_where_it_was_said_earlier():
    class NoPasswords(BoundedPolicy):
        name = "passwords"

        def judge(self, action: Action) -> Decision:
            denied = action.point is Point.INPUT and "hunter2" in (action.text or "")
            return replace(self.deny("no", "a password"), abort=True) if denied else self.allow()

    earlier = [{"role": "user", "content": "hunter2"}, {"role": "assistant", "content": "Hm."}]
    with ScriptedModelServer([says("one")]) as server:
        client = on(server, Governor([NoPasswords()]))
        with pytest.raises(PolicyDenied):
            create(client, [*earlier, {"role": "user", "content": "hello"}])
        assert server.requests == []


def test_after_a_reply_that_nobody_gave_a_conversation_begins_anew_or_with_the_same_words():
    denied = ["hunter2"]

    class NoPasswords(BoundedPolicy):
        name = "passwords"

        def judge(self, action: Action) -> Decision:
            return self.deny("no", "a password") if action.text in denied else self.allow()

    with ScriptedModelServer([says("one"), says("two")]) as server:
        client = on(server, Governor([NoPasswords()]))
        refused = client.responses.create(model="m", input="hunter2")
        assert client.responses.create(model="m", input="so?", previous_response_id=refused.id).output_text == "one"
        assert "previous_response_id" not in server.requests[0].body
        said = [{"role": "user", "content": "hunter2"}]
        assert "DENIED" in create(client, said).content
        denied.clear()  # the policy was changed meanwhile
        assert create(client, said).content == "two"
        assert server.requests[1].body["messages"] == said
