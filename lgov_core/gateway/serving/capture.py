"""Makes calls durable before they are acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from lgov_core.errors import LgovError, StoreError
from lgov_core.gateway.protocol import Engine
from lgov_core.gateway.serving.access import Attribution
from lgov_core.gateway.serving.limits import Admission
from lgov_core.store import TraceStore
from lgov_core.types import CapturedCall, new_id
from lgov_core.wire.apis import Exchange
from lgov_core.wire.exchange import Completion

#: The error text of every store for an id that it has.
_TAKEN = "exists already"


@dataclass(slots=True)
class Counters:
    """Counts of an endpoint's calls since it started; read and written in its event loop only.

    ``recorded`` calls are in the store; of those, ``without_token_ids`` cannot be trained on, ``unattributed`` belong to no
    rollout, ``cancelled`` were left by their client in mid-stream and ``renamed`` came with an id that the store had
    already. ``cancelled_unrecorded`` were left before there was anything to record; ``unrecorded`` could not be committed,
    so the client got an error. ``failed`` counts all requests answered with an error. The tokens are those of the recorded
    calls, ``commit_s`` the seconds that they waited to be durable, all together.
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
    renamed: int = 0

    def as_dict(self) -> dict[str, float]:
        """Counts by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """A call that the endpoint answers: what was asked, of which engine, by whom, since when (Unix seconds)."""

    exchange: Exchange
    engine: Engine
    who: Attribution
    started_at: float


class Capture:
    """Writes calls to the store, many at once, in the endpoint's event loop. Fails closed: no commit, no reply.

    A call whose engine does not report the version of its weights gets the one that ``admission`` received last.
    """

    def __init__(self, store: TraceStore | None, admission: Admission) -> None:
        self.counters = Counters()
        self._admission = admission
        self._store = store

    async def commit(self, received: ReceivedCall, completion: Completion, response: Mapping[str, Any]) -> None:
        """Returns once the call is durable, each choice of it a row of its own.

        A call whose id the store has already is recorded under a fresh id, and the response,
        in the record as for the client, keeps the upstream's. Raises `StoreError` when the call cannot be made durable.
        """
        if self._store is None:
            return
        add: Callable[[CapturedCall], Awaitable[None]]
        add = getattr(self._store, "add_call_async", None) or partial(asyncio.to_thread, self._store.add_call)
        calls = [
            self._captured(received, completion, response, number, choice)
            for number, choice in enumerate(completion.choices)
        ]
        try:
            try:
                await add(calls[0])
            except StoreError as error:
                if _TAKEN not in error.message:
                    raise
                fresh = new_id("call")
                calls = [replace(call, response_id=fresh) for call in calls]
                await add(calls[0])
                self.counters.renamed += 1
            if calls[1:]:  # the first one holds the id, so no other call can come in between
                await asyncio.gather(*map(add, calls[1:]))
        except LgovError:
            self.counters.unrecorded += 1
            raise
        except Exception as error:
            self.counters.unrecorded += 1
            raise StoreError(f"call {completion.response_id} could not be recorded: {error}") from error
        self.counters.recorded += len(calls)
        self.counters.prompt_tokens += completion.prompt_tokens
        self.counters.response_tokens += sum(choice.completion_tokens for choice in completion.choices)
        self.counters.commit_s += time.time() - calls[0].ended_at
        for call in calls:
            self.counters.unattributed += call.rollout_id is None
            self.counters.without_token_ids += call.prompt_ids is None or call.response_ids is None

    def _captured(
        self,
        received: ReceivedCall,
        completion: Completion,
        response: Mapping[str, Any],
        number: int,
        choice: Completion,
    ) -> CapturedCall:
        request, who = received.exchange.request, received.who
        if completion.more:  # a body with all choices in each of their rows would grow with the square of them
            in_order = sorted(response["choices"], key=lambda written: written.get("index") or 0)
            response = {**response, "choices": [in_order[number]]}
        version = self._admission.weights_version if choice.weights_version is None else choice.weights_version
        return CapturedCall(
            response_id=completion.response_id,
            model=completion.model or request.model,
            request=received.exchange.body,
            response=response,
            prompt_ids=choice.prompt_ids,
            response_ids=choice.response_ids,
            logprobs=choice.logprobs,
            finish_reason=choice.finish_reason,
            weights_version=version,
            temperature=request.temperature,
            top_p=request.top_p,
            started_at=received.started_at,
            ended_at=time.time(),
            rollout_id=who.rollout_id,
            attempt=who.attempt,
            agent=who.agent,
            tool_call_ids=tuple(call.call_id for call in choice.tool_calls if call.call_id),
            engine=received.engine.name,
            choice=number,
            route=received.exchange.api.route,
        )
