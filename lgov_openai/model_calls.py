"""Governs one request of a program, up to the response that it gets: a port of `lgov_core.instrumentation.model_flow`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Flow, either, run_flow, wait
from lgov_core.instrumentation.model_call import ModelCall, reply_limit
from lgov_core.instrumentation.model_flow import Choice, ModelPort, ReplyPart, settle_flow
from lgov_core.instrumentation.tool_call import GovernedToolCall
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, Point, ToolOutcome, ToolStatus
from lgov_core.wire.turns import JSON, Proposal, Turn, read_arguments, rewritten_entries, with_texts, with_total_usage
from lgov_openai.conversations import FRAMEWORK, PendingCall, RequestEvaluation, tool_action
from lgov_openai.http_messages import (
    HeldCalls,
    Recording,
    Reply,
    denial_response,
    read_reply,
    request_with,
    response_with,
)


@dataclass(frozen=True, slots=True)
class ProgramTurn:
    """A turn as the program may get it.

    ``results`` are the entries by which the model reads that calls were denied, one for each call that was removed (None
    where the API has none). ``replaced``: the turn is a denial, in the model's place.
    """

    turn: Turn
    results: Sequence[JSON | None] = ()
    replaced: bool = False


def judge_turn_flow(
    request: RequestEvaluation, turn: Turn, allowed_turn: Turn, run_id: str
) -> Flow[tuple[ProgramTurn, list[Decision]]]:
    """Judges the calls of ``turn``, the model's reply in the run ``run_id``. Raises `PolicyDenied` for an abort.

    ``given`` is the turn as the program may get it so far. Returns that without the denied calls, and their denials.
    """
    protocol, memory = request.protocol, request.memory
    denied: list[Proposal] = []
    denials: list[Decision] = []
    allowed: list[tuple[Proposal, GovernedToolCall, Decision]] = []
    for proposal in turn.proposals:
        call, decision = yield from _evaluate_call(request, proposal, run_id)
        if decision.blocks:
            denied.append(proposal)
            denials.append(decision)
        else:
            allowed.append((proposal, call, decision))
    for proposal, call, decision in allowed:
        is_unknown = request.offered is not None and proposal.name not in request.offered
        if is_unknown:
            error = f"no tool {proposal.name} was offered"
            yield from _recorded(request, call, decision, "unknown_tool", "UnknownTool", error)
        here = next(call_left for call_left in allowed_turn.proposals if call_left.position == proposal.position)
        if decision.arguments is not None:
            allowed_turn = protocol.with_arguments(allowed_turn, here, decision.arguments)
            here = next(call_left for call_left in allowed_turn.proposals if call_left.position == proposal.position)
        memory.calls.add(PendingCall(call, decision, here.identity, request.digest, current_scope(), is_unknown))
    results = [
        protocol.denied_result(turn, proposal, decision.denial_message())
        for proposal, decision in zip(denied, denials, strict=True)
    ]
    gone = {call_left.position for call_left in denied}
    allowed_turn = (
        protocol.without(
            allowed_turn, [call_left for call_left in allowed_turn.proposals if call_left.position in gone]
        )
        if gone
        else allowed_turn
    )
    return ProgramTurn(allowed_turn, results), denials


def _evaluate_call(
    request: RequestEvaluation, proposal: Proposal, run_id: str
) -> Flow[tuple[GovernedToolCall, Decision]]:
    governor = request.governor
    action = tool_action(Point.PRE_TOOL_CALL, proposal.name, proposal.call_id, proposal).changed(run_id=run_id)
    unreadable = proposal.arguments is None
    if unreadable:
        action = action.changed(arguments=read_arguments(proposal.raw, unique_keys=False) or {}, text=proposal.raw)
    call = GovernedToolCall(governor, action)
    if unreadable and governor.evaluates(Point.PRE_TOOL_CALL):
        decision = call.refuse()
        yield from governor.record_flow(call.denied(decision))
        return call, decision
    decision = yield from call.judge_flow()
    if decision.blocks and decision.abort:
        raise PolicyDenied(decision)
    return call, decision


def _recorded(
    request: RequestEvaluation,
    call: GovernedToolCall,
    decision: Decision,
    status: ToolStatus,
    error_type: str,
    error: str,
) -> Flow[None]:
    """Records the outcome of a call that no tool can answer. The result that the program sends is not that of a tool."""
    started_at = call.started_at
    outcome = ToolOutcome(
        call.action, status, error_type=error_type, error=error, decision=decision, started_at=started_at
    )
    if call.finish(outcome):
        yield from request.governor.record_flow(outcome)


_REPLY_POINTS = (Point.POST_MODEL_CALL, Point.PRE_TOOL_CALL, Point.OUTPUT)
_TOKEN_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")


class OpenAICall(ModelPort[ProgramTurn, Any]):
    """One request of a program. ``send`` sends a request of the client's HTTP library; the program gets a response of it.

    A choice is a turn of the model. Where nothing judges the reply, the program reads it while it arrives; where no policy
    reads its text, the program reads the text while it arrives, and the rest once it has been judged.
    """

    def __init__(self, evaluation: RequestEvaluation, request: Any, send: Callable[[Any], Flow[Any]]) -> None:
        self.governor = evaluation.governor
        self._evaluation = evaluation
        self._memory = evaluation.memory
        self._protocol = evaluation.protocol
        self._request = request
        self._send = send
        #: The request as it was made, and as it is sent: its body and the transcript in it, as policies get that too.
        self._program_body = evaluation.body
        self._body = evaluation.body
        self._sent: Sequence[JSON] = ()
        self._mappings: Sequence[JSON] = ()
        self._is_changed = False
        self._asks_again = False
        #: Whether a reply can be denied or changed; if not, the program gets it while it arrives, and unchanged.
        self._judges_reply = any(self.governor.evaluates(point) for point in _REPLY_POINTS)
        self._passes_text = not self.governor.reads_replies() and self._protocol.is_text_stream(self._body)
        #: The reply, the same with its texts beside the turns as policies left them, and the events the program has of it.
        self._reply: Reply | None = None
        self._content: JSON = {}
        self._passed: Sequence[JSON] = ()
        #: What the model wrote and read in earlier rounds, and the replies of these.
        self._hidden: list[JSON] = []
        self._spent: list[JSON] = []
        self._response: Any = None

    # ------------------------------------------------------------------ the request

    def begin(self) -> ModelCall:
        """See `CallPort.begin`."""
        self._reply = None
        body = self._body
        return ModelCall(self.governor, framework=FRAMEWORK, model=str(body.get("model") or "model"), native=body)

    def judge_input_flow(self, call: ModelCall) -> Flow[Decision | None]:
        """Judges the tool results and the user messages that the program sends."""
        denial = yield from self._evaluation.judge_flow()
        if denial is None:
            self._sent = self._evaluation.sent()
            self._is_changed = self._evaluation.renamed or self._sent != self._evaluation.program
            if self._is_changed:
                self._body = self._protocol.with_entries(self._body, self._sent)
        return denial

    def request(self, call: ModelCall) -> Action:
        """See `CallPort.request`."""
        self._mappings = [self._protocol.mapping(entry) for entry in self._sent]
        tools, limit = self._body.get("tools") or [], reply_limit(*map(self._body.get, _TOKEN_LIMITS))
        return call.request(self._mappings, tools=tools, user_text=self._evaluation.said, **limit)

    def take_messages(self, new_messages: Sequence[Mapping[str, Any]]) -> None:
        """See `CallPort.take_messages`."""
        rewritten = rewritten_entries(self._protocol, self._sent, self._mappings, new_messages)
        if rewritten is None:
            raise ValueError("a message is not clearly one of the request's, nor only a role and a text")
        self._body, self._is_changed = self._protocol.with_entries(self._body, rewritten), True

    def send_flow(self, call: ModelCall) -> Flow[Sequence[ReplyPart[ProgramTurn]] | None]:
        """Sends the request. None where the program reads the reply while it arrives."""
        again = self._asks_again
        request = request_with(self._body, self._request, again=again) if self._is_changed else self._request
        try:
            with call.span.active(model=self.governor):
                response = yield from self._send(request)
                if self._judges_reply and (again or not self._passes_text_of(response)):
                    yield from wait(either(response.read, response.aread))
        except BaseException as error:
            call.failed(error)
            raise
        if not again and not response.is_closed:
            if not self._judges_reply and response.is_success:
                return self._record_stream(call, response)
            if self._passes_text_of(response):
                return self._hold_calls(call, response)
        return self._read(call, response)

    def _passes_text_of(self, response: Any) -> bool:
        plain = response.headers.get("content-encoding") in (None, "identity")
        return self._judges_reply and self._passes_text and response.is_success and plain

    def _record_stream(self, call: ModelCall, response: Any) -> None:
        """Lets the program read the body while it arrives; its span is made when it has ended."""

        def conclude(reply: Reply, error: BaseException | None) -> None:
            run_flow(settle_flow(self, call, self._parts(call, reply, error)))

        def read(arrived: Any) -> Reply:
            return read_reply(arrived, self._protocol, partial=True)

        key = (current_scope(), self._evaluation.digest)
        Recording(response, key, read, conclude, self._memory.recordings)
        self._response = response

    def _hold_calls(self, call: ModelCall, response: Any) -> None:
        """Lets the program read the text of the reply while it arrives, and the rest once it has been judged."""

        def finish_flow(whole: Any, passed: Sequence[JSON]) -> Flow[Any]:
            self._passed = passed
            return (yield from settle_flow(self, call, self._read(call, whole)))

        key = (current_scope(), self._evaluation.digest)
        HeldCalls(response, key, self._protocol.is_text, finish_flow, call.failed, self._memory.recordings)
        self._response = response

    def _read(self, call: ModelCall, response: Any) -> Sequence[ReplyPart[ProgramTurn]] | None:
        self._response = response
        try:
            reply = read_reply(response, self._protocol)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing can judge the reply
            call.unreadable(error)
            return None
        return self._parts(call, reply)

    def _parts(
        self, call: ModelCall, reply: Reply, error: BaseException | None = None
    ) -> Sequence[ReplyPart[ProgramTurn]] | None:
        """The reply as one part with a choice for each turn; None, and the span ends, if there is no reply."""
        self._response = reply.response
        if reply.content is None or reply.reading is None:
            call.failed(error or reply.error or RuntimeError("no reply"))
            return None
        if self._evaluation.parent is not None and not self._body.get("previous_response_id"):
            self._memory.turns.paid(self._evaluation.parent)
        self._memory.turns.count(
            name for turn in reply.turns for entry in turn.entries for name in self._protocol.ids(entry)
        )
        self._reply, self._content = reply, reply.content
        return [ReplyPart(reply.reading, [ProgramTurn(turn) for turn in reply.turns])]

    # ------------------------------------------------------------------ the reply

    def with_transform(self, reply_part: ReplyPart[ProgramTurn], decision: Decision) -> Sequence[ProgramTurn] | None:
        """See `CallPort.with_transform`; also the texts beside the turns."""
        fields = reply_part.reading.fields
        if decision.arguments is not None and fields:
            try:
                self._content = with_texts(self._content, fields, decision.arguments.get("fields"))
            except ValueError:
                return None
            reply_part = ReplyPart(
                reply_part.reading, [ProgramTurn(turn) for turn in self._protocol.turns(self._content)]
            )
        return super().with_transform(reply_part, decision)

    def deny_fields(self) -> None:
        """See `CallPort.deny_fields`."""
        self._content = self._protocol.without_fields(self._content)

    def with_text(self, choice: ProgramTurn, text: str) -> ProgramTurn:
        """See `CallPort.with_text`."""
        return replace(choice, turn=self._protocol.with_turn_text(choice.turn, text))

    def denied(self, choice: ProgramTurn | None, decision: Decision, text: str) -> ProgramTurn:
        """See `CallPort.denied`."""
        denial = self._protocol.denial_turn(self._program_body, text)
        return ProgramTurn(denial, choice.results if choice is not None else (), replaced=True)

    def judge_acts_flow(self, call: ModelCall, choice: Choice[ProgramTurn]) -> Flow[Choice[ProgramTurn]]:
        """Judges the tool calls of the turn."""
        assert choice.received is not None, "the model wrote the turn"
        turn, denials = yield from judge_turn_flow(
            self._evaluation, choice.received.turn, choice.reply.turn, call.span.run_id
        )
        return replace(choice, reply=turn, denials=denials)

    def answer(self, choice: ProgramTurn) -> str | None:
        """See `CallPort.answer`."""
        return choice.turn.text or None if not choice.turn.proposals else None

    def proposes(self, choice: ProgramTurn) -> bool:
        """See `CallPort.proposes`."""
        return bool(choice.turn.proposals)

    def ask_again(self, choices: Sequence[Choice[ProgramTurn]]) -> bool:
        """See `ModelPort.ask_again`: only where all calls of the only turn were denied, and the API has an answer to each."""
        reply, results = self._reply, choices[0].reply.results
        denials = [result for result in results if result is not None]
        if reply is None or reply.content is None or len(choices) > 1 or self.proposes(choices[0].reply):
            return False
        if len(denials) < len(results):
            return False
        turn = reply.turns[0]
        self._hidden.extend([*turn.entries, *denials])
        self._spent.append(reply.content)
        self._body = self._protocol.continued(self._body, self._sent, reply.content, turn, denials)
        self._sent = self._protocol.entries(self._body)
        self._is_changed = self._asks_again = True
        return True

    def repeat(self) -> bool:
        """See `ModelPort.repeat`: only where the program has nothing of the reply."""
        if self._reply is None or self._reply.content is None or self._passed:
            return False
        self._spent.append(self._reply.content)
        self._is_changed = self._asks_again = True
        return True

    # ------------------------------------------------------------------ the response

    def deliver_flow(self, choices: Sequence[Choice[ProgramTurn]] | None) -> Flow[Any]:
        """The response for the program; remembers the difference between what the model wrote and what the program gets."""
        return self._response_of(choices)
        yield

    def _response_of(self, choices: Sequence[Choice[ProgramTurn]] | None) -> Any:
        reply = self._reply
        if choices is None or (reply is not None and not self._judges_reply):
            # Not kept: a body that the program drops unread has to be collected, which ends the call.
            response, self._response = self._response, None
            return response
        if reply is None:
            return self._refused_response(choices[0].reply.turn)
        delivered: list[Turn] = []
        for turn, choice in zip(reply.turns, choices, strict=True):
            if self._passed:
                new_turn = self._protocol.turn_after(self._passed, choice.reply.turn)
                choice = replace(choice, reply=replace(choice.reply, turn=new_turn))
            delivered.append(choice.reply.turn)
            self._remember(turn, choice)
        if not self._spent and self._content is reply.content and delivered == list(reply.turns):
            fields = reply.reading is not None and reply.reading.fields
            calls = any(turn.proposals for turn in reply.turns) or "_call" in json.dumps(reply.events)
            if not (reply.events and (calls or fields)):
                return reply.response
            # Rewritten, so that the program assembles exactly what was judged, from whatever event.
            return response_with(reply, self._content, self._protocol, self._program_body, self._passed)
        changed = self._protocol.with_turns(self._content, delivered)
        content = self._with_id(changed, parent=self._content.get("id"))
        return response_with(reply, content, self._protocol, self._program_body, self._passed)

    def _refused_response(self, denial: Turn) -> Any:
        """The response for a request that was not sent."""
        reply = self._protocol.denial_reply(self._program_body, denial.text)
        if self._passed:
            turns = [self._protocol.turn_after(self._passed, turn) for turn in self._protocol.turns(reply)]
            reply = self._protocol.with_turns(reply, turns)
        content = self._with_id(reply, parent=self._program_body.get("previous_response_id"))
        return denial_response(content, self._protocol, self._program_body, self._request, self._passed)

    def _with_id(self, content: JSON, *, parent: str | None) -> JSON:
        """``content`` for the program: with the usage of all rounds, and the id that its stream began with.

        ``parent`` is the reply that the server knows instead.
        """
        if self._passed and self._spent:
            content = {**content, "id": self._spent[0].get("id")}
        if content.get("id") != parent:
            self._memory.parents.continue_from(str(content.get("id")), parent)
        return with_total_usage(content, self._spent)

    def _remember(self, turn: Turn, choice: Choice[ProgramTurn]) -> None:
        """Remembers the difference between what the model wrote and read, and what the program gets."""
        entries = choice.reply.turn.entries
        results = [result for result in choice.reply.results if result is not None]
        actual: list[tuple[JSON, int | None]] = [(entry, None) for entry in self._hidden]
        if choice.reply.replaced and not choice.denials:  # the model reads the denial, too
            actual.extend((entry, position) for position, entry in enumerate(entries))
        else:
            actual.extend(
                (entry, self._received_at(entry, entries, position)) for position, entry in enumerate(turn.entries)
            )
            actual.extend((result, None) for result in results)
        if [entry for entry, _ in actual] != list(entries):
            self._memory.turns.add(self._evaluation.reader, self._evaluation.digest, entries, actual)
        if results:
            in_conversation = self._evaluation.parent if self._program_body.get("conversation") else None
            for key in (self._content.get("id"), in_conversation):
                if isinstance(key, str):
                    self._memory.turns.owe(key, results)

    def _received_at(self, entry: JSON, delivered: Sequence[JSON], position: int) -> int | None:
        """Which of the delivered entries ``entry`` is; None if the program does not get it."""
        ids = set(self._protocol.ids(entry))
        if not ids:
            return position if len(delivered) == 1 and position == 0 else None
        return next((at for at, each in enumerate(delivered) if ids & set(self._protocol.ids(each))), None)
