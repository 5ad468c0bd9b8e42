"""Policy at the endpoint, for agents whose process nobody governs: what goes to the model and what comes back is judged."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from lgov_core.errors import LgovError
from lgov_core.gateway.policy.message_decisions import Heard
from lgov_core.gateway.protocol import GateRefusal, GateReply, GateRequest, ToolCall
from lgov_core.governor import Governor, ObservedDecision
from lgov_core.hookspecs import hookimpl
from lgov_core.policies.base import Policy
from lgov_core.policies.policy_set import PolicySet
from lgov_core.policies.reload import ReloadingPolicySet
from lgov_core.types import Action, Decision, Effect, ModelCallFailed, Point, ToolOutcome, new_id

if TYPE_CHECKING:
    from lgov_core.store.protocol import TraceStore

FRAMEWORK = "endpoint"

_HOOKS = {
    Point.INPUT: "lgov_input",
    Point.OUTPUT: "lgov_output",
    Point.POST_TOOL_CALL: "lgov_post_tool_call",
}


class _Closes(Protocol):
    def close(self) -> None: ...


class PolicyGate:
    """A `Gate` before a governor. Fails closed.

    Judged are: each text of the user and each result of a tool, once, before a model first reads it (``input``,
    ``post_tool_call``); the call (``pre_model_call``); each choice of the reply (``post_model_call``) and each tool call
    proposed in it (``pre_tool_call``); and the text of a reply without tool calls (``output``). Every decision that is
    taken is committed first; ``input``, ``post_tool_call`` and ``output`` are not asked for where no rule covers them.

    A denied call of a tool is not in what the agent gets, and the text of the reply says why; a denied reply is that text
    alone; a denied result is replaced by it in what the model reads. A denied call of the model is a `GateRefusal` with
    status 200: an answer that says why. It is 403 where the decision says abort, and 503 where the judgement failed.

    What a policy rewrote in a text is rewritten in every later call of the same attempt too: ``remembered`` texts are
    known for that; one that was forgotten is judged again. For one event loop.
    """

    def __init__(self, governor: Governor, *, owns: Sequence[_Closes] = (), remembered: int = 16_384) -> None:
        self.governor = governor
        self._owns = tuple(owns)
        self._heard = Heard(remembered)
        self._covered: dict[Point, bool] = {}

    def close(self) -> None:
        """Gives back the governor's threads and closes what the gate owns: the audit record."""
        self.governor.close()
        for owned in self._owns:
            owned.close()

    # ------------------------------------------------------------------ before

    async def admit(self, asked: GateRequest) -> GateRequest:
        """The call as it may be made. Raises `GateRefusal`."""
        try:
            texts = await self._judge_texts(asked)
            messages = asked.messages if texts is None else texts
            arguments: dict[str, Any] = {"messages": list(messages)}
            if asked.max_tokens is not None:
                arguments["max_output_tokens"] = asked.max_tokens
            action = _action(Point.PRE_MODEL_CALL, asked.model, "model", asked, arguments=arguments)
            decision = await self.governor.adecide(action)
            self._refuse_if_blocked(decision)
            if decision.arguments is not None:
                messages = _rewritten(messages, decision.arguments.get("messages"))
        except GateRefusal:
            raise
        except Exception as error:
            raise _failed(error) from error
        return asked if messages is asked.messages else replace(asked, messages=messages)

    async def failed(self, asked: GateRequest, error: BaseException) -> None:
        """An admitted call brought no reply: what was set aside for it is given back."""
        action = _action(Point.PRE_MODEL_CALL, asked.model, "model", asked)
        self.governor.observe(ModelCallFailed(action, type(error).__name__, isinstance(error, LgovError)))

    async def _judge_texts(self, asked: GateRequest) -> list[Mapping[str, Any]] | None:
        """The messages with what has to be replaced in them; None if nothing has."""
        listens = {point: self._covers(point) for point in (Point.INPUT, Point.POST_TOOL_CALL)}
        if not any(listens.values()):
            return None
        since = max((at + 1 for at, one in enumerate(asked.messages) if one["role"] == "assistant"), default=0)
        calls: dict[str, Mapping[str, Any]] = {}
        changed: dict[int, str] = {}
        for at, message in enumerate(asked.messages):
            for call in message.get("tool_calls", ()):
                calls[call["id"]] = call
            role, text = message["role"], message["content"]
            point = {"user": Point.INPUT, "tool": Point.POST_TOOL_CALL}.get(role)
            if point is None or not text or not listens[point]:
                continue
            instead = await self._judge_text(
                asked, point, text, calls.get(message.get("tool_call_id", "")), at >= since
            )
            if instead is not None:
                changed[at] = instead
        if not changed:
            return None
        return [{**one, "content": changed[at]} if at in changed else one for at, one in enumerate(asked.messages)]

    async def _judge_text(
        self, asked: GateRequest, point: Point, text: str, call: Mapping[str, Any] | None, new: bool
    ) -> str | None:
        key = self._heard.key(asked.rollout_id, asked.attempt, point, text)
        known = self._heard.get(key)
        if known is not None and not (known.denied and new):
            return known.instead
        if point is Point.INPUT:
            action = _action(point, asked.agent or "agent", "text", asked, text=text, operation=False)
        else:
            name, arguments = (call["name"], call["args"]) if call is not None else ("unknown", {})
            action = replace(
                _action(point, name, "function", asked, text=text, operation=False),
                call_id=call["id"] if call is not None else None,
                arguments=arguments if isinstance(arguments, Mapping) else {},
                context={"tool_status": "ok"},
            )
        decision = await self.governor.adecide(action)
        if decision.blocks:
            if not decision.fault:
                self._heard.put(key, decision.denial_message(after=point is Point.POST_TOOL_CALL), denied=True)
            if decision.fault or decision.abort or (new and point is Point.INPUT):
                self._refuse_if_blocked(decision)
            return decision.denial_message(after=point is Point.POST_TOOL_CALL)
        self._heard.put(key, decision.text)
        return decision.text

    # ------------------------------------------------------------------ after

    async def release(self, asked: GateRequest, replies: Sequence[GateReply]) -> Sequence[GateReply]:
        """The replies as the agent may get them. Raises `GateRefusal`."""
        try:
            return [await self._judge_reply(asked, reply, first=at == 0) for at, reply in enumerate(replies)]
        except GateRefusal:
            raise
        except Exception as error:
            raise _failed(error) from error

    async def _judge_reply(self, asked: GateRequest, reply: GateReply, *, first: bool) -> GateReply:
        arguments: dict[str, Any] = {
            "tool_calls": [
                {"id": call.call_id, "name": call.name, "args": _object(call.arguments) or call.arguments}
                for call in reply.tool_calls
            ]
        }
        if reply.prompt_tokens is not None and reply.completion_tokens is not None:
            arguments["usage"] = {"input_tokens": reply.prompt_tokens, "output_tokens": reply.completion_tokens}
        action = replace(
            _action(
                Point.POST_MODEL_CALL,
                asked.model,
                "model",
                asked,
                arguments=arguments,
                text=reply.text,
                operation=first,
            ),
            call_id=reply.response_id,
            context={"finish_reason": reply.finish_reason},
        )
        decision = await self.governor.adecide(action)
        if decision.blocks:
            if decision.fault or decision.abort:
                self._refuse_if_blocked(decision)
            return replace(reply, text=decision.denial_message(), tool_calls=())
        text = reply.text if decision.text is None else decision.text
        reasoning = await self._judge_reasoning(asked, reply)
        kept, told = await self._judge_calls(asked, reply)
        if told:
            text = "\n".join([text, *told] if text else told)
        elif not kept and text and self._covers(Point.OUTPUT):
            text = await self._judge_output(asked, text)
        if text == reply.text and kept == reply.tool_calls and reasoning == reply.reasoning:
            return reply
        return replace(reply, text=text, tool_calls=kept, reasoning="")

    async def _judge_reasoning(self, asked: GateRequest, reply: GateReply) -> str:
        """The thoughts beside the text, as a reply of their own: what a policy denies or would change is left out."""
        if not reply.reasoning:
            return ""
        action = replace(
            _action(Point.POST_MODEL_CALL, asked.model, "model", asked, text=reply.reasoning, operation=False),
            arguments={"tool_calls": []},
            call_id=reply.response_id,
            context={"finish_reason": reply.finish_reason},
        )
        decision = await self.governor.adecide(action)
        if decision.fault or decision.abort:
            self._refuse_if_blocked(decision)
        kept = "" if decision.blocks or decision.text not in (None, reply.reasoning) else reply.reasoning
        if kept and self._covers(Point.OUTPUT):
            shown = await self._judge_output(asked, kept)
            kept = kept if shown == kept else ""
        return kept

    async def _judge_output(self, asked: GateRequest, text: str) -> str:
        name = asked.agent or "agent"
        decision = await self.governor.adecide(_action(Point.OUTPUT, name, "text", asked, text=text, operation=False))
        if decision.blocks:
            if decision.fault or decision.abort:
                self._refuse_if_blocked(decision)
            return decision.denial_message()
        return text if decision.text is None else decision.text

    async def _judge_calls(self, asked: GateRequest, reply: GateReply) -> tuple[tuple[ToolCall, ...], list[str]]:
        """The calls that the agent may get, and what it is told of the others."""
        kept: list[ToolCall] = []
        told: list[str] = []
        for call in reply.tool_calls:
            arguments = _object(call.arguments)
            action = replace(
                _action(Point.PRE_TOOL_CALL, call.name, "function", asked, arguments=arguments or {}, operation=False),
                call_id=call.call_id or None,
                operation_id=new_id("op"),
                context={"user_text": _user_text(asked)},
            )
            if arguments is None:
                reason = f"the arguments of {call.name} are not one JSON object with each key once; write them anew"
                decision = Decision(Effect.DENY, "lgov", "unreadable-arguments", reason)
                outcome = ToolOutcome(
                    replace(action, text=call.arguments), "invalid_args", "", "InvalidToolCall", reason, decision
                )
            else:
                decision = await self.governor.adecide(action)
                outcome = ToolOutcome(action, "denied", decision=decision)
            if not decision.blocks:
                changed = decision.arguments
                kept.append(call if changed is None else replace(call, arguments=json.dumps(dict(changed))))
                continue
            await self.governor.arecord(outcome)
            if decision.fault or decision.abort:
                self._refuse_if_blocked(decision)
            told.append(decision.denial_message())
        return (
            reply.tool_calls if len(kept) == len(reply.tool_calls) and not _differ(kept, reply) else tuple(kept)
        ), told

    # ------------------------------------------------------------------ small things

    def _covers(self, point: Point) -> bool:
        """Whether anybody would judge at ``point``."""
        covered = self._covered.get(point)
        if covered is None:
            covered = any(_judges(policy, point) for policy in self.governor.policies)
            if all(isinstance(policy, PolicySet) for policy in self.governor.policies):  # they do not change
                self._covered[point] = covered
        return covered or bool(getattr(self.governor.manager.hook, _HOOKS[point]).get_hookimpls())

    @staticmethod
    def _refuse_if_blocked(decision: Decision) -> None:
        if decision.blocks:
            status = 503 if decision.fault else 403 if decision.abort else 200
            raise GateRefusal(decision.denial_message(), status=status, decision_id=decision.decision_id)


