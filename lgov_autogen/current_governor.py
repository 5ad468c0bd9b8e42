"""Which governor is asked: that of a component, or that of the instrumented process. Imports no framework."""

from __future__ import annotations

import contextvars
from collections.abc import Generator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation import Governor

_LOADING: contextvars.ContextVar[Governor | None] = contextvars.ContextVar("lgov_autogen_loading", default=None)


@contextmanager
def governing(governor: Governor) -> Generator[Governor]:
    """Gives ``governor`` to the governed components that are loaded (``load_component``) inside the block.

    A governor cannot be written into a component's configuration.
    """
    token = _LOADING.set(governor)
    try:
        yield governor
    finally:
        _LOADING.reset(token)


class GovernedComponent:
    """A component with a governor: the one it was made with, that of `governing`, or that of the instrumented process."""

    def _use_governor(self, governor: Governor | None) -> None:
        self._own_governor = governor if governor is not None else _LOADING.get()

    @property
    def governor(self) -> Governor:
        """The governor that is asked. Raises `InstrumentationError` without one."""
        governor = self._own_governor if self._own_governor is not None else INSTRUMENTOR.governor
        if governor is None:
            raise InstrumentationError(
                f"{type(self).__name__} has no governor, so it does nothing",
                hint="give it one, load it inside `with governing(governor):`, or instrument the process",
            )
        return governor


def behind(path: str) -> Any:
    """An attribute of a governed component that is that of the component behind it, at ``path``."""
    return property(attrgetter(path))
