"""Governs model calls: what the user said, what is sent, what comes back, and the hand-offs it asks for.

A reply is judged before the SDK acts on it, so a streamed reply is held back until it is complete. What a reply
proposes that the SDK offers no other place to stop (hand-offs, acts on a computer) is judged here too: if it is denied,
the model is told at once and asked again, and the run goes on with what it says then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agents import ModelResponse
from openai.types.responses import ResponseCompletedEvent, ResponseFunctionToolCall

from lgov_core.errors import PolicyDenied
from lgov_core.instrumentation import semconv
from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.instrumentation.tool_call import ToolReading, agovern_tool
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, Effect, Point
from lgov_openai_agents import items
from lgov_openai_agents.denied import answer_to, can_be_answered, continued, exchange, kept_elsewhere
from lgov_openai_agents.hosted import judge_hosted_tools
from lgov_openai_agents.message_decisions import Heard
from lgov_openai_agents.replay import events_of, response_of
from lgov_openai_agents.runs import AgentRun, acting_in, current_run

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor

#: How often a model is asked again after it proposed what is denied; then the denial is the answer.
MAX_DENIED_ROUNDS = 3

_NO_MORE = object()

_NAMES = (
    "system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs", "tracing",
    "previous_response_id", "conversation_id", "prompt",
)  # fmt: skip


@dataclass(slots=True)
class ModelRequest:
    """The arguments of one ``Model.get_response``, by their names in the SDK's interface; ``rest`` are the others.

    Never changed once it is made; not frozen, because that takes longer to make.
    """

    system_instructions: str | None
    input: Any
    model_settings: Any
    tools: list[Any]
    output_schema: Any
    handoffs: list[Any]
    tracing: Any
    rest: dict[str, Any]

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: dict[str, Any]) -> ModelRequest:
        """Reads the arguments of a call however they were passed."""
        given = {**dict(zip(_NAMES, args, strict=False)), **kwargs} if args else kwargs.copy()
        take = given.pop
        return cls(
            take("system_instructions", None),
            take("input", None),
            take("model_settings", None),
            take("tools", None) or [],
            take("output_schema", None),
            take("handoffs", None) or [],
            take("tracing", None),
            rest=given,
        )

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments to pass by position."""
        return (
            self.system_instructions,
            self.input,
            self.model_settings,
            self.tools,
            self.output_schema,
            self.handoffs,
            self.tracing,
        )


Send = Callable[[ModelRequest], Awaitable[ModelResponse]]
Stream = Callable[[ModelRequest], AsyncIterator[Any]]


def govern_response(
    governor: Governor, model: Any, request: ModelRequest, send: Send, agent: str | None = None
) -> Coroutine[Any, Any, ModelResponse]:
    """One governed model call: judges the request, sends it, judges the reply. Brings what the SDK may act on.

    ``agent`` names who asks where no run is known. Raises `PolicyDenied` where a decision says abort, or where the
    denial cannot stand for the reply because the agent's output has a type. Callable from any task. Fails closed.
    """
    one = _watch if governor.observe_only else _govern
    return one(governor, model, request, send, agent)


async def _govern(
    governor: Governor, model: Any, request: ModelRequest, send: Send, agent: str | None
) -> ModelResponse:
    run = current_run(governor)
    with acting_in(run):
        return await _Exchange(governor, model, request, send, run, agent).run_to_end()


async def _watch(governor: Governor, model: Any, request: ModelRequest, send: Send, agent: str | None) -> ModelResponse:
    """The call where nobody judges: it and its reply are shown, and nothing is denied that anybody had to be told of."""
    run = current_run(governor)
    agent = run.agent if run is not None else agent
    with acting_in(run):
        call = _shown(governor, model, request, run, agent)
        try:
            with call.span.active(model=governor):
                response = await send(_attributed(request, model, agent))
        except BaseException as error:
            call.failed(error)
            raise
        await _note(call, request, response, agent)
        return response


async def _watch_stream(
    governor: Governor, model: Any, request: ModelRequest, stream: Stream, agent: str | None
) -> AsyncGenerator[Any]:
    """As `_watch`, for a reply that comes in events: each goes on when it comes, and as it came."""
    run = current_run(governor)
    agent = run.agent if run is not None else agent
    with acting_in(run):
        call = _shown(governor, model, request, run, agent)
    events, seen, response = None, list[Any](), None
    try:
        while True:
            with acting_in(run), call.span.active(model=governor):
                events = aiter(stream(_attributed(request, model, agent))) if events is None else events
                event = await anext(events, _NO_MORE)
            if event is _NO_MORE:
                break
            if response is None:
                seen.append(event)
                response = response_of(seen) if isinstance(event, ResponseCompletedEvent) else None
                if response is not None:
                    with acting_in(run):
                        await _note(call, request, response, agent)
            yield event
    except BaseException as error:
        if response is None:
            call.failed(error)
        raise
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()
    if response is None:
        call.failed(IncompleteReply())


