"""Policy at the endpoint, for agents whose own process is not governed: judges what models read and write.

`EndpointCall` is a port of `lgov_core.instrumentation.model_flow`, in which the order of judging is. `open_gate` makes a
`PolicyGate` for a policy file.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lgov_core.errors import PolicyDenied
from lgov_core.flow import Flow
from lgov_core.gateway.capture import DenialSink
from lgov_core.gateway.door import add_spent
from lgov_core.gateway.judging import JudgingLimits, Turns, size_of
from lgov_core.gateway.limits import Busy
from lgov_core.gateway.operation import DenialLog
from lgov_core.gateway.protocol import GateRefusal, GateReply, GateRequest
from lgov_core.governor import Governor
from lgov_core.instrumentation.conversation_memory import MessageDecisionCache, OpeningTexts, UserText
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.instrumentation.model_call import ModelCall, reply_limit
from lgov_core.instrumentation.model_flow import CallPort, Choice, ReplyPart, judge_request_flow, settle_flow
from lgov_core.instrumentation.tool_call import denied_outcome, refuse_arguments
from lgov_core.scope import RolloutScope, enter_scope
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, Kind, Point, new_id
from lgov_core.wire.exchange import ToolCall
from lgov_core.wire.turns import ModelReading, read_arguments, token_usage, with_texts

if TYPE_CHECKING:
    from lgov_core.audit import AuditLog
    from lgov_core.governance import Governance
    from lgov_core.store import TraceStore

T = TypeVar("T")


class PolicyGate:
    """A `Gate` that asks a governor. Fails closed.

    Judged are: each text of the user and each result of a tool, once, before a model first reads it (``input``,
    ``post_tool_call``); the call (``pre_model_call``); each choice of the reply (``post_model_call``) and each tool call
    proposed in it (``pre_tool_call``); and the text of a reply without tool calls (``output``). Every decision is
    committed first; ``input``, ``post_tool_call`` and ``output`` are left out where no rule covers them.

    A denied tool call is not in what the agent gets, and the text of the reply gives the reason; a denied reply is the
    denial alone; a denied result is replaced by the denial in what the model reads. A denied model call is a
    `GateRefusal` with status 200: an answer with the reason. So is one whose messages a policy rewrote in a way that
    cannot be sent (``unclear-transform``). It is 403 where the decision says abort, and 503 where the judgement failed,
    or where calls in the reply cannot be told apart (``unreadable-reply``).

    A text that a policy rewrote is rewritten in every later call of the same attempt too; one that was forgotten is
    judged again. The user's are the texts in the user's role before the first reply of an attempt (`OpeningTexts`), which
    a ``store`` knows of attempts that began before this process. ``limits`` bound what is judged (`Turns` says where).
    For one event loop.
    """

    def __init__(
        self,
        governor: Governor,
        *,
        owns: Sequence[AuditLog] = (),
        store: TraceStore | None = None,
        limits: JudgingLimits | None = None,
        denials: DenialLog | None = None,
    ) -> None:
        def has_begun(rollout_id: str, attempt: int) -> bool:
            return store is not None and store.has_calls(rollout_id, attempt)

        self.governor = governor
        self.user_texts = OpeningTexts(has_begun)
        self.text_decisions = MessageDecisionCache()
        self._turns = Turns(limits or JudgingLimits())
        self._owns = tuple(owns)
        #: What raises while something cannot be used that the gate needs, by name.
        self.pings: dict[str, Callable[[], None]] = {"policy": self._ping_policies}
        for log in owns:
            self.pings |= {"audit": log.ping, "heads": log.ping_heads}
        #: Which policy it is: a changed file holds from the next start.
        self.policy_digest = governor.policy_digest
        #: What the metrics say of it.
        self.readings = (denials or DenialLog()).readings

    def _ping_policies(self) -> None:
        for policy in self.governor.policies:
            getattr(policy, "ping", lambda: None)()

    def close(self) -> None:
        """Closes the governor and what the gate owns: the audit record."""
        self._turns.close()
        self.governor.close()
        for owned in self._owns:
            owned.close()

    async def admit(self, request: GateRequest) -> GateRequest:
        """The call as it may be made. Raises `GateRefusal`, and `EndpointError` (413, 429) for one over a limit."""
        call, size = EndpointCall(self, request), self._turns.limits.size(request)
        try:
            refusal = await self._judged(judge_request_flow(call, call.begin()), size, request)
        except asyncio.CancelledError as error:
            call.begin().failed(error, refused=True)
            raise
        if refusal is not None:
            raise _refusal(refusal)
        return call.request_sent

    async def failed(self, request: GateRequest, error: BaseException) -> None:
        """An admitted call brought no reply: what budgets reserved for it is spent, or given back where it was refused.

        The store has it as a failed call.
        """
        call = EndpointCall(self, request)
        call.begin().failed(error)
        about = {semconv.REQUEST_MODEL: request.model, semconv.AGENT_NAME: request.agent, semconv.FRAMEWORK: "endpoint"}
        with call.judging():
            LiveSpan(self.governor, semconv.CHAT, request.model, about).end(error)

    def reads_replies(self) -> bool:
        """Returns whether a rule reads texts of the model."""
        return self.governor.reads_replies()

    async def release(self, request: GateRequest, replies: Sequence[GateReply]) -> Sequence[GateReply]:
        """The replies as the agent may get them. Raises `GateRefusal`."""
        if any(reply.text or reply.tool_calls or reply.reasoning for reply in replies):
            self.user_texts.replied(request.rollout_id, request.attempt)
        call = EndpointCall(self, request)
        parts = [ReplyPart(_reading(reply), [reply]) for reply in replies]
        texts = [
            text
            for reply in replies
            for text in (reply.text, reply.reasoning, *(proposed.arguments for proposed in reply.tool_calls))
        ]
        size = size_of(len(texts), sum(map(len, texts)))
        try:
            return await self._judged(settle_flow(call, call.begin(), parts), size, request)
        except (Busy, asyncio.CancelledError) as error:
            call.begin().failed(error, refused=False)
            raise

    async def _judged(self, flow: Flow[T], size: int, request: GateRequest) -> T:
        """Returns what the flow of a call returns. Raises `GateRefusal` or `Busy`, whatever goes wrong."""
        attempt = None if request.rollout_id is None else (request.rollout_id, request.attempt)
        began = time.perf_counter()
        try:
            return await self._turns.judged(flow, size, attempt)
        except (GateRefusal, Busy):
            raise
        except PolicyDenied as denied:
            raise _refusal(denied.decision) from denied
        except Exception as error:
            text = f"DENIED by policy lgov/gate-failed: the judgement of this call failed ({type(error).__name__})."
            raise GateRefusal(text, status=503) from error
        finally:
            add_spent("judged", began)


def _refusal(decision: Decision) -> GateRefusal:
    is_failure = decision.fault and decision.rule != "unclear-transform"  # which is what a policy wrote
    status = 503 if is_failure else 403 if decision.abort else 200
    return GateRefusal(decision.denial_message(), status=status, decision_id=decision.decision_id)


class EndpointCall(CallPort[GateReply, "list[GateReply]"]):
    """One model call on its way through the endpoint: a port of `lgov_core.instrumentation.model_flow`.

    A choice is one of the reply. The endpoint's routes send the call between the two halves of the flow. Its agent gets
    the denials, and goes on or not: the model is not asked again here.
    """

    def __init__(self, gate: PolicyGate, request: GateRequest) -> None:
        self.governor = gate.governor
        self._gate = gate
        self._request = request
        self._scope: RolloutScope | None = None
        if request.rollout_id is not None and request.attempt is not None:
            self._scope = RolloutScope(request.rollout_id, request.attempt)
        #: The call as policies left it, so far.
        self.request_sent = request

    def judging(self) -> AbstractContextManager[Any]:
        """See `CallPort.judging`: the attempt to which what is decided belongs."""
        return nullcontext() if self._scope is None else enter_scope(self._scope)

    def begin(self) -> ModelCall:
        """See `CallPort.begin`: the endpoint's record has the call, so no span is opened."""
        return ModelCall.unseen(
            self.governor,
            self._action(Point.PRE_MODEL_CALL, self._request.model, "model", operation_id=self._request.operation_id),
        )

    def _action(self, point: Point, name: str, kind: Kind, **fields: Any) -> Action:
        request = self._request
        fields = {"arguments": {}, **fields, "rollout_id": request.rollout_id, "attempt": request.attempt}
        return Action(point, name, kind, agent=request.agent, framework="endpoint", **fields)

    # ------------------------------------------------------------------ the request

    def judge_input_flow(self, call: ModelCall) -> Flow[Decision | None]:
        """Judges the texts of users and the results of tools that no policy has judged in this attempt."""
        messages, decisions = self._request.messages, self._gate.text_decisions
        roles = {role for role, point in _JUDGED_ROLES.items() if self.governor.covers(point)}
        users = frozenset((yield from self._user_texts_flow())) if "user" in roles else frozenset[str]()

        def action(text: UserText) -> Action:
            answered = text.result_of
            if answered is None:
                return call.user_text(text)
            arguments = answered["args"] if isinstance(answered["args"], Mapping) else {}
            details = {"arguments": arguments, "call_id": answered["id"], "context": {"tool_status": "ok"}}
            return self._action(
                Point.POST_TOOL_CALL, answered["name"], "function", text=text.text, source="tool", **details
            )

        texts = self._texts(roles, users) if roles else ()
        if (refusal := (yield from decisions.judge_flow(self.governor, texts, action))) is not None:
            return refusal
        instead = decisions.instead_of(lambda: [(message["role"], message["content"]) for message in messages])
        self._change_texts({at: replacement.text for at, replacement in instead.items()})
        return None

    def _user_texts_flow(self) -> Flow[list[str]]:
        request = self._request
        if request.route == "embeddings":  # what is to be embedded is nobody's request
            return []
        return (yield from self._gate.user_texts.among_flow(request.messages, request.rollout_id, request.attempt))

    def _texts(self, roles: Collection[str], users: Collection[str]) -> Iterator[UserText]:
        messages = self._request.messages
        replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        since = replies[-1] + 1 if replies else 0
        answers = iter(replies)
        answered_at = next(answers, None)
        calls: dict[str, Mapping[str, Any]] = {}
        for at, message in enumerate(messages):
            calls.update({call["id"]: call for call in message.get("tool_calls", ())})
            role, text = message["role"], message["content"]
            if role not in roles or not text:
                continue
            if role == "tool":
                answered = calls.get(message.get("tool_call_id", "")) or {"id": None, "name": "unknown", "args": {}}
                yield UserText(text, at >= since, once=True, result_of=answered)
            else:
                while answered_at is not None and answered_at < at:
                    answered_at = next(answers, None)
                answer = None if answered_at is None else messages[answered_at]["content"]
                yield UserText(text, at >= since, answer, once=True, nested=text not in users)

    def _change_texts(self, texts: Mapping[int, str]) -> None:
        """Puts ``texts`` into the messages with these numbers. Raises `ValueError` where a message has no place for one."""
        messages = self.request_sent.messages
        texts = {at: text for at, text in texts.items() if messages[at]["content"] != text}
        if not texts:
            return
        if not self._request.fixed().isdisjoint(texts):
            raise ValueError("a policy changed a message that has no place for a text")
        changed = [{**message, "content": texts.get(at, message["content"])} for at, message in enumerate(messages)]
        self.request_sent = replace(self.request_sent, messages=changed)

    def request(self, call: ModelCall) -> Action:
        """See `CallPort.request`."""
        request = self.request_sent
        further: dict[str, Any] = reply_limit(request.max_tokens)
        if request.fields:
            further["fields"] = request.fields
        return call.request(request.messages, tools=request.tools, **further)

    def take_messages(self, new_messages: Sequence[Mapping[str, Any]]) -> None:
        """See `CallPort.take_messages`: only texts may differ."""
        texts: dict[int, str] = {}
        for at, (old, new) in enumerate(zip(self.request_sent.messages, new_messages, strict=True)):
            if not isinstance(new.get("content"), str) or {**old, "content": ""} != {**new, "content": ""}:
                raise ValueError("a policy changed more of a message than its text")
            texts[at] = new["content"]
        self._change_texts(texts)

    def take_fields(self, new_fields: Any) -> None:
        """See `CallPort.take_fields`: only texts may differ."""
        fields = self.request_sent.fields
        if new_fields != fields:
            self.request_sent = replace(self.request_sent, fields=with_texts(fields, fields, new_fields))

    # ------------------------------------------------------------------ the reply

    def with_text(self, choice: GateReply, text: str) -> GateReply:
        """See `CallPort.with_text`."""
        return replace(choice, text=text)

    def denied(self, choice: GateReply | None, decision: Decision, text: str) -> GateReply:
        """See `CallPort.denied`. Raises `GateRefusal` where the judgement failed."""
        if choice is None or decision.fault:
            raise _refusal(decision)
        return replace(choice, text=text, tool_calls=(), reasoning="")

    def judge_acts_flow(self, call: ModelCall, choice: Choice[GateReply]) -> Flow[Choice[GateReply]]:
        """Judges the reasoning and the tool calls of the choice; the denials of calls stand below its text."""
        reply = choice.reply
        reasoning = yield from self._reasoning_flow(call, reply)
        kept, denials = yield from self._calls_flow(reply)
        text = "\n".join(filter(None, [reply.text, *denials]))
        return replace(
            choice, reply=replace(reply, text=text, tool_calls=kept, reasoning=reasoning), final=bool(denials)
        )

    def answer(self, choice: GateReply) -> str | None:
        """See `CallPort.answer`."""
        judged = choice.text and not choice.tool_calls and self.governor.covers(Point.OUTPUT)
        return choice.text if judged else None

    def deliver_flow(self, choices: Sequence[Choice[GateReply]] | None) -> Flow[list[GateReply]]:
        """Returns the choices; one that was not changed is the same object as before."""
        return [
            choice.received if choice.received == choice.reply and choice.received is not None else choice.reply
            for choice in choices or ()
        ]
        yield

    def _reasoning_flow(self, call: ModelCall, reply: GateReply) -> Flow[str]:
        """The reasoning beside the text, judged as a reply of its own: empty if a policy denies or would change it.

        Raises `GateRefusal` for a decision that says abort, or a judgement that failed.
        """
        reasoning = reply.reasoning
        if not reasoning:
            return ""
        reading = ModelReading(reasoning, response_id=reply.response_id, finish_reason=reply.finish_reason)
        actions = [call.reply(reading)]
        if self.governor.covers(Point.OUTPUT):
            actions.append(call.output(reasoning))
        for action in actions:
            decision = yield from self.governor.decision_flow(action)
            if decision.blocks and (decision.fault or decision.abort):
                raise _refusal(decision)
            if decision.blocks or decision.text not in (None, reasoning):
                return ""
        return reasoning

    def _calls_flow(self, reply: GateReply) -> Flow[tuple[tuple[ToolCall, ...], list[str]]]:
        """The calls that the agent may get, and the denials of the others."""
        kept: list[ToolCall] = []
        denials: list[str] = []
        user_texts = (yield from self._user_texts_flow()) if reply.tool_calls else []
        for call in reply.tool_calls:
            arguments = read_arguments(call.arguments)
            action = self._action(
                Point.PRE_TOOL_CALL,
                call.name,
                "function",
                arguments=arguments or {},
                call_id=call.call_id or None,
                operation_id=new_id("op"),
                context={"user_text": user_texts},
            )
            if arguments is None:
                action = replace(action, text=call.arguments)
                decision = refuse_arguments(self.governor, action)
            else:
                decision = yield from self.governor.decision_flow(action)
            if not decision.blocks:
                changed = decision.arguments
                kept.append(call if changed is None else replace(call, arguments=json.dumps(dict(changed))))
                continue
            yield from self.governor.record_flow(denied_outcome(action, decision))
            if decision.fault or decision.abort:
                raise _refusal(decision)
            denials.append(decision.denial_message())
        return tuple(kept), denials


