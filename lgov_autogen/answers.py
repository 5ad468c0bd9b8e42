"""A model's reply on its way to the caller, whole or in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autogen_core.models import CreateResult, LLMMessage


@dataclass(slots=True)
class Answer:
    """A reply, and the chunks it came in if it was streamed."""

    result: CreateResult
    chunks: list[str] = field(default_factory=list[str])

    def with_result(self, result: CreateResult) -> Answer:
        """The same chunks with another result; where the text is another, it is one chunk."""
        same = result.content is self.result.content or result.content == self.result.content
        if same and result.thought == self.result.thought:
            return Answer(result, self.chunks)
        text = result.content if isinstance(result.content, str) else result.thought or ""
        return Answer(result, [text] if self.chunks and text else [])


#: Asks the real client, with these messages and keyword arguments.
Send = Callable[[Sequence[LLMMessage], Mapping[str, Any]], Awaitable[Answer]]


async def streamed(answer: Awaitable[Answer]) -> AsyncIterator[str | CreateResult]:
    """A governed reply as a stream: its chunks, then the result."""
    ready = await answer
    for chunk in ready.chunks:
        yield chunk
    yield ready.result


async def collected(stream: AsyncIterator[str | CreateResult]) -> Answer:
    """Everything of a stream. Raises `RuntimeError` where it ends without a result."""
    chunks: list[str] = []
    result: CreateResult | None = None
    async for item in stream:
        if isinstance(item, CreateResult):
            result = item
        else:
            chunks.append(item)
    if result is None:
        raise RuntimeError("the model client's stream ended without a result")
    return Answer(result, chunks)
