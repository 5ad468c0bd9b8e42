"""What the model reads is what it wrote and read, whatever the program received."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from tests.cells import Seen, asks, says
from tests.openai import openai_programs as programs
from tests.openai.transcripts import USER, assert_each_continues_the_one_before, create, on, read, shape


def test_hidden_rounds_are_restored_in_their_place(governor):
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


def test_removed_items_are_restored_between_the_others(governor):
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


def test_rebuilt_messages_are_restored_by_call_id(governor):
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


def test_interleaved_conversations_stay_apart(governor):
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


def test_reused_call_ids_need_the_same_transcript_before(governor):
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


def test_reused_call_ids_do_not_fill_the_memory(governor):
    from lgov_core.instrumentation.conversation_memory import MAX_PER_MARK

    seen = Seen()
    governor.manager.register(seen)
    with ScriptedModelServer(lambda body: asks(("call_0", "look", {}))) as server:
        client = on(server, governor)
        (interceptor,) = client._lgov_interceptors
        for number in range(MAX_PER_MARK + 20):
            create(client, [{"role": "user", "content": str(number)}])
    ended = [span for span in seen.spans if span.name == "execute_tool look"]
    assert len(ended) == 19, "calls that were forgotten are shown as ones whose end nobody saw"
    assert all(span.ended_at is None for span in ended)
    interceptor.forget()
    assert len([span for span in seen.spans if span.name == "execute_tool look"]) == MAX_PER_MARK + 20


def test_equal_answers_are_told_apart_by_rollout(governor):
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


def test_an_ambiguous_history_is_not_restored(governor):
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


def test_a_change_of_the_program_stays(governor):
    script = [asks(("a", "erase_file", {}), ("b", "look", {})), says("ok")]
    with ScriptedModelServer(script) as server:
        client = on(server, governor)
        message = create(client, [USER]).model_dump(exclude_none=True)
        message["tool_calls"][0]["function"]["arguments"] = '{"path": "mine"}'
        create(client, [USER, message, {"role": "tool", "tool_call_id": "b", "content": "seen"}])
    assert shape(read(server)) == ["user:go", "assistant:b", "tool:b"]
    assert read(server)[1]["tool_calls"][0]["function"]["arguments"] == '{"path": "mine"}'


def test_a_model_that_does_not_give_up_is_stopped(governor):
    from lgov_core.instrumentation.model_flow import MAX_ROUNDS

    asked = [asks((f"c{number}", "erase_file", {})) for number in range(MAX_ROUNDS + 1)]
    with ScriptedModelServer([*asked, says("ok")]) as server:
        client = on(server, governor)
        message = create(client, [USER])
        assert message.content.startswith("DENIED by policy cells/no-erasing")
        assert not message.tool_calls
        create(client, [USER, message, {"role": "user", "content": "well"}])
    expected = [part for number in range(MAX_ROUNDS + 1) for part in (f"assistant:c{number}", f"tool:c{number}")]
    assert shape(read(server)) == ["user:go", *expected, "user:well"]


def test_a_tool_choice_of_the_denied_call_is_lifted(governor):
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


def test_legacy_function_calls_are_evaluated(governor):
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
