"""What an update is made of: nothing that came after an attempt's end, and nothing that the machines broke."""

from __future__ import annotations

import os
import threading
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from lgov_core import Client
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.wire import Assignment
from lgov_core.errors import SettingsError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.upstream import UpstreamEngine
from lgov_core.server.local import RolloutPlan, open_rollouts
from lgov_core.server.training import TrainingServer
from lgov_core.store import open_store
from lgov_core.testing import ScriptedModelServer, ScriptedReply
from lgov_core.transitions import build_transitions
from lgov_core.types import Outcome, Rollout
from tests.pair.pair_agents import ask
from tests.pair.test_train_commands import until

TASKS = [{"question": "digits 1"}, {"question": "digits 2"}]


def test_a_call_after_the_end_of_its_attempt_is_refused_and_never_trained_on(
    serve: Callable[..., TrainingServer],
) -> None:
    server = serve(steps=1, batch_size=2, group_size=2)
    answers: list[str] = []

    def late(resource: Any) -> None:
        until(lambda: server.store.has_ended(resource.rollout_id, resource.attempt), "the attempt ended")
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(resource, "a title for the chat")
        answers.append(f"{refused.value.code} {refused.value.read().decode()}")

    def agent(resource: Any, task: Any) -> float:
        said = ask(resource, task.question)
        if task.question.endswith("1"):
            threading.Thread(target=late, args=(resource,)).start()
        else:
            until(lambda: len(answers) == 2, "both late calls were answered")  # before the update is made
        return float(len(said))

    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    client.train(agent, nworkers=4)
    assert [answer[:3] for answer in answers] == ["410", "410"]
    assert all("a new client for each rollout" in answer for answer in answers)
    data = build_transitions(server.store)
    assert [(turn.turn, list(turn.rewards)) for turn in data.transitions] == [(0, ["task"])] * 4


def test_a_call_that_is_under_way_when_its_attempt_ends_is_answered_and_is_of_no_rollout(tmp_path: Path) -> None:
    with (
        ScriptedModelServer([ScriptedReply("yes")] * 2) as model,
        open_store(tmp_path / "store.sqlite") as store,
    ):
        app = create_app([UpstreamEngine(model.base_url)], store, keys=KeyRing(required=False))
        store.add_rollouts([Rollout("ro_1", "t", "run", {})])
        store.start_attempt("ro_1", 1)
        headers = {"x-lgov-rollout-id": "ro_1", "x-lgov-attempt": "1"}
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        with TestClient(app, base_url="http://127.0.0.1") as client:
            assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
            store.finish_attempt("ro_1", 1, Outcome.SUCCEEDED)
            assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
        assert app.state.counters.after_end == 1
        first, second = store.calls()
        assert (first.rollout_id, second.rollout_id) == ("ro_1", None)
        assert second.response["lgov"]["after_end_of"] == {"rollout_id": "ro_1", "attempt": 1}


@pytest.mark.parametrize(
    ("status", "answered_then", "expected"),
    [
        (503, False, Outcome.INFRASTRUCTURE),
        (429, False, Outcome.INFRASTRUCTURE),
        (401, False, Outcome.INFRASTRUCTURE),
        (400, False, Outcome.FAILED),
        (503, True, Outcome.FAILED),  # it was asked again, and answered: what it raised then is its own
    ],
)
def test_what_the_endpoint_saw_fail_is_the_machines_whatever_the_agent_raises(
    tmp_path: Path, status: int, answered_then: bool, expected: Outcome
) -> None:
    def agent(resource: Any, task: Any) -> float:
        for _ in range(1 + answered_then):
            try:
                ask(resource, "hello")
            except urllib.error.HTTPError:
                continue
        raise KeyError("answer") from None

    replies = [ScriptedReply("no", status=status), ScriptedReply("yes")]
    with ScriptedModelServer(replies) as model:
        engine, plan = UpstreamEngine(model.base_url), RolloutPlan(1, 60.0)
        runner = lambda url: AgentRunner(agent, endpoint=url, instrument=False)  # noqa: E731
        with open_rollouts(engine, tmp_path, runner, model="m", plan=plan) as rollouts:
            ((_, report, _),) = rollouts.run([Rollout("ro_1", "t", "run", {"mode": "train", "task": {"a": 1}})])
    assert report.outcome is expected
    assert (report.rewards == ()) is (expected is Outcome.INFRASTRUCTURE)


@pytest.mark.parametrize("ending", [SystemExit("no tools"), KeyboardInterrupt(), ValueError("x")])
def test_an_agent_that_ends_its_program_has_failed_as_one_that_raises(ending: BaseException) -> None:
    def agent(resource: Any, task: Any) -> float:
        raise ending

    runner = AgentRunner(agent, endpoint="http://127.0.0.1:9", instrument=False)
    report = runner.run(Assignment("ro_1", 1, "t", "train", {"a": 1}, "http://127.0.0.1:9/v1", "m", 60.0))
    runner.close()
    assert (report.outcome, [reward.value for reward in report.rewards]) == (Outcome.FAILED, [0.0])
    assert report.counts == {"raised": 1}
    assert "test_what_counts.py, line" in str(report.error)


@pytest.mark.parametrize("reward", [1e308, -1e101, float("inf"), {"task": 1e200}])
def test_a_reward_beyond_what_can_be_compared_is_none(reward: Any) -> None:
    runner = AgentRunner(lambda resource, task: reward, endpoint="http://127.0.0.1:9", instrument=False)
    report = runner.run(Assignment("ro_1", 1, "t", "train", {"a": 1}, "http://127.0.0.1:9/v1", "m", 60.0))
    runner.close()
    assert (report.outcome, report.rewards, report.counts) == (Outcome.INFRASTRUCTURE, (), {"bad_reward": 1})


def test_calls_to_an_endpoint_of_this_machine_pass_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet.example")
    monkeypatch.delenv("no_proxy", raising=False)
    runner = AgentRunner(lambda resource, task: 1.0, endpoint="http://127.0.0.1:9", instrument=False)
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == "intranet.example,127.0.0.1"
    runner.close()
    assert os.environ["NO_PROXY"] == "intranet.example"
    elsewhere = AgentRunner(lambda resource, task: 1.0, endpoint="http://10.0.0.7:9", instrument=False)
    assert os.environ["NO_PROXY"] == "intranet.example"
    elsewhere.close()


def test_groups_of_one_rollout_are_refused_where_rollouts_are_compared(serve: Callable[..., TrainingServer]) -> None:
    with pytest.raises(SettingsError, match="group_size is 1, and grpo compares the rollouts of a group"):
        serve(group_size=1)


def test_a_client_is_told_what_may_make_a_training_worthless(
    serve: Callable[..., TrainingServer], capfd: pytest.CaptureFixture[str]
) -> None:
    def agent(resource: Any, task: Any) -> float:
        if task.question == "raise":
            return {}["score"]
        return float(len(ask(resource, task.question, temperature=0, n=2)))

    server = serve(steps=1, batch_size=3, group_size=2)
    client = Client(server.url)
    tasks = [*TASKS, {"question": "raise"}]
    client.upload_data(tasks, tasks[:1])
    client.train(agent)
    said = " ".join(capfd.readouterr().err.split())
    assert "NOTE: held-out tasks that are trained on too: 1 of 1" in said
    assert "2 of 6 rollouts ended with an exception of the agent, which is reward 0: 2 times KeyError: 'score'" in said
    assert "in all 2 groups every rollout begins with the same tokens" in said
    assert "of 4 replies with several choices nothing says which one the agent went on with" in said
