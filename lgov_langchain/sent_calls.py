"""The model call that is being sent: its messages as they were evaluated, and what middleware makes of them on the way."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Step, Steps
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

    def send(self, function: Callable[[], Any]) -> Steps[Any]:
        """Calls ``function`` inside the call's span, and ends the span if it raises."""
        token = _SENT.set(self)
        try:
            with self.call.span.active(model=self.call.governor):
                return (yield Step(function))
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


class ChangedCall:
    """An allowed call to which middleware has given other messages, where it comes to the model at last.

    After `evaluate` it goes on inside `sending`, where it is the call that was evaluated, and not another one beside it.
    """

    def __init__(self, sent: SentCall, prompt: list[BaseMessage]) -> None:
        self._sent = sent
        self.messages = prompt

    @classmethod
    def of(cls, governor: Governor, prompt: list[BaseMessage]) -> ChangedCall | None:
        """The call that the running code is inside of, if ``prompt`` is not what it was evaluated with."""
        sent = _SENT.get()
        if sent is None or not model_call_covered(governor):
            return None
        if is_covered(governor, prompt):
            sent.went = True
            return None
        return cls(sent, prompt)

    def evaluate(self) -> Steps[AIMessage | None]:
        """The denial in place of the reply; None if the call may go on, with `messages` as the policies want them."""
        call = self._sent.call
        if not self._sent.went:  # a retry is another call for policies that count
            call.overtaken()
        action = call.changed_request(messages.as_mappings(self.messages))
        decision = yield Step(lambda: call.governor.decide(action), lambda: call.governor.adecide(action))
        if decision.blocks:
            denial = messages.denial_reply(decision)
            self._sent.denial = (denial, decision)
            return denial
        if decision.arguments is not None:
            self.messages = messages.with_messages(self.messages, decision.arguments["messages"])
        return None

    @contextmanager
    def sending(self) -> Generator[None]:
        """The inside of the call with its new messages."""
        self._sent.went = True
        token = _SENT.set(SentCall(self._sent.call, self.messages))
        try:
            yield
        finally:
            _SENT.reset(token)
