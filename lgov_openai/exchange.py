"""One model call of a program under policy, from its request to the response that the program gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Flow, either, run_flow, wait
from lgov_core.instrumentation.model_call import ModelCall, reply_limit
from lgov_core.scope import current_scope
from lgov_core.types import Decision, Point
from lgov_core.wire.content import JSON, with_texts, with_total_usage
from lgov_core.wire.turns import ModelReading, Turn, rewritten_entries
from lgov_openai.actions import FRAMEWORK
from lgov_openai.held_calls import HeldCalls
from lgov_openai.http_messages import Reply, denial_response, read_reply, request_with, response_with
from lgov_openai.recording import Recording
from lgov_openai.request_evaluation import RequestEvaluation
from lgov_openai.turn_evaluation import EvaluatedTurn, evaluate_turn

#: How often the model is asked again after all calls of a reply were denied; then the program gets the denial.
MAX_ROUNDS = 4

_REPLY_POINTS = (Point.POST_MODEL_CALL, Point.PRE_TOOL_CALL, Point.OUTPUT)
_TOKEN_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")


class Exchange:
    """Evaluates and sends one request of a program. ``send`` sends a request of the client's HTTP library."""

    def __init__(self, evaluation: RequestEvaluation, request: Any, send: Callable[[Any], Flow[Any]]) -> None:
        self._evaluation = evaluation
        self._governor = evaluation.governor
        self._memory = evaluation.memory
        self._protocol = evaluation.protocol
        self._body = evaluation.body
        self._request = request
        self._send = send
        #: Whether a reply can be denied or changed; if not, the program gets it while it arrives, and unchanged.
        self._evaluates_reply = any(self._governor.evaluates(point) for point in _REPLY_POINTS)
        #: Whether the program gets the text of a stream while it arrives: no policy reads it.
        self._passes_text = not self._governor.reads_replies() and self._protocol.is_text_stream(self._body)

    def steps(self) -> Flow[Any]:
        """The response for the program. Raises `PolicyDenied` where a decision aborts the run."""
        denial = yield from self._evaluation.evaluate()
        if denial is not None:
            return self._denied(denial)
        sent = self._evaluation.sent()
        changed = self._evaluation.renamed or sent != self._evaluation.program
        body = self._protocol.with_entries(self._body, sent) if changed else self._body
        return (yield from self._rounds(body, sent, changed))

    def _rounds(self, body: JSON, sent: Sequence[JSON], changed: bool) -> Flow[Any]:
        """Sends ``body``, and again with the denials while all calls of a reply are denied."""
        call = self._model_call(body)
        response = yield from self._ask(call, body, sent, changed, again=False)
        if isinstance(response, Decision):
            return self._denied(response)
        if not self._evaluates_reply and response.is_success and not response.is_closed:
            self._record_stream(call, response)
            return response
        if self._passes_text_of(response) and not response.is_closed:
            self._hold_calls(call, response, body, sent)
            return response
        return (yield from self._reply_rounds(call, response, body, sent))

    def _reply_rounds(
        self, call: ModelCall, response: Any, body: JSON, sent: Sequence[JSON], passed: Sequence[JSON] = ()
    ) -> Flow[Any]:
        """Evaluates the reply, and asks again while all its calls are denied. The program has got ``passed`` of it."""
        hidden: list[JSON] = []  # what the model wrote and read in the rounds before
        spent: list[JSON] = []  # the replies of these rounds
        while True:
            reply = self._read(call, response)
            evaluated = yield from self._evaluate_reply(call, reply)
            if evaluated is None or reply.content is None or not self._evaluates_reply:
                return reply.response
            content, turns = evaluated
            results = turns[0].results if len(turns) == 1 else []
            if results and None not in results and not turns[0].turn.proposals and len(spent) < MAX_ROUNDS:
                denials = [result for result in results if result is not None]
                hidden.extend([*reply.turns[0].entries, *denials])
                spent.append(reply.content)
                body = self._protocol.continued(body, sent, reply.content, reply.turns[0], denials)
                sent = self._protocol.entries(body)
                call = self._model_call(body)
                response = yield from self._ask(call, body, sent, True, again=True)
                if isinstance(response, Decision):
                    return self._denied(response, spent, passed)
                continue
            return (yield from self._deliver(call, reply, content, turns, hidden, spent, passed))

    def _passes_text_of(self, response: Any) -> bool:
        plain = response.headers.get("content-encoding") in (None, "identity")
        return self._evaluates_reply and self._passes_text and response.is_success and plain

    def _model_call(self, body: JSON) -> ModelCall:
        return ModelCall(self._governor, framework=FRAMEWORK, model=str(body.get("model") or "model"), native=body)

    def _ask(
        self, call: ModelCall, body: JSON, sent: Sequence[JSON], changed: bool, *, again: bool
    ) -> Flow[Any | Decision]:
        """Evaluates the model call and sends it. The response, or the decision by which it was not sent."""
        mappings = [self._protocol.mapping(entry) for entry in sent]
        tools, limit = body.get("tools") or [], reply_limit(*map(body.get, _TOKEN_LIMITS))
        action = call.request(mappings, tools=tools, user_text=self._evaluation.said, **limit)
        try:
            decision = yield from self._governor.decision_flow(action)
        except BaseException as error:  # cancelled: nothing was sent
            call.span.end(error)
            raise
        if not decision.blocks and decision.arguments is not None:
            rewritten = rewritten_entries(self._protocol, sent, mappings, decision.arguments["messages"])
            if rewritten is None:
                reason = "a policy rewrote the messages in a way that cannot be sent"
                decision = self._governor.refuse(action, "unclear-transform", reason)
            else:
                body, changed = self._protocol.with_entries(body, rewritten), True
        if decision.blocks:
            call.refused(decision)
            return decision
        request = request_with(body, self._request, again=again) if changed else self._request
        try:
            with call.span.active(model=self._governor):
                response = yield from self._send(request)
                if self._evaluates_reply and (again or not self._passes_text_of(response)):
                    yield from wait(either(response.read, response.aread))
        except BaseException as error:
            call.failed(error)
            raise
        return response

    def _denied(self, decision: Decision, spent: Sequence[JSON] = (), passed: Sequence[JSON] = ()) -> Any:
        """The response for a request that was not sent. The program has got ``passed`` of it."""
        if decision.abort:
            raise PolicyDenied(decision)
        reply = self._protocol.denial_reply(self._body, decision.denial_message())
        if passed:
            turns = [self._protocol.turn_after(passed, turn) for turn in self._protocol.turns(reply)]
            reply = self._protocol.with_turns(reply, turns)
        content = self._with_id(reply, spent, passed, parent=self._body.get("previous_response_id"))
        return denial_response(content, self._protocol, self._body, self._request, passed)

    def _with_id(self, reply: JSON, spent: Sequence[JSON], passed: Sequence[JSON], *, parent: str | None) -> JSON:
        """``reply`` for the program: with the usage of all rounds, and the id that its stream began with.

        ``parent`` is the reply that the server knows instead.
        """
        if passed and spent:
            reply = {**reply, "id": spent[0].get("id")}
        if reply.get("id") != parent:
            self._memory.turns.continue_from(str(reply.get("id")), parent)
        return with_total_usage(reply, spent)

    def _read(self, call: ModelCall, response: Any) -> Reply:
        try:
            return read_reply(response, self._protocol)
        except Exception as error:
            if not self._evaluates_reply:
                return Reply(response, error=error)
            call.failed(error)
            decision = call.refuse_reply(ModelReading(""), "it is not a complete reply of this API")
            raise PolicyDenied(decision) from error

    def _record_stream(self, call: ModelCall, response: Any) -> None:
        """Lets the program read the body while it arrives; its span is made when it has ended."""

        def conclude(reply: Reply, error: BaseException | None) -> None:
            run_flow(self._evaluate_reply(call, reply, error))

        def read(arrived: Any) -> Reply:
            return read_reply(arrived, self._protocol, partial=True)

        Recording(response, (current_scope(), self._evaluation.digest), read, conclude, self._memory.recordings)

    def _hold_calls(self, call: ModelCall, response: Any, body: JSON, sent: Sequence[JSON]) -> None:
        """Lets the program read the text of the reply while it arrives, and the rest once it has been evaluated."""

        def finish(whole: Any, passed: Sequence[JSON]) -> Flow[Any]:
            return (yield from self._reply_rounds(call, whole, body, sent, passed))

        key = (current_scope(), self._evaluation.digest)
        HeldCalls(response, key, self._protocol.is_text, finish, call.failed, self._memory.recordings)

    def _evaluate_reply(
        self, call: ModelCall, reply: Reply, error: BaseException | None = None
    ) -> Flow[tuple[JSON, list[EvaluatedTurn]] | None]:
        """Ends the span and evaluates the reply and its calls; None if there is no reply.

        The reply as its texts beside its turns may be, and one result a turn.
        """
        if reply.content is None or reply.reading is None:
            call.failed(error or reply.error or RuntimeError("no reply"))
            return None
        if self._evaluation.parent is not None and not self._body.get("previous_response_id"):
            self._memory.turns.paid(self._evaluation.parent)
        call.answered(reply.reading)
        decision = yield from call.reply_flow(reply.reading)
        decision, content = self._with_fields(call, reply.content, reply.reading, decision)
        if decision.blocks and decision.abort:
            raise PolicyDenied(decision)
        evaluated: list[EvaluatedTurn] = []
        given_turns = self._protocol.turns(content) if content is not reply.content else reply.turns
        for number, (turn, given) in enumerate(zip(reply.turns, given_turns, strict=True)):
            if decision.blocks:
                denial = self._protocol.denial_turn(self._body, decision.denial_message())
                evaluated.append(EvaluatedTurn(denial, replaced=True))
                continue
            if decision.text is not None:
                given = self._protocol.with_turn_text(given, decision.text if number == 0 else "")
            evaluated.append((yield from evaluate_turn(self._evaluation, turn, given, call.span.run_id)))
        self._memory.turns.count_ids(
            name for turn in reply.turns for entry in turn.entries for name in self._protocol.ids(entry)
        )
        return content, evaluated

    def _with_fields(
        self, call: ModelCall, content: JSON, reading: ModelReading, decision: Decision
    ) -> tuple[Decision, JSON]:
        """``content`` with its texts beside its turns as ``decision`` left them, or denied with all of them."""
        if not decision.blocks and decision.arguments is not None and reading.fields:
            try:
                return decision, with_texts(content, reading.fields, decision.arguments.get("fields"))
            except ValueError:
                reason = "a policy changed more of the reply than its texts"
                decision = self._governor.refuse(call.reply(reading), "unclear-transform", reason)
        return decision, self._protocol.without_fields(content) if decision.blocks else content

    def _deliver(
        self,
        call: ModelCall,
        reply: Reply,
        content: JSON,
        evaluated: Sequence[EvaluatedTurn],
        hidden: Sequence[JSON],
        spent: Sequence[JSON],
        passed: Sequence[JSON],
    ) -> Flow[Any]:
        """Evaluates what is left as the output, remembers what the program does not get, and returns the rest."""
        delivered: list[Turn] = []
        for turn, one in zip(reply.turns, evaluated, strict=True):
            if one.denials and not one.turn.proposals:
                denial = self._protocol.denial_turn(self._body, "\n".join(one.denials))
                one = replace(one, turn=denial, replaced=True)
            elif not one.turn.proposals and not one.replaced and one.turn.text:
                decision = yield from self._governor.decision_flow(call.output(one.turn.text))
                if decision.blocks:
                    if decision.abort:
                        raise PolicyDenied(decision)
                    denial = self._protocol.denial_turn(self._body, decision.denial_message())
                    one = replace(one, turn=denial, replaced=True)
                elif decision.text is not None:
                    one = replace(one, turn=self._protocol.with_turn_text(one.turn, decision.text))
            if passed:
                one = replace(one, turn=self._protocol.turn_after(passed, one.turn))
            delivered.append(one.turn)
            self._remember(content, turn, one, hidden)
        unchanged = content is reply.content and list(delivered) == list(reply.turns)
        if not spent and unchanged:
            beside = reply.reading is not None and reply.reading.fields
            calls = any(turn.proposals for turn in reply.turns) or "_call" in json.dumps(reply.events)
            if not (reply.events and (calls or beside)):
                return reply.response
            # Rewritten, so that the program assembles exactly what was evaluated, from whatever event.
            return response_with(reply, content, self._protocol, self._body, passed)
        changed = self._protocol.with_turns(content, delivered)
        content = self._with_id(changed, spent, passed, parent=content.get("id"))
        return response_with(reply, content, self._protocol, self._body, passed)

    def _remember(self, content: JSON, turn: Turn, one: EvaluatedTurn, hidden: Sequence[JSON]) -> None:
        """Remembers the difference between what the model wrote and read, and what the program gets."""
        results = [result for result in one.results if result is not None]
        actual: list[tuple[JSON, int | None]] = [(entry, None) for entry in hidden]
        if one.replaced and not one.denials:  # the model reads the denial, too
            actual.extend((entry, at) for at, entry in enumerate(one.turn.entries))
        else:
            actual.extend((entry, self._received_at(entry, one.turn, at)) for at, entry in enumerate(turn.entries))
            actual.extend((result, None) for result in results)
        if [entry for entry, _ in actual] != list(one.turn.entries):
            self._memory.turns.add(self._protocol, self._evaluation.digest, one.turn.entries, actual)
        if results:
            for key in (content.get("id"), self._evaluation.parent if self._body.get("conversation") else None):
                if isinstance(key, str):
                    self._memory.turns.owe(key, results)

    def _received_at(self, entry: JSON, turn: Turn, position: int) -> int | None:
        """Which entry of the delivered turn ``entry`` is; None if the program does not get it."""
        ids = set(self._protocol.ids(entry))
        if not ids:
            return position if len(turn.entries) == 1 and position == 0 else None
        return next((at for at, one in enumerate(turn.entries) if ids & set(self._protocol.ids(one))), None)
