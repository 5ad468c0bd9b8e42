"""Records: spans, rollouts, attempts, and model calls as the endpoint served them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lgov_core.types.actions import JSONValue
from lgov_core.types.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event at one moment of a span; ``at`` is in Unix seconds."""

    name: str
    at: float
    attributes: Mapping[str, JSONValue] = field(default_factory=dict[str, "JSONValue"])


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that happened, in GenAI semantic-convention names plus ``lgov.*`` (see ``lgov_core.trace``).

    ``span_id`` is unique in a store; ``trace_id`` is the OpenTelemetry trace of a span that came from one, else None.
    ``claimed`` is true for a span received from another program: it may feed training, and is not evidence of what a
    policy decided.
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


#: The ``mode`` of rollouts to train on. With any other they measure a model: agent-lightning writes ``val``, a
#: `GovernedRunner` ``eval``, the trainer ``test``.
TRAIN_MODE: Final = "train"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One task handed to an agent. ``task_id`` names the group: rollouts of one task are compared with each other.

    ``input`` holds the task and what the rollout is for: ``mode``, or agent-lightning's ``is_train``.
    """

    rollout_id: str
    task_id: str
    run_id: str
    input: Mapping[str, JSONValue]
    created_at: float = field(default_factory=time.time)

    @property
    def mode(self) -> str | None:
        """The purpose of the rollout; None where ``input`` does not say."""
        mode = self.input.get("mode")
        return mode if isinstance(mode, str) else "val" if self.input.get("is_train") is False else None

    @property
    def held_out(self) -> bool:
        """True where the rollout measures the model, so that nothing is trained on it."""
        return self.mode not in (None, TRAIN_MODE)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a rollout. ``outcome`` is None while it runs; ``error`` is a message for people.

    ``result`` is what its runner kept of it, under ``counts`` the governor's counts. ``task_id`` is that of its rollout where a
    training collected the attempt, else empty.
    """

    rollout_id: str
    attempt: int
    started_at: float
    ended_at: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    result: JSONValue = None
    task_id: str = ""

    @property
    def trainable(self) -> bool:
        """It has ended, and by the agent's doing: not by a machine's failure or a timeout."""
        return self.outcome is not None and self.outcome.trainable

    @property
    def counts(self) -> Mapping[str, int]:
        """The governor's counts: ``model_calls``, ``tool_calls``, ``denied``, ``violations``; empty where none are kept."""
        kept: Any = self.result.get("counts") if isinstance(self.result, Mapping) else None
        return kept if isinstance(kept, Mapping) else {}


@dataclass(frozen=True, slots=True)
class CapturedCall:
    """One model call exactly as the endpoint served it.

    ``prompt_ids`` and ``response_ids`` are token ids (int); ``logprobs`` are the behaviour log-probabilities of
    ``response_ids`` at the temperature sampled, same length, or None when the upstream returned none; both id lists are
    None when the upstream returned none. ``weights_version`` counts the weights published so far (0 = as loaded;
    None = unknown upstream). ``tool_call_ids`` are the ids of the tool calls parsed from the reply, by which a
    tool's reward is attributed to the call that proposed it. ``request`` and ``response`` are the JSON bodies.

    A reply of several choices (``n`` > 1) is one call per ``choice`` (from 0), all with the same ``response_id``.
    ``route`` is the API: ``chat``, ``responses``, ``messages`` or ``completions``.
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
