"""A client and a server: real HTTP, a real model, and what is in the store afterwards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Client
from lgov_core.client import wire
from lgov_core.errors import ArgumentError, ClientError, EndpointError, SettingsError, TaskError, TrainError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.server import EndpointServer
from lgov_core.server.training import ServerOptions, TrainingServer
from lgov_core.store import open_store
from tests.pair import pair_agents as agents
from tests.pair.conftest import settings

TASKS = [{"question": f"digits {number}"} for number in range(2)]
HELD_OUT = [{"question": "digits please"}] * 3

Serve = Callable[..., TrainingServer]


def test_an_agent_is_run_on_every_task_and_its_model_is_trained(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    client = Client(server.url, quiet=True)
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    assert client.upload_data(str(tmp_path / "train.jsonl"), test_file=HELD_OUT) == {"train": 2, "test": 3}
    result = client.train(agents.digits, nworkers=3)
    assert result.updates == 2
    assert [len(curve) for curve in (result.curves["reward"], result.test_curves["reward"])] == [2, 2]
    assert [line["phase"] for line in result.metrics] == ["test", "train", "train", "test"]
    assert result.counts["succeeded"] + result.counts["failed"] == 2 * 8 + 2 * 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(result.metrics)
    store = open_store(tmp_path / "run" / "store.sqlite", make=False)
    calls = list(store.calls())
    # Every call is on record under its attempt, with its tokens, in the version of the weights that answered.
    assert len(calls) == 22
    assert {call.rollout_id for call in calls} == {rollout.rollout_id for rollout in store.rollouts()}
    assert Counter(call.weights_version for call in calls) == {0: 3 + 8, 1: 8, 2: 3}
    assert all(call.prompt_ids and call.response_ids and call.logprobs for call in calls)
    # The reward is what the agent returned, computed here from what the model said.
    said = {call.rollout_id: str(call.response["choices"][0]["message"]["content"] or "") for call in calls}
    for reward in store.rewards():
        assert reward.value == sum(one.isdigit() for one in said[str(reward.rollout_id)]) / 4
    store.close()


def test_rollouts_go_on_during_updates_where_that_is_wanted(serve: Serve, tmp_path: Path) -> None:
    server = serve(steps=3, max_staleness=1)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    result = client.train(agents.digits, nworkers=2)
    assert result.updates == 3
    store = open_store(tmp_path / "run" / "store.sqlite", make=False)
    assert len(store.rollouts()) == len(list(store.calls())) == 3 * 8, "none is lost, none is collected for nothing"
    assert {attempt.attempt for attempt in store.attempts()} == {1}
    versions = {call.rollout_id: call.weights_version for call in store.calls()}
    for number, line in enumerate(result.metrics):
        own = parquet_rows(tmp_path / "run" / "transitions" / f"step-{number + 1:06d}.parquet")
        assert {versions[row["rollout_id"]] for row in own} <= {max(0, number - 1), number}
        assert line["staleness_max"] == number - min(versions[row["rollout_id"]] for row in own) <= 1
    store.close()


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    return parquet.read_table(path).to_pylist()


def test_more_digits_are_paid_and_more_are_said(serve: Serve) -> None:
    server = serve(steps=8, group_size=8, learning_rate=3e-2)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    rewards = client.train(agents.digits, nworkers=4).curves["reward"]
    assert rewards[-1] > rewards[0] + 0.1


@pytest.mark.parametrize("agent", [agents.digits_async, agents.by_name])
def test_coroutine_functions_and_rewards_by_name(serve: Serve, tmp_path: Path, agent: Any) -> None:
    server = serve(steps=1)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    result = client.train(agent, nworkers=4)
    assert result.updates == 1
    if agent is agents.by_name:
        store = open_store(tmp_path / "run" / "store.sqlite", make=False)
        assert Counter(reward.dimension for reward in store.rewards()) == {"task": 8, "brevity": 8}
        assert result.curves["reward_brevity"][0] < 0
        store.close()


def test_a_second_training_goes_on_from_the_weights_of_the_first(serve: Serve) -> None:
    server = serve(steps=1)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    first, second = client.train(agents.digits), client.train(agents.digits_async)
    assert first.run_id != second.run_id
    assert [line["step"] for line in (*first.metrics, *second.metrics)] == [1, 2]


def test_several_clients_share_a_training(serve: Serve, tmp_path: Path) -> None:
    import threading

    server = serve()
    Client(server.url, quiet=True).upload_data(TASKS)
    results: list[Any] = []
    both = [
        threading.Thread(target=lambda: results.append(Client(server.url, quiet=True).train(agents.digits, nworkers=1)))
        for _ in range(2)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len({result.run_id for result in results}) == 1
    assert sum(result.counts.get("succeeded", 0) + result.counts.get("failed", 0) for result in results) == 16


# ---------------------------------------------------------------------- what is refused


def test_a_broken_file_uploads_nothing(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    (tmp_path / "test.jsonl").write_text('{"question": "a"}\n{"question": \n')
    with pytest.raises(TaskError, match=r"test\.jsonl:2: not JSON"):
        client.upload_data([{"question": "other"}], test_file=tmp_path / "test.jsonl")
    assert server.coordinator.tasks.of("train") == TASKS


def test_a_large_upload_comes_in_parts_and_counts_when_it_is_whole(serve: Serve) -> None:
    server = serve()
    client = Client(server.url, quiet=True)
    many = [{"question": "x" * 500_000, "number": number} for number in range(12)]
    assert client.upload_data(many) == {"train": 12, "test": 0}
    assert server.coordinator.tasks.of("train") == many
    server.coordinator.add_data("upload_1", "train", [{"a": 1}])
    with pytest.raises(EndpointError, match="parts of the upload are missing"):
        server.coordinator.commit_data("upload_1", {"train": 2, "test": 0})
    assert server.coordinator.tasks.of("train") == many


def test_training_without_tasks_is_refused(serve: Serve) -> None:
    with pytest.raises(ClientError, match="call upload_data first"):
        Client(serve().url, quiet=True).train(agents.digits)


def test_a_server_of_another_version_is_named_with_its_version(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(serve().url, quiet=True)
    about = client._connection.get("/train/about")
    monkeypatch.setattr("lgov_core.client.client.PROTOCOL", wire.PROTOCOL + 1)
    with pytest.raises(ClientError, match=f"speaks protocol {wire.PROTOCOL}, this client protocol {wire.PROTOCOL + 1}"):
        client.upload_data(TASKS)
    assert about["protocol"] == wire.PROTOCOL
    monkeypatch.setattr(wire, "PROTOCOL", 99)
    stranger = Client(client.url, quiet=True)
    with pytest.raises(ClientError, match="install the same version of lgov on both sides"):
        stranger._connection.post("/train/start", {"client": "c"})


def test_a_server_that_is_none_and_one_that_does_not_train() -> None:
    with pytest.raises(ClientError, match="no answer from"):
        Client("http://127.0.0.1:9", patience_s=0.0).upload_data(TASKS)
    with pytest.raises(ClientError, match="not a server's URL"):
        Client("localhost")
    from lgov_core.gateway.upstream import UpstreamEngine

    with (
        EndpointServer([UpstreamEngine("http://127.0.0.1:9/v1")]) as endpoint,
        pytest.raises(ClientError, match="is not a training server"),
    ):
        Client(endpoint.url).upload_data(TASKS)


def test_the_address_comes_from_the_environment(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_LIGHTNING_SERVER_URL", raising=False)
    with pytest.raises(ClientError, match="AGENT_LIGHTNING_SERVER_URL"):
        Client()
    monkeypatch.setenv("AGENT_LIGHTNING_SERVER_URL", serve().url)
    assert Client(quiet=True).upload_data(TASKS)["train"] == 2


def test_agents_that_cannot_be_called_so_are_refused_before_anything_is_sent(serve: Serve) -> None:
    client = Client("http://127.0.0.1:9", patience_s=0.0)
    with pytest.raises(ArgumentError, match="does not take a resource and a task"):
        client.train(lambda task: 1.0)  # type: ignore[arg-type, misc]
    with pytest.raises(ArgumentError, match="names no agent"):
        client.train("agent")
    with pytest.raises(ArgumentError, match="cannot be called"):
        client.train(42)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="nworkers is 0"):
        client.train(agents.digits, nworkers=0)


def test_two_trainers_on_one_store_are_refused(serve: Serve, model_folder: Path, tmp_path: Path) -> None:
    serve(folder="first")
    store = str(tmp_path / "first" / "store.sqlite")
    with (
        pytest.raises(TrainError, match=r"process \d+ trains on the store .* already"),
        TrainingServer(settings(model_folder), folder=tmp_path / "second", options=ServerOptions(store=store)),
    ):
        raise AssertionError("not reached")


def test_a_folder_that_holds_a_training_is_not_begun_anew(serve: Serve, model_folder: Path, tmp_path: Path) -> None:
    server = serve(folder="first", steps=1)
    client = Client(server.url, quiet=True)
    client.upload_data(TASKS)
    client.train(agents.digits)
    with (
        pytest.raises(SettingsError, match="continue with --resume"),
        TrainingServer(
            settings(model_folder),
            folder=tmp_path / "first",
            options=ServerOptions(store=str(tmp_path / "other.sqlite")),
        ),
    ):
        raise AssertionError("not reached")


def test_an_open_address_wants_keys(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="can be reached from other machines"):
        TrainingServer(settings(model_folder), folder=tmp_path / "run", options=ServerOptions(host="0.0.0.0"))


def test_where_keys_are_required_the_agent_gets_one_in_its_path_and_may_do_nothing_else(
    model_folder: Path, tmp_path: Path
) -> None:
    import threading

    keys = KeyRing(b"0123456789abcdef0123456789abcdef")
    refused: list[str] = []

    def agent(resource: Any, task: Any) -> float:
        key = resource.model_api.split("/")[-2]
        with pytest.raises(ClientError) as caught:
            Client(resource.model_api.split("/as/")[0], key=key, patience_s=0.0).stop()
        refused.append(caught.value.message)
        return agents.digits(resource, task)

    stop = threading.Event()
    with TrainingServer(
        settings(model_folder, steps=1), folder=tmp_path / "run", options=ServerOptions(keys=keys)
    ) as server:
        thread = threading.Thread(target=server.serve, args=(stop,))
        thread.start()
        with pytest.raises(ClientError, match="refuses the key"):
            Client(server.url, quiet=True).upload_data(TASKS)
        client = Client(server.url, key=keys.admin, quiet=True)
        client.upload_data(TASKS)
        assert client.train(agent).updates == 1
        stop.set()
        thread.join()
    assert len(refused) == 8
    assert "the key of a rollout may not do this" in refused[0]
