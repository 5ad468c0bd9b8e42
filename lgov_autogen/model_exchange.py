"""One governed model call, with the further rounds in which denied proposals are answered inside it."""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    RequestUsage,
    UserMessage,
)

from lgov_autogen import messages as wording
from lgov_autogen._internals import model_name
from lgov_autogen.endpoint_exchange import Exchange, observing
from lgov_autogen.proposals import ProposedCalls
from lgov_autogen.runs import Run
from lgov_autogen.transcript import HiddenPart, Transcript, unique_text
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Governor, arun_flow
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.message_decisions import MessageDecisionCache
from lgov_core.instrumentation.model_call import ModelCall, reply_limit
from lgov_core.instrumentation.reply_stream import reply_pieces
from lgov_core.types import Decision

#: How often a model that proposes nothing but denied calls is asked before the denial is the answer.
MAX_ROUNDS = 3

#: Text as it comes, then the result.
Reply = AsyncGenerator[str | CreateResult, None]


class Refused(Exception):
    """The model was not asked, or its reply is withheld; the caller gets ``result``."""

    def __init__(self, result: CreateResult) -> None:
        super().__init__("refused")
        self.result = result


@dataclass(frozen=True, slots=True)
class CallMemory:
    """What is kept from one model call to the next."""

    proposals: ProposedCalls
    transcript: Transcript = field(default_factory=Transcript)
    decisions: MessageDecisionCache = field(default_factory=MessageDecisionCache)


