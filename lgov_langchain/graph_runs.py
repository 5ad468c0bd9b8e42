"""The runs of LangGraph's graphs in an instrumented process where nobody judges. Installed by `instrumentation`.

A callback handler makes LangChain do more for each run than all capturing takes, so there these runs are seen without one:
where ``Pregel`` streams, which every way of running a graph comes to. Which run the running code belongs to is a context
variable, as is the span of the call that it is the inside of; LangGraph gives its nodes their caller's context. Where a
program hands a config to a thread of its own, both are found by what the config says: a call by the id of its run, the run
of an agent by an entry that only lgov reads.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import AsyncGenerator, Callable, Generator, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from langchain_core.utils.uuid import uuid7

from lgov_core.instrumentation.evaluated_call import covered_call, in_model_call
from lgov_core.instrumentation.live_span import current_span
from lgov_langchain import actions
from lgov_langchain.callback import LgovCallbackHandler
from lgov_langchain.instrumentor import acting_governor
from lgov_langchain.runs import Run, RunTree, key_of

if TYPE_CHECKING:
    from uuid import UUID

    from langgraph.pregel import Pregel

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan

#: What begins so LangGraph takes for its own, and keeps out of metadata, checkpoints and the events it streams.
_ENTRY = "__pregel_lgov_run"

_RUNS = RunTree()

#: Where code is: in which run that is seen here, and, where it is the inside of a call in that run, the span of the call.
_Place: TypeAlias = "tuple[Run | None, LiveSpan | None]"

#: The place that the running code was last said to be at, and the span that was current there: another one is inside it.
_HERE: contextvars.ContextVar[tuple[Run | None, LiveSpan | None, LiveSpan | None] | None] = contextvars.ContextVar(
    "lgov_langchain_run", default=None
)

#: What each call that goes on begins is at this place; by the key of LangChain's run of the call.
_CALLS: dict[Hashable, _Place] = {}


class _Standing:
    """Says where the code in the block is. Not across a ``yield``."""

    __slots__ = ("_inside", "_run", "_token")

    def __init__(self, run: Run | None, inside: LiveSpan | None = None) -> None:
        self._run = run
        self._inside = inside

    def __enter__(self) -> None:
        run, inside = self._run, self._inside
        self._token = _HERE.set(None if run is None and inside is None else (run, inside, current_span()))

    def __exit__(self, *exc: object) -> None:
        try:  # noqa: SIM105 - around every step of every graph, and suppress() is three times as slow
            _HERE.reset(self._token)
        except ValueError:  # a task that nobody waits for any more is closed by the garbage collector, somewhere else
            pass


_AS_IT_IS = nullcontext()
_NOWHERE: _Place = None, None

Told = Callable[[Any], Any]


def _place(config: Mapping[str, Any] | None = None, callbacks: Any = None) -> _Place:
    """Where the running code is. All that a tool begins is inside its call; of a model only what says so by its config."""
    if (here := _HERE.get()) is not None:
        run, inside, around = here
        span = current_span()
        return _unended(run), inside if span is around or in_model_call() else span
    for one in (config, actions.running_config()):
        manager = callbacks if callbacks is not None else one.get("callbacks") if one else None
        parent: UUID | None = getattr(manager, "parent_run_id", None)
        if parent is not None and (found := _CALLS.get(key_of(parent))) is not None:
            return _unended(found[0]), found[1]
        if (run := _RUNS.find(parent)) is not None:
            return run, None
        if one and (run := _RUNS.find((one.get("configurable") or {}).get(_ENTRY))) is not None:
            return run, None
    return _NOWHERE


def _unended(run: Run | None) -> Run | None:
    """A call may outlive the run that it was in: what it begins then is inside the call, and of no run."""
    return None if run is None or run.ended else run


def span_here(governor: Governor, config: Mapping[str, Any] | None = None, callbacks: Any = None) -> LiveSpan | None:
    """The span under which the running code stands, or None if no run or call seen here is open."""
    run, inside = _place(config, callbacks)
    if inside is not None and inside.observer is governor:
        return inside
    return None if run is None else _RUNS.span_above(governor, run)


def standing_by(config: Mapping[str, Any] | None) -> AbstractContextManager[None, None]:
    """Lets the block run where ``config`` comes from, if nothing is known of it otherwise."""
    if config is None or _HERE.get() is not None:
        return _AS_IT_IS
    run, inside = _place(config)
    return _AS_IT_IS if run is None and inside is None else _Standing(run, inside)


class CallRun:
    """The run, where nobody judges, of a call whose span is the current one: what begins under it stands under the span.

    ``options`` are those that the tool or the model is about to be run with; they get the id of the run.
    """

    __slots__ = ("_key", "_of_model")

    def __init__(self, governor: Governor | None, options: dict[str, Any], *, of_model: bool = False) -> None:
        self._key: Hashable = None
        if governor is None or not governor.observe_only:
            return
        self._of_model = of_model
        run_id = options["run_id"] = options.get("run_id") or uuid7()
        self._key = key_of(run_id)
        run, _ = _place(options.get("config"), options.get("callbacks"))
        _CALLS[self._key] = run, current_span()

    def __enter__(self) -> None:
        """The call begins."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._key is None:
            return
        _CALLS.pop(self._key, None)
        if error is None or self._of_model or actions.is_interrupt(error) or (call := covered_call()) is None:
            return
        call.raised = error  # the framework may make a text of it


