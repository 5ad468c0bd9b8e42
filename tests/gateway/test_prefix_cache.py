"""What the embedded engine keeps of earlier calls: found again, exact, bounded, and gone when weights change."""

from __future__ import annotations

import asyncio
import inspect
import random
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from lgov_core.errors import EndpointError
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.engine.kv_cache import PrefixCache, shared_prefixes
from lgov_core.gateway.protocol import paused
from lgov_core.models import LanguageModel
from lgov_core.wire.exchange import ChatRequest, Completion
from tests.gateway.embedded_engine import ask, assert_exact, grouped_query_llama
from tests.gateway.taught import SYSTEM, tiny

LONG = {"role": "system", "content": "Answer from the company database, and from nothing else. " * 2}


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


class Reads:
    """Counts the tokens that a module is given."""

    def __init__(self, model: LanguageModel) -> None:
        self.tokens = 0
        model.module.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        if kwargs.keys() & {"cache", "past_key_values"}:
            self.tokens += kwargs["input_ids"].numel()


class Hold:
    """Holds the decoding thread at its n-th forward pass until the block ends."""

    def __init__(self, model: LanguageModel, forward: int) -> None:
        self.reached = asyncio.Event()
        self._left = forward
        self._go = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._handle = model.module.register_forward_pre_hook(self._wait)

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()
        self._go.set()

    def _wait(self, *_: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self._loop.call_soon_threadsafe(self.reached.set)
            self._go.wait(60)


async def turns(engine: EmbeddedEngine, number: int, count: int = 3, **more: Any) -> list[Completion]:
    """A rollout of several turns."""
    messages: list[Mapping[str, Any]] = [LONG, {"role": "user", "content": f"pay {number}"}]
    found: list[Completion] = []
    for turn in range(count):
        completion = await engine.chat(ChatRequest({}, "m", messages, max_tokens=6, seed=number * 9 + turn, **more))
        found.append(completion)
        reply = {"role": "assistant", "content": completion.content}
        messages = [*messages, reply, {"role": "user", "content": f"and {turn}?"}]
    return found


async def test_a_later_turn_reads_only_what_is_new() -> None:
    model = tiny()
    reads = Reads(model)
    engine = EmbeddedEngine(model, max_new_tokens=6)
    await engine.start()
    seen: tuple[int, ...] = ()
    kept = 0
    messages: list[Mapping[str, Any]] = [LONG, {"role": "user", "content": "How much?"}]
    for turn in range(4):
        before = reads.tokens
        completion = await engine.chat(ChatRequest({}, "m", messages, seed=turn))
        prompt = completion.prompt_ids or ()
        assert prompt[: len(seen)] == seen
        # Everything but the reply's last token, which nothing was computed from; and each new token but the last once.
        new = len(prompt) - kept
        assert reads.tokens - before == new + completion.completion_tokens - 1
        assert_exact(model, completion)
        seen = (*prompt, *(completion.response_ids or ()))
        kept = len(seen) - 1
        reply = {"role": "assistant", "content": completion.content}
        messages = [*messages, reply, {"role": "user", "content": f"{turn}"}]
    await engine.close()


async def test_what_several_prompts_begin_with_is_read_once() -> None:
    model = tiny()
    reads = Reads(model)
    engine = EmbeddedEngine(model, max_new_tokens=1, max_batch=6)
    engine._worker.wait_s = 0.2
    await engine.start()
    same = [LONG, {"role": "user", "content": "How much?"}]
    completions = await asyncio.gather(*(engine.chat(ChatRequest({}, "m", same, seed=n)) for n in range(6)))
    await engine.close()
    length = completions[0].prompt_tokens
    assert reads.tokens == length - 1 + 6, "the prompt once, its last token for each"
    for completion in completions:
        assert_exact(model, completion)


@pytest.mark.parametrize("keep_bytes", [0, 40_000, 1 << 20])
async def test_rollouts_are_exact_and_memory_is_bounded(keep_bytes: int) -> None:
    model = grouped_query_llama()
    engine = EmbeddedEngine(model, max_new_tokens=6, max_batch=5, keep_bytes=keep_bytes)
    await engine.start()
    rollouts = await asyncio.gather(*(turns(engine, number % 6) for number in range(12)))
    for completion in (completion for rollout in rollouts for completion in rollout):
        assert_exact(model, completion)
    # Other company changes nothing.
    assert [c.response_ids for c in rollouts[0]] == [c.response_ids for c in rollouts[6]]
    assert engine.kept_bytes <= keep_bytes
    assert (engine.kept_bytes > 0) == (keep_bytes > 0)
    await engine.close()


async def test_eager_attention_is_exact_too() -> None:
    model = grouped_query_llama()
    model.module.set_attn_implementation("eager")
    engine = EmbeddedEngine(model, max_new_tokens=6)
    await engine.start()
    for rollout in await asyncio.gather(*(turns(engine, number, 2) for number in range(3))):
        for completion in rollout:
            assert_exact(model, completion)
    await engine.close()


async def test_new_weights_forget_what_was_computed_with_the_old() -> None:
    model = tiny()
    engine = EmbeddedEngine(model, max_new_tokens=6)
    await engine.start()
    first = await engine.chat(ask(seed=1))
    assert engine.kept_bytes > 0
    engine.publish({name: tensor.clone() for name, tensor in tiny(5).module.state_dict().items()})
    assert engine.kept_bytes == 0
    second = await engine.chat(ask(seed=1))
    assert_exact(model, second)
    with paused(engine), torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(1.1)
    third = await engine.chat(ask(seed=1))
    assert_exact(model, third)
    assert first.prompt_ids == second.prompt_ids == third.prompt_ids
    await engine.close()


async def test_a_call_joins_and_leaves_a_running_batch() -> None:
    model = tiny()
    engine = EmbeddedEngine(model, max_new_tokens=40)
    await engine.start()
    # A seed whose reply is long: replies of this model end where chance has it.
    seed = 0
    while (await engine.chat(ask(seed=seed))).completion_tokens < 40:
        seed += 1
    with Hold(model, forward=4) as hold:
        long = asyncio.ensure_future(engine.chat(ask(seed=seed)))
        await hold.reached.wait()
        short = asyncio.ensure_future(engine.chat(ask("briefly", seed=1, max_tokens=2)))
        await asyncio.sleep(0)
        order: list[Any] = []
        for call in (long, short):
            call.add_done_callback(order.append)
    await asyncio.wait({long, short})
    assert order == [short, long]
    for call in (short, long):
        assert_exact(model, await call)
    await engine.close()


async def test_broken_output_of_a_new_call_stays_its_own() -> None:
    model = tiny()
    engine = EmbeddedEngine(model, max_new_tokens=40)
    await engine.start()
    seed = 0
    while (await engine.chat(ask(seed=seed))).completion_tokens < 40:
        seed += 1
    poison = model.text.encode("é")[0]
    embeddings: Any = model.module.get_input_embeddings()

    def spoil(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        # Every token of a prompt that has the poison in it; a token that is alone is somebody's reply.
        bad = (args[0] == poison).any(dim=1) & (args[0].shape[1] > 1)
        return output.masked_fill(bad[:, None, None], float("nan"))

    handle = embeddings.register_forward_hook(spoil)
    with Hold(model, forward=4) as hold:
        running = asyncio.ensure_future(engine.chat(ask(seed=seed)))
        await hold.reached.wait()
        poisoned = asyncio.ensure_future(engine.chat(ask("é é é é")))
        await asyncio.sleep(0)
    with pytest.raises(EndpointError, match="not finite"):
        await poisoned
    after = await engine.chat(ask("fine", max_tokens=3))
    whole = await running
    handle.remove()
    assert whole.completion_tokens == 40
    assert_exact(model, whole)
    assert_exact(model, after)
    await engine.close()


def pieces_of(ids: tuple[int, ...]) -> Any:
    """Two layers whose keys say which token it was and after how many others."""

    def give(start: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        told = torch.tensor([[float(token), float(place)] for place, token in enumerate(ids)])[start:][None]
        return [(told.clone(), -told.clone()) for _ in range(2)]

    return give


def test_the_tree_finds_the_longest_prefix() -> None:
    chance = random.Random(3)
    for limit in (10**9, 2000, 200):
        tree = PrefixCache(limit)
        put: list[tuple[int, ...]] = []
        for _ in range(150):
            base = chance.choice(put)[: chance.randrange(12)] if put and chance.random() < 0.7 else ()
            ids = (*base, *(chance.randrange(3) for _ in range(chance.randrange(1, 8))))
            tree.put("p", ids, pieces_of(ids))
            put.append(ids)
            tree.trim()
            assert tree.size <= limit
            asked = (*chance.choice(put)[: chance.randrange(12)], *(chance.randrange(3) for _ in range(4)))
            length, found = tree.longest("p", asked)
            if limit == 10**9:
                assert length == max(len(common_prefix(asked, one)) for one in put)
            # What is found is what was put for these very tokens, in order.
            for layer in range(2):
                keys = [segment.pieces[layer][0][:, :count] for segment, count in found]
                whole = torch.cat(keys, dim=1)[0] if keys else torch.empty(0, 2)
                assert whole.tolist() == [[token, place] for place, token in enumerate(asked[:length])]
            assert tree.longest("another", asked) == (0, [])
        assert tree.size == sum(segment.size for segment in tree._by_age)
        tree.forget("p")
        assert tree.size == 0
        assert tree.longest("p", put[0]) == (0, [])


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return left[:count]


def test_what_has_not_been_used_for_the_longest_time_goes_first() -> None:
    tree = PrefixCache(3 * 4 * 8 * 4)  # three sequences of four tokens: two layers, keys and values, two floats a token
    sequences = [(n, n, n, n) for n in range(1, 4)]
    for ids in sequences:
        tree.put("p", ids, pieces_of(ids))
    tree.trim()
    assert [tree.longest("p", ids)[0] for ids in (sequences[1], sequences[2], sequences[0])] == [4, 4, 4]
    tree.put("p", (9, 9, 9, 9), pieces_of((9, 9, 9, 9)))
    tree.trim()
    assert [tree.longest("p", ids)[0] for ids in (*sequences, (9, 9, 9, 9))] == [4, 0, 4, 4]


def test_which_beginnings_are_worth_reading_once() -> None:
    a, b = tuple(range(50)), tuple(range(100, 150))
    prompts = [(*a, 1, 2), (*a, 1, 3), (*a, *b, 7), (*a, *b, 8), (*a, *b, 8), (5,)]
    assert shared_prefixes(prompts, 48) == [[a], [(*a, *b)]]
    assert shared_prefixes(prompts, 1000) == []
    assert shared_prefixes([a], 1) == []
    assert shared_prefixes([a, a], 1) == [[a]]


def test_the_system_message_of_the_tests_is_long_enough() -> None:
    assert len(tiny().render([LONG])) > 50 > len(tiny().render([SYSTEM])) // 2


async def test_the_cache_goes_to_the_argument_of_that_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.24 renamed past_key_values to cache; 5.40 drops the old name."""
    model = tiny()
    plain = model.module.forward
    name = "cache" if "cache" in inspect.signature(plain).parameters else "past_key_values"

    def forward(input_ids: Any, *, cache: Any = None, **more: Any) -> Any:
        return plain(input_ids, **{name: cache}, **more)

    monkeypatch.setattr(model.module, "forward", forward)
    engine = EmbeddedEngine(model, max_new_tokens=6)
    await engine.start()
    for completion in await turns(engine, 0):
        assert_exact(model, completion)
    await engine.close()
