"""Policy at the endpoint, for agents whose own process is not governed: judges what models read and write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lgov_core._util.bounded import BoundedDict
from lgov_core.errors import LgovError
from lgov_core.gateway.policy.gate_actions import (
    call_arguments,
    endpoint_action,
    reply_action,
    rewritten_messages,
    unclear_calls,
)
from lgov_core.gateway.policy.user_texts import UserTexts
from lgov_core.gateway.protocol import GateRefusal, GateReply, GateRequest
from lgov_core.governor import Governor
from lgov_core.policies.policy_set import PolicySet
from lgov_core.policies.reload import ReloadingPolicySet
from lgov_core.types import Action, Decision, Effect, ModelCallFailed, Point, Source, ToolOutcome, new_id
from lgov_core.wire.exchange import ToolCall

if TYPE_CHECKING:
    from lgov_core.audit import AuditLog
    from lgov_core.store import TraceStore

_HOOKS = {
    Point.INPUT: "lgov_input",
    Point.OUTPUT: "lgov_output",
    Point.POST_TOOL_CALL: "lgov_post_tool_call",
}
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

    async def admit(self, asked: GateRequest) -> GateRequest:
        """The call as it may be made. Raises `GateRefusal`."""
        try:
            messages, fields = await self._judge_messages(asked), asked.fields
            arguments: dict[str, Any] = {"messages": list(messages)}
            if asked.fields:
                arguments["fields"] = asked.fields
            if asked.max_tokens is not None:
                arguments["max_output_tokens"] = asked.max_tokens
            action = endpoint_action(
                asked, Point.PRE_MODEL_CALL, asked.model, "model", arguments=arguments, operation_id=asked.operation_id
            )
            decision = await self.governor.adecide(action.changed(context={"tools": list(asked.tools)}))
            if decision.blocks:
                raise _refusal(decision)
            if decision.arguments is not None:
                messages = rewritten_messages(messages, decision.arguments.get("messages"))
                fields = decision.arguments.get("fields", fields)
        except GateRefusal:
            raise
        except Exception as error:
            raise _failed(error) from error
        same = messages is asked.messages and fields is asked.fields
        return asked if same else replace(asked, messages=messages, fields=fields)

    async def failed(self, asked: GateRequest, error: BaseException) -> None:
        """An admitted call brought no reply: what budgets reserved for it is given back."""
        action = endpoint_action(asked, Point.PRE_MODEL_CALL, asked.model, "model", operation_id=asked.operation_id)
        self.governor.observe(ModelCallFailed(action, type(error).__name__, isinstance(error, LgovError)))

    def reads_replies(self) -> bool:
        """Whether a rule reads texts of the model."""
        return self.governor.reads_replies()

    async def release(self, asked: GateRequest, replies: Sequence[GateReply]) -> Sequence[GateReply]:
        """The replies as the agent may get them. Raises `GateRefusal`."""
        if any(reply.text or reply.tool_calls or reply.reasoning for reply in replies):
            self._user_texts.replied(asked)
        try:
            return [await self._judge_reply(asked, reply, first=at == 0) for at, reply in enumerate(replies)]
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

    async def _judge_messages(self, asked: GateRequest) -> Sequence[Mapping[str, Any]]:
        """The messages with what has to be replaced in them; the same object if nothing has."""
        covered = {point for point in _JUDGED_ROLES.values() if self._covers(point)}
        since = max((at + 1 for at, one in enumerate(asked.messages) if one["role"] == "assistant"), default=0)
        said = frozenset(await self._user_texts.among(asked))
        calls: dict[str, Mapping[str, Any]] = {}
        changed: dict[int, str] = {}
        for at, message in enumerate(asked.messages):
            calls.update({call["id"]: call for call in message.get("tool_calls", ())})
            point, text = _JUDGED_ROLES.get(message["role"]), message["content"]
            if point is None or point not in covered or not text:
                continue
            call = calls.get(message.get("tool_call_id", ""))
            source: Source = "tool" if point is not Point.INPUT else "user" if text in said else "agent"
            replacement = await self._judge_text(asked, point, text, source, call, new=at >= since)
            if replacement is not None:
                changed[at] = replacement
        if not changed:
            return asked.messages
        return [{**one, "content": changed.get(at, one["content"])} for at, one in enumerate(asked.messages)]

    async def _judge_text(
        self,
        asked: GateRequest,
        point: Point,
        text: str,
        source: Source,
        call: Mapping[str, Any] | None,
        *,
        new: bool,
    ) -> str | None:
        """What the model reads instead of ``text``, None for the text itself. ``new``: it came since the last reply."""
        place = f"{asked.rollout_id}\0{asked.attempt}\0{point}\0{text}"
        key = hashlib.blake2b(place.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = self._decisions.get(key)
        if known is not None:
            replacement, denied = known
            if not (denied and new):
                return replacement
        if point is Point.INPUT:
            action = endpoint_action(asked, point, asked.agent or "agent", "text", text=text, source=source)
        else:
            call = call or {"id": None, "name": "unknown", "args": {}}
            arguments = call["args"] if isinstance(call["args"], Mapping) else {}
            fields = {"arguments": arguments, "call_id": call["id"], "context": {"tool_status": "ok"}}
            action = endpoint_action(asked, point, call["name"], "function", text=text, source=source, **fields)
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

    async def _judge_reply(self, asked: GateRequest, reply: GateReply, *, first: bool) -> GateReply:
        action = reply_action(asked, reply, first=first)
        problem = reply.unreadable or unclear_calls(reply.tool_calls)
        if problem is not None:
            reason = f"the model's reply cannot be read for certain: {problem}; ask the model again"
            raise _refusal(self.governor.refuse(action, "unreadable-reply", reason))
        decision = await self._decide(action)
        if decision.blocks:
            return replace(reply, text=decision.denial_message(), tool_calls=(), reasoning="")
        text = reply.text if decision.text is None else decision.text
        reasoning = await self._judge_reasoning(asked, reply)
        kept, denials = await self._judge_calls(asked, reply)
        if denials:
            text = "\n".join([text, *denials] if text else denials)
        elif not kept and text and self._covers(Point.OUTPUT):
            text = await self._judge_output(asked, text)
        if text == reply.text and kept == reply.tool_calls and reasoning == reply.reasoning:
            return reply
        return replace(reply, text=text, tool_calls=kept, reasoning=reasoning)

    async def _judge_reasoning(self, asked: GateRequest, reply: GateReply) -> str:
        """The reasoning beside the text, judged as a reply of its own: empty if a policy denies or would change it."""
        if not reply.reasoning:
            return ""
        action = reply_action(
            asked, GateReply(reply.response_id, reply.reasoning, (), reply.finish_reason), first=False
        )
        decision = await self._decide(action)
        if decision.blocks or decision.text not in (None, reply.reasoning):
            return ""
        if self._covers(Point.OUTPUT) and await self._judge_output(asked, reply.reasoning) != reply.reasoning:
            return ""
        return reply.reasoning

    async def _judge_output(self, asked: GateRequest, text: str) -> str:
        decision = await self._decide(endpoint_action(asked, Point.OUTPUT, asked.agent or "agent", "text", text=text))
        if decision.blocks:
            return decision.denial_message()
        return text if decision.text is None else decision.text

    async def _judge_calls(self, asked: GateRequest, reply: GateReply) -> tuple[tuple[ToolCall, ...], list[str]]:
        """The calls that the agent may get, and the denials of the others."""
        kept: list[ToolCall] = []
        denials: list[str] = []
        said = await self._user_texts.among(asked) if reply.tool_calls else []
        for call in reply.tool_calls:
            arguments = call_arguments(call.arguments)
            action = endpoint_action(
                asked,
                Point.PRE_TOOL_CALL,
                call.name,
                "function",
                arguments=arguments or {},
                call_id=call.call_id or None,
                operation_id=new_id("op"),
                context={"user_text": said},
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

    def _covers(self, point: Point) -> bool:
        """Whether any policy or hook judges at ``point``."""
        for policy in self.governor.policies:
            if not isinstance(policy, PolicySet | ReloadingPolicySet) or any(point in one.on for one in policy.rules):
                return True
        return bool(getattr(self.governor.manager.hook, _HOOKS[point]).get_hookimpls())


def _refusal(decision: Decision) -> GateRefusal:
    status = 503 if decision.fault else 403 if decision.abort else 200
    return GateRefusal(decision.denial_message(), status=status, decision_id=decision.decision_id)


def _failed(error: Exception) -> GateRefusal:
    return GateRefusal(
        f"DENIED by policy lgov/gate-failed: the judgement of this call failed ({type(error).__name__}).", status=503
    )
