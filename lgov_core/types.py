"""The values that flow through lgov. All are frozen: whoever holds one may share it between threads and tasks.

Ids are strings chosen by whoever creates the thing; times are Unix seconds as ``float``; durations are seconds unless the
name says otherwise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

JSONValue: TypeAlias = "bool | int | float | str | Sequence[JSONValue] | Mapping[str, JSONValue] | None"

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def draft_class(of: type[Any]) -> type[Any]:
    """A class whose objects can be filled field by field and then become ``of``, a frozen dataclass with slots.

    Made so (``draft.__class__ = of`` at the end), one takes a fifth of the time: its own constructor sets each field by a
    call. Every field has to be set. For what is made at every call.
    """
    return type(f"_{of.__name__}Draft", (), {"__slots__": tuple(of.__dataclass_fields__)})


def new_id(prefix: str) -> str:
    """A fresh id such as ``call_6f1c…``: the prefix, an underscore and 24 random hex digits."""
    return f"{prefix}_{os.urandom(12).hex()}"


class Point(StrEnum):
    """Where in an agent's life a judgement happens: the eight points of AGENT-HOOKS-0.1."""

    AGENT_STARTUP = "agent_startup"
    INPUT = "input"
    PRE_MODEL_CALL = "pre_model_call"
    POST_MODEL_CALL = "post_model_call"
    PRE_TOOL_CALL = "pre_tool_call"
    POST_TOOL_CALL = "post_tool_call"
    OUTPUT = "output"
    AGENT_SHUTDOWN = "agent_shutdown"


class Effect(IntEnum):
    """What a decision does, ordered by severity: the greatest of several wins."""

    ALLOW = 0
    WARN = 1
    TRANSFORM = 2
    ESCALATE = 3
    DENY = 4

    @property
    def label(self) -> str:
        """The name in lower case, as it is written in records."""
        return _EFFECT_LABELS[self]


_EFFECT_LABELS = tuple(effect.name.lower() for effect in Effect)


