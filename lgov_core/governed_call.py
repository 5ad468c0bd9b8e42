"""The steps of a governed tool call and of a governed model call, the same for every framework.

An adapter translates: it says what the call is (an `Action`), how to run it, and how to read what came back. The order
of things stands here, once: judge, refuse or run, record, judge what came back; and the span around it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lgov_core.coverage import CoveredCall
from lgov_core.errors import PolicyDenied
from lgov_core.governor import UNJUDGED, Governor
from lgov_core.json_writing import json_writer
from lgov_core.trace import semconv
from lgov_core.trace.live import LiveSpan
from lgov_core.types import (
    Action,
    Decision,
    JSONValue,
    ModelCallFailed,
    Point,
    ToolOutcome,
    ToolStatus,
    draft_class,
)

T = TypeVar("T")

_NESTED = frozenset({dict, list})

_OutcomeDraft = draft_class(ToolOutcome)

_NOT_CONNECTED = frozenset(
    {"APIConnectionError", "ConnectError", "ConnectTimeout", "ConnectionRefusedError", "PoolTimeout"}
)


# What follows is made for every call, and a frozen dataclass sets each of its fields by a call.


@dataclass(slots=True)
class ToolReading:
    """What a tool gave back, as the model will read it, and whether the tool says that it failed. Nobody changes it."""

    text: str
    status: ToolStatus = "ok"
    error_type: str | None = None
    error: str | None = None


@dataclass(slots=True)
class GovernedResult(Generic[T]):
    """How a tool call ended; nobody changes it.

    ``decision`` is the last one taken: before the call if that refused it, else after it. ``ran`` says whether the tool
    ran. ``result`` is what it returned, None if it did not run or the result is withheld. ``text`` replaces what the model
    reads, where a policy rewrote it; ``told`` is what the model reads instead of a result that it does not get, else None.
    """

    decision: Decision
    ran: bool
    result: T | None = None
    text: str | None = None

    @property
    def told(self) -> str | None:
        """The denial in words for the model, or None if nothing was denied."""
        return self.decision.tell(after=self.ran) if self.decision.blocks else None


def own_arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments for ourselves, as far as JSON goes: what others change inside of theirs was not judged.

    A list that a tool sorts or empties is still in the record as it was proposed.
    """
    try:
        own = dict(arguments)
        return own if _NESTED.isdisjoint(map(type, own.values())) else _own(own)
    except RecursionError:  # deeper than any policy reads
        return arguments


def _own(value: Any) -> Any:
    if type(value) is dict:
        return {key: _own(part) if type(part) in _NESTED else part for key, part in value.items()}  # type: ignore[misc]
    return [_own(part) if type(part) in _NESTED else part for part in value]


