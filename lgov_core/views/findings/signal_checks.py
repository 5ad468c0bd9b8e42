"""Is there anything to learn from? The task reward within groups, and what AIR adds to it.

A share counts as exceeded when the low end of its 95 % interval (Wilson) is above the threshold: a few rollouts are not
enough for a finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lgov_core.train.loop.intervals import wilson_interval
from lgov_core.transitions.reading.reward_targets import INTERMEDIATE
from lgov_core.types import Severity
from lgov_core.views.findings.evidence import TASK, Evidence, TrainedRollout, groups_of
from lgov_core.views.findings.report import RunFinding, named

#: Rollouts below which a constant reward says nothing.
_FEWEST: Final = 8
#: Of the groups, the share that may be alike.
_ALIKE: Final = 0.75
#: Of the rollouts, the share with the least reward from which on it is called sparse.
_SPARSE: Final = 0.9
#: Of the groups with advantages, the share that may have them from AIR alone.
_AIR_ALONE: Final = 0.5
#: Decimals to which rewards are compared: sums of the same values in another order are alike.
_DECIMALS: Final = 9


def exceeds(count: int, total: int, share: float) -> bool:
    """Whether ``count`` of ``total`` is more than ``share``, with 95 % confidence."""
    return total > 0 and wilson_interval(count, total)[0] > share


def find_dull_reward(evidence: Evidence) -> RunFinding | None:
    """Groups that teach nothing by the task reward, named after the cause: constant, sparse, or alike within tasks."""
    rollouts = [one for one in evidence.recent if TASK in one.rewards]
    if len(rollouts) < _FEWEST:
        return None
    values = [_task(one) for one in rollouts]
    groups, least = groups_of(rollouts), min(values)
    alike = [group for group in groups.values() if len({_task(one) for one in group}) == 1]
    low = sum(value == least for value in values)
    figures: dict[str, float] = {"rollouts": len(rollouts), "groups": len(groups), "groups_alike": len(alike)}
    figures |= {"least": least, "most": max(values), "share_with_least": low / len(values)}
    if len(set(values)) == 1:
        return RunFinding(
            "reward-constant",
            Severity.HIGH,
            f"The task reward is {least:g} in all {len(rollouts)} recent rollouts.",
            "Look at what the reward is computed from in one of these rollouts. If all of them deserve it, choose other tasks.",
            figures,
            named(one.rollout_id for one in rollouts),
        )
    if not (exceeds(len(alike), len(groups), _ALIKE) if groups else exceeds(low, len(values), 0.95)):
        return None
    if low / len(values) >= _SPARSE:
        return RunFinding(
            "reward-sparse",
            Severity.HIGH,
            f"{low} of {len(rollouts)} recent rollouts earn the least task reward there is ({least:g});"
            f" {len(alike)} of {len(groups)} groups do not differ.",
            "Begin with easier tasks, take more rollouts a task, give partial rewards, or imitate good rollouts first (sft).",
            figures,
            named(one.rollout_id for one in rollouts if _task(one) > least),
        )
    return RunFinding(
        "groups-alike",
        Severity.HIGH,
        f"In {len(alike)} of {len(groups)} recent groups all rollouts earn the same task reward.",
        "Choose tasks that sometimes succeed, take more rollouts a task or a higher temperature, or set"
        " training.max_extra_groups.",
        figures,
        named(group[0].rollout_id for group in alike),
    )


def find_air_alone(evidence: Evidence) -> RunFinding | None:
    """Groups whose advantages come from tool rewards alone: all other channels are alike in them."""
    taught = [group for group in groups_of(evidence.recent).values() if _teaches(group)]
    alone = [group for group in taught if len({_others(one.rewards) for one in group}) == 1]
    if not exceeds(len(alone), len(taught), _AIR_ALONE):
        return None
    return RunFinding(
        "advantages-from-air-alone",
        Severity.HIGH,
        f"In {len(alone)} of {len(taught)} recent groups that have advantages, nothing differs but tool rewards (AIR).",
        "The policy is taught to please its tools. Repair the task reward, or leave AIR out until it differs"
        " (runtime.air_enabled: false).",
        {"groups_with_advantages": len(taught), "groups_from_air_alone": len(alone)},
        named(one.rollout_id for group in alone for one in group if one.air),
    )


def _teaches(group: list[TrainedRollout]) -> bool:
    """Whether a group has advantages; where that is not recorded, whether anything in it differs."""
    if all(one.credited is not None for one in group):
        return any(one.credited for one in group)
    return len({(_others(one.rewards), one.air) for one in group}) > 1


def _task(rollout: TrainedRollout) -> float:
    return round(rollout.rewards[TASK], _DECIMALS)


def _others(rewards: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    found = ((name, round(value, _DECIMALS)) for name, value in rewards.items() if name != INTERMEDIATE)
    return tuple(sorted(one for one in found if one[1]))
