"""All weights of a real vLLM replaced, and one that sleeps: every call is computed with the version that it names."""

from __future__ import annotations

import copy
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lgov_core.gateway.protocol import paused
from lgov_core.models import load_model
from lgov_core.train.engines.vllm_engine import open_vllm
from lgov_core.train.engines.vllm_server import VllmOptions, VllmServer
from lgov_core.wire.exchange import Completion
from tests.vllm.asked import EXACT, Asked, off
from tests.vllm.conftest import MODEL, PYTHON


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    model = load_model(MODEL)
    options = VllmOptions(PYTHON, context_tokens=512, rank=0, cpu=True, sleep=True)
    with open_vllm(model, str(MODEL), tmp_path_factory.mktemp("vllm"), options) as engine:
        asked = Asked(model, engine)
        yield asked
        asked.close()


@pytest.fixture(scope="module")
def changed(whole: Asked) -> Any:
    """The model with other weights, which `shaken` changes again."""
    return copy.deepcopy(whole.model.module)


def shaken(module: Any, seed: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.parameters():
            value.add_(torch.randn(value.shape, generator=chance) * value.std() * 0.05)
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_all_weights_are_replaced_under_load(whole: Asked, changed: Any) -> None:
    stop, replies = threading.Event(), list[Completion]()
    known: dict[int | None, dict[str, torch.Tensor]] = {0: whole.model.module.state_dict()}

    def keep_asking(number: int) -> None:
        while not stop.is_set():
            replies.append(whole.ask(f"Tell me of {number}.", max_tokens=8))

    threads = [threading.Thread(target=keep_asking, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for seed in range(2):
        until_asked = len(replies) + 4
        while len(replies) < until_asked:
            time.sleep(0.1)
        weights = shaken(changed, seed)
        known[whole.engine.policy.publish(weights)] = weights
    until_asked = len(replies) + 8
    while len(replies) < until_asked:
        time.sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    assert {reply.weights_version for reply in replies} == {0, 1, 2}
    for version, weights in known.items():
        changed.load_state_dict(weights)
        of_it = [reply for reply in replies if reply.weights_version == version]
        ends = (*of_it[:2], *of_it[-2:])  # beside the swaps
        assert max(off(changed, reply) for reply in ends) < EXACT, f"version {version} was computed with other weights"
    assert off(whole.model.module, replies[-1]) > 100 * EXACT, "they differ from the model's own"


def test_a_vllm_that_slept_answers_as_before(whole: Asked, changed: Any) -> None:
    began, waiting = time.monotonic(), list[Completion]()
    whole.ask(max_tokens=8)
    took_s = time.monotonic() - began
    thread = threading.Thread(target=lambda: waiting.append(whole.ask(max_tokens=8)))
    with paused(whole.engine.policy):
        thread.start()
        time.sleep(1.0 + 3 * took_s)  # longer than a call takes on a busy machine
        assert not waiting
    thread.join(60)
    assert off(changed, waiting[0]) < EXACT


def test_a_vllm_that_is_killed_comes_back_with_all_weights(whole: Asked, changed: Any) -> None:
    server = whole.engine.policy.server
    assert isinstance(server, VllmServer)
    version = whole.engine.policy.publish(shaken(changed, 9))
    os.kill(server.pid or 0, signal.SIGKILL)
    while not server.restarts:
        time.sleep(0.1)
    reply = whole.ask(max_tokens=8)
    assert reply.weights_version == version
    assert off(changed, reply) < EXACT
