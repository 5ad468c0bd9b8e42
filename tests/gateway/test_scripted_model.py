"""The public test double itself."""

from __future__ import annotations

import json

import httpx
import openai
import pytest

from lgov_core.testing import ScriptedModelServer, ScriptedReply, UnexpectedModelCall, call, token_logprob

MESSAGES = [{"role": "user", "content": "hi"}]


def client(server: ScriptedModelServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="secret", max_retries=0)


def test_a_list_is_used_in_turn_and_requests_are_recorded():
    with ScriptedModelServer([call("f", x=1), "done"]) as server:
        first = client(server).chat.completions.create(model="m", messages=MESSAGES)
        second = client(server).chat.completions.create(model="m", messages=[*MESSAGES, *MESSAGES])
        assert [model.id for model in client(server).models.list()] == ["scripted"]
    assert json.loads(first.choices[0].message.tool_calls[0].function.arguments) == {"x": 1}
    assert (first.choices[0].finish_reason, second.choices[0].message.content) == ("tool_calls", "done")
    assert [len(request.body["messages"]) for request in server.requests] == [1, 2]
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    assert server.requests[0].path == "/v1/chat/completions"


def test_one_call_too_many_fails_client_and_test():
    def run() -> None:
        with ScriptedModelServer(["only one"]) as server:
            client(server).chat.completions.create(model="m", messages=MESSAGES)
            with pytest.raises(openai.BadRequestError, match="asked once more"):
                client(server).chat.completions.create(model="m", messages=MESSAGES)

    with pytest.raises(UnexpectedModelCall, match=r"1 replies and the model was asked once more.*hi"):
        run()


def test_a_raising_script_does_not_hide_other_errors():
    def script(body):
        raise KeyError("nope")

    def run(own: Exception | None) -> None:
        with ScriptedModelServer(script) as server:
            httpx.post(f"{server.base_url}/chat/completions", json={"messages": MESSAGES})
            if own is not None:
                raise own

    with pytest.raises(UnexpectedModelCall, match="nope"):
        run(None)
    with pytest.raises(RuntimeError, match="mine"):
        run(RuntimeError("mine"))


def test_whole_and_streamed_replies_carry_the_same_tokens():
    reply = ScriptedReply("né è", tool_calls=call("f", '{"broken').tool_calls)
    asked = {"model": "m", "messages": MESSAGES, "logprobs": True, "return_token_ids": True}
    with ScriptedModelServer(lambda body: reply, token_ids=True) as server:
        url = f"{server.base_url}/chat/completions"
        whole = httpx.post(url, json=asked).json()
        streamed = httpx.post(url, json={**asked, "stream": True}).text
    chunks = [json.loads(part[6:]) for part in streamed.split("\n\n") if part and part != "data: [DONE]"]
    ids = [i for chunk in chunks for i in chunk["choices"][0]["token_ids"]]
    assert ids == whole["choices"][0]["token_ids"]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    logprobs = [item["logprob"] for item in whole["choices"][0]["logprobs"]["content"]]
    assert logprobs == list(map(token_logprob, ids))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "né è"
    arguments = [part["function"].get("arguments", "") for delta in deltas for part in delta.get("tool_calls", ())]
    assert "".join(arguments) == '{"broken'


def test_without_being_asked_it_gives_no_tokens():
    with ScriptedModelServer(["x"], token_ids=True) as server:
        reply = httpx.post(f"{server.base_url}/chat/completions", json={"messages": MESSAGES}).json()
    assert "prompt_token_ids" not in reply
    assert reply["choices"][0]["logprobs"] is None
