"""The governed model call, as a flow that the middleware and the patched chat models share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from lgov_core.instrumentation import Flow, semconv
from lgov_core.instrumentation.endpoint_headers import endpoint_headers
from lgov_core.instrumentation.evaluated_call import covered_call
from lgov_core.instrumentation.model_call import ModelCall
from lgov_core.scope import current_scope
from lgov_core.types import Action, Decision, Point, ToolOutcome
from lgov_core.wire.turns import ModelReading
from lgov_langchain import messages
from lgov_langchain._internals import keep_reply_ids
from lgov_langchain.process_handler import Above, inside, process_handler
from lgov_langchain.runs import FRAMEWORK, agent_name, in_thread_of_a_run
from lgov_langchain.sent_calls import ChangedCallDenied, SentCall

if TYPE_CHECKING:
    from lgov_core.instrumentation import Governor
    from lgov_core.instrumentation.live_span import LiveSpan


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model returned. ``final`` is the agent's answer as text if this is its last reply, else None.

    ``others`` are further replies to choose from, where the caller asked for several.
    """

    message: AIMessage | None
    final: str | None
    others: Sequence[AIMessage] = ()

    @classmethod
    def of(cls, *replies: AIMessage) -> Reply:
        """The reply of a bare model: it is the answer unless it asks for tools."""
        if not replies:
            return cls(None, None)
        first, *others = replies
        return cls(first, None if first.tool_calls else messages.text_of(first), others)


@dataclass(frozen=True, slots=True)
class Result:
    """What the caller gets: ``message``, and how it differs from the model's reply.

    ``changed`` is "no", "text" (another text, the same tool calls) or "all" (another message).
    ``rewritten`` are the user's messages that policies rewrote, ``others`` the further replies as the caller may read them.
    """

    message: AIMessage | None
    changed: Literal["no", "text", "all"] = "no"
    rewritten: Sequence[BaseMessage] = ()
    others: Sequence[AIMessage] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A model call that is about to be made. ``settings`` are its options, ``above`` the agent that makes it."""

    model: Any
    messages: Sequence[BaseMessage]
    settings: Mapping[str, Any]
    native: Any
    above: Above | None

    @property
    def agent(self) -> LiveSpan | None:
        """The span of the agent that makes the call."""
        return None if self.above is None else self.above.span

    def user_texts(self) -> list[str]:
        """The texts among the messages that are top-level input: below an agent, those in the outermost run's input."""
        if covered_call() is not None:  # inside a tool the text is another agent's
            return []
        texts = [messages.text_of(one) for one in self.messages if isinstance(one, HumanMessage)]
        said = self.above.said if self.above is not None else () if in_thread_of_a_run() else texts
        return [text for text in texts if text in said]


def govern_model_call(governor: Governor, prompt: Prompt, send: Callable[[SentCall], Flow[Reply]]) -> Flow[Result]:
    """Evaluates the user's new text and the call, sends it if allowed, then evaluates the reply and the answer.

    ``send`` is a flow that sends the call, by `SentCall.send`, and returns the reply; of all flows only that one may emit.
    What was denied comes back as a message with the denial. Raises `PolicyDenied` if a decision says abort, and what
    ``send`` raises. The call's span ends in every case.
    """
    keep_reply_ids()
    with inside(prompt.agent):
        call = ModelCall(
            governor,
            framework=FRAMEWORK,
            model=messages.model_name(prompt.model),
            agent=agent_name(),
            native=prompt.native,
        )
    try:
        with inside(prompt.agent):
            denied, sent, rewritten = yield from _evaluate_prompt(call, prompt)
        if denied is None:
            sent_call = SentCall(call, sent)
            try:
                reply = yield from send(sent_call)
            except ChangedCallDenied as error:
                denied = error.decision
            else:
                with inside(prompt.agent):
                    return (yield from _evaluate_reply(sent_call, reply, rewritten))
        call.refused(denied)
        return Result(messages.denial_reply(denied), "all")
    except BaseException as error:
        call.span.end(error)
        raise


