"""Makes calls durable before they are acknowledged: whole replies, and streamed ones piece by piece.

Every piece of a stream goes out as it comes, its end only after the call is recorded. What policies denied is written too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final, cast

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import AttemptEnded, EndpointError, LgovError, StoreError, UpstreamError
from lgov_core.gateway.door import requester
from lgov_core.gateway.limits import Admission, cut_short
from lgov_core.gateway.operation import IN_THE_LOG, Readiness, UseCounts, for_client, in_full, log_failure
from lgov_core.gateway.protocol import Attribution, Engine
from lgov_core.governor import ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.store import TraceStore
from lgov_core.store.database import DatabaseUnavailable
from lgov_core.types import CapturedCall, Effect, new_id
from lgov_core.wire.apis import Exchange
from lgov_core.wire.exchange import Completion, StreamPiece
from lgov_core.wire.reply_writer import ReplyWriter, text_in

#: The error text of every store for an id that it has.
_TAKEN = "exists already"
#: Names to a client, separated by semicolons, what its model was not offered.
LEFT_OUT_HEADER = "x-lgov-left-out"
#: Different lists of what was left out that the log names.
_MOST_NAMED = 256


@dataclass(slots=True)
class Counters:
    """Counts of an endpoint's calls since it started; read and written in its event loop only.

    ``recorded`` calls are in the store; of those, ``without_token_ids`` cannot be trained on, ``unattributed`` belong to no
    rollout, ``cancelled`` broke off in mid-stream, at their client or at the model, and ``renamed`` came with an id that the
    store had already. ``cancelled_unrecorded`` were left before there was anything to record; ``unrecorded`` could not be
    committed, for all that is known, so the client got an error. ``left_out`` counts calls whose model was not offered all
    that was asked for, ``after_end`` those answered after the end of their attempt, which are recorded as of no rollout,
    ``failed`` all requests answered with an error. The tokens are those of the recorded calls, ``commit_s`` the seconds that
    they waited to be durable, all together.
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
    left_out: int = 0
    after_end: int = 0

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
    left_out: tuple[str, ...] = ()


def left_out_headers(left_out: Sequence[str]) -> dict[str, str]:
    """The header that tells a client what its model was not offered."""
    return {LEFT_OUT_HEADER: "; ".join(left_out)} if left_out else {}


