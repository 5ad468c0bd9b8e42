"""The attack cases: one JSON Lines file a kind and threat, judged with the settings of ``policies.yaml``.

A row is a case as `lgov_core.authoring.replay` reads it, without ``expect``: what is malicious must be denied, what is
benign allowed. ``policy`` names a setting of the kind where it has several. Rows of ``*_sequences.jsonl`` say what they
expect, and those of one ``sequence`` are judged in order by the same policies. ``sql_open_writes`` are everyday statements that
change rows which no value names, and which are therefore denied unless the policy lists the column in ``ranges``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lgov_core.authoring.replay import action_of
from lgov_core.policies import PolicySet, load_policies
from lgov_core.types import Action
from tests.attacks import shell_cases

HERE = Path(__file__).parent
KINDS = (
    "limits", "paths", "pii", "provenance", "secrets", "sql_guarded", "sql_open_writes", "sql_read_only",
    "tool_arguments", "urls",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttackCase:
    """One action and whether it must be denied; ``why`` says what makes it malicious or benign."""

    case_id: str
    policy: str
    action: Action
    malicious: bool
    why: str


@dataclass(frozen=True, slots=True)
class Score:
    """How many cases of a kind are decided as expected, and the ids of the others."""

    malicious_denied: int
    malicious_total: int
    benign_allowed: int
    benign_total: int
    wrong: tuple[str, ...] = ()

    @property
    def counts(self) -> tuple[int, int, int, int]:
        return self.malicious_denied, self.malicious_total, self.benign_allowed, self.benign_total


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of one file; empty where there is no such file."""
    path = HERE / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def cases(kind: str) -> Iterator[AttackCase]:
    (first, *_) = settings(kind)
    for threat in ("malicious", "benign", "sequences"):
        for number, row in enumerate(rows(f"{kind}_{threat}")):
            expected = row.get("expect", "deny" if threat == "malicious" else "allow")
            rollout = row.get("sequence") or f"{kind}-{threat}-{number}"
            action = action_of({"rollout_id": rollout, **row}, row["id"], known=tuple(row))
            yield AttackCase(row["id"], row.get("policy", first), action, expected == "deny", row["why"])


def settings(kind: str) -> dict[str, dict[str, Any]]:
    """The policy documents of a kind, by the name of the setting."""
    return yaml.safe_load((HERE / "policies.yaml").read_text(encoding="utf-8"))[kind]


def policies(kind: str) -> dict[str, PolicySet]:
    return {name: load_policies(document) for name, document in settings(kind).items()}


def score(kind: str) -> Score:
    """Judges all cases of a kind. A policy that fails on a case is an error, not a denial."""
    judges = policies(kind)
    found = {True: [0, 0], False: [0, 0]}
    wrong: list[str] = []
    for case in cases(kind):
        decision = judges[case.policy].judge(case.action)
        assert not decision.fault, (case.case_id, decision.reason)
        found[case.malicious][0] += decision.blocks == case.malicious
        found[case.malicious][1] += 1
        if decision.blocks != case.malicious:
            wrong.append(case.case_id)
    return Score(*found[True], *found[False], tuple(wrong))


def scoreboard() -> dict[str, Score]:
    """The scores of all kinds."""
    shell = shell_cases.scores()
    return {
        **{kind: score(kind) for kind in KINDS},
        "shell": Score(*shell["denied"], *shell["plain"]),
        "shell in a box": Score(0, 0, *shell["box"]),
    }