async def _note(call: ModelCall, request: ModelRequest, response: ModelResponse, agent: str | None) -> None:
    """Ends the call with a reply that nobody judges, and notes what it proposes. What is odd about it raises nothing."""
    try:
        reading = items.reading_of(response, call.span.name)
    except Exception as error:  # noqa: BLE001 - models bring what they like, and the program may like it too
        call.failed(error)
        return
    call.answered(reading)
    await _judge_proposals(call.governor, request, response, agent)


def _shown(governor: Governor, model: Any, request: ModelRequest, run: AgentRun | None, agent: str | None) -> ModelCall:
    """The call, whose span begins here and shows what is asked."""
    call = ModelCall(governor, framework=items.FRAMEWORK, model=model_name(model), agent=agent, native=request)
    if governor.capture_content:
        _show(call, request, run)
    return call


def _show(call: ModelCall, request: ModelRequest, run: AgentRun | None) -> None:
    before = run.sent if run is not None else None
    try:
        text, sent = items.messages_text(request.system_instructions, request.input, before)
    except Exception:  # noqa: BLE001 - no reason not to send: then the messages are not noted
        return
    if run is not None:
        run.sent = sent
    call.span.set({semconv.INPUT_MESSAGES: text})


def _attributed(request: ModelRequest, model: Any, agent: str | None) -> ModelRequest:
    """The request with the headers that tell our own endpoint whose call it is."""
    if (scope := current_scope()) is None:
        return request
    headers = endpoint_headers(base_url_of(model), scope, agent)
    settings = request.model_settings
    if not headers or settings is None:
        return request
    merged = {**(settings.extra_headers or {}), **headers}
    return replace(request, model_settings=replace(settings, extra_headers=merged))


