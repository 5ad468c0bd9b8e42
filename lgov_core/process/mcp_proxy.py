"""Carries the messages between an MCP client and a server under policy: ``lgov mcp``.

The client is on standard input and output, or on streamable HTTP; the server is a process on its standard input and output, or
has an address. Messages travel on the transports of the official SDK; over HTTP on both sides requests and events are passed
on one by one, so that sessions, protocol versions and repeated events are the server's own. `lgov_core.process.mcp_flow`
judges the messages, in order for each request.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core._util.containers import BoundedDict
from lgov_core._util.json_text import wire_bytes
from lgov_core.errors import InstrumentationError, PolicyDenied
from lgov_core.governance import Governance
from lgov_core.process.governed import CANNOT_GOVERN, policy_in, say
from lgov_core.process.mcp_flow import (
    FAILED,
    JSON,
    TOOL_LIST,
    GovernedMCPServer,
    GovernedMCPSession,
    MCPCall,
    error_response,
)
from lgov_core.process.run import changed_lines
from lgov_core.scope import RolloutScope
from lgov_core.types import new_id
from lgov_core.wire.exchange import frame, sse_frames

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

#: Headers for a server with an address, one a line: where its credentials belong.
HEADERS_VARIABLE: Final = "LGOV_MCP_HEADERS"
_PATH: Final = "/mcp"
#: The lines of an event that are passed on beside its data, which is always written anew; other readers also end lines at CR.
_FIELD: Final = re.compile(rb"(?:id|event|retry|):[^\r]*")
_LONGEST_BODY: Final = 64 * 1024 * 1024
_SESSIONS: Final = 10_000
#: Headers of one connection, which the next one writes for itself.
_OWN: Final = frozenset(
    {
        *(
            "accept-encoding",
            "connection",
            "content-encoding",
            "content-length",
            "date",
            "expect",
            "host",
            "keep-alive",
        ),
        *("origin", "server", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)


@dataclass(frozen=True, slots=True)
class MCPOptions:
    """The server, by its ``command`` or its ``url``; with ``port`` clients are served over HTTP instead of stdio."""

    governance: Governance
    command: tuple[str, ...] = ()
    url: str | None = None
    port: int | None = None

    @property
    def name(self) -> str:
        """The server, for people."""
        return self.url or " ".join(self.command)


def run_mcp(options: MCPOptions) -> int:
    """Puts the server under policy until the client or the server ends; returns the exit status.

    0: the client ended, 1: the server ended first or cannot be reached, 78: it cannot be governed, and was not started.
    Fails closed: what cannot be judged or recorded does not pass.
    """
    governance = options.governance
    try:
        import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise InstrumentationError("lgov mcp needs the MCP SDK", hint='pip install "lgov[mcp]"') from error
    if governance.policy is None:
        governance = governance.under(policy_in(Path.cwd(), options.name))
    scope = RolloutScope(new_id("rol"), 1, task_id=options.name[:200])
    watch = governance.begin_run(scope.rollout_id, governance.places())
    lines: list[str] = []
    try:
        with governance.open(rewards=governance.store is not None) as opened:
            server = GovernedMCPServer(opened, options.name)
            try:
                with opened.governor.rollout(scope):
                    status = asyncio.run(_serve(server, scope, options))
            except PolicyDenied as denied:
                say(f"not run: the policy does not let this server start: {denied.decision.reason}")
                status = CANNOT_GOVERN
            finally:
                server.close()
            effects = opened.governor.effects
            blocked = effects["deny"] + effects["escalate"]
            lines.append(f"{effects.total()} decisions, {blocked} blocked; record: {governance.audit}")
        lines += opened.problems
    finally:
        for line in [*lines, *changed_lines(watch)]:
            say(line)
    return status


async def _serve(server: GovernedMCPServer, scope: RolloutScope, options: MCPOptions) -> int:
    running = asyncio.current_task()
    with suppress(NotImplementedError):  # not on every system
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: running and running.cancel())
    try:
        if options.port is not None and options.url is not None:
            return await _serve_http(server, scope, options.url, options.port)
        return await _serve_stdio(server, scope, options)
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


def _server_headers() -> dict[str, str]:
    """The headers in `HEADERS_VARIABLE`. Raises `InstrumentationError`."""
    headers: dict[str, str] = {}
    for line in filter(str.strip, os.environ.get(HEADERS_VARIABLE, "").splitlines()):
        name, colon, value = line.partition(":")
        if not colon:
            raise InstrumentationError(f"{HEADERS_VARIABLE} holds a line without a colon", hint="write NAME: VALUE")
        headers[name.strip()] = value.strip()
    return headers


# ---------------------------------------------------------------------- standard input and output


class _StandardStreams:
    """The client on standard input and output. Whatever else writes to standard output writes to standard error meanwhile.

    Input is read in a thread, so that a client that does not read cannot block one that writes, and nothing waits for the
    thread at the end of the process.
    """

    def __init__(self) -> None:
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._output = os.dup(1)
        os.dup2(2, 1)
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        with open(os.dup(0), "rb") as stream, suppress(RuntimeError):  # the loop is closed
            for line in stream:
                loop.call_soon_threadsafe(self._lines.put_nowait, line)
            loop.call_soon_threadsafe(self._lines.put_nowait, b"")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while line := await self._lines.get():
            yield line

    def write(self, message: JSON) -> None:
        """Writes one message. A client that is gone ends the input, too."""
        rest = memoryview(wire_bytes(message) + b"\n")
        with suppress(BrokenPipeError):
            while rest:
                try:
                    rest = rest[os.write(self._output, rest) :]
                except BlockingIOError:
                    select.select((), (self._output,), ())


async def _serve_stdio(server: GovernedMCPServer, scope: RolloutScope, options: MCPOptions) -> int:
    client = _StandardStreams()
    try:
        async with _connection(options) as (from_server, to_server):
            return await _Relay(GovernedMCPSession(server, scope), client, to_server).run(from_server)
    except (OSError, ValueError) as error:
        say(f"the server {server.name} cannot be started: {error}")
        return 1


def _connection(options: MCPOptions) -> AbstractAsyncContextManager[Any]:
    if options.url is None:
        from mcp.client.stdio import StdioServerParameters, stdio_client

        program, *arguments = options.command
        # The client of the server has chosen the environment: with the server's keys in it.
        return stdio_client(StdioServerParameters(command=program, args=arguments, env=dict(os.environ)))
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    client = httpx2.AsyncClient(headers=_server_headers(), timeout=httpx2.Timeout(30, read=None))
    return streamable_http_client(options.url, http_client=client)


class _Relay:
    """The messages of one client on stdio, in the order in which they come; requests that are judged may be overtaken."""

    def __init__(self, session: GovernedMCPSession, client: _StandardStreams, to_server: Any) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        self.session = session
        self._client, self._to_server = client, to_server
        self._adapter, self._envelope = jsonrpc_message_adapter, SessionMessage
        self._stamp = _HTTPStamp()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, from_server: Any) -> int:
        """Returns 0 when the client has ended, 1 when the server has; then every request in progress has its answer."""
        client, server = asyncio.create_task(self._read_client()), asyncio.create_task(self._read_server(from_server))
        await asyncio.wait((client, server), return_when=asyncio.FIRST_COMPLETED)
        ended = not client.done()
        if ended:
            reason = f"the MCP server {self.session.server.name} has ended, and cannot be called any more"
            say(reason)
            self.session.close(reason)
            if self._tasks:
                await asyncio.wait(self._tasks)
        for task in (client, server, *self._tasks):
            task.cancel()
        await asyncio.gather(client, server, *self._tasks, return_exceptions=True)
        return int(ended)

    async def _read_client(self) -> None:
        async for line in self._client:
            try:
                message = self._adapter.validate_json(line, by_name=False)
            except ValueError:
                self._client.write(error_response({}, -32700, "the line is no message of MCP"))
            else:
                await self._of_client(message.model_dump(mode="json", by_alias=True, exclude_unset=True))

    async def _read_server(self, stream: Any) -> None:
        async for item in stream:
            if isinstance(item, Exception):
                say(f"a line of {self.session.server.name} is no message of MCP; it is left out")
            else:
                self._of_server(item.message.model_dump(mode="json", by_alias=True, exclude_unset=True))

    async def _forward(self, message: JSON) -> None:
        metadata = self._stamp.metadata(message)
        await self._to_server.send(self._envelope(self._adapter.validate_python(message), metadata))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _of_client(self, message: JSON) -> None:
        if "method" in message and "id" in message:
            call = self.session.begin(message)
            if call.sent.done():
                await self._forward(call.sent.result())
            self._start(self._answer(call, sent=call.sent.done()))
        elif not self.session.cancels(message):
            await self._forward(message)

    async def _answer(self, call: MCPCall, *, sent: bool) -> None:
        if not sent and (permitted := await call.permitted()) is not None:
            await self._forward(permitted)
        response = await call.response()
        if response is not None:
            self._stamp.note(str(call.request["method"]), response)
            self._client.write(response)

    def _of_server(self, message: JSON) -> None:
        if "method" not in message:
            self.session.take(message)
        elif "id" not in message:
            self._client.write(message)
        else:
            self._start(self._ask(message))

    async def _ask(self, request: JSON) -> None:
        refusal = await self.session.refusal(request)
        if refusal is None:
            self._client.write(request)
        else:
            await self._forward(refusal)


class _HTTPStamp:
    """The headers that a client over HTTP has to send with a message: they repeat what the message says."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._schemas: dict[str, Any] = {}

    def note(self, method: str, response: JSON) -> None:
        """Takes what the response to ``method`` says about later requests."""
        result = response.get("result")
        if isinstance(result, dict) and method == "initialize":
            self._version = str(result.get("protocolVersion"))
        elif isinstance(result, dict) and method == TOOL_LIST:
            self._schemas |= {str(tool.get("name")): tool.get("inputSchema") for tool in result.get("tools", ())}

    def metadata(self, message: JSON) -> Any:
        """The metadata with the headers of ``message``; None where there are none."""
        from mcp.shared import inbound
        from mcp.shared.message import ClientMessageMetadata
        from mcp_types import PROTOCOL_VERSION_META_KEY

        method = message.get("method")
        params = message.get("params") or {}
        version = (params.get("_meta") or {}).get(PROTOCOL_VERSION_META_KEY)
        if method == "initialize" or version is self._version is None:
            return None
        headers = {inbound.MCP_PROTOCOL_VERSION_HEADER: str(version or self._version)}
        if version is not None and isinstance(method, str):
            headers[inbound.MCP_METHOD_HEADER] = method
            name = params.get(inbound.NAME_BEARING_METHODS.get(method, ""))
            if isinstance(name, str):
                headers[inbound.MCP_NAME_HEADER] = inbound.encode_header_value(name)
                schema = self._schemas.get(name) if method == "tools/call" else None
                if schema is not None and inbound.find_invalid_x_mcp_header(schema) is None:
                    fields = inbound.x_mcp_header_map(schema)
                    headers |= inbound.mcp_param_headers(fields, params.get("arguments") or {})
        return ClientMessageMetadata(headers=headers)


