"""The judgements around one model call, as a sequence of steps that synchronous, asynchronous and streaming code share."""

from __future__ import annotations

import contextvars
import operator
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from langchain_core.messages import AIMessage, BaseMessage

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import semconv
from lgov_core.instrumentation.evaluated_call import covered_call, model_call_covered
from lgov_core.instrumentation.message_decisions import MessageDecisionCache
from lgov_core.instrumentation.model_call import ModelCall, ModelReading
from lgov_core.types import Action, Decision, Point, ToolOutcome
from lgov_langchain import actions
from lgov_langchain.enforcing import as_obeyed

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """The step at which the call is sent, with these messages."""

    messages: list[BaseMessage]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. ``final`` is the agent's answer in words if this is its last reply, else None.

    ``others`` are further replies to choose from, where the caller asked for several.
    """

    message: AIMessage | None
    final: str | None
    others: Sequence[AIMessage] = ()

    @classmethod
    def of(cls, *messages: AIMessage) -> Reply:
        """The reply of a bare model: it is the answer unless it asks for tools."""
        if not messages:
            return cls(None, None)
        first, *others = messages
        return cls(first, None if first.tool_calls else actions.text_of(first), others)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the caller gets: ``message``, and how it differs from the reply that came.

    ``changed`` is "no", "text" (reworded, its tool calls stand) or "all" (it stands in place of the reply).
    ``rewritten`` are the user's messages as policies reworded them, ``others`` the further replies as they may be seen.
    """

    message: AIMessage | None
    changed: Literal["no", "text", "all"] = "no"
    rewritten: Sequence[BaseMessage] = ()
    others: Sequence[AIMessage] = ()


Steps = Generator["Action | ToolOutcome | Send", Any, Verdict]


@dataclass(slots=True)
class _Sent:
    """The messages that a judged call is sent with, and what became of it where it was changed on its way.

    ``went`` is true once it was sent in any form, ``denial`` what answered it where it was not.
    """

    call: ModelCall | None
    messages: Sequence[BaseMessage]
    went: bool = False
    denial: tuple[AIMessage, Decision] | None = None


_SENT: contextvars.ContextVar[_Sent] = contextvars.ContextVar("lgov_langchain_sent", default=_Sent(None, ()))  # noqa: B039 - never written to


_HEARD: weakref.WeakKeyDictionary[Governor, MessageDecisionCache] = weakref.WeakKeyDictionary()
_HEARD_LOCK = threading.Lock()


class ChangedCallDenied(PolicyDenied):
    """A judged model call was changed on its way and must not be sent as what it has become."""


def open_call(governor: Governor, model: Any, native: Any, parent: LiveSpan | None = None) -> ModelCall:
    """The call that the running code is about to make of ``model``, with its span: under ``parent``, or the current one."""
    name, agent = actions.model_name(model), actions.agent_name()
    return ModelCall(governor, framework=actions.FRAMEWORK, model=name, agent=agent, native=native, parent=parent)


def judged(call: ModelCall, messages: Sequence[BaseMessage], further: Callable[[], Mapping[str, Any]]) -> Steps:
    """Judges the user's new text, the call, the reply, and the answer. ``further`` says what else the call is judged on.

    Yields an `Action` to be judged, a `ToolOutcome` to be recorded, or the `Send`; gets the `Decision`, nothing, or the
    `Reply`.
    """
    if call.governor.observe_only:
        return (yield from _watched(call, list(messages)))
    heard = _heard_by(call.governor)
    new = actions.new_user_messages(messages)
    sent, rewritten = _as_heard(heard, messages, len(messages) - len(new)), list[BaseMessage]()
    nested = covered_call() is not None  # inside a tool: it is another agent that speaks
    for message in new:
        text = actions.text_of(message)
        decision: Decision = yield call.user_text(text, nested=nested)
        if decision.blocks:
            heard.denied(text, decision.denial_message())
            call.refused(decision)
            return Verdict(actions.denial_reply(decision), "all")
        heard.let_through(text, decision.text)
        if decision.text is not None:
            changed = actions.with_text(message, decision.text)
            rewritten.append(changed)
            sent = [changed if one is message else one for one in sent]
    decision = yield call.request(actions.as_mappings(sent), **further())
    if decision.blocks:
        call.refused(decision)
        return Verdict(actions.denial_reply(decision), "all")
    if decision.arguments is not None:
        sent = actions.with_messages(sent, decision.arguments["messages"])
    reply: Reply = yield Send(sent)
    if reply.message is None:
        call.span.end()
        return Verdict(None, rewritten=rewritten)
    verdict = yield from _judged_reply(call, reply.message, reply.final, rewritten)
    others: list[AIMessage] = []
    for other in reply.others:
        decision = yield call.reply(actions.model_reading(other))
        shown = other if decision.text is None else actions.with_text(other, decision.text)
        others.append(actions.denial_reply(decision, other) if decision.blocks else shown)
    return replace(verdict, others=others) if others else verdict


