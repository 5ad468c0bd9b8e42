"""Puts the model calls of openai clients under policy, between a client and its HTTP client.

Everything that an openai client offers (``create``, ``parse``, ``stream``, raw responses, tool runners) sends its request
by the ``send`` method of its HTTP client. That method is wrapped; the wrapper evaluates the request of a governed client
and passes any other on. The openai client makes what the program gets from the response, as always.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation import Step, Steps, arun_steps, run_steps
from lgov_core.instrumentation.evaluated_call import model_call_covered
from lgov_openai._internals import http_client_of
from lgov_openai.exchange import Exchange
from lgov_openai.http_messages import attribute, body_of, protocol_of, unreadable
from lgov_openai.memory import Memory
from lgov_openai.request_evaluation import RequestEvaluation

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

_MARKER = "_lgov_governed"
_LOCK = threading.Lock()
#: The openai client whose request is being sent, and its interceptors.
_CURRENT: contextvars.ContextVar[tuple[Any, tuple[Interceptor, ...]]] = contextvars.ContextVar(
    "lgov_openai_interceptors", default=(None, ())
)


class Interceptor:
    """Governs model calls for the governor that ``governor`` returns at that moment (None: they are passed on).

    It has one memory of conversations for each governor. Callable from any thread and any number of tasks.
    """

    def __init__(self, governor: Callable[[], Governor | None]) -> None:
        self.governor = governor
        self._memories: WeakKeyDictionary[Governor, Memory] = WeakKeyDictionary()

    def memory_of(self, governor: Governor) -> Memory:
        """The conversations under ``governor``: a self-test has a governor, and so a memory, of its own."""
        found = self._memories.get(governor)
        return self._memories.setdefault(governor, Memory()) if found is None else found

    def end_streams(self) -> None:
        """Ends the spans of streams that the program has not read to their end."""
        for memory in list(self._memories.values()):
            memory.streams.end()

    def forget(self) -> None:
        """Ends all open spans and forgets all conversations."""
        memories, self._memories = self._memories, WeakKeyDictionary()
        for memory in list(memories.values()):
            memory.close()

    def steps(self, request: Any, send: Callable[[Any], Any]) -> Steps[Any]:
        """Sends ``request`` by ``send`` if policy allows it; returns the response for the openai client.

        Fails closed: raises `PolicyDenied` for a request or reply that cannot be read, unless nothing evaluates it.
        """
        governor, protocol = self.governor(), protocol_of(request.method, request.url.path)
        if governor is None or protocol is None or model_call_covered(governor):
            return (yield Step(lambda: send(request)))
        yield Step(request.read, request.aread)
        try:
            evaluation = RequestEvaluation(governor, self.memory_of(governor), protocol, body_of(request))
        except Exception as error:
            if governor.observe_only:
                return (yield Step(lambda: send(request)))
            raise unreadable("request") from error
        attribute(request)
        return (yield from Exchange(evaluation, request, send).steps())


@contextmanager
def intercepting(client: Any, interceptors: Sequence[Interceptor]) -> Generator[None]:
    """Has ``interceptors`` govern the requests that the openai ``client`` sends inside the block, the first outermost."""
    around, current = _CURRENT.get()
    current = current if around is client else ()
    _wrap_send(http_client_of(client))
    token = _CURRENT.set((client, (*current, *(one for one in interceptors if one not in current))))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _wrap_send(http_client: Any) -> None:
    """Makes ``http_client`` send through the current interceptors, if it does not yet."""
    with _LOCK:
        send = http_client.send
        if hasattr(send, _MARKER):
            return
        wrapper = _async_send(send) if inspect.iscoroutinefunction(send) else _sync_send(send)
        setattr(wrapper, _MARKER, True)
        try:
            http_client.send = wrapper
        except AttributeError as error:
            name = type(http_client).__name__
            raise InstrumentationError(
                f"the method send of this {name} cannot be wrapped, so it cannot be governed"
            ) from error


def _sync_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def governed_send(request: Any, **kwargs: Any) -> Any:
        sending: Callable[[Any], Any] = functools.partial(send, **kwargs)
        for interceptor in reversed(_CURRENT.get()[1]):
            sending = functools.partial(_run, interceptor, sending)
        return sending(request)

    return governed_send


def _async_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def governed_send(request: Any, **kwargs: Any) -> Any:
        sending: Callable[[Any], Any] = functools.partial(send, **kwargs)
        for interceptor in reversed(_CURRENT.get()[1]):
            sending = functools.partial(_arun, interceptor, sending)
        return await sending(request)

    return governed_send


def _run(interceptor: Interceptor, send: Callable[[Any], Any], request: Any) -> Any:
    return run_steps(interceptor.steps(request, send))


async def _arun(interceptor: Interceptor, send: Callable[[Any], Any], request: Any) -> Any:
    return await arun_steps(interceptor.steps(request, send))
