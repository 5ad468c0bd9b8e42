"""The routes of the model APIs, each alone and under a rollout's prefix."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from lgov_core.errors import EndpointError, LgovError
from lgov_core.gateway.policy.gate_calls import gate_replies, gate_request, refusal_completion, released, with_contents
from lgov_core.gateway.protocol import ANY_MODEL, Engine, Gate, GateRefusal, GateRequest, speaks
from lgov_core.gateway.routes.bodies import ROLLOUT_PREFIX, json_response, read_object
from lgov_core.gateway.routes.embeddings import judged_answer, judged_embeddings
from lgov_core.gateway.routes.response_memory import ResponseMemory
from lgov_core.gateway.serving.access import Access, RuledRoute, grant_of
from lgov_core.gateway.serving.attribution import Attribution, attribute
from lgov_core.gateway.serving.capture import Capture, Exchange
from lgov_core.gateway.serving.limits import retry_headers
from lgov_core.gateway.serving.streaming import StreamedReply, as_lgov_error
from lgov_core.gateway.upstream.received import UpstreamRejection
from lgov_core.types import new_id
from lgov_core.wire.apis import APIS, MESSAGES, RESPONSES, Api, api_of
from lgov_core.wire.completions import readable_prompts
from lgov_core.wire.exchange import ChatRequest, Completion, StreamPiece
from lgov_core.wire.fields import model_name
from lgov_core.wire.messages import read_messages_request
from lgov_core.wire.reply_writer import written_anew
from lgov_core.wire.request_texts import with_texts
from lgov_core.wire.responses import chat_messages, input_messages


@dataclass(slots=True)
class _Call:
    """One call: what the client asked for of which engine, how the engine is asked, and what the gate admitted."""

    api: Api
    who: Attribution
    body: Mapping[str, Any]
    engine: Engine
    asked: ChatRequest
    judged: GateRequest | None = None
    #: Whether a policy changed the messages, which only what the engine is asked then has.
    rewritten: bool = False

    @property
    def native(self) -> bool:
        """Whether the engine is asked in the API of the client."""
        return self.asked.route == self.api.route

    def written(self, completion: Completion, passed: Sequence[StreamPiece] = ()) -> tuple[Mapping[str, Any], bytes]:
        """A finished completion as the body, and as the events after those ``passed``, of the reply."""
        writer = self.api.rewrite(self.asked, self.body, completion.response_id)
        return written_anew(completion, self.asked, writer, passed)


class ApiRoutes:
    """The handlers of the model APIs, for one event loop.

    Each call goes to the engine that has its model, past ``gate`` if there is one, and is committed before its client
    learns that it is done. An engine that does not speak the API that is asked is asked for a chat completion, which is
    translated. ``max_body`` is in bytes. `routes` is what an application mounts; `on_error` is its handler for what a
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
    ) -> None:
        self._engines = tuple(engines)
        self._capture = capture
        self._allow_unattributed = allow_unattributed
        self._max_body = max_body
        self._gate = gate
        self._memory = ResponseMemory()

    def routes(self) -> list[RuledRoute]:
        """Every route of the model APIs."""
        table: list[tuple[str, str, Callable[[Request], Any]]] = [
            *(("POST", api.path, partial(self._post, api)) for api in APIS),
            ("POST", "/messages/count_tokens", self.count_tokens),
            ("POST", "/embeddings", self.embeddings),
            ("GET", "/models", self.models),
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
        raise EndpointError(f"there is no model {model!r}", status=404, hint=f"there are: {', '.join(self._models())}")

    def _models(self) -> list[str]:
        return [name for engine in self._engines for name in engine.models if name != ANY_MODEL]

    def _who(self, request: Request, *, allow_unattributed: bool) -> Attribution:
        grant = grant_of(request.scope)
        return attribute(request.headers, request.path_params, grant, allow_unattributed=allow_unattributed)

    async def _read(self, request: Request) -> tuple[Attribution, Mapping[str, Any], Engine]:
        who = self._who(request, allow_unattributed=self._allow_unattributed)
        body = await read_object(request, self._max_body)
        return who, body, self._engine_for(model_name(body))

    async def _post(self, api: Api, request: Request) -> Response:
        """``POST`` of a model API."""
        return await self._answer(api, *await self._read(request))

    async def call(self, path: str, request: Request, body: Mapping[str, Any]) -> Response:
        """Answers ``body`` as a ``POST`` to ``path`` below ``/v1``; ``request`` names its rollout."""
        who = self._who(request, allow_unattributed=self._allow_unattributed)
        api = next(api for api in APIS if api.path == path)
        return await self._answer(api, who, body, self._engine_for(model_name(body)))

    async def _answer(self, api: Api, who: Attribution, body: Mapping[str, Any], engine: Engine) -> Response:
        started_at = time.time()
        if api.route in speaks(engine):
            if api is RESPONSES:
                self._memory.check(body, who)
            asked = api.native(body)
        else:
            asked = self._translated(api, body, who, engine)
        call = _Call(api, who, body, engine, asked)
        if self._gate is not None:
            try:
                await self._admit(self._gate, call)
            except GateRefusal as refusal:
                return self._refused(call, refusal)
        sent = call.asked.body if call.native or call.rewritten else call.body  # as policies left it
        exchange = Exchange(call.asked, engine.name, who, started_at, api.route, sent)
        writer = api.pass_on(call.asked) if call.native else api.rewrite(call.asked, body, new_id(api.id_prefix))
        if call.asked.stream:
            return StreamedReply(  # type: ignore[return-value]
                exchange,
                self._stream(call),
                self._capture,
                writer,
                partial(self.refuse, api=api),
                release=None if call.judged is None else partial(self._release, call),
                passes_text=self._gate is not None and call.asked.n == 1 and not self._gate.reads_replies(),
                kept=partial(self._keep, call),
            )
        try:
            completion = await engine.chat(call.asked)
        except Exception as error:
            await self._report_failure(call, error)
            raise as_lgov_error(error, engine.name) from error
        completion, reply, _ = writer.settle(completion)
        await self._capture.commit(exchange, completion, reply)
        if call.judged is not None and (instead := await self._release(call, completion)) is not None:
            reply = instead[0]
        self._keep(call, reply)
        return json_response(reply)

    async def _stream(self, call: _Call) -> AsyncIterator[StreamPiece]:
        """The engine's stream; a failure is reported to the gate."""
        try:
            async with aclosing(cast("Any", call.engine.stream(call.asked))) as stream:
                async for piece in stream:
                    yield piece
        except Exception as error:
            await self._report_failure(call, error)
            raise

    async def _report_failure(self, call: _Call, error: Exception) -> None:
        if self._gate is not None and call.judged is not None:
            await self._gate.failed(call.judged, error)

    def _translated(self, api: Api, body: Mapping[str, Any], who: Attribution, engine: Engine) -> ChatRequest:
        if "chat" not in speaks(engine):
            spoken = ", ".join(sorted(speaks(engine)))
            raise EndpointError(f"{engine.name} speaks {spoken} only, and {api.route} was asked of it")
        previous = body.get("previous_response_id") if api is RESPONSES else None
        if previous is not None and not (isinstance(previous, str) and previous):
            raise EndpointError("'previous_response_id' must be the id of a response")
        return api.translate(body, () if previous is None else self._memory.find(previous, who))

    def _keep(self, call: _Call, reply: Mapping[str, Any]) -> None:
        """Remembers a reply of the Responses API, which a later call may name."""
        if call.api is not RESPONSES:
            return
        if call.native:
            self._memory.note(reply["id"], call.who)
        elif call.body.get("store") is not False:
            messages = [*input_messages(call.body), *chat_messages(reply["output"])]
            self._memory.keep(reply["id"], call.who, call.body.get("previous_response_id"), messages)

    async def _admit(self, gate: Gate, call: _Call) -> None:
        """Sets the call as it may be made, and as it was judged. What policies cannot read is refused."""
        asked, api = call.asked, call.api
        if asked.route == "completions":
            plain = readable_prompts(asked)
        else:
            plain = asked if asked.messages else api.translate(call.body, ())
        judged = gate_request(plain, api.route, call.body, call.who)
        call.judged = await gate.admit(judged)
        if call.judged is judged:
            return
        call.body = with_texts(call.body, judged.fields, call.judged.fields)
        asked = api.native(call.body) if call.native else self._translated(api, call.body, call.who, call.engine)
        if call.judged.messages is judged.messages:
            call.asked = asked
            return
        if asked.route not in ("chat", api.route) or "chat" not in speaks(call.engine):
            what = f"a policy changed a call that {call.engine.name} cannot be asked otherwise"
            raise EndpointError(what, status=403)
        if asked.route != "chat":  # the upstream is asked for chat instead, where the change can be carried over
            asked = self._translated(api, call.body, call.who, call.engine)
        call.asked, call.rewritten = with_contents(asked, judged, call.judged), True

    async def _release(
        self, call: _Call, completion: Completion, passed: Sequence[StreamPiece] = ()
    ) -> tuple[Mapping[str, Any], bytes] | None:
        """The body of a finished reply and the events that follow those ``passed``; None if the gate changed nothing."""
        assert self._gate is not None
        assert call.judged is not None
        replies = gate_replies(completion)
        try:
            changed = released(completion, replies, await self._gate.release(call.judged, replies))
        except GateRefusal as refusal:
            if refusal.status != 200:
                raise
            changed = refusal_completion(refusal.text, completion.response_id, completion.model)
        return None if changed is completion else call.written(changed, passed)

    def _refused(self, call: _Call, refusal: GateRefusal) -> Response:
        """The answer to a call that was not made."""
        if refusal.status != 200:
            raise refusal
        reply, events = call.written(refusal_completion(refusal.text, new_id(call.api.id_prefix), call.asked.model))
        if not call.native:
            self._keep(call, reply)
        return Response(events, media_type="text/event-stream") if call.asked.stream else json_response(reply)

    async def count_tokens(self, request: Request) -> Response:
        """``POST .../v1/messages/count_tokens``."""
        who, body, engine = await self._read(request)
        count = getattr(engine, "count_tokens", None)
        if count is None:
            raise EndpointError(f"{engine.name} cannot count the tokens of a prompt", status=404)
        native = "messages" in speaks(engine)
        asked = MESSAGES.native(body) if native else read_messages_request(body, counting=True)
        tokens = partial(count, asked)
        if self._gate is None:
            return json_response({"input_tokens": await tokens()})
        plain = read_messages_request(body, counting=True) if native else asked
        judged = gate_request(plain, "messages", body, who)
        return json_response({"input_tokens": await judged_answer(self._gate, judged, tokens, lambda _: 0)})

    async def embeddings(self, request: Request) -> Response:
        """``POST .../v1/embeddings``: passed on, not recorded."""
        who, body, engine = await self._read(request)
        embed = getattr(engine, "embed", None)
        if embed is None or "embeddings" not in speaks(engine):
            raise EndpointError(f"{engine.name} makes no embeddings", status=404, hint="ask a model that does")
        return json_response(
            await (embed(body) if self._gate is None else judged_embeddings(self._gate, embed, body, who))
        )

    async def models(self, request: Request) -> Response:
        """``GET .../v1/models``, for clients of either kind."""
        self._who(request, allow_unattributed=True)
        data = [
            {
                "id": name, "object": "model", "created": 0, "owned_by": engine.name,
                "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z",
            }
            for engine in self._engines
            for name in engine.models
            if name != ANY_MODEL
        ]  # fmt: skip
        ends = (
            {"has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"has_more": False}
        )
        return json_response({"object": "list", "data": data, **ends})

    def refuse(self, error: LgovError, api: Api = APIS[0]) -> Response:
        """The response to an error, in the shape of its API; an upstream's refusal as the upstream wrote it.

        A refusal that the upstream wrote in the shape of another API is rewritten in this one's.
        """
        self._capture.counters.failed += 1
        status = error.status if isinstance(error, EndpointError) else 500
        if isinstance(error, UpstreamRejection):
            if error.route == api.route or api is not MESSAGES:
                headers = {**error.headers, "content-type": error.content_type}
                return Response(error.body, status, headers)
            return json_response(api.error_body(error, status), status, error.headers)
        return json_response(api.error_body(error, status), status, retry_headers(error))

    async def on_error(self, request: Request, error: Exception) -> Response:
        """Turns what a handler raised into a response."""
        api = api_of(request.url.path)
        if isinstance(error, LgovError):
            return self.refuse(error, api)
        if isinstance(error, HTTPException):
            what = f"{request.method} {request.url.path}: {error.detail}"
            hint = f"POST /v1 {', '.join(one.path for one in APIS)}, GET /v1/models and GET /healthz are there"
            return self.refuse(EndpointError(what, status=error.status_code, hint=hint), api)
        return self.refuse(EndpointError(f"{type(error).__name__}: {error}", status=500), api)
