"""One governed model call: what users said, the request, the reply, and the acts that it proposes.

One path serves whole and streamed replies: a reply is a stream of events whose last item is the `ModelResponse`. The
events are withheld until the reply has been evaluated, or passed on as they come where nothing evaluates replies. Acts
that the SDK offers no other place to stop (hand-offs, acts on a computer) are evaluated here too: the model reads the
denial and is asked again, and the run goes on with its next reply.
"""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from agents import ModelResponse
from openai.types.responses import ResponseCompletedEvent, ResponseFunctionToolCall

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, arun_flow
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.instrumentation.reply_stream import reply_pieces
from lgov_core.types import Decision, Point
from lgov_openai_agents import items
from lgov_openai_agents.model_request import ModelRequest, model_name
from lgov_openai_agents.proposals import (
    answer_to,
    answered,
    can_be_answered,
    evaluate_proposals,
    next_request,
    without_denied_tools,
)
from lgov_openai_agents.replay import event_key, events_of, failure_in, is_text, response_of
from lgov_openai_agents.runs import AgentRun, RunMemory, parent_in

#: How often a model is asked again after it proposed what is denied; then the denial is the answer.
MAX_DENIED_ROUNDS = 3

Ask = Callable[[ModelRequest], AsyncIterator[Any]]


class IncompleteReply(Exception):
    """A stream ended without a whole reply."""


