"""Models and clients of a program's own, wrapped by an adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from lgov_core.trace import semconv

pytest.importorskip("openai")
from tests.instrumentation.watched_programs import GOVERNORS, watched


async def test_closing_a_stream_closes_the_models_own_stream() -> None:
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


async def test_closing_a_stream_closes_the_clients_own_stream() -> None:
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
async def test_a_malformed_client_reply_reaches_the_program(streamed: bool) -> None:
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
async def test_a_malformed_model_reply_reaches_the_program(streamed: bool) -> None:
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
