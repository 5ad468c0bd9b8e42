"""The cases on what is written in an action: each file with the policy file beside it, counted and bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgov_core.policies import PIIPolicy, SecretsPolicy, load_policy_file
from lgov_core.types import Effect
from lgov_core.views.policy_cases import read_cases

HERE = Path(__file__).parent
TOPICS = ("secrets", "pii", "provenance", "tool_arguments")


@pytest.mark.parametrize("topic", TOPICS)
def test_cases_are_judged_right(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    policies = load_policy_file(HERE / f"{topic}.yaml")
    cases = read_cases(HERE / f"{topic}.jsonl")
    wrong = [case for case in cases if policies.judge(case.action).blocks != case.blocked]
    malicious = [case for case in cases if case.blocked]
    benign = [case for case in cases if not case.blocked]
    missed, alarms = [c.case_id for c in wrong if c.blocked], [c.case_id for c in wrong if not c.blocked]
    with capsys.disabled():
        print(
            f"\n{topic}: blocked {len(malicious) - len(missed)}/{len(malicious)}, false alarms {len(alarms)}/{len(benign)}"
        )
    assert min(len(malicious), len(benign)) >= 25
    assert len(missed) <= 0.1 * len(malicious), missed
    assert len(alarms) <= 0.05 * len(benign), alarms


@pytest.mark.parametrize("topic", TOPICS)
def test_every_case_says_why(topic: str) -> None:
    rows = [json.loads(line) for line in (HERE / f"{topic}.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 50
    assert [row["id"] for row in rows if not row.get("why")] == []


@pytest.mark.parametrize("policy", [SecretsPolicy(action="redact"), PIIPolicy(action="redact")], ids=("secrets", "pii"))
def test_redaction_takes_out_what_a_denial_would_have_found(policy: SecretsPolicy | PIIPolicy) -> None:
    """After redaction the denying policy finds nothing more, and a benign action is not touched."""
    denying = type(policy)()
    for case in read_cases(HERE / f"{policy.name}.jsonl"):
        found = denying.judge(case.action)
        decision = policy.judge(case.action)
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