class ModelExchange:
    """One model call; ``ask`` sends a request to the model and gives the reply's events, or the `ModelResponse`."""

    def __init__(
        self, governor: Governor, model: Any, request: ModelRequest, ask: Ask, run: AgentRun | None, agent: str | None
    ) -> None:
        self._governor = governor
        self._model = model
        self._request = request
        self._ask = ask
        self._run = run
        self._agent = run.agent if run is not None else agent
        self._memory = run.memory if run is not None else RunMemory()
        self._kept_in = request.conversation or request.previous_response
        self._said: list[str] = [] if run is None else run.said
        self._exchange: list[Any] = []  # what was denied in earlier rounds, and the answers
        self._withholds = governor.evaluates(Point.POST_MODEL_CALL) or governor.evaluates(Point.PRE_TOOL_CALL)
        self._passes_text = not governor.reads_replies()
        self._passed: set[tuple[str, str | None]] = set()
        self._withheld: list[Any] = []
        self._received: ModelResponse | None = None

    async def reply(self) -> AsyncGenerator[Any]:
        """The events of the governed reply, then the reply. Of an incomplete stream only the event that says so."""
        self._restore_hidden()
        usage: Any = None
        rounds_left = MAX_DENIED_ROUNDS
        while True:
            call = self._begun()
            refusal = await self._permitted(call)
            if refusal is not None:
                call.refused(refusal)
                response, denials = self._denial(refusal), []
            else:
                async with aclosing(self._asked(call)) as events:
                    async for event in events:
                        yield event
                if self._received is None:
                    for event in failure_in(self._withheld):
                        yield event
                    return
                response, denials = await self._evaluated(call, self._received)
            if usage is not None:
                usage.add(response.usage)
                response = replace(response, usage=usage)
            if not denials:
                break
            if not rounds_left or (self._request.conversation is not None and not can_be_answered(response)):
                # The model does not listen, or the server would wait for an answer that cannot be given.
                response = self._denial(denials[-1][1], response)
                break
            usage = response.usage
            rounds_left -= 1
            exchange = answered(response, denials)
            self._exchange += exchange
            self._request = next_request(self._request, response, exchange, denials)
        self._remember(response)
        is_unchanged = self._received is not None and _same_items(response, self._received) and usage is None
        for event in self._withheld if is_unchanged else events_of(response, self._withheld, model_name(self._model)):
            if is_unchanged or event_key(event) not in self._passed:
                yield event
        yield response

    def _restore_hidden(self) -> None:
        """Puts back what the SDK's history lacks of earlier calls of the run, or of the conversation on the server."""
        given = self._request.input
        if self._run is not None and self._run.exchanges and not self._request.is_kept_by_server:
            given = items.with_exchanges(items.as_list(given), self._run.exchanges)
        if answers := self._memory.answers_for(self._kept_in):
            given = [*answers, *items.as_list(given)]
        self._request = replace(self._request, input=given)

    def _remember(self, response: ModelResponse) -> None:
        """Keeps what was denied for the run's later requests: the SDK's own history does not hold it."""
        if not self._exchange or self._run is None:
            return
        calls = (getattr(item, "call_id", None) for item in response.output)
        anchor = next((call_id for call_id in calls if call_id), None)
        if anchor is not None:
            self._run.exchanges[anchor] = self._exchange

    def _begun(self) -> ModelCall:
        self._withheld, self._received = [], None
        return ModelCall(
            self._governor,
            framework=items.FRAMEWORK,
            model=model_name(self._model),
            agent=self._agent,
            native=self._request,
            parent=parent_in(self._run),
        )

    # ---------------------------------------------------------------------- before the model

    async def _permitted(self, call: ModelCall) -> Decision | None:
        """Evaluates what users said and the request, and rewrites it; returns the decision that refuses it, if any."""
        try:
            refusal = await self._evaluate_input(call)
            if refusal is not None:
                return refusal
            self._request = await without_denied_tools(self._governor, self._request, self._agent, call.span.span_id)
            sent, limit = self._request, self._request.reply_limit()
            action = call.request(sent.messages(), tools=sent.definitions(), user_text=self._said, **limit)
            decision = await self._governor.adecide(action)
            if decision.blocks:
                return decision
            if decision.arguments is not None:
                given = items.as_list(self._request.input)
                changed = items.with_messages(self._request.system_instructions, given, decision.arguments["messages"])
                if changed is None:
                    reason = "a policy rewrote the messages in a way that cannot be sent"
                    return self._governor.refuse(action, "unclear-transform", reason)
                self._request = replace(self._request, system_instructions=changed[0], input=changed[1])
        except BaseException as error:
            call.span.end(error)  # nothing was sent
            raise
        return None

    async def _evaluate_input(self, call: ModelCall) -> Decision | None:
        """Evaluates the texts of the user that are new, and those that this process does not know.

        A session or a paused run may come from another process. Without a run, which knows those before, all are new.
        """
        given, run, decisions = items.as_list(self._request.input), self._run, self._memory.decisions
        texts = [text for _, text, _ in items.user_messages(given)]
        if run is None:
            self._said = texts
        elif not run.input_evaluated and not run.nested:
            run.said = self._said = texts
        first_new = 0 if run is None else len(given) if run.input_evaluated else items.end_of_history(given)
        for position, text, answer in items.user_messages(given):
            is_new = position >= first_new
            if not is_new and (run is None or run.history_evaluated or decisions.knows(text, answer)):
                continue
            decision = await self._governor.adecide(call.user_text(text, nested=text not in self._said))
            if not decision.blocks:
                decisions.let_through(text, decision.text)
            elif is_new or decision.abort:
                decisions.denied(text, decision.denial_message())
                return decision
            else:
                decisions.withheld(text, decision.denial_message())
        if run is not None:
            run.input_evaluated = run.history_evaluated = True
        self._request = replace(self._request, input=self._memory.with_decisions(given))
        return None

    # ---------------------------------------------------------------------- the model and its reply

    async def _asked(self, call: ModelCall) -> AsyncGenerator[Any]:
        """Sends the request; gives the events that are not withheld. The reply is `_received`, None if incomplete."""
        events: list[Any] = []
        request = self._request.with_headers(self._model, self._agent)
        async with aclosing(reply_pieces(call, lambda: self._ask(request))) as pieces:
            async for event in pieces:
                if isinstance(event, ModelResponse):
                    self._received = event
                    continue
                events.append(event)
                # The last event of a whole reply waits until the call has been recorded.
                passes = not self._withholds or (self._passes_text and is_text(event))
                if self._withheld or not passes or isinstance(event, ResponseCompletedEvent):
                    self._withheld.append(event)
                else:
                    self._passed.add(event_key(event))
                    yield event
        self._received = self._received or response_of(events)
        if self._received is None:
            call.failed(IncompleteReply())

    async def _evaluated(
        self, call: ModelCall, received: ModelResponse
    ) -> tuple[ModelResponse, list[tuple[Any, Decision]]]:
        """The reply as policies left it, and what was denied of its proposals; ends the span."""
        if self._request.conversation is not None:
            self._memory.answers_sent(self._kept_in)
        try:
            reading = items.reading_of(received, model_name(self._model))
        except Exception as error:
            call.failed(error)
            if self._withholds:
                raise
            return received, []
        call.answered(reading)
        response, final = self._applied(await arun_flow(call.reply_flow(reading)), received)
        if final:
            return response, []
        if items.proposes_calls(response):
            denials, response = await evaluate_proposals(
                self._governor, self._request, response, self._agent, parent_in(self._run)
            )
            return response, denials
        answer = await self._governor.adecide(call.output(items.reply_text(response)))
        response, _ = self._applied(answer, response)
        return response, []

    def _applied(self, decision: Decision, response: ModelResponse) -> tuple[ModelResponse, bool]:
        """The reply as the decision on it leaves it, and whether that is a denial."""
        if decision.blocks:
            return self._denial(decision, response), True
        return response if decision.text is None else items.with_reply_text(response, decision.text), False

    def _denial(self, decision: Decision, response: ModelResponse | None = None) -> ModelResponse:
        schema = self._request.output_schema
        if decision.abort or (schema is not None and not schema.is_plain_text()):
            raise PolicyDenied(decision)
        if response is not None:
            text = decision.denial_message()
            answers = [answer_to(item, text) for item in response.output if isinstance(item, ResponseFunctionToolCall)]
            for conversation in (response.response_id, self._request.conversation):
                self._memory.keep_answers(conversation, answers)
        return items.denial_reply(decision, response)


def _same_items(one: ModelResponse, other: ModelResponse) -> bool:
    return len(one.output) == len(other.output) and all(map(operator.is_, one.output, other.output))