_JUDGED_ROLES: Final = {"user": Point.INPUT, "tool": Point.POST_TOOL_CALL}


def _reading(reply: GateReply) -> ModelReading:
    """A choice as policies read it. A call alone (of a legacy reply) needs no id."""
    arguments = [read_arguments(call.arguments) for call in reply.tool_calls]
    calls: list[dict[str, Any]] = [
        {"id": call.call_id, "name": call.name, "args": call.arguments if parsed is None else parsed}
        for call, parsed in zip(reply.tool_calls, arguments, strict=True)
    ]
    if len(calls) == 1 and not calls[0]["id"]:
        del calls[0]["id"]
    counts = {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}
    return ModelReading(
        text=reply.text,
        tool_calls=calls,
        usage=token_usage(counts, *counts),
        response_id=reply.response_id,
        finish_reason=reply.finish_reason,
        unreadable=reply.unreadable,
    )


def open_gate(
    governance: Governance, *, store: TraceStore | None = None, limits: JudgingLimits | None = None
) -> PolicyGate:
    """A gate that judges by the policy file of ``governance`` and commits its decisions to its record.

    With a ``store``, which stays the caller's, what was denied or changed is written there as spans and rewards, whatever
    store ``governance`` names. The caller closes the gate. Raises `LgovError` for a file that does not load or a record that
    cannot be opened.
    """
    from lgov_core.air import AirPlugin
    from lgov_core.audit import AuditLog

    denials = DenialLog()
    plugins: list[Any] = [denials]
    if store is not None:
        plugins += [AirPlugin(governance.reward_rules()), DenialSink(store, governance.content)]
    # The recorded calls have the content.
    opened = replace(governance, store=None, content=False).open(plugins=plugins, rewards=False)
    assert isinstance(opened.audit, AuditLog)  # nothing serves inside a box
    return PolicyGate(opened.governor, owns=[opened.audit], store=store, limits=limits, denials=denials)
