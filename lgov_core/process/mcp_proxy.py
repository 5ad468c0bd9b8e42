"""Carries the messages between an MCP client and a server under policy: ``lgov mcp``.

Each side is a transport and a dispatcher of the official SDK: the client on standard input and output or on streamable HTTP,
the server a process on its standard input and output, or at an address. `lgov_core.process.mcp_flow` judges.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

import httpx2
from anyio import EndOfStream
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.transport_security import RequestBodyLimitMiddleware as BodyLimit
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared import inbound
from mcp.shared.dispatcher import Outbound
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import CONNECTION_CLOSED, PARSE_ERROR, PROTOCOL_VERSION_META_KEY, ErrorData, JSONRPCError
from mcp_types import jsonrpc_message_adapter as MESSAGE
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lgov_core._util.json_text import json_object
from lgov_core.errors import InstrumentationError, PolicyDenied
from lgov_core.governance import Governance
from lgov_core.policies.policy_set import in_shadow_mode
from lgov_core.process.governed import CANNOT_GOVERN, policy_in, say, why_not_started
from lgov_core.process.mcp_flow import JSON, TOOL_LIST, GovernedMCPServer, GovernedMCPSession
from lgov_core.process.run import changed_lines
from lgov_core.scope import RolloutScope
from lgov_core.types import new_id

#: Headers for a server with an address, one a line: where its credentials belong.
HEADERS_VARIABLE: Final = "LGOV_MCP_HEADERS"
_PATH: Final = "/mcp"
_LONGEST_BODY: Final = 64 * 1024 * 1024
#: Seconds until a session over HTTP ends in which nothing is asked.
_IDLE_S: Final = 1800.0
_CANCELLED: Final = "notifications/cancelled"
Transport: TypeAlias = AbstractAsyncContextManager[Any]
Connect: TypeAlias = Callable[..., Transport]
Say: TypeAlias = Callable[[str], object]
Dispatcher: TypeAlias = JSONRPCDispatcher[TransportContext]


def run_mcp(
    governance: Governance,
    command: Sequence[str],
    url: str | None = None,
    port: int | None = None,
    announce: Say = say,
) -> int:
    """Puts a server, by its ``command`` or its ``url``, under policy until the client or it ends; returns the exit status.

    The client is on standard input and output; with ``port`` clients are served over HTTP, at an address that is announced.
    0: the client ended, 1: the server ended first or cannot be reached, 78: it cannot be governed, and was not started.
    Fails closed: what cannot be judged or recorded does not pass.
    """
    name = url or " ".join(command)
    if governance.policy is None:
        governance = governance.under(policy_in(Path.cwd(), name))
    scope = RolloutScope(new_id("rol"), 1, task_id=name[:200])
    watch = governance.begin_run(scope.rollout_id, governance.places())
    lines: list[str] = []
    try:
        with governance.open(rewards=governance.store is not None) as opened:
            server = GovernedMCPServer(opened, name)
            try:
                with opened.governor.rollout(scope):
                    status = asyncio.run(_serve(server, scope, partial(_connection, command, url), port, announce))
            except PolicyDenied as denied:
                say(f"not run: {why_not_started('server', denied)}")
                status = CANNOT_GOVERN
            finally:
                server.close()
            effects = opened.governor.effects
            blocked = effects["deny"] + effects["escalate"]
            shadow = " (shadow mode)" * in_shadow_mode(opened.governor.policies)
            lines.append(f"{effects.total()} decisions, {blocked} blocked{shadow}; record: {governance.audit}")
        lines += opened.problems
    finally:
        for line in [*lines, *changed_lines(watch, governance)]:
            say(line)
    return status


async def _serve(
    server: GovernedMCPServer, scope: RolloutScope, connect: Connect, port: int | None, announce: Say
) -> int:
    running = asyncio.current_task()
    with suppress(NotImplementedError):  # not on every system
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: running and running.cancel())
    try:
        if port is not None:
            return await _HTTPFront(server, connect).serve(port, announce)
        streams = _StandardStreams()
        return await _relay(GovernedMCPSession(server, scope), (streams, streams), connect(), asyncio.Event())
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


def _connection(command: Sequence[str], url: str | None, authorization: str | None = None) -> Transport:
    """Connects with the server; one that has an address gets the headers in `HEADERS_VARIABLE`, and the client's token.

    Raises `InstrumentationError`.
    """
    if url is None:
        program, *arguments = command
        # The client of the server has chosen the environment: with the server's keys in it.
        return stdio_client(StdioServerParameters(command=program, args=arguments, env=dict(os.environ)))
    headers = {} if authorization is None else {"authorization": authorization}
    for line in filter(str.strip, os.environ.get(HEADERS_VARIABLE, "").splitlines()):
        name, colon, value = line.partition(":")
        if not colon:
            raise InstrumentationError(f"{HEADERS_VARIABLE} holds a line without a colon", hint="write NAME: VALUE")
        headers[name.strip().lower()] = value.strip()

    async def tell(response: httpx2.Response) -> None:
        if response.is_error and response.request.method == "POST":
            say(f"{url} answers with HTTP status {response.status_code}")

    hooks = {"response": [tell]}
    client = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=None), event_hooks=hooks)
    return streamable_http_client(url, http_client=client, max_sse_event_size=_LONGEST_BODY)


# ---------------------------------------------------------------------- standard input and output


class _StandardStreams(ObjectReceiveStream[Any], ObjectSendStream[SessionMessage]):
    """The client on standard input and output, as the two streams of a transport of the SDK's.

    Whatever else writes to standard output writes to standard error meanwhile. Input is read in a thread, so that a client
    that does not read cannot block one that writes, and nothing waits for the thread at the end of the process.
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

    async def receive(self) -> SessionMessage | Exception:
        """The next message, or why a line is none. Raises `EndOfStream`."""
        if not (line := await self._lines.get()):
            raise EndOfStream
        try:
            return SessionMessage(MESSAGE.validate_json(line, by_name=False))
        except ValueError as error:
            return error

    async def aclose(self) -> None:
        """Leaves the streams to the process."""

    async def send(self, item: SessionMessage) -> None:
        """Writes one message. A client that is gone ends the input, too."""
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        rest = memoryview(text.encode() + b"\n")
        with suppress(BrokenPipeError):
            while rest:
                try:
                    rest = rest[os.write(self._output, rest) :]
                except BlockingIOError:
                    select.select((), (self._output,), ())


