"""Where the model calls of an openai client pass: between the client and its HTTP client.

Everything that the openai client offers (``create``, ``parse``, ``stream``, raw and streaming responses, helpers that run
tools) sends its request through the HTTP client it was given, so a governed client has a governed view of that one. What
the program gets is made by the openai client from the judged reply and has the form it always has. Where nobody judges
the program gets the reply itself.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from openai import AsyncOpenAI, OpenAI

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation.evaluated_call import model_call_covered
from lgov_core.instrumentation.shared_state import share_state
from lgov_core.types import Action, ToolOutcome
from lgov_openai.exchange import Exchange, Steps
from lgov_openai.http_messages import attribute, body_of, received, request_of, response_of, unreadable, wire_of
from lgov_openai.transcript import Transcripts
from lgov_openai.watching import Watched

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor
    from lgov_openai.protocol import JSON, Wire

C = TypeVar("C", OpenAI, AsyncOpenAI)

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

    def settle(self) -> None:
        """Ends the replies that are still on their way to the program: those that it read no further."""
        for memory in list(self._memories.values()):
            memory.end_passing()

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
        if governor.observe_only:
            return self._watch(governor, wire, request, send)
        steps, body = self._begun(governor, wire, request)
        attribute(request)
        told: Any = None
        while True:
            try:
                step = steps.send(told)
            except StopIteration as end:
                return response_of(end.value, wire, body, request)
            try:
                if isinstance(step, Action):
                    told = governor.decide(step)
                elif isinstance(step, ToolOutcome):
                    told = governor.record(step)
                else:
                    with step.span.active(model=governor):
                        response = send(request_of(step, request))
                        response.read()
                    told = received(response, wire)
            except BaseException as error:
                _throw_into(steps, error)
                raise

    async def asend(self, request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
        """As `send`, for asynchronous clients."""
        governor, wire = self._concerned(request)
        if governor is None or wire is None:
            return await send(request)
        await request.aread()
        if governor.observe_only:
            return await self._awatch(governor, wire, request, send)
        steps, body = self._begun(governor, wire, request)
        attribute(request)
        told: Any = None
        while True:
            try:
                step = steps.send(told)
            except StopIteration as end:
                return response_of(end.value, wire, body, request)
            try:
                if isinstance(step, Action):
                    told = await governor.adecide(step)
                elif isinstance(step, ToolOutcome):
                    told = await governor.arecord(step)
                else:
                    with step.span.active(model=governor):
                        response = await send(request_of(step, request))
                        await response.aread()
                    told = received(response, wire)
            except BaseException as error:
                _throw_into(steps, error)
                raise

    def _watch(self, governor: Governor, wire: Wire, request: Any, send: Callable[[Any], Any]) -> Any:
        watched = self._watched(governor, wire, request)
        if watched is None:
            return send(request)
        attribute(request)
        for outcome in watched.outcomes:
            governor.record(outcome)
        call = watched.begin()
        try:
            with call.span.active(model=governor):
                response = send(request)
        except BaseException as error:
            call.failed(error)
            raise
        if response.is_closed:
            watched.answer(call, response)
        else:  # a stream, or a reply that the program reads in its own way
            watched.follow(call, response, asynchronous=False)
        return response

    async def _awatch(self, governor: Governor, wire: Wire, request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
        watched = self._watched(governor, wire, request)
        if watched is None:
            return await send(request)
        attribute(request)
        for outcome in watched.outcomes:
            await governor.arecord(outcome)
        call = watched.begin()
        try:
            with call.span.active(model=governor):
                response = await send(request)
        except BaseException as error:
            call.failed(error)
            raise
        if response.is_closed:
            watched.answer(call, response)
        else:
            watched.follow(call, response, asynchronous=True)
        return response

    def _watched(self, governor: Governor, wire: Wire, request: Any) -> Watched | None:
        """What notes ``request``; None where it cannot be read, and nobody has to judge it."""
        try:
            return Watched(governor, self.memory_of(governor), wire, request.content)
        except Exception:  # noqa: BLE001 - whatever it is, it is no reason not to send
            return None

    def _begun(self, governor: Governor, wire: Wire, request: Any) -> tuple[Steps, JSON]:
        """The steps of the exchange that ``request`` begins, and what it says. Raises `PolicyDenied` if that is unreadable."""
        body = body_of(request)
        try:
            exchange = Exchange(governor, self.memory_of(governor), wire, body)
        except Exception as error:
            raise unreadable("request") from error
        return exchange.steps(), body

    def _concerned(self, request: Any) -> tuple[Governor | None, Wire | None]:
        governor = self.governor()
        if governor is None or model_call_covered(governor):
            return None, None
        return governor, wire_of(request.method, request.url.path)


def govern_client(client: C, governor: Governor) -> C:
    """Puts ``client`` (an ``OpenAI`` or ``AsyncOpenAI``, or one of their kind) under policy, and returns it::

        client = govern_client(OpenAI(), governor)

    The user's text, each model call, each reply, each proposed tool call, the results that the program sends back and the
    final answers are judged. A denied call is not in what the program gets: the model is asked again with the denial, or
    reads it with the next request. Copies (``client.with_options(...)``) are governed too, and share its memory. Streams
    are held until the reply has been judged; where the governor only watches they pass as they come. A decision that says
    abort raises `PolicyDenied` out of the call. Fails closed: a reply that cannot be read is withheld.

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
    """Makes the openai client send through ``door``, if it does not yet. Raises `InstrumentationError` if that
    cannot be done.
    """
    inner: Any = getattr(client, "_client", None)
    if door in getattr(type(inner), _SEAT, ()):
        return
    with _LOCK:
        inner = getattr(client, "_client", None)
        if not isinstance(getattr(inner, "__dict__", None), dict) or not callable(getattr(inner, "send", None)):
            raise InstrumentationError("this openai client has no HTTP client that can be governed")
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


def _throw_into(steps: Steps, error: BaseException) -> None:
    """Lets the exchange clean up after ``error``, which goes on in any case."""
    with suppress(StopIteration):
        steps.throw(error)
