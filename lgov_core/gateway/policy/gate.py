"""Policy at the endpoint, for agents whose own process is not governed: judges what models read and write.

`open_gate` makes a `PolicyGate` for a policy file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from lgov_core._util.containers import BoundedDict
from lgov_core.errors import LgovError
from lgov_core.gateway.policy.gate_calls import UserTexts
from lgov_core.gateway.protocol import GateRefusal, GateReply, GateRequest
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.types import Action, Decision, Effect, ModelCallFailed, Point, Source, ToolOutcome, new_id
from lgov_core.wire.exchange import ToolCall, unclear_ids

if TYPE_CHECKING:
    from lgov_core.audit import AuditLog
    from lgov_core.governance import Governance
    from lgov_core.store import TraceStore


_JUDGED_ROLES = {"user": Point.INPUT, "tool": Point.POST_TOOL_CALL}
#: The number of texts whose decisions are remembered.
_REMEMBERED = 16_384


class PolicyGate:
    """A `Gate` that asks a governor. Fails closed.

    Judged are: each text of the user and each result of a tool, once, before a model first reads it (``input``,
    ``post_tool_call``); the call (``pre_model_call``); each choice of the reply (``post_model_call``) and each tool call
    proposed in it (``pre_tool_call``); and the text of a reply without tool calls (``output``). Every decision is
    committed first; ``input``, ``post_tool_call`` and ``output`` are left out where no rule covers them.

    A denied tool call is not in what the agent gets, and the text of the reply gives the reason; a denied reply is the
    denial alone; a denied result is replaced by the denial in what the model reads. A denied model call is a
    `GateRefusal` with status 200: an answer with the reason. It is 403 where the decision says abort, and 503 where the
    judgement failed, or where calls in the reply cannot be told apart (``unreadable-reply``).

    A text that a policy rewrote is rewritten in every later call of the same attempt too; one that was forgotten is
    judged again. The user's are the texts in the user's role before the first reply of an attempt (`UserTexts`), which a
    ``store`` knows of attempts that began before this process. For one event loop.
    """

    def __init__(self, governor: Governor, *, owns: Sequence[AuditLog] = (), store: TraceStore | None = None) -> None:
        self.governor = governor
        self._user_texts = UserTexts(store)
        self._owns = tuple(owns)
        #: By attempt, place and text: what the model reads instead (None: the text itself), and whether it was denied.
        self._decisions: BoundedDict[bytes, tuple[str | None, bool]] = BoundedDict(_REMEMBERED)

    def close(self) -> None:
        """Closes the governor and what the gate owns: the audit record."""
        self.governor.close()
        for owned in self._owns:
            owned.close()

    async def admit(self, request: GateRequest) -> GateRequest:
        """The call as it may be made. Raises `GateRefusal`."""
        try:
            messages, fields = await self._judge_messages(request), request.fields
            arguments: dict[str, Any] = {"messages": list(messages)}
            if request.fields:
                arguments["fields"] = request.fields
            if request.max_tokens is not None:
                arguments["max_output_tokens"] = request.max_tokens
            action = endpoint_action(
                request,
                Point.PRE_MODEL_CALL,
                request.model,
                "model",
                arguments=arguments,
                operation_id=request.operation_id,
            )
            decision = await self.governor.adecide(action.changed(context={"tools": list(request.tools)}))
            if decision.blocks:
                raise _refusal(decision)
            if decision.arguments is not None:
                messages = rewritten_messages(messages, decision.arguments.get("messages"))
                fields = decision.arguments.get("fields", fields)
        except GateRefusal:
            raise
        except Exception as error:
            raise _failed(error) from error
        same = messages is request.messages and fields is request.fields
        return request if same else replace(request, messages=messages, fields=fields)

    async def failed(self, request: GateRequest, error: BaseException) -> None:
        """An admitted call brought no reply: what budgets reserved for it is given back."""
        action = endpoint_action(
            request, Point.PRE_MODEL_CALL, request.model, "model", operation_id=request.operation_id
        )
        self.governor.observe(ModelCallFailed(action, type(error).__name__, isinstance(error, LgovError)))

    def reads_replies(self) -> bool:
        """Returns whether a rule reads texts of the model."""
        return self.governor.reads_replies()

    async def release(self, request: GateRequest, replies: Sequence[GateReply]) -> Sequence[GateReply]:
        """The replies as the agent may get them. Raises `GateRefusal`."""
        if any(reply.text or reply.tool_calls or reply.reasoning for reply in replies):
            self._user_texts.replied(request)
        try:
            return [await self._judge_reply(request, reply, first=at == 0) for at, reply in enumerate(replies)]
        except GateRefusal:
            raise
        except Exception as error:
            raise _failed(error) from error

    async def _decide(self, action: Action) -> Decision:
        """The decision. Raises `GateRefusal` for one that says abort, or a judgement that failed."""
        decision = await self.governor.adecide(action)
        if decision.blocks and (decision.fault or decision.abort):
            raise _refusal(decision)
        return decision

    async def _judge_messages(self, request: GateRequest) -> Sequence[Mapping[str, Any]]:
        """The messages with what has to be replaced in them; the same object if nothing has."""
        covered = {point for point in _JUDGED_ROLES.values() if self.governor.covers(point)}
        since = max((at + 1 for at, entry in enumerate(request.messages) if entry["role"] == "assistant"), default=0)
        user_texts = frozenset(await self._user_texts.among(request))
        calls: dict[str, Mapping[str, Any]] = {}
        changed: dict[int, str] = {}
        for at, message in enumerate(request.messages):
            calls.update({call["id"]: call for call in message.get("tool_calls", ())})
            point, text = _JUDGED_ROLES.get(message["role"]), message["content"]
            if point is None or point not in covered or not text:
                continue
            call = calls.get(message.get("tool_call_id", ""))
            source: Source = "tool" if point is not Point.INPUT else "user" if text in user_texts else "agent"
            replacement = await self._judge_text(request, point, text, source, call, new=at >= since)
            if replacement is not None:
                changed[at] = replacement
        if not changed:
            return request.messages
        return [{**entry, "content": changed.get(at, entry["content"])} for at, entry in enumerate(request.messages)]

    async def _judge_text(
        self,
        request: GateRequest,
        point: Point,
        text: str,
        source: Source,
        call: Mapping[str, Any] | None,
        *,
        new: bool,
    ) -> str | None:
        """The text for the model instead of ``text``, None for ``text`` itself. ``new``: it came since the last reply."""
        identity = f"{request.rollout_id}\0{request.attempt}\0{point}\0{text}"
        key = hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        remembered = self._decisions.get(key)
        if remembered is not None:
            replacement, denied = remembered
            if not (denied and new):
                return replacement
        if point is Point.INPUT:
            action = endpoint_action(request, point, request.agent or "agent", "text", text=text, source=source)
        else:
            call = call or {"id": None, "name": "unknown", "args": {}}
            arguments = call["args"] if isinstance(call["args"], Mapping) else {}
            fields = {"arguments": arguments, "call_id": call["id"], "context": {"tool_status": "ok"}}
            action = endpoint_action(request, point, call["name"], "function", text=text, source=source, **fields)
        decision = await self.governor.adecide(action)
        if not decision.blocks:
            self._decisions.put(key, (decision.text, False))
            return decision.text
        denial = decision.denial_message(after=point is Point.POST_TOOL_CALL)
        if not decision.fault:
            self._decisions.put(key, (denial, True))
        if decision.fault or decision.abort or (new and point is Point.INPUT):
            raise _refusal(decision)
        return denial

    async def _judge_reply(self, request: GateRequest, reply: GateReply, *, first: bool) -> GateReply:
        action = reply_action(request, reply, first=first)
        problem = reply.unreadable or unclear_calls(reply.tool_calls)
        if problem is not None:
            reason = f"the model's reply cannot be read for certain: {problem}; ask the model again"
            raise _refusal(self.governor.refuse(action, "unreadable-reply", reason))
        decision = await self._decide(action)
        if decision.blocks:
            return replace(reply, text=decision.denial_message(), tool_calls=(), reasoning="")
        text = reply.text if decision.text is None else decision.text
        reasoning = await self._judge_reasoning(request, reply)
        kept, denials = await self._judge_calls(request, reply)
        if denials:
            text = "\n".join([text, *denials] if text else denials)
        elif not kept and text and self.governor.covers(Point.OUTPUT):
            text = await self._judge_output(request, text)
        if text == reply.text and kept == reply.tool_calls and reasoning == reply.reasoning:
            return reply
        return replace(reply, text=text, tool_calls=kept, reasoning=reasoning)

    async def _judge_reasoning(self, request: GateRequest, reply: GateReply) -> str:
        """The reasoning beside the text, judged as a reply of its own: empty if a policy denies or would change it."""
        if not reply.reasoning:
            return ""
        action = reply_action(
            request, GateReply(reply.response_id, reply.reasoning, (), reply.finish_reason), first=False
        )
        decision = await self._decide(action)
        if decision.blocks or decision.text not in (None, reply.reasoning):
            return ""
        if self.governor.covers(Point.OUTPUT) and await self._judge_output(request, reply.reasoning) != reply.reasoning:
            return ""
        return reply.reasoning

    async def _judge_output(self, request: GateRequest, text: str) -> str:
        decision = await self._decide(
            endpoint_action(request, Point.OUTPUT, request.agent or "agent", "text", text=text)
        )
        if decision.blocks:
            return decision.denial_message()
        return text if decision.text is None else decision.text

    async def _judge_calls(self, request: GateRequest, reply: GateReply) -> tuple[tuple[ToolCall, ...], list[str]]:
        """The calls that the agent may get, and the denials of the others."""
        kept: list[ToolCall] = []
        denials: list[str] = []
        user_texts = await self._user_texts.among(request) if reply.tool_calls else []
        for call in reply.tool_calls:
            arguments = call_arguments(call.arguments)
            action = endpoint_action(
                request,
                Point.PRE_TOOL_CALL,
                call.name,
                "function",
                arguments=arguments or {},
                call_id=call.call_id or None,
                operation_id=new_id("op"),
                context={"user_text": user_texts},
            )
            if arguments is None:
                reason = f"the arguments of {call.name} are not one JSON object with each key once; write them again"
                decision = Decision(Effect.DENY, "lgov", "unreadable-arguments", reason)
                unread = replace(action, text=call.arguments)
                outcome = ToolOutcome(unread, "invalid_args", "", "InvalidToolCall", reason, decision)
            else:
                decision = await self.governor.adecide(action)
                outcome = ToolOutcome(action, "denied", decision=decision)
            if not decision.blocks:
                changed = decision.arguments
                kept.append(call if changed is None else replace(call, arguments=json.dumps(dict(changed))))
                continue
            await self.governor.arecord(outcome)
            if decision.fault or decision.abort:
                raise _refusal(decision)
            denials.append(decision.denial_message())
        return tuple(kept), denials


def _refusal(decision: Decision) -> GateRefusal:
    status = 503 if decision.fault else 403 if decision.abort else 200
    return GateRefusal(decision.denial_message(), status=status, decision_id=decision.decision_id)


def _failed(error: Exception) -> GateRefusal:
    return GateRefusal(
        f"DENIED by policy lgov/gate-failed: the judgement of this call failed ({type(error).__name__}).", status=503
    )


FRAMEWORK: Final = "endpoint"


def endpoint_action(request: GateRequest, point: Point, name: str, kind: Any, **fields: Any) -> Action:
    """An action of the call ``request``, with further ``fields`` of `Action`."""
    fields = {"arguments": {}, **fields, "rollout_id": request.rollout_id, "attempt": request.attempt}
    return Action(point, name, kind, agent=request.agent, framework=FRAMEWORK, **fields)


def reply_action(request: GateRequest, reply: GateReply, *, first: bool) -> Action:
    """The action of one choice of the reply; the ``first`` one ends the operation of the call."""
    calls = [
        {"id": call.call_id, "name": call.name, "args": call_arguments(call.arguments) or call.arguments}
        for call in reply.tool_calls
    ]
    arguments: dict[str, Any] = {"tool_calls": calls}
    if reply.prompt_tokens is not None and reply.completion_tokens is not None:
        arguments["usage"] = {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}
    return endpoint_action(
        request,
        Point.POST_MODEL_CALL,
        request.model,
        "model",
        arguments=arguments,
        text=reply.text,
        call_id=reply.response_id,
        context={"finish_reason": reply.finish_reason},
        operation_id=request.operation_id if first else None,
    )


def rewritten_messages(sent: Sequence[Mapping[str, Any]], raw: Any) -> list[Mapping[str, Any]]:
    """The messages as a policy left them. Raises `ValueError` unless only texts differ."""
    messages = cast("Sequence[Mapping[str, Any]]", raw) if isinstance(raw, Sequence) else ()
    if len(messages) != len(sent):
        raise ValueError("a policy added or removed messages")
    for old, new in zip(sent, messages, strict=True):
        if not isinstance(new.get("content"), str) or {**old, "content": ""} != {**new, "content": ""}:
            raise ValueError("a policy changed more of a message than its text")
    return list(messages)


def unclear_calls(calls: Sequence[ToolCall]) -> str | None:
    """Why a decision cannot be assigned to exactly one of ``calls``; a call alone (of a legacy reply) needs no id."""
    return unclear_ids([{"id": call.call_id} for call in calls]) if len(calls) > 1 else None


def call_arguments(text: str) -> dict[str, Any] | None:
    """The arguments of a tool call; None where they are not one JSON object with each key once.

    Two readers could read a repeated key differently. Blank text is ``{}``.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_each_key_once)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is repeated")
    return value


