"""A streamed reply reaches the program piece by piece while it is captured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv

pytest.importorskip("openai")
from tests.instrumentation.watched_programs import GOVERNORS, PATIENCE_S, settled, watched

# ---------------------------------------------------------------------- one reply in pieces


async def from_openai(base_url: str) -> AsyncIterator[str]:
    import openai

    async with openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        asked: Any = [{"role": "user", "content": "go"}]
        async for chunk in await client.chat.completions.create(model="m", messages=asked, stream=True):
            delta = chunk.choices[0].delta
            yield delta.content or "".join(str(call.function) for call in delta.tool_calls or ())


async def from_openai_in_a_thread(base_url: str) -> AsyncIterator[str]:
    import openai

    with openai.OpenAI(base_url=base_url, api_key="k") as client:
        asked: Any = [{"role": "user", "content": "go"}]
        chunks = await asyncio.to_thread(client.chat.completions.create, model="m", messages=asked, stream=True)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            delta = chunk.choices[0].delta
            yield delta.content or "".join(str(call.function) for call in delta.tool_calls or ())


async def from_langchain(base_url: str) -> AsyncIterator[str]:
    from langchain_openai import ChatOpenAI

    async for chunk in ChatOpenAI(base_url=base_url, api_key=lambda: "k", model="m").astream("go"):
        yield str(chunk.content) or "".join(str(call) for call in chunk.tool_call_chunks)


async def from_langchain_in_a_thread(base_url: str) -> AsyncIterator[str]:
    from langchain_openai import ChatOpenAI

    chunks = ChatOpenAI(base_url=base_url, api_key=lambda: "k", model="m").stream("go")
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield str(chunk.content) or "".join(str(call) for call in chunk.tool_call_chunks)


async def from_autogen(base_url: str) -> AsyncIterator[str]:
    from autogen_core.models import CreateResult, UserMessage
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    client = OpenAIChatCompletionClient(model="gpt-4o", base_url=base_url, api_key="k")
    async for piece in client.create_stream([UserMessage(content="go", source="user")]):
        yield "" if isinstance(piece, CreateResult) else piece
    await client.close()


async def from_autogen_wrapped(base_url: str) -> AsyncIterator[str]:
    from autogen_core.models import CreateResult, UserMessage
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    from lgov_autogen import GovernedChatCompletionClient

    inner = OpenAIChatCompletionClient(model="gpt-4o", base_url=base_url, api_key="k")
    client = GovernedChatCompletionClient(inner, GOVERNORS[-1])
    async for piece in client.create_stream([UserMessage(content="go", source="user")]):
        yield "" if isinstance(piece, CreateResult) else piece
    await client.close()


async def from_openai_agents(base_url: str) -> AsyncIterator[str]:
    import openai
    from agents import Agent, ModelBehaviorError, OpenAIChatCompletionsModel, RunConfig, Runner

    async with openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        agent = Agent("a", model=OpenAIChatCompletionsModel("m", client))
        run = Runner.run_streamed(agent, "go", run_config=RunConfig(tracing_disabled=True))
        with contextlib.suppress(ModelBehaviorError):  # the agent has no tools
            async for event in run.stream_events():
                if event.type == "raw_response_event":
                    yield str(getattr(event.data, "delta", ""))


PROGRAMS: dict[str, tuple[str, Callable[[str], AsyncIterator[str]]]] = {
    "openai": ("openai", from_openai),
    "openai, synchronous": ("openai", from_openai_in_a_thread),
    "langchain": ("langchain", from_langchain),
    "langchain, synchronous": ("langchain", from_langchain_in_a_thread),
    "autogen": ("autogen", from_autogen),
    "autogen's client, wrapped": ("autogen", from_autogen_wrapped),
    "openai-agents": ("openai-agents", from_openai_agents),
}
TEXT = ScriptedReply("one two three four")
CALL = ScriptedReply(tool_calls=[ScriptedCall("add", {"a": 1}, "call_0")])


#: AutoGen's streams bring text in pieces, and calls as a whole.
STREAMED = [(name, reply) for name in PROGRAMS for reply in (TEXT, CALL) if reply is TEXT or "autogen" not in name]


@pytest.mark.parametrize(("program", "reply"), STREAMED)
async def test_a_piece_reaches_the_program_before_the_next_is_sent(program: str, reply: ScriptedReply) -> None:
    framework, pieces = PROGRAMS[program]
    gate, got = threading.Event(), list[str]()
    held = ScriptedReply(reply.text, reply.tool_calls, gate=gate, gate_at=3)
    late = threading.Timer(PATIENCE_S, gate.set)
    late.start()
    with watched(framework, instrumented="wrapped" not in program) as store, ScriptedModelServer([held]) as server:
        before = 0
        async for piece in pieces(server.base_url):
            got.append(piece)
            if piece and not gate.is_set():
                before += 1
                gate.set()
        late.cancel()
    assert before == 1, f"all of it came at once: {got}"
    text = "".join(got)
    assert "one two three four" in text if reply is TEXT else '{"a"' in text.replace("\\", "")
    (call,) = store.of(semconv.CHAT)
    assert semconv.ERROR_TYPE not in call.attributes
    (message,) = json.loads(str(call.attributes[semconv.OUTPUT_MESSAGES]))
    assert message["content"] == (reply.text or "")
    assert [one["name"] for one in message.get("tool_calls", ())] == [one.name for one in reply.tool_calls]


@pytest.mark.parametrize("program", PROGRAMS)
async def test_pieces_before_a_broken_connection_reach_the_program(program: str) -> None:
    framework, pieces = PROGRAMS[program]
    cut = ScriptedReply("one two three four", cut_at=3)

    async def read(pieces: Callable[[str], AsyncIterator[str]]) -> tuple[list[str], str]:
        got = list[str]()
        with ScriptedModelServer([cut] * 9) as server:
            try:
                async for piece in pieces(server.base_url):
                    got.append(piece)
            except Exception as error:
                return got, type(error).__name__
        return got, ""

    bare = await read(from_autogen if framework == "autogen" else pieces)  # the wrapper needs a governor
    with watched(framework, instrumented="wrapped" not in program) as store:
        assert await read(pieces) == bare
    assert bare[1]
    assert "one" in "".join(bare[0])
    assert store.of(semconv.CHAT)
    for call in store.of(semconv.CHAT):
        assert semconv.ERROR_TYPE in call.attributes


@pytest.mark.parametrize(
    "program", [name for name in PROGRAMS if name != "openai-agents"]
)  # whose runs go on by themselves
async def test_a_program_may_read_no_further(program: str) -> None:
    framework, pieces = PROGRAMS[program]
    with watched(framework, instrumented="wrapped" not in program) as store, ScriptedModelServer([TEXT]) as server:
        reading: Any = pieces(server.base_url)
        async for piece in reading:
            if piece:
                break
        await reading.aclose()
    await settled(lambda: len(store.of(semconv.CHAT)) == 1)
    (call,) = store.of(semconv.CHAT)
    assert call.attributes[semconv.ERROR_TYPE] == "GeneratorExit"
