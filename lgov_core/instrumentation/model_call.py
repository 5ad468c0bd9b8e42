"""One model call: the actions that are judged around it, and its span. `model_flow` puts them in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lgov_core._util.json_text import readable_json
from lgov_core.errors import LgovError, PolicyDenied
from lgov_core.flow import Flow
from lgov_core.governor import Governor
from lgov_core.instrumentation.conversation_memory import UserText
from lgov_core.instrumentation.live_span import LiveSpan
from lgov_core.trace import semconv
from lgov_core.types import Action, Decision, JSONValue, ModelCallFailed, Point, Source
from lgov_core.wire.exchange import unclear_ids
from lgov_core.wire.turns import ModelReading

#: The rule by which a reply is refused that cannot be read for certain.
UNREADABLE_REPLY: Final = "unreadable-reply"

#: Connections that were never made. Of an ``APIConnectionError`` the cause says whether the request was sent.
_NOT_CONNECTED = frozenset({"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "PoolTimeout"})


class _UnseenSpan(LiveSpan):
    """Stands for the span of a call that another process, or the endpoint's record, has: it is never shown."""

    __slots__ = ()

    def __init__(self, observer: Governor) -> None:
        self.observer, self.operation, self.name, self.attributes = observer, "", "", {}
        self.scope = self.trace_id = self.parent_id = None
        self.span_id = self.run_id = ""
        self.session_id = None
        self.ended, self._otel, self._unrecorded, self.started_at = True, None, None, 0.0

    def set(self, attributes: Mapping[str, JSONValue]) -> None:
        """Does nothing."""


