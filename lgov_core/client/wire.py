"""The messages between client and server, as JSON values. Both sides use these functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, cast

from lgov_core.types import Outcome, Reward, Span, SpanEvent

#: Of this form of talking. A client and a server of different numbers do not work together.
PROTOCOL: Final = 1
PROTOCOL_HEADER: Final = "x-lgov-protocol"
VERSION_HEADER: Final = "x-lgov-version"

#: States of a run after which nothing comes.
ENDED: Final = frozenset({"done", "failed", "stopped"})


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at a task, for a worker. ``model_api`` is where its agent calls the model; ``timeout_s`` bounds it in
    seconds.
    """

    rollout_id: str
    attempt: int
    task_id: str
    mode: str
    task: Mapping[str, Any]
    model_api: str
    model: str
    timeout_s: float

    @property
    def key(self) -> tuple[str, int]:
        """Rollout and attempt."""
        return self.rollout_id, self.attempt


@dataclass(frozen=True, slots=True)
class Report:
    """How an attempt ended, as its worker saw it.

    A reward names the call that earned it, or none: then it is the attempt's. ``counts`` are the governor's, and
    ``bad_reward``. ``result`` are JSON values that are kept with the attempt. An agent may return a report instead of a reward.
    """

    outcome: Outcome
    rewards: tuple[Reward, ...] = ()
    spans: tuple[Span, ...] = ()
    error: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    result: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_json(self) -> dict[str, Any]:
        """It as JSON values."""
        return {
            "outcome": self.outcome.value,
            "rewards": [asdict(reward) for reward in self.rewards],
            "spans": [_span_json(span) for span in self.spans],
            "error": self.error,
            "counts": dict(self.counts),
            "result": dict(self.result),
        }

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Report:
        """Reads what `as_json` wrote. Raises ValueError for anything else."""
        try:
            return cls(
                Outcome(value["outcome"]),
                tuple(map(_read_reward, value["rewards"])),
                tuple(map(_read_span, value["spans"])),
                None if value["error"] is None else str(value["error"]),
                {str(name): int(count) for name, count in value["counts"].items()},
                dict(value["result"]),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no report of an attempt: {error!r}") from error


_REWARD: Final = tuple(field.name for field in fields(Reward))


def _read_reward(value: Any) -> Reward:
    raw = _mapping(value, "a reward")
    texts = ("rollout_id", "response_id", "tool_call_id", "source", "reward_id")
    if isinstance(raw.get("value"), bool) or not isinstance(raw.get("value"), int | float):
        raise ValueError("the value of a reward is not a number")
    if not isinstance(raw.get("dimension"), str) or any(not isinstance(raw.get(name), str | None) for name in texts):
        raise ValueError("the names in a reward are not text")
    return Reward(**{name: raw[name] for name in _REWARD if raw.get(name) is not None})


def _span_json(span: Span) -> dict[str, Any]:
    events = [[event.name, event.at, dict(event.attributes)] for event in span.events]
    names = ("name", "span_id", "started_at", "ended_at", "rollout_id", "attempt", "parent_id", "trace_id")
    return {**{name: getattr(span, name) for name in names}, "attributes": dict(span.attributes), "events": events}


def _read_span(value: Any) -> Span:
    """The span that `_span_json` wrote, as a claim: it came from outside."""
    raw = _mapping(value, "a span")
    if not isinstance(raw.get("name"), str) or not isinstance(raw.get("span_id"), str):
        raise ValueError("a span without name or id")
    if not isinstance(raw.get("started_at"), int | float) or not isinstance(raw.get("ended_at"), int | float | None):
        raise ValueError("the times of a span are not numbers")
    try:
        events = tuple(SpanEvent(str(name), float(at), dict(more)) for name, at, more in raw.get("events") or ())
    except (TypeError, ValueError) as error:
        raise ValueError("the events of a span cannot be read") from error
    return Span(
        raw["name"],
        raw["span_id"],
        float(raw["started_at"]),
        None if raw.get("ended_at") is None else float(raw["ended_at"]),
        _mapping(raw.get("attributes", {}), "the attributes of a span"),
        raw.get("rollout_id"),
        raw.get("attempt"),
        raw.get("parent_id"),
        raw.get("trace_id"),
        events,
        claimed=True,
    )


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is not an object")
    return cast("Mapping[str, Any]", value)
