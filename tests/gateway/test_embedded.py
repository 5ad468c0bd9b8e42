"""The embedded engine: exact tokens and log-probabilities, weights swapped under load, failures that stay small."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from lgov_core.errors import EndpointError, ModelError
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.gateway.protocol import ChatRequest, Completion
from lgov_core.models import LanguageModel
from tests.gateway.taught import SYSTEM, TOOLS, tiny

Weights = Mapping[str, torch.Tensor]
Running = Callable[..., AbstractAsyncContextManager[EmbeddedEngine]]


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


def grouped_query_llama() -> LanguageModel:
    """A Llama with shared key/value heads and untied embeddings, its weights large enough to be opinionated."""
    base = tiny()
    config = LlamaConfig(
        vocab_size=len(base.tokenizer),
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = LlamaForCausalLM(config).eval()
    return LanguageModel(module, base.tokenizer, "llama", "compact", frozenset({1}))


@asynccontextmanager
async def _running(model: LanguageModel, **options: Any) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(model, **{"max_new_tokens": 24, **options})
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def ask(content: str = "How much?", *, model: str = "tiny", system: bool = True, **more: Any) -> ChatRequest:
    messages = [*([SYSTEM] if system else []), {"role": "user", "content": content}]
    return ChatRequest(**{"body": {}, "model": model, "messages": messages, **more})


def recomputed(
    model: LanguageModel, completion: Completion, temperature: float = 1.0, weights: Weights | None = None
) -> torch.Tensor:
    """The log-probabilities of a reply by one plain forward pass: no cache, no padding, no batch."""
    assert completion.prompt_ids is not None
    assert completion.response_ids is not None
    ids = torch.tensor([[*completion.prompt_ids, *completion.response_ids]])
    with torch.no_grad():
        if weights is None:
            logits = model.module(ids, use_cache=False).logits
        else:
            # The output layer is tied to the embeddings.
            untied = {name: tensor for name, tensor in weights.items() if name != "lm_head.weight"}
            logits = torch.func.functional_call(model.module, untied, (ids,), {"use_cache": False}).logits
    start = len(completion.prompt_ids)
    logprobs = torch.log_softmax(logits[0, start - 1 : -1].float() / temperature, dim=-1)
    return logprobs.gather(-1, ids[0, start:, None])[:, 0]


def assert_exact(
    model: LanguageModel, completion: Completion, temperature: float = 1.0, weights: Weights | None = None
) -> None:
    expected = recomputed(model, completion, temperature, weights)
    assert completion.logprobs is not None
    assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)
    ids = completion.response_ids or ()
    ended = ids[-1] == model.end_id
    assert model.decode(ids[:-1] if ended else ids) == completion.text
    assert completion.completion_tokens == len(ids)
    assert (completion.finish_reason == "length") != ended


@pytest.mark.parametrize("make", [tiny, grouped_query_llama])
async def test_logprobs_are_those_of_a_plain_forward_pass(make: Callable[[], LanguageModel]) -> None:
    model = make()

    async def rollout(engine: EmbeddedEngine, number: int) -> None:
        temperature = (0.7, 1.0, 1.3)[number % 3]
        # Some share a system message, some do not; lengths differ; some end early.
        messages: list[Mapping[str, Any]] = [SYSTEM] if number % 4 else []
        messages.append({"role": "user", "content": "pay " * (number % 7) + str(number)})
        for turn in range(3):
            request = ChatRequest(
                body={}, model="m", messages=messages, temperature=temperature, max_tokens=3 + (number * 5 + turn) % 20
            )
            completion = await engine.chat(request)
            assert_exact(model, completion, temperature)
            reply = {"role": "assistant", "content": completion.content}
            messages = [*messages, reply, {"role": "user", "content": f"and {turn}?"}]

    async with _running(model, max_batch=6) as engine:
        await asyncio.gather(*(rollout(engine, number) for number in range(20)))


async def test_a_seed_decides_the_reply_whatever_else_is_in_the_batch() -> None:
    async with _running(tiny()) as engine:
        alone = await engine.chat(ask(seed=7))
        others = [ask("pay " * n, seed=n) for n in range(12)]
        among = (await asyncio.gather(*map(engine.chat, [*others, ask(seed=7), ask(seed=8)])))[-2:]
    assert among[0].response_ids == alone.response_ids
    assert among[1].response_ids != alone.response_ids


async def test_without_a_seed_the_engine_draws_its_own_reproducibly() -> None:
    replies: list[list[Any]] = []
    for seed in (1, 1, 2):
        async with _running(tiny(), seed=seed) as engine:
            replies.append([(await engine.chat(ask())).response_ids for _ in range(3)])
    assert replies[0] == replies[1] != replies[2]
    assert len(set(replies[0])) == 3


async def test_temperature_zero_takes_the_likeliest_token() -> None:
    model = tiny()
    async with _running(model) as engine:
        first, second = await asyncio.gather(engine.chat(ask(temperature=0.0)), engine.chat(ask(temperature=1e-9)))
    assert first.response_ids == second.response_ids
    ids = torch.tensor([[*(first.prompt_ids or ()), *(first.response_ids or ())]])
    with torch.no_grad():
        likeliest = model.module(ids).logits[0, len(first.prompt_ids or ()) - 1 : -1].argmax(-1)
    assert tuple(likeliest.tolist()) == first.response_ids
    assert_exact(model, first)


async def test_top_p_narrows_the_choice_but_not_the_logprob() -> None:
    model = grouped_query_llama()
    async with _running(model) as engine:
        completions = await asyncio.gather(*(engine.chat(ask(str(n), top_p=0.4, seed=n)) for n in range(8)))
        free = await engine.chat(ask("0", seed=0))
    for completion in completions:
        assert_exact(model, completion)
        ids = torch.tensor([[*(completion.prompt_ids or ()), *(completion.response_ids or ())]])
        with torch.no_grad():
            weights = model.module(ids).logits[0, len(completion.prompt_ids or ()) - 1 : -1].double().softmax(-1)
        for row, token in zip(weights, completion.response_ids or (), strict=True):
            heavier = row[row > row[token]].sum()
            assert heavier < 0.4 + 1e-6
    assert free.response_ids != completions[0].response_ids


async def test_weights_are_swapped_under_load_and_no_call_is_lost() -> None:
    model = tiny()
    original = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    versions: dict[int, Weights] = {0: original}
    async with _running(model, max_batch=5) as engine:

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


async def test_part_of_the_weights_can_be_published_and_bad_ones_change_nothing() -> None:
    model = tiny()
    async with _running(model) as engine:
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


async def test_while_paused_nothing_is_decoded_and_weights_may_be_changed() -> None:
    model = tiny()
    async with _running(model) as engine:
        await engine.chat(ask())
        await engine.chat(ask())
        with engine.pause(), torch.no_grad():
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
    async with _running(model) as engine:
        with pytest.raises(EndpointError, match="out of memory, say") as caught:
            await engine.chat(ask("é", temperature=0.0))
        assert caught.value.status == 500
        handle.remove()
        assert_exact(model, await engine.chat(ask("fine")))


async def test_a_failure_in_the_midst_of_decoding_reaches_everyone_in_the_batch() -> None:
    model = tiny()
    countdown = [5]

    def give_up(module: torch.nn.Module, args: Any) -> None:
        countdown[0] -= 1
        if countdown[0] == 0:
            raise MemoryError

    handle = model.module.register_forward_pre_hook(give_up)
    async with _running(model, max_wait_ms=50) as engine:
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
    async with _running(model) as engine:
        with engine.pause(), torch.no_grad():
            next(iter(model.module.parameters())).fill_(float("nan"))
        with pytest.raises(EndpointError, match="not finite"):
            await engine.chat(ask())
        engine.publish(good)
        assert_exact(model, await engine.chat(ask()))


async def test_closing_fails_what_waits() -> None:
    async with _running(tiny()) as engine:
        with engine.pause():
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
    async with _running(model, max_batch=2) as engine:
        with engine.pause():
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
    async with _running(model, max_new_tokens=1000) as engine:
        with pytest.raises(EndpointError, match=r"the prompt has \d+ tokens.*holds 256") as caught:
            await engine.chat(ask("x" * 300))
        assert caught.value.status == 400
        seeds = iter(range(50))
        completion = await engine.chat(ask("x", seed=next(seeds)))
        while completion.finish_reason != "length":
            completion = await engine.chat(ask("x" * 150, seed=next(seeds)))
        assert completion.prompt_tokens + completion.completion_tokens == 256
        assert_exact(model, completion)


async def test_requests_that_cannot_be() -> None:
    async with _running(tiny()) as engine:
        with pytest.raises(EndpointError, match="no Unicode text"):
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


async def test_a_later_prompt_repeats_the_generated_tokens() -> None:
    # Random weights write tokens that the tokenizer itself would not choose for the same text, and broken UTF-8.
    model = tiny()
    tokenised_otherwise = 0
    async with _running(model) as engine:
        for number in range(6):
            messages: list[Mapping[str, Any]] = [SYSTEM, {"role": "user", "content": str(number)}]
            seen: tuple[int, ...] = ()
            for turn in range(4):
                completion = await engine.chat(ChatRequest({}, "tiny", messages))
                assert completion.prompt_ids is not None
                assert completion.response_ids is not None
                assert completion.prompt_ids[: len(seen)] == seen
                tokenised_otherwise += tuple(model.render(messages)) != completion.prompt_ids
                seen = (*completion.prompt_ids, *completion.response_ids)
                reply = {"role": "assistant", "content": completion.content}
                messages = [*messages, reply, {"role": "user", "content": f"{turn}"}]
            # The same history with another text is not taken for the same.
            changed = [*messages[:2], {"role": "assistant", "content": "something else"}, *messages[3:]]
            completion = await engine.chat(ChatRequest({}, "tiny", changed))
            assert model.decode(completion.prompt_ids or ()) == model.decode(model.render(changed))
    assert tokenised_otherwise > 0


async def test_tool_calls_and_a_history_that_the_client_wrote_anew(taught: LanguageModel) -> None:
    async with _running(taught) as engine:
        first = await engine.chat(ask(tools=TOOLS, temperature=0.0))
        assert first.text == "@run_sql SELECT 12"
        assert first.content is None
        assert first.finish_reason == "tool_calls"
        (call,) = first.tool_calls
        assert (call.name, json.loads(call.arguments)) == ("run_sql", {"query": "SELECT 12"})
        # A client parses the arguments and writes them again in its own way.
        function = {"name": "run_sql", "arguments": '{"query":"SELECT 12"}'}
        again = {"id": call.call_id, "type": "function", "function": function}
        history: list[Mapping[str, Any]] = [
            SYSTEM,
            {"role": "user", "content": "How much?"},
            {"role": "assistant", "content": "", "tool_calls": [again]},
            {"role": "tool", "tool_call_id": call.call_id, "content": "12"},
        ]
        second = await engine.chat(ChatRequest({}, "tiny", history, tools=TOOLS, temperature=0.0))
    assert second.content == "Answer: 12"
    assert (second.finish_reason, second.tool_calls) == ("stop", ())
    seen = (*(first.prompt_ids or ()), *(first.response_ids or ()))
    assert (second.prompt_ids or ())[: len(seen)] == seen
    assert_exact(taught, second)


async def test_no_tools_offered_no_tool_calls(taught: LanguageModel) -> None:
    prompt = [{"role": "system", "content": f"{SYSTEM['content']}\nTools: run_sql(query)"}]
    async with _running(taught) as engine:
        messages = [*prompt, {"role": "user", "content": "How much?"}]
        completion = await engine.chat(ChatRequest({}, "tiny", messages, temperature=0.0))
    assert (completion.content, completion.tool_calls) == ("@run_sql SELECT 12", ())


async def test_a_reply_that_was_cut_off_proposes_nothing(taught: LanguageModel) -> None:
    async with _running(taught) as engine:
        whole = await engine.chat(ask(tools=TOOLS, temperature=0.0))
        short = await engine.chat(ask(tools=TOOLS, temperature=0.0, max_tokens=whole.completion_tokens - 2))
    assert short.text.startswith("@run_sql SELECT")
    assert (short.finish_reason, short.tool_calls) == ("length", ())
    assert short.content == short.text


async def test_stop_strings_end_the_reply_and_are_not_part_of_it(taught: LanguageModel) -> None:
    async with _running(taught) as engine:
        completion = await engine.chat(ask(tools=TOOLS, temperature=0.0, stop=("never", "LECT")))
    assert completion.finish_reason == "tool_calls"
    assert json.loads(completion.tool_calls[0].arguments) == {"query": "SE"}
    assert completion.text == taught.decode(completion.response_ids or ())
    assert "LECT" in completion.text


async def test_a_stream_amounts_to_the_completion(taught: LanguageModel) -> None:
    async with _running(taught) as engine:
        pieces = [piece async for piece in engine.stream(ask(tools=TOOLS, temperature=0.0))]
        *chunks, last = pieces
        deltas = [json.loads(piece.data)["choices"][0] for piece in chunks]
        assert last.completion is not None
        (call,) = last.completion.tool_calls
    (sent,) = [tool for delta in deltas for tool in delta["delta"].get("tool_calls", ())]
    assert (sent["id"], sent["function"]["arguments"]) == (call.call_id, call.arguments)
    assert deltas[-1]["finish_reason"] == "tool_calls"
