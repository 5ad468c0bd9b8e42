"""Makes calls durable before they are acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lgov_core.errors import LgovError, StoreError
from lgov_core.gateway.attribution import Attribution
from lgov_core.gateway.protocol import ChatRequest, Completion
from lgov_core.store.protocol import TraceStore
from lgov_core.types import CapturedCall


@dataclass(slots=True)
class Counters:
    """What an endpoint has done since it started; read and written in its event loop only.

    ``recorded`` calls are in the store; of those, ``without_token_ids`` cannot be trained on and ``unattributed``
    belong to no rollout; ``cancelled`` were left by their client in mid-stream. ``cancelled_unrecorded`` were left
    before anything could be recorded. ``unrecorded`` calls could not be committed, so the client got an error.
    ``failed`` counts all requests answered with an error. ``prompt_tokens`` and ``response_tokens`` are those of the
    recorded calls, and ``commit_s`` the seconds that all of them together waited to be durable.
    """

    recorded: int = 0
    without_token_ids: int = 0
    unattributed: int = 0
    cancelled: int = 0
    cancelled_unrecorded: int = 0
    unrecorded: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    commit_s: float = 0.0

    def as_dict(self) -> dict[str, float]:
        """Counts by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request on its way: what was asked, of which engine, by whom, since when (Unix seconds)."""

    request: ChatRequest
    engine: str
    who: Attribution
    started_at: float


class Capture:
    """Writes calls to the store, many at once, in the endpoint's event loop. Fails closed: no commit, no reply."""

    def __init__(self, store: TraceStore | None) -> None:
        self.counters = Counters()
        #: What the weights count as where an engine does not say it: see `Admission.resume`.
        self.weights_version: int | None = None
        self._add: Callable[[CapturedCall], Awaitable[None]] | None = None
        if store is not None:
            self._add = getattr(store, "add_call_async", None) or _in_thread(store)

    async def commit(self, exchange: Exchange, completion: Completion, response: Mapping[str, Any]) -> None:
        """Returns once the call is durable. Raises `StoreError` when it cannot be made so."""
        if self._add is None:
            return
        request, who = exchange.request, exchange.who
        call = CapturedCall(
            response_id=completion.response_id,
            model=completion.model or request.model,
            request=request.body,
            response=response,
            prompt_ids=completion.prompt_ids,
            response_ids=completion.response_ids,
            logprobs=completion.logprobs,
            finish_reason=completion.finish_reason,
            weights_version=self.weights_version if completion.weights_version is None else completion.weights_version,
            temperature=request.temperature,
            top_p=request.top_p,
            started_at=exchange.started_at,
            ended_at=time.time(),
            rollout_id=who.rollout_id,
            attempt=who.attempt,
            agent=who.agent,
            tool_call_ids=tuple(call.call_id for call in completion.tool_calls if call.call_id),
            engine=exchange.engine,
        )
        try:
            await self._add(call)
        except LgovError:
            self.counters.unrecorded += 1
            raise
        except Exception as error:
            self.counters.unrecorded += 1
            raise StoreError(f"call {completion.response_id} could not be recorded: {error}") from error
        self.counters.recorded += 1
        self.counters.prompt_tokens += completion.prompt_tokens
        self.counters.response_tokens += completion.completion_tokens
        self.counters.commit_s += time.time() - call.ended_at
        self.counters.unattributed += who.rollout_id is None
        self.counters.without_token_ids += completion.prompt_ids is None or completion.response_ids is None


def _in_thread(store: TraceStore) -> Callable[[CapturedCall], Awaitable[None]]:
    async def add(call: CapturedCall) -> None:
        await asyncio.to_thread(store.add_call, call)

    return add
