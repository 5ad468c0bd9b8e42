"""Where nobody judges, only what is new of a transcript is read, and all of it is captured as if it had been."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import openai
import pytest

from lgov_core.governor import Governor
from lgov_core.instrumentation.tool_call import ToolCall
from lgov_core.plugins import make_plugin_manager
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.trace import semconv
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Span
from lgov_openai import govern_client
from lgov_openai import request_parser as reading
from lgov_openai.chat import ChatProtocol
from lgov_openai.client import Door
from lgov_openai.protocol import loads
from lgov_openai.request_parser import Request, Requests
from lgov_openai.responses import ResponsesProtocol

WIRE = ChatProtocol()
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
SYSTEM = {"role": "system", "content": "You add."}


def turn(number: int, arguments: str = '{"a": 1}', content: Any = "2 ☃") -> list[dict[str, Any]]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": content},
    ]


def conversation(turns: int, first: str = "go") -> list[dict[str, Any]]:
    return [SYSTEM, {"role": "user", "content": first}, *(one for number in range(turns) for one in turn(number))]


def written(messages: Sequence[Any], **further: Any) -> bytes:
    """As the openai client writes a request."""
    body = {"model": "m", "messages": messages, "tools": TOOLS, **further}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def said(request: Request) -> tuple[Any, ...]:
    prefixes = [request.prefixes[position] for position in range(len(request.entries) + 1)]
    return request.body, list(request.entries), request.shown, prefixes


def read(requests: Requests, content: bytes) -> Request:
    return requests.read(WIRE, content, shown=True)


def by_itself(content: bytes) -> Request:
    """The request as it is read as a whole, by the way that others are read."""
    return read(Requests(), json.dumps(json.loads(content)).encode())


def assert_reads_as_a_whole(requests: Requests, content: bytes) -> Request:
    request = read(requests, content)
    assert said(request) == said(by_itself(content))
    return request


def shared(one: Request, other: Request) -> int:
    """How many entries were read once for both."""
    return sum(any(mine is theirs for theirs in other.entries) for mine in one.entries)


def test_only_what_is_new_is_read_and_says_what_the_whole_says() -> None:
    requests = Requests()
    before = assert_reads_as_a_whole(requests, written(conversation(0)))
    for turns in range(1, 6):
        request = assert_reads_as_a_whole(requests, written(conversation(turns)))
        assert shared(request, before) == len(before.entries)
        before = request


@pytest.mark.parametrize("turns", [1, 5])
def test_the_openai_client_writes_what_can_be_read_on(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[bytes] = []
    read_whole = reading._read_whole

    def noting(wire: Any, content: bytes, shown: bool) -> Request:
        whole.append(content)
        return read_whole(wire, content, shown)

    def answer(request: Any) -> Any:
        messages = json.loads(request.content)["messages"]
        done = sum(one["role"] == "tool" for one in messages)
        message = {"role": "assistant", "content": "done"} if done == turns else turn(done)[0]
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx2.Response(200, json={"id": f"chatcmpl-{done}", "model": "m", "choices": [choice]})

    monkeypatch.setattr(reading, "_read_whole", noting)
    program = Program()
    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with openai.OpenAI(api_key="k", base_url="http://model.invalid/v1", http_client=http) as plain:
        client = govern_client(plain, program.governor)
        messages: list[Any] = conversation(0, "é ☃")
        for number in range(turns + 1):
            said_so = client.chat.completions.create(model="m", messages=messages, tools=TOOLS, temperature=0.5)  # type: ignore[arg-type]
            messages += [said_so.choices[0].message, turn(number)[1]]
    assert len(program.shown(semconv.CHAT)) == turns + 1
    assert whole == []


def test_conversations_stay_apart() -> None:
    requests = Requests()
    last: dict[str, Request] = {}
    for turns in range(4):
        for name in ("one", "another", "one more"):
            request = assert_reads_as_a_whole(requests, written(conversation(turns, name)))
            if name in last:
                assert shared(request, last[name]) == len(last[name].entries)
            last[name] = request
    with enter_scope(RolloutScope("r1")):
        request = assert_reads_as_a_whole(requests, written(conversation(4, "one")))
    assert shared(request, last["one"]) == 0


@pytest.mark.parametrize(
    "messages",
    [
        conversation(1),  # once more
        conversation(1)[:-1],
        [*conversation(1)[:-1], {"role": "tool", "tool_call_id": "call_0", "content": "3"}],
        [*conversation(1)[:-1], {**conversation(1)[-1], "name": "add"}, *turn(1)],
        [*conversation(0), *turn(0, '{"a":1}'), *turn(1)],
        conversation(2)[1:],
        conversation(2)[:1],
    ],
)
def test_a_transcript_that_was_changed_is_read_anew(messages: list[Any]) -> None:
    requests = Requests()
    read(requests, written(conversation(1)))
    assert_reads_as_a_whole(requests, written(messages))
    assert_reads_as_a_whole(requests, written([*messages, *turn(7)]))


@pytest.mark.parametrize(
    "further", [{}, {"stream": True}, {"tools": []}, {"metadata": {"messages": "none"}}, {"user": "]}é,"}]
)
def test_what_stands_behind_the_transcript_may_change(further: Mapping[str, Any]) -> None:
    requests = Requests()
    first = read(requests, written(conversation(1)))
    request = assert_reads_as_a_whole(requests, written(conversation(2), **further))
    assert shared(request, first) == 4


@pytest.mark.parametrize(
    "way",
    [
        lambda text: text + b" \n",
        lambda text: text[:-1] + b',"messages":[{"role":"user","content":"other"}]}',
        lambda text: text.replace(b'],"tools"', b' ] , "tools"'),
        lambda text: text.replace(b'],"tools"', b'],"model":"n","tools"'),
        lambda text: text.replace(b'"model":"m",', b""),
        lambda text: text.replace(b'"model":"m",', b'"model":"m" ,'),
        lambda text: text.replace(b'"model":"m",', b'"messages":[],"model":"m",'),
        lambda text: text.replace(b'"model":"m",', b'"metadata":{"messages":[1,{"a":"["}]},'),
        lambda text: text.replace(b'"model":"m",', b'"user":"\\"messages\\":[",'),
        lambda text: text.replace("☃".encode(), b"\\u2603\\ud83d"),
    ],
)
def test_a_request_that_others_write_says_what_it_says(way: Any) -> None:
    requests = Requests()
    for turns in range(4):
        content = way(written(conversation(turns)))
        body = json.loads(content)
        request = read(requests, content)
        assert request.body == body
        assert list(request.entries) == body["messages"]
        assert said(read(requests, written(conversation(turns)))) == said(by_itself(written(conversation(turns))))


@pytest.mark.parametrize(
    "way",
    [
        lambda text: text[:-1],
        lambda text: text[:-1] + b",}",
        lambda text: text.replace(b'],"tools"', b',],"tools"'),
        lambda text: text.replace(b'],"tools"', b']"tools"'),
        lambda text: text.replace(b'"model":"m",', b","),
        lambda text: text.replace(b'"model":"m",', b'"model":"m"'),
        lambda text: text.replace(b'"model":"m",', b'"model":{"m":1,'),
        lambda text: b"[" + text + b"]",
        lambda text: text.replace(b'"go"', b'"\xff"'),
    ],
)
def test_what_is_no_request_is_none_wherever_it_begins(way: Any) -> None:
    requests = Requests()
    read(requests, written(conversation(1)))
    with pytest.raises(ValueError):  # noqa: PT011 - what json or the decoding of its text says
        read(requests, way(written(conversation(2))))


def test_without_content_nothing_is_written_down() -> None:
    requests = Requests()
    for turns in range(3):
        request = requests.read(WIRE, written(conversation(turns)), shown=False)
        assert request.shown is None
        assert [*said(request)][3] == said(by_itself(written(conversation(turns))))[3]


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_BYTES", 20_000)
    requests = Requests()
    for number in range(200):
        with enter_scope(RolloutScope(f"r{number % 7}")):
            read(requests, written(conversation(number % 3, f"task {number} " * 10)))
    kept = [known for several in requests._known.values() for known in several]
    assert kept
    assert sum(len(known.text) for known in kept) == requests._bytes <= 20_000
    assert all(len(several) <= reading.MAX_CONVERSATIONS for several in requests._known.values())
    read(requests, written(conversation(0, "x" * 30_000)))
    assert (requests._bytes, len(requests._known)) == (0, 0)


def test_items_of_the_responses_api_are_read_as_a_whole() -> None:
    requests = Requests()
    body = {"input": [{"role": "user", "content": "go"}], "instructions": "be brief"}
    for _ in range(2):
        request = requests.read(ResponsesProtocol(), json.dumps(body).encode(), shown=True)
        assert [one["role"] for one in json.loads(str(request.shown))] == ["system", "user"]


# ---------------------------------------------------------------------- through a client's door


class Kept:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add_span(self, span: Span) -> None:
        self.spans.append(span)

    def add_rewards(self, rewards: Any) -> None:
        raise AssertionError("nobody rewards here")


class Program:
    """Sends requests through the door of a governor that only watches, and keeps what it is told and what is shown."""

    def __init__(self) -> None:
        self.store = Kept()
        manager = make_plugin_manager(builtin=(), third_party=False)
        self.governor = Governor(
            plugins=[StoreSink(self.store)], manager=manager, capture_content=True, observe_only=True
        )
        self.door = Door(lambda: self.governor)
        self.sent: list[bytes] = []

    def ask(self, messages: Sequence[Any], *replies: Mapping[str, Any]) -> dict[str, Any]:
        answers = iter(replies)

        def send(request: Any) -> Any:
            self.sent.append(request.content)
            choice = {"index": 0, "message": next(answers), "finish_reason": "stop"}
            body = {"id": f"chatcmpl-{len(self.sent)}", "model": "m", "choices": [choice]}
            return httpx2.Response(200, json=body, request=request)

        url = "http://model.invalid/v1/chat/completions"
        response = self.door.send(httpx2.Request("POST", url, content=written(messages)), send)
        return response.json()["choices"][0]["message"]

    def shown(self, operation: str) -> list[Span]:
        return [span for span in self.store.spans if span.attributes[semconv.OPERATION] == operation]


def test_results_are_those_of_the_calls_before() -> None:
    program, messages = Program(), conversation(0)
    for number in range(3):
        asked, result = turn(number, content=str(number))
        program.ask(messages, asked)
        messages += [asked, result]
    program.ask(messages, {"role": "assistant", "content": "done"})
    assert [json.loads(content) for content in program.sent][-1]["messages"] == messages
    tools = program.shown(semconv.EXECUTE_TOOL)
    assert [span.attributes[semconv.TOOL_RESULT] for span in tools] == ["0", "1", "2"]
    read_by_model = [json.loads(str(span.attributes[semconv.INPUT_MESSAGES])) for span in program.shown(semconv.CHAT)]
    assert [len(one) for one in read_by_model] == [2, 4, 6, 8]
    assert read_by_model[-1][:6] == read_by_model[-2]


@pytest.mark.parametrize(
    ("arguments", "status", "shown"),
    [('{"a": 1', "invalid_args", {}), ("[1]", "invalid_args", {}), ('{"a": 1, "a": 2}', "ok", {"a": 2})],
)
def test_arguments_that_cannot_be_read_reach_the_program_and_what_it_says_of_them_is_noted(
    arguments: str, status: str, shown: Mapping[str, Any]
) -> None:
    program, messages = Program(), conversation(0)
    unreadable, result = turn(0, arguments, content="Error: which a?")
    assert program.ask(messages, unreadable) == unreadable
    messages += [unreadable, result]
    program.ask(messages, {"role": "assistant", "content": "done"})
    assert [json.loads(content)["messages"] for content in program.sent] == [conversation(0), messages]
    (call,) = program.shown(semconv.EXECUTE_TOOL)
    assert call.attributes[semconv.TOOL_STATUS] == status
    assert json.loads(str(call.attributes[semconv.TOOL_ARGUMENTS])) == shown
    assert call.attributes[semconv.TOOL_RESULT] == "Error: which a?"


def test_what_nobody_understands_is_sent_and_its_call_shown() -> None:
    program = Program()
    strange = {"role": "assistant", "content": "x", "tool_calls": [None]}
    said_so = {"role": "user", "content": "go on"}
    for _ in range(2):
        messages = [SYSTEM, strange, said_so, {"role": "assistant", "content": "y"}, said_so]
        assert program.ask(messages, {"role": "assistant", "content": "done"})["content"] == "done"
    assert [semconv.INPUT_MESSAGES in span.attributes for span in program.shown(semconv.CHAT)] == [False, False]
    assert program.ask([strange], {"role": "assistant", "content": "done"})["content"] == "done"


def test_a_reply_without_any_item_reaches_the_program_as_it_came() -> None:
    program = Program()
    url, body = "http://model.invalid/v1/responses", {"id": "resp_1", "model": "m", "output": []}
    request = httpx2.Request("POST", url, json={"model": "m", "input": "go"})
    response = program.door.send(request, lambda one: httpx2.Response(200, json=body, request=one))
    assert response.json() == body
    assert [span.attributes[semconv.RESPONSE_ID] for span in program.shown(semconv.CHAT)] == ["resp_1"]


def test_conversations_with_other_tools_and_settings_take_turns_and_keep_their_own() -> None:
    requests = Requests()
    for turns in range(3):
        for name, temperature in (("one", 0.1), ("two", 0.2), ("three", None)):
            further = {} if temperature is None else {"temperature": temperature}
            content = written(conversation(turns, name), **further)
            assert said(read(requests, content)) == said(by_itself(content)), (turns, name)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("text", ['{"a": "ü"}', ' {"a": 1}\n', '{"a": 1}\r\n ', "{}", "[1]", '"a"'])
def test_a_reply_is_read_in_every_encoding_that_json_may_have(text: str, encoding: str) -> None:
    assert loads(text.encode(encoding)) == json.loads(text)


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1} 2', b"{\xff}", b"{\0"])
def test_a_reply_that_is_no_json_is_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        loads(content)


def test_a_message_that_comes_back_as_the_model_wrote_it_is_read_once_and_a_changed_one_anew() -> None:
    for changed in (False, True):
        requests = Requests()
        first = read(requests, written(conversation(0)))
        message, result = turn(0)
        answered = {"role": "assistant", "tool_calls": message["tool_calls"]}
        (own,) = WIRE.turns({"choices": [{"message": message}]})
        first.reply = own.entries[0]
        sent = {**answered, "content": "but"} if changed else answered
        second = read(requests, written([*conversation(0), sent, result]))
        assert (second.entries[2] is own.entries[0]) is not changed
        assert said(second) == said(by_itself(written([*conversation(0), sent, result])))


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"content": "I add. ☃"},
        {"content": "I add.", "tool_calls": None},
        {"refusal": "no", "tool_calls": None},
        {"content": "but", "role": None},
        {"content": [{"type": "text", "text": "in parts"}]},
        {"function_call": {"name": "add", "arguments": "{}"}, "tool_calls": None},
        {"tool_calls": [{"id": "call_0", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
    ],
)
@pytest.mark.parametrize("back", [lambda entry: entry, lambda entry: {**entry, "name": "x"}])
def test_a_message_that_comes_back_is_shown_as_it_would_be_by_itself(further: Mapping[str, Any], back: Any) -> None:
    program, messages = Program(), conversation(0)
    asked, result = turn(0)
    reply = {**asked, **further}
    program.ask(messages, reply)
    messages.append(back({key: value for key, value in reply.items() if value is not None}))
    for answer in (None, result, {"role": "user", "content": "go on"}):
        messages += [answer] if answer is not None else []
        program.ask(messages, {"role": "assistant", "content": "done"})
        shown = program.shown(semconv.CHAT)[-1].attributes[semconv.INPUT_MESSAGES]
        assert shown == by_itself(written(messages)).shown


def test_of_a_call_whose_result_is_recorded_only_what_tells_it_from_others_is_kept() -> None:
    program, messages = Program(), conversation(0)
    before = calls_alive()
    asked, result = turn(0)
    program.ask(messages, asked)
    assert calls_alive() == before + 1
    for _ in range(2):  # a request that is sent again tells nothing new
        program.ask([*messages, asked, result], {"role": "assistant", "content": "done"})
    assert calls_alive() == before
    assert len(program.shown(semconv.EXECUTE_TOOL)) == 1


def calls_alive() -> int:
    gc.collect()
    return sum(type(one) is ToolCall for one in gc.get_objects())
