"""Governs a call of a model client: a port of `lgov_core.instrumentation.model_flow`.

AutoGen's replies do not keep the id that the endpoint gave them. Its clients for OpenAI-style endpoints send everything by
the ``request`` method of an ``openai`` client, which is observed here, and gets the headers that tell lgov's own endpoint
whose call it is. A reply is recognised in a later transcript by identity (the same `FunctionCall`, the same text object),
never by what it says.
"""

from __future__ import annotations

import contextvars
import functools
import json
import operator
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from autogen_core import FunctionCall
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    RequestUsage,
    UserMessage,
)

from lgov_autogen import messages as wording
from lgov_autogen._internals import model_name, openai_client
from lgov_autogen.messages import as_mappings
from lgov_autogen.proposals import ProposedCalls
from lgov_autogen.runs import Run
from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import Flow, Governor
from lgov_core.instrumentation.conversation_memory import MessageDecisionCache, SameObject, TurnMemory, UserText
from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.instrumentation.live_span import covered_call
from lgov_core.instrumentation.model_call import ModelCall, reply_limit
from lgov_core.instrumentation.model_flow import Choice, ModelPort, ReplyPart
from lgov_core.instrumentation.streams import Emit, pieces_flow
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision


@dataclass(slots=True)
class EndpointReply:
    """One model call of ``agent``: the reply's id and model as the endpoint gave them; of several tries, the last."""

    agent: str | None = None
    response_id: str | None = None
    model: str | None = None

    def read(self, body: Any) -> None:
        """Takes the id and the model from a body or a chunk."""
        response_id = getattr(body, "id", None)
        if isinstance(response_id, str) and response_id:
            self.response_id = response_id
            model = getattr(body, "model", None)
            self.model = model if isinstance(model, str) else None


_CURRENT: contextvars.ContextVar[EndpointReply | None] = contextvars.ContextVar("lgov_autogen_exchange", default=None)


@contextmanager
def observing(client: Any, exchange: EndpointReply) -> Generator[None]:
    """Fills ``exchange`` from what the model client receives inside the block. Not across a ``yield``."""
    owner = openai_client(client)
    if owner is not None and not hasattr(owner.request, "_lgov_observed"):
        owner.request = _observed(owner, owner.request)
    token = _CURRENT.set(exchange)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def _observed(owner: Any, request: Any) -> Any:
    @functools.wraps(request)
    async def observed_request(cast_to: Any, options: Any, **kwargs: Any) -> Any:
        exchange = _CURRENT.get()
        if exchange is None:
            return await request(cast_to, options, **kwargs)
        scope = current_scope()
        if scope is not None and (headers := endpoint_headers(str(owner.base_url), scope, exchange.agent)):
            before = options.headers if isinstance(options.headers, Mapping) else {}
            options = options.model_copy(update={"headers": {**before, **headers}})
        answer = await request(cast_to, options, **kwargs)
        if kwargs.get("stream") and hasattr(answer, "__anext__"):
            return _ObservedStream(answer, exchange)
        exchange.read(answer)
        return answer

    observed_request._lgov_observed = True  # type: ignore[attr-defined]
    return observed_request


