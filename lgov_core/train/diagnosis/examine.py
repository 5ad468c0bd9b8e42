"""Runs every check over what is on record of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lgov_core.settings import without_password
from lgov_core.train.diagnosis import checks
from lgov_core.train.diagnosis.checks import Report, RunFinding
from lgov_core.train.diagnosis.evidence import TASK, Evidence, read_evidence
from lgov_core.types import Severity

_CHECKS: Final[tuple[Callable[[Evidence], RunFinding | None], ...]] = (
    checks.find_violations,
    checks.find_farming,
    checks.find_dull_reward,
    checks.find_air_alone,
    checks.find_truncated,
    checks.find_malformed,
    checks.find_entropy_collapse,
    checks.find_kl,
    checks.find_stale_weights,
    checks.find_other_weights,
    checks.find_drift,
)
_SEVERITIES: Final = list(Severity)
#: All findings, by the part of the evidence that they need; some need two.
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "metrics": ("entropy-collapsed", "kl-running-off", "weights-stale", "logprobs-differ"),
        "kl": ("kl-running-off",),
        "store": ("tool-calls-malformed", "retokenisation-drift", "violations-rising", "tool-rewards-farmed"),
        "ends": ("violations-rising", "tool-rewards-farmed"),
        "rollouts": ("replies-truncated",),
        "reward": ("reward-constant", "reward-sparse", "groups-alike", "advantages-from-air-alone"),
    }
)


def examine(place: str | Path) -> Report:
    """Examines ``place``: the folder of a run (finished or in progress), or a trace store (a path or an address).

    Reads only, and writes nothing; a run may go on meanwhile. Raises `LgovError` where there is nothing to examine or it
    cannot be read. Callable from any thread.
    """
    return examine_evidence(without_password(str(place)), read_evidence(str(place)))


def examine_evidence(place: str, evidence: Evidence) -> Report:
    """As `examine`, of evidence at hand. Pure."""
    findings = [finding for check in _CHECKS if (finding := check(evidence)) is not None]
    findings.sort(key=lambda finding: -_SEVERITIES.index(finding.severity))
    rollouts = {rollout.rollout_id for rollout in (*evidence.early, *evidence.recent)}
    names = {finding.name for finding in findings}
    missing = {name: why for name, why in _not_examined(evidence).items() if name not in names}
    checked = dict.fromkeys(name for checks in _NEEDS.values() for name in checks if name not in missing)
    return Report(place, len(evidence.updates), len(rollouts), tuple(findings), tuple(checked), missing)


def _not_examined(evidence: Evidence) -> dict[str, str]:
    missing: dict[str, str] = {}
    if not evidence.recent:
        missing["rollouts"] = "there is no rollout that ended"
    if not evidence.updates:
        missing["metrics"] = "there is no update in metrics.jsonl"
    elif not any(isinstance(line.get("kl"), int | float) for line in evidence.updates):
        missing["kl"] = "no update has a KL to the reference (training.kl_coef is 0, or verl has the figure)"
    if not evidence.early:
        missing["ends"] = "the run is too short to compare its beginning with its end"
    if not evidence.recorded:
        missing["store"] = "there is no trace store with these rollouts"
    if not any(TASK in rollout.rewards for rollout in evidence.recent):
        missing["reward"] = "no rollout has a reward of the dimension task"
    return {name: why for need, why in missing.items() for name in _NEEDS[need]}
