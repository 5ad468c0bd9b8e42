"""The figures of a training: estimates with 95 % intervals, a policy's figures from its rollouts, and where the time went.

A policy's figures are rewards by channel, violations, lengths, turns, and what was left out. Time is that of rollouts by part,
of updates and of publishing. Pure; loads nothing heavy.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lgov_core.errors import counted
from lgov_core.trace import semconv
from lgov_core.train.algorithms.algorithms import MOST_MOVED
from lgov_core.train.loop.run_files import train_lines
from lgov_core.transitions import CreditRules, rollout_returns
from lgov_core.transitions.messages import totals_of
from lgov_core.transitions.transition_set import Transition, TransitionSet, by_rollout
from lgov_core.types import Attempt, CapturedCall, Span

_Z = 1.959964
#: The fewest independent values of which an interval is said.
_FEWEST: Final = 3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean (or a share) with its 95 % interval, over ``count`` independent values. All NaN where there were none.

    ``low`` and ``high`` are minus and plus infinity where there are fewer than three: too few to say.
    """

    mean: float
    low: float
    high: float
    count: int

    def as_json(self) -> dict[str, float | int | None]:
        """As JSON values: what is not finite is null."""
        numbers = {"mean": self.mean, "low": self.low, "high": self.high}
        return {
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "count": self.count,
        }


def mean_interval(values: Sequence[float]) -> Estimate:
    """The mean of independent values with Student's t interval."""
    count = len(values)
    if count == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    mean = math.fsum(values) / count
    if count < _FEWEST:
        return Estimate(mean, -math.inf, math.inf, count)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = t_quantile(count - 1) * math.sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half, count)


def grouped_interval(groups: Mapping[str, Sequence[float]]) -> Estimate:
    """The mean over groups of each group's mean: values of one group (rollouts of one task) are not independent.

    ``count`` is the number of groups that have any value.
    """
    return mean_interval([math.fsum(values) / len(values) for values in groups.values() if values])


def share_interval(groups: Mapping[str, Sequence[bool]]) -> Estimate:
    """The share of true values: Wilson's interval where every group has one value, else `grouped_interval`."""
    if any(len(values) > 1 for values in groups.values()):
        interval = grouped_interval({name: [float(value) for value in values] for name, values in groups.items()})
        return Estimate(interval.mean, max(interval.low, 0.0), min(interval.high, 1.0), interval.count)
    values = [value for group in groups.values() for value in group]
    if not values:
        return Estimate(math.nan, math.nan, math.nan, 0)
    low, high = wilson_interval(sum(values), len(values)) if len(values) >= _FEWEST else (-math.inf, math.inf)
    return Estimate(sum(values) / len(values), low, high, len(values))


def wilson_interval(successes: int, count: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share (Wilson 1927)."""
    share, square = successes / count, _Z * _Z
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count * count)) / (1 + square / count)
    # At a share of 0 or 1 the bound is exact; rounding must not push it past.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == count else centre + half
    return low, high


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t distribution with the given degrees of freedom (1 or more), to 0.2 % or better.

    Exact for one and two degrees; else the expansion of Fisher and Cornish (Abramowitz and Stegun, 26.7.5).
    """
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, v = _Z, float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / v**power for power, term in enumerate(terms, 1))


#: The share of replies that may be cut off without a warning.
_CUT_OFF: Final = 0.25
#: Rollouts whose requests are looked at.
_LOOKED_AT: Final = 4