def open_gate(governance: Governance, *, store: TraceStore | None = None) -> PolicyGate:
    """A gate that judges by the policy file of ``governance`` and commits its decisions to its record.

    With a ``store``, which stays the caller's, what was denied or changed is written there as spans and rewards, whatever
    store ``governance`` names. The caller closes the gate. Raises `LgovError` for a file that does not load or a record that
    cannot be opened.
    """
    from lgov_core.air import AirPlugin
    from lgov_core.audit import AuditLog

    plugins = [] if store is None else [AirPlugin(governance.reward_rules()), _DenialSink(store, governance.content)]
    # The recorded calls have the content.
    opened = replace(governance, store=None, content=False).open(plugins=plugins, rewards=False)
    assert isinstance(opened.audit, AuditLog)  # nothing serves inside a box
    return PolicyGate(opened.governor, owns=[opened.audit], store=store)


class _DenialSink:
    """Writes what policies denied or changed, or would have in shadow mode, to the store.

    What they allowed is in the audit record. Decisions have their reasons; arguments and results are in the recorded calls, as
    policies left them, and not in these spans.
    """

    def __init__(self, store: TraceStore, content: bool) -> None:
        from lgov_core.trace.sink import StoreSink

        self._decisions = StoreSink(store, content=content)
        self._others = StoreSink(store, content=False)

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        if not isinstance(event, ObservedDecision):
            self._others.lgov_observe(event)
        elif event.decision.effect > Effect.ALLOW or event.decision.unenforced:
            self._decisions.lgov_observe(event)
