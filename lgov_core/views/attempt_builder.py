"""Puts an attempt together from a trace store.

Everything is joined by id: a tool call to the model call that proposed it, a decision and a reward to the call they
name, a call to the agent run whose span it is inside of. An id that models write again is that of the call in the same
conversation (`ByConversation`). Rows that name no known call are listed apart, never attached to the nearest one. A model call
comes from the endpoint's record or, without an endpoint, from the span of an adapter.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from lgov_core.errors import StoreError
from lgov_core.store import TraceStore
from lgov_core.trace import semconv
from lgov_core.trace.canonical import as_object, canonical
from lgov_core.trace.rollout_spans import attempt_of
from lgov_core.transitions.calls import RecordedConversations
from lgov_core.transitions.spans import ByConversation
from lgov_core.types import BLOCKING, Attempt, CapturedCall, JSONValue, Reward, Rollout, Span
from lgov_core.views.attempt_view import (
    AttemptView,
    Message,
    ModelStep,
    RecordedDecision,
    RewardLine,
    ToolStep,
)
from lgov_core.views.conversations import AgentTree, AttemptConversations

_Rows = tuple[Sequence[CapturedCall], Sequence[Span], Sequence[Reward]]
#: A tool call: the place of the step that proposed it and its id; or None, its conversation, and its id or that of its span.
_Call = tuple[int | None, str, str]


class NotRecorded(StoreError):
    """There is nothing on record by that name."""


def first_denied(store: TraceStore, rollout_id: str | None = None, attempt: int | None = None) -> tuple[str, int]:
    """The rollout and attempt of the first decision that blocked something, or would have, of all or of those named.

    Raises `NotRecorded`.
    """
    blocked = store.pages.first_blocked(rollout_id, attempt)
    if blocked is None:
        what = "no rollout in this store was" if rollout_id is None else f"rollout {rollout_id} was not"
        raise NotRecorded(f"{what} denied anything", hint="lgov traces list shows what there is")
    return blocked


def read_attempt(store: TraceStore, rollout_id: str, attempt: int | None = None) -> AttemptView:
    """The view of one attempt; the last one when ``attempt`` is None. Raises `NotRecorded` if there is none.

    Calls and spans of an attempt that nobody opened are shown as one that never ended.
    """
    rollouts = store.rollouts(ids=[rollout_id])
    attempts = {attempt.attempt: attempt for attempt in store.attempts([rollout_id])}
    opened = frozenset(attempts)
    rows = (list(store.calls([rollout_id])), store.spans([rollout_id]), store.rewards([rollout_id]))
    for seen in (*rows[0], *rows[1]):
        if (number := seen.attempt or 1) not in attempts:
            attempts[number] = Attempt(rollout_id, number, seen.started_at)
    if not rollouts and attempts:
        rollouts = [Rollout(rollout_id, rollout_id, "", {}, min(attempt.started_at for attempt in attempts.values()))]
    if not rollouts:
        raise NotRecorded(
            f"there is no rollout {rollout_id} in this store", hint="lgov traces list shows what there is"
        )
    chosen = attempt if attempt is not None else max(attempts, default=1)
    if chosen not in attempts:
        there = ", ".join(str(number) for number in sorted(attempts)) or "none"
        raise NotRecorded(f"rollout {rollout_id} has no attempt {chosen}", hint=f"its attempts: {there}")
    view = _AttemptBuilder(rollouts[0], attempts[chosen], attempts.values(), rows).build()
    return view if chosen in opened else replace(view, opened=False)


class _AttemptBuilder:
    """The rows of one attempt, indexed by the calls they name."""

    def __init__(self, rollout: Rollout, attempt: Attempt, attempts: Collection[Attempt], rows: _Rows) -> None:
        number, (calls, spans, rewards) = attempt.attempt, rows
        self.rollout, self.attempt, self.attempts = rollout, attempt, len(attempts)
        self.calls = [call for call in calls if (call.attempt or 1) == number]
        self.recorded = RecordedConversations(calls)
        self.choices = Counter(call.response_id for call in self.calls)
        self.of_tool: dict[str, list[Reward]] = defaultdict(list)
        self.of_response: dict[str, list[Reward]] = defaultdict(list)
        self.own: list[Reward] = []
        for reward in rewards:
            if attempt_of(reward, attempts, calls) != number:
                continue
            if reward.tool_call_id is not None:
                self.of_tool[reward.tool_call_id].append(reward)
            elif reward.response_id is not None:
                self.of_response[reward.response_id].append(reward)
            else:
                self.own.append(reward)
        self.chats: list[Span] = []
        self.decisions: list[Span] = []
        self.tools: list[Span] = []
        captured = {call.response_id for call in self.calls}
        own = [span for span in spans if span.attempt in (number, None)]
        self.tree = AgentTree(own)
        # `lgov run` records the command: nobody has said where a run of the agent in it begins
        self.conversations = AttemptConversations(self.tree, apart=set(rollout.input) == {"command"})
        #: By step the tool calls that its reply proposes, and the places of the steps by the ids of those.
        self.proposed: list[list[Mapping[str, Any]]] = []
        self.proposals: ByConversation[int] = ByConversation()
        #: Ids that several replies use: which of the calls a reward means is unknown.
        self.repeated: set[str] = set()
        for span in own:
            if span.claimed:
                self._add_claim(canonical(span))
            elif span.name == semconv.DECISION_SPAN_NAME:
                self.decisions.append(span)
            elif span.attributes.get(semconv.TOOL_STATUS) is not None:
                self.tools.append(span)
            elif _is_model_call(span) and span.attributes.get(semconv.RESPONSE_ID) not in captured:
                self.chats.append(span)
        self.by_span = {span.span_id: span for span in self.tools if not span.claimed}

    def _add_claim(self, span: Span) -> None:
        """Keeps a tool call reported from outside, to show where nothing was recorded here; reported decisions are ignored."""
        if span.attributes.get(semconv.OPERATION) == semconv.EXECUTE_TOOL or semconv.TOOL_STATUS in span.attributes:
            self.tools.append(span)

    def _call_of(self, span: Span) -> _Call | None:
        """The tool call that a span is of; None for a decision that no tool call has."""
        call_id = _text(span.attributes.get(semconv.TOOL_CALL_ID))
        if span.name == semconv.DECISION_SPAN_NAME:
            tool = self.by_span.get(span.parent_id or "")
            if tool is not None and tool.span_id != call_id == tool.attributes.get(semconv.TOOL_CALL_ID):
                return self._call_of(tool)
            if call_id is None:
                return None
        if call_id is None:
            return None, "", span.span_id  # no model proposed it as such: AutoGen's runs of code
        conversation = self.conversations.of_decision(span, None)
        if (step := self.proposals.find(call_id, conversation, span.started_at)) is not None:
            return step, "", call_id
        return None, conversation, call_id if span.name == semconv.DECISION_SPAN_NAME else span.span_id

    def build(self) -> AttemptView:
        """Takes every row once; rows that no step took are listed apart."""
        model_calls: list[CapturedCall | Span] = [*self.calls, *self.chats]
        if self.chats:  # without them, the calls keep their recorded order
            model_calls.sort(key=lambda call: call.started_at)
        steps = [
            self._step(turn, model_call)
            if isinstance(model_call, CapturedCall)
            else self._step_of_span(turn, model_call)
            for turn, model_call in enumerate(model_calls, start=1)
        ]
        self._join()
        proposed = [
            [self._tool((at, "", str(call.get("id", ""))), *_named(call)) for call in calls]
            for at, calls in enumerate(self.proposed)
        ]
        loose_tools: list[ToolStep] = []
        for call in list(dict.fromkeys([*self.span_of, *self.decisions_of])):
            span = self.span_of.get(call)
            name = self.decisions_of[call][0].action if span is None else _first(span.attributes, semconv.TOOL_NAME)
            tool, is_proposed = self._tool(call, name, ""), span is None or semconv.TOOL_CALL_ID in span.attributes
            before = [
                at for at, step in enumerate(steps) if (step.ended_at or math.inf) <= (tool.started_at or -math.inf)
            ]
            (proposed[before[-1]] if before and not is_proposed else loose_tools).append(tool)
        steps = [replace(step, tools=tuple(tools)) for step, tools in zip(steps, proposed, strict=True)]
        loose_rewards = [
            reward for rewards in (*self.of_tool.values(), *self.of_response.values()) for reward in rewards
        ]
        rollout, attempt = self.rollout, self.attempt
        return AttemptView(
            rollout_id=rollout.rollout_id,
            task_id=rollout.task_id,
            run_id=rollout.run_id,
            input=rollout.input,
            attempt=attempt.attempt,
            attempts=self.attempts,
            outcome=attempt.outcome,
            error=attempt.error,
            result=attempt.result,
            steps=tuple(steps),
            loose_tools=tuple(loose_tools),
            decisions=tuple(
                replace(decision, conversation=self.conversations.of_decision(span, decision.response_id))
                for span in self.decisions
                if self._call_of(span) is None
                for decision in [_decision(span, self.tree)]
            ),
            rewards=_lines(self.own),
            loose_rewards=_lines(loose_rewards),
            agents=self.tree.runs,
        )

    def _step(self, turn: int, call: CapturedCall) -> ModelStep:
        messages, message = self._said(call)
        usage = call.response.get("usage") if self.choices[call.response_id] == 1 else None  # else it is of all choices
        return ModelStep(
            turn=turn,
            response_id=call.response_id,
            model=call.model,
            weights_version=call.weights_version,
            prompt_tokens=_count(call.prompt_ids, usage, "prompt_tokens", "input_tokens"),
            response_tokens=_count(call.response_ids, usage, "completion_tokens", "output_tokens"),
            has_tokens=call.prompt_ids is not None and call.response_ids is not None,
            finish_reason=call.finish_reason,
            seen=_new_messages(messages),
            wrote=_content(message.get("content")),
            tools=(),
            rewards=_lines(self._take(call)),
            choice=call.choice,
            agent=call.agent,
            agent_span=self.tree.run_of_call(call.response_id, call.agent),
            conversation=self._conversation(turn, call, call.response_id, messages, message),
            started_at=call.started_at,
            ended_at=call.ended_at,
        )

    def _said(self, call: CapturedCall) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]:
        """The messages of a call of any route, and its reply; what cannot be read as messages is left out."""
        if (read := self.recorded(call)) is not None:
            return _mappings(list(read.messages)), read.reply
        prompt = call.request.get("prompt")
        choices = _mappings(call.response.get("choices")) or [{}]
        message = choices[0].get("message")
        reply = message if isinstance(message, dict) else {"content": choices[0].get("text")}
        messages = [{"role": "prompt", "content": prompt}] if prompt else _mappings(call.request.get("messages"))
        return messages, cast("Mapping[str, Any]", reply)

    def _take(self, call: CapturedCall) -> list[Reward]:
        """The rewards on a call; of several choices of a reply each has those that name it."""
        named = self.of_response.pop(call.response_id, [])
        taken = [reward for reward in named if reward.choice in (None, call.choice)]
        if others := [reward for reward in named if reward.choice not in (None, call.choice)]:
            self.of_response[call.response_id] = others
        return taken

    def _step_of_span(self, turn: int, span: Span) -> ModelStep:
        attributes = span.attributes
        replies = _messages(attributes.get(semconv.OUTPUT_MESSAGES))
        message = replies[0] if replies else {}
        response_id = _first(attributes, semconv.RESPONSE_ID)
        messages = _messages(attributes.get(semconv.INPUT_MESSAGES))
        reasons = attributes.get(semconv.FINISH_REASONS)
        reason = str(reasons[0]) if isinstance(reasons, list) and reasons else ""
        return ModelStep(
            turn=turn,
            response_id=response_id,
            model=_first(attributes, semconv.RESPONSE_MODEL, semconv.REQUEST_MODEL),
            weights_version=None,
            prompt_tokens=read if isinstance(read := attributes.get(semconv.INPUT_TOKENS), int) else None,
            response_tokens=written if isinstance(written := attributes.get(semconv.OUTPUT_TOKENS), int) else None,
            finish_reason=_first(attributes, semconv.ERROR_TYPE) or reason,
            seen=_new_messages(messages),
            wrote=_content(message.get("content")),
            tools=(),
            rewards=_lines(self.of_response.pop(response_id, ())) if response_id else (),
            captured=False,
            agent=_first(attributes, semconv.AGENT_NAME) or None,
            agent_span=self.tree.run_of(span),
            conversation=self._conversation(turn, span, response_id or span.span_id, messages, message),
            started_at=span.started_at,
            ended_at=span.ended_at,
        )

    def _conversation(
        self,
        turn: int,
        call: CapturedCall | Span,
        response_id: str,
        messages: Sequence[Mapping[str, Any]],
        reply: Mapping[str, Any],
    ) -> str:
        """The conversation of a step, whose proposals it keeps."""
        conversation = self.conversations.of_call(turn, call, response_id, messages, reply)
        self.proposed.append(_mappings(reply.get("tool_calls")))
        for call_id in {str(proposal.get("id", "")) for proposal in self.proposed[-1]}:
            self.repeated |= {call_id} if call_id in self.proposals else set()
            self.proposals.add(call_id, conversation, call.started_at, turn - 1)
        return conversation

    def _join(self) -> None:
        """Finds by tool call its span and its decisions; a claim only where nothing was recorded here."""
        self.span_of: dict[_Call, Span] = {}
        self.decisions_of: dict[_Call, list[RecordedDecision]] = defaultdict(list)
        for span in sorted(self.tools, key=lambda span: (span.claimed, span.started_at)):
            call = self._call_of(span)
            if call is not None and not (span.claimed and call in self.span_of):
                self.span_of[call] = span
        for span in self.decisions:
            if (call := self._call_of(span)) is not None:
                self.decisions_of[call].append(_decision(span, self.tree))

    def _tool(self, call: _Call, name: str, arguments: str) -> ToolStep:
        span, decisions = self.span_of.pop(call, None), tuple(self.decisions_of.pop(call, ()))
        attributes: Mapping[str, JSONValue] = {} if span is None else span.attributes
        call_id = _first(attributes, semconv.TOOL_CALL_ID) or call[2]
        judged = next((decision.about for decision in decisions if decision.about), "")
        return ToolStep(
            call_id=call_id,
            name=name,
            arguments=arguments or _first(attributes, semconv.TOOL_ARGUMENTS) or judged,
            decisions=decisions,
            status=_status(span),
            result=_text(attributes.get(semconv.TOOL_RESULT)),
            error=_first(attributes, semconv.ERROR_MESSAGE, semconv.ERROR_TYPE) or None,
            rewards=_lines(() if call_id in self.repeated else self.of_tool.pop(call_id, ())),
            claimed=span is not None and span.claimed,
            kind=_first(attributes, semconv.TOOL_TYPE),
            started_at=None if span is None else span.started_at,
            ended_at=None if span is None else span.ended_at,
        )


def _status(span: Span | None) -> str | None:
    if span is None:
        return None
    status = _text(span.attributes.get(semconv.TOOL_STATUS))
    if status or not span.claimed:
        return status
    return "ok" if span.attributes.get(semconv.ERROR_TYPE) is None else "error"


def subject_of(attributes: Mapping[str, JSONValue]) -> str | None:
    """The facts that a decision is about: the arguments of the call, or the host asked for; None where not recorded."""
    if (arguments := _text(attributes.get(semconv.TOOL_ARGUMENTS))) is not None:
        return arguments
    host = _first(attributes, semconv.SERVER_ADDRESS)
    return f"{host}:{_first(attributes, semconv.SERVER_PORT)}" if host else None


def _decision(span: Span, tree: AgentTree) -> RecordedDecision:
    attributes = span.attributes
    latency = attributes.get(semconv.DECISION_LATENCY_US)
    return RecordedDecision(
        point=_first(attributes, semconv.POINT),
        action=_first(attributes, semconv.ACTION_NAME),
        effect=_first(attributes, semconv.DECISION_EFFECT),
        policy=_first(attributes, semconv.DECISION_POLICY),
        rule=_first(attributes, semconv.DECISION_RULE),
        reason=_first(attributes, semconv.DECISION_REASON),
        severity=_first(attributes, semconv.DECISION_SEVERITY),
        decision_id=_text(attributes.get(semconv.DECISION_ID)),
        blocks=attributes.get(semconv.DECISION_EFFECT) in BLOCKING,
        would=_first(attributes, semconv.DECISION_WOULD),
        at=span.started_at,
        latency_us=float(latency) if isinstance(latency, int | float) else None,
        response_id=_first(attributes, semconv.CALL_ID) or tree.response_of(span.parent_id),
        about=subject_of(attributes),
        sources=_sources(attributes.get(semconv.DECISION_SOURCES)),
    )


def _sources(recorded: Any) -> dict[str, list[str]]:
    """The texts of each argument out of an attribute, which anybody may have written."""
    sources = as_object(recorded) if isinstance(recorded, str) else None
    return {name: list(map(str, texts)) for name, texts in (sources or {}).items() if isinstance(texts, list)}


def _lines(rewards: Iterable[Reward]) -> tuple[RewardLine, ...]:
    return tuple(RewardLine(reward.dimension, reward.value, reward.source) for reward in rewards)


def _count(ids: Sequence[int] | None, usage: JSONValue, *names: str) -> int | None:
    """How many tokens were recorded or, without token ids, how many the server's ``usage`` reports."""
    if ids is not None:
        return len(ids)
    counts = (usage.get(name) for name in names) if isinstance(usage, dict) else ()
    return next((count for count in counts if isinstance(count, int)), None)