async def _relay(session: GovernedMCPSession, client: Any, connection: Transport, ready: asyncio.Event) -> int:
    """Carries the messages of a session until it ends; ``ready`` is set when the server is there. Returns the exit status."""
    try:
        async with connection as server:
            ready.set()
            return await _Relay(session, client, server).run()
    except (OSError, ValueError) as error:
        say(f"the server {session.server.name} cannot be started: {error}")
        return 1


class _Relay:
    """One client and its server: each has a dispatcher, whose requests are asked at the other, with their ids."""

    def __init__(self, session: GovernedMCPSession, client: Any, server: Any) -> None:
        self._session, self._to_client = session, client[1]
        self._gone = f"the MCP server {session.server.name} has ended"
        self._client: Dispatcher = JSONRPCDispatcher(*client, on_stream_exception=self._unreadable)
        self._server: Dispatcher = JSONRPCDispatcher(*server, on_stream_exception=self._left_out)
        self._stamp = _HTTPStamp()
        self._in_order = asyncio.Lock()
        self._open: dict[Any, Outbound] = {}

    async def run(self) -> int:
        """Returns 0 when the client has ended, 1 when the server has; then every request in progress has its answer."""
        tasks = [
            asyncio.create_task(self._client.run(self._of_client, self._told_by_client)),
            asyncio.create_task(self._server.run(self._of_server, self._told_by_server)),
        ]
        try:
            for task in (await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))[0]:
                task.result()
            if tasks[0].done():
                return 0
            say(f"{self._gone}, and cannot be called any more")
            return 1
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _of_client(self, context: Any, method: str, params: Mapping[str, Any] | None) -> JSON:
        async def send(method: str, params: JSON | None) -> JSON:
            try:
                result = await self._server.send_raw_request(
                    method, params, {"request_id": context.request_id, "headers": self._stamp.headers(method, params)}
                )
            except MCPError as error:
                if (error.code, error.message) == (CONNECTION_CLOSED, "Connection closed"):  # the dispatcher's own
                    raise ConnectionError(self._gone) from error
                raise
            self._stamp.note(method, result)
            return result

        self._open[context.request_id] = context
        try:
            return await self._session.respond(method, params, send)
        finally:
            self._open.pop(context.request_id, None)

    async def _of_server(self, context: Any, method: str, params: Mapping[str, Any] | None) -> JSON:
        async def send(method: str, params: JSON | None) -> JSON:
            return await self._listening().send_raw_request(method, params, {"request_id": context.request_id})

        return await self._session.respond(method, params, send)

    def _listening(self) -> Outbound:
        """The way to the client: over HTTP the stream of its last request, if it waits for one."""
        return next(reversed(self._open.values()), self._client)

    async def _told_by_client(self, _: Any, method: str, params: Mapping[str, Any] | None) -> None:
        if method != _CANCELLED:  # the dispatcher has cancelled the request, here and at the server
            await self._server.notify(method, params, {"headers": self._stamp.headers(method, params)})

    async def _told_by_server(self, _: Any, method: str, params: Mapping[str, Any] | None) -> None:
        async with self._in_order:
            if method != _CANCELLED and (read := await self._session.notice(method, params)) is not None:
                await self._listening().notify(method, read or None)

    async def _unreadable(self, _: Exception) -> None:
        error = ErrorData(code=PARSE_ERROR, message="this is not one message of MCP")
        await self._to_client.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=None, error=error)))

    async def _left_out(self, _: Exception) -> None:
        say(f"a line of {self._session.server.name} is no message of MCP; it is left out")


