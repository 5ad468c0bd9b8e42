"""Cases of a public guard of destructive commands (read where the data lies, never copied): how many are judged right.

All of them were looked at while the policy was written, so the figures say what holds and not what to expect elsewhere.
The first reading of ``shell_everyday.jsonl``, which was written before it was read, is the better guess; see docs/policies.md.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgov_core.policies import ShellPolicy

DATA = Path(__file__).parents[3] / "shared" / "data" / "shell_commands" / "guard_cases.jsonl"


@pytest.mark.skipif(
    not DATA.exists(), reason=f"{DATA.name} is not beside the repository (../shared/data/shell_commands)"
)
@pytest.mark.parametrize(
    ("writable", "least"),
    [(("/srv/project", "/tmp"), 0.90), (("/srv/project", "/tmp", "/var/tmp", "/dest"), 0.92)],
    ids=["two folders", "the folders the cases write to"],
)
def test_guard_cases(writable: tuple[str, ...], least: float, capsys: pytest.CaptureFixture[str]) -> None:
    judge = ShellPolicy(cwd="/srv/project", writable=writable)
    right = {"allow": 0, "deny": 0}
    total = {"allow": 0, "deny": 0}
    unknown = 0
    for line in DATA.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        decision = judge.judge_command(case["command"])
        total[case["label"]] += 1
        right[case["label"]] += decision.blocks == (case["label"] == "deny")
        unknown += case["label"] == "allow" and decision.rule == "shell-unknown-command"
    with capsys.disabled():
        print(
            f"\nguard cases: denied {right['deny']} of {total['deny']}, allowed {right['allow']} of {total['allow']};"
            f" {unknown} of the benign ones name no command that is known"
        )
    assert right["deny"] >= 0.99 * total["deny"]
    assert right["allow"] >= least * total["allow"]
