"""A model server for tests: real HTTP, with the replies of a script.

`ScriptedModelServer` is an OpenAI-compatible server on a real port::

    with ScriptedModelServer([call("run_sql", query="SELECT 1"), "The answer is 1."]) as model:
        agent = make_agent(base_url=model.base_url)
        agent.run("...")
    assert model.requests[1].body["messages"][-1]["content"] == "1"

It answers chat completions, completions, the Responses and the Messages API, whole and streamed, from the same script,
and embeddings (the length of a text). It shares no code with lgov's endpoint except the thread that serves, so that it
can be used to test the endpoint.

`offline_model` is a model without a model, on the standard library alone, for programs that are to run without a key, such as
the agent of ``lgov init``: it makes the tool calls it was given, then answers.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from lgov_core.errors import LgovError
from lgov_core.testing.scripted_reply import (
    ChatWriter,
    CompletionWriter,
    MessageWriter,
    ResponseWriter,
    ScriptedReply,
    call,
)

if TYPE_CHECKING:
    from starlette.requests import Request


_WRITERS: Mapping[str, Callable[..., Any]] = {
    "chat/completions": ChatWriter,
    "completions": CompletionWriter,
    "responses": ResponseWriter,
    "messages": MessageWriter,
}


class UnexpectedModelCall(LgovError):
    """The model was asked although its script has no answer (it ran out, or raised)."""

    code = "unexpected_model_call"


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as the server got it: the JSON body, the headers (names in lower case) and the path."""

    body: Mapping[str, Any]
    headers: Mapping[str, str]
    path: str


Script = Callable[[Mapping[str, Any]], "ScriptedReply | str"] | Sequence["ScriptedReply | str"]


class ScriptedModelServer:
    """An OpenAI-compatible server whose model follows a script; a context manager.

    ``script`` is a list of replies, used one after the other, or a function of the request's JSON body; a plain text
    is a reply with that text. With ``token_ids`` it answers ``return_token_ids`` as vLLM does: ids are the
    UTF-8 bytes of the text (256 ends a turn), with made-up logprobs (`token_logprob`). A request that has one of
    ``refuse_fields`` is answered with 400, as by a server that does not know the field.

    Leaving the context raises `UnexpectedModelCall` if the model was asked once too often, or the script raised.
    ``requests`` may be read from any thread. The script runs in the server's thread.
    """

    def __init__(
        self,
        script: Script,
        *,
        model: str = "scripted",
        token_ids: bool = False,
        refuse_fields: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        from starlette.applications import Starlette
        from starlette.routing import Route

        from lgov_core.gateway.limits import Limits
        from lgov_core.gateway.server import EndpointServer

        self._next_reply = script if callable(script) else _in_turn(script)
        self._model = model
        self._token_ids = token_ids
        self._refuse_fields = tuple(refuse_fields)
        routes = [
            *(
                Route(f"/{{prefix:path}}/{path}", partial(self._answer, writer), methods=["POST"])
                for path, writer in _WRITERS.items()
            ),
            Route("/{prefix:path}/embeddings", self._embeddings, methods=["POST"]),
            Route("/{prefix:path}/models", self._models, methods=["GET"]),
        ]
        self._server = EndpointServer(Starlette(routes=routes), limits=Limits(drain_s=2), host=host, port=port)
        self.requests: list[RecordedRequest] = []
        self.problems: list[UnexpectedModelCall] = []
        self.abandoned = threading.Semaphore(0)
        """Released once for every streamed reply whose client left before its end."""

    @property
    def base_url(self) -> str:
        """The base URL for an OpenAI client."""
        return self._server.base_url

    def start(self) -> Self:
        """Starts serving in a thread; returns once it answers."""
        self._server.start()
        return self

    def stop(self) -> None:
        """Stops serving; running replies get two seconds."""
        self._server.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.stop()
        if kind is None and self.problems:
            raise self.problems[0]

    async def _models(self, request: Request) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse({"object": "list", "data": [{"id": self._model, "object": "model", "owned_by": "script"}]})

    async def _embeddings(self, request: Request) -> Any:
        from starlette.responses import JSONResponse

        body = await request.json()
        self.requests.append(RecordedRequest(body, dict(request.headers), request.url.path))
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [
            {"object": "embedding", "index": index, "embedding": [float(len(text)), 1.0]}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return JSONResponse({"object": "list", "data": data, "model": body.get("model"), "usage": usage})

    async def _answer(self, make_writer: Callable[..., Any], request: Request) -> Any:
        from starlette.responses import JSONResponse, Response

        body = await request.json()
        self.requests.append(RecordedRequest(body, dict(request.headers), request.url.path))
        for name in self._refuse_fields:
            if name in body:
                return JSONResponse(_error(f"Unrecognized request argument supplied: {name}"), 400)
        try:
            reply = self._next_reply(body)
        except Exception as error:  # noqa: BLE001 - raised again at the end of the context
            problem = error if isinstance(error, UnexpectedModelCall) else UnexpectedModelCall(f"the script: {error!r}")
            self.problems.append(problem)
            return JSONResponse(_error(str(problem)), 400, {"x-should-retry": "false"})
        reply = ScriptedReply(reply) if isinstance(reply, str) else reply
        await asyncio.sleep(reply.delay_s)
        if reply.body is not None:
            return Response(reply.body, reply.status, {**reply.headers, "content-type": reply.content_type})
        if reply.status != 200:
            return JSONResponse(_error(reply.text or "scripted error"), reply.status, reply.headers)
        writer = make_writer(reply, body, self._model, self._token_ids)
        if body.get("stream"):
            return _ScriptedStream(reply, list(writer.frames()), self.abandoned)
        if reply.gate is not None:
            await asyncio.to_thread(reply.gate.wait)
        return JSONResponse(writer.body(), headers=reply.headers)


def _in_turn(replies: Sequence[ScriptedReply | str]) -> Callable[[Mapping[str, Any]], ScriptedReply | str]:
    waiting = iter(replies)

    def following(body: Mapping[str, Any]) -> ScriptedReply | str:
        for reply in waiting:
            return reply
        transcript = body.get("messages") or body.get("input") or body.get("prompt") or [None]
        last = transcript if isinstance(transcript, str) else transcript[-1]
        raise UnexpectedModelCall(
            f"the script has {len(replies)} replies and the model was asked once more; the last message: {last!r}"[:500]
        )

    return following


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "scripted_error", "code": "scripted", "param": None}}


