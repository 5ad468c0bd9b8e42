"""How many of the attack and everyday cases the ``shell`` policy judges as expected."""

from __future__ import annotations

import json

import pytest

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
