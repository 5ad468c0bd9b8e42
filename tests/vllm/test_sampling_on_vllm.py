"""The engine on a real vLLM: exact ids and log-probabilities, swaps under load, more adapters than it holds, forms."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lgov_core.train.engines.vllm_engine import VllmEngine
from lgov_core.train.engines.vllm_policy import VllmPolicy
from lgov_core.train.loop.policy_model import PolicyModel, adapter_policy
from lgov_core.wire.exchange import Completion
from tests.vllm.asked import EXACT, Asked, off, shake
from tests.vllm.conftest import MODEL

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def policy(vllm: Asked) -> PolicyModel:
    return adapter_policy(vllm.model.module, rank=8)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_ids_and_log_probabilities_are_those_of_torch(vllm: Asked, temperature: float) -> None:
    reply = vllm.ask(temperature=temperature, seed=1)
    assert reply.prompt_ids == tuple(vllm.model.render([{"role": "user", "content": "Tell me of the sea."}]))
    assert reply.weights_version == 0
    assert off(vllm.model.module, reply, temperature or 1.0) < EXACT
    assert vllm.ask(temperature=temperature, seed=1).response_ids == reply.response_ids


def test_a_stop_text_ends_the_reply_and_all_its_tokens_are_there(vllm: Asked) -> None:
    whole = vllm.ask(temperature=0.0)
    stop = whole.text.split()[3]
    reply = vllm.ask(temperature=0.0, stop=(stop,))
    assert (reply.matched_stop, reply.finish_reason) == (stop, "stop")
    assert stop in reply.text
    assert stop not in (reply.content or "")
    assert off(vllm.model.module, reply) < EXACT


def test_adapters_are_those_of_peft(vllm: Asked, policy: PolicyModel) -> None:
    shake(policy, 0)
    version = vllm.engine.policy.publish(policy.served())
    reply = vllm.ask(seed=1)
    assert reply.weights_version == version
    assert off(policy.module, reply) < EXACT
    assert off(vllm.model.module, reply) > 100 * EXACT, "they differ from the model's own"


def test_long_prompts_with_seeds_come_at_once(vllm: Asked) -> None:
    """More tokens than vLLM reads in one step: on a CPU it may not read such a prompt in chunks."""
    restarts = vllm.engine.policy.server.restarts
    with ThreadPoolExecutor(8) as threads:
        texts = [f"{number} " + "sea and " * 400 for number in range(8)]
        replies = list(threads.map(lambda text: vllm.ask(text, max_tokens=4, seed=1), texts))
    assert all(len(reply.prompt_ids) > 800 for reply in replies)
    assert vllm.engine.policy.server.restarts == restarts


def test_twenty_swaps_under_load(vllm: Asked, policy: PolicyModel) -> None:
    stop = threading.Event()
    replies: list[Completion] = []
    errors: list[Exception] = []
    known: dict[int | None, dict[str, torch.Tensor]] = {vllm.engine.policy.weights_version: policy.weights()}

    def keep_asking(number: int) -> None:
        while not stop.is_set():
            try:
                replies.append(vllm.ask(f"Tell me of {number}.", max_tokens=8))
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=keep_asking, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for seed in range(1, 21):
        weights = shake(policy, seed)
        known[vllm.engine.policy.publish(policy.served())] = weights
        time.sleep(0.2)
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    versions = {reply.weights_version for reply in replies}
    assert len(versions) > 5
    for version in versions:
        policy.load(known[version])
        worst = max(off(policy.module, reply) for reply in replies if reply.weights_version == version)
        assert worst < EXACT, f"a call of version {version} was computed with other weights"
    loaded = [path.name for path in (vllm.engine.policy.current.folder or MODEL).parent.iterdir()]
    assert len(loaded) <= 2, f"old versions are still there: {loaded}"


def test_more_adapters_than_it_holds_are_each_answered_exactly(
    vllm: Asked, policy: PolicyModel, tmp_path: Path
) -> None:
    """Ten, where a batch takes two and memory eight: vLLM evicts adapters, and reads them again."""
    names = [f"policy{number}" for number in range(10)]
    served = {name: VllmPolicy(vllm.engine.policy.server, tmp_path / name, name=name) for name in names}
    known: dict[str, dict[str, torch.Tensor]] = {}
    for number, name in enumerate(names):
        known[name] = shake(policy, 100 + number)
        assert served[name].publish(policy.served()) == 1
    many = Asked(vllm.model, VllmEngine(vllm.model, vllm.engine.policy, policies=served))
    with ThreadPoolExecutor(len(names)) as threads:
        replies = list(threads.map(lambda name: many.ask(model=name, max_tokens=8), names * 3))
    many.close()
    assert [(reply.model, reply.weights_version) for reply in replies] == [(name, 1) for name in names * 3]
    for name in names:
        policy.load(known[name])
        worst = max(off(policy.module, reply) for reply in replies if reply.model == name)
        assert worst < EXACT, f"a call of {name} was computed with other weights"


def test_replies_in_json_and_demanded_calls_have_their_form_and_no_log_probabilities(vllm: Asked) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    reply = vllm.ask("A number, please.", body={"response_format": form}, max_tokens=32, seed=0)
    assert isinstance(json.loads(reply.text)["n"], int)
    assert reply.logprobs is None
    tools = [{"type": "function", "function": {"name": "count", "parameters": SCHEMA}}]
    called = vllm.ask("Count to 3.", body={"tool_choice": "required"}, tools=tools, max_tokens=64, seed=0)
    (call,) = called.tool_calls[:1]
    assert (call.name, list(json.loads(call.arguments))) == ("count", ["n"])
    assert called.logprobs is None
