"""Where the time of a training went: in its rollouts by part, in updates, in publishing. Pure; loads nothing heavy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lgov_core.trace import semconv
from lgov_core.train.loop.run_files import train_lines
from lgov_core.types import Attempt, CapturedCall, Span

#: The parts of a rollout. A moment that is in several of them counts for the first: a decision within a model call is
#: governance. What is in none is the agent and its framework.
PARTS: Final = ("governance", "sampling", "http", "tools", "framework")
_NAMES: Final[Mapping[str, str]] = {"framework": "agent framework", "http": "HTTP"}


def rollout_seconds(
    attempts: Iterable[Attempt], calls: Iterable[CapturedCall], spans: Iterable[Span]
) -> dict[str, float]:
    """Seconds of the attempts that ended by the agent's doing, by `PARTS`; their sum is how long they took, all together.

    ``governance`` are decisions with their record, ``sampling`` is the endpoint's time for a call, ``http`` what the agent
    waited for the reply beyond that (only of frameworks that are instrumented), ``tools`` are tool calls.
    """
    parts: defaultdict[tuple[str | None, int | None], list[tuple[float, float, str]]] = defaultdict(list)
    for call in calls:
        parts[call.rollout_id, call.attempt].append((call.started_at, call.ended_at, "sampling"))
    for span in spans:
        part = _part(span)
        if part is not None and span.ended_at is not None and not span.claimed:
            parts[span.rollout_id, span.attempt].append((span.started_at, span.ended_at, part))
    totals: dict[str, float] = {part: 0.0 for part in PARTS}
    for attempt in attempts:
        if (ended := _ended_at(attempt)) is not None:
            for part, seconds in _apart(attempt.started_at, ended, parts[attempt.rollout_id, attempt.attempt]):
                totals[part] += seconds
    return totals


def busy_seconds(attempts: Iterable[Attempt]) -> float:
    """For how long one of the attempts ran, at least, that `rollout_seconds` counts."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(
        (attempt.started_at, ended) for attempt in attempts if (ended := _ended_at(attempt)) is not None
    ):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _ended_at(attempt: Attempt) -> float | None:
    """When an attempt ended; None for one that the machines broke: when they did is not known."""
    trained = attempt.outcome is not None and attempt.outcome.trainable
    return attempt.ended_at if trained else None


def _part(span: Span) -> str | None:
    if span.name == semconv.DECISION_SPAN_NAME:
        return "governance"
    operation = span.attributes.get(semconv.OPERATION)
    return {semconv.CHAT: "http", semconv.EXECUTE_TOOL: "tools"}.get(str(operation))


def _apart(start: float, end: float, inside: Sequence[tuple[float, float, str]]) -> Iterable[tuple[str, float]]:
    """The time from ``start`` to ``end`` in pieces, each with the part that it counts for."""
    moments = [(start, "framework", 1)]
    for began, ended, part in inside:
        first, last = max(began, start), min(ended, end)
        if first < last:
            moments += [(first, part, 1), (last, part, -1)]
    moments.sort(key=lambda moment: moment[0])
    running = Counter[str]()
    for (at, part, change), (following, *_) in zip(moments, [*moments[1:], (end, "", 0)], strict=True):
        running[part] += change
        yield next(name for name in PARTS if running[name]), following - at


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds of a training's updates by part, and what was done in them.

    The time in which rollouts ran is divided as that of the rollouts was. ``waiting`` is the time before them and for those
    that were lost.
    """

    seconds: Mapping[str, float]
    rollouts: int
    tokens: int

    @property
    def total(self) -> float:
        """All seconds."""
        return sum(self.seconds.values())

    def as_json(self) -> dict[str, Any]:
        """It as JSON values, with rollouts and sampled tokens a second."""
        shares = {part: round(value / self.total, 4) for part, value in self.seconds.items()}
        seconds = {part: round(value, 3) for part, value in self.seconds.items()}
        rates = {
            "rollouts_per_s": round(self.rollouts / self.total, 3),
            "tokens_per_s": round(self.tokens / self.total, 1),
        }
        return {"seconds": seconds, "shares": shares, **rates}

    def __str__(self) -> str:
        parts = sorted(self.seconds.items(), key=lambda item: -item[1])
        shares = ", ".join(f"{_NAMES.get(part, part)} {value / self.total:.0%}" for part, value in parts)
        return f"time: {shares} of {self.total:.1f} s; {self._rates()}"

    def table(self) -> str:
        """A row a part, and the rates."""
        rows = [
            f"{_NAMES.get(part, part):<16} {value:>9.1f} s {value / self.total:>6.1%}"
            for part, value in self.seconds.items()
        ]
        return "\n".join([*rows, f"{'all':<16} {self.total:>9.1f} s", self._rates()])

    def _rates(self) -> str:
        return f"{self.rollouts / self.total:.2f} rollouts/s, {self.tokens / self.total:.1f} sampled tokens/s"


def time_spent(lines: Sequence[Mapping[str, Any]]) -> TimeSpent | None:
    """Where the time of the updates among ``lines`` of ``metrics.jsonl`` went; None where they do not say."""
    seconds: dict[str, float] = {part: 0.0 for part in (*PARTS, "waiting", "update", "publishing")}
    rollouts = tokens = 0
    for line in train_lines(lines):
        if "busy_s" not in line:
            continue
        rounds = [line, *([line["further"]] if line.get("further") else [])]
        inside = {part: sum(entry["rollout_s"][part] for entry in rounds) for part in PARTS}
        whole = sum(inside.values())
        busy = min(line["collect_s"], sum(entry["busy_s"] for entry in rounds)) if whole else 0.0
        for part in PARTS:
            seconds[part] += busy * inside[part] / whole if whole else 0.0
        seconds["waiting"] += line["collect_s"] - busy
        seconds["update"] += line["update_s"]
        seconds["publishing"] += line.get("publish_s", 0.0)
        rollouts += sum(entry["rollouts"] for entry in rounds)
        tokens += sum(entry["sampled_tokens"] for entry in rounds)
    return TimeSpent(seconds, rollouts, tokens) if sum(seconds.values()) else None