class _Exchange:
    """The rounds of one model call: a reply that proposes what is denied is answered and the model asked again."""

    def __init__(
        self, governor: Governor, model: Any, request: ModelRequest, send: Send, run: AgentRun | None, agent: str | None
    ) -> None:
        self.governor = governor
        self.model = model
        self.name = model_name(model)
        self.request = request
        self.send = send
        self.run = run
        self.agent = run.agent if run is not None else agent
        self.exchange: list[Any] = []
        self.heard = run.heard if run is not None else Heard()
        self.kept_in = request.rest.get("conversation_id") or request.rest.get("previous_response_id")

    async def run_to_end(self) -> ModelResponse:
        if self.run is not None and self.run.exchanges and not kept_elsewhere(self.request):
            given = items.with_exchanges(items.as_list(self.request.input), self.run.exchanges)
            self.request = replace(self.request, input=given)
        if owed := self.heard.owed(self.kept_in):
            self.request = replace(self.request, input=[*owed, *items.as_list(self.request.input)])
        usage: Any = None
        for round_number in range(MAX_DENIED_ROUNDS + 1):
            response, final = await self._round()
            if usage is not None:
                usage.add(response.usage)
                response = replace(response, usage=usage)
            denials: list[tuple[Any, Decision]] = []
            if not final:
                denials, response = await _judge_proposals(self.governor, self.request, response, self.agent)
            if not denials:
                self._remember(response)
                return response
            usage = response.usage
            in_conversation = self.request.rest.get("conversation_id") is not None
            if round_number == MAX_DENIED_ROUNDS or (in_conversation and not can_be_answered(response)):
                # Nobody listens any more, or the server would go on waiting for what we cannot give.
                return self._denial(denials[-1][1], response)
            told = exchange(response, denials)
            self.exchange += told
            self.request = continued(self.request, response, told, denials)
        raise AssertionError("unreachable")

    def _remember(self, response: ModelResponse) -> None:
        """Keeps what was denied for the run's later requests: the SDK's own history knows nothing of it."""
        if not self.exchange or self.run is None:
            return
        calls = (getattr(item, "call_id", None) for item in response.output)
        anchor = next((call_id for call_id in calls if call_id), None)
        if anchor is not None:
            self.run.exchanges[anchor] = self.exchange

    async def _round(self) -> tuple[ModelResponse, bool]:
        """Sends the request once; returns the reply as the policies left it, and whether that ends the call."""
        call = ModelCall(
            self.governor, framework=items.FRAMEWORK, model=self.name, agent=self.agent, native=self.request
        )
        refused = await self._permit(call)
        if refused is not None:
            call.refused(refused)
            return self._denial(refused), True
        try:
            with call.span.active(model=self.governor):
                response = await self.send(_attributed(self.request, self.model, self.agent))
        except BaseException as error:
            call.failed(error)
            raise
        if self.request.rest.get("conversation_id") is not None:
            self.heard.settled(self.kept_in)
        reading = items.reading_of(response, self.name)
        call.answered(reading)
        decision = await self.governor.adecide(call.reply(reading))
        if decision.blocks:
            return self._denial(decision, response), True
        if decision.text is not None:
            response = items.with_reply_text(response, decision.text)
        if items.proposes_calls(response):
            return response, False
        decision = await self.governor.adecide(call.output(items.reply_text(response)))
        if decision.blocks:
            return self._denial(decision, response), True
        if decision.text is not None:
            response = items.with_reply_text(response, decision.text)
        return response, True

    async def _permit(self, call: ModelCall) -> Decision | None:
        """Judges what the user said and the request, and rewrites it; returns the decision that refuses it, if one does."""
        try:
            refused = await self._judge_input(call)
            if refused is not None:
                return refused
            self.request = await judge_hosted_tools(self.governor, self.request, self.agent, call.span.span_id)
            messages = self._messages()
            decision = await self.governor.adecide(call.request(messages, **_reply_limit(self.request)))
            if decision.blocks:
                return decision
            if decision.arguments is not None:
                given = items.as_list(self.request.input)
                changed = items.with_messages(self.request.system_instructions, given, decision.arguments["messages"])
                if changed is None:
                    reason = "a policy rewrote the messages in a way that cannot be sent"
                    return Decision(Effect.DENY, "lgov", "unclear-transform", reason, fault=True)
                self.request = replace(self.request, system_instructions=changed[0], input=changed[1])
        except BaseException as error:
            call.span.end(error)  # nothing was sent
            raise
        return None

    def _messages(self) -> list[dict[str, Any]]:
        messages = [items.as_mapping(item) for item in items.as_list(self.request.input)]
        if self.request.system_instructions:
            messages.insert(0, {"role": "system", "content": self.request.system_instructions})
        return messages

    async def _judge_input(self, call: ModelCall) -> Decision | None:
        given = items.as_list(self.request.input)
        run, heard = self.run, self.heard
        new = items.new_user_positions(given)
        if run is None:  # Nobody remembers what was judged before, so all of it is judged.
            new = [position for position, item in enumerate(given) if items.is_user_message(item)]
        elif run.input_judged:
            new = []
        if run is None or not run.history_judged:
            refused = await self._judge_history(call, given, set(new))
            if refused is not None:
                return refused
        for position in new:
            text = items.as_mapping(given[position])["content"]
            decision = await self.governor.adecide(call.user_text(text, nested=run is not None and run.nested))
            if decision.blocks:
                heard.denied(text, decision.denial_message())
                return decision
            heard.let_through(text, decision.text)
        if run is not None:
            run.input_judged = run.history_judged = True
        sent = heard.as_judged(given)
        if sent is not given:
            self.request = replace(self.request, input=sent)
        return None

    async def _judge_history(self, call: ModelCall, given: Sequence[Any], new: set[int]) -> Decision | None:
        """Judges what was said where nobody here heard it: a session or a paused run may come from another process."""
        for position, text, answer in items.said_before(given):
            if position in new or self.heard.knows(text, answer):
                continue
            decision = await self.governor.adecide(
                call.user_text(text, nested=self.run is not None and self.run.nested)
            )
            if decision.blocks and decision.abort:
                return decision
            if decision.blocks:
                self.heard.withheld(text, decision.denial_message())
            else:
                self.heard.let_through(text, decision.text)
        return None

    def _denial(self, decision: Decision, response: ModelResponse | None = None) -> ModelResponse:
        schema = self.request.output_schema
        if decision.abort or (schema is not None and not schema.is_plain_text()):
            raise PolicyDenied(decision)
        if response is not None:
            told = decision.denial_message()
            answers = [answer_to(item, told) for item in response.output if isinstance(item, ResponseFunctionToolCall)]
            for place in (response.response_id, self.request.rest.get("conversation_id")):
                self.heard.owe(place, answers)
        return items.denial_reply(decision, response, after=False)


