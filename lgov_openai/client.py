"""`govern_client` puts one openai client, and all copies made of it, under policy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from openai import AsyncOpenAI, OpenAI

from lgov_openai.interceptor import Interceptor, intercepting

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

C = TypeVar("C", OpenAI, AsyncOpenAI)

_MARKER = "_lgov_interceptors"


def govern_client(client: C, governor: Governor) -> C:
    """Puts ``client`` (an ``OpenAI`` or ``AsyncOpenAI``, or a subclass) under policy, and returns it::

        client = govern_client(OpenAI(), governor)

    User messages, model calls, replies, proposed tool calls, the results that the program sends back and final answers
    are evaluated. A denied call is not in what the program gets: the model is asked again with the denial, or reads it
    with the next request. Copies (``client.with_options(...)``) are governed too, and share its memory. Streams are
    withheld until the reply has been evaluated; with ``observe_only`` they are passed on as they arrive. A decision that
    aborts the run raises `PolicyDenied`. Fails closed: a reply that cannot be read is withheld.

    Governing a client twice with one governor changes nothing; with two governors both evaluate. Raises
    `InstrumentationError` if the client's HTTP client cannot be governed. Not while another thread uses the client.
    """
    interceptors: tuple[Interceptor, ...] = getattr(client, _MARKER, ())
    if not any(one.governor() is governor for one in interceptors):
        _govern(client, (*interceptors, Interceptor(lambda: governor)))
    return client


def _govern(client: Any, interceptors: tuple[Interceptor, ...]) -> Any:
    with intercepting(client, interceptors):  # raises for a client that cannot be governed
        pass
    setattr(client, _MARKER, interceptors)
    client.request = partial(_arequest if isinstance(client, AsyncOpenAI) else _request, client)
    client.copy, client.with_options = partial(_copy, client, "copy"), partial(_copy, client, "with_options")
    return client


def _request(client: Any, *args: Any, **kwargs: Any) -> Any:
    with intercepting(client, getattr(client, _MARKER)):
        return type(client).request(client, *args, **kwargs)


async def _arequest(client: Any, *args: Any, **kwargs: Any) -> Any:
    with intercepting(client, getattr(client, _MARKER)):
        return await type(client).request(client, *args, **kwargs)


def _copy(client: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    return _govern(getattr(type(client), method)(client, *args, **kwargs), getattr(client, _MARKER))
