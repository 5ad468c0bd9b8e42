"""One model call of a program under policy, step by step, the same for synchronous and asynchronous clients.

`Exchange.steps` yields what has to be done (judge an action, record an outcome, send a request) and is told what came of
it. It gives back what the program gets: the reply as it came, or another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, semconv
from lgov_core.instrumentation.live_span import LiveSpan, current_span
from lgov_core.instrumentation.model_call import ModelCall, ModelReading
from lgov_core.instrumentation.tool_call import ToolCall, ToolReading
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, Effect, Point, ToolOutcome, new_id
from lgov_openai.prefixes import Prefixes
from lgov_openai.protocol import JSON, Proposal, Turn, Wire, rewritten_entries
from lgov_openai.transcript import Pending, Transcripts

FRAMEWORK = "openai"

#: How often a model all of whose calls were denied is asked again before the program gets the denial instead.
MAX_ROUNDS = 4

_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class Send:
    """A request that may be sent, inside ``span``; ``body`` is None for the program's own, unchanged.

    ``again``: the program asked once, and this is not the first request that is sent for it.
    """

    body: JSON | None
    span: LiveSpan
    again: bool = False


@dataclass(slots=True)  # not frozen, which would set each field by a call
class Received:
    """What a request brought; nobody changes it.

    ``reply`` is None where ``error`` says why there is none. ``response`` is the client's own. ``turns`` and ``reading``
    are what the protocol reads off the reply.
    """

    response: Any
    reply: JSON | None
    events: Sequence[JSON] = ()
    error: Exception | None = None
    turns: Sequence[Turn] = ()
    reading: ModelReading | None = None


@dataclass(slots=True)
class Answer:
    """What the program gets; nobody changes it. ``received`` as it came if ``reply`` is None, else ``reply`` in its form."""

    received: Received | None
    reply: JSON | None = None


Step: TypeAlias = "Action | ToolOutcome | Send"
Steps: TypeAlias = Generator[Step, Any, Answer]


class Exchange:
    """One request of a program, from its arrival to what the program gets."""

    def __init__(self, governor: Governor, memory: Transcripts, wire: Wire, body: JSON) -> None:
        self._governor = governor
        self._memory = memory
        self._wire = wire
        self._body = memory.continuing(body)
        self._moved = self._body is not body
        self._model = str(body.get("model") or "model")
        self._parent = wire.parent(self._body)
        self._program = wire.entries(body)
        self._of_model = [wire.is_of_model(entry) for entry in self._program]
        self._prefixes = Prefixes(wire, self._program, self._parent)

    @property
    def _here(self) -> str:
        """The whole transcript's digest."""
        return self._prefixes[len(self._program)]

    def steps(self) -> Steps:
        """The steps of this exchange. Raises `PolicyDenied` where a decision says abort."""
        current = yield from self._judge_results()
        refused = yield from self._judge_input(current)
        if refused is not None:
            return self._instead(refused)
        sent = self._memory.restored(self._wire, self._program, self._prefixes, current, self._parent)
        changed = self._moved or sent != self._program
        body = self._wire.with_entries(self._body, sent) if changed else self._body
        return (yield from self._rounds(body, sent, changed))

    # ------------------------------------------------------------------ what the program sends

    def _judge_results(self) -> Generator[Step, Any, list[JSON]]:
        """The program's transcript in which every result has been judged before the model reads it."""
        current: list[JSON] = []
        calls: dict[str | None, tuple[Proposal, str]] = {}
        start = 0
        for position, entry in enumerate(self._program):
            if self._of_model[position]:
                if position == 0 or not self._of_model[position - 1]:
                    start = position
                for call in self._wire.proposals(entry):
                    calls[call.call_id] = (call, self._prefixes[start])
            answered = self._wire.answered_call(entry)
            if answered is not None:
                instead = yield from self._judge_result(entry, *answered, *calls.get(answered[0], (None, None)))
                entry = entry if instead is None else self._wire.with_answer(entry, instead)
            current.append(entry)
        return current

    def _judge_result(
        self, entry: JSON, call_id: str | None, text: str, call: Proposal | None, prefix: str | None
    ) -> Generator[Step, Any, str | None]:
        digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
        key = (call_id, call.identity if call is not None else None, prefix, digest)
        if (known := self._memory.verdict(key)) is not None:
            return known[0]
        pending, unrecorded = self._memory.claim(call_id, call, prefix)
        if pending is None or pending.call is None:
            name = call.name if call is not None else str(entry.get("name") or "unknown")
            action = tool_action(Point.POST_TOOL_CALL, name, call_id, call)
            action = action.changed(text=text, operation_id=new_id("op"), native=entry)
        else:
            reading = result_reading(entry, text)
            if unrecorded:
                outcome = pending.call.returned(pending.decision, reading)
                if pending.call.finish(outcome):
                    yield outcome
            action = pending.call.result_action(reading, entry)
        decision: Decision = yield action
        if decision.blocks and decision.abort:
            raise PolicyDenied(decision)
        instead = decision.denial_message(after=True) if decision.blocks else decision.text
        self._memory.judged(key, instead)
        return instead

    def _judge_input(self, current: list[JSON]) -> Generator[Step, Any, Decision | None]:
        """Judges what the user said since the model spoke last, and before where nobody here heard it.

        Replaces in ``current`` what is to be replaced.
        """
        program = self._program
        since = len(program)
        while since > 0 and not (self._of_model[since - 1] or self._wire.answered_call(program[since - 1]) is not None):
            since -= 1
        for position, entry in enumerate(program):
            text = self._wire.user_text(entry)
            if text is None:
                continue
            said_now = position >= since
            if (
                text
                and (said_now or not self._memory.knows(text))
                and self._memory.is_new(place := self._prefixes[position + 1], refused=not said_now)
            ):
                decision: Decision = yield _said(text)
                if decision.blocks:
                    self._memory.refused(place, decision.denial_message())
                    if said_now or decision.abort:
                        return decision
                else:
                    self._memory.heard(place, text, decision.text)
            instead = self._memory.instead_of(text)
            if instead is None and self._memory.refuses:
                instead = self._memory.refusal(self._prefixes[position + 1])
            if instead is not None:
                current[position] = self._wire.with_text(entry, instead)
        return None

    # ------------------------------------------------------------------ what the model says

    def _rounds(self, body: JSON, sent: Sequence[JSON], changed: bool) -> Steps:
        hidden: list[JSON] = []
        spent: list[JSON] = []
        while True:
            call = ModelCall(self._governor, framework=FRAMEWORK, model=self._model, native=body)
            received = yield from self._ask(call, body, sent, changed, again=bool(spent))
            if isinstance(received, Decision):
                return self._instead(received, spent)
            if received.reply is None or received.reading is None:
                return Answer(received)
            turns = received.turns
            judged = yield from self._judge_reply(call, received.reading, turns)
            self._memory.used(name for turn in turns for entry in turn.entries for name in ids_of(self._wire, entry))
            answers = judged[0].answers if len(judged) == 1 else None
            if answers and not judged[0].given.proposals and len(spent) < MAX_ROUNDS and None not in answers:
                told = [answer for answer in answers if answer is not None]
                hidden.extend([*turns[0].entries, *told])
                spent.append(received.reply)
                body = self._wire.continued(body, sent, received.reply, turns[0], told)
                sent, changed = self._wire.entries(body), True
                continue
            return (yield from self._hand_over(call, received, turns, judged, hidden, spent))

    def _ask(
        self, call: ModelCall, body: JSON, sent: Sequence[JSON], changed: bool, *, again: bool
    ) -> Generator[Step, Any, Received | Decision]:
        mappings = [self._wire.mapping(entry) for entry in sent]
        try:
            decision = yield call.request(mappings, **_reply_limit(body))
        except BaseException as error:  # cancelled while a policy was thinking: nothing was sent
            call.span.end(error)
            raise
        if not decision.blocks and decision.arguments is not None:
            rewritten = rewritten_entries(self._wire, sent, mappings, decision.arguments["messages"])
            if rewritten is None:
                reason = "a policy rewrote the messages in a way that cannot be sent"
                decision = Decision(Effect.DENY, "lgov", "unclear-transform", reason, fault=True)
            else:
                body, changed = self._wire.with_entries(body, rewritten), True
        if decision.blocks:
            call.refused(decision)
            return decision
        try:
            received: Received = yield Send(body if changed else None, call.span, again)
        except BaseException as error:
            call.failed(error)
            raise
        if received.reply is None:
            call.failed(received.error or RuntimeError("no reply"))
        elif self._parent is not None and not body.get("previous_response_id"):
            self._memory.settled(self._parent)
        return received

    def _judge_reply(
        self, call: ModelCall, reading: ModelReading, turns: Sequence[Turn]
    ) -> Generator[Step, Any, list[_Judged]]:
        call.answered(reading)
        decision: Decision = yield call.reply(reading)
        if decision.blocks:
            if decision.abort:
                raise PolicyDenied(decision)
            return [_Judged(self._wire.told(self._body, decision.denial_message()), told=True) for _ in turns]
        found: list[_Judged] = []
        for number, turn in enumerate(turns):
            given = turn
            if decision.text is not None:
                given = self._wire.reworded(turn, decision.text if number == 0 else "")
            found.append((yield from self._judge_calls(turn, given)))
        return found

    def _judge_calls(self, turn: Turn, given: Turn) -> Generator[Step, Any, _Judged]:
        denied: list[Proposal] = []
        texts: list[str] = []
        allowed: list[tuple[Proposal, ToolCall, Decision]] = []
        for proposal in turn.proposals:
            told, call, decision = yield from self._judge_call(proposal)
            if told is not None:
                denied.append(proposal)
                texts.append(told)
            else:
                allowed.append((proposal, call, decision))
        by_place = {_place(one): one for one in given.proposals}
        by_identity = {one.call_id: one for one in given.proposals}
        for proposal, call, decision in allowed:
            here = by_place[_place(proposal)] if proposal.call_id is None else by_identity[proposal.call_id]
            if decision.arguments is not None:
                given = self._wire.with_arguments(given, here, decision.arguments)
                here = next(one for one in given.proposals if _place(one) == _place(here))
            self._memory.proposed(Pending(call, decision, here.identity, self._here, current_scope()))
        ids = {one.call_id for one in denied}
        places = {_place(one) for one in denied}
        gone = [one for one in given.proposals if one.call_id in ids or (one.call_id is None and _place(one) in places)]
        answers = [self._wire.denial(turn, one, text) for one, text in zip(denied, texts, strict=True)]
        return _Judged(self._wire.without(given, gone) if gone else given, denied, texts, answers)

    def _judge_call(self, proposal: Proposal) -> Generator[Step, Any, tuple[str | None, ToolCall, Decision]]:
        """The words in which the model is told that the call is denied, or None; and the call with its decision."""
        action = tool_action(Point.PRE_TOOL_CALL, proposal.name, proposal.call_id, proposal)
        call = ToolCall(self._governor, action)
        if proposal.arguments is None:
            reason = f"the arguments of {proposal.name} are not one JSON object with each key once; write them anew"
            decision = Decision(Effect.DENY, "lgov", "unreadable-arguments", reason)
            outcome = ToolOutcome(
                replace(call.action, text=proposal.raw),
                "invalid_args",
                error_type="InvalidToolCall",
                error=reason,
                decision=decision,
                started_at=call.started_at,
            )
            if call.finish(outcome):
                yield outcome
            return decision.denial_message(), call, decision
        try:
            decision = yield call.action
        except BaseException as error:
            call.span.end(error)
            raise
        if not decision.blocks:
            return None, call, decision
        yield call.denied(decision)
        if decision.abort:
            raise PolicyDenied(decision)
        return decision.denial_message(), call, decision

    def _hand_over(
        self,
        call: ModelCall,
        received: Received,
        turns: Sequence[Turn],
        judged: Sequence[_Judged],
        hidden: Sequence[JSON],
        spent: Sequence[JSON],
    ) -> Steps:
        """Judges what is left as the answer, remembers what the program does not get, and gives it the rest."""
        reply = received.reply
        assert reply is not None
        handed: list[Turn] = []
        for turn, one in zip(turns, judged, strict=True):
            given, told = one.given, one.told
            if one.denied and not given.proposals:
                given, told = self._wire.told(self._body, "\n".join(one.texts)), True
            elif not given.proposals and not told and given.text:
                decision: Decision = yield call.output(given.text)
                if decision.blocks:
                    if decision.abort:
                        raise PolicyDenied(decision)
                    given, told = self._wire.told(self._body, decision.denial_message()), True
                elif decision.text is not None:
                    given = self._wire.reworded(given, decision.text)
            handed.append(given)
            if given is not turn or told or hidden or one.answers:
                self._remember(reply, turn, one, given, told, hidden)
        if not spent and all(given == turn for given, turn in zip(handed, turns, strict=True)):
            streamed_calls = received.events and any(turn.proposals for turn in turns)
            return Answer(received, reply if streamed_calls else None)
        return Answer(received, self._wire.with_usage(self._wire.with_turns(reply, handed), spent))

    def _remember(self, reply: JSON, turn: Turn, one: _Judged, given: Turn, told: bool, hidden: Sequence[JSON]) -> None:
        answers = [answer for answer in one.answers if answer is not None]
        truth: list[tuple[JSON, int | None]] = [(entry, None) for entry in hidden]
        if told and not one.denied:  # the denial stands for what was withheld, for the model too
            truth.extend((entry, at) for at, entry in enumerate(given.entries))
        else:
            truth.extend((entry, _same(self._wire, entry, given, at)) for at, entry in enumerate(turn.entries))
            truth.extend((answer, None) for answer in answers)
        if [entry for entry, _ in truth] != list(given.entries):
            self._memory.given(self._wire, given.entries, truth, self._here)
        if answers:
            for key in (reply.get("id"), self._parent if self._body.get("conversation") else None):
                if isinstance(key, str):
                    self._memory.owed(key, answers)

    # ------------------------------------------------------------------ small things

    def _instead(self, decision: Decision, spent: Sequence[JSON] = ()) -> Answer:
        if decision.abort:
            raise PolicyDenied(decision)
        reply = self._wire.invented(self._body, decision.denial_message())
        self._memory.invented(str(reply["id"]), self._body.get("previous_response_id"))
        return Answer(None, self._wire.with_usage(reply, spent))


