"""Several policies on one model: each call is written by the one it names, exactly, whoever else is in the batch."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

from lgov_core.errors import EndpointError, ModelError
from lgov_core.gateway.access import KeyRing
from lgov_core.gateway.app import create_app
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.protocol import paused
from lgov_core.gateway.server import EndpointServer
from lgov_core.models import LanguageModel
from lgov_core.store.sqlite import SQLiteStore
from lgov_core.wire.exchange import Completion
from tests.gateway.embedded_engine import ask, assert_exact, grouped_query_llama, recomputed
from tests.gateway.taught import tiny

NAMES = ("writer", "checker", "rewriter")


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


def trained(model: LanguageModel, seed: int, targets: Any = "all-linear", rank: int = 4) -> Any:
    """A PEFT model around a copy of the model, whose adapter is large enough to be opinionated."""
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, task_type="CAUSAL_LM")
    made: Any = get_peft_model(copy.deepcopy(model.module), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return made.eval()


def golden(model: LanguageModel, module: Any, completion: Completion) -> torch.Tensor:
    """How far the recorded log-probabilities are from those of the PEFT model's own forward pass."""
    other = LanguageModel(module, model.tokenizer, "golden", model.tool_format, model.eos_ids)
    return (torch.tensor(completion.logprobs) - recomputed(other, completion)).abs().max()


