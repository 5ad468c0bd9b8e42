"""The model call that is being sent, and the callback handlers that LangChain has in every process with lgov in it.

Middleware inside of an evaluated call may change it on the way: a person edits a tool's arguments, a router takes another
tool, a message is added to the prompt. `send_changed` evaluates such a model call again in an instrumented process; in any
other, `ChangedCallHandler` compares what LangChain reports that the tool or the model really gets. `ProcessHandler` sees
which runs are open, so that each span finds its agent. The handlers are there from the first `LgovMiddleware`,
`wrap_tool_node` or `instrument` on; LangChain cannot remove a handler of this kind.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from lgov_core.instrumentation import Flow, foreign, wait
from lgov_core.instrumentation.conversation_memory import MessageDecisionCache
from lgov_core.instrumentation.live_span import covered_call, current_span, model_call_covered
from lgov_core.instrumentation.model_flow import CallRefused
from lgov_core.instrumentation.tool_call import own_arguments
from lgov_langchain import messages
from lgov_langchain import messages as tool_results
from lgov_langchain.callback import LgovCallbackHandler, enforceable, raise_denial
from lgov_langchain.instrumentor import INSTRUMENTOR
from lgov_langchain.runs import is_pause, running_config
from lgov_langchain.tool_inputs import validate_once

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage, BaseMessage

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan
    from lgov_core.instrumentation.model_call import ModelCall
    from lgov_core.types import Decision


@dataclass(slots=True)
class SentCall:
    """A model call that was allowed with these messages.

    ``went`` is true once it was sent in any form. ``denial`` is the reply that was put in place of the model's where it was
    changed on the way and then denied, with the decision.
    """

    call: ModelCall
    messages: Sequence[BaseMessage]
    went: bool = False
    denial: tuple[AIMessage, Decision] | None = None

    def send(self, function: Callable[[], Any]) -> Flow[Any]:
        """Calls ``function`` inside the call's span, and ends the span if it raises."""
        token = _SENT.set(self)
        try:
            with self.call.span.active(model=self.call.governor):
                return (yield from wait(foreign(function)))
        except CallRefused:
            raise
        except BaseException as error:
            self.failed(error)
            raise
        finally:
            _SENT.reset(token)

    def failed(self, error: BaseException) -> None:
        """Ends the span of a call that returned no reply, if it is open. A pause for a person is not a failure."""
        if is_pause(error):
            self.call.span.end()
        elif not self.call.span.ended:
            self.call.failed(error)


_SENT: contextvars.ContextVar[SentCall | None] = contextvars.ContextVar("lgov_langchain_sent", default=None)


def current_sent_call() -> SentCall | None:
    """The model call that the running code is inside of."""
    return _SENT.get()


def is_covered(governor: Governor, prompt: Sequence[BaseMessage]) -> bool:
    """Returns whether a call with the messages ``prompt`` is the one ``governor`` evaluated, and not another inside of it.

    Middleware inside the evaluated call may call a model for its own purposes, or send other messages than were evaluated.
    """
    sent = _SENT.get()
    return model_call_covered(governor) and sent is not None and list(sent.messages) == list(prompt)


def send_changed(governor: Governor, prompt: Sequence[BaseMessage], function: Callable[[Any], Any]) -> Flow[Any]:
    """Sends the evaluated call that the running code is inside of, by ``function(messages)``.

    If ``prompt`` is not what it was evaluated with, it is evaluated again, and sent as the policies want it. Returns what
    ``function`` returns, or the denial in place of the reply. A call that ``governor`` has not evaluated is only sent.
    """
    sent = _SENT.get()
    if sent is None or not model_call_covered(governor):
        return (yield from wait(foreign(function, prompt)))
    if not is_covered(governor, prompt):
        if not sent.went:  # a retry is another call for policies that count
            sent.call.overtaken()
        changed: list[BaseMessage] = list(prompt)

        def take(new: Sequence[Mapping[str, Any]]) -> None:
            changed[:] = messages.with_messages(prompt, new)

        action = sent.call.changed_request(messages.as_mappings(prompt))
        decision = yield from sent.call.judge_request_flow(action, take)
        if decision.blocks:
            denial = messages.denial_reply(decision)
            sent.denial = (denial, decision)
            return denial
        prompt = changed
    sent.went = True
    token = _SENT.set(SentCall(sent.call, prompt))  # for the patched chat model it is the call that was evaluated
    try:
        return (yield from wait(foreign(function, prompt)))
    finally:
        _SENT.reset(token)


