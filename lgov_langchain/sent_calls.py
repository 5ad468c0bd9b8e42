"""The model call that is being sent: its messages as they were evaluated, and what middleware makes of them on the way."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Flow, foreign, wait
from lgov_core.instrumentation.evaluated_call import model_call_covered
from lgov_langchain import messages
from lgov_langchain.runs import is_pause

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage, BaseMessage

    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.model_call import ModelCall
    from lgov_core.types import Decision


class ChangedCallDenied(PolicyDenied):
    """A model call was changed after it was allowed and must not be sent as what it has become."""


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
        except ChangedCallDenied:
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
    """Whether a call with the messages ``prompt`` is the one that ``governor`` evaluated, and not another one inside of it.

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
        action = sent.call.changed_request(messages.as_mappings(prompt))
        decision = yield from governor.decision_flow(action)
        if decision.blocks:
            denial = messages.denial_reply(decision)
            sent.denial = (denial, decision)
            return denial
        if decision.arguments is not None:
            prompt = messages.with_messages(prompt, decision.arguments["messages"])
    sent.went = True
    token = _SENT.set(SentCall(sent.call, prompt))  # for the patched chat model it is the call that was evaluated
    try:
        return (yield from wait(foreign(function, prompt)))
    finally:
        _SENT.reset(token)