class _ScriptedStream:
    """An ASGI response that sends server-sent events, and notices when the client leaves."""

    def __init__(self, reply: ScriptedReply, frames: Sequence[str], abandoned: threading.Semaphore) -> None:
        self._reply = reply
        self._frames = frames
        self._abandoned = abandoned

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(self._left(receive))
        done, _ = await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if sending not in done:
            self._abandoned.release()
        for task in (sending, leaving):
            task.cancel()
        await asyncio.gather(sending, leaving, return_exceptions=True)

    @staticmethod
    async def _left(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _send(self, send: Any) -> None:
        headers = {"content-type": "text/event-stream", **self._reply.headers}
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": pairs})
        for number, frame in enumerate(self._frames):
            if number == self._reply.cut_at:
                return  # the server closes a connection whose response is not complete
            if self._reply.gate is not None and number == self._reply.gate_at:
                await asyncio.to_thread(self._reply.gate.wait)
            await send({"type": "http.response.body", "body": frame.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def offline_model(
    *calls: tuple[str, Mapping[str, Any]], on_request: Callable[[Mapping[str, Any]], None] | None = None
) -> str:
    """Starts a model server in a daemon thread of this process; returns its base URL for an OpenAI client.

    Its model calls the tools in ``calls`` (name and arguments), one a turn, then answers with what they returned. It speaks the
    four APIs of `ScriptedModelServer`, whole and streamed. ``on_request`` gets each request's body, in a thread of the server.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            path = self.path.partition("?")[0]
            make_writer = next((make for end, make in _WRITERS.items() if path.endswith(f"/{end}")), None)
            if make_writer is None:
                self.send_error(404)
                return
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if on_request is not None:
                on_request(body)
            writer = make_writer(_following(body, calls), body, "offline", False)
            streamed = bool(body.get("stream"))
            data = ("".join(writer.frames()) if streamed else json.dumps(writer.body())).encode()
            self.send_response(200)
            self.send_header("content-type", "text/event-stream" if streamed else "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


def _following(body: Mapping[str, Any], calls: Sequence[tuple[str, Mapping[str, Any]]]) -> ScriptedReply:
    """The reply to a request: how often the model has spoken in its transcript says which call comes next."""
    transcript = body.get("messages") or body.get("input") or ()
    messages: list[dict[str, Any]] = [] if isinstance(transcript, str) else list(transcript)
    turn = sum(message.get("role") == "assistant" or message.get("type") == "function_call" for message in messages)
    if turn < len(calls):
        return call(calls[turn][0], **calls[turn][1])
    results = [str(message["content"]) for message in messages if message.get("role") == "tool"]
    refused = sum(result.startswith(("DENIED", "NOT RUN YET")) for result in results)
    refusals = f"Refused calls: {refused}. " if refused else ""
    return ScriptedReply(f"{refusals}The last answer I got: {results[-1] if results else 'none'}")