def reply_warnings(
    transitions: Sequence[Transition], calls_of: Callable[[list[str]], Iterable[CapturedCall]]
) -> dict[str, str]:
    """Warnings about the replies of an update, by name: ``replies-truncated`` (as `lgov doctor` has it), ``tokens-demanded``,
    ``replies-equal``, ``no-tool-calls``.

    ``calls_of`` reads the calls of rollouts. It is asked only when no reply has a tool call, for whether tools were offered.
    """
    warnings: dict[str, str] = {}
    count, cut = len(transitions), sum(transition.truncated for transition in transitions)
    if cut > _CUT_OFF * count:
        warnings["replies-truncated"] = (
            f"{cut} of {count} replies were cut off at the limit of tokens: raise model.max_new_tokens, or max_tokens"
        )
    tokens = sum(len(transition.response_mask) for transition in transitions)
    demanded = tokens - sum(sum(transition.response_mask) for transition in transitions)
    if demanded > tokens / 2:
        warnings["tokens-demanded"] = (
            f"{demanded} of {tokens} tokens were decided by the form that the calls demand (tool_choice, response_format), and"
            " are not trained on: teach the form first, by lgov train --algorithm sft"
        )
    groups: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for transition in transitions:
        if transition.turn == 0 and not transition.set_aside:
            groups[transition.task_id].append(transition.response_ids)
    replies = [group for group in groups.values() if len(group) > 1 and len(group[0]) > 1]
    if len(replies) > 1 and all(len(set(group)) == 1 for group in replies):
        warnings["replies-equal"] = (
            f"in all {len(replies)} groups every rollout begins with the same tokens: look for a temperature of 0 or a fixed"
            " seed in the agent's calls"
        )
    if count and not any(transition.tool_call_ids for transition in transitions):
        rollouts = list(dict.fromkeys(transition.rollout_id for transition in transitions))[:_LOOKED_AT]
        requests = [call.request for call in calls_of(rollouts)]
        if any(request.get("tools") for request in requests):
            demanded = any(request.get("tool_choice") not in (None, "auto", "none") for request in requests)
            # A demanded call has its form from a grammar, so it was cut off.
            advice = (
                "raise max_tokens, and give the tools schemas with additionalProperties: false"
                if demanded
                else "demand a call (tool_choice), or try another model.tool_format"
            )
            warnings["no-tool-calls"] = (
                f"none of {count} replies holds a tool call that can be read, though tools were offered: look at one with"
                f" lgov traces show; teach the form by lgov train --algorithm sft, {advice}"
            )
    return warnings


#: How rollouts may end badly.
_ENDINGS: Final = {
    "no-model-call": "made no model call through resource.model_api, so nothing of them is trained on: give the agent's client"
    " this base URL in every rollout",
    "prompts-too-long": "sent a prompt that is longer than the model's context, which is reward 0: {error}",
    "agents-raise": "ended with an exception of the agent, which is reward 0: {error}",
    "rollouts-lost": "were lost: {error}",
}


def rollout_endings(
    results: Sequence[Attempt],
    transitions: Sequence[Transition],
    calls_of: Callable[[list[str]], Iterable[CapturedCall]],
) -> tuple[dict[str, int], dict[str, str]]:
    """How many rollouts of an update ended badly, and a warning about each kind: ``no-model-call``, ``prompts-too-long``,
    ``agents-raise``, ``rollouts-lost``.

    ``calls_of`` reads the calls of rollouts; it is asked about those without a transition.
    """
    from lgov_core.gateway.protocol import overflow_in

    total = counted(len(results), "rollout")
    used = {transition.rollout_id for transition in transitions}
    without = [result.rollout_id for result in results if result.trainable and result.rollout_id not in used]
    silent = set(without) - {call.rollout_id for call in (calls_of(without) if without else ())}
    failed = [result for result in results if result.trainable and result.counts.get("raised")]
    too_long = [result for result in failed if overflow_in(result.error or "")]
    endings = {
        "no-model-call": [result for result in results if result.rollout_id in silent and result not in too_long],
        "prompts-too-long": too_long,
        "agents-raise": [result for result in failed if result not in too_long],
        "rollouts-lost": [result for result in results if not result.trainable],
    }
    endings = {name: rollouts for name, rollouts in endings.items() if rollouts}
    return {name: len(rollouts) for name, rollouts in endings.items()}, {
        name: f"{len(rollouts)} of {total} {_ENDINGS[name].format(error=_commonest(rollouts))}"
        for name, rollouts in endings.items()
    }


def _commonest(results: Sequence[Attempt]) -> str:
    ((error, count),) = Counter(result.error or str(result.outcome) for result in results).most_common(1)
    return f"{counted(count, 'time')} {error[:200]}"


#: Rewards of this dimension are what denials cost.
_PENALTIES = "compliance"


