"""LangChain's runs that have not ended, and the spans that stand for them.

LangChain tells its callback handlers where each run begins and ends, and under which other run it stands. Agents become
spans; everything else only passes on what stands above it. A handler cannot make its span the current one of the code it
watches, so whoever opens a span inside a run asks here what stands above.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation import semconv
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_langchain.actions import agent_in

if TYPE_CHECKING:
    from uuid import UUID

    from lgov_core.instrumentation.live_span import SpanObserver
    from lgov_core.types import JSONValue


def key_of(run_id: UUID) -> Hashable:
    """What the run of this id is known by: the number that it is, as to hash and compare the object is a call of Python each.

    LangChain takes ids of any type from a program's config, and most that people give it so are texts.
    """
    try:
        return run_id.int
    except AttributeError:
        return str(run_id)


class Run:
    """A run. ``agent`` is the name of the agent it is a run of; None if it is not one.

    ``inside`` is a span of somebody else's that this run stands under. ``context`` is what was current when an agent's run
    began. ``open`` are the open runs below the outermost one, by their keys, for all of them. Only the tree that it is in
    changes it.
    """

    __slots__ = ("agent", "context", "ended", "inside", "key", "open", "parent", "run_id", "spans", "started_at")

    def __init__(self, run_id: UUID, parent: Run | None, agent: str | None, inside: LiveSpan | None) -> None:
        self.run_id = run_id
        self.key = key_of(run_id)
        self.parent = parent
        self.agent = agent
        self.inside = inside
        self.context = contextvars.copy_context() if agent is not None else None
        self.started_at = time.time()
        self.spans: list[tuple[SpanObserver, LiveSpan]] = []
        self.open: dict[Hashable, Run] = {} if parent is None else parent.open
        self.ended = False


class RunTree:
    """The open runs that one handler watches. Callable from any thread; holds nothing of runs that have ended."""

    def __init__(self) -> None:
        self._runs: dict[Hashable, Run] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, run_id: UUID | None) -> Run | None:
        """The run, if it has begun and not ended."""
        return None if run_id is None else self._runs.get(key_of(run_id))

    def agent_begun(
        self,
        above: Run | None,
        name: str,
        metadata: Mapping[str, Any],
        tags: Iterable[str],
        run_type: str | None = None,
    ) -> str | None:
        """What the agent is called that a run like this is a run of: the outermost graph, or a named agent inside one."""
        agent = agent_in(metadata)
        is_agent = agent is not None and agent == name
        if not is_agent and not _in_agent(above):
            # Chains, retries, prompts and parsers are what agents are made of; LangGraph marks its graphs and what is in
            # them. The outermost one is an agent, whatever it is called.
            is_graph = metadata.get("ls_integration") in ("langgraph", "langchain_create_agent", "deepagents")
            is_agent = is_graph and not name.startswith("Runnable") and run_type is None
        is_node = is_agent and any(tag.startswith("graph:step:") for tag in tags)
        return agent or name if is_agent and not is_node else None

    def begin(
        self, run_id: UUID, above: Run | None, *, agent: str | None = None, inside: LiveSpan | None = None
    ) -> Run:
        """A run begins: of the agent ``agent``, or of something that is no agent. One that has ended has none below it."""
        with self._lock:
            parent = None if above is None or above.ended else above
            run = Run(run_id, parent, agent, inside)
            self._runs[run.key] = run
            if parent is not None:
                run.open[run.key] = run
        return run

    def open_span(
        self, observer: SpanObserver, run: Run, operation: str, name: str, attributes: dict[str, JSONValue]
    ) -> LiveSpan:
        """Opens a span for a run that is no agent's; it ends with the run."""
        with self._lock:
            above = self.span_above(observer, run.parent)
            span = LiveSpan(observer, operation, name, attributes, parent=above, started_at=run.started_at)
            run.spans.append((observer, span))
            return span

    def span_above(self, observer: SpanObserver, run: Run | None) -> LiveSpan | None:
        """The span that what happens in ``run`` stands under; agents get theirs when they are first asked for."""
        while run is not None:
            for whose, span in run.spans:
                if whose is observer:
                    return span
            if run.agent is not None:
                return self._agent_span(observer, run)
            if run.inside is not None:
                return run.inside
            run = run.parent
        return None

    def _agent_span(self, observer: SpanObserver, run: Run) -> LiveSpan:
        with self._lock:
            for whose, span in run.spans:
                if whose is observer:  # another thread has asked first
                    return span
            return self._opened(observer, run)

    def _opened(self, observer: SpanObserver, run: Run) -> LiveSpan:
        # In the context in which the agent began: its rollout, its caller's spans, not those of whoever asks first.
        assert run.context is not None, "an agent's run has one"
        above = run.inside if run.inside is not None else self.span_above(observer, run.parent)
        attributes: dict[str, JSONValue] = {semconv.AGENT_NAME: run.agent, semconv.FRAMEWORK: "langchain"}
        span = run.context.run(
            lambda: LiveSpan(
                observer,
                semconv.INVOKE_AGENT,
                run.agent or "",
                attributes,
                parent=above,
                started_at=run.started_at,
            )
        )
        run.spans.append((observer, span))
        return span

    def end(
        self,
        run_id: UUID,
        attributes: Callable[[], dict[str, JSONValue]] = dict,
        error: BaseException | None = None,
    ) -> None:
        """A run ended. What is still open when the outermost run ends is shown as never ended, not silently dropped.

        ``attributes`` are asked for where a span stands for the run: most are part of a call that has its own elsewhere.
        """
        with self._lock:
            run = self._runs.pop(key_of(run_id), None)
            if run is None:
                return
            run.ended = True
            run.open.pop(run.key, None)
            left = list(run.open.values()) if run.parent is None else []
            for one in left:
                one.ended = True
                self._runs.pop(one.key, None)
            if left:
                run.open.clear()
        for one in left:
            for _, span in one.spans:
                span.abandon()
        for _, span in run.spans:
            span.set(attributes())
            span.end(error)


def _in_agent(run: Run | None) -> bool:
    """Whether it is a run of an agent, or stands under one."""
    while run is not None and run.agent is None:
        run = run.parent
    return run is not None
