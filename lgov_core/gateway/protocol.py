"""What stands between the endpoint's routes and a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

ANY_MODEL: Final = "*"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat completion as it was asked for. ``body`` is the client's JSON; the rest is read out of it, checked.

    ``messages`` and ``tools`` are in OpenAI form. ``max_tokens`` is a count of tokens, or None for the engine's limit.
    ``temperature`` 0 means greedy. ``seed`` is None unless the client asked for one.
    """

    body: Mapping[str, Any]
    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the model proposed it. ``arguments`` is the JSON text, which may be broken: the model wrote it."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completion:
    """What an engine answers.

    ``prompt_ids``, ``response_ids`` and ``logprobs`` are exact (see `lgov_core.types.CapturedCall`), or None where the
    engine cannot know them. ``text`` is the reply exactly as generated; ``content`` is the part of it that is not a tool
    call (None when there is nothing but calls). ``response_ids`` includes the end-of-turn token when one was generated;
    ``text`` does not. ``finish_reason`` is stop, length or tool_calls. ``raw`` is an upstream's own JSON body.
    """

    response_id: str
    model: str
    text: str
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    prompt_ids: tuple[int, ...] | None
    response_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    weights_version: int | None
    prompt_tokens: int
    completion_tokens: int
    raw: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """One server-sent event of a streamed reply: ``data`` is its JSON text, without the ``data:`` prefix.

    The last piece of a stream carries ``completion``, what the whole stream amounted to, and no data.
    """

    data: str = ""
    completion: Completion | None = field(default=None)


class Engine(Protocol):
    """Answers chat completions. All methods are called from the endpoint's event loop, many requests at once.

    ``models`` are the names it answers to. ``chat`` raises `EndpointError` for what it cannot do and `UpstreamError` when
    the server behind it failed. ``stream`` yields pieces as the client will see them and ends with exactly one piece that
    carries the completion; closing the iterator early cancels the call.
    """

    name: str

    @property
    def models(self) -> Sequence[str]:
        """Names this engine answers to; `ANY_MODEL` among them stands for every name no other engine has."""
        ...

    async def chat(self, request: ChatRequest) -> Completion:
        """The whole reply."""
        ...

    def stream(self, request: ChatRequest) -> AsyncIterator[StreamPiece]:
        """The reply piece by piece."""
        ...

    async def start(self) -> None:
        """Called once before the first request."""
        ...

    async def close(self) -> None:
        """Called once after the last request; fails what is still waiting."""
        ...