def open_gate(
    policy: str | os.PathLike[str],
    *,
    audit: str | os.PathLike[str],
    store: TraceStore | None = None,
    timeout_s: float = 2.0,
    redact: Sequence[str] = (),
) -> PolicyGate:
    """A gate for the policy file ``policy`` that commits its decisions to the audit record at ``audit``.

    The record does not keep the values of arguments that are named in ``redact``.
    With a ``store``, what was denied or changed is written there as spans and rewards. Whoever opens it closes it. Raises
    `LgovError` for a file that does not load or a record that cannot be opened.
    """
    from lgov_core.audit import AuditLog, default_signer
    from lgov_core.policies import load_policy_file
    from lgov_core.reward.air import AirPlugin

    rules = load_policy_file(Path(policy))
    log = AuditLog(audit, policy_digest=rules.digest or "", signer=default_signer(), redact=redact or None)
    try:
        plugins = [] if store is None else [AirPlugin(), _Kept(store)]
        return PolicyGate(Governor(rules, plugins=plugins, audit=log, timeout_s=timeout_s), owns=[log])
    except BaseException:
        log.close()
        raise


class _Kept:
    """Writes to the store what policies did; that they allowed everything is in the audit record."""

    def __init__(self, store: TraceStore) -> None:
        from lgov_core.trace.sink import StoreSink

        self._sink = StoreSink(store, content=False)

    @hookimpl
    def lgov_observe(self, event: Any) -> None:
        """See `lgov_core.hookspecs.lgov_observe`."""
        if not isinstance(event, ObservedDecision) or event.decision.effect > Effect.ALLOW:
            self._sink.lgov_observe(event)


