"""What ``previous_response_id`` stands for, for engines that do not keep it themselves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lgov_core.errors import EndpointError
from lgov_core.gateway.attribution import Attribution

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Turn:
    whose: tuple[str | None, int | None]
    previous: str | None
    messages: tuple[Message, ...]
    size: int


class ResponseMemory:
    """The latest conversations of the Responses API, as chat messages, in this process only.

    Each turn is kept once, with the id of the turn before it. Not more than ``most`` turns, and about ``most_bytes`` of
    text, are kept: the ones not used for longest go first, and a conversation that lost a turn is not found any more.
    Only calls of the same rollout and attempt find it. For one event loop.
    """

    def __init__(self, most: int = 4096, most_bytes: int = 64 * 1024 * 1024) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._turns: OrderedDict[str, _Turn] = OrderedDict()

    def find(self, response_id: str, who: Attribution) -> list[Message]:
        """The conversation up to and with that response. Raises `EndpointError` (404) where it is not known."""
        parts: list[tuple[Message, ...]] = []
        following: str | None = response_id
        while following is not None:
            turn = self._turns.get(following)
            if turn is None or turn.whose != (who.rollout_id, who.attempt):
                raise EndpointError(
                    f"the response {response_id!r}, which 'previous_response_id' names, is not known here",
                    status=404,
                    hint="send the conversation as input: it is kept for a while, and in this process only",
                )
            self._turns.move_to_end(following)
            parts.append(turn.messages)
            following = turn.previous
        return [message for part in reversed(parts) for message in part]

    def keep(self, response_id: str, who: Attribution, previous: str | None, messages: Sequence[Message]) -> None:
        """Keeps one turn: what was asked, without what came before, and what was answered."""
        size = len(repr(messages))
        self._turns[response_id] = _Turn((who.rollout_id, who.attempt), previous, tuple(messages), size)
        self._bytes += size
        while len(self._turns) > self._most or (self._bytes > self._most_bytes and len(self._turns) > 1):
            _, dropped = self._turns.popitem(last=False)
            self._bytes -= dropped.size
