"""Governed model calls, for the models of an instrumented process and for those that a program gives to the SDK itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from operator import attrgetter
from typing import Any

from agents import Model, ModelProvider, ModelResponse, MultiProvider

from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.live_span import model_call_covered
from lgov_core.instrumentation.model_flow import model_flow
from lgov_core.instrumentation.streams import arun_stream
from lgov_openai_agents._internals import RunEndCleanup
from lgov_openai_agents.model_calls import AgentsCall
from lgov_openai_agents.proposals import ModelRequest
from lgov_openai_agents.runs import current_run


class GovernedModel(RunEndCleanup, Model):
    """``model`` under ``governor``; for ``Agent(model=...)`` or ``RunConfig(model=...)``.

    ``agent`` names the agent in decisions where the run is not governed as a whole. Serves any number of agents and
    tasks. A streamed reply is withheld until it has been evaluated, if anything evaluates it. Fails closed.
    """

    def __init__(self, model: Model, governor: Governor, *, agent: str | None = None) -> None:
        self.inner = model
        self.governor = governor
        self.agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """One governed call of the model."""
        inner = self.inner
        return await govern_response(self.governor, inner, inner.get_response, args, kwargs, self.agent)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """As `get_response`, in events."""
        inner = self.inner
        stream = govern_stream(self.governor, inner, inner.stream_response, args, kwargs, self.agent)
        async with aclosing(stream) as events:
            async for event in events:
                yield event

    get_retry_advice: Any = property(attrgetter("inner.get_retry_advice"))
    close: Any = property(attrgetter("inner.close"))


class GovernedModelProvider(ModelProvider):
    """``provider`` (default: the SDK's own) with every model governed; for ``RunConfig(model_provider=...)``.

    The SDK does not ask a provider for an agent whose ``model`` is an instance: give such an agent a `GovernedModel`.
    """

    def __init__(self, governor: Governor, provider: ModelProvider | None = None) -> None:
        self.governor = governor
        self.provider = provider if provider is not None else MultiProvider()

    def get_model(self, model_name: str | None) -> Model:
        """The governed model of that name."""
        return GovernedModel(self.provider.get_model(model_name), self.governor)

    async def aclose(self) -> None:
        """Closes the inner provider."""
        await self.provider.aclose()


async def govern_response(
    governor: Governor | None,
    model: Any,
    get_response: Callable[..., Awaitable[ModelResponse]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    agent: str | None = None,
) -> ModelResponse:
    """The governed reply of ``get_response``, a method of ``model``, to its arguments.

    ``agent`` names the agent where no run is known. Raises `PolicyDenied` where a decision says abort, or where the
    denial cannot replace the reply because the agent's output has a type. Without a governor, and inside a call that it
    has evaluated, the model answers. Callable from any task. Fails closed.
    """

    async def ask(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield await get_response(*args, **kwargs)

    async with aclosing(_reply(governor, model, ask, args, kwargs, agent)) as reply:
        async for event in reply:
            if isinstance(event, ModelResponse):
                return event
    raise RuntimeError(f"{type(model).__name__} gave no reply")


async def govern_stream(
    governor: Governor | None,
    model: Any,
    stream_response: Callable[..., AsyncIterator[Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    agent: str | None = None,
) -> AsyncGenerator[Any]:
    """As `govern_response`, for a reply in events."""
    async with aclosing(_reply(governor, model, stream_response, args, kwargs, agent)) as reply:
        async for event in reply:
            if not isinstance(event, ModelResponse):
                yield event


def _reply(
    governor: Governor | None,
    model: Any,
    ask: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    agent: str | None,
) -> AsyncGenerator[Any]:
    """The events of the reply, and the `ModelResponse`."""
    if governor is None or model_call_covered(governor):
        return ask(*args, **kwargs)
    request = ModelRequest.of(args, kwargs)
    ask_request = partial(_ask, ask)
    return arun_stream(model_flow(AgentsCall(governor, model, request, ask_request, current_run(governor), agent)))


def _ask(ask: Callable[..., AsyncIterator[Any]], request: ModelRequest) -> AsyncIterator[Any]:
    return ask(*request.args, **request.rest)