class Capture:
    """Writes calls to the store, many at once, in the endpoint's event loop. Fails closed: no commit, no reply.

    A call whose engine does not report the version of its weights gets the one that ``admission`` received last. ``ready``
    hears of commits that failed.
    """

    def __init__(
        self, store: TraceStore | None, admission: Admission, ready: Readiness, use: UseCounts | None = None
    ) -> None:
        self.counters = Counters()
        self._use = use or UseCounts(())
        self.ready = ready
        #: Of attempts whose last call failed by the machines: how.
        self.failures: BoundedDict[tuple[str | None, int | None], str] = BoundedDict(10_000)
        self._admission = admission
        self._store = store
        self._named: set[tuple[str, ...]] = set()
        self._left_out: BoundedDict[tuple[str | None, int | None], Counter[str]] = BoundedDict(10_000)

    async def commit(self, received: ReceivedCall, completion: Completion, response: Mapping[str, Any]) -> None:
        """Returns once the call is durable, each choice of it a row of its own.

        A call whose id the store has already is recorded under a fresh id, and the response,
        in the record as for the client, keeps the upstream's. One whose attempt has ended is recorded as of no rollout: it
        led to nothing that the attempt did. Raises `StoreError` when the call cannot be made durable.
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
            async with self.ready.committing():
                try:
                    await add(calls[0])
                except AttemptEnded:
                    calls = [_outside(call) for call in calls]
                    await add(calls[0])
                    self.counters.after_end += 1
                except StoreError as error:
                    if _TAKEN not in error.message:
                        raise
                    fresh = new_id("call")
                    calls = [replace(call, response_id=fresh) for call in calls]
                    await add(calls[0])
                    self.counters.renamed += 1
                if calls[1:]:  # the first one holds the id, so no other call can come in between
                    await asyncio.gather(*map(add, calls[1:]))
        except LgovError as error:
            self.counters.unrecorded += 1
            self.ready.commit_failed(error)
            raise
        except Exception as error:
            self.counters.unrecorded += 1
            # A store of another kind: nothing says that the next call can be recorded.
            failed = DatabaseUnavailable(f"call {completion.response_id} could not be recorded: {error}")
            self.ready.commit_failed(failed)
            raise failed from error
        if (sender := requester()) is not None:
            sender.call = calls[0].response_id
        self.failures.pop(received.who.owner)
        self.counters.recorded += len(calls)
        self.counters.prompt_tokens += completion.prompt_tokens
        self.counters.response_tokens += sum(choice.completion_tokens for choice in completion.choices)
        self.counters.commit_s += time.time() - calls[0].ended_at
        tokens = completion.prompt_tokens + sum(choice.completion_tokens for choice in completion.choices)
        self._use.add(received.who, len(calls), tokens)
        for call in calls:
            self.counters.unattributed += call.rollout_id is None
            self.counters.without_token_ids += call.prompt_ids is None or call.response_ids is None

    def refuse_ended(self, who: Attribution) -> None:
        """Raises `EndpointError` (410) for an attempt that this process has ended."""
        if (
            self._store is not None
            and who.rollout_id is not None
            and self._store.has_ended(who.rollout_id, who.attempt)
        ):
            ended = AttemptEnded(who.rollout_id, who.attempt)
            raise EndpointError(ended.message, status=410, hint=ended.hint)

    def note_failure(self, who: Attribution, status: int, error: LgovError) -> None:
        """Logs that a call failed, and keeps it if the machines did it: the engine, the upstream, a limit, the record."""
        log_failure(error, status, who)
        if who.rollout_id is not None and (status >= 500 or status in (408, 429)):
            self.failures.put(who.owner, f"{status} {in_full(error)}")

    def left_out_of(self, who: Attribution) -> Counter[str]:
        """The number of calls of that attempt from which each thing was left out, if it is one of the latest attempts."""
        return self._left_out.get(who.owner) or Counter()

    def note_left_out(self, left_out: tuple[str, ...], who: Attribution) -> None:
        """Counts a call from which that was left out; the log names it the first time."""
        self.counters.left_out += 1
        counts = self.left_out_of(who)
        if len(counts) < _MOST_NAMED and who.rollout_id is not None:
            self._left_out.put(who.owner, counts + Counter(left_out))
        if left_out not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(left_out)
            _LOG.warning("left out of a call, since its model cannot be offered it: %s", ", ".join(left_out))

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
        own_id = None if (sender := requester()) is None else sender.own_id
        notes = {"left_out": list(received.left_out), "forced": list(choice.forced), "request_id": own_id}
        if notes := {name: value for name, value in notes.items() if value}:
            own = response.get("lgov")
            response = {**response, "lgov": {**(own if isinstance(own, Mapping) else {}), **notes}}
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


def _outside(call: CapturedCall) -> CapturedCall:
    """A call of no rollout, which says of which it would have been."""
    would_be = {"rollout_id": call.rollout_id, "attempt": call.attempt}
    response = {**call.response, "lgov": {**(call.response.get("lgov") or {}), "after_end_of": would_be}}
    return replace(call, rollout_id=None, attempt=None, response=response)


_LOG = logging.getLogger("lgov.gateway")
_GONE: Final = "gone"
_ENDED: Final = "ended"

_Item = StreamPiece | Exception | str
_Send = Callable[[dict[str, Any]], Awaitable[None]]
_Receive = Callable[[], Awaitable[dict[str, Any]]]
#: Judges a finished reply with its body, of which the client has got a text, in these bytes: None passes the rest unchanged,
#: else the body and the bytes that replace the rest.
Release = Callable[[Completion, Mapping[str, Any], str, bytes], Awaitable[tuple[Mapping[str, Any], bytes] | None]]


def as_lgov_error(error: Exception, engine: str) -> LgovError:
    """An engine's error as one of lgov's; one that is not is a defect of the engine and is logged."""
    if isinstance(error, LgovError):
        return error
    _LOG.error("engine %s failed", engine, exc_info=error)
    failed = EndpointError(f"engine {engine} failed: {type(error).__name__}", status=500, hint=IN_THE_LOG)
    failed.__cause__ = error
    return failed


class _Outgoing:
    """The pieces of a stream that are ``ready`` to be sent, and those that are ``held`` until its end.

    ``passes_text``: the pieces that hold only text are ready until another one comes; their bytes are in ``passed``.
    """

    def __init__(self, passes_text: bool, *, holding: bool) -> None:
        self._passes_text = passes_text
        self._holding = holding
        self.ready: list[bytes] = []
        self.held: list[bytes] = []
        self.passed_text = ""
        self.passed = b""

    def add(self, piece: StreamPiece, written: bytes, ends: bool) -> None:
        """Takes what a piece became; ``ends`` if it tells the client that the reply is whole."""
        text = text_in(piece) if self._passes_text and not self._holding else None
        self._holding = self._holding or ends or (self._passes_text and text is None)
        if not self._holding and text is not None:
            self.passed_text, self.passed = self.passed_text + text, self.passed + written
        if written:
            (self.held if self._holding else self.ready).append(written)

    def taken(self) -> bytes:
        """Everything that is ready, which then is not any more."""
        written = b"".join(self.ready)
        self.ready.clear()
        return written


@dataclass(frozen=True, slots=True)
class StreamJudging:
    """How a streamed reply is judged.

    ``passes_text``: pieces that hold only text go out before, as they come. ``failed`` is told why ``release`` gets no reply.
    """

    release: Release
    passes_text: bool
    failed: Callable[[BaseException], Awaitable[None]]


class StreamedReply:
    """An ASGI response that relays one engine stream, as ``writer`` writes it.

    Each piece is sent when it comes; the one that completes the reply waits for the commit, and with ``judging``
    everything waits until the reply is judged, or everything from the first piece that has more than text. ``kept`` gets
    the body that the client gets, after the commit. An error before the first piece is an ordinary response
    (``error_response``), a later one an event of the API. When the client disconnects, the task is cancelled, or the engine
    fails after the first piece, its stream is closed and what came is recorded with the finish reason ``cancelled``.
    """

    def __init__(
        self,
        call: ReceivedCall,
        pieces: AsyncIterator[StreamPiece],
        capture: Capture,
        writer: ReplyWriter,
        error_response: Callable[[LgovError], Any],
        *,
        judging: StreamJudging | None,
        kept: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._call = call
        self._pieces = pieces
        self._capture = capture
        self._writer = writer
        self._error_response = error_response
        self._judging = judging
        self._kept = kept
        self._started = False
        self._is_over = False

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        """Relays the stream. Called once, by the server."""
        # One queue for pieces and for the client's leaving: whichever comes first is handled first.
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        pump = asyncio.create_task(self._pump(queue))
        watch = asyncio.create_task(self._watch(receive, queue))
        try:
            try:
                last = await self._relay(queue, send)
            except Exception as error:  # noqa: BLE001 - not swallowed: it is answered with
                last = error
            if last is _GONE:
                scope["lgov.request"].status = scope["lgov.request"].status or 499
                _ended_as("left by its client")
                await self._break_off(pump, queue, asyncio.CancelledError())
            elif isinstance(last, Exception):
                error = as_lgov_error(last, self._call.engine.name)
                _ended_as("broken off")
                with suppress(Exception):  # the client is told of the first error
                    await self._break_off(pump, queue, last)
                response = self._error_response(error)
                if self._started:
                    public = for_client(error)
                    failed = self._writer.failed(public, getattr(public, "status", 500))
                    await self._send(send, failed, more=False)
                else:
                    await response(scope, receive, send)
        except asyncio.CancelledError as cancelled:  # the server stops
            _ended_as("cut, since the server stopped")
            await self._break_off(pump, queue, cancelled)
            if self._started:
                await self._send(send, self._writer.failed(error := cut_short(), error.status), more=False)
            raise
        finally:
            pump.cancel()
            watch.cancel()
            await asyncio.gather(pump, watch, return_exceptions=True)

    async def _pump(self, queue: asyncio.Queue[_Item]) -> None:
        try:
            async with aclosing(cast("Any", self._pieces)) as pieces:
                async for piece in pieces:
                    queue.put_nowait(piece)
        except Exception as error:  # noqa: BLE001 - not swallowed: the relay answers with it
            queue.put_nowait(error)
        else:
            queue.put_nowait(_ENDED)

    @staticmethod
    async def _watch(receive: _Receive, queue: asyncio.Queue[_Item]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        queue.put_nowait(_GONE)

    async def _relay(self, queue: asyncio.Queue[_Item], send: _Send) -> Exception | str | None:
        """Sends until the reply is complete (None), or returns, or raises, what stopped it."""
        passes_text = self._judging is not None and self._judging.passes_text
        outgoing = _Outgoing(passes_text, holding=self._judging is not None and not passes_text)
        while True:
            if outgoing.ready and queue.empty():
                await self._send(send, outgoing.taken())
            item = await queue.get()
            if item is _GONE:
                return _GONE
            if isinstance(item, StreamPiece) and item.completion is None:
                outgoing.add(item, *self._writer.piece(item))
                continue
            if outgoing.ready:
                await self._send(send, outgoing.taken())
            if isinstance(item, Exception):
                return item
            if not isinstance(item, StreamPiece) or item.completion is None:
                return EndpointError(f"engine {self._call.engine.name} ended without a completion", status=500)
            reply, rest = await self._ended(item.completion, outgoing)
            self._kept(reply)
            await self._send(send, rest, more=False)
            return None

    async def _ended(self, completion: Completion, outgoing: _Outgoing) -> tuple[Mapping[str, Any], bytes]:
        """The reply as the client gets it, once it is recorded and judged: its body, and the bytes that are left of it."""
        self._is_over = True
        try:
            completion, body, last = await self._commit(completion)
        except (Exception, asyncio.CancelledError) as error:
            if self._judging is not None:
                await self._judging.failed(error)
            raise
        if self._judging is not None:
            changed = await self._judging.release(completion, body, outgoing.passed_text, outgoing.passed)
            if changed is not None:
                return changed
        return body, b"".join(outgoing.held) + last

    async def _commit(self, completion: Completion) -> tuple[Completion, Mapping[str, Any], bytes]:
        completion, body, last = self._writer.settle(completion)
        await self._capture.commit(self._call, completion, body)
        return completion, body, last

    async def _break_off(self, pump: asyncio.Task[None], queue: asyncio.Queue[_Item], error: BaseException) -> None:
        """Ends the engine's stream. Of a reply that is not whole it tells the gate why, and records what came, once."""
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)
        if self._is_over:
            return
        self._is_over = True
        if self._judging is not None:
            await self._judging.failed(error)
        try:
            while not queue.empty():
                item = queue.get_nowait()
                if isinstance(item, StreamPiece):
                    if item.completion is not None:  # it was complete: only its reader is gone
                        await self._commit(item.completion)
                        return
                    self._writer.piece(item)
            completion = self._writer.so_far()
        except UpstreamError:  # nothing that has an id came
            self._capture.counters.cancelled_unrecorded += not isinstance(error, Exception)
            return
        await self._commit(dataclasses.replace(completion, model=completion.model or self._call.exchange.request.model))
        self._capture.counters.cancelled += 1

    async def _send(self, send: _Send, body: bytes, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            named = left_out_headers(self._call.left_out)
            headers += [(name.encode(), value.encode()) for name, value in named.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})


def _ended_as(how: str) -> None:
    if (sender := requester()) is not None:
        sender.ended = how


class DenialSink:
    """Writes what policies denied or changed, or would have in shadow mode, to the store.

    What they allowed is in the audit record. Decisions have their reasons; arguments and results are in the recorded calls, as
    policies left them, and not in these spans.
    """

    def __init__(self, store: TraceStore, content: bool) -> None:
        from lgov_core.trace.sink import StoreSink

        self._decisions = StoreSink(store, content=content)
        self._others = StoreSink(store, content=False)

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        if not isinstance(event, ObservedDecision):
            self._others.lgov_observe(event)
        elif event.decision.effect > Effect.ALLOW or event.decision.unenforced:
            self._decisions.lgov_observe(event)