class ToolCall:
    """One tool call on its way: what its judgements, its outcome and its span are made from.

    `govern_tool` and `agovern_tool` go through it in the right order. An adapter that does not see the tool run (the model
    proposes a call, and what came of it is read in a later request) takes the steps itself: judge `action`, then record
    `denied`, or `finish` with what `returned` and record that. The span begins here and must be ended by one of them.
    """

    def __init__(self, governor: Governor, action: Action, parent: LiveSpan | None = None) -> None:
        self.governor = governor
        attributes = _tool_attributes(action, governor.capture_content)
        self.span = LiveSpan(governor, semconv.EXECUTE_TOOL, action.name, attributes, parent=parent)
        span_id = self.span.span_id
        self.action = action.changed(
            arguments=own_arguments(action.arguments),
            span_id=span_id,
            operation_id=action.operation_id or f"op_{span_id}",
        )
        self._given = action.arguments
        self.started_at = self.span.started_at
        self.clock = time.perf_counter()
        self.covered = CoveredCall(governor, action.name, self.action.arguments, action.call_id, action=self.action)

    def permitted(self, decision: Decision) -> Mapping[str, Any]:
        """The arguments to run with."""
        if decision.arguments is None:
            return self._given
        self.covered.arguments = own_arguments(decision.arguments)
        return decision.arguments

    @property
    def as_run(self) -> Action:
        """The call as it ran: as it was proposed, unless somebody changed it after that was judged."""
        return self.covered.action or self.action

    def denied(self, decision: Decision) -> ToolOutcome:
        """Ends the span of a call that does not run; the outcome has to be recorded."""
        outcome = self._denied(decision)
        self._ended(outcome)
        return outcome

    def _denied(self, decision: Decision) -> ToolOutcome:
        return ToolOutcome(self.as_run, "denied", decision=decision, started_at=self.started_at)

    def returned(self, decision: Decision, reading: ToolReading) -> ToolOutcome:
        """What came of a call that ended: denied, if what it had been changed to was not to run."""
        error_type, error = reading.error_type, None
        if reading.status != "ok":
            if self.covered.refused is not None:
                return self._denied(self.covered.refused)
            raised = self.covered.raised  # what the framework made a text of
            error_type = error_type or (type(raised).__name__ if raised is not None else None)
            error = reading.error or (str(raised) if raised is not None else None) or reading.text
        outcome = _OutcomeDraft()
        outcome.action = self.as_run
        outcome.status = reading.status
        outcome.result = reading.text
        outcome.error_type = error_type
        outcome.error = error
        outcome.decision = decision
        outcome.started_at = self.started_at
        outcome.duration_s = time.perf_counter() - self.clock
        outcome.__class__ = ToolOutcome
        return outcome

    def raised(self, decision: Decision, error: BaseException) -> ToolOutcome:
        """What came of a call that raised: denied, if what it had been changed to was not to run."""
        if self.covered.refused is not None:
            return self._denied(self.covered.refused)
        return ToolOutcome(
            self.as_run,
            failure_status(error),
            error_type=type(error).__name__,
            error=str(error),
            decision=decision,
            started_at=self.started_at,
            duration_s=time.perf_counter() - self.clock,
        )

    def finish(self, outcome: ToolOutcome) -> bool:
        """Ends the span; returns whether the outcome still has to be recorded."""
        self._ended(outcome)
        return not self.covered.recorded

    def result_action(self, reading: ToolReading, result: Any) -> Action:
        """The result, to be judged before the model reads it."""
        action = self.as_run
        return action.changed(
            point=Point.POST_TOOL_CALL,
            text=reading.text,
            context={**action.context, "tool_status": reading.status},
            native=result,
        )

    def _ended(self, outcome: ToolOutcome) -> None:
        said: dict[str, JSONValue] = {semconv.TOOL_STATUS: outcome.status, semconv.TOOL_RESULT: outcome.result}
        if outcome.decision is not None and outcome.decision.decision_id is not None:
            said[semconv.DECISION_ID] = outcome.decision.decision_id
        if outcome.status == "ok":
            self.span.set(said)
            self.span.end()
        else:
            self.span.set({**said, semconv.ERROR_MESSAGE: outcome.error})
            self.span.end(outcome.error_type or outcome.status)


def govern_tool(
    governor: Governor,
    action: Action,
    run: Callable[[Mapping[str, Any]], T],
    read: Callable[[T], ToolReading],
    *,
    is_pause: Callable[[BaseException], bool] | None = None,
    raise_abort: bool = True,
    parent: LiveSpan | None = None,
) -> GovernedResult[T]:
    """Judges ``action``, runs it if it may run, records what came of it and judges the result.

    ``run`` gets the arguments as the policies left them, and runs inside the call's span; what it raises is recorded
    and raised on, except that an error for which ``is_pause`` is true (the framework only interrupts the run) records
    nothing. A decision that says abort raises `PolicyDenied`, unless ``raise_abort`` is false. ``parent`` is the span that
    the call's stands under, if not the current one. Callable from any thread. Fails closed.
    """
    call = ToolCall(governor, action, parent)
    decision = UNJUDGED if governor.only_watches else governor.decide(call.action)
    if decision.blocks:
        governor.record(call.denied(decision))
        return _refused(decision, raise_abort)
    try:
        with call.span.active(tool=call.covered):
            result = run(call.permitted(decision))
            reading = read(result)
    except BaseException as error:
        if is_pause is not None and is_pause(error):
            call.span.end()
        elif call.finish(outcome := call.raised(decision, error)):
            governor.record(outcome)
        raise
    if call.finish(outcome := call.returned(decision, reading)):
        governor.record(outcome)
    if outcome.status == "denied" and outcome.decision is not None:
        return _refused(outcome.decision, raise_abort)
    if governor.only_watches:
        return GovernedResult(decision, ran=True, result=result)
    return _judged(governor.decide(call.result_action(reading, result)), result, raise_abort)


async def agovern_tool(
    governor: Governor,
    action: Action,
    run: Callable[[Mapping[str, Any]], Awaitable[T]],
    read: Callable[[T], ToolReading],
    *,
    is_pause: Callable[[BaseException], bool] | None = None,
    raise_abort: bool = True,
    parent: LiveSpan | None = None,
) -> GovernedResult[T]:
    """As `govern_tool`, for asynchronous agents."""
    call = ToolCall(governor, action, parent)
    try:
        decision = UNJUDGED if governor.only_watches else await governor.adecide(call.action)
    except BaseException as error:  # cancelled while a policy was thinking: nothing has run
        call.span.end(error)
        raise
    if decision.blocks:
        await governor.arecord(call.denied(decision))
        return _refused(decision, raise_abort)
    try:
        with call.span.active(tool=call.covered):
            result = await run(call.permitted(decision))
            reading = read(result)
    except BaseException as error:
        if is_pause is not None and is_pause(error):
            call.span.end()
        elif call.finish(outcome := call.raised(decision, error)):
            governor.record(outcome)  # not awaited: a cancelled task has no more time to wait
        raise
    if call.finish(outcome := call.returned(decision, reading)):
        await governor.arecord(outcome)
    if outcome.status == "denied" and outcome.decision is not None:
        return _refused(outcome.decision, raise_abort)
    if governor.only_watches:
        return GovernedResult(decision, ran=True, result=result)
    return _judged(await governor.adecide(call.result_action(reading, result)), result, raise_abort)


