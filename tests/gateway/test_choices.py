"""Replies of several choices: each is a call of its own in the record, however its pieces came."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.server import EndpointServer
from lgov_core.testing import ScriptedReply, token_logprob
from lgov_core.transitions import assign_credit, build_transitions
from lgov_core.types import Outcome, Reward
from tests.gateway.taught import tiny

MESSAGES = [{"role": "user", "content": "How much?"}]
BODY = {"model": "tiny", "messages": MESSAGES}


@pytest.fixture(scope="module")
def model():
    return tiny(3)


@pytest.fixture
def embedded(model, store):
    app = create_app([EmbeddedEngine(model, max_new_tokens=16)], store, keys=KeyRing(required=False))
    with EndpointServer(app) as endpoint:
        yield openai.OpenAI(base_url=endpoint.base_url, api_key="any", max_retries=0)


def text_of(model: Any, call: Any) -> str:
    ids = list(call.response_ids)
    return model.decode(ids[:-1] if ids[-1] in model.eos_ids else ids)


def test_the_embedded_engine_records_every_choice(embedded, model, store):
    reply = embedded.chat.completions.create(**BODY, n=3, seed=5, temperature=2.0, logprobs=True)
    texts = [choice.message.content for choice in reply.choices]
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    calls = list(store.calls())
    assert [(call.response_id, call.choice) for call in calls] == [(reply.id, 0), (reply.id, 1), (reply.id, 2)]
    assert [text_of(model, call) for call in calls] == texts
    assert len({call.prompt_ids for call in calls}) == 1
    for call, choice in zip(calls, reply.choices, strict=True):
        assert call.logprobs == tuple(one.logprob for one in choice.logprobs.content)
        assert call.response["choices"][0]["message"]["content"] == choice.message.content
        assert (call.finish_reason, call.weights_version) == (choice.finish_reason, 0)
    assert reply.usage.completion_tokens == sum(len(call.response_ids) for call in calls)
    # The first choice is what one alone would have been, and the same seed draws the same ones.
    alone = embedded.chat.completions.create(**BODY, seed=5, temperature=2.0)
    again = embedded.chat.completions.create(**BODY, n=3, seed=5, temperature=2.0)
    assert alone.choices[0].message.content == texts[0]
    assert [choice.message.content for choice in again.choices] == texts


def test_streamed_choices_are_recorded_apart(embedded, model, store):
    texts, ended = {0: "", 1: ""}, set()
    for chunk in embedded.chat.completions.create(**BODY, n=2, seed=3, temperature=2.0, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ended.add(choice.index)
    assert ended == {0, 1}
    calls = list(store.calls())
    assert [(call.choice, text_of(model, call)) for call in calls] == list(texts.items())
    assert len({call.response_id for call in calls}) == 1


def test_legacy_completions_of_several_choices(embedded, model, store):
    reply = embedded.completions.create(model="tiny", prompt="How much?", n=2, seed=1, temperature=2.0, logprobs=0)
    calls = list(store.calls())
    assert [text_of(model, call) for call in calls] == [choice.text for choice in reply.choices]
    assert [(call.route, call.choice, call.response_id) for call in calls] == [
        ("completions", 0, reply.id), ("completions", 1, reply.id)
    ]  # fmt: skip
    assert tuple(reply.choices[1].logprobs.token_logprobs) == calls[1].logprobs


def chunk(index: int, text: str, finish: str | None = None, **more: Any) -> str:
    ids = [*text.encode(), *([256] if finish else [])]
    choice = {
        "index": index,
        "delta": {"content": text},
        "finish_reason": finish,
        "token_ids": ids,
        "logprobs": {"content": [{"token": "?", "logprob": token_logprob(one)} for one in ids]},
    }
    return f"data: {json.dumps({'id': 'up-1', 'model': 'big', 'choices': [choice], **more})}\n\n"


INTERLEAVED = [
    chunk(1, "b", prompt_token_ids=[1, 2]),
    chunk(0, "a"),
    chunk(1, "B", "stop"),
    chunk(0, "A"),
    chunk(0, "!", "length"),
]


def test_interleaved_upstream_choices_pass_unchanged(serve, store):
    stream = "".join(INTERLEAVED) + "data: [DONE]\n\n"
    serving = serve([ScriptedReply(body=stream.encode(), content_type="text/event-stream")])
    reply = httpx.post(f"{serving.base_url}/chat/completions", json={**BODY, "n": 2, "stream": True})
    assert reply.text == stream
    calls = {call.choice: call for call in store.calls()}
    for index, text, finish in ((0, "aA!", "length"), (1, "bB", "stop")):
        call = calls[index]
        assert (call.response_id, call.finish_reason) == ("up-1", finish)
        assert call.response_ids == (*text.encode(), 256)
        assert call.logprobs == tuple(map(token_logprob, call.response_ids))
        assert call.prompt_ids == (1, 2)
        (choice,) = call.response["choices"]
        assert (choice["index"], choice["message"]["content"]) == (index, text)
    assert len(calls) == serving.counters.recorded == 2


async def test_only_the_end_of_the_last_choice_waits(serve, store):
    """The chunk that ends the last choice comes after the commit; what comes before goes out at once."""

    class Held:
        def __init__(self) -> None:
            self.entered, self.go = asyncio.Event(), asyncio.Event()
            self.calls: list[Any] = []

        async def add_call_async(self, call: Any) -> None:
            self.calls.append(call)
            loop.call_soon_threadsafe(self.entered.set)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.go.wait(), loop))

        dropped_spans = 0

    loop = asyncio.get_running_loop()
    held = Held()
    stream = "".join(INTERLEAVED) + "data: [DONE]\n\n"
    serving = serve([ScriptedReply(body=stream.encode(), content_type="text/event-stream")], store=held)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{serving.base_url}/chat/completions", json={**BODY, "n": 2, "stream": True}) as reply,
    ):
        await asyncio.wait_for(held.entered.wait(), 30)
        seen = b""
        while INTERLEAVED[3].encode() not in seen:  # would wait for ever if everything were held
            seen += await asyncio.wait_for(reply.content.readany(), 30)
        assert INTERLEAVED[2].encode() in seen
        assert INTERLEAVED[4].encode() not in seen
        held.go.set()
        seen += await reply.content.read()
    assert seen.decode() == stream
    assert [call.choice for call in held.calls] == [0, 1]


def test_ids_that_do_not_add_up_to_the_usage_are_not_taken(serve, store):
    """A server whose parser swallows tokens in mid-stream says too few of them."""
    stream = "".join([
        chunk(0, "abc", prompt_token_ids=[1]),
        chunk(0, "", "stop", usage={"prompt_tokens": 1, "completion_tokens": 9}),
        "data: [DONE]\n\n",
    ])  # fmt: skip
    serving = serve([ScriptedReply(body=stream.encode(), content_type="text/event-stream")])
    assert httpx.post(f"{serving.base_url}/chat/completions", json={**BODY, "stream": True}).text == stream
    (call,) = store.calls()
    assert (call.response_ids, call.logprobs, call.prompt_ids) == (None, None, (1,))
    assert serving.counters.without_token_ids == 1


@pytest.mark.parametrize(
    "ids", [[1, -2], [1, 2.0], [True, 2], [1, False], ["1", 2], [1, 2**31], [1, 2**32], None, {"1": 2}]
)
def test_what_is_no_list_of_token_ids_is_taken_for_none(serve, store, ids):
    body = {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop", "token_ids": ids}
        ],
        "prompt_token_ids": [0, 1, 7],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    serving = serve([ScriptedReply(body=json.dumps(body).encode(), content_type="application/json")])
    assert httpx.post(f"{serving.base_url}/chat/completions", json=BODY).json() == body
    (call,) = store.calls()
    assert (call.response_ids, call.prompt_ids, call.response) == (None, (0, 1, 7), body)
    assert type(call.prompt_ids[0]) is int


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_continued_choice_earns_later_rewards(embedded, model, store, stream):
    question = {"role": "user", "content": [{"type": "text", "text": "How much? 🙂"}]}
    agent = openai.OpenAI(
        base_url=f"{str(embedded.base_url).removesuffix('/v1/')}/rollout/r1/attempt/1/v1", api_key="any"
    )
    asked = {"model": "tiny", "messages": [question], "n": 3, "seed": 5, "temperature": 2.0}
    name, texts = "", {0: "", 1: "", 2: ""}
    if stream:
        for part in agent.chat.completions.create(**asked, stream=True):
            name = part.id
            for choice in part.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        reply = agent.chat.completions.create(**asked)
        name, texts = reply.id, {choice.index: choice.message.content for choice in reply.choices}
    answer = {"role": "assistant", "content": texts[1]}
    agent.chat.completions.create(model="tiny", messages=[question, answer, {"role": "user", "content": "Sure?"}])
    store.finish_attempt("r1", 1, Outcome.SUCCEEDED)
    store.add_rewards([
        Reward(1.0, "task", "r1", 1, reward_id="w1"),
        Reward(0.5, "task", "r1", 1, response_id=name, choice=2, reward_id="w2"),
    ])  # fmt: skip
    found = assign_credit(build_transitions(store, ["r1"])).transitions
    assert [(one.choice, one.set_aside, one.value_to_go) for one in found] == [
        (0, True, 0.0), (1, False, 1.0), (2, True, 0.5), (0, False, 1.0)
    ]  # fmt: skip
