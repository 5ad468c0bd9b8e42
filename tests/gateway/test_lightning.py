"""agent-lightning 1.0's routes, as its trainer and its controller use them, over real HTTP."""

from __future__ import annotations

import json
import threading

import httpx
import pytest

from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.server import EndpointServer
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.integrations.agent_lightning.rollouts import RUN_ID
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.types import Outcome
from tests.gateway.conftest import SECRET, until

RING = KeyRing(SECRET)
ADMIN = {"authorization": f"Bearer {RING.admin}"}
MESSAGES = [{"role": "user", "content": "hi"}]


def endpoint(store) -> EndpointServer:
    """An endpoint that has no model of its own."""
    engine = UpstreamEngine("http://127.0.0.1:9/v1", models=["none"])
    return EndpointServer(create_app([engine], store, keys=RING))


@pytest.fixture
def served(store):
    with endpoint(store) as server:
        yield server


@pytest.fixture
def api(served):
    with httpx.Client(base_url=served.url, headers=ADMIN, timeout=30) as client:
        yield client


def make(api, **more) -> str:
    reply = api.post("/api/rollouts", json=[{"input": {"prompt": "hi"}, **more}])
    assert reply.status_code == 201
    return reply.json()[0]["rollout_id"]


def move(api, rollout_id: str, state: str, **more) -> int:
    return api.patch(f"/api/rollouts/{rollout_id}", json={"status": {"state": state, **more}}).status_code


def post_event(api, rollout_id: str, kind: str, data: dict, attempt: str = "0", **more) -> httpx.Response:
    body = {"event_type": kind, "data": data, **more}
    return api.post(f"/api/rollouts/{rollout_id}/attempt/{attempt}/events", json=body)


def events(api, rollout_id: str, **query) -> list[dict]:
    return api.get(f"/api/rollouts/{rollout_id}/events", params=query).json()


def proxy(rollout_id: str, mode: str = "train", path: str = "chat/completions") -> str:
    return f"/proxy/rollout/{rollout_id}/attempt/0/mode/{mode}/openai/v1/{path}"


def test_a_rollout_from_its_making_to_its_end(api, store):
    made = api.post("/api/rollouts", json=[{"input": {"data_id": "d1"}, "metadata": {"batch_idx": 1}}]).json()[0]
    rollout_id, status = made["rollout_id"], made["status"]
    assert (made["input"], made["is_train"], made["metadata"]["batch_idx"]) == ({"data_id": "d1"}, True, 1)
    assert (status["state"], status["version"], made["config"]["timeout_seconds"]) == ("queuing", 1, 3600)
    assert api.get(f"/api/rollouts/{rollout_id}").json() == {"rollout": made, "attempts": []}
    patched = api.patch(
        f"/api/rollouts/{rollout_id}",
        json={"status": {"state": "running", "k8s_job_name": "job", "last_attempt_id": "0"}},
    ).json()
    assert (patched["status"]["state"], patched["status"]["k8s_job_name"], patched["status"]["version"]) == (
        "running",
        "job",
        2,
    )
    assert move(api, rollout_id, "queuing") == 409
    assert [one.outcome for one in store.attempts([rollout_id])] == [None]
    assert move(api, rollout_id, "succeeded") == 200
    assert [one.outcome for one in store.attempts([rollout_id])] == [Outcome.SUCCEEDED]
    (rollout,) = store.rollouts(run_id=RUN_ID)
    assert (rollout.task_id, rollout.input["input"]) == ("d1", {"data_id": "d1"})


