"""``lgov policy check``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lgov_core.commands.group import Exit
from lgov_core.errors import PolicyFileError
from lgov_core.policies import load_policy_file
from tests.commands.cli_runner import POLICY, lgov


def test_a_good_policy_file(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY)
    result = lgov("policy", "check", "policy.yaml")
    assert result.exit_code == Exit.OK
    assert "policy.yaml: ok" in result.stdout
    about = json.loads(lgov("policy", "check", "policy.yaml", "--json").stdout)
    assert (about["ok"], about["name"], about["rules"], about["mode"]) == (True, "desk", ["tools"], "enforce")
    assert re.fullmatch(r"[0-9a-f]{64}", about["digest"])


def test_programs_that_may_run_the_folders_code_are_named(folder: Path) -> None:
    (folder / "policy.yaml").write_text("version: 1\nrules:\n  - {use: shell, with: {code: {allow: [pytest, make]}}}\n")
    assert "runs the folder's code: pytest, make" in lgov("policy", "check", "policy.yaml").stdout
    assert json.loads(lgov("policy", "check", "policy.yaml", "--json").stdout)["runs_code"] == ["pytest", "make"]


def test_a_file_whose_rules_only_restrict_is_noted(folder: Path) -> None:
    rules = "version: 1\nrules:\n  - {use: pii, with: {action: redact}}\n"
    for text, noted in ((rules, True), (f"default: allow\n{rules}", False), (f"{rules}  - use: allow\n", False)):
        (folder / "policy.yaml").write_text(text)
        result = lgov("policy", "check", "policy.yaml")
        assert (result.exit_code, "no rule permits anything" in result.stderr) == (Exit.OK, noted)


def test_a_file_with_rules_for_a_box_is_said_to_be_judged_as_in_it(folder: Path) -> None:
    for text, noted in ((f"{POLICY}\nconfine: {{preset: workspace}}\n", True), (POLICY, False)):
        (folder / "policy.yaml").write_text(text)
        result = lgov("policy", "check", "policy.yaml")
        assert (result.exit_code, "judged as in its box" in result.stderr) == (Exit.OK, noted)


def test_a_wrong_policy_file_is_a_finding_with_its_line(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY.replace("use: tool", "use: tol"))
    result = lgov("policy", "check", "policy.yaml")
    assert (result.exit_code, result.stdout) == (Exit.FINDING, "")
    assert re.search(r"^error: policy.yaml:4: .*tol", result.stderr)
    assert "Traceback" not in result.stderr
    result = lgov("policy", "check", "policy.yaml", "--json")
    assert result.exit_code == Exit.FINDING
    about = json.loads(result.stdout)
    assert (about["ok"], about["problems"][0]["line"]) == (False, 4)


SEVERAL = """version: 1
rules:
  - {name: a, use: sqll, with: {dialect: sqlite}}
  - {name: b, use: sql, with: {dialect: sqlite}}
  - {name: c, use: sql, with: {dialect: sqlit}}
  - {name: d, tool: [x], use: deny}
  - {name: e, use: cost, with: {max_calls: 3, ledger: budget.db}}
"""


def test_the_errors_of_all_rules_are_reported_at_once(folder: Path) -> None:
    (folder / "policy.yaml").write_text(SEVERAL)
    result = lgov("policy", "check", "policy.yaml")
    assert result.exit_code == Exit.FINDING
    assert re.findall(r"^error: policy.yaml:(\d+): ", result.stderr, re.M) == ["3", "5", "6"]
    about = json.loads(lgov("policy", "check", "policy.yaml", "--json").stdout)
    assert [problem["line"] for problem in about["problems"]] == [3, 5, 6]
    with pytest.raises(
        PolicyFileError, match=r"policy\.yaml:3"
    ) as raised:  # nothing is opened for a set that will not be
        load_policy_file(folder / "policy.yaml")
    assert raised.value.further == ()
    assert not (folder / "budget.db").exists()


def test_policy_check_without_a_file_is_wrong_usage() -> None:
    assert lgov("policy", "check").exit_code == Exit.USAGE