class _HTTPStamp:
    """The headers that a client over HTTP has to send with a message: they repeat what the message says."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._schemas: dict[str, Any] = {}

    def note(self, method: str, result: JSON) -> None:
        """Takes what the result of ``method`` says about later requests."""
        if method == "initialize":
            self._version = str(result.get("protocolVersion"))
        elif method == TOOL_LIST:
            self._schemas |= {str(tool.get("name")): tool.get("inputSchema") for tool in result.get("tools", ())}

    def headers(self, method: str, params: Mapping[str, Any] | None) -> dict[str, str]:
        """The headers of a message."""
        params = params or {}
        version = (params.get("_meta") or {}).get(PROTOCOL_VERSION_META_KEY)
        if version is None:  # it is the session's
            if self._version is None or method == "initialize":
                return {}
            return {inbound.MCP_PROTOCOL_VERSION_HEADER: self._version}
        headers = {inbound.MCP_PROTOCOL_VERSION_HEADER: str(version), inbound.MCP_METHOD_HEADER: method}
        name = params.get(inbound.NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[inbound.MCP_NAME_HEADER] = inbound.encode_header_value(name)
            schema = self._schemas.get(name) if method == "tools/call" else None
            if schema is not None and inbound.find_invalid_x_mcp_header(schema) is None:
                fields = inbound.x_mcp_header_map(schema)
                headers |= inbound.mcp_param_headers(fields, params.get("arguments") or {})
        return headers


# ---------------------------------------------------------------------- streamable HTTP


class _HTTPFront:
    """Serves clients over streamable HTTP. Each session has a relay, to a server or a session of the server's of its own."""

    def __init__(self, server: GovernedMCPServer, connect: Connect) -> None:
        self._server, self._connect = server, connect
        self._sessions: dict[str, StreamableHTTPServerTransport] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        hosts = ["127.0.0.1:*", "localhost:*"]
        origins = [f"http://{host}" for host in hosts]
        # A page in the person's browser must not reach the server through a name of its own for this machine.
        self._guard = TransportSecurityMiddleware(
            TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)
        )

    async def serve(self, port: int, announce: Say) -> int:
        """Serves clients at ``port`` of this machine, and announces the address."""
        import uvicorn

        application = Starlette(routes=[Route(_PATH, self)])
        limited = BodyLimit(application, _LONGEST_BODY)
        config = uvicorn.Config(limited, log_level="critical", lifespan="off", timeout_graceful_shutdown=2)
        with socket.create_server(("127.0.0.1", port)) as listening:
            announce(f"http://127.0.0.1:{listening.getsockname()[1]}{_PATH}")
            await uvicorn.Server(config).serve(sockets=[listening])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one HTTP request."""
        request = Request(scope, receive)
        response = await self._guard.validate_request(request, is_post=request.method == "POST")
        transport, pending = None, []
        if response is None and "mcp-session-id" in request.headers:
            transport = self._sessions.get(request.headers["mcp-session-id"])
            response = Response("there is no such session; begin one", 404)
        elif response is None:
            body = await request.body()
            pending.append({"type": "http.request", "body": body})
            if (json_object(body) or {}).get("method") == "initialize":
                transport = await self._begin(request.headers.get("authorization"))
            response = Response("the first request is initialize, which begins a session", 400)

        async def replay() -> Any:
            return pending.pop() if pending else await receive()

        await (response if transport is None else transport.handle_request)(scope, replay, send)

    async def _begin(self, authorization: str | None) -> StreamableHTTPServerTransport:
        """Begins a session. Its transport answers 404 once it has ended, as it has where the server cannot be started."""
        session_id = uuid4().hex
        transport = StreamableHTTPServerTransport(session_id, idle_timeout=_IDLE_S)
        ready = asyncio.Event()

        async def serve() -> None:
            scope = RolloutScope(new_id("rol"), 1, session_id=session_id, task_id=self._server.name[:200])
            self._sessions[session_id] = transport
            try:
                async with transport.connect() as client:
                    with transport.idle_scope or nullcontext():
                        session = GovernedMCPSession(self._server, scope)
                        await _relay(session, client, self._connect(authorization), ready)
            finally:
                ready.set()
                await self._sessions.pop(session_id).terminate()

        task = asyncio.create_task(serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await ready.wait()
        return transport
