"""Replaces methods in every class below a base class: those that exist, and those that are defined later."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from lgov_core.flow import Flow, arun_flow, run_flow
from lgov_core.instrumentation.instrumentor import Patches

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap_methods(patches: Patches, base: type, wraps: Mapping[str, Wrap]) -> None:
    """Puts ``wraps`` around the methods of these names wherever ``base`` or a class below it defines one.

    An abstract method is left alone. A class that is defined before the patches are undone is treated too.
    """

    def treat(cls: type) -> None:
        for name, wrap in wraps.items():
            method = vars(cls).get(name)
            if callable(method) and not getattr(method, "__isabstractmethod__", False):
                patches.replace(cls, name, wrap(method))

    for cls in subclasses_of(base):
        treat(cls)
    on_subclass(patches, base, treat)


def governed_method(govern: Callable[..., Awaitable[Any]]) -> Wrap:
    """Wraps an asynchronous method: ``govern`` gets the object, its own method, and the arguments."""

    def wrap(own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await govern(self, functools.partial(own, self), *args, **kwargs)

        return method

    return wrap


def governed_stream(govern: Callable[..., AsyncGenerator[Any]]) -> Wrap:
    """As `governed_method`, for an asynchronous generator; it is closed with the one that the program reads."""

    def wrap(own: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(own)
        async def method(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
            async with aclosing(govern(self, functools.partial(own, self), *args, **kwargs)) as events:
                async for event in events:
                    yield event

        return method

    return wrap


def flow_method(own: Callable[..., Any], steps: Callable[..., Flow[Any]]) -> Callable[..., Any]:
    """A function like ``own``, synchronous or a coroutine function as that is, which runs the flow ``steps``."""

    @functools.wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        return run_flow(steps(*args, **kwargs))

    @functools.wraps(own)
    async def coroutine_function(*args: Any, **kwargs: Any) -> Any:
        return await arun_flow(steps(*args, **kwargs))

    return coroutine_function if inspect.iscoroutinefunction(own) else function


def on_subclass(patches: Patches, base: type, treat: Callable[[type], None]) -> None:
    """Calls ``treat`` with each class that is defined below ``base`` before the patches are undone."""
    own: Any = vars(base).get("__init_subclass__")

    def init_subclass(cls: type, **kwargs: Any) -> None:
        if own is not None:
            own.__get__(None, cls)(**kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        treat(cls)

    patches.replace(base, "__init_subclass__", classmethod(init_subclass))


def subclasses_of(base: type) -> Iterator[type]:
    """``base`` and every class below it, each once."""
    found: set[type] = set()
    left = [base]
    while left:
        cls = left.pop()
        if cls not in found:
            found.add(cls)
            left += type.__subclasses__(cls)
            yield cls
