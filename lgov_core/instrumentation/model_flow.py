"""A governed model call, the same for every framework: judge and send the request, judge the reply, deliver what is left.

`model_flow` takes the steps in one order. An adapter is a `ModelPort`: it knows the framework's requests and replies, and
says nothing about policy. `lgov_core.instrumentation.tool_call.tool_flow` is the same for tools.

1. `CallPort.begin` opens the call's span.
2. `CallPort.judge_input_flow` judges what users newly said (first round only).
3. `CallPort.request` is judged. Rewritten messages go to `CallPort.take_messages`; what is not a list of messages that
   can be sent is a recorded denial (``lgov/unclear-transform``).
4. `ModelPort.send_flow` sends the request inside the span, and gives the reply in parts.
5. Each part is judged before the program gets it: its text and calls, then the acts that only the reply can be stopped at
   (`CallPort.judge_acts_flow`), then the text of a final answer.
6. Where acts were denied, the model reads why and is asked again, at most `MAX_ROUNDS` times (`ModelPort.ask_again`). A
   reply that cannot be read for certain is asked for again, as often (`ModelPort.repeat`).
7. `CallPort.deliver_flow` makes what the program gets.

Where others send the request (the endpoint's routes do), a `CallPort` is enough: 1 to 3 are `judge_request_flow`, 5 and 7
`settle_flow`.

A denial takes the place of what it denies; a decision that says abort is raised as `PolicyDenied`. Fails closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from lgov_core.errors import PolicyDenied
from lgov_core.flow import Flow
from lgov_core.governor import Governor
from lgov_core.instrumentation.model_call import UNREADABLE_REPLY, ModelCall
from lgov_core.types import Action, Decision
from lgov_core.wire.turns import ModelReading

C = TypeVar("C")
R = TypeVar("R")

#: How often a model is asked again whose acts were all denied. Then the program gets the denials.
MAX_ROUNDS: Final = 3


class CallRefused(PolicyDenied):
    """Raised by `ModelPort.send_flow`: the call was changed on its way, judged again, and not sent."""


@dataclass(frozen=True, slots=True)
class Choice(Generic[C]):
    """One choice of a reply as the program may get it; ``reply`` is the framework's own object.

    ``denials`` are the decisions that denied acts in it. ``final``: nothing more is judged, it is a denial or an answer that
    was judged. ``received`` is the choice as the model wrote it, None where no model was asked. ``unreadable``: the denial
    says that the reply cannot be read for certain.
    """

    reply: C
    received: C | None = None
    denials: Sequence[Decision] = ()
    final: bool = False
    unreadable: bool = False


@dataclass(frozen=True, slots=True)
class ReplyPart(Generic[C]):
    """The part of a reply that is judged as one: its ``reading``, and the choices that the reading is of (usually one)."""

    reading: ModelReading
    choices: Sequence[C] = field(default_factory=list[C])


class CallPort(ABC, Generic[C, R]):
    """One model call of a program, in the terms of its framework; made for each call and used by one task or thread.

    ``C`` is the framework's type of one choice of a reply, ``R`` what the program gets. Methods that end in ``_flow`` may
    wait; of these only `ModelPort.send_flow` and `deliver_flow` may emit pieces of a stream. What a method raises is raised to
    the program, after the span was ended.
    """

    governor: Governor

    def judging(self) -> AbstractContextManager[Any]:
        """The context in which decisions are taken; not that of `ModelPort.send_flow`."""
        return nullcontext()

    # ------------------------------------------------------------------ the request

    @abstractmethod
    def begin(self) -> ModelCall:
        """Opens the span of the next request."""

    def judge_input_flow(self, call: ModelCall) -> Flow[Decision | None]:
        """Judges what users said in the first request; the decision that denies it, or None."""
        return None
        yield

    def judge_offers_flow(self, call: ModelCall) -> Flow[None]:
        """Judges what the request offers to the model, and takes out what is denied."""
        return None
        yield

    @abstractmethod
    def request(self, call: ModelCall) -> Action:
        """The request as policies see it: `ModelCall.request`."""

    @abstractmethod
    def take_messages(self, new_messages: Sequence[Mapping[str, Any]]) -> None:
        """Sends ``new_messages``, of a transform, instead. Raises where they are not messages that can be sent."""

    def take_fields(self, new_fields: Any) -> None:
        """Sends the argument ``fields`` of a transform instead, where `request` has one. Raises where it cannot be sent."""

    # ------------------------------------------------------------------ the reply

    def with_transform(self, reply_part: ReplyPart[C], decision: Decision) -> Sequence[C] | None:
        """The choices of ``part`` with the text of a transform: the first has it, further ones have none.

        None where the transform changed what cannot be carried over.
        """
        if decision.text is None:
            return reply_part.choices
        return [self.with_text(each, "" if number else decision.text) for number, each in enumerate(reply_part.choices)]

    def deny_fields(self) -> None:
        """The reply was denied: what it says beside its choices must not reach the program either."""

    @abstractmethod
    def with_text(self, choice: C, text: str) -> C:
        """``choice`` with its text replaced; what it proposes stays."""

    @abstractmethod
    def denied(self, choice: C | None, decision: Decision, text: str) -> C:
        """``text``, the denial, in the place of ``choice`` (None: no model was asked). It proposes nothing.

        Raises `PolicyDenied` where the program cannot read a text there.
        """

    def judge_acts_flow(self, call: ModelCall, choice: Choice[C]) -> Flow[Choice[C]]:
        """Judges the acts that the choice proposes and that nothing judges later."""
        return choice
        yield

    @abstractmethod
    def answer(self, choice: C) -> str | None:
        """The text of the choice if it ends the program's turn, so that policies judge it as output; else None."""

    def with_answer(self, choice: C, text: str) -> C:
        """``choice`` with its answer replaced."""
        return self.with_text(choice, text)

    def proposes(self, choice: C) -> bool:
        """Returns whether anything that the choice proposes is left, so that the program goes on with it."""
        return False

    @abstractmethod
    def deliver_flow(self, choices: Sequence[Choice[C]] | None) -> Flow[R]:
        """Returns the reply for the program; remembers what it does not get. None: there was no reply to judge."""