class ChangedCallHandler(BaseCallbackHandler):
    """Stops a call that was changed on the way and that the governor which evaluated it does not allow now."""

    run_inline = True
    raise_error = True

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
        """A tool is about to run. Raises `DeniedToolError` if it must not, `PolicyDenied` if the decision says abort."""
        call = covered_call()
        # A tool that a tool calls begins below that tool's run, not where the evaluated call was to begin.
        if call is None or call.place != parent_run_id or call.action is None or call.governor is INSTRUMENTOR.governor:
            return
        name, call_id = (serialized or {}).get("name") or "tool", kwargs.get("tool_call_id")
        arguments = inputs if inputs is not None else {"input": input_str}
        if call.covers(call.governor, name, arguments, call_id):
            return
        action = replace(
            call.action,
            name=name,
            kind=tool_results.kind_of(name),
            arguments=own_arguments(arguments),
            call_id=call_id,
        )
        decision = enforceable(call.governor.decide(action), "arguments")
        call.changed_to(action, decision if decision.blocks else None)
        if decision.blocks:
            raise_denial(decision, name)

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """A model is about to be called. Raises `CallRefused` if it must not get these messages."""
        for prompt in messages:
            _evaluate_if_changed(prompt)


def _evaluate_if_changed(prompt: list[BaseMessage]) -> None:
    sent = current_sent_call()
    if sent is None or sent.call.governor is INSTRUMENTOR.governor:
        return
    governor = sent.call.governor
    if not model_call_covered(governor) or is_covered(governor, prompt):
        return
    mappings = messages.as_mappings(prompt)
    if mappings == messages.as_mappings(sent.messages):
        return
    decision = enforceable(governor.decide(sent.call.changed_request(mappings)), "messages")
    if decision.blocks:
        raise CallRefused(decision)


def expect_call_below(config: Mapping[str, Any]) -> None:
    """Notes below which run the evaluated tool call that the running code is inside of is going to begin."""
    if (call := covered_call()) is not None:
        call.place = getattr(config.get("callbacks"), "parent_run_id", None)


class ProcessHandler(LgovCallbackHandler):
    """Observes for the governor of an instrumented process, and keeps what governors know of the process's conversations."""

    def __init__(self) -> None:
        super().__init__(None, enforce=False)
        self._decisions: WeakKeyDictionary[Governor, MessageDecisionCache] = WeakKeyDictionary()
        self._decisions_lock = threading.Lock()

    @property
    def observer(self) -> Governor | None:
        """The governor of an instrumented process; None in any other."""
        return INSTRUMENTOR.governor

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
    validate_once()
    handler, changed = ProcessHandler(), ChangedCallHandler()
    for each in (handler, changed):  # LangChain leaves the coroutines of those after a handler that raises unawaited
        variable = contextvars.ContextVar[Any](f"lgov_langchain_{type(each).__name__}", default=each)
        register_configure_hook(variable, inheritable=True, handle_class=type(each))
    return handler


class Above(NamedTuple):
    """The context above a model call: the ``span`` of its agent, and the user's texts in the input of the outermost run."""

    span: LiveSpan
    said: tuple[str, ...]


def agent_above(governor: Governor, config: Mapping[str, Any] | None = None, callbacks: Any = None) -> Above | None:
    """The agent that a call of the running code, with this config or these callbacks, is below; None outside any agent.

    A handler of the program's own for ``governor`` comes before the one of the process.
    """
    managers: Any = (callbacks, (config or {}).get("callbacks"), running_config().get("callbacks"))
    manager: Any = next((each for each in managers if getattr(each, "parent_run_id", None) is not None), None)
    handlers = [each for each in getattr(manager, "handlers", ()) if isinstance(each, LgovCallbackHandler)]
    of_process = [each for each in handlers if isinstance(each, ProcessHandler)]
    for handler in (*(each for each in handlers if each.governor is governor), *of_process):
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