def _text(value: JSONValue) -> str | None:
    return None if value is None else str(value)


def _first(attributes: Mapping[str, JSONValue], *names: str) -> str:
    """The first of the named attributes that is set, or ""."""
    return next((text for name in names if (text := _text(attributes.get(name)))), "")


def _named(proposed: Mapping[str, Any]) -> tuple[str, str]:
    """The name and the arguments of a proposed call, as an endpoint has it or as an adapter's span."""
    function = proposed.get("function") or proposed
    arguments = function.get("arguments", function.get("args", ""))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return str(function.get("name", "")), written


def _is_model_call(span: Span) -> bool:
    """True for the span of a model call with its reply or its error."""
    attributes = span.attributes
    return attributes.get(semconv.OPERATION) == semconv.CHAT and (
        semconv.OUTPUT_MESSAGES in attributes or semconv.ERROR_TYPE in attributes
    )


def _messages(text: JSONValue) -> list[Mapping[str, Any]]:
    """The messages in an attribute of a span; none where it holds something else."""
    try:
        return _mappings(json.loads(text)) if isinstance(text, str) else []
    except ValueError:
        return []


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _new_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages after the model's last reply: on its first turn all of them."""
    replies = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    new = messages[replies[-1] + 1 :] if replies else messages
    return tuple(Message(str(message.get("role", "")), _content(message.get("content"))) for message in new)


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(map(_part, content if isinstance(content, list) else [content]))


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return f"[{type(part).__name__}]"
    return str(part["text"]) if "text" in part else f"[{part.get('type', 'part')}]"
