"""Figures of a policy from a step's rollouts: rewards by channel, violations, lengths, turns, and what was left out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from lgov_core.train.loop.intervals import grouped_interval, share_interval
from lgov_core.transitions import CreditRules, rollout_returns
from lgov_core.transitions.messages import totals_of
from lgov_core.transitions.transition_set import Transition, TransitionSet, by_rollout
from lgov_core.types import Attempt, CapturedCall

#: The share of replies that may be cut off without a warning.
_CUT_OFF: Final = 0.25
#: Rollouts whose requests are looked at.
_LOOKED_AT: Final = 4


def reply_warnings(
    transitions: Sequence[Transition], calls_of: Callable[[list[str]], Iterable[CapturedCall]]
) -> dict[str, str]:
    """Warnings about the replies of an update, by name: ``replies-truncated`` (as `lgov doctor` has it), ``no-tool-calls``.

    ``calls_of`` reads the calls of rollouts. It is asked only when no reply has a tool call, for whether tools were offered.
    """
    warnings: dict[str, str] = {}
    count, cut = len(transitions), sum(transition.truncated for transition in transitions)
    if cut > _CUT_OFF * count:
        warnings["replies-truncated"] = (
            f"{cut} of {count} replies were cut off at the limit of tokens: raise model.max_new_tokens, or max_tokens"
        )
    if count and not any(transition.tool_call_ids for transition in transitions):
        rollouts = list(dict.fromkeys(transition.rollout_id for transition in transitions))[:_LOOKED_AT]
        if any(call.request.get("tools") for call in calls_of(rollouts)):
            warnings["no-tool-calls"] = (
                f"none of {count} replies holds a tool call that can be read, though tools were offered: look at one with"
                f" lgov traces show FOLDER {rollouts[0]}; teach the form by lgov train --algorithm sft, demand a call"
                " (tool_choice), or try another model.tool_format"
            )
    return warnings


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
    ``turns`` over rollouts. ``diagnostics`` counts what was found in the
    records (`DataFinding`), ``lost_rollouts`` those without a
    usable attempt, ``lost_attempts`` those that the machines broke, ``dropped_spans`` what the store had no room for.
    """
    rollouts = by_rollout(data.transitions)
    usable = [result for result in results if result.trainable]
    return {
        "rewards": {name: value for name, value in _rewards(rollouts, returns).items() if value["count"]},
        "violation_rate": _violations(rollouts, usable),
        "response_tokens": _mean([len(transition.response_ids) for transition in data.transitions]),
        "turns": _mean([len(turns) for turns in rollouts.values()]),
        "diagnostics": data.counts(),
        "unassigned_rewards": len(data.unassigned),
        "lost_rollouts": len(results) - len(usable),
        "lost_attempts": sum(result.attempt - result.trainable for result in results),
        "dropped_spans": dropped_spans,
    }


def policy_figures(
    data: TransitionSet, results: Sequence[Attempt], rules: CreditRules, *, dropped_spans: int = 0
) -> dict[str, Any]:
    """`step_figures` by the returns that ``rules`` give, with ``mean_return`` (after the bounds of the channels)."""
    returns = rollout_returns(data.transitions, rules)
    return {
        "mean_return": sum(returns.values()) / len(returns) if returns else 0.0,
        **step_figures(data, results, returns=returns, dropped_spans=dropped_spans),
    }


def batch_figures(
    data: TransitionSet, results: Sequence[Attempt], rules: CreditRules, *, dropped_spans: int = 0
) -> dict[str, Any]:
    """`policy_figures` and `earned_figures` of a batch; ``weights_versions`` counts the calls of each version."""
    keys = list(dict.fromkeys((transition.rollout_id, transition.attempt) for transition in data.transitions))
    earned = (
        ((transition.rollout_id, transition.attempt), channel, value)
        for transition in data.transitions
        if not transition.set_aside
        for channel, value in transition.rewards.items()
    )
    return {
        **earned_figures(results, keys, earned),
        **policy_figures(data, results, rules, dropped_spans=dropped_spans),
        "transitions": len(data.transitions),
        "weights_versions": dict(Counter(str(transition.weights_version) for transition in data.transitions)),
    }


def earned_figures(
    results: Sequence[Attempt],
    counted: Sequence[tuple[str, int]],
    rewards: Iterable[tuple[tuple[str, int], str, float]],
) -> dict[str, Any]:
    """Rewards and outcomes of rollouts, as JSON values. Pure.

    ``reward`` is the mean task reward over the attempts in ``counted`` (rollout id, attempt), ``reward_air`` and so on
    those of other channels, each with half its 95 % interval (normal). ``rewards`` gives attempt, channel and value;
    other attempts are ignored. ``usable`` counts ``counted``; ``counts`` are the governors' counts in trainable
    rollouts.
    """
    sums: dict[str, dict[tuple[str, int], float]] = defaultdict(lambda: dict.fromkeys(counted, 0.0))
    keys = set(counted)
    for key, channel, value in rewards:
        if key in keys:
            sums[channel][key] += value
    figures: dict[str, Any] = {"usable": len(counted), "rollouts": len(results)}
    for channel, values in sorted(sums.items()):
        name = "reward" if channel == "task" else f"reward_{channel}"
        figures[name], figures[f"{name}_half_width"] = _mean_and_half_width(list(values.values()))
    counts: Counter[str] = Counter()
    for result in results:
        if result.trainable:
            counts.update({name: int(count) for name, count in result.counts.items()})
    outcomes = Counter(result.outcome.value for result in results if result.outcome is not None)
    return {**figures, "outcomes": dict(outcomes), "counts": dict(counts)}


def _mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, 1.959964 * math.sqrt(variance / len(values))


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


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None