class ModelPort(CallPort[C, R]):
    """A `CallPort` that sends its request itself, and can ask the model again."""

    @abstractmethod
    def send_flow(self, call: ModelCall) -> Flow[Sequence[ReplyPart[C]] | None]:
        """Sends the request inside the call's span; the reply, read in full.

        None where there is none to judge: the port has ended the call itself, and delivers what it has. An error must have
        ended the call too (`ModelCall.failed`). Raises `CallRefused` for a call that was not sent.
        """

    def ask_again(self, choices: Sequence[Choice[C]]) -> bool:
        """Makes the request that tells the model what was denied. False where it cannot be told."""
        return False

    def repeat(self) -> bool:
        """Makes the same request again, whose reply could not be read for certain. False where it cannot be sent again."""
        return False


def model_flow(port: ModelPort[C, R]) -> Flow[R]:
    """Governs one model call of a program: see the module. Raises `PolicyDenied`, and what the framework raises."""
    call = port.begin()
    try:
        answer = yield from _ask_flow(port, call, first=True)
    except BaseException as error:
        call.ended(error)
        raise
    return (yield from _settle_flow(port, call, answer))


def settle_flow(port: CallPort[C, R], call: ModelCall, parts: Sequence[ReplyPart[C]] | None) -> Flow[R]:
    """The rest of `model_flow`, for a reply that another sent for, or that came after `ModelPort.send_flow` returned."""
    return (yield from _settle_flow(port, call, parts))


_Answer = Sequence[ReplyPart[C]] | Decision | None


def _settle_flow(port: CallPort[C, R], call: ModelCall, answer: _Answer[C]) -> Flow[R]:
    """Judges the reply, asks again while that helps, and delivers."""
    rounds = 0
    while True:
        try:
            if answer is None:
                choices = None
            elif isinstance(answer, Decision):
                choices = [Choice(port.denied(None, answer, answer.denial_message()), final=True)]
            else:
                choices = yield from _judge_flow(port, call, answer)
                if isinstance(port, ModelPort) and rounds < MAX_ROUNDS and _asks_again(port, choices):
                    rounds += 1
                    call = port.begin()
                    answer = yield from _ask_flow(port, call, first=False)
                    continue
                with port.judging():
                    choices = yield from _answers_flow(port, call, choices)
        except BaseException as error:
            call.ended(error)
            raise
        return (yield from port.deliver_flow(choices))


