"""Which agent the running code works for, and the span of its run.

A run is a context variable: tasks that tools run in inherit it. `wrap_on_messages` and `wrap_on_messages_stream` open
one around each run of an agent, `wrap_team_stream` a span around each run of a team.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from lgov_autogen.messages import FRAMEWORK
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, semconv
from lgov_core.instrumentation.evaluated_call import CoveredCall, covered_call
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.types import Decision


@dataclass(slots=True)
class Run:
    """One run of an agent. ``owner`` is the agent itself, ``inside`` the judged tool call that started the run.

    ``aborted`` is set when a decision asks for the end of the run where raising would leave the agent waiting for ever;
    whoever drives the run raises it at the next step. Used by the tasks of one run.
    """

    agent: str | None = None
    owner: object = None
    parent: Run | None = None
    inside: CoveredCall | None = None
    aborted: Decision | None = None
    aborted_calls: set[str] = field(default_factory=set[str])

    @property
    def nested(self) -> bool:
        """Whether another agent, or a tool, asked for this run."""
        above = self.parent
        return self.inside is not None or (above is not None and (above.owner is not None or above.nested))


_NO_MORE: Any = object()

_RUN: contextvars.ContextVar[Run | None] = contextvars.ContextVar("lgov_autogen_run", default=None)


def current_run() -> Run | None:
    """The run of the agent that the running code works for, or None. Callable from any task."""
    return _RUN.get()


def begin_loop() -> Run:
    """The current run, or a nameless one for the calling context: a loop whose agent nobody saw beginning."""
    run = _RUN.get()
    if run is None:
        run = Run()
        _RUN.set(run)
    return run


def end_at_next_step(decision: Decision, call_id: str | None) -> None:
    """Notes that the run, and every run it belongs to, is to be ended by `PolicyDenied`."""
    run = _RUN.get()
    while run is not None:
        run.aborted = decision
        run.aborted_calls.add(call_id or "")
        run = run.parent


class _Inside:
    """Makes a run the current one inside the block; a generator would take twice as long, and each event passes here."""

    __slots__ = ("_active", "_run", "_token")

    def __init__(self, run: Run, span: LiveSpan) -> None:
        self._run = run
        self._active = span.active()

    def __enter__(self) -> None:
        self._token = _RUN.set(self._run)
        self._active.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        try:
            self._active.__exit__(kind, error, traceback)
        finally:
            _RUN.reset(self._token)


class _Step(_Inside):
    """As `_Inside`; ends an aborted run by `PolicyDenied`, also where the framework has made another error of it."""

    __slots__ = ()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        super().__exit__(kind, error, traceback)
        aborted = self._run.aborted
        if aborted is None or isinstance(error, PolicyDenied):
            return
        if error is None or isinstance(error, Exception):
            raise PolicyDenied(aborted) from error


def _begin(governor: Governor, agent: Any) -> tuple[Run, LiveSpan] | None:
    """A run and its span, or None where the agent only calls its own other method."""
    if _is_own_step(agent):
        return None
    name = str(agent.name)
    attributes: dict[str, Any] = {semconv.AGENT_NAME: name, semconv.FRAMEWORK: FRAMEWORK}
    return Run(name, agent, _RUN.get(), covered_call()), LiveSpan(governor, semconv.INVOKE_AGENT, name, attributes)


def _is_own_step(agent: Any) -> bool:
    """Whether the agent calls its own method, inside a run of its own."""
    run = _RUN.get()
    return run is not None and run.owner is agent and run.inside is covered_call()


def wrap_on_messages(acting: Callable[[], Governor | None], on_messages: Callable[..., Any]) -> Callable[..., Any]:
    """``BaseChatAgent.on_messages`` inside a run of its own."""

    @functools.wraps(on_messages)
    async def governed_on_messages(self: Any, *args: Any, **kwargs: Any) -> Any:
        governor = acting()
        begun = None if governor is None else _begin(governor, self)
        if begun is None:
            return await on_messages(self, *args, **kwargs)
        run, span = begun
        try:
            with _Step(run, span):
                response = await on_messages(self, *args, **kwargs)
        except BaseException as error:
            span.end(error)
            raise
        span.end()
        return response

    return governed_on_messages


def wrap_on_messages_stream(
    acting: Callable[[], Governor | None], stream: Callable[..., AsyncGenerator[Any]]
) -> Callable[..., AsyncGenerator[Any]]:
    """``BaseChatAgent.on_messages_stream`` inside a run of its own; an aborted run ends at the next event."""

    @functools.wraps(stream)
    def governed_stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        if _is_own_step(self):
            return stream(self, *args, **kwargs)  # its events pass the run that has begun
        return begun_stream(self, *args, **kwargs)

    async def begun_stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        governor = acting()
        begun = None if governor is None else _begin(governor, self)
        if begun is None:
            async for event in stream(self, *args, **kwargs):
                yield event
            return
        run, span = begun
        async for event in _driven(stream(self, *args, **kwargs), run, span):
            yield event

    return governed_stream


def wrap_team_stream(
    acting: Callable[[], Governor | None], stream: Callable[..., AsyncGenerator[Any]]
) -> Callable[..., AsyncGenerator[Any]]:
    """``BaseGroupChat.run_stream`` inside a span; the members' runs hang below it."""

    @functools.wraps(stream)
    async def governed_stream(self: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        governor = acting()
        above = _RUN.get()
        if governor is None:
            async for event in stream(self, *args, **kwargs):
                yield event
            return
        name = str(self.name)
        attributes: dict[str, Any] = {semconv.AGENT_NAME: name, semconv.FRAMEWORK: FRAMEWORK}
        span = LiveSpan(governor, semconv.INVOKE_AGENT, name, attributes)
        # The team speaks for nobody: what its members do is theirs, and what it was asked was asked of them.
        run = Run(None, None, above, covered_call())
        async for event in _driven(stream(self, *args, **kwargs), run, span):
            yield event

    return governed_stream


async def _driven(events: AsyncGenerator[Any], run: Run, span: LiveSpan) -> AsyncIterator[Any]:
    """The events of a run, each fetched inside the run; the span is ended with the last of them."""
    problem: BaseException | None = None
    try:
        while True:
            with _Step(run, span):
                event = await anext(events, _NO_MORE)
            if event is _NO_MORE:
                break
            yield event
    except BaseException as error:
        problem = error
        raise
    finally:
        try:
            with _Inside(run, span):
                await events.aclose()
        finally:
            span.end(None if isinstance(problem, GeneratorExit) else problem)