# ---------------------------------------------------------------------- streamable HTTP on both sides


async def _serve_http(server: GovernedMCPServer, scope: RolloutScope, url: str, port: int) -> int:
    import httpx2
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Route

    async with httpx2.AsyncClient(headers=_server_headers(), timeout=httpx2.Timeout(30, read=None)) as client:
        front = _HTTPFront(server, scope, url, client)
        application = Starlette(routes=[Route(_PATH, front.respond, methods=["GET", "POST", "DELETE"])])
        config = uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=2)
        with socket.create_server(("127.0.0.1", port)) as listening:
            print(f"http://127.0.0.1:{listening.getsockname()[1]}{_PATH}", flush=True)  # noqa: T201 - a program's output
            await uvicorn.Server(config).serve(sockets=[listening])
    return 0


class _HTTPFront:
    """Passes the requests of clients on to the server at ``url``, and its responses and events back."""

    def __init__(self, server: GovernedMCPServer, scope: RolloutScope, url: str, client: Any) -> None:
        from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
        from mcp_types import jsonrpc_message_adapter

        self._server, self._scope, self._url, self._client = server, scope, url, client
        self._adapter = jsonrpc_message_adapter
        self._sessions: BoundedDict[str, GovernedMCPSession] = BoundedDict(_SESSIONS)
        hosts = ["127.0.0.1:*", "localhost:*"]
        origins = [f"http://{host}" for host in hosts]
        # A page in the person's browser must not reach the server through a name of its own for this machine.
        self._guard = TransportSecurityMiddleware(
            TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)
        )

    async def respond(self, request: Request) -> Response:
        """Answers one HTTP request."""
        from starlette.responses import JSONResponse

        refused = await self._guard.validate_request(request, is_post=request.method == "POST")
        if refused is not None:
            return refused
        session_id = request.headers.get("mcp-session-id")
        session = self._session(session_id)
        if request.method != "POST":
            if request.method == "DELETE" and session_id is not None:
                self._sessions.pop(session_id)
            return await self._passed(request, session, await request.body())
        message = self._message(await _body_of(request))
        if message is None:
            error = error_response({}, -32700, "the body is not one message of MCP, of at most 64 MiB")
            return JSONResponse(error, 400)
        if "method" not in message or "id" not in message:
            if session.cancels(message):
                return JSONResponse(None, 202)
            return await self._passed(request, session, wire_bytes(message))
        call = session.begin(message)
        permitted = await call.permitted()
        if permitted is None:
            return JSONResponse(await call.response())
        return await self._passed(request, session, wire_bytes(permitted), call)

    def _session(self, session_id: str | None) -> GovernedMCPSession:
        """The session with this id; without one every request stands alone."""
        if session_id is None:
            return GovernedMCPSession(self._server, self._scope)
        session = self._sessions.get(session_id)
        if session is None:
            scope = RolloutScope(new_id("rol"), 1, session_id=session_id, task_id=self._scope.task_id)
            session = GovernedMCPSession(self._server, scope)
            self._sessions.put(session_id, session)
        return session

    def _message(self, text: bytes | str | None) -> JSON | None:
        try:
            message = self._adapter.validate_json(text or b"", by_name=False)
        except ValueError:
            return None
        return message.model_dump(mode="json", by_alias=True, exclude_unset=True)

    async def _passed(
        self, request: Request, session: GovernedMCPSession, body: bytes, call: MCPCall | None = None
    ) -> Response:
        """Sends the request to the server; returns the response, as far as the client may have it."""
        import httpx2
        from starlette.responses import JSONResponse, Response, StreamingResponse

        headers = {name: value for name, value in request.headers.items() if name not in _OWN} | self._own_headers()
        sent = self._client.build_request(request.method, self._url, headers=headers, content=body)
        try:
            response = await self._client.send(sent, stream=True)
        except httpx2.HTTPError as error:
            return await self._unreachable(session, call, f"{type(error).__name__}: {error}")
        if response.is_redirect:
            await response.aclose()
            return await self._unreachable(session, call, f"it redirects to {response.headers.get('location')}")
        kept = {name: value for name, value in response.headers.items() if name.lower() not in _OWN}
        session_id = response.headers.get("mcp-session-id")
        if call is not None and session_id is not None and self._sessions.get(session_id) is None:
            session.scope = RolloutScope(new_id("rol"), 1, session_id=session_id, task_id=self._scope.task_id)
            self._sessions.put(session_id, session)
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            events = self._events(response, session, call, headers)
            return StreamingResponse(events, response.status_code, kept)
        content = await response.aread()
        await response.aclose()
        if call is None:  # nothing was asked, so there is nothing to read
            return Response(None, response.status_code, kept)
        message = self._message(content)
        if message is None or "method" in message:
            text = content.decode(errors="replace")
            message = error_response(call.request, FAILED, f"HTTP status {response.status_code}: {text}")
        message["id"] = call.request["id"]
        judged = await session.answer(message)
        status = response.status_code if judged == message else 200
        kept = {name: value for name, value in kept.items() if name.lower() != "content-type"}
        return JSONResponse(judged, status, kept)

    def _own_headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in _server_headers().items()}

    async def _unreachable(self, session: GovernedMCPSession, call: MCPCall | None, problem: str) -> Response:
        from starlette.responses import JSONResponse, Response

        reason = f"the MCP server {self._url} cannot be reached: {problem}"
        say(reason)
        if call is None:
            return Response(reason, 502, media_type="text/plain")
        call.fail(reason)
        return JSONResponse(await call.response())

    async def _events(
        self, response: Any, session: GovernedMCPSession, call: MCPCall | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[bytes]:
        """The events of a stream of the server's, judged one after the other."""
        import httpx2

        resumable = False
        try:
            async for data, raw in sse_frames(response.aiter_bytes()):
                lines = [line for line in map(bytes.rstrip, raw.split(b"\n")) if _FIELD.fullmatch(line)]
                resumable = resumable or any(line.startswith(b"id") for line in lines)
                if data is not None:
                    passed = await self._event(data, session, headers) if data.strip() else b"data: "
                    lines += [] if passed is None else [passed]
                if lines:
                    yield b"\n".join([*lines, b"", b""])
        except (httpx2.HTTPError, UnicodeDecodeError) as error:
            say(f"a stream of {self._url} broke off: {type(error).__name__}: {error}")
        finally:
            await response.aclose()
        if call is not None and not call.task.done() and not resumable:
            call.fail(f"the MCP server {self._url} ended the stream without an answer")
            yield frame(await call.response(), "message")

    async def _event(self, data: str, session: GovernedMCPSession, headers: Mapping[str, str]) -> bytes | None:
        """The data of one event as the client may have it; None where it may not."""
        message = self._message(data)
        if message is None:
            say(f"an event of {self._url} is no message of MCP; it is left out")
            return None
        if "method" not in message:
            judged = await session.answer(message)
            return None if judged is None else b"data: " + wire_bytes(judged)
        refusal = await session.refusal(message) if "id" in message else None
        if refusal is None:
            return b"data: " + wire_bytes(message)
        await self._client.post(self._url, headers=headers, content=wire_bytes(refusal))
        return None


async def _body_of(request: Request) -> bytes | None:
    """The body, None if it is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_BODY:
            return None
    return bytes(body)