@asynccontextmanager
async def running(model: LanguageModel, **options: Any) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(model, **{"max_new_tokens": 10, "policies": NAMES, **options})
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def test_each_call_is_written_by_the_policy_it_names() -> None:
    model = grouped_query_llama()
    modules = {
        "writer": trained(model, 1),
        "checker": trained(model, 2, ["q_proj", "down_proj"], rank=2),
    }
    async with running(model, max_batch=7) as engine:
        assert engine.models == ("llama", "writer", "checker", "rewriter")
        for name, module in modules.items():
            assert engine.policy(name).publish(get_peft_model_state_dict(module)) == 1
        names = ["llama", *NAMES]
        asked = [ask(f"pay {n % 5}", model=names[n % 4], seed=n // 4) for n in range(24)]
        completions = await asyncio.gather(*map(engine.chat, asked))
    replies: dict[tuple[str, int], Any] = {}
    for request, completion in zip(asked, completions, strict=True):
        assert completion.model == request.model
        assert completion.weights_version == (1 if request.model in modules else 0)
        replies[request.model, request.seed or 0] = completion.response_ids
        if request.model in modules:
            assert golden(model, modules[request.model], completion) < 1e-4
            assert (torch.tensor(completion.logprobs) - recomputed(model, completion)).abs().max() > 0.01
        else:
            # The model itself, and a policy without weights of its own.
            assert_exact(model, completion)
    assert len({replies[name, 0] for name in names[:3]}) == 3


async def test_what_is_kept_of_one_policy_is_nothing_to_another() -> None:
    model = tiny()
    module = trained(model, 1)
    async with running(model) as engine:
        engine.policy("writer").publish(get_peft_model_state_dict(module))
        for name in ("tiny", "writer", "rewriter", "writer"):
            completion = await engine.chat(ask(model=name, seed=3))
            assert golden(model, module if name == "writer" else model.module, completion) < 1e-4


async def test_swapping_one_policy_does_not_stop_the_others() -> None:
    model = tiny()
    versions = {0: model.module}
    async with running(model, max_batch=5) as engine:
        writer = engine.policy("writer")

        async def client(name: str, number: int) -> list[Completion]:
            return [
                await engine.chat(ask(f"{number}", model=name, max_tokens=2 + (number * 7 + turn * 3) % 9))
                for turn in range(5)
            ]

        async def publisher() -> None:
            for seed in range(1, 4):
                versions[seed] = trained(model, seed)
                assert await asyncio.to_thread(writer.publish, get_peft_model_state_dict(versions[seed])) == seed
                assert writer.weights_version == seed
                await engine.chat(ask("in between", model="writer", max_tokens=1))

        clients = [client(NAMES[number % 2], number) for number in range(8)]
        results = await asyncio.gather(*clients, publisher())
        assert engine.policy("checker").weights_version == engine.weights_version == 0
    completions = [completion for one in results[:-1] for completion in one or ()]
    assert len(completions) == 40
    for completion in completions:
        assert completion.weights_version is not None
        assert completion.model == "writer" or completion.weights_version == 0
        assert golden(model, versions[completion.weights_version], completion) < 1e-4
    assert len({completion.weights_version for completion in completions}) > 1


async def test_a_paused_policy_waits_and_the_others_do_not() -> None:
    model = tiny()
    async with running(model) as engine:
        with paused(engine.policy("writer")):
            waiting = asyncio.ensure_future(engine.chat(ask(model="writer")))
            for name in ("tiny", "checker", "checker"):
                assert (await engine.chat(ask(model=name))).weights_version == 0
            assert not waiting.done()
            # Publishing works all the same, from the loop's own thread too.
            module = trained(model, 4)
            assert engine.policy("writer").publish(get_peft_model_state_dict(module), version=7) == 7
            assert not waiting.done()
        completion = await waiting
        assert completion.weights_version == 7
        assert golden(model, module, completion) < 1e-4
        with paused(engine):
            calls = [asyncio.ensure_future(engine.chat(ask(model=name))) for name in engine.models]
            await asyncio.sleep(0.05)
            assert not any(call.done() for call in calls)
        assert len(await asyncio.gather(*calls)) == 4


async def test_weights_that_do_not_fit_change_nothing() -> None:
    model = tiny()
    module = trained(model, 1)
    good = dict(get_peft_model_state_dict(module))
    name, tensor = next(iter(good.items()))
    async with running(model) as engine:
        writer = engine.policy("writer")
        writer.publish(good)
        for bad, what in (
            ({name.replace("layers.0", "layers.77"): tensor}, "fits no linear layer"),
            ({"model.embed_tokens.lora_A.weight": tensor}, "fits no linear layer"),
            ({name: tensor}, "only one of the two"),
            ({**good, name: tensor[:, :-1]}, "the layer is"),
            ({**good, name: tensor * float("nan")}, "not finite"),
        ):
            with pytest.raises(ModelError, match=what):
                writer.publish(bad)
        with pytest.raises(ModelError, match="cannot follow"):
            writer.publish(good, version=1)
        assert writer.weights_version == 1
        assert golden(model, module, await engine.chat(ask(model="writer"))) < 1e-4
        with pytest.raises(ModelError, match="have policies on them"):
            engine.publish({})
        with pytest.raises(ModelError, match="no policy is named 'wrtier'"):
            engine.policy("wrtier")
        # No weights at all: the model itself again.
        assert writer.publish({}) == 2
        assert_exact(model, await engine.chat(ask(model="writer")))
    with pytest.raises(EndpointError, match="closed"):
        writer.publish(good)
    with pytest.raises(ModelError, match="different names"):
        EmbeddedEngine(model, policies=("writer", "writer"))
    with pytest.raises(ModelError, match="no policy"):
        EmbeddedEngine(model).policy("writer")


async def test_the_module_itself_is_as_it_was_for_everybody_else() -> None:
    model = tiny()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        plain = model.module(ids).logits
    names = set(model.module.state_dict())
    async with running(model) as engine:
        engine.policy("writer").publish(get_peft_model_state_dict(trained(model, 1)))
        written = await engine.chat(ask(model="writer"))
        # A copy, as a trainer makes one, and the module in another thread, even while the policy writes.
        call = asyncio.ensure_future(engine.chat(ask(model="writer", max_tokens=10)))
        for module in (copy.deepcopy(model.module), model.module):
            with torch.no_grad():
                assert torch.equal(module(ids).logits, plain)
        await call
    assert set(model.module.state_dict()) == names
    assert golden(model, model.module, written) > 0.01


def test_over_the_endpoint_each_policy_is_a_model(store: SQLiteStore) -> None:
    openai = pytest.importorskip("openai")
    model = tiny()
    module = trained(model, 1)
    engine = EmbeddedEngine(model, max_new_tokens=6, policies=("writer", "checker"))
    app = create_app([engine], store, keys=KeyRing(required=False))
    with EndpointServer(app) as endpoint:
        client = openai.OpenAI(base_url=endpoint.base_url, api_key="any", max_retries=0)
        assert [one.id for one in client.models.list()] == ["tiny", "writer", "checker"]
        engine.policy("writer").publish(get_peft_model_state_dict(module))
        for name in ("tiny", "writer", "checker"):
            said = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "pay"}])
            assert said.model == name
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="rewriter", messages=[{"role": "user", "content": "pay"}])
    recorded = {call.model: call.weights_version for call in store.calls()}
    assert recorded == {"tiny": 0, "writer": 1, "checker": 0}
