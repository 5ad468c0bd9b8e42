"""One call of a model client, governed: what was said, the call, the reply, and the hand-offs it proposes.

The same steps serve the wrapper that a program makes itself (`GovernedChatCompletionClient`) and the methods of every
client of an instrumented process. A streamed reply is held until it is judged; its chunks are passed on then. Where nobody
judges each goes on as it comes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    RequestUsage,
)

from lgov_autogen import messages as wording
from lgov_autogen.answers import Answer, Send
from lgov_autogen.proposals import (
    Proposed,
    Waiting,
    is_offered_handoff,
    judge_handoff,
    judge_proposal,
    lost_call,
    results_in,
    tool_name,
)
from lgov_autogen.runs import Run, begin_loop
from lgov_autogen.transcript import HiddenPart, Transcript, own_text
from lgov_autogen.transport import Exchange, watching
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.message_decisions import MessageDecisionCache
from lgov_core.instrumentation.model_call import ModelCall, ModelReading
from lgov_core.types import Decision

#: How often a model that proposes nothing but denied calls is asked again before the denial is the answer.
MAX_ROUNDS = 3

_NO_MORE: Any = object()


class _Refused(Exception):
    """The model was not asked, or its reply is withheld; the caller gets ``answer``."""

    def __init__(self, answer: Answer) -> None:
        super().__init__("refused")
        self.answer = answer


class ModelCalls:
    """Governs model calls; remembers what their callers do not see. May serve any number of clients and tasks.

    ``governed_later`` answers of an offered tool (or schema; None for one that was not offered) whether somebody judges its
    calls when they are run; calls of other tools are judged as soon as the model proposes them. Hand-offs always are.
    """

    def __init__(self, governed_later: Callable[[Governor, Any], bool]) -> None:
        self._governed_later = governed_later
        self._transcript = Transcript()
        self.heard = MessageDecisionCache()
        self.waiting = Waiting()

    async def answer(
        self,
        governor: Governor,
        client: Any,
        messages: Sequence[LLMMessage],
        options: Mapping[str, Any],
        send: Send,
        agent: str | None = None,
    ) -> Answer:
        """The governed reply. ``options`` are the keyword arguments of ``create``; ``send`` asks the real client.

        Raises what the client raises, and `PolicyDenied` where a decision says abort, or where a denial cannot stand
        for the structured answer that was asked for.
        """
        run, agent, sent = await self._begun(messages, agent)
        if governor.observe_only:
            return await self._watched(governor, client, agent, sent, options, send)
        call = _Call(self, governor, client, run, agent, dict(options), send, sent)
        try:
            return await call.rounds()
        except _Refused as refused:
            return refused.answer

    async def _watched(
        self,
        governor: Governor,
        client: Any,
        agent: str | None,
        messages: list[LLMMessage],
        options: Mapping[str, Any],
        send: Send,
    ) -> Answer:
        """The reply where nobody judges: it goes on as it came."""
        call = _begun(governor, client, agent)
        call.said(lambda: wording.as_mappings(messages))
        exchange = Exchange(agent)
        try:
            with call.span.active(model=governor), watching(client, exchange):
                answer = await send(messages, options)
        except BaseException as error:
            call.failed(error)
            raise
        await self._note(call, answer.result, exchange, options)
        return answer

    async def _note(
        self, call: ModelCall, result: CreateResult, exchange: Exchange, options: Mapping[str, Any]
    ) -> None:
        """Ends the call with a reply that nobody judges, and notes what it proposes. What is odd about it raises nothing."""
        try:
            reading = wording.reading_of(result, exchange.response_id, exchange.model)
        except Exception as error:  # noqa: BLE001 - clients bring what they like, and the program may like it too
            call.failed(error)
            return
        call.answered(reading)
        if isinstance(result.content, list):
            await self.judged(call.governor, result.content, options, exchange.agent)

    async def watched_stream(
        self,
        governor: Governor,
        client: Any,
        messages: Sequence[LLMMessage],
        options: Mapping[str, Any],
        stream: Callable[..., AsyncIterable[str | CreateResult]],
        agent: str | None = None,
    ) -> AsyncGenerator[str | CreateResult, None]:
        """The reply in pieces where nobody judges: each goes on when it comes, and as it came.

        ``stream`` asks the real client, with messages and keyword arguments. Raises what the client raises.
        """
        _, agent, sent = await self._begun(messages, agent)
        call = _begun(governor, client, agent)
        call.said(lambda: wording.as_mappings(sent))
        exchange, answered, pieces = Exchange(agent), False, None
        try:
            while True:
                with call.span.active(model=governor), watching(client, exchange):
                    pieces = aiter(stream(sent, **options)) if pieces is None else pieces
                    piece = await anext(pieces, _NO_MORE)
                if piece is _NO_MORE:
                    break
                if isinstance(piece, CreateResult) and not answered:
                    answered = True
                    await self._note(call, piece, exchange, options)
                yield piece
        except BaseException as error:
            if not answered:
                call.failed(error)
            raise
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()
        if not answered:
            call.failed(RuntimeError("the model client's stream ended without a result"))

    async def _begun(
        self, messages: Sequence[LLMMessage], agent: str | None
    ) -> tuple[Run, str | None, list[LLMMessage]]:
        """The run that a call belongs to, the agent that makes it, and what it sends."""
        run = begin_loop()
        if run.aborted is not None:
            self._end_aborted(run, run.aborted, messages)
        if self.waiting:
            await self.waiting.settle(messages)
        sent = self._transcript.restored(wording.as_heard(self.heard, messages))
        return run, agent if agent is not None else run.agent, sent

    def _end_aborted(self, run: Run, decision: Decision, messages: Sequence[LLMMessage]) -> None:
        """Ends a run whose tool call was denied with ``abort``: here raising reaches the caller."""
        if run.owner is None:  # A loop that nobody saw beginning may be another one by now.
            run.aborted = None
            ours = run.aborted_calls & results_in(messages).keys()
            run.aborted_calls.clear()
            if not ours:
                return
        raise PolicyDenied(decision)

    async def judged(
        self, governor: Governor, proposed: Sequence[FunctionCall], options: Mapping[str, Any], agent: str | None
    ) -> tuple[list[FunctionCall], list[FunctionExecutionResult], Decision | None]:
        """Of the calls that a model proposes those that go on, the denials of the others, and the last denial.

        ``options`` are the keyword arguments of ``create``. Calls that are judged only here wait for their results.
        """
        offered = {tool_name(tool): tool for tool in options.get("tools") or ()}
        kept: list[FunctionCall] = []
        denials: list[FunctionExecutionResult] = []
        last: Decision | None = None
        for call in proposed:
            tool = offered.get(call.name)
            waiting: Proposed | None = None
            if tool is not None and is_offered_handoff(tool):
                decision, judged = await judge_handoff(governor, call, agent)
            elif (lost := lost_call(call, offered, agent)) is not None:
                await governor.arecord(lost)
                kept.append(call)
                continue
            elif not self._governed_later(governor, tool):
                decision, judged, waiting = await judge_proposal(governor, call, agent)
            else:
                kept.append(call)
                continue
            if decision.blocks:
                last = decision
                told = decision.denial_message()
                denials.append(FunctionExecutionResult(content=told, name=call.name, call_id=call.id, is_error=True))
                continue
            kept.append(judged)
            if waiting is not None:
                self.waiting.add(waiting)
        return kept, denials, last

    def keep(self, mark: object, part: HiddenPart) -> None:
        """Remembers what was hidden around a reply."""
        self._transcript.remember(mark, part)


@dataclass(slots=True)
class _Call:
    """One call of ``create`` on its way, with the rounds in which denied proposals are answered inside it."""

    calls: ModelCalls
    governor: Governor
    client: Any
    run: Run
    agent: str | None
    options: dict[str, Any]
    send: Send
    messages: list[LLMMessage]
    hidden: list[LLMMessage] = field(default_factory=list[LLMMessage])
    used: list[RequestUsage] = field(default_factory=list[RequestUsage])

    async def rounds(self) -> Answer:
        last: Decision | None = None
        for number in range(MAX_ROUNDS):
            answer = await self._ask(first=number == 0)
            proposed = answer.result.content
            if isinstance(proposed, str):
                return self._finished(answer)
            kept, denials, decision = await self.calls.judged(self.governor, proposed, self.options, self.agent)
            if not denials:
                if any(one is not other for one, other in zip(kept, proposed, strict=True)):
                    answer = answer.with_result(answer.result.model_copy(update={"content": kept}))
                return self._finished(answer)
            last = decision
            if kept:
                part = HiddenPart(tuple(self.hidden), _with(proposed, kept), tuple(denials))
                for one in kept:
                    self.calls.keep(one, part)
                result = answer.result.model_copy(update={"content": kept, "usage": self._usage()})
                return answer.with_result(result)
            thought = answer.result.thought
            exchange: list[LLMMessage] = [
                AssistantMessage(content=proposed, thought=thought, source=self.agent or "assistant"),
                FunctionExecutionResultMessage(content=denials),
            ]
            self.hidden += exchange
            self.messages += exchange
            if self.options.get("tool_choice", "auto") not in ("auto", "none"):
                self.options["tool_choice"] = "auto"  # a model that must call has nothing else to say
        assert last is not None
        return self._finished(self._told(last))

    def _finished(self, answer: Answer) -> Answer:
        result = answer.result
        if len(self.used) > 1:
            result = result.model_copy(update={"usage": self._usage()})
        if self.hidden:
            if isinstance(result.content, str):
                result = result.model_copy(update={"content": own_text(result.content)})
            marks: Sequence[object] = [result.content] if isinstance(result.content, str) else result.content
            for mark in marks:
                self.calls.keep(mark, HiddenPart(tuple(self.hidden)))
        return Answer(result, answer.chunks)

    def _usage(self) -> RequestUsage:
        return RequestUsage(
            sum(usage.prompt_tokens for usage in self.used), sum(usage.completion_tokens for usage in self.used)
        )

    def _told(self, decision: Decision) -> Answer:
        """The denial as the answer. A caller who wants a structured answer cannot read it, and gets it raised."""
        if isinstance(self.options.get("json_output"), type):
            raise PolicyDenied(decision)
        return Answer(wording.told_result(decision, self._usage() if self.used else None))

    # ------------------------------------------------------------------ one round

    async def _ask(self, *, first: bool) -> Answer:
        governor = self.governor
        call = _begun(governor, self.client, self.agent)
        try:
            if first:
                await self._judge_user_texts(call)
            mappings = wording.as_mappings(self.messages)
            decision = await governor.adecide(call.request(mappings, **_reply_limit(self.options)))
            if decision.blocks:
                self._refuse(call, decision)
            if decision.arguments is not None:
                self.messages = wording.with_messages(self.messages, decision.arguments["messages"])
        except BaseException as error:
            call.span.end(error)
            raise
        answer, reading = await _sent(call, self.client, self.agent, self.messages, self.options, self.send)
        self.used.append(answer.result.usage)
        decision = await governor.adecide(call.reply(reading))
        if decision.blocks:
            self._withhold(decision)
        if decision.text is not None:
            answer = answer.with_result(wording.with_text(answer.result, decision.text))
        if isinstance(answer.result.content, list):
            return answer
        decision = await governor.adecide(call.output(answer.result.content))
        if decision.blocks:
            self._withhold(decision)
        if decision.text is not None:
            answer = answer.with_result(wording.with_text(answer.result, decision.text))
        return answer

    async def _judge_user_texts(self, call: ModelCall) -> None:
        for message in wording.new_user_messages(self.messages):
            nested = message.source != "user" or self.run.nested or covered_call() is not None
            text = wording.text_of(message.content)
            decision = await self.governor.adecide(call.user_text(text, nested=nested))
            if decision.blocks:
                self.calls.heard.denied(text, decision.denial_message())
                self._refuse(call, decision)
            if decision.text is not None:
                # In the conversation itself: the next call must not bring the replaced text back.
                images = (
                    [] if isinstance(message.content, str) else [p for p in message.content if not isinstance(p, str)]
                )
                message.content = [decision.text, *images] if images else decision.text

    def _refuse(self, call: ModelCall, decision: Decision) -> None:
        call.refused(decision)
        raise _Refused(self._told(decision))

    def _withhold(self, decision: Decision) -> None:
        if decision.abort:
            raise PolicyDenied(decision)
        raise _Refused(self._told(decision))


def _begun(governor: Governor, client: Any, agent: str | None) -> ModelCall:
    return ModelCall(
        governor, framework=wording.FRAMEWORK, model=wording.model_name(client), agent=agent, native=client
    )


async def _sent(
    call: ModelCall,
    client: Any,
    agent: str | None,
    messages: Sequence[LLMMessage],
    options: Mapping[str, Any],
    send: Send,
) -> tuple[Answer, ModelReading]:
    """Asks the client, and ends the span of the call with what it answers."""
    exchange = Exchange(agent)
    try:
        with call.span.active(model=call.governor), watching(client, exchange):
            answer = await send(messages, options)
        reading = wording.reading_of(answer.result, exchange.response_id, exchange.model)
    except BaseException as error:
        call.failed(error)
        raise
    call.answered(reading)
    return answer, reading


def _with(proposed: Sequence[FunctionCall], kept: Sequence[FunctionCall]) -> tuple[FunctionCall, ...]:
    """All proposed calls in their order; those that go on as they go on."""
    goes_on = {call.id: call for call in kept}
    return tuple(goes_on.get(call.id, call) for call in proposed)


def _reply_limit(options: Mapping[str, Any]) -> dict[str, int]:
    extra = options.get("extra_create_args") or {}
    found = (extra.get(name) for name in ("max_completion_tokens", "max_tokens"))
    limit = next((value for value in found if type(value) is int and value > 0), None)
    return {} if limit is None else {"max_output_tokens": limit}
