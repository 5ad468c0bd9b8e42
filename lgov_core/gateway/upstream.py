"""An engine that asks another OpenAI-compatible server."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from lgov_core.errors import EndpointError, UpstreamError
from lgov_core.gateway.native_replies import NATIVE
from lgov_core.gateway.protocol import ANY_MODEL, ChatRequest, Completion, StreamPiece
from lgov_core.gateway.upstream_reply import ReceivedBody, UpstreamRejection

_UNKNOWN_FIELD = re.compile(
    r"unknown|unrecogni[sz]ed|unexpected|unsupported|not supported|extra (inputs?|fields?)", re.I
)
_HANDED_ON = ("retry-after", "retry-after-ms", "x-should-retry")


class UpstreamEngine:
    """Asks the server at ``base_url`` (as an OpenAI client would take it, with ``/v1``).

    ``speaks`` names the APIs in which it is asked: ``chat``, ``completions``, ``embeddings``, ``responses``,
    ``messages``. What is asked of the endpoint in another one is translated to chat. Servers that train give token ids
    with chat and completions only, so that ``responses`` and ``messages`` are left out unless they are asked for.

    The client's body goes on as it is, with log-probabilities and token ids asked for; a server that refuses those is
    asked again without, and that is remembered for the model. Replies come back unchanged, byte for byte. ``models`` are
    the names that are sent there, None for every name. ``timeout_s`` is for a whole reply, or between two pieces of a
    streamed one.

    Failures are `UpstreamError`: 502 for a server that is down, breaks off, or answers 5xx or nonsense, 504 for one
    that takes too long. A 4xx is `UpstreamRejection`. Nothing is retried: the client decides that.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        models: Sequence[str] | None = None,
        timeout_s: float = 120.0,
        *,
        name: str = "upstream",
        max_connections: int = 512,
        speaks: Sequence[str] = ("chat", "completions", "embeddings"),
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointError(f"{base_url!r} is not a URL of a server", hint="for example http://127.0.0.1:8000/v1")
        if models is not None and not models:
            raise EndpointError(f"the upstream {base_url} is given no models", hint="None stands for any model")
        unknown = sorted(set(speaks) - {*NATIVE, "embeddings"})
        if unknown or not speaks:
            named = f"{unknown[0]!r}" if unknown else "nothing"
            raise EndpointError(
                f"the upstream {base_url} is said to speak {named}",
                hint=f"there are {', '.join(NATIVE)} and embeddings",
            )
        self.name = name
        self.speaks = frozenset(speaks)
        self._url = base_url.rstrip("/")
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        if "messages" in self.speaks:
            self._headers |= {"anthropic-version": "2023-06-01", **({"x-api-key": api_key} if api_key else {})}
        self._models = tuple(models) if models is not None else (ANY_MODEL,)
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None
        self._refused: dict[tuple[str, str], frozenset[str]] = {}

    @property
    def models(self) -> Sequence[str]:
        """The names it answers to; ``*`` stands for any."""
        return self._models

    async def start(self) -> None:
        """Opens the connection pool. The server itself may come up later."""
        # Servers commonly drop idle connections after five seconds; a call must not race with that.
        connector = aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=3.0)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def close(self) -> None:
        """Closes the pool; what is still waiting fails."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def chat(self, request: ChatRequest) -> Completion:
        """The upstream's whole reply; ``raw`` is its JSON."""
        return NATIVE[request.route].read(await self._whole(request, NATIVE[request.route].path))

    async def embed(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The upstream's embeddings, as it wrote them."""
        asked = ChatRequest(body=body, model=str(body["model"]), messages=(), route="embeddings")
        return await self._whole(asked, "/embeddings")

    async def _whole(self, request: ChatRequest, path: str) -> ReceivedBody:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with self._answer(request, path, timeout) as response:
            raw = await response.read()
        try:
            body = json.loads(raw)
        except ValueError as error:
            raise UpstreamError(f"the upstream {self._url} answered with what is not JSON: {raw[:200]!r}") from error
        if not isinstance(body, dict):
            raise UpstreamError(f"the upstream {self._url} answered with what is not an object: {raw[:200]!r}")
        return ReceivedBody(body, raw)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[StreamPiece, None]:
        """The upstream's events exactly as they came, then what they amount to."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=self._timeout_s)
        native = NATIVE[request.route]
        assembler = native.assembler(request.n)
        async with self._answer(request, native.path, timeout) as response:
            if response.content_type != "text/event-stream":
                raise UpstreamError(f"the upstream {self._url} does not stream: it sent {response.content_type}")
            frames = _frames(response.content)
            async for data, raw in frames:
                if data is None:  # comments, and what has no end
                    if assembler.finished or raw.endswith((b"\n\n", b"\n\r\n")):
                        yield StreamPiece(raw=raw)
                    continue
                if data.strip() == "[DONE]":
                    yield StreamPiece(raw=raw)
                    break
                before = assembler.finished
                assembler.add(data)
                yield StreamPiece(data, raw=raw, ends=assembler.finished and not before)
            if not assembler.finished:
                raise UpstreamError(f"the upstream {self._url} broke off in mid-stream")
            yield StreamPiece(completion=native.read(assembler.body()))
            async for _ in frames:  # to the end, so that the connection can be used again
                pass

    @asynccontextmanager
    async def _answer(
        self, request: ChatRequest, path: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """The response to a request, with status 200; transport errors in the block become `UpstreamError`."""
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._post(request, path, timeout)
            await self._check(response, request.route)
            yield response
        except TimeoutError as error:
            raise UpstreamError(
                f"the upstream {self._url} did not answer within {self._timeout_s:g} s", status=504
            ) from error
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            reason = str(error) or type(error).__name__
            raise UpstreamError(f"the upstream {self._url} failed: {reason}", hint="is the server running?") from error
        finally:
            if response is not None:
                response.release()

    async def _post(self, request: ChatRequest, path: str, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        if self._session is None:
            raise EndpointError(f"the engine for {self._url} is not running", status=503)
        wanted = NATIVE[request.route].wanted if request.route in NATIVE else {}
        kind = (request.route, request.model)
        refused = known = self._refused.get(kind, frozenset[str]())
        while True:
            added = {
                name: value
                for name, value in wanted.items()
                if name not in refused and request.body.get(name) in (None, False)
            }
            response = await self._session.post(
                f"{self._url}{path}",
                data=json.dumps({**request.body, **added}, ensure_ascii=False).encode(),
                headers={"content-type": "application/json"},
                timeout=timeout,
                allow_redirects=False,
            )
            blamed = await _blamed(response, list(added))
            if blamed:
                response.release()
                refused |= blamed
                continue
            if refused != known and response.status < 400:
                self._refused[kind] = refused
            return response

    async def _check(self, response: aiohttp.ClientResponse, route: str) -> None:
        if response.status == 200:
            return
        body = await response.read()
        said = f"the upstream {self._url} answered {response.status}: {body[:300].decode(errors='replace')}"
        if 400 <= response.status < 500:
            headers = {name: response.headers[name] for name in _HANDED_ON if name in response.headers}
            raise UpstreamRejection(
                said,
                status=response.status,
                body=body,
                content_type=response.content_type,
                headers=headers,
                route="messages" if route == "messages" else "chat",
            )
        raise UpstreamError(said)


async def _blamed(response: aiohttp.ClientResponse, added: Sequence[str]) -> frozenset[str]:
    """Which of the fields that we added made the upstream refuse."""
    if response.status not in (400, 422) or not added:
        return frozenset()
    text = (await response.read()).decode(errors="replace")
    named = frozenset(key for key in added if key in text)
    return named or (frozenset(added) if _UNKNOWN_FIELD.search(text) else frozenset())


async def _frames(content: aiohttp.StreamReader) -> AsyncIterator[tuple[str | None, bytes]]:
    """Server-sent events: the data of each (None where it has none), and its bytes with the blank line that ends it.

    What is left at the end without a blank line comes last, without data.
    """
    rest = b""
    frame: list[bytes] = []
    data: list[str] = []
    async for part in content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            frame.append(line)
            bare = line.removesuffix(b"\r")
            if bare.startswith(b"data:"):
                data.append(bare[5:].removeprefix(b" ").decode())
            elif not bare:
                yield "\n".join(data) if data else None, b"\n".join([*frame, b""])
                frame, data = [], []
    if left := b"\n".join([*frame, rest]):
        yield None, left
