"""The engine on a real vLLM: exact ids and log-probabilities, swaps under load, forms, a conversation without drift."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from lgov_core.gateway.protocol import ChatRequest, Completion
from lgov_core.gateway.server import EndpointServer
from lgov_core.models import LanguageModel, load_model
from lgov_core.store.sqlite.store import SQLiteStore
from lgov_core.train.engines.vllm_engine import VllmEngine, open_vllm
from lgov_core.train.engines.vllm_server import VllmOptions
from lgov_core.train.loop.agents import adapter_policy
from lgov_core.train.loop.policy_model import PolicyModel
from lgov_core.transitions import build_transitions
from lgov_core.types import Outcome, Reward, Rollout
from tests.vllm.conftest import MODEL, PYTHON

EXACT = 1e-4
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


class Asked:
    """A `VllmEngine` that is asked from any thread."""

    def __init__(self, model: LanguageModel, engine: VllmEngine) -> None:
        self.model, self.engine = model, engine
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(engine.start())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(600)

    def ask(self, text: str = "Tell me of the sea.", **more: Any) -> Completion:
        messages = [{"role": "user", "content": text}]
        return self.run(
            self.engine.chat(
                ChatRequest(**{"body": {}, "model": "smollm2", "messages": messages, "max_tokens": 16, **more})
            )
        )

    def close(self) -> None:
        self.run(self.engine.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    model = load_model(MODEL)
    folder = tmp_path_factory.mktemp("vllm")
    options = VllmOptions(PYTHON, context_tokens=1024, rank=8, eager=True, arguments=("--max-num-seqs", "32"))
    with open_vllm(model, str(MODEL), folder, options) as engine:
        asked = Asked(model, engine)
        yield asked
        asked.close()


@pytest.fixture(scope="module")
def policy(vllm: Asked) -> PolicyModel:
    return adapter_policy(vllm.model.module, rank=8)


def shake(policy: PolicyModel, seed: int) -> dict[str, torch.Tensor]:
    """Other weights, and a copy of them."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in policy.trained():
            if "lora_B" in name:
                value.normal_(0.0, 0.02, generator=chance)
    return policy.weights()


def off(module: Any, reply: Completion, temperature: float = 1.0) -> float:
    """How far recorded log-probabilities are from those of a plain forward pass."""
    assert reply.prompt_ids is not None
    assert reply.response_ids is not None
    assert reply.logprobs is not None
    ids = torch.tensor([[*reply.prompt_ids, *reply.response_ids]])
    with torch.inference_mode():
        logits = module(ids).logits[0, len(reply.prompt_ids) - 1 : -1].float() / temperature
    plain = logits.log_softmax(-1).gather(-1, torch.tensor(reply.response_ids)[:, None])[:, 0]
    return float((plain - torch.tensor(reply.logprobs)).abs().max())


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


def test_a_langchain_conversation_is_one_row_without_drift(vllm: Asked, tmp_path: Any) -> None:
    """With a demanded call in its middle, which is read and repeated exactly, and left out of training."""

    @tool
    def depth(place: Literal["Rockall", "Faroe"]) -> str:
        """How deep the sea is there."""
        return "It is 42 metres deep."

    with contextlib.closing(SQLiteStore(tmp_path / "store.sqlite")) as store:
        store.add_rollouts([Rollout("r1", task_id="t", run_id="r", input={})])
        store.start_attempt("r1", 1)
        # The endpoint has a loop of its own, and so an engine of its own on the same policy.
        engine = VllmEngine(vllm.model, vllm.engine.policy, max_new_tokens=24)
        with EndpointServer([engine], store) as endpoint:
            headers = {"x-lgov-rollout-id": "r1", "x-lgov-attempt": "1"}
            chat = ChatOpenAI(
                model="smollm2", base_url=endpoint.base_url, api_key="k", default_headers=headers, max_retries=0
            )
            tools = chat.bind_tools([depth])
            history: list[Any] = [HumanMessage("Tell me of the sea.")]
            history += [tools.invoke(history), HumanMessage("How deep is it at Rockall?")]
            asked = chat.bind_tools([depth], tool_choice="required").invoke(history)
            (call,) = asked.tool_calls[:1]
            history += [asked, *(ToolMessage(depth.invoke(one), tool_call_id=one["id"]) for one in asked.tool_calls)]
            assert call["name"] == "depth"
            history += [tools.invoke(history), HumanMessage("Thank you.")]
            tools.invoke(history)
        store.finish_attempt("r1", 1, Outcome.SUCCEEDED, rewards=[Reward(1.0, rollout_id="r1", attempt=1)])
        calls = list(store.calls(["r1"]))
        data = build_transitions(store, ["r1"])
    assert len(calls) == 4
    for before, after in itertools.pairwise(calls):
        seen = (*(before.prompt_ids or ()), *(before.response_ids or ()))
        assert (after.prompt_ids or ())[: len(seen)] == seen
    found = data.counts()
    assert found.pop("no_logprobs") == 1
    assert not found.keys() - {"truncated_reply"}, "no drift, in particular"
    assert len(data.transitions) == 3