class Severity(StrEnum):
    """How bad the thing is that a decision found."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


Kind: TypeAlias = Literal["function", "handoff", "agent", "mcp", "shell", "hosted", "model", "text"]


@dataclass(frozen=True, slots=True, init=False)
class Action:
    """What is about to happen (or, at a ``post_`` point, what just came back) and who does it.

    ``arguments`` is what the tool will be called with, or for a model call ``{"messages": [...]}``; ``text`` is the text
    judged at ``input``, ``output``, ``post_model_call`` and ``post_tool_call``. ``call_id`` is the framework's id of the
    tool call (the ``tool_call_id`` the model wrote) or of the model call. ``operation_id`` is the same on every action
    that belongs to one call, before and after it, so that what was reserved before finds what was used; it is chosen by
    the adapter, and None where an adapter cannot know. After a model call ``arguments`` may hold ``usage``
    (``{"input_tokens": int, "output_tokens": int}``). ``context`` is what the caller knows about the circumstances:
    ``user_text`` (what the user has said so far), ``dialect`` (of the database behind a tool), after a call
    ``tool_status`` (a `ToolStatus`) or ``finish_reason``, and whatever a rule's condition may ask for.
    ``native`` is the framework's own object, so that a policy made for one framework loses nothing. Neither is recorded.
    ``parent_id`` is set when the agent works for another agent: its input is then not the user's. ``span_id`` is the span
    under which the adapter shows the call; None where it shows none.
    """

    point: Point
    name: str
    kind: Kind = "function"
    arguments: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    text: str | None = None
    agent: str | None = None
    framework: str | None = None
    session_id: str | None = None
    rollout_id: str | None = None
    attempt: int | None = None
    call_id: str | None = None
    parent_id: str | None = None
    operation_id: str | None = None
    context: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    native: Any = field(default=None, repr=False, compare=False)
    span_id: str | None = field(default=None, compare=False)

    def __init__(
        self,
        point: Point,
        name: str,
        kind: Kind = "function",
        arguments: Mapping[str, Any] = _NOTHING,
        text: str | None = None,
        agent: str | None = None,
        framework: str | None = None,
        session_id: str | None = None,
        rollout_id: str | None = None,
        attempt: int | None = None,
        call_id: str | None = None,
        parent_id: str | None = None,
        operation_id: str | None = None,
        context: Mapping[str, Any] = _NOTHING,
        native: Any = None,
        span_id: str | None = None,
    ) -> None:
        # What a dataclass would write, in a third of the time, as `decision_of` does: every decision begins here.
        if type(point) is not Point:
            # A policy compares points by identity: a plain "pre_tool_call" must not slip past it.
            point = Point(point)
        own: Any = type(self)
        draft: Any = self
        if own is Action:
            object.__setattr__(self, "__class__", _ActionDraft)
        else:  # a class made from it, whose objects have another layout
            draft = _ActionDraft()
        draft.point = point
        draft.name = name
        draft.kind = kind
        draft.arguments = arguments
        draft.text = text
        draft.agent = agent
        draft.framework = framework
        draft.session_id = session_id
        draft.rollout_id = rollout_id
        draft.attempt = attempt
        draft.call_id = call_id
        draft.parent_id = parent_id
        draft.operation_id = operation_id
        draft.context = context
        draft.native = native
        draft.span_id = span_id
        if draft is self:
            draft.__class__ = own
        else:
            for slot in Action.__dataclass_fields__:
                object.__setattr__(self, slot, getattr(draft, slot))

    def changed(
        self,
        *,
        point: Point | None = None,
        arguments: Mapping[str, Any] | None = None,
        text: str | None = None,
        call_id: str | None = None,
        operation_id: str | None = None,
        context: Mapping[str, Any] | None = None,
        native: Any = None,
        span_id: str | None = None,
    ) -> Action:
        """The same action with what is given in place of its own; None leaves what was there."""
        draft = _ActionDraft()
        draft.point = self.point if point is None else point
        draft.name = self.name
        draft.kind = self.kind
        draft.arguments = self.arguments if arguments is None else arguments
        draft.text = self.text if text is None else text
        draft.agent = self.agent
        draft.framework = self.framework
        draft.session_id = self.session_id
        draft.rollout_id = self.rollout_id
        draft.attempt = self.attempt
        draft.call_id = self.call_id if call_id is None else call_id
        draft.parent_id = self.parent_id
        draft.operation_id = self.operation_id if operation_id is None else operation_id
        draft.context = self.context if context is None else context
        draft.native = self.native if native is None else native
        draft.span_id = self.span_id if span_id is None else span_id
        draft.__class__ = Action
        return draft


_ActionDraft = draft_class(Action)


@dataclass(frozen=True, slots=True)
class Decision:
    """The judgement of one action.

    ``effect`` is what happens; ``blocks`` is true for deny and escalate. ``arguments`` (or ``text``) replaces the
    action's own when the effect is transform; on a combined decision it may also be set beside a warn.
    ``abort`` asks for the end of the run instead of a message to the model. ``parts`` holds the decisions that were
    combined into this one, in the order in which they were taken. ``decision_id`` is the id of its audit entry, set
    once the entry is committed. ``latency_us`` is the time the judgement took, in microseconds, without the commit.
    ``shadowed`` is true when the policy set only watches: the effect recorded in ``parts`` was not enforced.
    ``fault`` is true when the act was denied because the judgement itself failed (a policy that raised or was late, a
    record that could not be written): it says something about the machines and nothing about the agent, so it is no
    violation and earns no penalty.
    """

    effect: Effect
    policy: str
    rule: str = ""
    reason: str = ""
    severity: Severity = Severity.LOW
    abort: bool = False
    arguments: Mapping[str, Any] | None = None
    text: str | None = None
    parts: tuple[Decision, ...] = ()
    decision_id: str | None = None
    latency_us: float = 0.0
    shadowed: bool = False
    fault: bool = False

    @property
    def blocks(self) -> bool:
        """Whether the act must not go on."""
        return self.effect >= Effect.ESCALATE

    def changed(
        self,
        *,
        policy: str | None = None,
        rule: str | None = None,
        reason: str | None = None,
        severity: Severity | None = None,
        arguments: Mapping[str, Any] | None = None,
        decision_id: str | None = None,
        shadowed: bool | None = None,
    ) -> Decision:
        """The same decision with what is given in place of its own; None leaves what was there."""
        return decision_of(
            self.effect,
            self.policy if policy is None else policy,
            self.rule if rule is None else rule,
            self.reason if reason is None else reason,
            self.severity if severity is None else severity,
            self.abort,
            self.arguments if arguments is None else arguments,
            self.text,
            self.parts,
            self.decision_id if decision_id is None else decision_id,
            self.latency_us,
            self.shadowed if shadowed is None else shadowed,
            self.fault,
        )

    def denial_message(self, *, after: bool = False) -> str:
        """What the model reads instead of a result: what stands in the way, why, and what to do about it.

        A denial says that asking again will not help. An escalation says that somebody has to approve first. ``after``:
        the call was made, and what is denied is its result.
        """
        where = f"{self.policy}/{self.rule}" if self.rule else self.policy
        reason = (self.reason or "not allowed").rstrip(".")
        if after:
            return f"DENIED by policy {where}: {reason}. It was run, but its result is withheld; do not repeat it."
        if self.effect is Effect.ESCALATE:
            return (
                f"NOT RUN YET, needs approval by policy {where}: {reason}. Do something else meanwhile, or say that you are"
                " waiting; once it is approved, make exactly the same call again."
            )
        return f"DENIED by policy {where}: {reason}. It was not run; do not repeat it."


_DecisionDraft = draft_class(Decision)


def decision_of(
    effect: Effect,
    policy: str,
    rule: str,
    reason: str,
    severity: Severity = Severity.LOW,
    abort: bool = False,
    arguments: Mapping[str, Any] | None = None,
    text: str | None = None,
    parts: tuple[Decision, ...] = (),
    decision_id: str | None = None,
    latency_us: float = 0.0,
    shadowed: bool = False,
    fault: bool = False,
) -> Decision:
    """As ``Decision(...)``, in a fifth of the time, for the path of every decision."""
    draft = _DecisionDraft()
    draft.effect = effect
    draft.policy = policy
    draft.rule = rule
    draft.reason = reason
    draft.severity = severity
    draft.abort = abort
    draft.arguments = arguments
    draft.text = text
    draft.parts = parts
    draft.decision_id = decision_id
    draft.latency_us = latency_us
    draft.shadowed = shadowed
    draft.fault = fault
    draft.__class__ = Decision
    return draft


ALLOW = Decision(Effect.ALLOW, policy="lgov", rule="default", reason="Nothing speaks against it.")


class Outcome(StrEnum):
    """How an attempt ended. ``infrastructure`` and ``timeout`` never become a training reward."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    BLOCKED = "blocked"
    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"

    @property
    def trainable(self) -> bool:
        """Whether the attempt says something about the policy rather than about the machines."""
        return self not in (Outcome.INFRASTRUCTURE, Outcome.TIMEOUT)


