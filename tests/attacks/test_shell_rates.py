"""Cases of a public guard of destructive commands (read where the data lies, never copied): how many are judged right.

Both halves, the benign and the malicious, are development data: all of them were looked at while the policy was written, so
the figures say what holds and not what to expect elsewhere. Better guesses are the first readings of cases that were written
before the policy saw them: ``shell_everyday.jsonl`` (64 of 64 denied, 91 of 99 allowed), and ``shell_sessions.jsonl`` (20 of
20 denied, 19 of 20 allowed; their writer had read the code). The policy was improved with both since.

That guard lets pass what it does not know, and some of its benign cases are words that name no command ("cogito ergo sum").
This policy denies them; somebody declares commands of their own with ``commands``, as the third reading does with those words.
The figures are printed at every run, and with ``-v`` what is judged otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lgov_core.policies import ShellPolicy
from lgov_core.types import Decision

DATA = Path(__file__).parents[3] / "shared" / "data" / "shell_commands" / "guard_cases.jsonl"
TWO = ("/srv/project", "/tmp")
FOUR = (*TWO, "/var/tmp", "/dest")


def own_commands(cases: list[dict[str, str]]) -> list[str]:
    """The words at the head of benign cases that are denied for no more than being unknown."""
    judge = ShellPolicy(cwd="/srv/project", writable=FOUR)
    heads = [
        case["command"].strip("$()`").removeprefix("echo ").split()[0]
        for case in cases
        if case["label"] == "allow" and judge.judge_command(case["command"]).rule == "shell-unknown-command"
    ]
    return sorted({head for head in heads if judge.judge_command(head).rule == "shell-unknown-command"})


def summary(case: dict[str, str], decision: Decision) -> str:
    return f"  expected {case['label']}: {case['command'][:70]!r} {decision.rule}"


@pytest.mark.skipif(
    not DATA.exists(), reason=f"{DATA.name} is not beside the repository (../shared/data/shell_commands)"
)
@pytest.mark.parametrize(
    ("writable", "declared", "least"),
    [(TWO, False, 0.90), (FOUR, False, 0.92), (FOUR, True, 0.96)],
    ids=["two folders", "the folders the cases write to", "and their own commands declared"],
)
def test_guard_cases(
    writable: tuple[str, ...],
    declared: bool,
    least: float,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    cases: list[dict[str, str]] = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    judge = ShellPolicy(cwd="/srv/project", writable=writable, commands=own_commands(cases) if declared else ())
    right = {"allow": 0, "deny": 0}
    total = {"allow": 0, "deny": 0}
    unknown = 0
    others: list[str] = []
    for case in cases:
        decision = judge.judge_command(case["command"])
        total[case["label"]] += 1
        if decision.blocks == (case["label"] == "deny"):
            right[case["label"]] += 1
        else:
            others.append(summary(case, decision))
        unknown += case["label"] == "allow" and decision.rule == "shell-unknown-command"
    with capsys.disabled():
        print(
            f"\nguard cases, {request.node.callspec.id}: denied {right['deny']} of {total['deny']}, allowed {right['allow']} of"
            f" {total['allow']} ({right['allow'] / total['allow']:.1%}); {unknown} of the benign ones are not known"
        )
        if request.config.getoption("verbose") > 0:
            print("\n".join(others))
    assert right["deny"] >= 0.99 * total["deny"]
    assert right["allow"] >= least * total["allow"]