def _asks_again(port: ModelPort[C, R], choices: Sequence[Choice[C]]) -> bool:
    if any(choice.unreadable for choice in choices):
        return port.repeat()
    return any(choice.denials for choice in choices) and port.ask_again(choices)


def judge_request_flow(port: CallPort[C, R], call: ModelCall, *, first: bool = True) -> Flow[Decision | None]:
    """Judges one request up to sending it: the decision by which it must not be sent, or None."""
    with port.judging():
        refusal = (yield from port.judge_input_flow(call)) if first else None
        if refusal is None:
            yield from port.judge_offers_flow(call)
            decision = yield from call.judge_request_flow(port.request(call), port.take_messages, port.take_fields)
            refusal = decision if decision.blocks else None
    return refusal


def _ask_flow(port: ModelPort[C, R], call: ModelCall, *, first: bool) -> Flow[_Answer[C]]:
    """Judges and sends one request: the reply, or the decision by which it was not sent."""
    refusal = yield from judge_request_flow(port, call, first=first)
    if refusal is None:
        try:
            return (yield from port.send_flow(call))
        except CallRefused as refused:
            refusal = refused.decision
    call.refused(refusal)
    return refusal


def _judge_flow(port: CallPort[C, R], call: ModelCall, parts: Sequence[ReplyPart[C]]) -> Flow[list[Choice[C]]]:
    """Judges the parts of a reply and the acts that they propose; ends the span."""
    if not parts:
        call.ended()
    choices: list[Choice[C]] = []
    for number, reply_part in enumerate(parts):
        if number == 0:
            call.answered(reply_part.reading)
        with port.judging():
            choices += yield from _judge_part_flow(port, call, reply_part)
    with port.judging():
        for number, choice in enumerate(choices):
            if not choice.final:
                choices[number] = yield from port.judge_acts_flow(call, choice)
    return choices


def _judge_part_flow(port: CallPort[C, R], call: ModelCall, reply_part: ReplyPart[C]) -> Flow[list[Choice[C]]]:
    decision = yield from call.reply_flow(reply_part.reading)
    changed: Sequence[C] | None = reply_part.choices
    if not decision.blocks:
        changed = port.with_transform(reply_part, decision)
        if changed is None:
            reason = "a policy changed more of the reply than its texts"
            decision = call.governor.refuse(call.reply(reply_part.reading), "unclear-transform", reason)
    if changed is None or decision.blocks:
        port.deny_fields()
        unreadable = decision.rule == UNREADABLE_REPLY
        denied = [(_denied(port, each, decision), each) for each in reply_part.choices]
        return [Choice(denial, each, final=True, unreadable=unreadable) for denial, each in denied]
    return [Choice(new, old) for new, old in zip(changed, reply_part.choices, strict=True)]


def _answers_flow(port: CallPort[C, R], call: ModelCall, choices: Sequence[Choice[C]]) -> Flow[list[Choice[C]]]:
    """Judges the answers among the choices; a choice of which all acts were denied becomes the denials."""
    settled: list[Choice[C]] = []
    for choice in choices:
        if choice.denials and not port.proposes(choice.reply):
            text = "\n".join(denial.denial_message() for denial in choice.denials)
            choice = replace(choice, reply=port.denied(choice.reply, choice.denials[-1], text), final=True)
        elif not choice.final and (text := port.answer(choice.reply)) is not None:
            decision = yield from call.governor.decision_flow(call.output(text))
            if decision.blocks:
                choice = replace(choice, reply=_denied(port, choice.reply, decision), final=True)
            elif decision.text is not None:
                choice = replace(choice, reply=port.with_answer(choice.reply, decision.text))
        settled.append(choice)
    return settled


def _denied(port: CallPort[C, R], choice: C, decision: Decision) -> C:
    if decision.abort:
        raise PolicyDenied(decision)
    return port.denied(choice, decision, decision.denial_message())
