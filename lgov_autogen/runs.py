"""Which agent the running code works for, the span of its run, and the governor of a component.

A run is a context variable, which the tasks and threads of its tools inherit.
"""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from lgov_autogen.instrumentor import INSTRUMENTOR
from lgov_autogen.messages import FRAMEWORK
from lgov_core.errors import InstrumentationError, PolicyDenied
from lgov_core.instrumentation import Governor, semconv
from lgov_core.instrumentation.live_span import CoveredCall, LiveSpan, covered_call
from lgov_core.scope import inherited
from lgov_core.types import Decision


@dataclass(slots=True)
class Run:
    """One run of an agent. ``owner`` is the agent itself, ``inside`` the evaluated tool call that started the run.

    ``aborted`` is set when a decision ends the run where raising would leave the agent waiting for ever; `_step` and the
    next model call raise it. Used by the tasks of one run.
    """

    agent: str | None = None
    owner: object = None
    parent: Run | None = None
    inside: CoveredCall | None = None
    aborted: Decision | None = None
    aborted_calls: set[str] = field(default_factory=set[str])

    @property
    def nested(self) -> bool:
        """True where another agent, or a tool, asked for this run."""
        above = self.parent
        return self.inside is not None or (above is not None and (above.owner is not None or above.nested))


_END: Any = object()

_RUN: contextvars.ContextVar[Run | None] = contextvars.ContextVar("lgov_autogen_run", default=None)


def current_run() -> Run | None:
    """The run of the agent that the running code works for, or None. Callable from any task."""
    return _RUN.get()


def ensure_run() -> Run:
    """The current run, or a nameless one for the calling context: a program's own loop around a model client."""
    run = _RUN.get()
    if run is None:
        run = Run(parent=inherited(_RUN))
        _RUN.set(run)
    return run


def end_at_next_step(decision: Decision, call_id: str | None) -> None:
    """Has the run, and every run that it belongs to, ended by `PolicyDenied`."""
    run = _RUN.get()
    while run is not None:
        run.aborted = decision
        run.aborted_calls.add(call_id or "")
        run = run.parent


@contextmanager
def _inside(run: Run, span: LiveSpan) -> Generator[None]:
    token = _RUN.set(run)
    try:
        with span.active():
            yield
    finally:
        _RUN.reset(token)


@contextmanager
def _step(run: Run, span: LiveSpan) -> Generator[None]:
    """A step of the run. Raises `PolicyDenied` at the end of an aborted one, also for another error of the framework."""
    try:
        with _inside(run, span):
            yield
    except Exception as error:
        if run.aborted is None or isinstance(error, PolicyDenied):
            raise
        raise PolicyDenied(run.aborted) from error
    if run.aborted is not None:
        raise PolicyDenied(run.aborted)


def _is_own_method(agent: Any) -> bool:
    """Returns whether the agent calls its own method, inside its own run."""
    run = _RUN.get()
    return run is not None and run.owner is agent and run.inside is covered_call()


def _run_of(governor: Governor, name: str, owner: object) -> tuple[Run, LiveSpan]:
    """A run and its span. A team has no ``owner`` and no agent: what its members do is theirs."""
    attributes: dict[str, Any] = {semconv.AGENT_NAME: name, semconv.FRAMEWORK: FRAMEWORK}
    run = Run(None if owner is None else name, owner, inherited(_RUN), covered_call())
    return run, LiveSpan(governor, semconv.INVOKE_AGENT, name, attributes)


async def on_messages(agent: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``BaseChatAgent.on_messages`` inside a run; ``own`` is the agent's own method."""
    governor = INSTRUMENTOR.governor
    if governor is None or _is_own_method(agent):
        return await own(*args, **kwargs)
    run, span = _run_of(governor, str(agent.name), agent)
    try:
        with _step(run, span):
            response = await own(*args, **kwargs)
    except BaseException as error:
        span.end(error)
        raise
    span.end()
    return response


def on_messages_stream(agent: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
    """``BaseChatAgent.on_messages_stream`` inside a run; an aborted run ends at the next event."""
    governor = INSTRUMENTOR.governor
    events: AsyncGenerator[Any] = own(*args, **kwargs)
    if governor is None or _is_own_method(agent):
        return events
    return _events_in(*_run_of(governor, str(agent.name), agent), events)


def run_team_stream(team: Any, own: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
    """``BaseGroupChat.run_stream`` inside a run; the members' runs are below it."""
    governor = INSTRUMENTOR.governor
    events: AsyncGenerator[Any] = own(*args, **kwargs)
    return events if governor is None else _events_in(*_run_of(governor, str(team.name), None), events)


async def _events_in(run: Run, span: LiveSpan, events: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    """The events of a run, each fetched inside the run; ends the span with the last of them."""
    problem: BaseException | None = None
    try:
        while True:
            with _step(run, span):
                event = await anext(events, _END)
            if event is _END:
                break
            yield event
    except BaseException as error:
        problem = error
        raise
    finally:
        try:
            with _inside(run, span):
                await events.aclose()
        finally:
            span.end(None if isinstance(problem, GeneratorExit) else problem)


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