class _ObservedStream:
    """The client's stream; each chunk is read on its way."""

    def __init__(self, stream: Any, exchange: EndpointReply) -> None:
        self._stream = stream
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._stream)
        self._exchange.read(chunk)
        return chunk

    async def __aenter__(self) -> _ObservedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self._stream.__aexit__(*problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class MessageReader:
    """Recognises the messages of the model: see `TranscriptReader`."""

    def from_model(self, entry: LLMMessage) -> bool:
        """See `TranscriptReader.from_model`."""
        return isinstance(entry, AssistantMessage)

    def marks(self, entry: LLMMessage) -> Sequence[SameObject]:
        """See `TranscriptReader.marks`: the objects that the client returned."""
        if not isinstance(entry, AssistantMessage):
            return []
        return [SameObject(entry.content)] if isinstance(entry.content, str) else list(map(SameObject, entry.content))

    def has_calls(self, entry: LLMMessage) -> bool:
        """See `TranscriptReader.has_calls`. True: a text is recognised by its object, too."""
        return True

    def canonical(self, entry: LLMMessage) -> str:
        """See `TranscriptReader.canonical`."""
        mappings = as_mappings([entry])
        return json.dumps([{**each, "content": ""} if each.get("tool_calls") else each for each in mappings])


_READER = MessageReader()


def restored(memory: TurnMemory[LLMMessage], messages: Sequence[LLMMessage]) -> list[LLMMessage]:
    """``messages`` with what the agent never received back in place; the results of one reply in one message."""
    program = {mark: message for message in messages for mark in _READER.marks(message)}
    whole: list[LLMMessage] = []
    for message in memory.restored(_READER, messages, [""] * len(messages), messages):
        theirs = next((program[mark] for mark in _READER.marks(message) if mark in program), None)
        if theirs is not None:  # what else the agent says of its message stays
            message = (
                theirs if theirs.content == message.content else theirs.model_copy(update={"content": message.content})
            )
        if whole and isinstance(message, FunctionExecutionResultMessage):
            before = whole[-1]
            if isinstance(before, FunctionExecutionResultMessage):
                whole[-1] = FunctionExecutionResultMessage(content=[*message.content, *before.content])
                continue
        whole.append(message)
    return whole


def remember(
    memory: TurnMemory[LLMMessage],
    received: AssistantMessage,
    actual: AssistantMessage,
    before: Sequence[LLMMessage] = (),
    after: Sequence[LLMMessage] = (),
) -> None:
    """Notes that the agent got ``received`` and the model wrote ``actual``, and read what is ``before`` and ``after`` it."""
    turn: list[tuple[LLMMessage, int | None]] = [(message, None) for message in before]
    turn += [(actual, 0), *((message, None) for message in after)]
    memory.add(_READER, "", [received], turn)


def unique_text(text: str) -> str:
    """``text`` as a new object, which can be recognised by identity."""
    return "".join([text[:1], text[1:]]) if len(text) > 1 else text


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A model call as the program makes it: messages, keyword arguments, and the agent's name where it is known."""

    messages: Sequence[LLMMessage]
    options: Mapping[str, Any]
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class CallMemory:
    """The memory from one model call to the next."""

    proposals: ProposedCalls
    turns: TurnMemory[LLMMessage] = field(default_factory=TurnMemory[LLMMessage])
    decisions: MessageDecisionCache = field(default_factory=MessageDecisionCache)


class AutoGenCall(ModelPort[CreateResult, None]):
    """One call of a model client; emits text as it comes, then the result.

    ``ask`` is the client's method that streams, ``options`` are that method's keyword arguments.
    """

    def __init__(
        self,
        memory: CallMemory,
        governor: Governor,
        client: Any,
        ask: Callable[..., AsyncIterator[str | CreateResult]],
        run: Run,
        call: ProgramCall,
    ) -> None:
        self.governor = governor
        self._memory = memory
        self._client = client
        self._ask = ask
        self._run = run
        self._agent = call.agent if call.agent is not None else run.agent
        self._options = dict(call.options)
        self._messages = restored(memory.turns, wording.with_decisions(memory.decisions, call.messages))
        #: The messages of earlier rounds, which the program does not get, and the usage of each round.
        self._hidden: list[LLMMessage] = []
        self._used: list[RequestUsage] = []
        #: Text that waits for the decision on it, and the reply that it belongs to.
        self._withheld: list[str] = []
        self._received: CreateResult | None = None
        self._exchange: list[LLMMessage] = []

    # ------------------------------------------------------------------ the request

    def begin(self) -> ModelCall:
        """See `CallPort.begin`."""
        self._withheld, self._received, self._exchange = [], None, []
        return ModelCall(
            self.governor,
            framework=wording.FRAMEWORK,
            model=model_name(self._client),
            agent=self._agent,
            native=self._client,
        )

    def judge_input_flow(self, call: ModelCall) -> Flow[Decision | None]:
        """Judges the user messages at the end; one that is rewritten stays so in the conversation itself."""
        new = wording.new_user_messages(self._messages)
        texts = [UserText(wording.text_of(each.content), nested=not self._is_users(each)) for each in new]
        denial = yield from self._memory.decisions.judge_flow(self.governor, texts, call.user_text)
        if denial is None:
            replaced = self._memory.decisions.instead_of(lambda: [("user", text.text) for text in texts])
            for position, instead in replaced.items():
                message = new[position]
                images = [element for element in message.content if not isinstance(element, str)]
                message.content = [instead.text, *images] if images else instead.text
        return denial

    def request(self, call: ModelCall) -> Action:
        """See `CallPort.request`."""
        extra = self._options.get("extra_create_args") or {}
        return call.request(
            wording.as_mappings(self._messages),
            tools=[getattr(tool, "schema", tool) for tool in self._options.get("tools") or ()],
            user_text=[wording.text_of(each.content) for each in self._messages if self._is_users(each)],
            **reply_limit(extra.get("max_completion_tokens"), extra.get("max_tokens")),
        )

    def _is_users(self, message: LLMMessage) -> bool:
        """Returns whether the message is top-level input, and not what a tool or an agent wrote in the user's role."""
        is_from_user = isinstance(message, UserMessage) and message.source == "user"
        return is_from_user and not self._run.nested and covered_call() is None

    def take_messages(self, new_messages: Sequence[Mapping[str, Any]]) -> None:
        """See `CallPort.take_messages`."""
        self._messages = wording.with_messages(self._messages, new_messages)

    def send_flow(self, call: ModelCall) -> Generator[Any, Any, Sequence[ReplyPart[CreateResult]] | None]:
        """Emits the text, unless a policy reads it. Calls come with the result alone."""
        exchange = EndpointReply(self._agent)
        ask = partial(self._ask, self._messages, **self._options)
        yield from pieces_flow(call, ask, self._passes, partial(observing, self._client, exchange))
        try:
            if self._received is None:
                raise RuntimeError("the model client's stream ended without a result")
            self._received = wording.with_call_ids(self._received)
            reading = wording.reading_of(self._received, exchange.response_id, exchange.model)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing can judge the reply
            call.unreadable(error)
            return None
        self._used.append(self._received.usage)
        return [ReplyPart(reading, [self._received])]

    def _passes(self, piece: str | CreateResult) -> bool:
        if isinstance(piece, CreateResult):
            self._received = piece
            return False
        if self.governor.reads_replies():
            self._withheld.append(piece)
            return False
        return True

    # ------------------------------------------------------------------ the reply

    def with_text(self, choice: CreateResult, text: str) -> CreateResult:
        """See `CallPort.with_text`."""
        return wording.with_text(choice, text)

    def denied(self, choice: CreateResult | None, decision: Decision, text: str) -> CreateResult:
        """See `CallPort.denied`. Raises `PolicyDenied` where the program asked for a structured answer."""
        if isinstance(self._options.get("json_output"), type):
            raise PolicyDenied(decision)
        self._withheld = []
        return wording.denial_result(text, self._usage())

    def answer(self, choice: CreateResult) -> str | None:
        """See `CallPort.answer`."""
        return choice.content if isinstance(choice.content, str) else None

    def proposes(self, choice: CreateResult) -> bool:
        """See `CallPort.proposes`."""
        return not isinstance(choice.content, str) and bool(choice.content)

    def judge_acts_flow(self, call: ModelCall, choice: Choice[CreateResult]) -> Flow[Choice[CreateResult]]:
        """Judges hand-offs, and calls that nothing judges when they run; the reply without those that are denied."""
        proposed = choice.reply.content
        if isinstance(proposed, str):
            return choice
        passed, denied = yield from self._memory.proposals.judge_flow(
            self.governor, proposed, self._options, self._agent
        )
        results = [result for result, _ in denied]
        kept = [each for each in passed if each is not None]
        if kept and results:
            calls = [each or proposal for proposal, each in zip(proposed, passed, strict=True)]
            written, got = self._message(calls, choice.reply), self._message(kept, choice.reply)
            after = [FunctionExecutionResultMessage(content=results)]
            remember(self._memory.turns, got, written, self._hidden, after)
            self._hidden = []
        elif results:
            self._exchange = [
                self._message(proposed, choice.reply),
                FunctionExecutionResultMessage(content=results),
            ]
        is_same = len(kept) == len(proposed) and all(map(operator.is_, kept, proposed))
        reply = choice.reply if is_same else choice.reply.model_copy(update={"content": kept})
        return replace(choice, reply=reply, denials=[decision for _, decision in denied])

    def ask_again(self, choices: Sequence[Choice[CreateResult]]) -> bool:
        """See `ModelPort.ask_again`: only where nothing of the reply is left."""
        if not self._exchange:
            return False
        self._hidden += self._exchange
        self._messages += self._exchange
        if self._options.get("tool_choice", "auto") not in ("auto", "none"):
            self._options["tool_choice"] = "auto"  # a model that must call a tool could not answer
        return True

    def deliver_flow(self, choices: Sequence[Choice[CreateResult]] | None) -> Generator[Any, Any, None]:
        """Emits the withheld text and the result with the usage of all rounds; remembers the rounds before it."""
        if not choices:  # nothing judges: the program gets the reply that cannot be read
            if self._received is not None:
                yield Emit(self._received)
            return
        result = choices[0].reply
        if len(self._used) > 1:
            result = result.model_copy(update={"usage": self._usage()})
        if self._hidden or self._exchange:
            if isinstance(result.content, str):
                result = result.model_copy(update={"content": unique_text(result.content)})
            written = self._message(result.content, result)
            remember(self._memory.turns, written, written, [*self._hidden, *self._exchange])
        for piece in self._text_of(result):
            yield Emit(piece)
        yield Emit(result)

    def _text_of(self, result: CreateResult) -> list[str]:
        """The withheld text; in one piece where a policy changed it."""
        received = self._received
        if received is None or (result.content == received.content and result.thought == received.thought):
            return self._withheld
        text = result.content if isinstance(result.content, str) else result.thought or ""
        return [text] if self._withheld and text else []

    def _message(self, content: str | list[FunctionCall], result: CreateResult) -> AssistantMessage:
        """The message that an agent makes of a reply."""
        return AssistantMessage(content=content, thought=result.thought, source=self._agent or "assistant")

    def _usage(self) -> RequestUsage:
        return RequestUsage(
            sum(usage.prompt_tokens for usage in self._used), sum(usage.completion_tokens for usage in self._used)
        )
