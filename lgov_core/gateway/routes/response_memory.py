"""The conversations that ``previous_response_id`` names, and the owners of those that the upstream keeps."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lgov_core._util.bounded import BoundedDict
from lgov_core.errors import EndpointError
from lgov_core.gateway.serving.attribution import Attribution

Message = Mapping[str, Any]
#: A rollout and its attempt.
Owner = tuple[str | None, int | None]

#: The number of responses kept by an upstream whose owner is remembered.
_MOST_NOTED = 65_536
#: Turns, and bytes of text, that are kept here.
_MOST_TURNS = 4096
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Turn:
    whose: Owner
    previous: str | None
    messages: tuple[Message, ...]
    size: int


class ResponseMemory:
    """The latest conversations of the Responses API, as chat messages, in this process only.

    Each turn is kept once, with the id of the turn before it: at most 4,096 turns and about 64 MiB of text, least recently
    used first to go. Only calls of the same rollout and attempt find a conversation. For one event loop.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._turns: OrderedDict[str, _Turn] = OrderedDict()
        self._elsewhere: BoundedDict[str, Owner] = BoundedDict(_MOST_NOTED)

    def find(self, response_id: str, who: Attribution) -> list[Message]:
        """The conversation up to and with that response. Raises `EndpointError` (404) where it is not known."""
        parts: list[tuple[Message, ...]] = []
        following: str | None = response_id
        while following is not None:
            turn = self._turns.get(following)
            if turn is None or turn.whose != (who.rollout_id, who.attempt):
                raise _unknown(response_id)
            self._turns.move_to_end(following)
            parts.append(turn.messages)
            following = turn.previous
        return [message for part in reversed(parts) for message in part]

    def keep(self, response_id: str, who: Attribution, previous: str | None, messages: Sequence[Message]) -> None:
        """Keeps one turn: what was asked, without what came before, and what was answered."""
        size = len(repr(messages))
        self._turns[response_id] = _Turn((who.rollout_id, who.attempt), previous, tuple(messages), size)
        self._bytes += size
        while len(self._turns) > _MOST_TURNS or (self._bytes > _MOST_BYTES and len(self._turns) > 1):
            _, dropped = self._turns.popitem(last=False)
            self._bytes -= dropped.size

    def note(self, response_id: str, who: Attribution) -> None:
        """Notes the owner of a response that the upstream keeps itself."""
        self._elsewhere.put(response_id, (who.rollout_id, who.attempt))

    def check(self, body: Mapping[str, Any], who: Attribution) -> None:
        """Raises `EndpointError` (404, 400) for a request that names what the upstream keeps and is not the caller's own.

        A call of a rollout may continue responses noted for that attempt only; other calls any that are not noted for
        another one.
        """
        previous = body.get("previous_response_id")
        whose = (who.rollout_id, who.attempt)
        if previous is not None:
            noted = self._elsewhere.get(previous) if isinstance(previous, str) else None
            if noted != whose and (noted is not None or who.rollout_id is not None):
                raise _unknown(previous)
        if who.rollout_id is None:
            return
        items = body.get("input")
        kinds = [one.get("type") for one in items if isinstance(one, dict)] if isinstance(items, list) else []
        if body.get("conversation") is not None or "item_reference" in kinds:
            raise EndpointError(
                "a call of a rollout cannot name a conversation or items that the upstream keeps",
                hint="send the conversation as input, or previous_response_id",
            )


def _unknown(response_id: object) -> EndpointError:
    return EndpointError(
        f"the response {response_id!r}, which 'previous_response_id' names, is not known here",
        status=404,
        hint="send the conversation as input: it is kept for a while, and in this process only",
    )
