"""Engines that ask other OpenAI-compatible servers: one or several of the same models, or servers that come and go."""

from __future__ import annotations

import io
import ipaddress
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import aiohttp

from lgov_core._util.json_text import ReceivedBody, wire_bytes, wire_text
from lgov_core.errors import EndpointError, UpstreamError
from lgov_core.gateway.access import caller
from lgov_core.gateway.door import add_spent
from lgov_core.gateway.limits import Reading
from lgov_core.gateway.operation import IN_THE_LOG
from lgov_core.gateway.protocol import ANY_MODEL, UpstreamRejection, overflow_in
from lgov_core.gateway.upstream_pool import FAILURES, UNREACHABLE, Replica, UpstreamPool
from lgov_core.settings import UPSTREAM_TIMEOUT_S
from lgov_core.wire.apis import BY_ROUTE
from lgov_core.wire.exchange import ChatRequest, Completion, StreamPiece, frame, read_event, sse_frames

_UNKNOWN_FIELD = re.compile(
    r"unknown|unrecogni[sz]ed|unexpected|unsupported|not supported|extra (inputs?|fields?)", re.I
)
#: Servers commonly drop idle connections after five seconds; a call must not race with that.
_KEEPALIVE_S: Final = 3.0
_CONNECT_S: Final = 10.0
#: Seconds in which a server has to list its models.
_LISTING_S: Final = 5.0
_MAX_CONNECTIONS: Final = 512
#: The longest reply that is read, in bytes.
_LONGEST_REPLY: Final = 512 * 1024 * 1024
#: What may be an IP address in a text, with its port.
_ADDRESS = re.compile(
    r"(?<![\w.:])(\d+(?:\.\d+){3}|\[[\da-f:.]+\]|[\da-f]*:[\da-f]*:[\da-f:.]*[\da-f])(?::\d+)?(?!\.?\d|\w)", re.I | re.A
)
_FORWARDED_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")
#: By these an upstream refuses whom it knows by the endpoint's key: no agent has another one.
_OF_CREDENTIALS = frozenset({401, 402, 403, 407})
#: A key of fewer characters is a placeholder (``EMPTY``), and such a word may be anywhere.
_SHORTEST_SECRET: Final = 8
#: The route of what asks which models there are; no client has sent it, so none can mend what is refused.
_LISTING: Final = "models"

_Send = Callable[[Replica], Awaitable[aiohttp.ClientResponse]]