def step_figures(
    data: TransitionSet,
    results: Sequence[Attempt],
    *,
    returns: Mapping[tuple[str, int], float],
    dropped_spans: int = 0,
) -> dict[str, Any]:
    """The figures of one update's rollouts as JSON values, for its line in ``metrics.jsonl``.

    ``rewards``: by channel the mean over rollouts, with ``low`` and ``high`` (95 %, rollouts of a task together) and
    ``count`` (tasks); its ``return`` is ``returns``, after the bounds of the channels. ``violation_rate``: the share of
    rollouts with a violation (by the governor's counts, else by penalties). ``response_tokens`` is the mean over calls,
    ``turns`` over rollouts, ``reply_entropy`` that of -log p over all sampled tokens. ``diagnostics`` counts what was found
    in the records (`DataFinding`), ``lost_rollouts`` those without a usable attempt, ``lost_attempts`` those that the
    machines broke, ``dropped_spans`` what the store had no room for.
    """
    rollouts, usable = by_rollout(data.transitions), [result for result in results if result.trainable]
    return {
        "rewards": {name: value for name, value in _rewards(rollouts, returns).items() if value["count"]},
        "violation_rate": _violations(rollouts, usable),
        "response_tokens": _mean([len(transition.response_ids) for transition in data.transitions]),
        "turns": _mean([len(turns) for turns in rollouts.values()]),
        "reply_entropy": _mean([-value for transition in data.transitions for value in transition.logprobs or ()]),
        "diagnostics": data.counts(),
        "unassigned_rewards": len(data.unassigned),
        "lost_rollouts": len(results) - len(usable),
        "lost_attempts": sum(result.attempt - result.trainable for result in results),
        "dropped_spans": dropped_spans,
    }


def policy_figures(
    data: TransitionSet, results: Sequence[Attempt], rules: CreditRules, *, dropped_spans: int = 0
) -> dict[str, Any]:
    """`step_figures` by the returns that ``rules`` give, with ``mean_return`` (after the bounds of the channels; None of no
    rollout).
    """
    returns = rollout_returns(data.transitions, rules)
    return {
        "mean_return": sum(returns.values()) / len(returns) if returns else None,
        **step_figures(data, results, returns=returns, dropped_spans=dropped_spans),
    }


def earned_figures(
    results: Sequence[Attempt],
    counted: Sequence[tuple[str, int]],
    rewards: Iterable[tuple[tuple[str, int], str, float]],
) -> dict[str, Any]:
    """Rewards and outcomes of rollouts, as JSON values. Pure.

    ``reward`` is the mean task reward over the attempts in ``counted`` (rollout id, attempt), ``reward_air`` and so on
    those of other channels, each with half its 95 % interval over tasks (None: too few to say). ``rewards`` gives attempt,
    channel and value; other attempts are ignored. ``usable`` counts ``counted``; ``counts`` are the governors' counts in
    trainable rollouts.
    """
    sums: dict[str, dict[tuple[str, int], float]] = defaultdict(lambda: dict.fromkeys(counted, 0.0))
    keys = set(counted)
    for key, channel, value in rewards:
        if key in keys:
            sums[channel][key] += value
    figures: dict[str, Any] = {"usable": len(counted), "rollouts": len(results)}
    task_of = {result.rollout_id: result.task_id for result in results}
    for channel, values in sorted(sums.items()):
        name = "reward" if channel == "task" else f"reward_{channel}"
        groups: defaultdict[str, list[float]] = defaultdict(list)
        for (rollout_id, _), value in values.items():
            groups[task_of[rollout_id]].append(value)
        half = (interval := grouped_interval(groups)).high - interval.mean
        figures[name] = math.fsum(values.values()) / len(values)
        figures[f"{name}_half_width"] = half if math.isfinite(half) else None
    counts: Counter[str] = Counter()
    for result in results:
        if result.trainable:
            counts.update({name: int(count) for name, count in result.counts.items()})
    outcomes = Counter(result.outcome.value for result in results if result.outcome is not None)
    return {**figures, "outcomes": dict(outcomes), "counts": dict(counts)}


