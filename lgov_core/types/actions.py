"""An action, which is what an agent is about to do, and the decision on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum, StrEnum
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, Self, TypeAlias

JSONValue: TypeAlias = "bool | int | float | str | Sequence[JSONValue] | Mapping[str, JSONValue] | None"

_EMPTY: Mapping[str, Any] = MappingProxyType({})


def new_id(prefix: str) -> str:
    """A fresh id such as ``call_6f1c…``: the prefix, an underscore and 24 random hex digits."""
    return f"{prefix}_{os.urandom(12).hex()}"


class Point(StrEnum):
    """Where in an agent's life an action is judged: the eight points of AGENT-HOOKS-0.1."""

    AGENT_STARTUP = "agent_startup"
    INPUT = "input"
    PRE_MODEL_CALL = "pre_model_call"
    POST_MODEL_CALL = "post_model_call"
    PRE_TOOL_CALL = "pre_tool_call"
    POST_TOOL_CALL = "post_tool_call"
    OUTPUT = "output"
    AGENT_SHUTDOWN = "agent_shutdown"


Kind: TypeAlias = Literal["function", "handoff", "agent", "mcp", "shell", "hosted", "model", "text"]

#: Who wrote a text: the user or the program's system prompt (top-level input), or else an agent, or a tool.
Source: TypeAlias = Literal["user", "system", "agent", "tool"]


@cache
def _values_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*[each.name for each in fields(kind)])


class _Changed:
    __slots__ = ()

    def changed(self, **changes: Any) -> Self:
        """A copy with the given fields replaced; None leaves a field as it is (`dataclasses.replace` sets it to None)."""
        copied = type(self)(*_values_of(type(self))(self))  # `dataclasses.replace` takes five times as long
        for name, value in changes.items():
            if value is not None:
                setattr(copied, name, value)
        return copied


@dataclass(slots=True)
class Action(_Changed):
    """An act that is about to happen (or, at a ``post_`` point, has just returned) and the agent that does it.

    ``arguments`` is what the tool will be called with, or for a model call ``{"messages": [...]}``; ``text`` is the text
    judged at ``input``, ``output``, ``post_model_call`` and ``post_tool_call``. ``call_id`` is the framework's id of the
    tool call (the ``tool_call_id`` the model wrote) or of the model call. ``operation_id`` is the same on every action
    that belongs to one call, before and after it, so that a policy can match what it reserved before with what was used;
    the adapter chooses it, None where it cannot. After a model call ``arguments`` may hold ``usage``
    (``{"input_tokens": int, "output_tokens": int}``). ``context`` is what the caller knows about the circumstances:
    ``user_text`` (what the user has written so far), ``dialect`` (of the database behind a tool), after a call
    ``tool_status`` (a `ToolStatus`) or ``finish_reason``, and any field that a rule's condition may name.
    ``native`` is the framework's own object, for policies made for one framework. Neither is recorded.
    ``parent_id`` is set when the agent works for another agent: its input is then not the user's. ``source`` is the kind of
    who wrote ``text``: only what ``user`` or ``system`` wrote was given from outside; None where it is not known. ``span_id``
    is the span of the call, ``run_id`` that of the outermost agent run that it is in; None where the adapter opens none.

    Read-only by convention (freezing it would cost several times its construction): make a variant with `changed`.
    Raises `ValueError` for a point that does not exist.
    """

    point: Point
    name: str
    kind: Kind = "function"
    arguments: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    text: str | None = None
    agent: str | None = None
    framework: str | None = None
    session_id: str | None = None
    rollout_id: str | None = None
    attempt: int | None = None
    call_id: str | None = None
    parent_id: str | None = None
    source: Source | None = None
    operation_id: str | None = None
    context: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    native: Any = field(default=None, repr=False, compare=False)
    span_id: str | None = field(default=None, compare=False)
    run_id: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        # Policies compare points by identity, so a plain "pre_tool_call" becomes the member.
        self.point = Point(self.point)


class Effect(IntEnum):
    """The effect of a decision, ordered by severity: the greatest of several wins."""

    ALLOW = 0
    WARN = 1
    TRANSFORM = 2
    ESCALATE = 3
    DENY = 4

    @property
    def label(self) -> str:
        """The name in lower case, as it is written in records."""
        return _LABELS[self]


_LABELS = tuple(effect.name.lower() for effect in Effect)
#: The labels of the effects that block.
BLOCKING: Final = frozenset(_LABELS[Effect.ESCALATE :])


class Severity(StrEnum):
    """How bad the finding of a decision is."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


@dataclass(slots=True)
class Decision(_Changed):
    """The judgement of one action.

    ``effect`` is what happens; ``blocks`` is true for deny and escalate. ``arguments`` (or ``text``) replaces the action's
    own when the effect is transform; on a combined decision it may also be set beside a warn. ``abort`` asks for the end of
    the run instead of a message to the model. ``parts`` holds the decisions that were combined into this one, in the order in
    which they were taken, an approval's first. ``decision_id`` is the id of its audit entry, set once the entry is committed.
    ``latency_us`` is the time the judgement took, in microseconds, without the commit. ``shadowed`` is true when the policy
    set is in shadow mode: the effect recorded in ``parts`` was not enforced (`unenforced`). ``policy_digest`` is that of the
    policies of the governor that took the decision, set by it. ``fault`` is true when the act was denied because the
    judgement itself failed (a policy that raised or timed out, a record that could not be written): that is no violation and
    earns no penalty. ``request`` is the id of the request for approval behind the decision where a file keeps it, ``approval``
    the command that answers it, and ``question`` the request itself if the framework carries it to people. ``sources`` has by
    argument the texts that its value is in. ``premature`` is true where a denial says what to do first: then call again.

    Read-only by convention (freezing it would cost several times its construction): make a variant with `changed`.
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
    policy_digest: str = ""
    approval: str = ""
    question: Any = field(default=None, repr=False, compare=False)
    sources: Mapping[str, Sequence[str]] | None = None
    premature: bool = False
    request: str = ""

    @property
    def unenforced(self) -> Decision | None:
        """The most severe part that shadow mode kept from being enforced; None when nothing more severe was decided."""
        parts = (component for component in self.parts if component.shadowed and component.effect > self.effect)
        return max(parts, key=lambda component: component.effect, default=None)

    @property
    def blocks(self) -> bool:
        """True where the act must not go on."""
        return self.effect >= Effect.ESCALATE

    def denial_message(self, *, after: bool = False) -> str:
        """The text that the model reads instead of a result: which policy blocked the call, why, and what to do about it.

        To do is nothing, what comes first, to wait for approval, or to try later where the judgement failed (``fault``).
        ``after``: the call was made, and its result is denied.
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
        then = "this is a failure, so it may be tried again later" if self.fault else "do not repeat it"
        then = "do that first, then make the same call again" if self.premature else then
        return f"DENIED by policy {where}: {reason}. It was not run; {then}."


ALLOW = Decision(Effect.ALLOW, policy="lgov", rule="default", reason="Nothing speaks against it.")
