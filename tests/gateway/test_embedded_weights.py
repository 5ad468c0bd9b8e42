"""The embedded engine under load: weights are swapped, failures stay within their batch."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from lgov_core.errors import EndpointError, ModelError
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.protocol import paused
from lgov_core.models import LanguageModel
from lgov_core.wire.exchange import Completion
from tests.gateway.embedded_engine import Weights, ask, assert_exact, running_engine
from tests.gateway.taught import tiny


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


async def test_weights_are_swapped_under_load_and_no_call_is_lost() -> None:
    model = tiny()
    original = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    versions: dict[int, Weights] = {0: original}
    async with running_engine(model, max_batch=5) as engine:

        async def client(number: int) -> list[Completion]:
            lengths = [2 + (number * 7 + turn * 3) % 20 for turn in range(6)]
            return [await engine.chat(ask(f"{number}", max_tokens=length)) for length in lengths]

        async def publisher() -> None:
            for seed in range(1, 6):
                fresh = {name: tensor.clone() for name, tensor in tiny(seed).module.state_dict().items()}
                version = await asyncio.to_thread(engine.publish, fresh)
                versions[version] = fresh
                assert engine.weights_version == version
                await engine.chat(ask("in between", max_tokens=1))

        results = await asyncio.gather(*map(client, range(10)), publisher())
    completions = [completion for client_results in results[:-1] for completion in client_results or ()]
    assert len(completions) == 60
    assert sorted(versions) == [0, 1, 2, 3, 4, 5]
    assert len({completion.weights_version for completion in completions}) > 1
    for completion in completions:
        assert completion.weights_version is not None
        assert_exact(model, completion, weights=versions[completion.weights_version])


async def test_bad_weights_change_nothing() -> None:
    model = tiny()
    async with running_engine(model) as engine:
        name, tensor = next(iter(model.module.state_dict().items()))
        before = {key: value.clone() for key, value in model.module.state_dict().items()}
        for bad, what in (
            ({name: tensor * 2, "no.such.weight": tensor}, "unknown to model 'tiny'"),
            ({name: tensor[:1]}, "the model's is"),
            ({name: tensor * float("nan")}, "not finite"),
        ):
            with pytest.raises(ModelError, match=what):
                engine.publish(bad)
        with pytest.raises(ModelError, match="cannot follow"):
            engine.publish({}, version=0)
        assert all(torch.equal(value, before[key]) for key, value in model.module.state_dict().items())
        assert engine.weights_version == 0
        # Published from the loop's own thread while a call is running.
        running = asyncio.ensure_future(engine.chat(ask(max_tokens=24)))
        await asyncio.sleep(0)
        assert engine.publish({name: tensor * 2}, version=37) == 37
        assert (await running).weights_version in (0, 37)
        after = await engine.chat(ask())
    assert after.weights_version == 37
    assert_exact(model, after)


async def test_pauses_are_counted() -> None:
    async with running_engine(tiny()) as engine:
        engine.pause()
        engine.pause()
        engine.resume()
        waiting = asyncio.ensure_future(engine.chat(ask()))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        engine.resume()
        await waiting
        with pytest.raises(ModelError, match="not paused"):
            engine.resume()
        await engine.chat(ask())


async def test_weights_may_change_while_paused() -> None:
    model = tiny()
    async with running_engine(model) as engine:
        await engine.chat(ask())
        await engine.chat(ask())
        with paused(engine), torch.no_grad():
            waiting = [asyncio.ensure_future(engine.chat(ask(str(n)))) for n in range(5)]
            await asyncio.sleep(0.05)
            assert not any(call.done() for call in waiting)
            for parameter in model.module.parameters():
                parameter.mul_(1.5)
            model.module.train()
            assert engine.publish({}) == 1
        for completion in await asyncio.gather(*waiting):
            assert completion.weights_version == 1
            assert_exact(model, completion)


async def test_a_failing_batch_fails_only_its_own_calls() -> None:
    model = tiny()
    (poison,) = model.text.encode("é")[:1]

    def refuse(module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        if (kwargs["input_ids"] == poison).any():
            raise RuntimeError("out of memory, say")

    handle = model.module.register_forward_pre_hook(refuse, with_kwargs=True)
    async with running_engine(model) as engine:
        with pytest.raises(EndpointError, match="out of memory, say") as caught:
            await engine.chat(ask("é", temperature=0.0))
        assert caught.value.status == 500
        handle.remove()
        assert_exact(model, await engine.chat(ask("fine")))


async def test_a_decoding_failure_reaches_the_whole_batch() -> None:
    model = tiny()
    countdown = [5]

    def give_up(module: torch.nn.Module, args: Any) -> None:
        countdown[0] -= 1
        if countdown[0] == 0:
            raise MemoryError

    handle = model.module.register_forward_pre_hook(give_up)
    async with running_engine(model) as engine:
        engine._worker.wait_s = 0.05
        results = await asyncio.gather(*(engine.chat(ask(str(n))) for n in range(4)), return_exceptions=True)
        failed = [result for result in results if isinstance(result, EndpointError)]
        assert failed
        assert all(result.status == 500 for result in failed)
        assert all(isinstance(result, Completion | EndpointError) for result in results)
        handle.remove()
        assert_exact(model, await engine.chat(ask()))


async def test_broken_weights_give_an_error_not_tokens() -> None:
    model = tiny()
    good = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    async with running_engine(model) as engine:
        with paused(engine), torch.no_grad():
            next(iter(model.module.parameters())).fill_(float("nan"))
        with pytest.raises(EndpointError, match="not finite"):
            await engine.chat(ask())
        engine.publish(good)
        assert_exact(model, await engine.chat(ask()))


async def test_closing_fails_what_waits() -> None:
    async with running_engine(tiny()) as engine:
        with paused(engine):
            waiting = [asyncio.ensure_future(engine.chat(ask(str(n)))) for n in range(3)]
            await asyncio.sleep(0)
            await engine.close()
        for result in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(result, EndpointError)
            assert result.status == 503
        with pytest.raises(EndpointError, match="closed"):
            await engine.chat(ask())
        with pytest.raises(EndpointError, match="closed"):
            engine.publish({})


async def test_before_the_start() -> None:
    engine = EmbeddedEngine(tiny())
    assert engine.publish({}) == 1
    with pytest.raises(EndpointError, match="not started"):
        await engine.chat(ask())
    await engine.close()


async def test_a_cancelled_call_leaves_its_batch() -> None:
    model = tiny()
    async with running_engine(model, max_batch=2) as engine:
        with paused(engine):
            cancelled = [asyncio.ensure_future(engine.chat(ask(str(n)))) for n in range(4)]
            await asyncio.sleep(0)
            for call in cancelled:
                call.cancel()
        assert_exact(model, await engine.chat(ask("still there")))
        assert all(
            [isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*cancelled, return_exceptions=True)]
        )


async def test_the_context_is_never_left() -> None:
    model = tiny()
    async with running_engine(model, max_new_tokens=1000) as engine:
        with pytest.raises(EndpointError, match=r"context length is 256 tokens.*resulted in \d+ tokens") as caught:
            await engine.chat(ask("x" * 300))
        assert caught.value.status == 400
        seeds = iter(range(50))
        completion = await engine.chat(ask("x", seed=next(seeds)))
        while completion.finish_reason != "length":
            completion = await engine.chat(ask("x" * 150, seed=next(seeds)))
        assert completion.prompt_tokens + completion.completion_tokens == 256
        assert_exact(model, completion)


async def test_requests_that_cannot_be() -> None:
    async with running_engine(tiny()) as engine:
        with pytest.raises(EndpointError, match="lone surrogate"):
            await engine.chat(ask("\ud800"))
        with pytest.raises(EndpointError, match="max_tokens"):
            await engine.chat(ask(max_tokens=0))
        assert await engine.chat(ask(seed=-(2**80)))


def test_a_model_with_another_kind_of_memory_is_refused() -> None:
    base = tiny()
    config = MistralConfig(
        vocab_size=len(base.tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=16,
    )
    model = LanguageModel(MistralForCausalLM(config), base.tokenizer, "sliding", "compact", frozenset({1}))
    with pytest.raises(ModelError, match="SlidingWindow"):
        EmbeddedEngine(model)
