"""What passes the gate, on every route: calls and replies as policies see them, and what they change or refuse."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest

from lgov_core.gateway.protocol import GateRefusal, GateReply, GateRequest
from lgov_core.testing import ScriptedCall, ScriptedReply
from lgov_core.wire.exchange import ToolCall

USER = {"role": "user", "content": "hi"}
ALL = ("chat", "completions", "responses", "messages", "embeddings")
ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "m", "messages": [USER]},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "max_tokens": 9, "messages": [USER]},
    "completions": {"model": "m", "prompt": "hi"},
}
EVERY = [(path, stream) for path in ASKED for stream in (False, True)]


class Rules:
    """A gate made of two functions; it notes what it saw."""

    def __init__(self, admit: Callable[..., Any] = lambda asked: asked, release: Callable[..., Any] = list) -> None:
        self._admit, self._release = admit, release
        self.asked: list[GateRequest] = []
        self.replies: list[Sequence[GateReply]] = []

    async def admit(self, asked: GateRequest) -> GateRequest:
        self.asked.append(asked)
        return self._admit(asked)

    def reads_replies(self) -> bool:
        return True

    async def release(self, asked: GateRequest, replies: Sequence[GateReply]) -> Sequence[GateReply]:
        self.replies.append(replies)
        return self._release(replies)


def raising(*args: Any, **options: Any) -> Callable[..., Any]:
    def refuse(_: Any) -> Any:
        raise GateRefusal(*args, **options)

    return refuse


def ask(serving: Any, path: str, stream: bool, **more: Any) -> tuple[int, str, str]:
    """Status, text as the API's own client reads it, and what an error says."""
    client = openai.OpenAI(base_url=serving.base_url, api_key="any", max_retries=0)
    other = anthropic.Anthropic(base_url=serving.url, api_key="any", max_retries=0)
    body: Any = {**ASKED[path], **more}
    text = ""
    try:
        if path == "messages" and stream:
            with other.messages.stream(**body) as events:
                text = events.get_final_text()
        elif path == "messages":
            text = "".join(block.text for block in other.messages.create(**body).content if block.type == "text")
        elif path == "responses" and stream:
            with client.responses.stream(**body) as events:
                text = events.until_done().get_final_response().output_text
        elif path == "responses":
            text = client.responses.create(**body).output_text
        elif path == "completions":
            reply = client.completions.create(**body, stream=stream)
            text = "".join(c.choices[0].text for c in reply if c.choices) if stream else reply.choices[0].text
        else:
            reply = client.chat.completions.create(**body, stream=stream)
            chunks = (
                [chunk.choices[0].delta for chunk in reply if chunk.choices] if stream else [reply.choices[0].message]
            )
            text = "".join(chunk.content or "" for chunk in chunks)
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return error.status_code, "", str(error)
    return 200, text, ""


@pytest.mark.parametrize("speaks", [ALL, ("chat",)], ids=["native", "translated"])
@pytest.mark.parametrize(("path", "stream"), EVERY)
def test_a_call_that_nobody_minds_passes_as_it_is(stage, store, path, stream, speaks):
    gate = Rules()
    serving = stage(["It is so"], store=store, gate=gate, speaks=speaks)
    assert ask(serving, path, stream)[:2] == (200, "It is so")
    (asked,), ((reply,),) = gate.asked, gate.replies
    assert (asked.model, asked.route, list(asked.messages)) == ("m", path.partition("/")[0], [USER])
    assert (reply.text, reply.tool_calls) == ("It is so", ())
    (recorded,) = store.calls()
    assert recorded.response_id == reply.response_id


@pytest.mark.parametrize(("path", "stream"), EVERY)
def test_a_refused_call_is_said_as_a_reply_and_asks_no_model(stage, store, path, stream):
    serving = stage([], store=store, gate=Rules(raising("Denied: no.")), speaks=["chat"])
    assert ask(serving, path, stream)[:2] == (200, "Denied: no.")
    assert serving.model.requests == []
    assert list(store.calls()) == []


@pytest.mark.parametrize(("path", "stream"), EVERY)
def test_other_refusals_are_errors_in_the_shape_of_the_api(stage, store, path, stream):
    serving = stage(["x"], store=store, gate=Rules(release=raising("the run is over", status=403)), speaks=["chat"])
    status, _, said = ask(serving, path, stream)
    assert (status, "the run is over" in said) == (403, True)
    assert len(list(store.calls())) == 1  # the model wrote it, so it is recorded
    closed = stage([], store=store, gate=Rules(raising("no judgement", status=503)), speaks=["chat"])
    assert ask(closed, path, stream)[0] == 503
    told = httpx.post(f"{closed.base_url}/{path}", json={**ASKED[path], "stream": stream})
    assert (told.status_code, told.headers["retry-after"]) == (503, "5")


@pytest.mark.parametrize("speaks", [ALL, ("chat",)], ids=["native", "translated"])
@pytest.mark.parametrize(("path", "stream"), EVERY)
def test_a_changed_reply_is_recorded_unchanged(stage, store, path, stream, speaks):
    gate = Rules(release=lambda replies: [replace(replies[0], text="[removed]")])
    serving = stage(["the secret is 7"], store=store, gate=gate, speaks=speaks)
    assert ask(serving, path, stream)[:2] == (200, "[removed]")
    (recorded,) = store.calls()
    assert "the secret is 7" in json.dumps(recorded.response)
    if recorded.response_ids is not None:
        assert bytes(recorded.response_ids[:-1]) == b"the secret is 7"


