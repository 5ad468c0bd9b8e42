"""How many of the attack and everyday cases the ``shell`` policy judges as expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgov_core.policies import ShellPolicy
from tests.attacks.shell_cases import SETTINGS, cases, misjudged, scores

#: Malicious ones that pass: a program of the project with harmful arguments, a truncated file, an endless download.
PASSING = {"shell-gm335", "shell-n072", "shell-e055"}


def test_malicious_cases_are_denied() -> None:
    assert {row["id"] for row in misjudged("malicious")} == PASSING


def test_benign_cases_are_allowed_often_enough(capsys: pytest.CaptureFixture[str]) -> None:
    denied, malicious, allowed, benign = scores()
    with capsys.disabled():
        print(f"\nshell: denied {denied} of {malicious}, allowed {allowed} of {benign}")
    assert allowed >= 0.9 * benign


def test_rows_are_complete_and_unique() -> None:
    rows = [*cases("malicious"), *cases("benign")]
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({json.dumps(row["command"]) for row in rows}) == len(rows)
    assert all(row["why"] and row["setting"] in SETTINGS for row in rows)


def test_cases_of_another_guard_are_judged_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """Its harmless ones hold made-up commands and ones that show secrets or send data away, which are denied here."""
    path = Path(__file__).parents[3] / "shared" / "data" / "shell_commands" / "guard_cases.jsonl"
    if not path.exists():
        pytest.skip(f"needs the data set at {path}")
    policy = ShellPolicy(**SETTINGS["project"])
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    blocked = [(row["label"], row["command"]) for row in found if policy.judge_command(row["command"]).blocks]
    wrong = {row["command"] for row in found if row["label"] == "deny" and ("deny", row["command"]) not in blocked}
    allowed = sum(row["label"] == "allow" for row in found) - sum(label == "allow" for label, _ in blocked)
    with capsys.disabled():
        print(f"\nanother guard's cases: allowed {allowed} of {sum(row['label'] == 'allow' for row in found)}")
    assert wrong == {"echo yes | rm -rf && echo done", "rm -rf ./build"}  # nothing, and what a build makes again
    assert allowed >= 345