def _heard_by(governor: Governor) -> MessageDecisionCache:
    """What became of what users said, as this governor judged it."""
    with _HEARD_LOCK:
        return _HEARD.setdefault(governor, MessageDecisionCache())


def _as_heard(heard: MessageDecisionCache, messages: Sequence[BaseMessage], end: int) -> list[BaseMessage]:
    """``messages``, those before ``end`` as a model may read them: a transcript brings back what users really said."""
    sent = list(messages)
    instead = heard.instead_of(lambda: [actions.role_and_text(message) for message in messages[:end]])
    for position, (text, denied) in instead.items():
        message = messages[position]
        sent[position] = message.model_copy(update={"content": text}) if denied else actions.with_text(message, text)
    return sent


def _watched(call: ModelCall, messages: list[BaseMessage]) -> Steps:
    """The call where nobody judges."""
    _said(call, messages)
    reply: Reply = yield Send(messages)
    yield from heard(call, reply.message)
    return Verdict(reply.message, others=reply.others)


def _said(call: ModelCall, messages: Sequence[BaseMessage]) -> None:
    call.said(lambda: actions.as_mappings(messages))


def heard(call: ModelCall, reply: AIMessage | None) -> Sequence[ToolOutcome]:
    """Ends the span of a call that nobody judges; returns what has to be recorded."""
    if reply is None:
        call.span.end()
        return ()
    reading = _answered(call, reply)
    broken = reply.invalid_tool_calls
    return [_lost(call.reply(reading), one) for one in broken] if broken else ()


def _answered(call: ModelCall, reply: AIMessage) -> ModelReading:
    reading = actions.model_reading(reply)
    if (provider := reply.response_metadata.get("model_provider")) is not None:
        call.span.attributes[semconv.PROVIDER] = provider
    call.answered(reading)
    return reading


def _judged_reply(call: ModelCall, reply: AIMessage, final: str | None, rewritten: Sequence[BaseMessage]) -> Steps:
    judgement = call.reply(_answered(call, reply))
    decision: Decision = yield judgement
    if decision.blocks:
        return Verdict(actions.denial_reply(decision, reply), "all", rewritten)
    verdict = Verdict(reply, "no", rewritten)
    if decision.text is not None:
        final = final if final is None or reply.tool_calls else decision.text
        verdict = Verdict(actions.with_text(reply, decision.text), "text", rewritten)
    for broken in reply.invalid_tool_calls:  # Nothing can run, so there is nothing to judge, but it is not lost.
        yield _lost(judgement, broken)
    if final is None:
        return verdict
    decision = yield call.output(final)
    if decision.blocks:
        return Verdict(actions.denial_reply(decision, reply), "all", rewritten)
    if decision.text is None:
        return verdict
    answer = actions.with_text(reply, decision.text).model_copy(update={"content": decision.text, "tool_calls": []})
    return Verdict(answer, "all", rewritten)


def _lost(judgement: Action, call: Mapping[str, Any]) -> ToolOutcome:
    """What came of a proposed call that nobody can read."""
    action = Action(
        Point.PRE_TOOL_CALL,
        name=call.get("name") or "?",
        agent=judgement.agent,
        framework=actions.FRAMEWORK,
        call_id=call.get("id"),
        text=call.get("args"),
    )
    return ToolOutcome(action, "invalid_args", error_type="InvalidToolCall", error=call["error"])