class UpstreamEngine:
    """Asks the server at ``base_url`` (as an OpenAI client would take it, with ``/v1``), or one of several.

    Several servers have the same models; `UpstreamPool` chooses among them. ``speaks`` names the APIs in which it is asked,
    of ``chat``, ``completions``, ``embeddings``, ``responses`` and ``messages``; others are translated to chat. The last
    two are left out by default, since servers give no token ids with them.

    The client's body goes on as it is, with log-probabilities and token ids asked for; a server that refuses those is
    asked again without, and that is remembered for the model. Replies come back unchanged, byte for byte. ``models`` are
    the names that are sent there, None for every name. ``timeout_s`` is for a whole reply, or between streamed pieces.

    Failures are `UpstreamError`: 502 for a server that is down, breaks off, refuses ``api_key``, or answers 5xx or nonsense,
    504 for one that takes too long. Any other 4xx is `UpstreamRejection`. No server is asked twice: the client decides that.
    """

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: str | None = None,
        models: Sequence[str] | None = None,
        timeout_s: float = UPSTREAM_TIMEOUT_S,
        *,
        name: str = "upstream",
        check_s: float = 5.0,
        speaks: Sequence[str] = ("chat", "completions", "embeddings"),
    ) -> None:
        urls = [base_url] if isinstance(base_url, str) else list(base_url)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise EndpointError("the key of the upstream holds characters that a header cannot", hint="a line break?")
        if models is not None and not models:
            raise EndpointError(f"the upstream {base_url} was given no models", hint="None means any model")
        unknown = sorted(set(speaks) - {*BY_ROUTE, "embeddings"})
        if unknown or not speaks:
            named = f"{unknown[0]!r}" if unknown else "nothing"
            raise EndpointError(
                f"the upstream {base_url} cannot speak {named}",
                hint=f"there are {', '.join(BY_ROUTE)} and embeddings",
            )
        self.name = name
        self.speaks = frozenset(speaks)
        self.pool = UpstreamPool(urls, check_s=check_s)
        self.readings = self.pool.readings
        self._secret = api_key if api_key is not None and len(api_key) >= _SHORTEST_SECRET else None
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        if "messages" in self.speaks:
            self._headers |= {"anthropic-version": "2023-06-01", **({"x-api-key": api_key} if api_key else {})}
        self._models = tuple(models) if models is not None else (ANY_MODEL,)
        self._timeout_s = timeout_s
        connect_s = min(_CONNECT_S, timeout_s)
        self._whole_timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_s)
        self._stream_timeout = aiohttp.ClientTimeout(total=None, sock_read=timeout_s, sock_connect=connect_s)
        self._session: aiohttp.ClientSession | None = None
        self._refused: dict[tuple[str, str], frozenset[str]] = {}

    @property
    def models(self) -> Sequence[str]:
        """The names it answers to; ``*`` means any."""
        return self._models

    async def start(self) -> None:
        """Opens the connection pool. The servers themselves may come up later."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEPALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"content-type": "application/json", "accept-encoding": "identity", **self._headers},
            skip_auto_headers=("User-Agent",),
        )
        self.pool.start(self._answers)

    async def close(self) -> None:
        """Closes all connections; what is still waiting fails."""
        await self.pool.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _answers(self, url: str) -> bool:
        """Returns whether the server at ``url`` answers, with any status below 500."""
        if self._session is None:
            return False
        timeout = aiohttp.ClientTimeout(total=5.0, sock_connect=2.0)
        async with self._session.get(f"{url}/models", timeout=timeout, allow_redirects=False) as response:
            return response.status < 500

    async def chat(self, request: ChatRequest) -> Completion:
        """The upstream's whole reply; ``raw`` is its JSON."""
        body, replica = await self._whole(request, BY_ROUTE[request.route].path)
        return _versioned(BY_ROUTE[request.route].read_reply(body), replica)

    async def embed(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The upstream's embeddings, as it wrote them."""
        request = ChatRequest(body=body, model=str(body["model"]), messages=(), route="embeddings")
        return (await self._whole(request, "/embeddings"))[0]

    async def count_tokens(self, request: ChatRequest) -> int:
        """How many tokens the prompt has, as the upstream counts. Raises `EndpointError` (404) where it has no such route."""
        if request.route != "messages":
            raise EndpointError(f"{self.name} cannot count the tokens of a prompt", status=404)
        counted = (await self._whole(request, "/messages/count_tokens"))[0].get("input_tokens")
        if not isinstance(counted, int):
            raise UpstreamError("the upstream counted no tokens", where=self.pool.replicas[0].label)
        return counted

    async def list_models(self) -> list[str]:
        """The names that the first server lists that answers, at most five seconds later."""
        timeout = aiohttp.ClientTimeout(total=min(_LISTING_S, self._timeout_s))

        async def send(replica: Replica) -> aiohttp.ClientResponse:
            return await self._connections().get(f"{replica.url}/models", timeout=timeout, allow_redirects=False)

        body, replica = await self._object(send, _LISTING, timeout)
        models: Any = body.get("data")
        if not isinstance(models, list):
            raise UpstreamError("the upstream does not list its models", where=replica.label, detail=str(body)[:300])
        return [model["id"] for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)]

    async def _whole(self, request: ChatRequest, path: str) -> tuple[ReceivedBody, Replica]:
        send = partial(self._post, request, path, self._whole_timeout)
        return await self._object(send, request.route, self._whole_timeout)

    async def _object(self, send: _Send, route: str, timeout: aiohttp.ClientTimeout) -> tuple[ReceivedBody, Replica]:
        async with self._response(send, route, timeout) as (replica, response):
            raw = await _read(response)
        body = ReceivedBody.read(raw)
        if body is None:
            what = "the upstream answered with what is not a JSON object"
            raise UpstreamError(what, where=replica.label, detail=repr(raw[:200]))
        return body, replica

    async def stream(self, request: ChatRequest) -> AsyncGenerator[StreamPiece, None]:
        """The upstream's events exactly as they came, then what they amount to."""
        api = BY_ROUTE[request.route]
        assembler, whole = api.assembler(request.n), False
        send = partial(self._post, request, api.path, self._stream_timeout)
        async with self._response(send, request.route, self._stream_timeout) as (replica, response):
            if response.content_type != "text/event-stream":
                what = f"the upstream does not stream: it sent {response.content_type}"
                raise UpstreamError(what, where=replica.label)
            frames = sse_frames(response.content.iter_any())
            async for data, raw in frames:
                if data is None:  # comments, and what has no end
                    if assembler.finished or raw.endswith((b"\n\n", b"\n\r\n")):
                        yield StreamPiece(raw=raw)
                    continue
                if data.strip() == "[DONE]":
                    if whole := assembler.ends_whole():  # else a client that reads [DONE] would take it for whole
                        yield StreamPiece(raw=raw, ends=not assembler.finished)
                    break
                before, received = assembler.finished, read_event(data)
                event = assembler.add(data, received)
                if event is not received:  # a call had no clear id or place
                    data, raw = wire_text(event), frame(event, event["type"] if api.error_event else None)
                yield StreamPiece(data, raw=raw, ends=assembler.finished and not before, event=event)
            if not (whole or assembler.finished):
                raise UpstreamError("the upstream broke off in mid-stream", where=replica.label)
            completion = _versioned(api.read_reply(assembler.body()), replica)
            if assembler.unreadable is not None:
                completion = replace(completion, unreadable=assembler.unreadable)
            yield StreamPiece(completion=completion)
            async for _ in frames:  # to the end, so that the connection can be used again
                pass

    @asynccontextmanager
    async def _response(
        self, send: _Send, route: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncGenerator[tuple[Replica, aiohttp.ClientResponse], None]:
        """The response to what ``send`` asks, with status 200; transport errors in the block become `UpstreamError`."""
        where, began = self.pool.replicas[0].label, time.perf_counter()

        async def ask(replica: Replica) -> aiohttp.ClientResponse:
            nonlocal where
            where = replica.label
            return await send(replica)

        try:
            replica, response = await self.pool.ask(ask, caller().rollout_id)
            try:
                if response.status != 200:
                    raise self._refusal(replica, response, await _read(response), route)
                yield replica, response
            except FAILURES:
                self.pool.count_failure(replica)
                raise
            finally:
                self.pool.done(replica, response)
        except UpstreamError as error:  # an event of a stream may quote what the server says
            error.message, error.where = self._without_secret(without_addresses(error.message, where)), where
            raise
        except (*FAILURES, UnicodeDecodeError) as error:
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
                what = f"the upstream did not answer within {timeout.total or timeout.sock_read:g} s"
                hint = None if route == _LISTING else "those who run the endpoint can raise upstream_timeout_s"
                raise UpstreamError(what, hint=hint, status=504, where=where) from error
            unmade = isinstance(error, UNREACHABLE)
            raise UpstreamError(_in_words(error), hint=IN_THE_LOG, where=where, refused=unmade) from error
        finally:
            add_spent("upstream", began)

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EndpointError(f"the engine {self.name} is not running", status=503)
        return self._session

    async def _post(
        self, request: ChatRequest, path: str, timeout: aiohttp.ClientTimeout, replica: Replica
    ) -> aiohttp.ClientResponse:
        session = self._connections()
        extra_fields = BY_ROUTE[request.route].wanted if request.route in BY_ROUTE else {}
        headers = dict(caller().headers) if request.route == "messages" else {}
        kind = (request.route, request.model)
        refused = refused_before = self._refused.get(kind, frozenset[str]())
        while True:
            added = {
                name: value
                for name, value in extra_fields.items()
                if name not in refused and ((requested := request.body.get(name)) is None or requested is False)
            }
            body = aiohttp.BytesIOPayload(io.BytesIO(wire_bytes({**request.body, **added})))
            response = await session.post(
                f"{replica.url}{path}", data=body, headers=headers, timeout=timeout, allow_redirects=False
            )
            if response.status not in (400, 422) or not added:
                break
            async with response:
                text = await _read(response)
            blamed = _blamed(text, list(added))
            if not blamed:
                replica.failures = 0
                raise self._refusal(replica, response, text, request.route)
            refused |= blamed
        if refused != refused_before and response.status < 400:
            self._refused[kind] = refused
        return response

    def _refusal(self, replica: Replica, response: aiohttp.ClientResponse, body: bytes, route: str) -> EndpointError:
        """The error for an answer that is not a reply; `UpstreamRejection` for a status 4xx that is about the request."""
        status, body = response.status, self._without_secret(body.decode("latin-1")).encode("latin-1")
        text = body[:300].decode(errors="replace")
        headers = {name: response.headers[name] for name in _FORWARDED_HEADERS if name in response.headers}
        if status in _OF_CREDENTIALS:
            what = f"the upstream answered {status}, which is about the endpoint's own key there, not the client's"
            never = {"x-should-retry": "false"}  # clients ask again after a 502
            return UpstreamError(what, hint=IN_THE_LOG, where=replica.label, detail=text, headers=never, refused=True)
        if not 400 <= status < 500 or route == _LISTING:
            what = f"the upstream answered {status}"
            was_answered = status != 504  # else a proxy gave up, and not the model
            return UpstreamError(what, where=replica.label, detail=text, headers=headers, refused=was_answered)
        body = without_addresses(body.decode("latin-1"), replica.label).encode("latin-1")
        overflow = overflow_in(body.decode(errors="replace"))
        if overflow is not None and route != "messages" and overflow.code.encode() not in body:
            return overflow  # a server that does not name it as clients of this API expect
        return UpstreamRejection(
            f"the upstream answered {status}: {body[:300].decode(errors='replace')}",
            status=status,
            body=body,
            content_type=response.content_type,
            headers=headers,
            route="messages" if route == "messages" else "chat",
        )

    def _without_secret(self, text: str) -> str:
        return text if self._secret is None else text.replace(self._secret, "(the endpoint's key)")


def without_addresses(text: str, label: str) -> str:
    """``text`` for an agent: without the server called ``label`` (host:port), and IP addresses that are not public."""
    host, _, port = label.rpartition(":")
    optional = "?" if "." in host else ""  # a word may be anything
    text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?::{port}){optional}(?![\w-])", "(the upstream)", text, flags=re.A)

    def hidden(match: re.Match[str]) -> str:
        try:
            return match[0] if ipaddress.ip_address(match[1].strip("[]")).is_global else "(the upstream)"
        except ValueError:
            return match[0]

    return _ADDRESS.sub(hidden, text)


