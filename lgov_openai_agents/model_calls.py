"""Governed model calls: what users said, the request, the reply, and the hand-offs that it proposes.

One path serves whole and streamed replies: a reply is a stream of events whose last item is the `ModelResponse`. The
events are withheld until the reply has been evaluated, or passed on as they come where nothing evaluates replies. Acts
that the SDK offers no other place to stop (hand-offs, acts on a computer) are evaluated here too: the model is told of a
denied one and asked again, and the run goes on with its next reply.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from agents import ModelResponse

from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.evaluated_call import model_call_covered
from lgov_openai_agents.model_exchange import ModelExchange
from lgov_openai_agents.model_request import ModelRequest
from lgov_openai_agents.runs import current_run


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
    if governor is None or model_call_covered(governor):
        return await get_response(*args, **kwargs)

    async def ask(asked: ModelRequest) -> AsyncIterator[Any]:
        yield await get_response(*asked.args, **asked.rest)

    request = ModelRequest.of(args, kwargs)
    async with aclosing(ModelExchange(governor, model, request, ask, current_run(governor), agent).reply()) as reply:
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
    if governor is None or model_call_covered(governor):
        async for event in stream_response(*args, **kwargs):
            yield event
        return

    def ask(asked: ModelRequest) -> AsyncIterator[Any]:
        return stream_response(*asked.args, **asked.rest)

    request = ModelRequest.of(args, kwargs)
    async with aclosing(ModelExchange(governor, model, request, ask, current_run(governor), agent).reply()) as reply:
        async for event in reply:
            if not isinstance(event, ModelResponse):
                yield event
