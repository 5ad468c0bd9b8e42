"""Streams under a governor that only watches: each piece reaches the program when it comes, and the calls are captured."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Span
from tests.bench.adapters import ADAPTERS

pytest.importorskip("openai")

PACKAGES = {"langchain": "langchain_openai", "autogen": "autogen_ext", "openai-agents": "agents", "openai": "openai"}

#: Only keeps a program that is given nothing from waiting for ever.
PATIENCE_S = 30


@dataclass
class Kept:
    """The part of a store that a sink writes to."""

    spans: list[Span] = field(default_factory=list[Span])

    def add_span(self, span: Span) -> None:
        self.spans.append(span)

    def add_rewards(self, rewards: Any) -> None:
        raise AssertionError("nobody rewards here")

    def of(self, operation: str) -> list[Span]:
        return [span for span in self.spans if span.attributes.get(semconv.OPERATION) == operation]


#: Watches the program that runs now.
GOVERNORS: list[Governor] = []


@contextlib.contextmanager
def watched(framework: str, *, instrumented: bool = True) -> Generator[Kept]:
    store = Kept()
    manager = make_plugin_manager(builtin=(), third_party=False)
    governor = Governor(plugins=[StoreSink(store)], manager=manager, capture_content=True, observe_only=True)
    pytest.importorskip(PACKAGES[framework])
    adapter = importlib.import_module(ADAPTERS[framework])
    GOVERNORS.append(governor)
    if instrumented:
        adapter.instrument(governor)
    try:
        yield store
    finally:
        GOVERNORS.remove(governor)
        adapter.uninstrument()


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
async def test_what_came_before_a_connection_broke_off_reaches_the_program(program: str) -> None:
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


async def settled(done: Callable[[], bool]) -> None:
    """Waits for what the event loop does when a generator is dropped."""
    for _ in range(500):
        if done():
            return
        await asyncio.sleep(0.01)


# ---------------------------------------------------------------------- agents that stream


def script(body: Any) -> ScriptedReply:
    done = sum(message["role"] == "tool" for message in body["messages"])
    return ScriptedReply("done") if done == 2 else ScriptedReply(tool_calls=[ScriptedCall("add", {"a": done})])


async def run_openai(base_url: str) -> str:
    import openai

    one = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
    schema: Any = {"type": "function", "function": {"name": "add", "strict": True, "parameters": one}}
    messages: list[Any] = [{"role": "user", "content": "go"}]
    async with openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        while True:
            async with client.chat.completions.stream(model="m", messages=messages, tools=[schema]) as stream:
                message = (await stream.get_final_completion()).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return str(message.content)
            for call in message.tool_calls:
                number = json.loads(call.function.arguments)["a"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(number + 1)})


async def run_langchain(base_url: str) -> str:
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    async def add(a: int) -> str:
        """Adds one."""
        return str(a + 1)

    agent: Any = create_agent(ChatOpenAI(base_url=base_url, api_key=lambda: "k", model="m"), [add])
    said = ""
    async for message, _ in agent.astream({"messages": [("user", "go")]}, stream_mode="messages"):
        said += message.text
    return said.removeprefix("12")


async def run_autogen(base_url: str) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    async def add(a: int) -> str:
        """Adds one."""
        return str(a + 1)

    client = OpenAIChatCompletionClient(model="gpt-4o", base_url=base_url, api_key="k")
    agent = AssistantAgent("a", client, tools=[add], model_client_stream=True, max_tool_iterations=5)
    result = await agent.run(task="go")
    await client.close()
    return str(result.messages[-1].to_model_text())  # type: ignore[union-attr]


async def run_openai_agents(base_url: str) -> str:
    import openai
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool

    @function_tool
    async def add(a: int) -> str:
        """Adds one."""
        return str(a + 1)

    async with openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        agent = Agent("a", model=OpenAIChatCompletionsModel("m", client), tools=[add])
        run = Runner.run_streamed(agent, "go", run_config=RunConfig(tracing_disabled=True))
        async for _ in run.stream_events():
            pass
    return str(run.final_output)


AGENTS = {
    "openai": run_openai,
    "langchain": run_langchain,
    "autogen": run_autogen,
    "openai-agents": run_openai_agents,
}


@pytest.mark.parametrize("framework", AGENTS)
async def test_every_call_of_an_agent_that_streams_is_captured(framework: str) -> None:
    with watched(framework) as store, ScriptedModelServer(script) as server:
        assert await AGENTS[framework](server.base_url) == "done"
    calls, tools = store.of(semconv.CHAT), store.of(semconv.EXECUTE_TOOL)
    assert (len(calls), len(tools)) == (3, 2)
    assert not [span for span in (*calls, *tools) if semconv.ERROR_TYPE in span.attributes]
    assert [span.attributes[semconv.TOOL_RESULT] for span in tools] == ["1", "2"]
    assert all(span.attributes[semconv.RESPONSE_ID] for span in calls)
    assert {span.parent_id for span in tools} == {span.parent_id for span in calls}


async def hand_off_autogen(base_url: str) -> str:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    client = OpenAIChatCompletionClient(model="gpt-4o", base_url=base_url, api_key="k")
    agent = AssistantAgent("a", client, handoffs=["b"], model_client_stream=True)
    result = await agent.run(task="go")
    await client.close()
    return str(getattr(result.messages[-1], "target", None))


async def hand_off_openai_agents(base_url: str) -> str:
    import openai
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner

    async with openai.AsyncOpenAI(base_url=base_url, api_key="k") as client:
        model = OpenAIChatCompletionsModel("m", client)
        run = Runner.run_streamed(
            Agent("a", model=model, handoffs=[Agent("b", model=model)]),
            "go",
            run_config=RunConfig(tracing_disabled=True),
        )
        async for _ in run.stream_events():
            pass
    return run.last_agent.name


@pytest.mark.parametrize(
    ("framework", "program"), [("autogen", hand_off_autogen), ("openai-agents", hand_off_openai_agents)]
)
async def test_a_hand_off_in_a_stream_is_captured(framework: str, program: Callable[[str], Any]) -> None:
    asked = ScriptedReply(tool_calls=[ScriptedCall("transfer_to_b", {}, "call_0")])
    with watched(framework) as store, ScriptedModelServer([asked, ScriptedReply("done")]) as server:
        assert await program(server.base_url) == "b"
    (call,) = store.of(semconv.EXECUTE_TOOL)
    assert call.attributes[semconv.TOOL_STATUS] == "ok"
    assert call.attributes[semconv.TOOL_CALL_ID] == "call_0"


# ---------------------------------------------------------------------- streams that a program closes


async def test_a_model_s_own_stream_is_closed_with_the_one_that_the_program_reads() -> None:
    agents = pytest.importorskip("agents")
    closed: list[str] = []

    class Own(agents.Model):  # type: ignore[misc]
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

        async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            try:
                yield "first"
                yield "second"
            finally:
                closed.append("closed")

    with watched("openai-agents", instrumented=False) as store:
        from lgov_openai_agents import GovernedModel

        events: Any = GovernedModel(Own(), GOVERNORS[-1]).stream_response(None, "go", None, [], None, [], None)
        assert await anext(events) == "first"
        await events.aclose()
        assert closed == ["closed"]
    assert [span.attributes[semconv.ERROR_TYPE] for span in store.of(semconv.CHAT)] == ["GeneratorExit"]


async def test_a_client_s_own_stream_is_closed_with_the_one_that_the_program_reads() -> None:
    pytest.importorskip("autogen_ext")
    from autogen_core.models import ModelFamily, UserMessage
    from autogen_ext.models.replay import ReplayChatCompletionClient

    from lgov_autogen import GovernedChatCompletionClient

    closed: list[str] = []

    class Own(ReplayChatCompletionClient):
        async def create_stream(self, *args: Any, **kwargs: Any) -> Any:
            try:
                async for piece in super().create_stream(*args, **kwargs):
                    yield piece
            finally:
                closed.append("closed")

    info: Any = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True}
    inner = Own(["one two three"], model_info={**info, "family": ModelFamily.UNKNOWN})
    with watched("autogen", instrumented=False) as store:
        pieces: Any = GovernedChatCompletionClient(inner, GOVERNORS[-1]).create_stream(
            [UserMessage(content="go", source="user")]
        )
        assert str(await anext(pieces)).strip() == "one"
        await pieces.aclose()
        assert closed == ["closed"]
    assert [span.attributes[semconv.ERROR_TYPE] for span in store.of(semconv.CHAT)] == ["GeneratorExit"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_is_odd_about_a_reply_is_the_program_s_affair(streamed: bool) -> None:
    pytest.importorskip("autogen_ext")
    from autogen_core.models import CreateResult, ModelFamily, UserMessage
    from autogen_ext.models.replay import ReplayChatCompletionClient

    from lgov_autogen import GovernedChatCompletionClient

    odd: Any = CreateResult.model_construct(content="hi", finish_reason="stop", usage=None, cached=False)

    class Own(ReplayChatCompletionClient):
        async def create(self, *args: Any, **kwargs: Any) -> Any:
            return odd

        async def create_stream(self, *args: Any, **kwargs: Any) -> Any:
            yield None
            yield odd

    info: Any = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True}
    inner = Own([], model_info={**info, "family": ModelFamily.UNKNOWN})
    asked = [UserMessage(content="go", source="user")]
    with watched("autogen", instrumented=False) as store:
        client: Any = GovernedChatCompletionClient(inner, GOVERNORS[-1])
        if streamed:
            assert [piece async for piece in client.create_stream(asked)] == [None, odd]
        else:
            assert await client.create(asked) is odd
    assert [span.attributes[semconv.ERROR_TYPE] for span in store.of(semconv.CHAT)] == ["AttributeError"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_is_odd_about_a_model_s_reply_is_the_program_s_affair(streamed: bool) -> None:
    agents = pytest.importorskip("agents")
    from openai.types.responses import Response, ResponseCompletedEvent, ResponseOutputMessage

    message = ResponseOutputMessage.model_construct(id="m", type="message", role="assistant", content=None)
    response = Response.model_construct(id="r", output=[message], usage=None)
    event = ResponseCompletedEvent.model_construct(type="response.completed", response=response, sequence_number=0)
    odd = agents.ModelResponse(output=[message], usage=agents.Usage(), response_id="r")

    class Own(agents.Model):  # type: ignore[misc]
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            return odd

        async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            yield event

    asked = (None, "go", None, [], None, [], None)
    with watched("openai-agents", instrumented=False) as store:
        from lgov_openai_agents import GovernedModel

        model: Any = GovernedModel(Own(), GOVERNORS[-1])
        if streamed:
            assert [one async for one in model.stream_response(*asked)] == [event]
        else:
            assert await model.get_response(*asked) is odd
    assert [span.attributes[semconv.ERROR_TYPE] for span in store.of(semconv.CHAT)] == ["TypeError"]