def _in_words(error: BaseException) -> str:
    """How a server failed, without its address."""
    if isinstance(error, UNREACHABLE):
        return "the upstream cannot be reached"
    if isinstance(error, UnicodeDecodeError):
        return "the upstream sent text that is not UTF-8"
    return "the upstream broke off, or sent what is not HTTP"


def _versioned(completion: Completion, replica: Replica) -> Completion:
    """The completion with the version of the server's weights as it was registered, where the reply does not say it."""
    if replica.version is None or completion.weights_version is not None:
        return completion
    more = tuple(_versioned(choice, replica) for choice in completion.more)
    return replace(completion, weights_version=replica.version, more=more)


def _blamed(body: bytes, added: Sequence[str]) -> frozenset[str]:
    """Which of the fields ``added`` by us the upstream refuses, by the text of its refusal."""
    text = body.decode(errors="replace")
    named = frozenset(key for key in added if key in text)
    return named or (frozenset(added) if _UNKNOWN_FIELD.search(text) else frozenset())


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The whole body. Raises `UpstreamError` for one of more than `_LONGEST_REPLY` bytes."""
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > _LONGEST_REPLY:
            raise UpstreamError(f"the reply of the upstream has more than {_LONGEST_REPLY} bytes")
    return b"".join(parts)


class RegisteredModels:
    """An `Engine` of `UpstreamEngine`s, one a model. For one event loop.

    A model may have several servers, registered one by one. What is removed gets no new calls; those that it is
    answering go on to their end.
    """

    name = "registered"
    speaks = ("chat", "completions", "embeddings")

    def __init__(self, *, api_key: str | None = None, timeout_s: float = UPSTREAM_TIMEOUT_S) -> None:
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._engines: dict[str, UpstreamEngine] = {}
        self._retired: list[UpstreamEngine] = []
        self._running = False

    @property
    def models(self) -> Sequence[str]:
        """The names that are registered."""
        return tuple(self._engines)

    async def start(self) -> None:
        """Makes ready for models to come."""
        self._running = True

    async def close(self) -> None:
        """Closes all connections; what is still waiting fails."""
        self._running = False
        for engine in [*self._engines.values(), *self._retired]:
            await engine.close()
        self._engines, self._retired = {}, []

    async def register(self, model: str, endpoint: str, version: int | None = None) -> None:
        """Makes known that the server at ``endpoint`` (with ``/v1``) has ``model``, in a version of its weights.

        Doing it again changes the version. Raises `EndpointError` for an empty name or a URL that is not a server's.
        """
        if not model or not self._running:
            raise EndpointError("a model needs a name" if not model else "the endpoint is not running", status=422)
        engine = self._engines.get(model)
        if engine is None:
            engine = UpstreamEngine(endpoint, self._api_key, [model], self._timeout_s, name=f"{self.name} {model}")
            await engine.start()
            self._engines[model] = engine
        engine.pool.put(endpoint, version)
        await self._close_retired()

    async def clear(self) -> None:
        """Removes every model."""
        self._retired += self._engines.values()
        self._engines = {}
        await self._close_retired()

    async def _close_retired(self) -> None:
        for engine in list(self._retired):
            if not any(replica.running for replica in engine.pool.replicas):
                self._retired.remove(engine)
                await engine.close()

    def _engine(self, model: str) -> UpstreamEngine:
        engine = self._engines.get(model)
        if engine is None:
            raise EndpointError(f"no server is registered for model {model!r}", status=503)
        return engine

    async def chat(self, request: ChatRequest) -> Completion:
        """The reply of one of the model's servers."""
        return await self._engine(request.model).chat(request)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[StreamPiece, None]:
        """The same, streamed."""
        async for piece in self._engine(request.model).stream(request):
            yield piece

    async def embed(self, body: dict[str, object]) -> object:
        """Embeddings of one of the model's servers."""
        return await self._engine(str(body["model"])).embed(body)

    def readings(self) -> Iterable[Reading]:
        """The metrics of the servers of all models together."""
        for engine in list(self._engines.values())[:1]:
            yield from engine.readings()
