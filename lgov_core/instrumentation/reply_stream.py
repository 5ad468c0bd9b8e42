"""A model's streamed reply, fetched inside the span of its call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from lgov_core.instrumentation.model_call import ModelCall

T = TypeVar("T")

_END: Any = object()


async def reply_pieces(
    call: ModelCall,
    ask: Callable[[], AsyncIterator[T]],
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> AsyncGenerator[T]:
    """The pieces of the reply that ``ask`` gives, as they come; each is fetched inside the call's span and ``around``.

    Neither is open while the consumer handles a piece. What ``ask`` raises ends the call as failed and is raised; so
    does closing this generator early, which also closes the reply. A whole reply leaves the call open.
    """
    pieces: AsyncIterator[T] | None = None
    try:
        while True:
            with call.span.active(model=call.governor), around():
                pieces = aiter(ask()) if pieces is None else pieces
                piece = await anext(pieces, _END)
            if piece is _END:
                return
            yield piece
    except BaseException as error:
        call.failed(error)
        raise
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
