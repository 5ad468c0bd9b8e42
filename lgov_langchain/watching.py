"""The handler that watches every LangChain run of the process, so that spans find the agent they belong to.

It is there from the first `LgovMiddleware`, `wrap_tool_node` or `instrument` on. Where nobody governs it keeps nothing but
which runs are open. In an instrumented process whose governor only watches, runs are seen by `graph_runs` and calls where the
patches are; there LangChain is given the handler only for what the patches do not see.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from lgov_core.instrumentation.evaluated_call import covered_call, model_call_covered
from lgov_core.instrumentation.live_span import current_span
from lgov_langchain import graph_runs, model_calls
from lgov_langchain.actions import running_config
from lgov_langchain.callback import LgovCallbackHandler
from lgov_langchain.changed_calls import judge_if_changed
from lgov_langchain.instrumentor import acting_governor

if TYPE_CHECKING:
    from uuid import UUID

    from langchain_core.messages import BaseMessage

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan

_LOG = logging.getLogger(__name__)

#: LangChain cannot forget a configure hook, so the handler is registered once a process and asks anew who governs.
_HANDLER: list[ProcessHandler] = []
_LOCK = threading.Lock()


class ProcessHandler(LgovCallbackHandler):
    """As `LgovCallbackHandler`, observing for whichever governor the process is instrumented with, if it is.

    It stops one thing: a call that was judged, and changed before it came to the tool or the model.
    """

    def __init__(self) -> None:
        super().__init__(None, enforce=False)
        self.raise_error = True  # what merely observes is kept from raising below

    @property
    def observer(self) -> Governor | None:
        """The governor of an instrumented process; None in any other."""
        return acting_governor()

    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool is about to run. Raises `DeniedToolError` if its call was changed after the judgement and may not be."""
        call, observer = covered_call(), self.observer
        if call is not None:
            name, call_id = (serialized or {}).get("name") or "tool", kwargs.get("tool_call_id")
            if call.governor is not observer:
                arguments = inputs if inputs is not None else {"input": input_str}
                judge_if_changed(observer, parent_run_id, name, arguments, call_id)
            elif call.name == name and call.call_id == call_id:
                return _begin_inside(self, run_id, parent_run_id)
        options = {"run_id": run_id, "parent_run_id": parent_run_id, "inputs": inputs, **kwargs}
        with self._standing():
            _begin_tool(self, serialized, input_str, **options)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        """A model is about to be called. Raises `ChangedCallDenied` if it must not get what it is about to get."""
        observer = self.observer
        if observer is not None and model_call_covered(observer):  # who judges all model calls has judged this one
            return _begin_inside(self, run_id, parent_run_id)
        for one in messages:
            model_calls.judge_if_changed(observer, one)
        with self._standing():
            _begin_chat(self, serialized, messages, run_id=run_id, parent_run_id=parent_run_id, **kwargs)

    def on_llm_start(self, *args: Any, **kwargs: Any) -> None:
        """A plain text model is called."""
        with self._standing():
            _begin_text(self, *args, **kwargs)

    def _standing(self) -> AbstractContextManager[Any, None]:
        """Makes the span of a run that this handler is not told of the current one."""
        span = graph_runs.span_here(self.observer) if self.observer is not None else None
        return _NOTHING if span is None else span.active()


def _observing(method: Callable[..., None]) -> Callable[..., None]:
    """``method``, which must not break what it watches."""

    @functools.wraps(method)
    def observe(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except Exception:  # noqa: BLE001 - as said above
            _LOG.warning("lgov could not observe %s of LangChain", method.__name__, exc_info=True)

    return observe


_begin_inside = _observing(LgovCallbackHandler.begin_inside)
_begin_tool = _observing(LgovCallbackHandler.on_tool_start)
_begin_chat = _observing(LgovCallbackHandler.on_chat_model_start)
_begin_text = _observing(LgovCallbackHandler.on_llm_start)
for _name, _method in vars(LgovCallbackHandler).items():
    if _name.startswith("on_") and _name not in vars(ProcessHandler):
        setattr(ProcessHandler, _name, _observing(_method))


def watch_process() -> None:
    """Lets every LangChain run that begins from now on, in every thread, be watched. Again, it does nothing."""
    with _LOCK:
        if _HANDLER:
            return
        from langchain_core.tracers.context import register_configure_hook

        handler = ProcessHandler()
        variable: Any = _WhereNeeded(handler)
        register_configure_hook(variable, inheritable=True, handle_class=ProcessHandler)
        _HANDLER.append(handler)


class _WhereNeeded:
    """What LangChain asks for the handler, as it would ask a context variable."""

    def __init__(self, handler: ProcessHandler) -> None:
        self._handler = handler

    def get(self) -> ProcessHandler | None:
        """The handler; None where every run is seen without it."""
        governor = acting_governor()
        if governor is None or not governor.observe_only:
            return self._handler
        call = covered_call()
        judged_by_another = call is not None and call.governor is not governor
        return self._handler if judged_by_another or model_calls.judged_beside(governor) else None


def told(callbacks: Any) -> Any:
    """``callbacks`` with the handler among them, where LangChain is not given it anyway: for a call that no patch sees."""
    governor = acting_governor()
    if governor is None or not governor.observe_only:
        return callbacks
    if hasattr(callbacks, "add_handler"):
        manager = callbacks.copy()
        if not any(isinstance(one, ProcessHandler) for one in manager.handlers):
            manager.add_handler(_HANDLER[0], inherit=True)
        return manager
    return [*(callbacks or ()), *_HANDLER]


def span_of(governor: Governor, config: Mapping[str, Any] | None = None, callbacks: Any = None) -> LiveSpan | None:
    """The span under which the running LangChain code stands, or None if no watched run is open here."""
    if (seen := graph_runs.span_here(governor, config, callbacks)) is not None:
        return seen
    manager = callbacks
    if (run_id := getattr(manager, "parent_run_id", None)) is None:
        manager = config.get("callbacks") if config else None
        if (run_id := getattr(manager, "parent_run_id", None)) is None:
            manager = running_config().get("callbacks")
            if (run_id := getattr(manager, "parent_run_id", None)) is None:
                return None
    watching = [one for one in getattr(manager, "handlers", ()) if isinstance(one, LgovCallbackHandler)]
    if len(watching) > 1:
        watching.sort(key=lambda one: one.observer is not governor or isinstance(one, ProcessHandler))
    for handler in watching:
        is_governors = handler.observer is governor or isinstance(handler, ProcessHandler)
        if is_governors and (run := handler.tree.find(run_id)) is not None:
            return handler.tree.span_above(governor, run)
    return None


_NOTHING = nullcontext()


def standing_under(
    governor: Governor, config: Mapping[str, Any] | None = None, callbacks: Any = None
) -> AbstractContextManager[Any, None]:
    """Makes the span of the agent that the running code belongs to the current one inside the block."""
    span = span_of(governor, config, callbacks)
    return _NOTHING if span is None or span.ended or span is current_span() else span.active()


def place_of(
    governor: Governor, config: Mapping[str, Any] | None = None, callbacks: Any = None
) -> tuple[AbstractContextManager[Any, None], LiveSpan | None]:
    """Where a call of the running code belongs: a block to put around it and its judgements, and its span's parent.

    In the block the span of the agent is the current one, for those who judge. Where nobody does, it is only the parent.
    """
    if not governor.observe_only:
        return standing_under(governor, config, callbacks), None
    span = span_of(governor, config, callbacks)
    return _NOTHING, None if span is None or span.ended else span