@dataclass(slots=True)
class ModelExchange:
    """One call of a model client. ``ask`` is its method that streams, ``options`` are that method's keyword arguments.

    ``hidden`` are the messages of earlier rounds, ``used`` the usage of each round, ``withheld`` the text that came.
    """

    memory: CallMemory
    governor: Governor
    client: Any
    ask: Callable[..., AsyncIterator[str | CreateResult]]
    run: Run
    agent: str | None
    options: dict[str, Any]
    messages: list[LLMMessage]
    hidden: list[LLMMessage] = field(default_factory=list[LLMMessage])
    used: list[RequestUsage] = field(default_factory=list[RequestUsage])
    withheld: list[str] = field(default_factory=list[str])
    received: CreateResult | None = None

    async def reply(self) -> Reply:
        """The governed reply. Raises `Refused` with what the caller gets instead, and what the client raises."""
        denial: Decision | None = None
        for number in range(MAX_ROUNDS):
            call, exchange = await self._permitted(first=number == 0), Exchange(self.agent)
            self.withheld, self.received = [], None
            ask = partial(self.ask, self.messages, **self.options)
            async with aclosing(reply_pieces(call, ask, partial(observing, self.client, exchange))) as pieces:
                async for piece in pieces:
                    if isinstance(piece, CreateResult):
                        self.received = piece
                    elif self._withholds:
                        self.withheld.append(piece)
                    else:
                        yield piece
            result = await self._evaluated(call, exchange)
            if result is None:
                if self.received is not None:
                    yield self.received
                return
            result, denial = await self._evaluated_calls(result)
            if result is not None:
                break
        else:
            assert denial is not None
            result = self._denial(denial)
        result = self._finished(result)
        for piece in self._text_of(result):
            yield piece
        yield result

    @property
    def _withholds(self) -> bool:
        """Whether a policy reads the text, so that none of it is passed on before. Calls come with the result alone."""
        return self.governor.reads_replies()

    async def _permitted(self, *, first: bool) -> ModelCall:
        """Evaluates what users said and the request, and begins the call."""
        call = ModelCall(
            self.governor,
            framework=wording.FRAMEWORK,
            model=model_name(self.client),
            agent=self.agent,
            native=self.client,
        )
        try:
            if first:
                await self._evaluate_user_messages(call)
            mappings = wording.as_mappings(self.messages)
            tools = [getattr(tool, "schema", tool) for tool in self.options.get("tools") or ()]
            said = [wording.text_of(one.content) for one in self.messages if self._is_users(one)]
            request = call.request(mappings, tools=tools, user_text=said, **self._reply_limit())
            decision = await self.governor.adecide(request)
            if decision.blocks:
                self._refuse(call, decision)
            if decision.arguments is not None:
                self.messages = wording.with_messages(self.messages, decision.arguments["messages"])
        except BaseException as error:
            call.span.end(error)
            raise
        return call

    def _reply_limit(self) -> dict[str, int]:
        extra = self.options.get("extra_create_args") or {}
        return reply_limit(extra.get("max_completion_tokens"), extra.get("max_tokens"))

    def _is_users(self, message: LLMMessage) -> bool:
        """Whether the message is top-level input, and not what a tool or an agent wrote in the user's role."""
        is_from_user = isinstance(message, UserMessage) and message.source == "user"
        return is_from_user and not self.run.nested and covered_call() is None

    async def _evaluate_user_messages(self, call: ModelCall) -> None:
        for message in wording.new_user_messages(self.messages):
            text = wording.text_of(message.content)
            decision = await self.governor.adecide(call.user_text(text, nested=not self._is_users(message)))
            if decision.blocks:
                self.memory.decisions.denied(text, decision.denial_message())
                self._refuse(call, decision)
            if decision.text is not None:
                # In the conversation itself: the next call must not bring the replaced text back.
                images = [part for part in message.content if not isinstance(part, str)]
                message.content = [decision.text, *images] if images else decision.text

    async def _evaluated(self, call: ModelCall, exchange: Exchange) -> CreateResult | None:
        """The reply as policies left it; ends the span. None where it cannot be read and nothing evaluates it."""
        result = self.received
        try:
            if result is None:
                raise RuntimeError("the model client's stream ended without a result")
            reading = wording.reading_of(result, exchange.response_id, exchange.model)
        except Exception as error:
            call.failed(error)
            if self._withholds:
                raise
            return None
        call.answered(reading)
        self.used.append(result.usage)
        result = self._applied(await arun_flow(call.reply_flow(reading)), result)
        if not isinstance(result.content, str):
            return result
        return self._applied(await self.governor.adecide(call.output(result.content)), result)

    def _applied(self, decision: Decision, result: CreateResult) -> CreateResult:
        if decision.blocks:
            if decision.abort:
                raise PolicyDenied(decision)
            raise Refused(self._denial(decision))
        return result if decision.text is None else wording.with_text(result, decision.text)

    async def _evaluated_calls(self, result: CreateResult) -> tuple[CreateResult | None, Decision | None]:
        """The reply without the calls that are denied. None where all are, and the model is to be asked again."""
        proposed = result.content
        if isinstance(proposed, str):
            return result, None
        passed, denials, denial = await self.memory.proposals.evaluate(
            self.governor, proposed, self.options, self.agent
        )
        kept = [call for call in passed if call is not None]
        if kept or not denials:
            if denials:
                part = HiddenPart(
                    tuple(self.hidden),
                    tuple(given or call for call, given in zip(proposed, passed, strict=True)),
                    tuple(denials),
                )
                self._remember(kept, part)
                self.hidden = []
            is_same = len(kept) == len(proposed) and all(map(operator.is_, kept, proposed))
            return result if is_same else result.model_copy(update={"content": kept}), denial
        exchange: list[LLMMessage] = [
            AssistantMessage(content=proposed, thought=result.thought, source=self.agent or "assistant"),
            FunctionExecutionResultMessage(content=denials),
        ]
        self.hidden += exchange
        self.messages += exchange
        if self.options.get("tool_choice", "auto") not in ("auto", "none"):
            self.options["tool_choice"] = "auto"  # a model that must call a tool could not answer
        return None, denial

    def _finished(self, result: CreateResult) -> CreateResult:
        """The reply with the usage of all rounds; remembers the rounds before it."""
        if len(self.used) > 1:
            result = result.model_copy(update={"usage": self._usage()})
        if self.hidden:
            if isinstance(result.content, str):
                result = result.model_copy(update={"content": unique_text(result.content)})
            marks: Sequence[object] = [result.content] if isinstance(result.content, str) else result.content
            self._remember(marks, HiddenPart(tuple(self.hidden)))
        return result

    def _text_of(self, result: CreateResult) -> list[str]:
        """The withheld text; in one piece where a policy changed it."""
        received = self.received
        if received is None or (result.content == received.content and result.thought == received.thought):
            return self.withheld
        text = result.content if isinstance(result.content, str) else result.thought or ""
        return [text] if self.withheld and text else []

    def _remember(self, marks: Sequence[object], part: HiddenPart) -> None:
        for mark in marks:
            self.memory.transcript.remember(mark, part)

    def _usage(self) -> RequestUsage:
        return RequestUsage(
            sum(usage.prompt_tokens for usage in self.used), sum(usage.completion_tokens for usage in self.used)
        )

    def _denial(self, decision: Decision) -> CreateResult:
        """The denial as the result. Raises `PolicyDenied` where the caller asked for a structured answer."""
        if isinstance(self.options.get("json_output"), type):
            raise PolicyDenied(decision)
        self.withheld = []
        return wording.denial_result(decision, self._usage())

    def _refuse(self, call: ModelCall, decision: Decision) -> None:
        call.refused(decision)
        raise Refused(self._denial(decision))
