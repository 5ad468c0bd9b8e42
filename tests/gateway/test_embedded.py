"""The embedded engine: exact tokens and log-probabilities, and replies that later prompts repeat."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import torch

from lgov_core.errors import EndpointError
from lgov_core.gateway.engine.embedded import EmbeddedEngine
from lgov_core.models import LanguageModel
from lgov_core.wire.exchange import ChatRequest
from tests.gateway.embedded_engine import ask, assert_exact, grouped_query_llama, running_engine
from tests.gateway.taught import SYSTEM, TOOLS, tiny


@pytest.fixture(autouse=True)
def _few_threads() -> None:
    torch.set_num_threads(1)


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

    async with running_engine(model, max_batch=6) as engine:
        await asyncio.gather(*(rollout(engine, number) for number in range(20)))


async def test_a_seed_decides_the_reply_whatever_else_is_in_the_batch() -> None:
    async with running_engine(tiny()) as engine:
        alone = await engine.chat(ask(seed=7))
        others = [ask("pay " * n, seed=n) for n in range(12)]
        among = (await asyncio.gather(*map(engine.chat, [*others, ask(seed=7), ask(seed=8)])))[-2:]
    assert among[0].response_ids == alone.response_ids
    assert among[1].response_ids != alone.response_ids


async def test_without_a_seed_the_engine_draws_its_own_reproducibly() -> None:
    replies: list[list[Any]] = []
    for seed in (1, 1, 2):
        async with running_engine(tiny(), seed=seed) as engine:
            replies.append([(await engine.chat(ask())).response_ids for _ in range(3)])
    assert replies[0] == replies[1] != replies[2]
    assert len(set(replies[0])) == 3


async def test_temperature_zero_takes_the_likeliest_token() -> None:
    model = tiny()
    async with running_engine(model) as engine:
        first, second = await asyncio.gather(engine.chat(ask(temperature=0.0)), engine.chat(ask(temperature=1e-9)))
    assert first.response_ids == second.response_ids
    ids = torch.tensor([[*(first.prompt_ids or ()), *(first.response_ids or ())]])
    with torch.no_grad():
        likeliest = model.module(ids).logits[0, len(first.prompt_ids or ()) - 1 : -1].argmax(-1)
    assert tuple(likeliest.tolist()) == first.response_ids
    assert_exact(model, first)


async def test_top_p_narrows_the_choice_but_not_the_logprob() -> None:
    model = grouped_query_llama()
    async with running_engine(model) as engine:
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


async def test_a_later_prompt_repeats_the_generated_tokens() -> None:
    # Random weights write tokens that the tokenizer itself would not choose for the same text, and broken UTF-8.
    model = tiny()
    tokenised_otherwise = 0
    async with running_engine(model) as engine:
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
    async with running_engine(taught) as engine:
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
    async with running_engine(taught) as engine:
        messages = [*prompt, {"role": "user", "content": "How much?"}]
        completion = await engine.chat(ChatRequest({}, "tiny", messages, temperature=0.0))
    assert (completion.content, completion.tool_calls) == ("@run_sql SELECT 12", ())


async def test_a_reply_that_was_cut_off_proposes_nothing(taught: LanguageModel) -> None:
    async with running_engine(taught) as engine:
        whole = await engine.chat(ask(tools=TOOLS, temperature=0.0))
        short = await engine.chat(ask(tools=TOOLS, temperature=0.0, max_tokens=whole.completion_tokens - 2))
    assert short.text.startswith("@run_sql SELECT")
    assert (short.finish_reason, short.tool_calls) == ("length", ())
    assert short.content == short.text


async def test_stop_strings_end_the_reply_and_are_not_part_of_it(taught: LanguageModel) -> None:
    async with running_engine(taught) as engine:
        completion = await engine.chat(ask(tools=TOOLS, temperature=0.0, stop=("never", "LECT")))
    assert completion.finish_reason == "tool_calls"
    assert json.loads(completion.tool_calls[0].arguments) == {"query": "SE"}
    assert completion.text == taught.decode(completion.response_ids or ())
    assert "LECT" in completion.text


async def test_a_stream_amounts_to_the_completion(taught: LanguageModel) -> None:
    async with running_engine(taught) as engine:
        pieces = [piece async for piece in engine.stream(ask(tools=TOOLS, temperature=0.0))]
        *chunks, last = pieces
        deltas = [json.loads(piece.data)["choices"][0] for piece in chunks]
        assert last.completion is not None
        (call,) = last.completion.tool_calls
    (sent,) = [tool for delta in deltas for tool in delta["delta"].get("tool_calls", ())]
    assert (sent["id"], sent["function"]["arguments"]) == (call.call_id, call.arguments)
    assert deltas[-1]["finish_reason"] == "tool_calls"


def slowed(model: LanguageModel, entered: list[int]) -> Callable[[], None]:
    """Makes each layer take 0.3 s and note its number when it begins; returns what undoes that."""

    def before(number: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            entered.append(number)
            time.sleep(0.3)

        return hook

    layers = cast("Any", model.module).model.layers
    handles = [layer.register_forward_pre_hook(before(number)) for number, layer in enumerate(layers)]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


async def began(entered: list[int]) -> None:
    while not entered:
        await asyncio.sleep(0.01)


async def test_a_prompt_whose_client_leaves_is_given_up_and_the_others_go_on_as_before() -> None:
    model = tiny()
    async with running_engine(model) as engine:
        alone = await engine.chat(ask(seed=7))
    entered: list[int] = []
    async with running_engine(model) as engine:
        running = asyncio.create_task(engine.chat(ask(seed=7)))
        await asyncio.sleep(0.01)
        undo = slowed(model, entered)
        leaving = asyncio.create_task(engine.chat(ask("pay " * 40, seed=1)))
        await asyncio.sleep(0.1)
        leaving.cancel()
        undo()
        assert (await running).response_ids == alone.response_ids
        assert (await engine.chat(ask(seed=7))).response_ids == alone.response_ids


async def test_an_engine_ends_while_a_prompt_is_read() -> None:
    model, entered = tiny(), list[int]()
    layers = len(cast("Any", model.module).model.layers)
    engine = EmbeddedEngine(model)
    await engine.start()
    undo = slowed(model, entered)
    reading = asyncio.create_task(engine.chat(ask("pay " * 40)))
    await began(entered)
    await engine.close()
    undo()
    with pytest.raises(EndpointError, match="the engine is closed"):
        await reading
    assert layers > 1
    assert entered == [0], "the layers behind the first were read"


async def test_a_prompt_that_is_left_before_its_second_layer_is_not_read_further() -> None:
    model, entered = tiny(), list[int]()
    async with running_engine(model) as engine:
        undo = slowed(model, entered)
        leaving = asyncio.create_task(engine.chat(ask("pay " * 40)))
        await began(entered)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await asyncio.sleep(0.8)
        undo()
    assert entered == [0], "the layers behind the first were read"
