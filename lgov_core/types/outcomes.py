"""Outcomes: how tool calls, model calls and attempts ended, and the rewards they earned."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from lgov_core.types.actions import Action, new_id
from lgov_core.types.decisions import Decision


class Outcome(StrEnum):
    """How an attempt ended. ``infrastructure`` and ``timeout`` never become a training reward.

    In a training an attempt has ``succeeded`` when its task reward is above 0.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    BLOCKED = "blocked"
    INFRASTRUCTURE = "infrastructure"
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"

    @property
    def trainable(self) -> bool:
        """True where the attempt says something about the policy rather than about the machines."""
        return self not in (Outcome.INFRASTRUCTURE, Outcome.TIMEOUT)


ToolStatus: TypeAlias = Literal["ok", "error", "denied", "timeout", "invalid_args", "unknown_tool"]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of one tool call. ``action`` is the call as the model proposed it; ``error_type`` is a class name."""

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
    """A model call that was allowed and returned no reply. ``action`` is the call; ``error_type`` is a class name.

    ``refused`` is true when the model certainly did not run: the server answered with an error, or could not be
    reached. After a timeout or a lost connection that is unknown.
    """

    action: Action
    error_type: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Reward:
    """One number on one target.

    The target is explicit, never guessed: a tool call (``tool_call_id``: credited to the model call that proposed it), a
    model call (``response_id``), or, with neither set, the attempt as a whole. ``dimension`` keeps channels apart
    (``task``, ``air``, ``compliance``). ``value`` must be finite. ``choice`` (from 0) is the choice of a reply with
    several (``n`` > 1); None means the one that the attempt continued with.
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
