"""Which texts of a call at the endpoint are the user's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from lgov_core._util.bounded import BoundedDict
from lgov_core.gateway.protocol import GateRequest

if TYPE_CHECKING:
    from lgov_core.store import TraceStore

#: The number of attempts that are remembered, and of texts of one.
_ATTEMPTS: Final = 16_384
_TEXTS: Final = 512


@dataclass(slots=True)
class _Attempt:
    """The marks of the user's texts; ``open`` until the first reply."""

    open: bool
    texts: set[int] = field(default_factory=set[int])


class UserTexts:
    """Knows the texts with which attempts began: those in the user's role in the calls before the first reply.

    What comes after a reply, in whatever role, may be what a model wrote to another agent, or what a tool returned. Of a
    call without a rollout the messages before the first reply in it count; texts to be embedded never do. An attempt of
    which the store has calls and this object knows nothing has no user's texts. For one event loop.
    """

    def __init__(self, store: TraceStore | None) -> None:
        self._store = store
        self._attempts: BoundedDict[tuple[str, int], _Attempt] = BoundedDict(_ATTEMPTS)

    async def among(self, asked: GateRequest) -> list[str]:
        """The user's texts among the messages of ``asked``."""
        messages = [one for one in asked.messages if one["role"] != "system"]
        if asked.route == "embeddings":
            return []
        if asked.rollout_id is None or asked.attempt is None:
            return [one["content"] for one in takewhile(lambda one: one["role"] == "user", messages)]
        texts = [one["content"] for one in messages if one["role"] == "user" and one["content"]]
        attempt = await self._attempt(asked.rollout_id, asked.attempt)
        if attempt.open and len(attempt.texts) < _TEXTS:
            attempt.texts.update(map(hash, texts[:_TEXTS]))
        return [text for text in texts if hash(text) in attempt.texts]

    def replied(self, asked: GateRequest) -> None:
        """A model has replied to ``asked``."""
        if asked.rollout_id is not None and asked.attempt is not None:
            attempt = self._attempts.get((asked.rollout_id, asked.attempt))
            if attempt is not None:
                attempt.open = False

    async def _attempt(self, rollout_id: str, number: int) -> _Attempt:
        key = (rollout_id, number)
        if self._attempts.get(key) is None:
            begun = await asyncio.to_thread(self._has_begun, rollout_id, number)
            if self._attempts.get(key) is None:
                self._attempts.put(key, _Attempt(open=not begun))
        return self._attempts.get(key) or _Attempt(open=False)

    def _has_begun(self, rollout_id: str, number: int) -> bool:
        return self._store is not None and any(call.attempt == number for call in self._store.calls([rollout_id]))