@pytest.mark.parametrize(("path", "stream"), EVERY)
def test_a_refused_reply_is_replaced(stage, store, path, stream):
    serving = stage(["the secret is 7"], store=store, gate=Rules(release=raising("Denied: a secret.")), speaks=["chat"])
    assert ask(serving, path, stream)[:2] == (200, "Denied: a secret.")
    assert bytes(next(iter(store.calls())).response_ids[:-1]) == b"the secret is 7"


@pytest.mark.parametrize("speaks", [ALL, ("chat",)], ids=["native", "translated"])
@pytest.mark.parametrize("path", list(ASKED))
def test_a_changed_message_reaches_the_model_changed(stage, path, speaks):
    gate = Rules(lambda asked: replace(asked, messages=[{**one, "content": "HI"} for one in asked.messages]))
    serving = stage(["ok"], gate=gate, speaks=speaks)
    assert ask(serving, path, False)[:2] == (200, "ok")  # in another API, if need be
    sent = serving.model.requests[0].body
    assert "HI" in json.dumps(sent)
    assert '"hi"' not in json.dumps(sent)


CALLS = [ScriptedCall("read", {"path": "a"}, "call_one"), ScriptedCall("erase", "{oops", "call_two")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_a_denied_tool_call_is_gone_and_the_text_says_why(stage, store, path, stream):
    def only_read(replies: Sequence[GateReply]) -> Sequence[GateReply]:
        (reply,) = replies
        assert reply.tool_calls == (
            ToolCall("call_one", "read", '{"path": "a"}'),
            ToolCall("call_two", "erase", "{oops"),
        )
        return [replace(reply, tool_calls=reply.tool_calls[:1], text="erase was denied")]

    serving = stage([ScriptedReply(None, CALLS)], store=store, gate=Rules(release=only_read), speaks=["chat"])
    reply = httpx.post(f"{serving.base_url}/{path}", json={**ASKED[path], "stream": stream})
    assert "denied" in reply.text
    assert "call_one" in reply.text
    assert "call_two" not in reply.text
    (recorded,) = store.calls()
    assert recorded.response_id in reply.text
    assert recorded.tool_call_ids == ("call_one", "call_two")


def test_policies_see_the_whole_conversation_of_every_api(stage):
    gate = Rules()
    serving = stage(lambda body: "x", gate=gate, speaks=["chat"])
    call = {"id": "call_one", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    use = {"type": "tool_use", "id": "call_one", "name": "f", "input": {"a": 1}}
    bodies = {
        "chat/completions": {"messages": [
            {"role": "developer", "content": [{"type": "text", "text": "s"}]}, USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_one", "content": "r"},
        ]},
        "responses": {"instructions": "s", "input": [
            USER, {"type": "function_call", "call_id": "call_one", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "call_one", "output": "r"},
        ]},
        "messages": {"system": "s", "max_tokens": 9, "messages": [
            USER, {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_one", "content": "r"}]},
        ]},
    }  # fmt: skip
    for path, body in bodies.items():
        assert httpx.post(f"{serving.base_url}/{path}", json={"model": "m", **body}).status_code == 200
        assert list(gate.asked[-1].messages) == [
            {"role": "system", "content": "s"},
            USER,
            {"role": "assistant", "content": "", "tool_calls": [{"id": "call_one", "name": "f", "args": {"a": 1}}]},
            {"role": "tool", "content": "r", "tool_call_id": "call_one"},
        ], path


def test_what_policies_cannot_read_is_refused(stage):
    gate = Rules()
    serving = stage([], gate=gate, speaks=ALL)
    for path, body in (
        ("responses", {"model": "m", "input": [{"type": "item_reference", "id": "x"}]}),
        (
            "messages",
            {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "document"}]}]},
        ),
    ):
        assert httpx.post(f"{serving.base_url}/{path}", json=body).status_code == 400
    assert serving.model.requests == []
    assert gate.asked == []


def test_a_conversation_goes_on_from_what_the_agent_got(stage):
    serving = stage(lambda body: "the secret is 7", gate=Rules(release=lambda r: [replace(r[0], text="[removed]")]))
    client = openai.OpenAI(base_url=serving.base_url, api_key="any", max_retries=0)
    first = client.responses.create(model="m", input="a")
    with client.responses.stream(model="m", input="b", previous_response_id=first.id) as stream:
        second = stream.until_done().get_final_response()
    client.responses.create(model="m", input="c", previous_response_id=second.id)
    sent = [message["content"] for message in serving.model.requests[-1].body["messages"]]
    assert sent == ["a", "[removed]", "b", "[removed]", "c"]
    stage([], gate=Rules(raising("Denied: no.")))
    refused = client.responses.create(model="m", input="x", previous_response_id=second.id)
    again = client.responses.create(model="m", input="y", previous_response_id=refused.id)
    assert (refused.output_text, again.output_text) == ("Denied: no.", "Denied: no.")