class _GraphRun:
    """One run of a graph. ``config`` is the one that it is to run with, ``standing`` stands around each of its steps.

    ``told`` puts the handler of the process among callbacks: where the program has a handler of its own for the governor,
    that one shows the agent, and this one does what it always does beside it.
    """

    def __init__(self, graph: Pregel[Any, Any, Any, Any], config: Any, told: Told) -> None:
        self.config = config
        self.standing: AbstractContextManager[None, None] = _AS_IT_IS
        self._run: Run | None = None
        governor = acting_governor()
        if governor is None or not governor.observe_only:
            return
        given: list[Mapping[str, Any]] = [one for one in (actions.running_config(), graph.config, config) if one]
        above, inside = _place(config)
        here = above
        if any(_shows_runs(one.get("callbacks"), governor) for one in given):
            here, config = None, {**(config or {}), "callbacks": told((config or {}).get("callbacks"))}
            self.config = config
        elif (agent := _agent_begun(graph, given, above)) is not None:
            here = self._run = _RUNS.begin(uuid7(), above, agent=agent, inside=inside)
            inside = None
        if here is None and above is None:
            return
        self.standing = _Standing(here, inside)
        configurable: Mapping[str, Any] = (config or {}).get("configurable") or {}
        self.config = {**(config or {}), "configurable": {**configurable, _ENTRY: here and here.run_id}}

    def end(self, error: BaseException | None) -> None:
        """The run ended; a pause for a person is no error."""
        if self._run is not None:
            _RUNS.end(self._run.run_id, error=None if error is None or actions.is_interrupt(error) else error)


def _shows_runs(callbacks: Any, governor: Governor) -> bool:
    """Whether a handler of the program's own shows ``governor`` these runs."""
    handlers = callbacks if isinstance(callbacks, list) else getattr(callbacks, "handlers", ())
    return any(isinstance(one, LgovCallbackHandler) and one.governor is governor for one in handlers)


def _agent_begun(graph: Pregel[Any, Any, Any, Any], given: list[Mapping[str, Any]], above: Run | None) -> str | None:
    """As callback handlers would be told of the run: what its configs say, on top of what comes down from the run above."""
    managers: list[Any] = [one["callbacks"] for one in given if hasattr(one.get("callbacks"), "handlers")]
    metadata: dict[str, Any] = {"ls_integration": "langgraph"}
    for one in (*[manager.metadata for manager in managers], *[one.get("metadata") for one in given]):
        metadata.update(one or {})
    name = next((one["run_name"] for one in reversed(given) if one.get("run_name")), None) or graph.get_name()
    tags = managers[-1].tags if managers else ()
    return _RUNS.agent_begun(above, name, metadata, tags)


_END = object()


def wrap_stream(stream: Callable[..., Any], told: Told) -> Callable[..., Any]:
    """``Pregel.stream``, seen."""

    @functools.wraps(stream)
    def seen_stream(
        self: Pregel[Any, Any, Any, Any], input: Any, config: Any = None, **options: Any
    ) -> Generator[Any, None, None]:
        run = _GraphRun(self, config, told)
        steps, failure = iter(stream(self, input, run.config, **options)), None
        try:
            while True:
                with run.standing:
                    chunk = next(steps, _END)
                if chunk is _END:
                    break
                yield chunk
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if hasattr(steps, "close"):
                    with run.standing:
                        steps.close()
            finally:
                run.end(failure)

    return seen_stream


def wrap_astream(astream: Callable[..., Any], told: Told) -> Callable[..., Any]:
    """``Pregel.astream``, seen."""

    @functools.wraps(astream)
    async def seen_astream(
        self: Pregel[Any, Any, Any, Any], input: Any, config: Any = None, **options: Any
    ) -> AsyncGenerator[Any, None]:
        run = _GraphRun(self, config, told)
        steps, failure = aiter(astream(self, input, run.config, **options)), None
        try:
            while True:
                with run.standing:
                    chunk = await anext(steps, _END)
                if chunk is _END:
                    break
                yield chunk
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if hasattr(steps, "aclose"):
                    with run.standing:
                        await steps.aclose()
            finally:
                run.end(failure)

    return seen_astream
