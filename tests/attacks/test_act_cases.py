"""Paths and URLs somebody may try, judged by the policy file beside them; and how many are judged right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lgov_core.policies import PolicySet, load_policy_file
from lgov_core.types import Action, Point

HERE = Path(__file__).parent
TOPICS = ("paths", "urls")


def cases(topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / f"{topic}.jsonl").read_text(encoding="utf-8").splitlines()]


def policies(topic: str) -> PolicySet:
    return load_policy_file(HERE / f"{topic.partition('_')[0]}.yaml")


def blocked(judge: PolicySet, case: dict[str, Any]) -> bool:
    decision = judge.judge(Action(Point(case["point"]), case["name"], arguments=case["arguments"]))
    assert all(part.rule != "policy-error" for part in (decision, *decision.parts)), decision.reason
    return decision.blocks


@pytest.mark.parametrize("topic", TOPICS)
def test_cases_are_judged_right_often_enough(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    judge = policies(topic)
    right = {"allow": 0, "deny": 0}
    total = {"allow": 0, "deny": 0}
    wrong: list[str] = []
    for case in cases(topic):
        assert case["why"]
        total[case["expect"]] += 1
        if blocked(judge, case) == (case["expect"] == "deny"):
            right[case["expect"]] += 1
        else:
            wrong.append(case["id"])
    with capsys.disabled():
        print(
            f"\n{topic}: denied {right['deny']} of {total['deny']}, allowed {right['allow']} of {total['allow']}; {wrong}"
        )
    assert sum(total.values()) >= 40
    assert min(total.values()) >= 0.3 * sum(total.values())
    assert right["deny"] >= 0.9 * total["deny"]
    assert right["allow"] >= 0.95 * total["allow"]


@pytest.mark.parametrize("topic", TOPICS)
def test_ids_are_unique_and_no_case_stands_twice(topic: str) -> None:
    found = cases(topic)
    assert len({case["id"] for case in found}) == len(found)
    assert len({json.dumps(case["arguments"]) for case in found}) == len(found)