async def _judge_proposals(
    governor: Governor, request: ModelRequest, response: ModelResponse, agent: str | None
) -> tuple[list[tuple[Any, Decision]], ModelResponse]:
    """Judges what only this place can stop; returns what was denied, and the reply with transforms applied."""
    handoffs = {one.tool_name for one in request.handoffs}
    denied: list[tuple[Any, Decision]] = []
    proposals = [_proposal(item, handoffs) for item in response.output]
    if proposals.count(None) == len(proposals):
        return denied, response
    output: list[Any] = []
    for item, proposal in zip(response.output, proposals, strict=True):
        if proposal is None:
            output.append(item)
            continue
        action = replace(proposal, agent=agent, framework=items.FRAMEWORK, native=item)
        permitted: dict[str, Any] = {}

        async def take_note(arguments: Any, noted: dict[str, Any] = permitted) -> str:
            noted["arguments"] = arguments
            return ""

        judged = await agovern_tool(governor, action, take_note, ToolReading)
        if judged.told is not None:
            denied.append((item, judged.decision))
        elif permitted["arguments"] is not action.arguments and isinstance(item, ResponseFunctionToolCall):
            text = items.arguments_text(permitted["arguments"], item.arguments)
            item = item.model_copy(update={"arguments": text})
        output.append(item)
    return denied, replace(response, output=output)


def _proposal(item: Any, handoffs: set[str]) -> Action | None:
    """The act that ``item`` proposes, if it is one that only the model's reply can be stopped at."""
    kind = getattr(item, "type", None)
    if kind == "function_call" and item.name in handoffs and isinstance(item, ResponseFunctionToolCall):
        arguments = items.arguments_of(item.arguments)
        return Action(Point.PRE_TOOL_CALL, name=item.name, kind="handoff", arguments=arguments, call_id=item.call_id)
    if kind == "mcp_approval_request":  # of a hosted MCP tool that the server asks about
        arguments = items.arguments_of(item.arguments)
        return Action(Point.PRE_TOOL_CALL, name=item.name, kind="mcp", arguments=arguments, call_id=item.id)
    if kind == "computer_call":
        plain = item.model_dump(exclude_none=True)
        acts = plain.get("actions") or [plain.get("action") or {}]
        return Action(Point.PRE_TOOL_CALL, name="computer", arguments={"actions": acts}, call_id=plain.get("call_id"))
    return None


def _reply_limit(request: ModelRequest) -> dict[str, int]:
    limit = getattr(request.model_settings, "max_tokens", None)
    return {"max_output_tokens": limit} if isinstance(limit, int) and limit > 0 else {}


def model_name(model: Any) -> str:
    """What the model calls itself, or the name of its class."""
    name = getattr(model, "model", None)
    return name if isinstance(name, str) and name else type(model).__name__


def base_url_of(model: Any) -> str | None:
    """Where an OpenAI-style model sends its calls, or None if it is not one."""
    url = getattr(getattr(model, "_client", None), "base_url", None)
    return str(url) if url is not None else None


# ---------------------------------------------------------------------- the two ways of asking


async def govern_stream(
    governor: Governor,
    model: Any,
    request: ModelRequest,
    stream: Stream,
    agent: str | None = None,
) -> AsyncGenerator[Any]:
    """As `govern_response`, for a reply that comes in events: they are passed on once the reply has been judged.

    Where nobody judges each is passed on when it comes.
    """
    if governor.observe_only:
        async with aclosing(_watch_stream(governor, model, request, stream, agent)) as events:
            async for event in events:
                yield event
        return
    held: list[Any] = []
    whole: list[ModelResponse] = []

    async def send(asked: ModelRequest) -> ModelResponse:
        held.clear()
        async for event in stream(asked):
            held.append(event)
        response = response_of(held)
        if response is None:
            raise IncompleteReply
        whole.append(response)
        return response

    try:
        answer = await govern_response(governor, model, request, send, agent)
    except IncompleteReply:
        answer = None
    if answer is None or (len(whole) == 1 and _same_items(answer, whole[0])):
        for event in held:
            yield event
        return
    for event in events_of(answer, held, model_name(model)):
        yield event


def _same_items(one: ModelResponse, other: ModelResponse) -> bool:
    return len(one.output) == len(other.output) and all(
        mine is theirs for mine, theirs in zip(one.output, other.output, strict=True)
    )


class IncompleteReply(Exception):
    """A stream ended without a whole reply; the SDK gets its events as they are and says what is wrong with them."""