def _evaluate_prompt(
    call: ModelCall, prompt: Prompt
) -> Flow[tuple[Decision | None, list[BaseMessage], list[BaseMessage]]]:
    """The denial if there is one, the messages to send, and the user's messages among them that policies rewrote."""
    decisions = process_handler().message_decisions(call.governor)
    new, rewritten = messages.new_user_messages(prompt.messages), list[BaseMessage]()
    sent = list(prompt.messages)
    earlier = sent[: len(sent) - len(new)]
    replaced = decisions.instead_of(lambda: [messages.role_and_text(message) for message in earlier])
    for position, (text, was_denied) in replaced.items():  # a transcript has what users really said
        message = sent[position]
        changed = message.model_copy(update={"content": text}) if was_denied else messages.with_text(message, text)
        sent[position] = changed
    said = prompt.user_texts()
    for position, message in enumerate(new, start=len(earlier)):
        text = messages.text_of(message)
        decision = yield from call.governor.decision_flow(call.user_text(text, nested=text not in said))
        if decision.blocks:
            decisions.denied(text, decision.denial_message())
            return decision, sent, rewritten
        decisions.let_through(text, decision.text)
        if decision.text is not None:
            sent[position] = messages.with_text(message, decision.text)
            rewritten.append(sent[position])
    limit = messages.reply_limit(prompt.model, prompt.settings)
    tools = prompt.settings.get("tools") or []
    request = call.request(messages.as_mappings(sent), tools=tools, user_text=said, **limit)
    decision = yield from call.governor.decision_flow(request)
    if decision.blocks:
        return decision, sent, rewritten
    if decision.arguments is not None:
        sent = messages.with_messages(sent, decision.arguments["messages"])
    return None, sent, rewritten


def _evaluate_reply(sent: SentCall, reply: Reply, rewritten: Sequence[BaseMessage]) -> Flow[Result]:
    call, message = sent.call, reply.message
    if message is None:
        call.span.end()
        return Result(None, rewritten=rewritten)
    if sent.denial is not None and message is sent.denial[0]:  # middleware changed the call, and that was denied
        call.refused(sent.denial[1])
        return Result(message, "all")
    if (provider := message.response_metadata.get("model_provider")) is not None:
        call.span.set({semconv.PROVIDER: provider})
    reading = messages.model_reading(message)
    call.answered(reading)
    result = yield from _evaluate_message(call, reading, message, reply.final)
    others: list[AIMessage] = []
    for other in reply.others:
        decision = yield from call.reply_flow(messages.model_reading(other))
        if decision.blocks:
            other = messages.denial_reply(decision, other)
        elif decision.text is not None:
            other = messages.with_text(other, decision.text)
        others.append(other)
    return replace(result, rewritten=rewritten, others=others)


def _evaluate_message(call: ModelCall, reading: ModelReading, reply: AIMessage, final: str | None) -> Flow[Result]:
    decision = yield from call.reply_flow(reading)
    if decision.blocks:
        return Result(messages.denial_reply(decision, reply), "all")
    result = Result(reply)
    if decision.text is not None:
        final = final if final is None or reply.tool_calls else decision.text
        result = Result(messages.with_text(reply, decision.text), "text")
    for broken in reply.invalid_tool_calls:  # nothing can run, so nothing is evaluated, but it is recorded
        yield from call.governor.record_flow(_invalid_call(call.reply(reading), broken))
    if final is None:
        return result
    decision = yield from call.governor.decision_flow(call.output(final))
    if decision.blocks:
        return Result(messages.denial_reply(decision, reply), "all")
    if decision.text is None:
        return result
    answer = messages.with_text(reply, decision.text).model_copy(update={"content": decision.text, "tool_calls": []})
    return Result(answer, "all")


def _invalid_call(reply: Action, call: Mapping[str, Any]) -> ToolOutcome:
    """The outcome of a tool call whose arguments cannot be parsed."""
    action = Action(
        Point.PRE_TOOL_CALL,
        name=call.get("name") or "?",
        agent=reply.agent,
        framework=FRAMEWORK,
        call_id=call.get("id"),
        text=call.get("args"),
    )
    return ToolOutcome(action, "invalid_args", error_type="InvalidToolCall", error=call["error"])


def attributed(model: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a call of ``model``, with the headers that attribute it to the rollout if it goes to lgov's endpoint.

    Raises `ScopeError` if the rollout id cannot be put into a header.
    """
    scope = current_scope()
    headers = endpoint_headers(_base_url(model), scope, agent_name()) if scope is not None else None
    if not headers:
        return dict(settings)
    return {**settings, "extra_headers": {**(settings.get("extra_headers") or {}), **headers}}


def _base_url(model: Any) -> str | None:
    """Where an OpenAI-style chat model sends its calls, or None if it is not one."""
    for client in (getattr(model, "root_client", None), getattr(model, "root_async_client", None)):
        if (url := getattr(client, "base_url", None)) is not None:
            return str(url)
    if not hasattr(model, "openai_api_base"):
        return None
    return model.openai_api_base or os.environ.get("OPENAI_BASE_URL")
