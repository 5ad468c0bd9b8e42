"""Streams with ``observe_only``: the program may read them as it likes, or stop reading."""

from __future__ import annotations

import gc
import gzip
import json
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import httpx
import httpx2
import openai
import pytest

from lgov_core.governor import Governor
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.types import Span
from lgov_openai import govern_client

QUESTION: list[Any] = [{"role": "user", "content": "go"}]
CALL = ScriptedReply(tool_calls=[ScriptedCall("add", {"a": 1}, "call_0")])
ASKED = {"role": "assistant", "tool_calls": [
    {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
]}  # fmt: skip
TOLD = {"role": "tool", "tool_call_id": "call_0", "content": "2"}


class Seen:
    """Keeps the spans that it is shown."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @hookimpl
    def lgov_observe(self, event: object) -> None:
        if isinstance(event, Span):
            self.spans.append(event)

    def of(self, operation: str) -> list[Span]:
        return [span for span in self.spans if span.attributes.get(semconv.OPERATION) == operation]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def watching(*plugins: Any) -> Governor:
    manager = make_plugin_manager(builtin=(), third_party=False)
    return Governor(plugins=plugins, manager=manager, capture_content=True, observe_only=True)


@pytest.fixture
def client(seen: Seen) -> Generator[Any]:
    with openai.OpenAI(base_url="http://model.invalid/v1", api_key="k", max_retries=0) as plain:
        yield govern_client(plain, watching(seen))


def ask(client: Any, server: ScriptedModelServer, messages: Sequence[Any] = QUESTION) -> Any:
    client.base_url = server.base_url
    return client.chat.completions.create(model="m", messages=messages, stream=True)


def read_to_the_finish(chunks: Any) -> None:
    for chunk in chunks:
        if chunk.choices[0].finish_reason:
            return


def test_results_of_a_stream_not_read_to_its_end(client: Any, seen: Seen) -> None:
    with ScriptedModelServer([CALL, ScriptedReply("done")]) as server:
        first = ask(client, server)
        read_to_the_finish(first)
        assert seen.spans == []
        second = ask(client, server, [*QUESTION, ASKED, TOLD])
        (tool,) = seen.of(semconv.EXECUTE_TOOL)
        assert tool.attributes[semconv.TOOL_RESULT] == "2"
        assert tool.attributes[semconv.TOOL_STATUS] == "ok"
        for chunks in (second, first):
            for _ in chunks:
                pass
    assert [span.attributes.get(semconv.ERROR_TYPE) for span in seen.of(semconv.CHAT)] == [None, None]
    client._lgov_interceptors[0].forget()  # shows the calls that still wait for their results
    assert len(seen.of(semconv.EXECUTE_TOOL)) == 1


def test_a_stream_closed_after_the_whole_reply_succeeded(client: Any, seen: Seen) -> None:
    with ScriptedModelServer([CALL]) as server:
        chunks = ask(client, server)
        read_to_the_finish(chunks)
        chunks.close()
    (call,) = seen.of(semconv.CHAT)
    assert semconv.ERROR_TYPE not in call.attributes
    assert json.loads(str(call.attributes[semconv.OUTPUT_MESSAGES]))[0]["tool_calls"][0]["name"] == "add"


def test_a_stream_closed_early_ends_with_generator_exit(client: Any, seen: Seen) -> None:
    with ScriptedModelServer([ScriptedReply("one two three")]) as server:
        with ask(client, server) as chunks:
            next(chunks)
        assert [span.attributes[semconv.ERROR_TYPE] for span in seen.of(semconv.CHAT)] == ["GeneratorExit"]


def test_a_dropped_stream_ends_when_it_is_collected(client: Any, seen: Seen) -> None:
    with ScriptedModelServer([CALL]) as server:
        chunks = ask(client, server)
        next(chunks)
        dropped = weakref.ref(chunks.response)
        del chunks
        gc.collect()
    assert dropped() is None
    assert [span.attributes.get(semconv.ERROR_TYPE) for span in seen.of(semconv.CHAT)] == ["GeneratorExit"]


def test_a_reply_dropped_unread_ends_with_the_next_request(client: Any, seen: Seen) -> None:
    with ScriptedModelServer([CALL, ScriptedReply("done")]) as server:
        client.base_url = server.base_url
        client.chat.completions.with_raw_response.create(model="m", messages=QUESTION, stream=True)
        gc.collect()
        for _ in ask(client, server):
            pass
    assert [span.attributes.get(semconv.ERROR_TYPE) for span in seen.of(semconv.CHAT)] == ["GeneratorExit", None]


def test_closing_a_generator_ends_the_call_at_once(client: Any, seen: Seen) -> None:
    def pass_on(server: ScriptedModelServer) -> Iterator[Any]:
        with ask(client, server) as chunks:
            yield from chunks

    with ScriptedModelServer([CALL]) as server:
        passed = pass_on(server)
        next(passed)
        passed.close()
        assert [span.attributes[semconv.ERROR_TYPE] for span in seen.of(semconv.CHAT)] == ["GeneratorExit"]


def test_reused_call_ids_in_streams(client: Any, seen: Seen) -> None:
    with ScriptedModelServer([CALL, CALL, ScriptedReply("done")]) as server:
        messages = [*QUESTION]
        kept = []
        for number in range(3):
            kept.append(ask(client, server, messages))
            read_to_the_finish(kept[-1])
            messages += [ASKED, {**TOLD, "content": str(number)}]
    assert [span.attributes[semconv.TOOL_RESULT] for span in seen.of(semconv.EXECUTE_TOOL)] == ["0", "1"]


@pytest.mark.parametrize("retries", [0, 1])
def test_an_error_status_ends_the_call_with_it(client: Any, seen: Seen, retries: int) -> None:
    busy = ScriptedReply("busy", status=503, headers={"retry-after-ms": "1"})
    with ScriptedModelServer([busy, ScriptedReply("done")]) as server:
        trying = client.with_options(max_retries=retries, base_url=server.base_url)
        if retries:
            list(trying.chat.completions.create(model="m", messages=QUESTION, stream=True))
        else:
            with pytest.raises(openai.InternalServerError, match="busy"):
                trying.chat.completions.create(model="m", messages=QUESTION, stream=True)
    errors = [span.attributes.get(semconv.ERROR_TYPE) for span in seen.of(semconv.CHAT)]
    assert errors == ["APIStatusError", None][: retries + 1]


def test_open_streams_end_with_uninstrument(seen: Seen) -> None:
    import lgov_openai

    with ScriptedModelServer([CALL]) as server, openai.OpenAI(base_url=server.base_url, api_key="k") as plain:
        lgov_openai.instrument(watching(seen))
        chunks = ask(plain, server)
        read_to_the_finish(chunks)
        assert seen.spans == []
        lgov_openai.uninstrument()
        assert [span.attributes.get(semconv.ERROR_TYPE) for span in seen.of(semconv.CHAT)] == [None]
        assert "".join(str(chunk.choices) for chunk in chunks) == ""
    assert len(seen.of(semconv.CHAT)) == 1


def test_spans_belong_to_the_rollout_of_the_request(client: Any, seen: Seen) -> None:
    with ScriptedModelServer([CALL, ScriptedReply("done")]) as server:
        with enter_scope(RolloutScope("r1")):
            chunks = ask(client, server)
        reader = threading.Thread(target=lambda: [None for _ in chunks])
        reader.start()
        reader.join()
        with enter_scope(RolloutScope("r1")):
            for _ in ask(client, server, [*QUESTION, ASKED, TOLD]):
                pass
    assert [(span.name, span.rollout_id) for span in seen.spans] == [
        ("chat m", "r1"),
        ("execute_tool add", "r1"),
        ("chat m", "r1"),
    ]


def test_an_error_of_a_plugin_does_not_reach_the_program(seen: Seen) -> None:
    class Broken:
        @hookimpl
        def lgov_observe(self, event: object) -> None:
            raise RuntimeError("broken")

    with openai.OpenAI(base_url="http://model.invalid/v1", api_key="k", max_retries=0) as plain:
        client = govern_client(plain, watching(Broken(), seen))
        with ScriptedModelServer([ScriptedReply("one two")]) as server:
            text = [chunk.choices[0].delta.content for chunk in ask(client, server)]
    assert "".join(piece or "" for piece in text) == "one two"


# ---------------------------------------------------------------------- bodies of other kinds


def answering(seen: Seen, pieces: Sequence[bytes], **headers: str) -> Any:
    class Body(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from pieces

    given = {"content-type": "text/event-stream", **{name.replace("_", "-"): one for name, one in headers.items()}}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, headers=given, stream=Body()))
    http = httpx2.Client(transport=transport)
    plain = openai.OpenAI(base_url="http://model.invalid/v1", api_key="k", max_retries=0, http_client=http)
    return govern_client(plain, watching(seen))


def events(*objects: Mapping[str, Any], end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(one).encode() + end for one in objects)


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


TEXT = [chunk(role="assistant", content="one"), chunk(content=" two"), chunk("stop")]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_body_may_come_in_any_pieces(seen: Seen, end: bytes, size: int) -> None:
    body = events(*TEXT, end=end) + b"data: [DONE]" + end
    client = answering(seen, [body[at : at + size] for at in range(0, len(body), size)])
    got = client.chat.completions.create(model="m", messages=QUESTION, stream=True)
    assert "".join(one.choices[0].delta.content or "" for one in got) == "one two"
    (call,) = seen.of(semconv.CHAT)
    assert json.loads(str(call.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"] == "one two"


def test_a_stream_of_an_httpx_client_is_recorded(seen: Seen) -> None:
    with ScriptedModelServer([ScriptedReply("one two")]) as server, httpx.Client() as http:
        plain = openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0, http_client=http)  # type: ignore[arg-type]
        text = [chunk.choices[0].delta.content or "" for chunk in ask(govern_client(plain, watching(seen)), server)]
    assert "".join(text) == "one two"
    (call,) = seen.of(semconv.CHAT)
    assert json.loads(str(call.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"] == "one two"


def test_a_body_may_be_compressed(seen: Seen) -> None:
    body = gzip.compress(events(*TEXT) + b"data: [DONE]\n\n")
    client = answering(seen, [body[:30], body[30:]], content_encoding="gzip")
    got = client.chat.completions.create(model="m", messages=QUESTION, stream=True)
    assert "".join(one.choices[0].delta.content or "" for one in got) == "one two"
    (call,) = seen.of(semconv.CHAT)
    assert json.loads(str(call.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"] == "one two"


@pytest.mark.parametrize("tail", [b"data: [DO", b"data: {", b'data: {"id": "\xc3', b"da"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_piece_may_end_within_an_event(seen: Seen, tail: bytes, closed: bool) -> None:
    call = {"index": 0, "id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    first = events(chunk(role="assistant", tool_calls=[call]), chunk("tool_calls"))
    client = answering(seen, [first + tail, b"never read"])
    chunks = client.chat.completions.create(model="m", messages=QUESTION, stream=True)
    read_to_the_finish(chunks)
    if closed:
        chunks.close()
    client.chat.completions.create(model="m", messages=[*QUESTION, ASKED, TOLD], stream=True).close()
    assert [span.attributes[semconv.TOOL_RESULT] for span in seen.of(semconv.EXECUTE_TOOL)] == ["2"]
    if closed:
        assert semconv.ERROR_TYPE not in seen.of(semconv.CHAT)[0].attributes


@pytest.mark.parametrize("kind", ["text/event-stream", "application/octet-stream", ""])
def test_a_stream_need_not_be_declared(seen: Seen, kind: str) -> None:
    came: list[str] = []

    class Body(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for number, one in enumerate(TEXT):
                came.append(f"sent {number}")
                yield events(one)

    given = {"content-type": kind} if kind else {}
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, headers=given, stream=Body()))
    http = httpx2.Client(transport=transport)
    plain = openai.OpenAI(base_url="http://model.invalid/v1", api_key="k", max_retries=0, http_client=http)
    client = govern_client(plain, watching(seen))
    for number, _ in enumerate(client.chat.completions.create(model="m", messages=QUESTION, stream=True)):
        came.append(f"got {number}")
    assert came == ["sent 0", "got 0", "sent 1", "got 1", "sent 2", "got 2"]
    (call,) = seen.of(semconv.CHAT)
    assert json.loads(str(call.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"] == "one two"


def test_a_whole_reply_may_be_read_in_pieces(seen: Seen) -> None:
    body = json.dumps({"id": "chatcmpl-1", "model": "m", "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    ]}).encode()  # fmt: skip
    client = answering(seen, [body[:9], body[9:]], content_type="application/json")
    with client.chat.completions.with_streaming_response.create(model="m", messages=QUESTION) as raw:
        assert list(raw.http_response.iter_raw()) == [body[:9], body[9:]]
    (call,) = seen.of(semconv.CHAT)
    assert json.loads(str(call.attributes[semconv.OUTPUT_MESSAGES]))[0]["content"] == "hi"


@pytest.mark.parametrize("body", [b"", b"data: [DONE]\n\n", events(TEXT[0]), b"data: {\n\n", b'{"error": {}}'])
def test_an_incomplete_body_is_passed_on_and_failed(seen: Seen, body: bytes) -> None:
    client = answering(seen, [body])
    with client.chat.completions.with_streaming_response.create(model="m", messages=QUESTION, stream=True) as raw:
        assert b"".join(raw.iter_bytes()) == body
    (call,) = seen.of(semconv.CHAT)
    assert semconv.ERROR_TYPE in call.attributes


def test_a_wrong_content_encoding_is_passed_on(seen: Seen) -> None:
    client = answering(seen, [b"no gzip"], content_encoding="gzip")
    with pytest.raises(openai.APIConnectionError):
        list(client.chat.completions.create(model="m", messages=QUESTION, stream=True))
    (call,) = seen.of(semconv.CHAT)
    assert semconv.ERROR_TYPE in call.attributes
