"""Every line of sql_cases.jsonl: a statement somebody may try, and what SQLPolicy must say to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lgov_core.policies import SQLPolicy

CASES = [json.loads(line) for line in Path(__file__).with_name("sql_cases.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['dialect']}-{case['mode']}-{case['sql'][:40]!r}")
def test_case(case: dict[str, Any]) -> None:
    policy = SQLPolicy(dialect=case["dialect"], mode=case["mode"], deny=case["deny"])
    decision = policy.judge_sql(case["sql"])
    assert (decision.effect.label, decision.rule) == (case["expect"], case["rule"]), decision.reason
