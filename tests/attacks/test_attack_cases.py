"""What must be denied is denied, and what is harmless allowed; ``python -m tests.attacks`` prints the same figures."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from lgov_core.policies import PIIPolicy, SecretsPolicy, SQLPolicy
from lgov_core.types import Effect
from tests.attacks.cases import HERE, KINDS, cases, rows, score

#: Malicious denied, malicious, benign allowed, benign.
EXACT = {
    "limits": (15, 15, 35, 35),
    "paths": (242, 243, 168, 173),
    "pii": (311, 314, 307, 308),
    "provenance": (241, 241, 158, 159),
    "sql_open_writes": (0, 0, 0, 120),
    "secrets": (436, 438, 309, 309),
    "tool_arguments": (163, 163, 106, 106),
    "urls": (456, 458, 236, 237),
}
#: For the kinds with thousands of cases: the least share of malicious ones denied, and of benign ones allowed.
RATES = {"sql_guarded": (0.99, 0.97), "sql_read_only": (0.99, 0.97)}


@pytest.mark.parametrize("kind", sorted(EXACT))
def test_small_kinds_are_judged_exactly_so(kind: str) -> None:
    found = score(kind)
    assert found.counts == EXACT[kind], found.wrong


@pytest.mark.parametrize("kind", sorted(RATES))
def test_large_kinds_are_judged_right_often_enough(kind: str) -> None:
    found = score(kind)
    denied, allowed = RATES[kind]
    assert found.malicious_denied >= denied * found.malicious_total, found.wrong
    assert found.benign_allowed >= allowed * found.benign_total, found.wrong


def test_every_kind_is_judged_by_one_of_the_two_tests() -> None:
    assert sorted([*EXACT, *RATES]) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_unique_and_every_case_says_why(kind: str) -> None:
    found = list(cases(kind))
    assert len({case.case_id for case in found}) == len(found) > 0
    assert all(case.why for case in found)


def test_the_sql_cases_are_of_many_dialects() -> None:
    found = [case for kind in ("sql_guarded", "sql_open_writes", "sql_read_only") for case in cases(kind)]
    assert len({case.action.context["dialect"] for case in found}) >= 11


def test_guarded_allows_what_read_only_allows() -> None:
    policy = SQLPolicy(dialect="from_tool")
    reads = [case.action for case in cases("sql_read_only") if not case.malicious]
    denied = [
        action.arguments["query"]
        for action in reads
        if policy.judge_sql(action.arguments["query"], dialect=action.context["dialect"]).blocks
    ]
    assert len(denied) <= 0.03 * len(reads), denied


@pytest.mark.parametrize(
    "row", rows("sql_decisions"), ids=lambda row: f"{row['dialect']}-{row['mode']}-{row['sql'][:40]!r}"
)
def test_sql_decision_and_rule(row: dict[str, Any]) -> None:
    policy = SQLPolicy(dialect=row["dialect"], mode=row["mode"], deny=row["deny"])
    decision = policy.judge_sql(row["sql"])
    assert (decision.effect.label, decision.rule) == (row["expect"], row["rule"]), decision.reason


@pytest.mark.parametrize("policy", [SecretsPolicy(action="redact"), PIIPolicy(action="redact")], ids=("secrets", "pii"))
def test_redaction_takes_out_what_is_denied(policy: SecretsPolicy | PIIPolicy) -> None:
    """After redaction the denying policy finds nothing more, and an action without findings is not touched."""
    denying = type(policy)()
    for case in cases(policy.name):
        found, decision = denying.judge(case.action), policy.judge(case.action)
        assert found is not None
        assert decision is not None
        if not found.blocks:
            assert decision.effect is Effect.ALLOW, case.case_id
            continue
        assert decision.effect is Effect.TRANSFORM, (case.case_id, decision.reason)
        text = decision.text if decision.text is not None else case.action.text
        arguments = decision.arguments if decision.arguments is not None else case.action.arguments
        left = json.dumps([arguments, text], ensure_ascii=False, default=str)
        assert denying.find(left) == [], (case.case_id, left)


def test_the_scoreboard_prints_every_kind() -> None:
    command = [sys.executable, "-m", "tests.attacks", "--json"]
    printed = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=True, timeout=280)
    assert set(json.loads(printed.stdout)) >= set(KINDS)