def _rewards(
    rollouts: Mapping[tuple[str, int], Sequence[Transition]], returns: Mapping[tuple[str, int], float]
) -> dict[str, dict[str, Any]]:
    channels = sorted({name for turns in rollouts.values() for turn in turns for name in turn.rewards})
    by_channel: dict[str, dict[str, Any]] = {}
    for channel in channels:
        groups: dict[str, list[float]] = {}
        for turns in rollouts.values():
            groups.setdefault(turns[0].task_id, []).append(totals_of(turns).get(channel, 0.0))
        by_channel[channel] = grouped_interval(groups).as_json()
    groups = {}
    for key, value in returns.items():
        if key in rollouts:
            groups.setdefault(rollouts[key][0].task_id, []).append(value)
    return {**by_channel, "return": grouped_interval(groups).as_json()}


def _violations(
    rollouts: Mapping[tuple[str, int], Sequence[Transition]], usable: Sequence[Attempt]
) -> dict[str, Any] | None:
    groups: dict[str, list[bool]] = {}
    if any("violations" in result.counts for result in usable):
        for result in usable:
            groups.setdefault(result.task_id, []).append(result.counts.get("violations", 0) > 0)
    else:
        for turns in rollouts.values():
            broken = any(turn.rewards.get(_PENALTIES, 0.0) < 0 for turn in turns)
            groups.setdefault(turns[0].task_id, []).append(broken)
    return share_interval(groups).as_json() if groups else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


#: Updates whose returns are averaged to say that a policy has collapsed.
_WINDOW: Final = 3
#: Entropy (nats a token) below which replies no longer differ, and the share of the first entropy that may be left.
LEAST_ENTROPY: Final = 0.01
ENTROPY_LEFT: Final = 0.1


def collapse(updates: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Figures of a policy that has collapsed by the last of its ``updates`` (lines of ``metrics.jsonl``), or None.

    It has where the mean return of the last three is below that of the best three before, by intervals that do not overlap;
    where that is at least half of what was gained; and where the policy itself is the cause, not chance, hard tasks or rare
    rewards: its replies no longer differ, or an update since the best ones was too large.
    """
    lines = [line for line in updates if (line.get("rewards") or {}).get("return", {}).get("low") is not None]
    windows = [_window(lines[max(0, end - _WINDOW) : end]) for end in range(1, len(lines) + 1)]
    if len(windows) <= _WINDOW:
        return None
    last, best = windows[-1], max(windows[:-_WINDOW], key=lambda window: window.mean)
    if last.high >= best.low or last.mean > (windows[0].mean + best.mean) / 2:
        return None
    at = windows.index(best)
    entropies = [float(line.get("reply_entropy") or 0.0) for line in (lines[0], *lines[-_WINDOW:])]
    alike = "reply_entropy" in lines[-1] and max(entropies[1:]) < max(LEAST_ENTROPY, ENTROPY_LEFT * entropies[0])
    thrown = any((line.get("moved") or 0.0) > MOST_MOVED for line in lines[at:-1])
    if not (alike or thrown):
        return None
    return {
        "updates": _WINDOW, "return": last.mean, "best_return": best.mean, "best_step": lines[at]["step"],
        "entropy": entropies[-1], "first_entropy": entropies[0],
    }  # fmt: skip


def _window(lines: Sequence[Mapping[str, Any]]) -> Estimate:
    """The mean return of some updates, whose rollouts are independent of each other."""
    returns = [line["rewards"]["return"] for line in lines]
    mean = math.fsum(value["mean"] for value in returns) / len(returns)
    half = math.hypot(*(value["mean"] - value["low"] for value in returns)) / len(returns)
    return Estimate(mean, mean - half, mean + half, len(returns))


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
        operation = str(span.attributes.get(semconv.OPERATION))
        kind = {semconv.CHAT: "http", semconv.EXECUTE_TOOL: "tools"}.get(operation)
        if span.name == semconv.DECISION_SPAN_NAME:
            kind = "governance"
        if kind is not None and span.ended_at is not None and not span.claimed:
            parts[span.rollout_id, span.attempt].append((span.started_at, span.ended_at, kind))
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
        rates = {"rollouts_per_s": self.rollouts / self.total, "tokens_per_s": self.tokens / self.total}
        return {"seconds": seconds, "shares": shares, **{name: round(rate, 3) for name, rate in rates.items()}}

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
