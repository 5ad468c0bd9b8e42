"""A governor that only watches: the agents of the benchmark run as ever, and the sink of a store gets their spans."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Generator
from typing import Any

import pytest

from lgov_core.governor import Governor
from lgov_core.plugins import make_plugin_manager
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from lgov_core.trace import semconv
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Span
from tests.bench import adapter_agents as adapters

PACKAGES = {"langchain": "langchain_openai", "autogen": "autogen_ext", "openai-agents": "agents", "openai": "openai"}
CONTENT = (
    semconv.INPUT_MESSAGES,
    semconv.OUTPUT_MESSAGES,
    semconv.TOOL_ARGUMENTS,
    semconv.TOOL_RESULT,
    semconv.ERROR_MESSAGE,
)


class Kept:
    """The part of a store that a sink writes to."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add_span(self, span: Span) -> None:
        self.spans.append(span)

    def add_rewards(self, rewards: Any) -> None:
        raise AssertionError("nobody rewards here")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[ScriptedModelServer]:
    with ScriptedModelServer(adapters.script) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield running


@pytest.mark.parametrize("framework", adapters.FRAMEWORKS)
async def test_what_only_watches_captures_every_call(framework: str, server: ScriptedModelServer) -> None:
    pytest.importorskip(PACKAGES[framework])
    for content in (True, False):  # in one event loop: the frameworks keep their connections
        check(await captured(framework, content=content), content=content)


async def captured(framework: str, *, content: bool) -> list[Span]:
    store = Kept()
    manager = make_plugin_manager(builtin=(), third_party=False)
    plugins = [StoreSink(store, content=content)]
    governor = Governor(plugins=plugins, manager=manager, capture_content=content, observe_only=True)
    adapter = importlib.import_module(adapters.ADAPTERS[framework])
    adapter.instrument(governor)
    try:
        await adapters.AGENTS[framework]()(3)
    finally:
        adapter.uninstrument()
    return store.spans


def check(spans: list[Span], *, content: bool) -> None:
    chats = [span for span in spans if span.name.startswith("chat ")]
    tools = [span for span in spans if span.name == "execute_tool add"]
    assert (len(chats), len(tools)) == (4, 3)
    assert {span.attributes[semconv.TOOL_STATUS] for span in tools} == {"ok"}
    assert len({span.attributes[semconv.TOOL_CALL_ID] for span in tools}) == 3
    assert len({span.attributes[semconv.RESPONSE_ID] for span in chats}) == 4
    assert not [span for span in spans if span.name == semconv.DECISION_SPAN_NAME]
    if content:
        said = [json.loads(str(span.attributes[semconv.INPUT_MESSAGES])) for span in chats]
        assert [len([one for one in messages if one["role"] == "tool"]) for messages in said] == [0, 1, 2, 3]
        assert sorted(str(span.attributes[semconv.TOOL_RESULT]) for span in tools) == ["0", "1", "2"]
    else:
        assert not any(name in span.attributes for span in spans for name in CONTENT)


async def test_what_cannot_be_read_goes_on_where_nobody_judges() -> None:
    openai = pytest.importorskip("openai")
    httpx2 = pytest.importorskip("httpx2")
    from lgov_openai import govern_client

    def answer(request: Any) -> Any:
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=b'{"choices": 1}')

    store = Kept()
    manager = make_plugin_manager(builtin=(), third_party=False)
    governor = Governor(plugins=[StoreSink(store)], manager=manager, capture_content=True, observe_only=True)
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    async with openai.AsyncOpenAI(api_key="k", base_url="http://model.invalid/v1", http_client=http) as plain:
        client = govern_client(plain, governor)
        raw = await client.chat.completions.with_raw_response.create(
            model="m", messages=[{"role": "user", "content": "a"}]
        )
        assert raw.text == '{"choices": 1}'
    (span,) = store.spans
    assert span.attributes[semconv.ERROR_TYPE] == "TypeError"


def unknown_tool(body: Any) -> Any:
    asked = [message for message in body["messages"] if message["role"] == "tool"]
    return "done" if asked else ScriptedReply(tool_calls=[ScriptedCall("gone", {"a": 1}, "call_0")])


@pytest.mark.parametrize("kind", ["the usual model", "one with its own generate", "other middleware"])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_langchain_s_plain_agents_are_watched_where_their_calls_pass(
    kind: str, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without middleware of their own they get none of ours either: nothing of what it would show may be missing.
    pytest.importorskip("langchain_openai")
    from langchain.agents import middleware
    from langchain_core.outputs import LLMResult
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    import lgov_langchain

    class Own(ChatOpenAI):
        def generate(self, messages: Any, stop: Any = None, callbacks: Any = None, **kwargs: Any) -> Any:
            given = {name: kwargs[name] for name in ("tools",) if name in kwargs}
            return LLMResult(generations=[self._generate(one, **given).generations for one in messages])

        async def agenerate(self, messages: Any, stop: Any = None, callbacks: Any = None, **kwargs: Any) -> Any:
            return await asyncio.to_thread(self.generate, messages, **kwargs)

    @tool
    def add(a: int, b: int) -> str:
        """Adds."""
        return str(a + b)

    store = Kept()
    manager = make_plugin_manager(builtin=(), third_party=False)
    governor = Governor(plugins=[StoreSink(store)], manager=manager, capture_content=True, observe_only=True)
    with ScriptedModelServer(unknown_tool) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        model = (Own if kind == "one with its own generate" else ChatOpenAI)(
            model="scripted", max_retries=0, base_url=server.base_url
        )
        others: Any = [middleware.ModelRetryMiddleware()] if kind == "other middleware" else []
        lgov_langchain.instrument(governor)
        try:
            from langchain.agents import create_agent

            agent: Any = create_agent(model, [add], middleware=others, name="bench")
            asked = {"messages": [("user", "go")]}
            answer = await agent.ainvoke(asked) if asynchronous else await asyncio.to_thread(agent.invoke, asked)
        finally:
            lgov_langchain.uninstrument()
    assert answer["messages"][-1].text == "done"
    (run,) = [span for span in store.spans if span.name == "invoke_agent bench"]
    chats = [span for span in store.spans if span.name == "chat scripted"]
    (call,) = [span for span in store.spans if span.name == "execute_tool gone"]
    assert len(store.spans) == 4
    assert len(chats) == 2
    assert {span.parent_id for span in (*chats, call)} == {run.span_id}
    assert call.attributes[semconv.TOOL_STATUS] == "unknown_tool"
    assert call.attributes[semconv.AGENT_NAME] == "bench"