class ModelCall:
    """One model call: the actions that are judged around it, and its span, which begins here and must be ended.

    `lgov_core.instrumentation.model_flow.model_flow` judges `request` (and before it `user_text`, once for each new text of
    the user), ends the span by `answered`, and judges the reply by `reply_flow`, then `output` where it proposes no tool
    call. A call that was refused is ended by `refused`, one without a reply by `failed`. The adapter sends it inside
    ``span.active(model=governor)``. ``parent`` is the parent span, if not the current one.
    """

    def __init__(
        self,
        governor: Governor,
        *,
        framework: str,
        model: str,
        agent: str | None = None,
        native: Any = None,
        parent: LiveSpan | None = None,
    ) -> None:
        self.governor = governor
        self._further: Mapping[str, Any] = {}
        self._context: Mapping[str, Any] = {}
        self._first: ModelReading | None = None
        attributes: dict[str, JSONValue] = {
            semconv.REQUEST_MODEL: model,
            semconv.AGENT_NAME: agent,
            semconv.FRAMEWORK: framework,
        }
        self.span = LiveSpan(governor, semconv.CHAT, model, attributes, parent=parent)
        self._action = Action(
            Point.PRE_MODEL_CALL,
            name=model,
            kind="model",
            agent=agent,
            framework=framework,
            operation_id=f"op_{self.span.span_id}",
            native=native,
            span_id=self.span.span_id,
            run_id=self.span.run_id,
            session_id=self.span.session_id,
        )

    @classmethod
    def unseen(cls, governor: Governor, action: Action) -> ModelCall:
        """A call that has no span: the process that makes it, or the endpoint's record, has one. ``action`` names it."""
        call = cls.__new__(cls)
        call.governor, call.span, call._action = governor, _UnseenSpan(governor), action
        call._further, call._context, call._first = {}, {}, None
        return call

    def user_text(self, text: UserText) -> Action:
        """A text in the user's role, to be judged before the model sees it."""
        if not text.nested:
            return self._text_action(Point.INPUT, text.text, "user")
        action = self._text_action(Point.INPUT, text.text, "agent")
        return action.changed(parent_id=self.span.parent_id or self.span.span_id or None)

    def request(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        user_text: Sequence[str] = (),
        **further: Any,
    ) -> Action:
        """The call, to be judged before it is sent: ``messages`` as role/content mappings, and further arguments.

        ``tools`` are the definitions that the model gets, as JSON values, and ``user_text`` the texts among the messages
        that are top-level input; both are in the action's context, with the kinds of ``media`` in the messages, as a text.
        """
        kinds = {media["kind"] for message in messages for media in message.get("media", ())}
        self._context = {**self._context, "media": ", ".join(sorted(kinds))}
        if tools is not None:
            self._context = {**self._context, "tools": list(tools)}
        if user_text:
            self._context = {**self._context, "user_text": list(user_text)}
        if self.governor.capture_content:
            self.span.set({semconv.INPUT_MESSAGES: readable_json(messages)})
        self._further = further
        return self._action.changed(arguments={"messages": list(messages), **further}, context=self._context)

    def changed_request(self, messages: Sequence[Mapping[str, Any]]) -> Action:
        """The call with other messages than `request` had, to be judged in its place."""
        return self.request(messages, **self._further)

    def judge_request_flow(
        self,
        action: Action,
        take: Callable[[Sequence[Mapping[str, Any]]], None],
        take_fields: Callable[[Any], None] | None = None,
    ) -> Flow[Decision]:
        """Judges the request ``action``, as `request` or `changed_request` made it.

        ``take`` gets the messages of a transform, ``take_fields`` its ``fields``, where the request has any. Where they
        raise (it is not what can be sent), the call is denied, on record, as ``lgov/unclear-transform``.
        """
        decision = yield from self.governor.decision_flow(action)
        if decision.blocks or decision.arguments is None:
            return decision
        try:
            messages: Any = decision.arguments.get("messages")
            if not isinstance(messages, list | tuple) or not all(isinstance(message, Mapping) for message in messages):
                raise ValueError("they are not a list of mappings")
            take(messages)
            if take_fields is not None and "fields" in action.arguments:
                take_fields(decision.arguments.get("fields"))
        except Exception:  # noqa: BLE001 - whatever it is, the messages are not sent
            self.overtaken()
            reason = "a policy rewrote the messages in a way that cannot be sent"
            return self.governor.refuse(action, "unclear-transform", reason)
        return decision

    def overtaken(self) -> None:
        """Tells stateful policies that the call is not sent as it was judged: it is judged again, or refused."""
        self.governor.observe(ModelCallFailed(self._action, "Changed", refused=True))

    def refused(self, decision: Decision) -> None:
        """Ends the span of a call that was not sent. Raises `PolicyDenied` where the decision says abort."""
        self.span.set({semconv.DECISION_ID: decision.decision_id})
        self.span.end("denied")
        if decision.abort:
            raise PolicyDenied(decision)

    def failed(self, error: BaseException, *, refused: bool | None = None) -> None:
        """Ends the span of a call without a reply, and shows the failure to stateful policies.

        ``refused``: the model certainly did not run; None reads that from the error.
        """
        self.span.end(error)
        refused = was_refused(error) if refused is None else refused
        self.governor.observe(ModelCallFailed(self._action, type(error).__name__, refused))

    def ended(self, error: BaseException | None = None) -> None:
        """Ends the span of a call that brought nothing to judge, or was not sent for ``error``."""
        self.span.end(error)

    def unreadable(self, error: Exception) -> None:
        """Ends the span of a call whose reply raises ``error`` where it is read.

        Raises `PolicyDenied`, after the denial is on record, unless the governor only observes.
        """
        self.failed(error)
        if not self.governor.observe_only:
            raise PolicyDenied(self.refuse_reply(ModelReading(""), "it is not a complete reply of this API")) from error

    def answered(self, reading: ModelReading) -> None:
        """Ends the span with the reply."""
        usage = reading.usage or {}
        message: dict[str, Any] = {"role": "assistant", "content": reading.text}
        if reading.tool_calls:
            message["tool_calls"] = [dict(call) for call in reading.tool_calls]
        content = self.governor.capture_content
        self.span.set(
            {
                semconv.RESPONSE_ID: reading.response_id,
                semconv.RESPONSE_MODEL: reading.response_model,
                semconv.FINISH_REASONS: [reading.finish_reason] if reading.finish_reason else None,
                semconv.INPUT_TOKENS: usage.get("input_tokens"),
                semconv.OUTPUT_TOKENS: usage.get("output_tokens"),
                semconv.OUTPUT_MESSAGES: readable_json([message]) if content else None,
            }
        )
        self.span.end()

    def reply_flow(self, reading: ModelReading) -> Flow[Decision]:
        """Judges the reply before the agent acts on it.

        One whose calls cannot be told apart is refused, on record: a decision, a transform and a result each belong to
        exactly one call.
        """
        problem = reading.unreadable or unclear_ids(reading.tool_calls)
        if problem is not None and not self.governor.observe_only:
            return self.refuse_reply(reading, problem)
        return (yield from self.governor.decision_flow(self.reply(reading)))

    def refuse_reply(self, reading: ModelReading, problem: str) -> Decision:
        """The recorded denial of a reply that cannot be read for certain."""
        reason = f"the model's reply cannot be read for certain: {problem}; ask the model again"
        return self.governor.refuse(self.reply(reading), UNREADABLE_REPLY, reason)

    def reply(self, reading: ModelReading) -> Action:
        """The reply, as policies see it. Of several only the first ends the call's operation, so that it counts once."""
        self._first = self._first or reading
        arguments: dict[str, Any] = {"tool_calls": list(reading.tool_calls)}
        if reading.usage is not None:
            arguments["usage"] = dict(reading.usage)
        if reading.fields:
            arguments["fields"] = reading.fields
        action = self._action.changed(
            point=Point.POST_MODEL_CALL,
            arguments=arguments,
            text=reading.text,
            source="agent",
            call_id=reading.response_id,
            context={**self._action.context, "finish_reason": reading.finish_reason},
        )
        return action if reading is self._first else replace(action, operation_id=None)

    def output(self, text: str) -> Action:
        """The final answer, to be judged before the caller gets it."""
        return self._text_action(Point.OUTPUT, text, "agent")

    def _text_action(self, point: Point, text: str, source: Source) -> Action:
        call = self._action
        return Action(
            point,
            name=call.agent or "agent",
            kind="text",
            text=text,
            agent=call.agent,
            framework=call.framework,
            session_id=call.session_id,
            rollout_id=call.rollout_id,
            attempt=call.attempt,
            source=source,
            native=call.native,
            span_id=self.span.parent_id,
            run_id=call.run_id,
        )


def reply_limit(*limits: Any) -> dict[str, int]:
    """The limit on the reply's tokens, as an argument of `ModelCall.request`: the first of ``limits`` that is one."""
    limit = next((value for value in limits if type(value) is int and value > 0), None)
    return {} if limit is None else {"max_output_tokens": limit}


def was_refused(error: BaseException) -> bool:
    """Returns whether the model certainly did not run: its server answered with an error status or was unreachable."""
    if isinstance(error, LgovError):
        return getattr(error, "refused", False)
    seen: BaseException | None = error
    while seen is not None:
        status = getattr(seen, "status_code", None)
        if (isinstance(status, int) and status >= 400 and status != 504) or type(seen).__name__ in _NOT_CONNECTED:
            return True
        seen = seen.__cause__
    return False
