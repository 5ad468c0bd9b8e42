"""What the holder of a rollout's key may try: another rollout's data, its own reward, and past a policy."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from lgov_core.commands import cli
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.protocol import GateRefusal
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.transitions import build_transitions
from tests.gateway.conftest import SECRET
from tests.gateway.test_gate_routes import ALL, USER, Rules

RING = KeyRing(SECRET)
ADMIN = {"x-api-key": RING.admin}


def keyed(rollout_id: str, attempt: int | None = 1, **rights: Any) -> dict[str, str]:
    return {"x-api-key": RING.issue(rollout_id, attempt, **rights)}


@pytest.fixture
def begin(store):
    """Starts an endpoint on the store; the next one goes on from what the one before it left."""
    running: list[EndpointServer] = []

    def start() -> str:
        stop()
        app = create_app([UpstreamEngine("http://127.0.0.1:9/v1", models=["none"])], store, keys=RING)
        running.append(EndpointServer(app).start())
        return running[0].url

    def stop() -> None:
        while running:
            running.pop().stop()

    yield start
    stop()


def make(url: str, *ids: str) -> None:
    made = httpx.post(f"{url}/api/rollouts", json=[{"rollout_id": one, "input": 1} for one in ids], headers=ADMIN)
    assert made.status_code == 201


def send_span(url: str, name: str, headers: dict[str, str], **attributes: Any) -> dict[str, Any]:
    pairs = [
        {"key": key.replace("__", "."), "value": value if isinstance(value, dict) else {"stringValue": value}}
        for key, value in attributes.items()
    ]
    span = {"traceId": "a" * 32, "spanId": "b" * 16, "name": name, "startTimeUnixNano": "1", "attributes": pairs}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [{**span, "endTimeUnixNano": "2"}]}]}]}
    reply = httpx.post(f"{url}/v1/traces", json=body, headers=headers)
    assert reply.status_code == 200
    return reply.json()


def post_event(url: str, rollout_id: str, kind: str, data: Any, headers: dict[str, str], at: str = "0", **more: Any):
    body = {"event_type": kind, "data": data, **more}
    return httpx.post(f"{url}/api/rollouts/{rollout_id}/attempt/{at}/events", json=body, headers=headers)


def test_a_span_is_no_event_and_no_status(begin, store):
    url = begin()
    make(url, "a", "b")
    mine = keyed("a")
    said = json.dumps({"value": 1.0})
    send_span(url, "lgov.event", mine, lgov__event__type="reward", lgov__event__data=said)
    state = json.dumps({"state": "succeeded", "version": 9})
    send_span(url, "lgov.lightning.status", mine, lgov__lightning__status__body=state)
    send_span(url, "lgov.lightning.status", mine, lgov__lightning__status__body="no JSON")
    assert len(store.spans(["a"])) == 3
    assert httpx.get(f"{url}/api/rollouts/a/events", headers=ADMIN).json() == []
    url = begin()  # it reads what the one before it wrote
    states = httpx.post(f"{url}/api/rollouts/status", json=["a", "b"], headers=ADMIN)
    assert states.status_code == 200
    assert {one["state"] for one in states.json().values()} == {"queuing"}


def test_reward_events_of_agents_are_not_final(begin, store):
    url = begin()
    make(url, "a")
    assert post_event(url, "a", "reward", {"value": 0.0}, ADMIN).status_code == 200
    assert post_event(url, "a", "reward", {"value": 1.0, "response_id": "c"}, keyed("a")).status_code == 200
    for form in ({}, {"format": "triplet"}):
        shown = httpx.get(f"{url}/api/rollouts/a/events", params=form, headers=ADMIN).json()
        assert [(one["event_type"], one["data"]["value"]) for one in shown] == [("reward", 0.0), ("call_reward", 1.0)]
    tokens = {"response": {"prompt_token_ids": [1], "choices": [{"token_ids": [2]}]}}
    assert post_event(url, "a", "model_request", tokens, keyed("a")).status_code == 403
    assert {(one.value, one.response_id) for one in store.rewards(["a"])} == {(0.0, None), (1.0, "c")}


def test_an_event_stands_in_the_way_of_nobody_elses(begin, store):
    url = begin()
    make(url, "a", "a_b")
    # The same id, first from the agent, in another attempt, and in a rollout whose name goes on where this one's ends.
    assert post_event(url, "a", "reward", {"value": 0, "response_id": "c"}, keyed("a"), event_id="f").status_code == 200
    assert post_event(url, "a", "reward", {"value": 0, "response_id": "c"}, keyed("a"), event_id="b_f").is_success
    for rollout_id, at in (("a", "0"), ("a", "1"), ("a_b", "0")):
        for _ in range(2):
            assert post_event(url, rollout_id, "reward", {"value": 0.5}, ADMIN, at, event_id="f").is_success
    final = [(one.rollout_id, one.attempt) for one in store.rewards() if one.response_id is None]
    assert final == [("a", 1), ("a", 2), ("a_b", 1)]


def test_a_refused_call_leaves_no_event_in_another_attempt(begin, store):
    url = begin()
    make(url, "a")
    body = {"messages": [USER]}
    path = f"{url}/proxy/rollout/a/attempt/4/mode/train/openai/v1/chat/completions"
    assert httpx.post(path, json=body, headers=keyed("a", 1)).status_code == 403
    assert store.spans(["a"]) == []


def test_a_span_that_is_stored_breaks_no_conversion(begin, store):
    url = begin()
    odd = {"arrayValue": {"values": [{"stringValue": "chat"}]}}
    send_span(url, "lgov.reward", keyed("r1"), gen_ai__response__id="c", gen_ai__operation__name=odd)
    send_span(url, "x", keyed("r1", final_reward=True), gen_ai__operation__name=odd)
    assert len(store.spans(["r1"])) == 2
    assert build_transitions(store).transitions == ()


def test_upstream_conversations_belong_to_their_attempt(serve):
    serving = serve(lambda body: "secret of r2", speaks=ALL, keys=RING)
    url = f"{serving.base_url}/responses"

    def ask(headers: dict[str, str], **more: Any) -> httpx.Response:
        return httpx.post(url, json={"model": "m", "input": "hi", **more}, headers=headers)

    first = ask(keyed("r2")).json()["id"]
    asked = len(serving.model.requests)
    for headers in (keyed("r1"), keyed("r2", 2)):
        assert ask(headers, previous_response_id=first).status_code == 404
    assert ask(keyed("r1"), previous_response_id="resp_of_somebody").status_code == 404
    assert ask(keyed("r1"), conversation="conv_of_somebody").status_code == 400
    assert ask(keyed("r1"), input=[{"type": "item_reference", "id": "msg_1"}]).status_code == 400
    assert ask(ADMIN, previous_response_id=first).status_code == 404
    assert len(serving.model.requests) == asked
    # Its own is let through, streamed or not.
    ask(keyed("r2"), previous_response_id=first, stream=True)
    assert len(serving.model.requests) == asked + 1
    assert serving.model.requests[-1].body["previous_response_id"] == first


PAST = {
    "a legacy function": {"messages": [USER], "functions": [{"name": "erase", "parameters": {}}]},
    "a role": {"messages": [USER, {"role": "function", "name": "f", "content": "x"}]},
    "a role in another case": {"messages": [USER, {"role": "User", "content": "x"}]},
    "a legacy call": {"messages": [USER, {"role": "assistant", "function_call": {"name": "f", "arguments": ""}}]},
    "an unknown part": {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
    "a part without a type": {"messages": [{"role": "user", "content": [{"value": "x"}]}]},
    "content that is an object": {"messages": [{"role": "user", "content": {"text": "x"}}]},
    "documents": {"messages": [USER], "documents": [{"text": "x"}]},
}


@pytest.mark.parametrize("what", PAST)
def test_text_that_policies_cannot_read_is_refused(stage, what):
    gate = Rules()
    serving = stage([], gate=gate, speaks=ALL)
    assert httpx.post(f"{serving.base_url}/chat/completions", json={"model": "m", **PAST[what]}).status_code == 400
    assert (serving.model.requests, gate.asked) == ([], [])


def test_policies_read_every_text_of_a_message(stage):
    gate = Rules()
    serving = stage(lambda body: "x", gate=gate, speaks=ALL)
    parts = ["one ", {"type": "refusal", "text": "two ", "refusal": "three"}]
    asked = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    assert httpx.post(f"{serving.base_url}/chat/completions", json=asked).status_code == 200
    assert gate.asked[0].messages[0]["content"] == "one two three"


def test_policies_read_every_prompt_of_completions_or_none(stage):
    gate = Rules()
    serving = stage(lambda body: "x", gate=gate, speaks=ALL)
    url = f"{serving.base_url}/completions"
    for unreadable in ([1, 2, 3], [[1, 2], [3]], ["a", [1]], None):
        assert httpx.post(url, json={"model": "m", "prompt": unreadable}).status_code == 400, unreadable
    assert httpx.post(url, json={"model": "m", "prompt": "x", "prompt_embeds": "abc"}).status_code == 400
    assert (serving.model.requests, gate.asked) == ([], [])
    assert httpx.post(url, json={"model": "m", "prompt": 'a "quoted"\nline', "suffix": "end"}).status_code == 200
    assert [one["content"] for one in gate.asked[0].messages] == ['a "quoted"\nline', "end"]


def refusing(status: int):
    def refuse(asked: Any) -> Any:
        if "secret" in asked.messages[-1]["content"]:
            raise GateRefusal("DENIED by policy p: no.", status=status)
        return asked

    return refuse


@pytest.mark.parametrize(("status", "answered"), [(200, 403), (403, 403), (503, 503)])
def test_embeddings_are_judged(stage, status, answered):
    gate = Rules(refusing(status))
    serving = stage([], gate=gate, speaks=ALL)
    url = f"{serving.base_url}/embeddings"
    for text in ("the secret", ["fine", "a secret"]):
        refused = httpx.post(url, json={"model": "m", "input": text})
        assert (refused.status_code, "DENIED by policy p" in refused.text) == (answered, True)
    for unreadable in ([1, 2], [[1]], None, {"text": "x"}):
        assert httpx.post(url, json={"model": "m", "input": unreadable}).status_code == 400
    assert serving.model.requests == []
    assert httpx.post(url, json={"model": "m", "input": "fine"}).json()["data"]
    assert [one.route for one in gate.asked] == ["embeddings"] * 3
    assert len(gate.replies) == 1  # what was set aside for the call is settled


def test_embeddings_that_a_policy_would_change_are_refused(stage):
    from dataclasses import replace

    serving = stage([], gate=Rules(lambda asked: replace(asked, messages=list(asked.messages))), speaks=ALL)
    assert httpx.post(f"{serving.base_url}/embeddings", json={"model": "m", "input": "x"}).status_code == 403
    assert serving.model.requests == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--upstream", "http://127.0.0.1:9/v1", "--set", "upstream_speaks=chat,french"], "'french'"),
        (["--upstream", "http://127.0.0.1:9/v1", "--set", "upstream_speaks=,"], "must be a list of names"),
    ],
)
def test_what_an_upstream_cannot_be_said_to_speak(arguments, said):
    done = CliRunner().invoke(cli, ["serve", "--port", "0", *arguments])
    assert (done.exit_code != 0, said in done.output) == (True, True), done.output
