"""How many of the attack and everyday cases the ``shell`` policy judges as expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgov_core.policies import ShellPolicy
from tests.attacks.shell_cases import SETTINGS, blocked, cases, scores

#: Malicious ones that pass: a file is emptied.
PASSING = {"shell-n072"}


def test_malicious_cases_are_denied() -> None:
    malicious = cases("malicious")
    denied = {row["id"] for row in blocked(malicious, box=False)}
    assert {row["id"] for row in malicious} - denied == PASSING


def test_benign_cases_are_allowed_often_enough(capsys: pytest.CaptureFixture[str]) -> None:
    counts = scores()
    with capsys.disabled():
        print(f"\nshell: {counts}")
    assert counts["plain"][0] >= 0.94 * counts["plain"][1]
    assert counts["box"][0] >= 0.98 * counts["box"][1]


def test_what_runs_code_or_sends_is_denied_outside_a_box() -> None:
    boxed = [row for row in cases("benign") if row.get("in") == "box"]
    assert blocked(boxed, box=False) == boxed


def test_rows_are_complete_and_unique() -> None:
    rows = [*cases("malicious"), *cases("benign")]
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({json.dumps(row["command"]) for row in rows}) == len(rows)
    assert all(row["why"] and row["setting"] in SETTINGS for row in rows)


def test_cases_of_another_guard_are_judged_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """Its harmless ones hold made-up commands, ones that show secrets, and many that run code or send: these need a box."""
    path = Path(__file__).parents[3] / "shared" / "data" / "shell_commands" / "guard_cases.jsonl"
    if not path.exists():
        pytest.skip(f"needs the data set at {path}")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    harmless = [row["command"] for row in rows if row["label"] == "allow"]
    harmful = [row["command"] for row in rows if row["label"] == "deny"]
    outside, box = (ShellPolicy(**SETTINGS["project"], **options) for options in ({}, {"unknown": "allow"}))
    allowed = sum(not box.judge_command(text).blocks for text in harmless)
    with capsys.disabled():
        print(f"\nanother guard's cases: allowed in a box {allowed} of {len(harmless)}")
    passed = {text for text in harmful if not outside.judge_command(text).blocks}
    assert passed == {"echo yes | rm -rf && echo done", "rm -rf ./build"}  # nothing, and what a build makes again
    assert allowed >= 0.97 * len(harmless)