ToolStatus: TypeAlias = Literal["ok", "error", "denied", "timeout", "invalid_args", "unknown_tool"]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """What came of one tool call. ``action`` is the call as the model proposed it; ``error_type`` is a class name."""

    action: Action
    status: ToolStatus
    result: str | None = None
    error_type: str | None = None
    error: str | None = None
    decision: Decision | None = None
    started_at: float = field(default_factory=time.time)
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelCallFailed:
    """A model call that was allowed and brought no reply. ``action`` is the call; ``error_type`` is a class name.

    ``refused`` is true when it is certain that the model did not run: the server answered with an error, or could not be
    reached. After a timeout or a lost connection nobody knows.
    """

    action: Action
    error_type: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Reward:
    """One number on one target.

    The target is explicit, never guessed: a tool call (``tool_call_id``: credited to the model call that proposed it), a
    model call (``response_id``), or, with neither set, the attempt as a whole. ``dimension`` keeps channels apart
    (``task``, ``air``, ``compliance``). ``value`` must be finite. ``choice`` says which choice of a reply of several
    (``n`` > 1) is meant, from 0; where it does not, the one that the attempt went on with is.
    """

    value: float
    dimension: str = "task"
    rollout_id: str | None = None
    attempt: int | None = None
    response_id: str | None = None
    tool_call_id: str | None = None
    source: str = ""
    reward_id: str = field(default_factory=lambda: new_id("rwd"))
    choice: int | None = None


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one moment of a span; ``at`` is in Unix seconds."""

    name: str
    at: float
    attributes: Mapping[str, JSONValue] = field(default_factory=dict[str, "JSONValue"])


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that happened, in GenAI semantic-convention names plus ``lgov.*`` (see ``lgov_core.trace``).

    ``span_id`` is unique in a store; ``trace_id`` is the OpenTelemetry trace of a span that came from one, else None.
    ``claimed`` is true for a span that came in from outside: what it says may feed training, and is no evidence of what
    a policy decided.
    """

    name: str
    span_id: str
    started_at: float
    ended_at: float | None
    attributes: Mapping[str, JSONValue]
    rollout_id: str | None = None
    attempt: int | None = None
    parent_id: str | None = None
    trace_id: str | None = None
    events: tuple[SpanEvent, ...] = ()
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Rollout:
    """One task handed to an agent. ``task_id`` names the group: rollouts of one task are compared with each other."""

    rollout_id: str
    task_id: str
    run_id: str
    input: Mapping[str, JSONValue]
    created_at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a rollout. ``outcome`` is None while it runs; ``error`` says what went wrong, for people."""

    rollout_id: str
    attempt: int
    started_at: float
    ended_at: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    result: JSONValue = None


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """One model call exactly as the endpoint served it.

    ``prompt_ids`` and ``response_ids`` are token ids (int); ``logprobs`` are the behaviour log-probabilities of
    ``response_ids`` at the temperature sampled, same length, or None when an upstream did not give them; both id lists
    are None when an upstream did not give them. ``weights_version`` counts the weights published so far (0 = as loaded;
    None = unknown upstream). ``tool_call_ids`` are the ids given to the tool calls parsed from the reply, so that a
    tool's reward finds the call that proposed it. ``request`` and ``response`` are the JSON bodies.

    A reply of several choices (``n`` > 1) is as many calls with one ``response_id``, told apart by ``choice`` (from 0).
    ``route`` is the API that was spoken: ``chat``, ``responses``, ``messages`` or ``completions``.
    """

    response_id: str
    model: str
    request: Mapping[str, Any]
    response: Mapping[str, Any]
    prompt_ids: tuple[int, ...] | None
    response_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    finish_reason: str
    weights_version: int | None
    temperature: float
    top_p: float
    started_at: float
    ended_at: float
    rollout_id: str | None = None
    attempt: int | None = None
    agent: str | None = None
    tool_call_ids: tuple[str, ...] = ()
    engine: str = ""
    choice: int = 0
    route: str = "chat"
