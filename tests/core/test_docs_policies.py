"""Every policy file in docs/how-to/policies.md loads, and judges the cases under it as they say, by `lgov policy eval`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from lgov_core.commands import cli
from lgov_core.policies import BUILTIN_POLICIES, load_policy_file
from lgov_core.types import Action, Point

TEXT = (Path(__file__).parents[2] / "docs/how-to/policies.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
TESTED = {name: text for name, text in SECTIONS.items() if "```yaml" in text}


@pytest.mark.parametrize("name", TESTED)
def test_the_file_judges_its_cases_as_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((policies,), (cases,)) = (
        re.findall(rf"^```{kind}\n(.*?)^```", TESTED[name], re.M | re.S)[:1] for kind in ("yaml", "jsonl")
    )
    (tmp_path / "policy.yaml").write_text(policies)
    (tmp_path / "cases.jsonl").write_text(cases)
    done = CliRunner().invoke(cli, ["policy", "eval", "policy.yaml", "cases.jsonl"])
    assert done.exit_code == 0, done.output
    assert {'"expect": "allow"', '"expect": "deny"'} <= set(re.findall(r'"expect": "\w+"', cases))


def test_who_approves_as_the_page_says_finds_the_request_and_answers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((policies,), (commands,)) = (
        re.findall(rf"^```{kind}\n(.*?)^```", SECTIONS["approval"], re.M | re.S) for kind in ("yaml", "sh")
    )
    (tmp_path / "policy.yaml").write_text(policies.replace("{expires_s: 600}", "{expires_s: 600, store: approvals.db}"))
    rules = load_policy_file(tmp_path / "policy.yaml")
    actions = [
        Action(Point.PRE_TOOL_CALL, "pay", arguments={"amount": amount}, rollout_id="r", agent="clerk")
        for amount in (12, 13)
    ]
    ids = [re.search(r"request (\w+)", rules.judge(action).reason) for action in actions]
    monkeypatch.chdir(tmp_path)
    ours = iter(str(one and one[1]) for one in ids)
    for line in commands.splitlines():
        command = re.sub(r"apr_\w+", lambda _: next(ours), line)
        done = CliRunner().invoke(cli, shlex.split(command, comments=True)[1:])
        assert done.exit_code == 0, done.output
    assert [rules.judge(action).rule for action in actions] == ["approved", "approval-rejected"]


def test_a_test_of_a_policy_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = TESTED["allow, deny and conditions"]
    ((policies,), (cases,)) = (
        re.findall(rf"^```{kind}\n(.*?)^```", example, re.M | re.S) for kind in ("yaml", "jsonl")
    )
    shown = re.findall(r"^```text\n(.*?)^```", TEXT, re.M | re.S)[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(policies)
    chosen = [line for line in cases.splitlines() if '"searching"' in line or '"admin"' in line]
    (tmp_path / "cases.jsonl").write_text("\n".join(chosen))
    done = CliRunner().invoke(cli, ["policy", "eval", "policy.yaml", "cases.jsonl"])
    assert done.stdout.split() == shown.split()


def test_every_built_in_policy_has_its_section() -> None:
    named = {word for heading in SECTIONS for word in re.split(r",? and |, ", heading)}
    assert set(BUILTIN_POLICIES) <= named