def _judges(policy: Policy, point: Point) -> bool:
    rules = policy.rules if isinstance(policy, PolicySet | ReloadingPolicySet) else None
    return rules is None or any(point in rule.on for rule in rules)


def _action(
    point: Point,
    name: str,
    kind: Any,
    asked: GateRequest,
    *,
    arguments: Mapping[str, Any] | None = None,
    text: str | None = None,
    operation: bool = True,
) -> Action:
    return Action(
        point,
        name,
        kind,
        {} if arguments is None else arguments,
        text,
        asked.agent,
        FRAMEWORK,
        rollout_id=asked.rollout_id,
        attempt=asked.attempt,
        operation_id=asked.operation_id if operation else None,
    )


def _rewritten(sent: Sequence[Mapping[str, Any]], wanted: Any) -> list[Mapping[str, Any]]:
    """The messages as a policy left them. Raises `ValueError` unless only texts differ."""
    found = cast("Sequence[Mapping[str, Any]]", wanted) if isinstance(wanted, Sequence) else ()
    if len(found) != len(sent):
        raise ValueError("a policy added or removed messages")
    for old, new in zip(sent, found, strict=True):
        if not isinstance(new.get("content"), str) or {**old, "content": ""} != {**new, "content": ""}:
            raise ValueError("a policy changed more of a message than its text")
    return list(found)


def _failed(error: Exception) -> GateRefusal:
    return GateRefusal(
        f"DENIED by policy lgov/gate-failed: the judgement of this call failed ({type(error).__name__}).", status=503
    )


def _differ(kept: Sequence[ToolCall], reply: GateReply) -> bool:
    return any(new is not old for new, old in zip(kept, reply.tool_calls, strict=True))


def _user_text(asked: GateRequest) -> str:
    return "\n".join(one["content"] for one in asked.messages if one["role"] == "user" and one["content"])


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that ``text`` is; None where two readers could read it differently. No text is ``{}``."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found
