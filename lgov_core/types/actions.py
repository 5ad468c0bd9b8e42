"""Actions: what an agent is about to do, at one of the eight points where it is judged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

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


@dataclass(slots=True)
class Action:
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

    def changed(self, **changes: Any) -> Action:
        """A copy with the given fields replaced; None leaves a field as it is (`dataclasses.replace` sets it to None)."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})
