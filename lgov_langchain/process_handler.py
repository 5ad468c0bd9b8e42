"""The callback handlers that LangChain has in every process with lgov in it, so that each span finds its agent.

They are there from the first `LgovMiddleware`, `wrap_tool_node` or `instrument` on; LangChain cannot remove a handler of this
kind. Where no governor is instrumented they keep only which runs are open.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from langchain_core.tracers.context import register_configure_hook

from lgov_core.instrumentation.live_span import current_span
from lgov_core.instrumentation.message_decisions import MessageDecisionCache
from lgov_langchain.callback import LgovCallbackHandler
from lgov_langchain.changed_calls import ChangedCallHandler
from lgov_langchain.current_governor import acting_governor
from lgov_langchain.runs import running_config

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan


class ProcessHandler(LgovCallbackHandler):
    """Observes for the governor of an instrumented process, and keeps what governors know of the process's conversations."""

    def __init__(self) -> None:
        super().__init__(None, enforce=False)
        self._decisions: WeakKeyDictionary[Governor, MessageDecisionCache] = WeakKeyDictionary()
        self._decisions_lock = threading.Lock()

    @property
    def observer(self) -> Governor | None:
        """The governor of an instrumented process; None in any other."""
        return acting_governor()

    def message_decisions(self, governor: Governor) -> MessageDecisionCache:
        """The decisions of ``governor`` on what users said. Any thread may ask."""
        with self._decisions_lock:
            return self._decisions.setdefault(governor, MessageDecisionCache())


def process_handler() -> ProcessHandler:
    """The handler; from the first call on LangChain reports to it every run that begins, in every thread."""
    with _REGISTRATION:
        return _registered_handler()


_REGISTRATION = threading.Lock()


@functools.cache
def _registered_handler() -> ProcessHandler:
    handler, changed = ProcessHandler(), ChangedCallHandler()
    for one in (handler, changed):  # LangChain leaves the coroutines of those after a handler that raises unawaited
        variable = contextvars.ContextVar[Any](f"lgov_langchain_{type(one).__name__}", default=one)
        register_configure_hook(variable, inheritable=True, handle_class=type(one))
    return handler


class Above(NamedTuple):
    """What a model call is below: the ``span`` of its agent, and the user's texts in the input of the outermost run."""

    span: LiveSpan
    said: tuple[str, ...]


def agent_above(governor: Governor, config: Mapping[str, Any] | None = None, callbacks: Any = None) -> Above | None:
    """The agent that a call of the running code, with this config or these callbacks, is below; None outside any agent.

    A handler of the program's own for ``governor`` comes before the one of the process.
    """
    managers: Any = (callbacks, (config or {}).get("callbacks"), running_config().get("callbacks"))
    manager: Any = next((one for one in managers if getattr(one, "parent_run_id", None) is not None), None)
    handlers = [one for one in getattr(manager, "handlers", ()) if isinstance(one, LgovCallbackHandler)]
    of_process = [one for one in handlers if isinstance(one, ProcessHandler)]
    for handler in (*(one for one in handlers if one.governor is governor), *of_process):
        if (run := handler.tree.find(manager.parent_run_id)) is not None:
            span = handler.tree.span_above(governor, run)
            return None if span is None else Above(span, run.said)
    return None


def agent_span(governor: Governor, config: Mapping[str, Any] | None = None, callbacks: Any = None) -> LiveSpan | None:
    """The span of `agent_above`."""
    above = agent_above(governor, config, callbacks)
    return None if above is None else above.span


def inside(span: LiveSpan | None) -> AbstractContextManager[Any]:
    """Makes ``span`` the current one in the block, if there is one to be made so."""
    return nullcontext() if span is None or span.ended or span is current_span() else span.active()
