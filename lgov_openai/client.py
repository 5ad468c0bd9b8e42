"""Where the model calls of an openai client pass: between the client and its HTTP client.

Everything that the openai client offers (``create``, ``parse``, ``stream``, raw and streaming responses, helpers that run
tools) sends its request through the HTTP client it was given, so a governed client has a governed view of that one. What
the program gets is made by the openai client from the judged reply and has the form it always has.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from openai import APIStatusError, AsyncOpenAI, OpenAI

from lgov_core.coverage import model_call_covered
from lgov_core.endpoint_headers import endpoint_headers
from lgov_core.errors import ArmError, PolicyDenied
from lgov_core.scope import current_scope
from lgov_core.shared_state import share_state
from lgov_core.types import Action, Decision, Effect, ToolOutcome, new_id
from lgov_openai.chat import ChatProtocol
from lgov_openai.exchange import Answer, Exchange, Received, Send, Steps
from lgov_openai.responses import ResponsesProtocol
from lgov_openai.transcript import Transcripts
from lgov_openai.watching import Watched
from lgov_openai.wire import JSON, Wire, dump, loads, read_events

if TYPE_CHECKING:
    from lgov_core.governor import Governor

C = TypeVar("C", OpenAI, AsyncOpenAI)

_WIRES: tuple[tuple[str, Wire], ...] = (("/chat/completions", ChatProtocol()), ("/responses", ResponsesProtocol()))
#: Headers of a reply that say how its body was sent, not what it says.
_OF_THE_BODY = frozenset({"content-length", "content-encoding", "transfer-encoding"})
_ONCE = frozenset({"idempotency-key", "x-idempotency-key"})
_SEAT = "_lgov_doors"


class Door:
    """Judges the model calls that pass, for whoever ``governor`` names at that moment (None: they pass unjudged).

    One door has one memory of transcripts for each governor. Callable from any thread and any number of tasks.
    """

    def __init__(self, governor: Callable[[], Governor | None]) -> None:
        self.governor = governor
        self._memories: WeakKeyDictionary[Governor, Transcripts] = WeakKeyDictionary()

    def memory_of(self, governor: Governor) -> Transcripts:
        """What passed under ``governor``: what the governor of a self-test kept back is nobody else's."""
        found = self._memories.get(governor)
        return self._memories.setdefault(governor, Transcripts()) if found is None else found

    def forget(self) -> None:
        """Forgets all transcripts."""
        memories, self._memories = self._memories, WeakKeyDictionary()
        for memory in list(memories.values()):
            memory.close()

    def send(self, request: Any, send: Callable[[Any], Any]) -> Any:
        """Sends ``request`` by ``send`` if it may be sent; returns the response that the openai client reads."""
        governor, wire = self._concerned(request)
        if governor is None or wire is None:
            return send(request)
        request.read()
        begun = self._begun(governor, wire, request)
        if begun is None:
            return send(request)
        _attribute(request)
        if isinstance(begun, Watched):
            for outcome in begun.outcomes:
                governor.record(outcome)
            call = begun.begin()
            try:
                with call.span.active(model=governor):
                    response = send(request)
                    response.read()
                received = _received(response, wire, strict=False)
            except BaseException as error:
                call.failed(error)
                raise
            answer, body = begun.answer(call, received), begun.body
            if isinstance(answer, Answer):
                return _response(answer, wire, body, request)
            steps = answer
        else:
            steps, body = begun
        told: Any = None
        while True:
            try:
                step = steps.send(told)
            except StopIteration as end:
                return _response(end.value, wire, body, request)
            try:
                if isinstance(step, Action):
                    told = governor.decide(step)
                elif isinstance(step, ToolOutcome):
                    told = governor.record(step)
                else:
                    with step.span.active(model=governor):
                        response = send(_request(step, request))
                        response.read()
                    told = _received(response, wire, strict=not governor.only_watches)
            except BaseException as error:
                _throw_into(steps, error)
                raise

    async def asend(self, request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `send`, for asynchronous clients."""
        governor, wire = self._concerned(request)
        if governor is None or wire is None:
            return await send(request)
        await request.aread()
        begun = self._begun(governor, wire, request)
        if begun is None:
            return await send(request)
        _attribute(request)
        if isinstance(begun, Watched):
            for outcome in begun.outcomes:
                await governor.arecord(outcome)
            call = begun.begin()
            try:
                with call.span.active(model=governor):
                    response = await send(request)
                    await response.aread()
                received = _received(response, wire, strict=False)
            except BaseException as error:
                call.failed(error)
                raise
            answer, body = begun.answer(call, received), begun.body
            if isinstance(answer, Answer):
                return _response(answer, wire, body, request)
            steps = answer
        else:
            steps, body = begun
        told: Any = None
        while True:
            try:
                step = steps.send(told)
            except StopIteration as end:
                return _response(end.value, wire, body, request)
            try:
                if isinstance(step, Action):
                    told = await governor.adecide(step)
                elif isinstance(step, ToolOutcome):
                    told = await governor.arecord(step)
                else:
                    with step.span.active(model=governor):
                        response = await send(_request(step, request))
                        await response.aread()
                    told = _received(response, wire, strict=not governor.only_watches)
            except BaseException as error:
                _throw_into(steps, error)
                raise

    def _begun(self, governor: Governor, wire: Wire, request: Any) -> Watched | tuple[Steps, JSON] | None:
        """What is to be done for ``request``; None where it cannot be read and nobody has to judge it.

        Where nobody judges it is watched, unless a transcript may lack something: or else the steps of its exchange, and
        what it says.
        """
        memory = self.memory_of(governor)
        try:
            if governor.only_watches and not memory.tells_apart:
                return Watched(governor, memory, wire, request.content)
            body = _body_of(request)
            return Exchange(governor, memory, wire, body).steps(), body
        except Exception:
            if governor.only_watches:
                return None
            raise

    def _concerned(self, request: Any) -> tuple[Governor | None, Wire | None]:
        governor = self.governor()
        if governor is None or model_call_covered(governor):
            return None, None
        return governor, wire_of(request.method, request.url.path)


@lru_cache(maxsize=64)
def wire_of(method: str, path: str) -> Wire | None:
    """The protocol that a request to this path speaks; None if it is no model call."""
    if method.upper() != "POST":
        return None
    path = path.rstrip("/")
    for ending, wire in _WIRES:
        if path.endswith(ending):
            return wire
    return None


def govern_client(client: C, governor: Governor) -> C:
    """Puts ``client`` (an ``OpenAI`` or ``AsyncOpenAI``, or one of their kind) under policy, and returns it::

        client = govern_client(OpenAI(), governor)

    The user's text, each model call, each reply, each proposed tool call, the results that the program sends back and the
    final answers are judged. A denied call is not in what the program gets: the model is asked again with the denial, or
    reads it with the next request. Copies (``client.with_options(...)``) are governed too, and share its memory. Streams
    are held until the reply has been judged. A decision that says abort raises `PolicyDenied` out of the call. Fails
    closed: a reply that cannot be read is withheld.

    Governing a client twice with one governor changes nothing; two governors both have their say.
    """
    doors: tuple[Door, ...] = getattr(type(client), _SEAT, ())
    if not any(door.governor() is governor for door in doors):
        client.__class__ = _governed_class(type(client), (*doors, Door(lambda: governor)))
    return client


def _governed_class(cls: type[Any], doors: tuple[Door, ...]) -> type[Any]:
    plain_class = next(one for one in cls.__mro__ if _SEAT not in vars(one))

    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        for door in doors:
            stand_before(self, door)
        return plain_class.request(self, *args, **kwargs)

    attributes = {
        "request": request,
        _SEAT: doors,
        "__module__": plain_class.__module__,
        "__doc__": plain_class.__doc__,
    }
    return type(plain_class.__name__, (plain_class,), attributes)


# ---------------------------------------------------------------------- the HTTP client

_LOCK = threading.Lock()


def stand_before(client: Any, door: Door) -> None:
    """Makes the openai client send through ``door``, if it does not yet. Raises `ArmError` if that cannot be done."""
    inner: Any = getattr(client, "_client", None)
    if door in getattr(type(inner), _SEAT, ()):
        return
    with _LOCK:
        inner = getattr(client, "_client", None)
        if not isinstance(getattr(inner, "__dict__", None), dict) or not callable(getattr(inner, "send", None)):
            raise ArmError("this openai client has no HTTP client that can be governed")
        if door not in getattr(type(inner), _SEAT, ()):
            client._client = _view(inner, door)


def _view(inner: Any, door: Door) -> Any:
    """The same HTTP client with a door before it. It shares all state: closing one closes the other."""
    cls: Any = type(inner)

    def send(self: Any, request: Any, **kwargs: Any) -> Any:
        return door.send(request, partial(cls.send, self, **kwargs))

    async def asend(self: Any, request: Any, **kwargs: Any) -> Any:
        return await door.asend(request, partial(cls.send, self, **kwargs))

    sends = asend if inspect.iscoroutinefunction(cls.send) else send
    attributes = {"send": sends, _SEAT: (*getattr(cls, _SEAT, ()), door), "__module__": cls.__module__}
    view = object.__new__(type(cls.__name__, (cls,), attributes))
    state = share_state(view, inner)
    state.setdefault("_lgov_seen_through", []).append(inner)  # some close themselves when nobody holds them
    return view


# ---------------------------------------------------------------------- requests and responses


def _throw_into(steps: Steps, error: BaseException) -> None:
    """Lets the exchange clean up after ``error``, which goes on in any case."""
    with suppress(StopIteration):
        steps.throw(error)


def _body_of(request: Any) -> JSON:
    try:
        body = json.loads(request.content)
        if isinstance(body, dict):
            return cast(JSON, body)
    except (ValueError, RecursionError):
        pass
    raise _unreadable("request")


def _unreadable(what: str) -> PolicyDenied:
    reason = f"the {what} cannot be read, so nobody can judge it"
    return PolicyDenied(Decision(Effect.DENY, "lgov", f"unreadable-{what}", reason, fault=True))


def _attribute(request: Any) -> None:
    if (scope := current_scope()) is not None:
        request.headers.update(endpoint_headers(str(request.url), scope))


def _request(step: Send, request: Any) -> Any:
    if step.body is None:
        return request
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() not in _OF_THE_BODY]
    if step.again:  # A server that knows the key would answer with the reply it gave before.
        headers = [(name, new_id("lgov") if name.lower() in _ONCE else value) for name, value in headers]
    content = json.dumps(step.body, separators=(",", ":")).encode()
    return type(request)(
        request.method, request.url, headers=headers, content=content, extensions=dict(request.extensions)
    )


def _received(response: Any, wire: Wire, *, strict: bool) -> Received:
    """What ``response`` says. Raises `PolicyDenied` for one that cannot be read, or has it passed on if not ``strict``."""
    if not 200 <= response.status_code < 300:
        error = APIStatusError(f"Error code: {response.status_code}", response=response, body=None)
        return Received(response, None, error=error)
    events: list[JSON] = []
    content: bytes = response.content
    try:
        # A stream begins with the name of a field. Where it is judged, it is read as the client will: by its header.
        if (strict or content[:1] != b"{") and _is_stream(response):
            events = read_events(content.decode())
            reply = wire.from_stream(events)
        else:
            reply = loads(content)
        if reply is not None:
            turns = wire.turns(reply)
            return Received(response, reply, events, turns=turns, reading=wire.reading(reply, turns))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        if not strict:
            return Received(response, None, error=error)
        raise _unreadable("reply") from error
    if not strict:
        return Received(response, None, error=RuntimeError("a stream without an end"))
    failed = [event for event in events if "error" in event or event.get("type") in ("error", "response.failed")]
    if not failed:
        raise _unreadable("reply")
    # The program learns that the model failed, and nothing of what it said until then.
    said = "".join(f"data: {dump(event)}\n\n" for event in failed)
    return Received(_made(response, said), None, error=RuntimeError("the model failed in the middle of a stream"))


def _is_stream(response: Any) -> bool:
    return str(response.headers.get("content-type", "")).lower().startswith("text/event-stream")


def _response(answer: Answer, wire: Wire, body: JSON, request: Any) -> Any:
    """What the openai client reads."""
    received = answer.received
    if answer.reply is None:
        assert received is not None
        return received.response
    if received is not None:
        streamed = _is_stream(received.response)
        content = wire.to_stream(body, answer.reply, received.events) if streamed else json.dumps(answer.reply)
        return _made(received.response, content)
    streamed = bool(body.get("stream"))
    content = wire.to_stream(body, answer.reply, ()) if streamed else json.dumps(answer.reply)
    library = sys.modules[type(request).__module__.partition(".")[0]]
    headers = {"content-type": "text/event-stream" if streamed else "application/json"}
    made = library.Response(200, headers=headers, content=content.encode(), request=request)
    made.elapsed = timedelta(0)
    return made


def _made(response: Any, content: str) -> Any:
    """``response`` with another body."""
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _OF_THE_BODY]
    made = type(response)(
        response.status_code,
        headers=headers,
        content=content.encode(errors="replace"),
        request=response.request,
        extensions=response.extensions,
    )
    made.elapsed = timedelta(0)
    with suppress(RuntimeError):  # a response that no client measured has no such time
        made.elapsed = response.elapsed
    return made
