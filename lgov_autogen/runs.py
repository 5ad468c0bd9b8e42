"""Which agent the running code works for, and the governor of a component.

A run is a context variable, which the tasks and threads of its tools inherit.
"""

from __future__ import annotations

import contextvars
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_core.errors import InstrumentationError
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.live_span import CoveredCall
from lgov_core.scope import inherited
from lgov_core.types import Decision


@dataclass(slots=True)
class Run:
    """One run of an agent. ``owner`` is the agent itself, ``inside`` the evaluated tool call that started the run.

    ``aborted`` is set when a decision ends the run where raising would leave the agent waiting for ever; `_step` and the
    next model call raise it. ``of_team`` says that it is one of a team. Used by the tasks of one run.
    """

    agent: str | None = None
    owner: object = None
    parent: Run | None = None
    inside: CoveredCall | None = None
    of_team: bool = False
    aborted: Decision | None = None
    aborted_calls: set[str] = field(default_factory=set[str])

    @property
    def nested(self) -> bool:
        """True where another agent, or a tool, asked for this run."""
        above = self.parent
        return self.inside is not None or (above is not None and (above.owner is not None or above.nested))


#: The run of the agent that the running code works for.
RUN: contextvars.ContextVar[Run | None] = contextvars.ContextVar("lgov_autogen_run", default=None)


def current_run() -> Run | None:
    """The run of the agent that the running code works for, or None. Callable from any task."""
    return RUN.get()


def ensure_run() -> Run:
    """The current run, or a nameless one for the calling context: a program's own loop around a model client."""
    run = RUN.get()
    if run is None:
        run = Run(parent=inherited(RUN))
        RUN.set(run)
    return run


def end_at_next_step(decision: Decision, call_id: str | None) -> None:
    """Has the run, and every run that it belongs to, ended by `PolicyDenied`."""
    run = RUN.get()
    while run is not None:
        run.aborted = decision
        run.aborted_calls.add(call_id or "")
        run = run.parent


# ---------------------------------------------------------------------- the governor of a component

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