@dataclass(frozen=True, slots=True)
class _Judged:
    """A turn as the program may get it, the calls that were denied, the denials in words, and as entries."""

    given: Turn
    denied: Sequence[Proposal] = ()
    texts: Sequence[str] = ()
    answers: Sequence[JSON | None] = ()
    told: bool = False


def tool_action(point: Point, name: str, call_id: str | None, call: Proposal | None) -> Action:
    """The call, or its result, as it is judged; ``call`` is what the model proposed, where that is known."""
    scope = current_scope()
    return Action(
        point,
        name=name,
        kind=call.kind if call is not None else "function",
        arguments=(call.arguments or {}) if call is not None else {},
        framework=FRAMEWORK,
        session_id=scope.session_id if scope else None,
        rollout_id=scope.rollout_id if scope else None,
        attempt=scope.attempt if scope else None,
        call_id=call_id,
    )


def _said(text: str) -> Action:
    """What the user said. Inside a tool it is not the user who speaks."""
    above = current_span()
    nested = above is not None and above.operation == semconv.EXECUTE_TOOL
    return Action(
        Point.INPUT,
        name="agent",
        kind="text",
        text=text,
        framework=FRAMEWORK,
        parent_id=above.span_id if above is not None and nested else None,
    )


def result_reading(entry: JSON, text: str) -> ToolReading:
    """What a program says that came of a call."""
    return ToolReading(text, "error" if entry.get("status") == "incomplete" else "ok")


def _place(call: Proposal) -> tuple[int, int]:
    return call.entry, call.place


def ids_of(wire: Wire, entry: JSON) -> list[str]:
    """The ids of an entry of the model: of its calls, and its own."""
    own = wire.entry_id(entry)
    return [call.call_id for call in wire.proposals(entry) if call.call_id] + ([own] if own else [])


def _same(wire: Wire, entry: JSON, given: Turn, position: int) -> int | None:
    """Which entry of the given turn this one is; None if the program did not get it."""
    names = set(ids_of(wire, entry))
    if not names:
        return position if position < len(given.entries) and len(given.entries) == 1 else None
    return next((at for at, mine in enumerate(given.entries) if names & set(ids_of(wire, mine))), None)


def _reply_limit(body: JSON) -> dict[str, int]:
    """How long the reply may be, as an argument of the call."""
    found = next((body[name] for name in _LIMITS if type(body.get(name)) is int and body[name] > 0), None)
    return {} if found is None else {"max_output_tokens": found}
