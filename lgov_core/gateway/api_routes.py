"""The routes of the model APIs, each alone and under a rollout's prefix, and the conversations that they remember."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.access import Access, RuledRoute, attribute, caller, grant_of
from lgov_core.gateway.capture import (
    Capture,
    ReceivedCall,
    StreamedReply,
    StreamJudging,
    as_lgov_error,
    left_out_headers,
)
from lgov_core.gateway.limits import ROLLOUT_PREFIX, json_response, read_object, retry_headers
from lgov_core.gateway.operation import IN_THE_LOG, for_client
from lgov_core.gateway.protocol import (
    ANY_MODEL,
    Attribution,
    Engine,
    Gate,
    GateRefusal,
    GateReply,
    GateRequest,
    UpstreamRejection,
    changed_exchange,
    changes_of,
    gate_replies,
    gate_request,
    model_entry,
    models_of,
    no_model,
    overflow_in,
    refusal_completion,
    speaks,
)
from lgov_core.types import new_id
from lgov_core.wire.apis import APIS, MESSAGES, RESPONSES, Api, Exchange, api_of
from lgov_core.wire.exchange import ChatRequest, Completion
from lgov_core.wire.fields import model_name, offered, shown
from lgov_core.wire.messages import read_messages_request
from lgov_core.wire.responses import chat_messages, input_messages
from lgov_core.wire.turns import read_events


class ApiRoutes:
    """The handlers of the model APIs, for one event loop.

    Each call goes to the engine that has its model, past ``gate`` if there is one, and is committed before its client
    learns that it is done. An engine that does not speak the API that is asked is asked for a chat completion, which is
    translated. ``max_body`` is in bytes. What no model can be offered is left out and named, or refused with
    ``strict_fields``. `routes` is what an application mounts; `on_error` is its handler for what a
    route raised.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        capture: Capture,
        *,
        allow_unattributed: bool,
        max_body: int,
        gate: Gate | None = None,
        strict_fields: bool = False,
    ) -> None:
        self._engines = tuple(engines)
        self._capture = capture
        self._allow_unattributed = allow_unattributed
        self._max_body = max_body
        self._gate = gate
        self._strict_fields = strict_fields
        self._memory = ResponseMemory()

    def routes(self) -> list[RuledRoute]:
        """Every route of the model APIs."""
        table: list[tuple[str, str, Callable[[Request], Any]]] = [
            *(("POST", api.path, partial(self._post, api)) for api in APIS),
            ("POST", "/messages/count_tokens", self.count_tokens),
            ("POST", "/embeddings", self.embeddings),
            ("GET", "/models", self.models),
            ("GET", "/models/{model:path}", self.models),
            ("GET", "/left_out", self.left_out),
        ]
        return [
            RuledRoute(f"{prefix}/v1{path}", handler, methods=[method], access=Access.AGENT, is_call=method == "POST")
            for prefix in ("", ROLLOUT_PREFIX)
            for method, path, handler in table
        ]

    def _engine_for(self, model: str) -> Engine:
        for name in (model, ANY_MODEL):
            for engine in self._engines:
                if name in engine.models:
                    return engine
        raise no_model(model, [name for engine in self._engines for name in engine.models])

    def _who(self, request: Request, *, allow_unattributed: bool) -> Attribution:
        grant = grant_of(request.scope)
        who = attribute(request.headers, request.path_params, grant, allow_unattributed=allow_unattributed)
        if grant.attempt is not None:  # the address is that of one attempt
            self._capture.refuse_ended(who)
        return who

    async def _read(self, request: Request) -> tuple[Attribution, Mapping[str, Any], Engine]:
        who = self._who(request, allow_unattributed=self._allow_unattributed)
        body = await read_object(request, self._max_body)
        return who, body, self._engine_for(model_name(body))

    async def _post(self, api: Api, request: Request) -> Response:
        """``POST`` of a model API."""
        return await self._answer(api, request, *await self._read(request))

    async def call(self, path: str, request: Request, body: Mapping[str, Any]) -> Response:
        """Answers ``body`` as a ``POST`` to ``path`` below ``/v1``; ``request`` names its rollout."""
        who = self._who(request, allow_unattributed=self._allow_unattributed)
        api = next(api for api in APIS if api.path == path)
        return await self._answer(api, request, who, body, self._engine_for(model_name(body)))

    async def _answer(
        self, api: Api, received: Request, who: Attribution, body: Mapping[str, Any], engine: Engine
    ) -> Response:
        """Reads, judges, makes and records one call: the reply as its client may get it."""
        self._capture.ready.require_store()
        started_at = time.time()
        body, left_out = self._offered(api, body, engine, who)
        call = ReceivedCall(self._exchange(api, who, body, engine), engine, who, started_at, left_out)
        # As the client asked: a text that was rewritten is rewritten in later calls too.
        keep = partial(self._keep, call)
        judged: GateRequest | None = None
        if self._gate is not None:
            try:
                call, judged = await self._admit(self._gate, call)
            except GateRefusal as refusal:
                return self._refused(call, refusal)
        request = call.exchange.request
        writer = call.exchange.reply_writer()
        if request.stream:
            return StreamedReply(  # type: ignore[return-value]
                call,
                engine.stream(request),
                self._capture,
                writer,
                partial(self.refuse, api=api),
                judging=None if judged is None else self._stream_judging(call, judged),
                kept=keep,
            )
        async with received.scope["lgov.request"].while_client_waits(), self._reporting(judged, engine):
            completion = await engine.chat(request)
        async with self._reporting(judged, engine):
            completion, reply, _ = writer.settle(completion)
            await self._capture.commit(call, completion, reply)
        if judged is not None and (instead := await self._release(call, judged, completion, reply)) is not None:
            reply = instead[0]
        keep(reply)
        return json_response(reply, headers=left_out_headers(left_out))

    def _offered(
        self, api: Api, body: Mapping[str, Any], engine: Engine, who: Attribution
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """The body without what cannot be offered, and the names of that. Raises `EndpointError` (400) where it is strict.

        A server that speaks the API gets everything, unless policies would have to judge what it does by itself.
        """
        if self._gate is None and api.route in getattr(engine, "speaks", ()):
            return body, ()
        native = api.route in speaks(engine)
        body, left_out = offered(api.route, body, lacks=getattr(engine, "lacks", ()), translated=not native)
        if left_out and self._strict_fields:
            raise EndpointError(
                f"{engine.name} cannot be offered {', '.join(left_out)}",
                hint="leave it out of the request; without strict_fields the endpoint leaves it out, and says so",
            )
        if left_out:
            self._capture.note_left_out(left_out, who)
        return body, left_out

    def _stream_judging(self, call: ReceivedCall, judged: GateRequest) -> StreamJudging:
        assert self._gate is not None
        passes_text = call.exchange.request.n == 1 and not self._gate.reads_replies()
        return StreamJudging(partial(self._release, call, judged), passes_text, partial(self._gate.failed, judged))

    @asynccontextmanager
    async def _reporting(self, judged: GateRequest | None, engine: Engine) -> AsyncGenerator[None]:
        """Reports to the gate what the block raises; what is not one of lgov's errors becomes one."""
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:
            if self._gate is not None and judged is not None:
                await self._gate.failed(judged, error)
            if isinstance(error, Exception) and not isinstance(error, LgovError):
                raise as_lgov_error(error, engine.name) from error
            raise

    def _exchange(self, api: Api, who: Attribution, body: Mapping[str, Any], engine: Engine) -> Exchange:
        """The call, read for ``engine``. Raises `EndpointError` (400, 404)."""
        if api.route in speaks(engine):
            if api is RESPONSES:
                self._memory.check(body, who)
            return Exchange.read(api, body, native=True)
        if "chat" not in speaks(engine):
            spoken = ", ".join(sorted(speaks(engine)))
            raise EndpointError(f"{engine.name} speaks {spoken} only, and {api.route} was asked of it")
        previous = body.get("previous_response_id") if api is RESPONSES else None
        if previous is not None and not (isinstance(previous, str) and previous):
            raise EndpointError("'previous_response_id' must be the id of a response")
        before = () if previous is None else self._memory.find(previous, who)
        return Exchange.read(api, body, native=False, before=before)

    def _keep(self, call: ReceivedCall, reply: Mapping[str, Any]) -> None:
        """Remembers a reply of the Responses API, which a later call may name."""
        exchange = call.exchange
        if exchange.api is not RESPONSES:
            return
        if exchange.native:
            self._memory.note(reply["id"], call.who)
        elif exchange.body.get("store") is not False:
            messages = [*input_messages(exchange.body), *chat_messages(reply["output"])]
            self._memory.keep(reply["id"], call.who, exchange.body.get("previous_response_id"), messages)

    async def _admit(self, gate: Gate, call: ReceivedCall) -> tuple[ReceivedCall, GateRequest]:
        """The call as it may be made, and as it was judged. What policies cannot read is refused."""
        exchange = call.exchange
        judged = gate_request(exchange.readable, exchange.api.route, exchange.body, call.who, exchange.fixed)
        admitted = await gate.admit(judged)
        if admitted is judged:
            return call, judged
        async with self._reporting(judged, call.engine):
            return replace(call, exchange=changed_exchange(exchange, judged, admitted)), admitted

    async def _release(
        self,
        call: ReceivedCall,
        judged: GateRequest,
        completion: Completion,
        body: Mapping[str, Any],
        passed_text: str = "",
        passed: bytes = b"",
    ) -> tuple[Mapping[str, Any], bytes] | None:
        """The body of a finished reply and the events that follow those ``passed``; None if the gate changed nothing."""
        assert self._gate is not None
        api, request = call.exchange.api, call.exchange.body
        replies = gate_replies(completion)
        try:
            changes = changes_of(replies, await self._gate.release(judged, replies), passed_text)
        except GateRefusal as refusal:
            if refusal.status != 200:
                raise
            denial = refusal_completion(refusal.text, completion.response_id, completion.model)
            return self._written(call, denial, passed)
        if not changes:
            return None
        body = api.changed_reply(body, changes)
        return body, api.events(request, body, read_events(passed.decode())) if call.exchange.request.stream else b""

    def _written(
        self, call: ReceivedCall, completion: Completion, passed: bytes = b""
    ) -> tuple[Mapping[str, Any], bytes]:
        """A completion that no engine wrote as the body, and as the events after those ``passed``, of a reply."""
        exchange = call.exchange
        _, body, _ = exchange.api.writer(exchange.request, exchange.body, completion.response_id).settle(completion)
        if not exchange.request.stream:
            return body, b""
        return body, exchange.api.events(exchange.body, body, read_events(passed.decode()))

    def _refused(self, call: ReceivedCall, refusal: GateRefusal) -> Response:
        """The answer to a call that was not made."""
        if refusal.status != 200:
            raise refusal
        exchange = call.exchange
        completion = refusal_completion(refusal.text, new_id(exchange.api.id_prefix), exchange.request.model)
        reply, events = self._written(call, completion)
        if not exchange.native:
            self._keep(call, reply)
        headers = left_out_headers(call.left_out)
        if exchange.request.stream:
            return Response(events, headers=headers, media_type="text/event-stream")
        return json_response(reply, headers=headers)

    async def count_tokens(self, request: Request) -> Response:
        """``POST .../v1/messages/count_tokens``."""
        who, body, engine = await self._read(request)
        body, left_out = self._offered(MESSAGES, body, engine, who)
        headers = left_out_headers(left_out)
        count = getattr(engine, "count_tokens", None)
        if count is None:
            raise EndpointError(f"{engine.name} cannot count the tokens of a prompt", status=404)
        is_native = "messages" in speaks(engine)
        chat_request = MESSAGES.native(body) if is_native else read_messages_request(body, counting=True)
        readable, ask = partial(read_messages_request, body, counting=True), partial(count, chat_request)
        counted = await self._judged("messages", who, body, engine, readable, ask, lambda _: 0)
        return json_response({"input_tokens": counted}, headers=headers)

    async def embeddings(self, request: Request) -> Response:
        """``POST .../v1/embeddings``: passed on, not recorded."""
        who, body, engine = await self._read(request)
        embed = getattr(engine, "embed", None)
        if embed is None or "embeddings" not in speaks(engine):
            raise EndpointError(f"{engine.name} makes no embeddings", status=404, hint="ask a model that does")
        ask = partial(embed, body)
        return json_response(
            await self._judged("embeddings", who, body, engine, partial(_texts_to_embed, body), ask, _prompt_tokens)
        )

    async def _judged(
        self,
        route: str,
        who: Attribution,
        body: Mapping[str, Any],
        engine: Engine,
        readable: Callable[[], ChatRequest],
        ask: Callable[[], Awaitable[Any]],
        used: Callable[[Any], int],
    ) -> Any:
        """The answer of ``ask``, which cannot carry a denial, if the gate lets the call through as it is. Fails closed.

        ``readable`` gives the call as policies read it, ``used`` the tokens of an answer. Raises `EndpointError`: 403 where a
        policy denied or changed the call, 503 where the judgement failed.
        """
        if self._gate is None:
            return await ask()
        judged = gate_request(readable(), route, body, who)
        try:
            admitted = await self._gate.admit(judged)
            async with self._reporting(judged, engine):
                if admitted is not judged:
                    raise EndpointError(f"a policy changed the call, which {route} cannot carry", status=403)
                reply = await ask()
            await self._gate.release(judged, [GateReply(new_id("emb"), "", (), "stop", used(reply), 0)])
            return reply
        except GateRefusal as refusal:
            if refusal.status != 200:
                raise
            raise GateRefusal(refusal.text, status=403, decision_id=refusal.decision_id) from refusal

    async def left_out(self, request: Request) -> Response:
        """``GET .../v1/left_out``: what the model of a rollout was not offered, with the number of calls."""
        return json_response(self._capture.left_out_of(self._who(request, allow_unattributed=True)))

    async def models(self, request: Request) -> Response:
        """``GET .../v1/models`` and ``GET .../v1/models/NAME``, for clients of either kind."""
        self._who(request, allow_unattributed=True)
        model = request.path_params.get("model")
        if model is not None:
            engine = self._engine_for(model)
            if {model, ANY_MODEL}.isdisjoint(names := await models_of(engine)):
                raise no_model(model, names)
            return json_response(model_entry(model, engine))
        named = [(name, engine) for engine in self._engines for name in await models_of(engine)]
        data = [model_entry(name, engine) for name, engine in named if name != ANY_MODEL]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return json_response({"object": "list", "data": data, "has_more": False, **ends})

    def refuse(self, error: LgovError, api: Api = APIS[0]) -> Response:
        """The response to an error, in the shape of its API; an upstream's refusal as the upstream wrote it.

        A refusal that the upstream wrote in the shape of another API is rewritten in this one's.
        """
        self._capture.counters.failed += 1
        cause, error = error, for_client(error)
        status = error.status if isinstance(error, EndpointError) else 500
        self._capture.note_failure(caller(), status, cause)
        if isinstance(error, UpstreamRejection):
            if error.route == api.route or api is not MESSAGES:
                headers = {**error.headers, "content-type": error.content_type}
                return Response(error.body, status, headers)
            told = overflow_in(error.body.decode(errors="replace")) or error
            return json_response(api.error_body(told, status), status, error.headers)
        return json_response(api.error_body(error, status), status, retry_headers(error))

    async def on_error(self, request: Request, error: Exception) -> Response:
        """Turns what a handler raised into a response."""
        api = api_of(request.url.path)
        if isinstance(error, LgovError):
            return self.refuse(error, api)
        if isinstance(error, HTTPException):
            what = f"{request.method} {request.url.path}: {error.detail}"
            hint = f"POST /v1 {', '.join(each.path for each in APIS)}, GET /v1/models and GET /healthz are there"
            return self.refuse(EndpointError(what, status=error.status_code, hint=hint), api)
        failed = EndpointError(f"the endpoint failed: {type(error).__name__}", status=500, hint=IN_THE_LOG)
        failed.__cause__ = error
        return self.refuse(failed, api)


def _texts_to_embed(body: Mapping[str, Any]) -> ChatRequest:
    """The input of an embedding, as policies read it. Raises `EndpointError` (400) for input that is not text."""
    raw = body.get("input")
    texts = raw if isinstance(raw, list) and raw else [raw]
    if not all(isinstance(text, str) for text in texts):
        raise EndpointError(f"policies cannot read the input {shown(raw)}", hint="send it as text")
    return ChatRequest(body, model_name(body), [{"role": "user", "content": text} for text in texts])


def _prompt_tokens(reply: Mapping[str, Any]) -> int:
    read: Any = reply.get("usage")
    tokens = read.get("prompt_tokens") if isinstance(read, dict) else None
    return tokens if type(tokens) is int else 0


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
            if turn is None or turn.whose != who.owner:
                raise _unknown(response_id)
            self._turns.move_to_end(following)
            parts.append(turn.messages)
            following = turn.previous
        return [message for messages in reversed(parts) for message in messages]

    def keep(self, response_id: str, who: Attribution, previous: str | None, messages: Sequence[Message]) -> None:
        """Keeps one turn: what was asked, without what came before, and what was answered."""
        size = len(repr(messages))
        self._turns[response_id] = _Turn(who.owner, previous, tuple(messages), size)
        self._bytes += size
        while len(self._turns) > _MOST_TURNS or (self._bytes > _MOST_BYTES and len(self._turns) > 1):
            _, dropped = self._turns.popitem(last=False)
            self._bytes -= dropped.size

    def note(self, response_id: str, who: Attribution) -> None:
        """Notes the owner of a response that the upstream keeps itself."""
        self._elsewhere.put(response_id, who.owner)

    def check(self, body: Mapping[str, Any], who: Attribution) -> None:
        """Raises `EndpointError` (404, 400) for a request that names what the upstream keeps and is not the caller's own.

        A call of a rollout may continue responses noted for that attempt only; other calls any that are not noted for
        another one.
        """
        previous = body.get("previous_response_id")
        whose = who.owner
        if previous is not None:
            noted = self._elsewhere.get(previous) if isinstance(previous, str) else None
            if noted != whose and (noted is not None or who.rollout_id is not None):
                raise _unknown(previous)
        if who.rollout_id is None:
            return
        items = body.get("input")
        kinds = [item.get("type") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        if body.get("conversation") is not None or "item_reference" in kinds:
            raise EndpointError(
                "a call of a rollout cannot name a conversation or items that the upstream keeps",
                hint="send the conversation as input, or previous_response_id",
            )


def _unknown(response_id: object) -> EndpointError:
    return EndpointError(
        f"the response {response_id!r}, which 'previous_response_id' names, is not known here",
        status=404,
        hint="send the conversation as input; a response is kept for a while, and in its own process: with several workers, "
        "all calls of a conversation have to reach the same process",
    )
