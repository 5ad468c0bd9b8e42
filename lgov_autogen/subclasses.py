"""Wraps methods in every class below a base class: those that exist, and those that are defined later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lgov_core.instrumentation.instrumentor import Patches

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap_methods(patches: Patches, base: type, wraps: Mapping[str, Wrap]) -> None:
    """Puts ``wraps`` around the methods of these names wherever ``base`` or a class below it defines one.

    A method that is only declared (abstract) is left alone. A class that is defined later is treated when it is made, for
    as long as the patches stand.
    """

    def treat(cls: type) -> None:
        for name, wrap in wraps.items():
            method = vars(cls).get(name)
            if callable(method) and not getattr(method, "__isabstractmethod__", False):
                patches.replace(cls, name, wrap(method))

    for cls in (base, *_below(base)):
        treat(cls)
    own: Any = vars(base).get("__init_subclass__")

    def init_subclass(cls: type, **kwargs: Any) -> None:
        if own is not None:
            own.__get__(None, cls)(**kwargs)
        else:
            super(base, cls).__init_subclass__(**kwargs)
        treat(cls)

    patches.replace(base, "__init_subclass__", classmethod(init_subclass))


def _below(base: type) -> Iterator[type]:
    seen: set[type] = set()
    left = list(base.__subclasses__())
    while left:
        cls = left.pop()
        if cls not in seen:
            seen.add(cls)
            left += cls.__subclasses__()
            yield cls