def test_bodies_that_mean_nothing_change_nothing(api):
    rollout_id = make(api)
    url = f"/api/rollouts/{rollout_id}"
    for body in (
        {"state": "running"},
        {"status": {"state": "running"}, "is_train": False},
        {"status": {"state": "cancelled"}},
        {"status": {"cancel_requested": True}},
        {"status": 3},
        [],
    ):
        assert api.patch(url, json=body).status_code == 422, body
    assert api.get(url).json()["rollout"]["status"]["version"] == 1
    for body in ({}, [3], [{}], [{"input": 1, "rollout_id": "a/b"}], [{"input": 1}, {"input": 1, "is_train": "no"}]):
        assert api.post("/api/rollouts", json=body).status_code == 422, body
    assert len(api.get("/api/rollouts", params={"state_in": "queuing"}).json()) == 1
    assert api.get("/api/rollouts").status_code == 422
    for kind, data in (("reward", {}), ("reward", {"value": "1"}), ("reward", {"value": True})):
        assert post_event(api, rollout_id, kind, data).status_code == 422
    assert post_event(api, rollout_id, "x", {}, attempt="first").status_code == 404
    assert post_event(api, "unknown", "x", {}).status_code == 404


def test_making_a_rollout_twice_gives_the_first(api):
    make(api, rollout_id="fixed")
    move(api, "fixed", "running")
    post_event(api, "fixed", "reward", {"value": 0.5})
    again = api.post("/api/rollouts", json=[{"rollout_id": "fixed", "input": "another"}])
    assert again.status_code == 201
    assert (again.json()[0]["input"], again.json()[0]["status"]["state"]) == ({"prompt": "hi"}, "running")
    assert len(events(api, "fixed")) == 1


def test_lists_by_state_statuses_and_the_list_of_the_ended(api):
    waiting = make(api)
    first, second, third = (make(api, input={"data_id": name}, is_train=name != "b") for name in "abc")
    for rollout_id in (first, second, third):
        move(api, rollout_id, "running")
    listed = api.get("/api/rollouts", params=[("state_in", "queuing"), ("state_in", "running")]).json()
    assert [one["rollout_id"] for one in listed] == [waiting, first, second, third]
    move(api, second, "succeeded")
    move(api, first, "failed", error_message="it broke")
    page = api.get("/api/rollouts/terminal", params={"after": 0, "limit": 1}).json()
    assert page == {
        "items": [{"rollout_id": second, "state": "succeeded", "data_id": "b", "is_train": False}],
        "next_after": 1,
        "total_terminal": 2,
    }
    api.delete(f"/api/rollouts/{second}")
    move(api, third, "succeeded")  # a place does not move because another is deleted: nobody is passed over
    page = api.get("/api/rollouts/terminal", params={"after": 1}).json()
    assert [one["rollout_id"] for one in page["items"]] == [first, third]
    assert (page["next_after"], page["total_terminal"]) == (3, 3)
    assert api.get("/api/rollouts/terminal", params={"after": 3}).json()["items"] == []
    statuses = api.post("/api/rollouts/status", json=[first, waiting]).json()
    assert (statuses[first]["error_message"], statuses[waiting]["state"]) == ("it broke", "queuing")
    assert api.post("/api/rollouts/status", json=[waiting] * 257).status_code == 422
    missing = api.post("/api/rollouts/status", json=[waiting, second])
    assert (missing.status_code, second in missing.json()["detail"]) == (404, True)


def test_events_become_rewards_with_an_explicit_target(api, store):
    rollout_id = make(api)
    move(api, rollout_id, "running")
    assert post_event(api, rollout_id, "reward", {"value": 0.7, "extra": "x"}).json()["attempt_id"] == "0"
    post_event(api, rollout_id, "reward", {"value": 0.25, "response_id": "c-1", "choice": 1, "dimension": "style"})
    for bad in ({"value": 10**400}, {"value": 1, "response_id": "c-1", "choice": -1}, {"value": 1, "dimension": "a\0"}):
        assert post_event(api, rollout_id, "reward", bad).status_code == 422
    assert post_event(api, rollout_id, "log", {}, event_id="a\0").status_code == 422
    assert api.post("/api/rollouts", json=[{"input": {"data_id": "a\0"}}]).status_code == 422
    half = json.dumps({"rollout_id": "\ud800"})  # of a character
    assert api.post("/admin/keys", content=half).status_code == 400
    assert api.post("/api/rollouts", content=json.dumps([{"input": {"data_id": "\ud800"}}])).status_code == 422
    for _ in range(2):  # sent again because the answer was lost
        post_event(api, rollout_id, "reward", {"value": 1, "tool_call_id": "t-1"}, event_id="e1")
    post_event(api, rollout_id, "log", {"line": "x"})
    rewards = {
        (one.value, one.dimension, one.response_id, one.tool_call_id, one.attempt)
        for one in store.rewards([rollout_id])
    }
    assert rewards == {(0.7, "task", None, None, 1), (0.25, "style", "c-1", None, 1), (1.0, "task", None, "t-1", 1)}
    assert [one.choice for one in store.rewards([rollout_id])] == [None, 1, None]
    assert [one["event_type"] for one in events(api, rollout_id)] == ["reward", "reward", "reward", "log"]
    (first, *_) = events(api, rollout_id, event_type="reward", format="triplet")
    assert first["data"] == {"value": 0.7}
    assert api.get(f"/api/rollouts/{rollout_id}").json()["attempts"] == ["0"]


