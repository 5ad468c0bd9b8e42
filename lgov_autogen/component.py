"""Which governor a component asks that was made from its configuration: a governor cannot be written into one."""

from __future__ import annotations

import contextvars
from collections.abc import Generator
from contextlib import contextmanager

from lgov_autogen.instrumentor import acting_governor
from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation import Governor

_GOVERNING: contextvars.ContextVar[Governor | None] = contextvars.ContextVar("lgov_autogen_governing", default=None)


@contextmanager
def governing(governor: Governor) -> Generator[Governor]:
    """Gives ``governor`` to the governed components that are loaded (``load_component``) inside the block."""
    token = _GOVERNING.set(governor)
    try:
        yield governor
    finally:
        _GOVERNING.reset(token)


def chosen_governor(given: Governor | None) -> Governor | None:
    """The governor of a component that is being made: the given one, or that of `governing`, or None."""
    return given if given is not None else _GOVERNING.get()


def governor_of(chosen: Governor | None, component: object) -> Governor:
    """The governor to ask now: the chosen one, or else that of the instrumented process. Raises
    `InstrumentationError` without one.
    """
    governor = chosen if chosen is not None else acting_governor()
    if governor is None:
        raise InstrumentationError(
            f"{type(component).__name__} has no governor, so it does nothing",
            hint="give it one, load it inside `with governing(governor):`, or instrument the process",
        )
    return governor