# ---------------------------------------------------------------------- walking the steps


def advance(governor: Governor, call: ModelCall, steps: Steps, answer: Any = None) -> Send | Verdict:
    """Takes the judgements up to the next `Send`, or to the end."""
    try:
        while True:
            step = steps.send(answer)
            if isinstance(step, Send):
                return step
            answer = governor.decide(step) if isinstance(step, Action) else governor.record(step)
    except StopIteration as end:
        return end.value
    except BaseException as error:
        call.span.end(error)
        raise


async def aadvance(governor: Governor, call: ModelCall, steps: Steps, answer: Any = None) -> Send | Verdict:
    """As `advance`, for asynchronous code."""
    try:
        while True:
            step = steps.send(answer)
            if isinstance(step, Send):
                return step
            is_action = isinstance(step, Action)
            answer = await governor.adecide(step) if is_action else await governor.arecord(step)  # type: ignore[arg-type]
    except StopIteration as end:
        return end.value
    except BaseException as error:
        call.span.end(error)
        raise


def drive(governor: Governor, call: ModelCall, steps: Steps, send: Callable[[list[BaseMessage]], Reply]) -> Verdict:
    """Walks all steps; ``send`` runs inside the call's span, and what it raises is noted and raised on."""
    step = advance(governor, call, steps)
    if isinstance(step, Verdict):
        return step
    try:
        with inside(governor, call, step.messages) as sent:
            reply = send(step.messages)
    except ChangedCallDenied as denied:
        call.refused(denied.decision)
        return Verdict(actions.denial_reply(denied.decision), "all")
    except BaseException as error:
        failed(call, error)
        raise
    return _denied_on_the_way(sent, reply) or _end(advance(governor, call, steps, reply))


async def adrive(
    governor: Governor, call: ModelCall, steps: Steps, send: Callable[[list[BaseMessage]], Awaitable[Reply]]
) -> Verdict:
    """As `drive`, for asynchronous code."""
    step = await aadvance(governor, call, steps)
    if isinstance(step, Verdict):
        return step
    try:
        with inside(governor, call, step.messages) as sent:
            reply = await send(step.messages)
    except ChangedCallDenied as denied:
        call.refused(denied.decision)
        return Verdict(actions.denial_reply(denied.decision), "all")
    except BaseException as error:
        failed(call, error)
        raise
    return _denied_on_the_way(sent, reply) or _end(await aadvance(governor, call, steps, reply))


def _denied_on_the_way(sent: _Sent, reply: Reply) -> Verdict | None:
    """The end of a call whose reply is the denial of what middleware made of it; None where the reply is the model's."""
    if sent.denial is None or reply.message is not sent.denial[0] or sent.call is None:
        return None
    sent.call.refused(sent.denial[1])
    return Verdict(reply.message, "all")


def _end(step: Send | Verdict) -> Verdict:
    assert isinstance(step, Verdict), "a call is sent once"
    return step


def failed(call: ModelCall, error: BaseException) -> None:
    """Ends a call that brought no reply; a pause for a person is no failure."""
    if actions.is_interrupt(error):
        call.span.end()
    else:
        call.failed(error)


class _Inside:
    """What `inside` gives; a generator would take twice as long."""

    __slots__ = ("_active", "_sent", "_token")

    def __init__(self, governor: Governor, call: ModelCall, messages: Sequence[BaseMessage]) -> None:
        self._sent = _Sent(call, messages)
        self._active = call.span.active(model=governor)

    def __enter__(self) -> _Sent:
        self._token = _SENT.set(self._sent)
        self._active.__enter__()
        return self._sent

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._active.__exit__(kind, error, trace)
        _SENT.reset(self._token)


class _Watched(_Inside):
    """What `watched` gives."""

    __slots__ = ("_call",)

    def __init__(self, governor: Governor, call: ModelCall, messages: Sequence[BaseMessage]) -> None:
        _said(call, messages)
        self._call = call
        super().__init__(governor, call, messages)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if error is not None:
            failed(self._call, error)