def _refused(decision: Decision, raise_abort: bool) -> GovernedResult[Any]:
    if decision.abort and raise_abort:
        raise PolicyDenied(decision)
    return GovernedResult(decision, ran=False)


def _judged(decision: Decision, result: T, raise_abort: bool) -> GovernedResult[T]:
    if not decision.blocks:
        return GovernedResult(decision, ran=True, result=result, text=decision.text)
    if decision.abort and raise_abort:
        raise PolicyDenied(decision)
    return GovernedResult(decision, ran=True)


#: How mcp 2 and mcp 1 say that a server did not answer in time.
_MCP_ERRORS = frozenset({"MCPError", "McpError"})
_MCP_TIMEOUTS = frozenset({-32001, 408})


def failure_status(error: BaseException) -> ToolStatus:
    """What a tool that raised ``error`` is recorded as."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if type(error).__name__ in _MCP_ERRORS and getattr(getattr(error, "error", None), "code", None) in _MCP_TIMEOUTS:
        return "timeout"
    # Arguments that do not fit are a ValidationError of either pydantic generation.
    return "invalid_args" if type(error).__name__ == "ValidationError" else "error"


def _tool_attributes(action: Action, content: bool) -> dict[str, JSONValue]:
    return {
        semconv.TOOL_NAME: action.name,
        semconv.TOOL_TYPE: action.kind,
        semconv.TOOL_CALL_ID: action.call_id,
        semconv.AGENT_NAME: action.agent,
        semconv.FRAMEWORK: action.framework,
        semconv.TOOL_ARGUMENTS: json_text(action.arguments) if content else None,
    }


# ---------------------------------------------------------------------- models


@dataclass(slots=True)
class ModelReading:
    """What a model wrote; nobody changes it. ``tool_calls`` are mappings with ``id``, ``name`` and ``args``.

    ``usage`` is ``{"input_tokens": int, "output_tokens": int}`` where the model said so. ``response_id`` must be the
    id that the endpoint gave to the reply: by it this call and the endpoint's record of it are joined.
    """

    text: str
    tool_calls: Sequence[Mapping[str, Any]] = ()
    usage: Mapping[str, int] | None = None
    response_id: str | None = None
    response_model: str | None = None
    finish_reason: str | None = None


class ModelCall:
    """One model call: the actions that are judged around it, and its span, which begins here and must be ended.

    The adapter judges `request` (and before it `user_text`, once for each new text of the user), sends the call inside
    ``span.active(model=governor)``, ends the span by `answered` or `failed`, and judges `reply`, then `output` where the reply
    proposes no tool call. A call that was refused is ended by `refused`. ``parent`` is the span that the call's stands
    under, if not the current one.
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
        self._who = framework, model, agent, native
        attributes: dict[str, JSONValue] = {
            semconv.REQUEST_MODEL: model,
            semconv.AGENT_NAME: agent,
            semconv.FRAMEWORK: framework,
        }
        self.span = LiveSpan(governor, semconv.CHAT, model, attributes, parent=parent)
        self._made: Action | None = None

    @property
    def _action(self) -> Action:
        """The call, made when somebody first has a use for it: where nobody judges, hardly ever."""
        if self._made is None:
            framework, model, agent, native = self._who
            self._made = Action(
                Point.PRE_MODEL_CALL,
                name=model,
                kind="model",
                agent=agent,
                framework=framework,
                operation_id=f"op_{self.span.span_id}",
                native=native,
                span_id=self.span.span_id,
            )
        return self._made

    def user_text(self, text: str, *, nested: bool = False) -> Action:
        """What the user said, to be judged before the model sees it. ``nested``: another agent said it."""
        return self._text_action(Point.INPUT, text, parent_id=self.span.parent_id if nested else None)

    def request(self, messages: Sequence[Mapping[str, Any]], **further: Any) -> Action:
        """The call, to be judged before it is sent: ``messages`` as role/content mappings, and further arguments."""
        if self.governor.capture_content:
            self.span.set({semconv.INPUT_MESSAGES: json_text(messages)})
        self._further = further
        return self._action.changed(arguments={"messages": list(messages), **further})

    def changed_request(self, messages: Sequence[Mapping[str, Any]]) -> Action:
        """The call with other messages than `request` had, to be judged in its place."""
        return self.request(messages, **self._further)

    def overtaken(self) -> None:
        """Says to the policies that keep count that the call is not sent as it was judged: it is changed and judged anew."""
        self.governor.observe(ModelCallFailed(self._action, "Changed", refused=True))

    def said(self, messages: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        """Notes what is sent, where nobody judges it; ``messages`` gives what `request` takes, and is asked if it is kept.

        What it raises is no reason not to send: then the messages are not noted.
        """
        if self.governor.capture_content:
            try:
                self.span.set({semconv.INPUT_MESSAGES: json_text(messages())})
            except Exception:  # noqa: BLE001 - as said above
                return

    def refused(self, decision: Decision) -> None:
        """Ends the span of a call that was not sent. Raises `PolicyDenied` where the decision says abort."""
        self.span.set({semconv.DECISION_ID: decision.decision_id})
        self.span.end("denied")
        if decision.abort:
            raise PolicyDenied(decision)

    def failed(self, error: BaseException) -> None:
        """Ends the span of a call that brought no reply, and says so to the policies that keep count."""
        self.span.end(error)
        self.governor.observe(ModelCallFailed(self._action, type(error).__name__, was_refused(error)))

    def answered(self, reading: ModelReading) -> None:
        """Ends the span with what came back."""
        usage = reading.usage or {}
        content = self.governor.capture_content
        self.span.set(
            {
                semconv.RESPONSE_ID: reading.response_id,
                semconv.RESPONSE_MODEL: reading.response_model,
                semconv.FINISH_REASONS: [reading.finish_reason] if reading.finish_reason else None,
                semconv.INPUT_TOKENS: usage.get("input_tokens"),
                semconv.OUTPUT_TOKENS: usage.get("output_tokens"),
                semconv.OUTPUT_MESSAGES: json_text([_reply_mapping(reading)]) if content else None,
            }
        )
        self.span.end()

    def reply(self, reading: ModelReading) -> Action:
        """The reply, to be judged before the agent acts on it."""
        arguments: dict[str, Any] = {"tool_calls": list(reading.tool_calls)}
        if reading.usage is not None:
            arguments["usage"] = dict(reading.usage)
        return self._action.changed(
            point=Point.POST_MODEL_CALL,
            arguments=arguments,
            text=reading.text,
            call_id=reading.response_id,
            context={**self._action.context, "finish_reason": reading.finish_reason},
        )

    def output(self, text: str) -> Action:
        """The final answer, to be judged before the caller gets it."""
        return self._text_action(Point.OUTPUT, text)

    def _text_action(self, point: Point, text: str, parent_id: str | None = None) -> Action:
        call = self._action
        return Action(
            point,
            name=call.agent or "agent",
            kind="text",
            text=text,
            agent=call.agent,
            framework=call.framework,
            parent_id=parent_id,
            native=call.native,
            span_id=self.span.parent_id,
        )


def _reply_mapping(reading: ModelReading) -> dict[str, Any]:
    mapping: dict[str, Any] = {"role": "assistant", "content": reading.text}
    if reading.tool_calls:
        mapping["tool_calls"] = [dict(call) for call in reading.tool_calls]
    return mapping


def rewritten_arguments(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Mapping[str, Any] | None] | None:
    """The arguments that a transform gave the calls of a message, in order; None for each call that it left as it was.

    None where more than the message's text and arguments was changed, or where the message has no calls.
    """
    old, new = before.get("tool_calls"), after.get("tool_calls")
    if not old or not isinstance(new, Sequence) or len(new) != len(old):
        return None
    if {**before, "content": None, "tool_calls": None} != {**after, "content": None, "tool_calls": None}:
        return None
    found: list[Mapping[str, Any] | None] = []
    for was, call in zip(old, new, strict=True):
        if not isinstance(call, Mapping) or {**was, "args": None} != {**call, "args": None}:
            return None
        if call["args"] == was["args"]:
            found.append(None)
        elif isinstance(call["args"], Mapping):
            found.append(call["args"])
        else:
            return None
    return found


def was_refused(error: BaseException) -> bool:
    """Whether the model certainly did not run: its server answered with an error status, or could not be reached."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(getattr(seen, "status_code", None), int) or type(seen).__name__ in _NOT_CONNECTED:
            return True
        seen = seen.__cause__
    return False


_WRITE = json_writer(default=str, ascii_only=False, separators=(", ", ": "))


def json_text(value: Any) -> str:
    """Any value as JSON, for spans; what JSON cannot say is written with ``str``."""
    try:
        plain = type(value) in (dict, list) or not isinstance(value, Mapping)
        return _WRITE(value if plain else dict(value))
    except (TypeError, ValueError, RecursionError):
        return str(value)
