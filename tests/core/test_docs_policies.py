"""Every policy file in docs/policies.md loads, and judges the cases under it as they say, by `lgov policy eval`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from lgov_core.cli import cli
from lgov_core.policies import BUILTIN_POLICIES

TEXT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
TESTED = {name: text for name, text in SECTIONS.items() if "```yaml" in text}


@pytest.mark.parametrize("name", TESTED)
def test_the_file_judges_its_cases_as_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((policies,), (cases,)) = (
        re.findall(rf"^```{kind}\n(.*?)^```", TESTED[name], re.M | re.S) for kind in ("yaml", "jsonl")
    )
    (tmp_path / "policy.yaml").write_text(policies)
    (tmp_path / "cases.jsonl").write_text(cases)
    done = CliRunner().invoke(cli, ["policy", "eval", "policy.yaml", "cases.jsonl"])
    assert done.exit_code == 0, done.output
    assert {'"expect": "allow"', '"expect": "deny"'} <= set(re.findall(r'"expect": "\w+"', cases))


def test_every_built_in_policy_has_its_section() -> None:
    named = {word for heading in SECTIONS for word in re.split(r",? and |, ", heading)}
    assert set(BUILTIN_POLICIES) <= named
