"""Cases written without a look at the code, by someone who did not write it, for policies with nothing but plain options.

What was right at the first reading, before anything was repaired (malicious, benign, of 25 each): paths 25 and 25,
urls 25 and 25, secrets 23 and 24, pii 23 and 25, provenance 25 and 25, tool arguments 25 and 25.
Still wrong: a token with a space after each letter, AWS's documented example key (denied), "name [at] host [dot] tld".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lgov_core.policies import load_policy_file
from lgov_core.views.policy_cases import read_cases

HERE = Path(__file__).parent
STILL_WRONG = {"secrets-c022", "secrets-c037"}


@pytest.mark.parametrize("topic", ["paths", "urls", "secrets", "pii", "provenance", "tool_arguments"])
def test_cases_are_judged_right(topic: str) -> None:
    policies = load_policy_file(HERE / f"{topic}_c.yaml")
    cases = read_cases(HERE / f"{topic}_c.jsonl")
    assert len(cases) == 50
    assert sum(case.blocked for case in cases) == 25
    wrong = {case.case_id for case in cases if policies.judge(case.action).blocks != case.blocked}
    assert wrong <= STILL_WRONG
