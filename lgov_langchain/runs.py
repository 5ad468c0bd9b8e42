"""The runs of LangChain that are open, and the spans of those that are agents.

LangChain reports to its callback handlers the begin and the end of each run, and the run above it. A handler cannot make its
span the current one of the code that runs, so code that opens a span inside a run asks the tree for the span above.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphBubbleUp

from lgov_core.instrumentation import semconv
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.scope import inherited
from lgov_langchain._internals import AGENT_NAME, GRAPHS, INTEGRATION

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.model_call import ModelCall
    from lgov_core.types import JSONValue

FRAMEWORK = "langchain"


def running_config() -> Mapping[str, Any]:
    """The config of the run that the running code belongs to, also in a thread that was started in the run.

    To be read: ``ensure_config`` would copy all that is in it.
    """
    return inherited(var_child_runnable_config) or {}


def in_thread_of_a_run() -> bool:
    """Returns whether a run, which may have ended, started the running thread: what is said in it is not the user's."""
    return var_child_runnable_config.get() is None and inherited(var_child_runnable_config) is not None


def agent_name(config: Mapping[str, Any] | None = None) -> str | None:
    """The ``name=`` of the agent that ``config``, or the running code, belongs to; None if it has none."""
    return agent_in((running_config() if config is None else config).get("metadata"))


def agent_in(metadata: Mapping[str, Any] | None) -> str | None:
    """The ``name=`` of the agent that a run with this metadata belongs to, or None if it has none."""
    name = metadata.get(AGENT_NAME) if metadata else None
    return name if isinstance(name, str) else None


def is_pause(error: BaseException) -> bool:
    """Returns whether LangGraph only pauses the run (to ask a person, or jump to a parent graph): nothing failed."""
    return isinstance(error, GraphBubbleUp)


@dataclass(slots=True, eq=False)
class ChainRun:
    """A run. ``agent`` is the name of the agent whose run it is, if it is one, and ``session_id`` LangGraph's thread.

    ``span`` is the span of a tool or model call, which ends with the run; ``inside`` one opened elsewhere that the run is in.
    ``said`` are the user's texts in the input of the outermost run. ``open`` are all open runs below that one; all share them.
    """

    run_id: Hashable
    parent: ChainRun | None = None
    agent: str | None = None
    session_id: str | None = None
    inside: LiveSpan | None = None
    span: LiveSpan | None = None
    context: contextvars.Context | None = None
    started_at: float = field(default_factory=time.time)
    agent_spans: dict[Governor, LiveSpan] = field(default_factory=dict["Governor", "LiveSpan"])
    model_call: ModelCall | None = None
    said: tuple[str, ...] = ()
    open: dict[Hashable, ChainRun] = field(default_factory=dict[Hashable, "ChainRun"])
    ended: bool = False

    def __post_init__(self) -> None:
        if self.agent is not None:
            self.context = contextvars.copy_context()
        if self.parent is not None:
            self.open, self.said = self.parent.open, self.parent.said

    def spans(self) -> list[LiveSpan]:
        """The spans that end with the run."""
        return [*self.agent_spans.values(), *([self.span] if self.span is not None else [])]


class RunTree:
    """The open runs that one handler observes, by LangChain's ids, which a program may set to anything hashable.

    Callable from any thread; keeps nothing of runs that have ended.
    """

    def __init__(self) -> None:
        self._runs: dict[Hashable, ChainRun] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, run_id: Hashable | None) -> ChainRun | None:
        """The run, if it is open."""
        return None if run_id is None else self._runs.get(run_id)

    def agent_of(
        self, above: ChainRun | None, name: str, metadata: Mapping[str, Any], tags: Iterable[str], run_type: str | None
    ) -> str | None:
        """The name of the agent whose run this is: the outermost graph, or a named agent inside one. None if neither."""
        agent = agent_in(metadata)
        is_agent = agent is not None and agent == name
        if not is_agent and not _in_agent(above):
            # Chains, retries, prompts and parsers are what agents are made of; LangGraph marks its graphs and what is in
            # them. The outermost one is an agent, whatever it is called.
            is_graph = metadata.get(INTEGRATION) in GRAPHS
            is_agent = is_graph and not name.startswith("Runnable") and run_type is None
        is_node = is_agent and any(tag.startswith("graph:step:") for tag in tags)
        return agent or name if is_agent and not is_node else None

    def begin(
        self,
        run_id: Hashable,
        above: ChainRun | None,
        *,
        agent: str | None = None,
        session_id: str | None = None,
        inside: LiveSpan | None = None,
        span: LiveSpan | None = None,
        said: tuple[str, ...] = (),
    ) -> ChainRun:
        """Opens a run, below ``above`` if that is still open. ``said`` is what the user says to it, if it is the outermost."""
        with self._lock:
            parent = None if above is None or above.ended else above
            run = ChainRun(run_id, parent, agent, session_id, inside, span, said=said)
            self._runs[run_id] = run
            if run.parent is not None:
                run.open[run_id] = run
        return run

    def span_above(self, observer: Governor, run: ChainRun | None) -> LiveSpan | None:
        """The span of ``observer`` for what happens in ``run``. That of an agent is opened when it is first asked for."""
        while run is not None:
            if run.agent is not None:
                with self._lock:
                    return run.agent_spans.get(observer) or self._open_agent_span(observer, run)
            if run.span is not None and run.span.observer is observer:
                return run.span
            if run.inside is not None:
                return run.inside
            run = run.parent
        return None

    def _open_agent_span(self, observer: Governor, run: ChainRun) -> LiveSpan:
        assert run.context is not None, "an agent's run has one"
        above = self.span_above(observer, run.parent)
        attributes: dict[str, JSONValue] = {
            semconv.AGENT_NAME: run.agent,
            semconv.FRAMEWORK: FRAMEWORK,
            semconv.CONVERSATION_ID: run.session_id,
        }

        def open_span() -> LiveSpan:
            name = run.agent or ""
            return LiveSpan(observer, semconv.INVOKE_AGENT, name, attributes, parent=above, started_at=run.started_at)

        span = run.agent_spans[observer] = run.context.run(open_span)  # in the rollout in which the agent began
        return span

    def end(self, run_id: Hashable, error: BaseException | str | None = None) -> None:
        """Closes a run and ends its spans.

        Runs that are still open when the outermost one ends are shown as never ended, not silently dropped.
        """
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is None:
                return
            run.ended = True
            run.open.pop(run_id, None)
            still_open = list(run.open.values()) if run.parent is None else []
            for run_left in still_open:
                run_left.ended = True
                self._runs.pop(run_left.run_id, None)
            if still_open:
                run.open.clear()
        for run_left in still_open:
            for span in run_left.spans():
                span.abandon()
        for span in run.spans():
            span.end(error)


def _in_agent(run: ChainRun | None) -> bool:
    """Returns whether it is an agent's run, or below one."""
    while run is not None and run.agent is None:
        run = run.parent
    return run is not None