def inside(governor: Governor, call: ModelCall, messages: Sequence[BaseMessage]) -> AbstractContextManager[_Sent, None]:
    """The inside of a judged call of these messages. Not across a ``yield``."""
    return _Inside(governor, call, messages)


def watched(
    governor: Governor, call: ModelCall, messages: Sequence[BaseMessage]
) -> AbstractContextManager[_Sent, None]:
    """The inside of a call that nobody judges: what comes back goes on as it is, and `heard` is to be told of it."""
    return _Watched(governor, call, messages)


def is_covered(governor: Governor, messages: Sequence[BaseMessage]) -> bool:
    """Whether a call of ``messages`` here is the one that was judged, and not another one made beside it.

    Middleware inside the judged call may call a model for purposes of its own, or send something else than was judged.
    """
    if not model_call_covered(governor):
        return False
    sent = _SENT.get().messages
    if len(sent) != len(messages):
        return False
    return all(map(operator.is_, sent, messages)) or list(sent) == list(messages)


def judged_beside(governor: Governor) -> bool:
    """Whether the running code is the inside of a model call that another governor than ``governor`` has judged."""
    call = _SENT.get().call
    return call is not None and call.governor is not governor


def are_covered(governor: Governor, calls: Sequence[Sequence[BaseMessage]]) -> bool:
    """Whether a call of each of these messages here is one that was judged; so it is where there are none."""
    if not calls:
        return True
    return model_call_covered(governor) and all([is_covered(governor, messages) for messages in calls])


def judge_if_changed(beside: Governor | None, messages: Sequence[BaseMessage]) -> None:
    """Judges the messages that a model is about to get inside of a judged call, if they are not those that were judged.

    ``beside`` judges all model calls by itself. Raises `ChangedCallDenied` if they must not be sent; a decision that wants
    others is a denial here.
    """
    call, sent = _SENT.get().call, _SENT.get().messages
    if call is None or call.governor is beside or call.governor.observe_only or is_covered(call.governor, messages):
        return
    if not model_call_covered(call.governor):
        return
    said = actions.as_mappings(messages)
    if said == actions.as_mappings(sent):
        return
    decision = as_obeyed(call.governor.decide(call.changed_request(said)), what="messages")
    if decision.blocks:
        raise ChangedCallDenied(decision)


# ---------------------------------------------------------------------- changed on the way


class Changed:
    """A judged call of ``governor`` that middleware has given other messages, where it comes to the model at last.

    `judgement` is to be judged, and `decided` told the decision; then the call goes on inside `sending`, where the model's
    own net takes it for what it is, the call that was judged, and not for another one made beside it.
    """

    def __init__(self, sent: _Sent, call: ModelCall, messages: list[BaseMessage]) -> None:
        self._sent = sent
        self._call = call
        self.messages = messages

    @classmethod
    def of(cls, governor: Governor, messages: list[BaseMessage]) -> Changed | None:
        """The call that the running code is the inside of, if ``messages`` are not those that it was judged with."""
        sent = _SENT.get()
        if sent.call is None or not model_call_covered(governor):
            return None
        if is_covered(governor, messages):
            sent.went = True
            return None
        return cls(sent, sent.call, messages)

    def judgement(self) -> Action | None:
        """What is to be judged now; None where nobody judges."""
        if self._call.governor.observe_only:
            _said(self._call, self.messages)
            return None
        if not self._sent.went:  # a retry is a call more, for whoever counts
            self._call.overtaken()
        return self._call.changed_request(actions.as_mappings(self.messages))

    def decided(self, decision: Decision) -> AIMessage | None:
        """The denial that takes the reply's place; None if the call may go on, with `messages` as policies want them."""
        if decision.blocks:
            denial = actions.denial_reply(decision)
            self._sent.denial = (denial, decision)
            return denial
        if decision.arguments is not None:
            self.messages = actions.with_messages(self.messages, decision.arguments["messages"])
        return None

    @contextmanager
    def sending(self) -> Generator[None]:
        """The inside of the call with its new messages. Not across a ``yield``."""
        self._sent.went = True
        token = _SENT.set(_Sent(self._call, self.messages))
        try:
            yield
        finally:
            _SENT.reset(token)
