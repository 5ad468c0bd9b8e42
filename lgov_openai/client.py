"""Puts the model calls of openai clients under policy, between a client and its HTTP client.

Everything that an openai client offers (``create``, ``parse``, ``stream``, raw responses, tool runners) calls the client's
``request``, which sends by the ``send`` method of its HTTP client. Both are wrapped: ``request`` says which client is
sending, ``send`` evaluates. The openai client makes what the program gets from the response, as always.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from openai import AsyncOpenAI, OpenAI

from lgov_core.errors import InstrumentationError, PolicyDenied
from lgov_core.instrumentation import Flow, either, foreign, wait
from lgov_core.instrumentation.framework import flow_method
from lgov_core.instrumentation.live_span import MODEL_SERVER, model_call_covered
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.instrumentation.model_flow import model_flow
from lgov_openai.conversations import FRAMEWORK, Memory, RequestEvaluation
from lgov_openai.http_messages import attribute, body_of, protocol_of
from lgov_openai.model_calls import OpenAICall

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

C = TypeVar("C", OpenAI, AsyncOpenAI)

#: The attribute of a governed openai client that holds its interceptors, and of a wrapped ``send``.
_MARKER = "_lgov_interceptors"
_LOCK = threading.Lock()
#: The openai client whose request is being sent, and its interceptors, the outermost first.
_SENDING: contextvars.ContextVar[tuple[Any, Sequence[Interceptor]]] = contextvars.ContextVar(
    "lgov_openai_sending", default=(None, ())
)


class Interceptor:
    """Evaluates model calls by the governor that ``governor`` returns at that moment (None: they are passed on).

    It has one memory of conversations for each governor. Callable from any thread and any number of tasks.
    """

    def __init__(self, governor: Callable[[], Governor | None]) -> None:
        self.governor = governor
        self._memories: WeakKeyDictionary[Governor, Memory] = WeakKeyDictionary()

    def end_recordings(self) -> None:
        """Ends the spans of replies that the program has not read to their end."""
        for memory in list(self._memories.values()):
            memory.end_recordings()

    def forget(self) -> None:
        """Ends all open spans and forgets all conversations."""
        memories, self._memories = self._memories, WeakKeyDictionary()
        for memory in list(memories.values()):
            memory.close()

    def steps(self, request: Any, send: Callable[[Any], Flow[Any]]) -> Flow[Any]:
        """Sends ``request`` by ``send`` if policy allows it; returns the response for the openai client.

        Fails closed: raises `PolicyDenied` for a request or reply that cannot be read, unless nothing evaluates it.
        """
        governor, protocol = self.governor(), protocol_of(request.method, request.url.path)
        if governor is None or protocol is None or model_call_covered(governor):
            return (yield from send(request))
        yield from wait(either(request.read, request.aread))
        memory = self._memories.get(governor) or self._memories.setdefault(governor, Memory())
        try:
            evaluation = RequestEvaluation(governor, memory, protocol, body_of(request))
        except Exception as error:
            if governor.observe_only:
                return (yield from send(request))
            call = ModelCall(governor, framework=FRAMEWORK, model="model", native=request)
            reason = "the request cannot be read, so no policy can evaluate it"
            decision = governor.refuse(call.request([]), "unreadable-request", reason)
            call.refused(decision)
            raise PolicyDenied(decision) from error
        attribute(request)
        return (yield from model_flow(OpenAICall(evaluation, request, send)))


def govern_client(client: C, governor: Governor) -> C:
    """Puts ``client`` (an ``OpenAI`` or ``AsyncOpenAI``, or a subclass) under policy, and returns it::

        client = govern_client(OpenAI(), governor)

    User messages, model calls, replies, proposed tool calls, the results that the program sends back and final answers
    are evaluated. A denied call is not in what the program gets: the model is asked again with the denial, or reads it
    with the next request. Copies (``client.with_options(...)``) are governed too, and share its memory. Streams are
    withheld until the reply has been evaluated; the text of a streamed chat completion that no policy reads, and any
    stream with ``observe_only``, is passed on as it arrives. A decision that
    aborts the run raises `PolicyDenied`. Fails closed: a reply that cannot be read is withheld.

    Governing a client twice with one governor changes nothing; with two governors both evaluate. Raises
    `InstrumentationError` if the client's HTTP client cannot be governed.
    """
    interceptors: Sequence[Interceptor] = getattr(client, _MARKER, ())
    if not any(interceptor.governor() is governor for interceptor in interceptors):
        _wrap_client(client, (*interceptors, Interceptor(lambda: governor)))
    return client


def _wrap_client(client: Any, interceptors: Sequence[Interceptor]) -> Any:
    _wrap_send(http_client_of(client))
    setattr(client, _MARKER, interceptors)
    client.request = functools.partial(wrapped_request(type(client).request, interceptors, _request_of_class), client)
    for name in ("copy", "with_options"):
        setattr(client, name, functools.partial(_governed_copy, client, name, interceptors))
    return client


def _request_of_class(client: Any, *args: Any, **kwargs: Any) -> Any:
    return type(client).request(client, *args, **kwargs)  # instrumentation may replace it later


def _governed_copy(client: Any, method: str, interceptors: Sequence[Interceptor], *args: Any, **kwargs: Any) -> Any:
    return _wrap_client(getattr(type(client), method)(client, *args, **kwargs), interceptors)


def wrapped_request(
    request: Callable[..., Any], interceptors: Sequence[Interceptor], call: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """``request`` of openai clients (by ``call``, if given), whose HTTP requests ``interceptors`` evaluate."""

    def steps(client: Any, *args: Any, **kwargs: Any) -> Flow[Any]:
        with _sending(client, interceptors):
            return (yield from wait(foreign(call or request, client, *args, **kwargs)))

    return flow_method(request, steps)


@contextmanager
def _sending(client: Any, interceptors: Sequence[Interceptor]) -> Generator[None]:
    around, outer = _SENDING.get()
    outer = outer if around is client else ()
    _wrap_send(http_client_of(client))
    token = _SENDING.set((client, (*outer, *(interceptor for interceptor in interceptors if interceptor not in outer))))
    server = MODEL_SERVER.set(str(client.base_url))
    try:
        yield
    finally:
        MODEL_SERVER.reset(server)
        _SENDING.reset(token)


def _wrap_send(http_client: Any) -> None:
    """Makes ``http_client`` send through the interceptors of the client that is sending, if it does not yet."""
    with _LOCK:
        send = http_client.send
        if hasattr(send, _MARKER):
            return

        def steps(request: Any, **kwargs: Any) -> Flow[Any]:
            return _send_steps(request, functools.partial(send, **kwargs), _SENDING.get()[1])

        wrapper = flow_method(send, steps)
        setattr(wrapper, _MARKER, True)
        try:
            http_client.send = wrapper
        except AttributeError as error:
            name = type(http_client).__name__
            raise InstrumentationError(f"{name}.send cannot be wrapped, so this client cannot be governed") from error


def _send_steps(request: Any, send: Callable[[Any], Any], interceptors: Sequence[Interceptor]) -> Flow[Any]:
    if not interceptors:
        return (yield from wait(foreign(send, request)))
    first, *inner = interceptors
    return (yield from first.steps(request, lambda one: _send_steps(one, send, inner)))


def http_client_of(client: Any) -> Any:
    """The HTTP client (httpx2 or httpx) that an openai ``client`` sends through. Raises `InstrumentationError` without one.

    It is the one private attribute of openai that this adapter uses (3.15 to 3.x): nothing public leads to the HTTP client of a
    client that was made before it is governed.
    """
    http_client = getattr(client, "_client", None)
    if not callable(getattr(http_client, "send", None)):
        raise InstrumentationError(
            f"the HTTP client of this {type(client).__name__} was not found, so it cannot be governed",
            hint="use an openai version that lgov is tested with",
        )
    return http_client
