"""All weights of a vLLM replaced, and a vLLM that sleeps: no call meets either, and each is of one known version."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lgov_core.errors import ModelError, SettingsError, TrainError, UpstreamError
from lgov_core.gateway.protocol import paused
from lgov_core.train.engines import vllm_server
from lgov_core.train.engines.vllm_engine import open_vllm
from lgov_core.train.engines.vllm_policy import VllmWeights
from lgov_core.train.engines.vllm_server import VllmOptions, VllmServer
from tests.train.fake_vllm import environment_of
from tests.train.vllm_parts import MODEL, Fake, until


def all_weights(number: int) -> dict[str, torch.Tensor]:
    return {"model.embed_tokens.weight": torch.full((4, 4), float(number))}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    options = VllmOptions(environment_of(tmp_path), rank=0, start_s=60, sleep=True)
    with VllmServer("folder", "tiny", options, tmp_path / "vllm.log") as server:
        made = Fake(tmp_path, server, VllmWeights(server, tmp_path / "weights", "folder"))
        yield made
        made.close()


def test_all_weights_are_replaced_between_calls(fake: Fake) -> None:
    (fake.folder / "hold").touch()
    running = fake.begin()
    until(lambda: fake.calls() == 1)
    publishing = threading.Thread(target=fake.policy.publish, args=(all_weights(1),))
    publishing.start()
    time.sleep(0.3)
    waiting = fake.begin()
    time.sleep(0.3)
    assert fake.log()[1:] == [f"call {fake.server.base}"], "the running call is waited for, and the new one waits"
    (fake.folder / "hold").unlink()
    publishing.join(30)
    replies = running.result(30), waiting.result(30)
    assert [(reply.weights_version, reply.response_ids) for reply in replies] == [(0, (10,) * 4), (1, (11,) * 4)]
    assert fake.log()[2:5] == ["/pause?mode=wait", "/collective_rpc", "/resume"]
    assert fake.policy.publish(all_weights(2)) == 2
    assert [path.name for path in (fake.folder / "weights").iterdir()] == ["2"]


def test_swaps_of_all_weights_under_load_mix_no_call(fake: Fake) -> None:
    with fake.under_load() as replies:
        for number in range(1, 11):
            fake.policy.publish(all_weights(number))
            time.sleep(0.1)
    assert len({reply.weights_version for reply in replies}) > 5
    assert all(set(reply.response_ids) == {10 + reply.weights_version} for reply in replies)


def test_a_killed_server_gets_all_weights_again(fake: Fake) -> None:
    fake.policy.publish(all_weights(3), version=3)
    os.kill(fake.server.pid or 0, signal.SIGKILL)
    until(lambda: fake.server.restarts == 1)
    reply = fake.ask()
    assert (reply.weights_version, reply.response_ids) == (3, (13,) * 4)
    assert fake.policy.publish(all_weights(4)) == 4
    assert fake.ask().response_ids == (14,) * 4


def test_weights_that_cannot_be_loaded_leave_those_before(fake: Fake) -> None:
    with pytest.raises(ModelError, match="not finite"):
        fake.policy.publish({"a": torch.tensor([float("nan")])})
    (fake.folder / "refuse").touch()
    with pytest.raises(TrainError, match=r"vLLM does not load version 1: /collective_rpc: 400: .*no room"):
        fake.policy.publish(all_weights(1))
    assert (fake.ask().weights_version, fake.ask().response_ids) == (0, (10,) * 4)


def test_a_server_of_unknown_weights_answers_no_call(fake: Fake) -> None:
    fake.policy.publish(all_weights(1))
    (fake.folder / "refuse").touch()
    with pytest.raises(UpstreamError, match="could not load version 1 again"):
        fake.policy.publish(all_weights(2))
    with pytest.raises(UpstreamError, match="vLLM has weights of no version"):
        fake.ask()


def test_all_weights_are_not_for_a_server_of_others(tmp_path: Path) -> None:
    options = VllmOptions(tmp_path / "python", rank=0, url="http://127.0.0.1:1")
    with (
        pytest.raises(SettingsError, match="published to a vLLM that lgov starts"),
        open_vllm(MODEL, "folder", tmp_path, options),
    ):
        pass


def test_a_paused_vllm_sleeps_and_calls_wait_until_it_is_awake(fake: Fake) -> None:
    with paused(fake.policy), paused(fake.policy):
        waiting = fake.begin()
        time.sleep(0.3)
        assert fake.log()[1:] == ["/sleep?level=1"]
    assert waiting.result(30).response_ids == (10,) * 4
    assert fake.log()[2:] == ["/wake_up", f"call {fake.server.base}"]


def test_a_vllm_that_does_not_fall_asleep_is_not_paused(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_server, "ask", lambda *_: (500, "no"))
    monkeypatch.setattr(vllm_server, "_PAUSE_S", 0.0)
    with pytest.raises(UpstreamError, match=r"vLLM refuses /sleep\?level=1: 500: no"):
        fake.policy.pause()
    assert fake.ask().response_ids == (10,) * 4