def test_calls_through_the_proxy_are_events_all_of_them(api, store):
    with ScriptedModelServer(lambda body: ScriptedReply("ok"), token_ids=True) as model:
        registered = api.post("/api/models", json=[{"model": "policy", "endpoint": model.base_url, "version": 3}])
        assert (registered.status_code, registered.json()[0]["model"]) == (201, "policy")
        rollout_id = make(api)
        for mode, temperature in (("train", 1.0), ("train", 1.0), ("val", 0.7)):
            reply = api.post(proxy(rollout_id, mode), json={"model": "other", "messages": MESSAGES, "temperature": 0.1})
            assert reply.json()["choices"][0]["message"]["content"] == "ok"
            sent = model.requests[-1].body
            assert (sent["model"], sent["temperature"], sent["return_token_ids"]) == ("policy", temperature, True)
        streamed = api.post(proxy(rollout_id), json={"messages": MESSAGES, "stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert api.post(proxy(rollout_id, path="embeddings"), json={}).status_code == 404
        assert api.post(proxy(rollout_id, "test"), json={}).status_code == 404
        assert api.post(proxy("unknown"), json={"messages": MESSAGES}).status_code == 404
        bad = api.post(proxy(rollout_id), content=b"[]")
        assert (bad.status_code, bad.json()) == (400, {"detail": "the request must be a JSON object, not list"})
        assert api.delete("/api/models").json() == {"status": "ok"}
        assert api.post(proxy(rollout_id), json={"messages": MESSAGES}).status_code == 503
    # Four calls with equal prompts are four calls.
    found = [one for one in events(api, rollout_id, format="triplet") if one["data"]["status"] == "ok"]
    assert len(found) == 4
    for call, event in zip(store.calls([rollout_id]), found, strict=True):
        assert event["data"]["prompt_token_ids"] == list(call.prompt_ids)
        assert event["data"]["response_token_ids"] == list(call.response_ids)
        assert event["data"]["response_log_probs"] == list(call.logprobs)
        assert event["data"]["server"] == {"model": "policy", "version": 3}
    whole = events(api, rollout_id, event_type="model_request")[0]["data"]
    assert (whole["request"]["messages"], whole["model_version"], whole["finish_reason"]) == (MESSAGES, 3, "stop")


def test_a_call_that_failed_is_an_event_and_no_training_data(api, store):
    with ScriptedModelServer([ScriptedReply("maximum context length is 32768", status=400)]) as model:
        api.post("/api/models", json=[{"model": "policy", "endpoint": model.base_url}])
        rollout_id = make(api)
        failed = api.post(proxy(rollout_id), json={"messages": MESSAGES})
    assert failed.status_code == 400
    (event,) = events(api, rollout_id, event_type="model_request", format="triplet")
    data = event["data"]
    assert (data["prompt_token_ids"], data["response_token_ids"], data["http_status"], data["status"]) == (
        [],
        [],
        400,
        "error",
    )
    assert data["error"]["message"] == "maximum context length is 32768"
    assert list(store.calls()) == []


def test_a_rollout_key_gives_no_final_reward(api, served, store):
    mine, other = make(api), make(api)
    with httpx.Client(base_url=served.url, headers={"x-api-key": RING.issue(mine, 1)}) as agent:
        final = post_event(agent, mine, "reward", {"value": 1})
        assert (final.status_code, "final reward" in final.json()["detail"]) == (403, True)
        assert post_event(agent, mine, "reward", {"value": 1, "response_id": "c"}).status_code == 200
        assert post_event(agent, mine, "note", {}).status_code == 200
        assert post_event(agent, mine, "note", {}, attempt="1").status_code == 403
        assert post_event(agent, other, "note", {}).status_code == 403
        assert agent.get(f"/api/rollouts/{other}/events").status_code == 403
        assert agent.get(f"/api/rollouts/{mine}/events").status_code == 200
        assert agent.post(proxy(other), json={"messages": MESSAGES}).status_code == 403
        assert move(agent, mine, "running") == 403
        assert agent.delete("/api/models").status_code == 403
    with httpx.Client(base_url=served.url, headers={"x-api-key": RING.issue(mine, 1, final_reward=True)}) as judge:
        assert post_event(judge, mine, "reward", {"value": 0.5}).status_code == 200
    assert [one.value for one in store.rewards([mine])] == [1.0, 0.5]
    assert store.rewards([other]) == []
    assert httpx.post(f"{served.url}/api/rollouts", json=[]).status_code == 401


def test_rollouts_outlive_the_process(store):
    with endpoint(store) as server, httpx.Client(base_url=server.url, headers=ADMIN) as api:
        ran, gone, waits = make(api), make(api), make(api)
        move(api, ran, "running", last_attempt_id="0")
        post_event(api, ran, "reward", {"value": 0.5})
        move(api, ran, "failed", error_message="wrong")
        move(api, gone, "failed")
        assert api.delete(f"/api/rollouts/{gone}").status_code == 204
        assert api.delete(f"/api/rollouts/{gone}").status_code == 204
        before = api.get(f"/api/rollouts/{ran}").json()
    with endpoint(store) as server, httpx.Client(base_url=server.url, headers=ADMIN) as api:
        assert api.get(f"/api/rollouts/{ran}").json() == before
        assert api.get(f"/api/rollouts/{gone}").status_code == 404
        assert api.get(f"/api/rollouts/{gone}/events").status_code == 404
        listed = api.get("/api/rollouts", params={"state_in": "queuing"}).json()
        assert [one["rollout_id"] for one in listed] == [waits]
        page = api.get("/api/rollouts/terminal").json()
        assert ([one["rollout_id"] for one in page["items"]], page["next_after"]) == ([ran], 2)
        assert api.post("/api/rollouts", json=[{"rollout_id": gone, "input": 1}]).status_code == 409
        assert len(events(api, ran)) == 1
    # Failed with a reward is a failure of the agent, failed without one of the machines.
    outcomes = {one.rollout_id: one.outcome for one in store.attempts([ran, gone])}
    assert outcomes == {ran: Outcome.FAILED, gone: Outcome.INFRASTRUCTURE}


def test_a_pause_holds_calls_instead_of_refusing_them(api, served):
    with ScriptedModelServer(["ok"]) as model:
        api.post("/api/models", json=[{"model": "policy", "endpoint": model.base_url}])
        rollout_id = make(api)
        paused = api.post("/proxy/pause", json={"retry_after_seconds": 9, "reason": "update"}).json()
        assert paused == {"paused": True, "retry_after_seconds": 9, "reason": "update", "inflight": 0}
        replies: list[httpx.Response] = []

        def call() -> None:
            url = f"{served.url}{proxy(rollout_id)}"
            replies.append(httpx.post(url, json={"messages": MESSAGES}, headers=ADMIN, timeout=30))

        calling = threading.Thread(target=call)
        calling.start()
        until(lambda: served.app.state.endpoint.admission.waiting == 1)
        assert api.get("/proxy/state").json()["paused"] is True
        assert api.post("/proxy/resume").json()["paused"] is False
        calling.join(30)
    assert replies[0].status_code == 200
