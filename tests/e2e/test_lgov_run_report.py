"""The closing report of lgov run names what was blocked, and the command that answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from lgov_runs import WORKER, lgov_run, make_company, write

from lgov_core.audit import AuditLog
from lgov_core.commands import cli
from tests.confine.conftest import why_not

APPROVED = """
version: 1
rules:
  - {name: a-person, tools: [run_sql], use: approval, with: {store: approvals.db}}
"""
TWICE = f"""{WORKER}
import subprocess, sys
for query in ("DROP TABLE staff", "DROP TABLE staff", "DELETE FROM staff"):
    run_sql.invoke({{"query": query}})
"""
PARENT = """
import subprocess, sys
subprocess.run([sys.executable, "worker.py", "DROP TABLE staff"])
"""


def report(stderr: str) -> list[str]:
    return [line.removeprefix("lgov: ") for line in stderr.splitlines() if line.startswith("lgov: ")]


def test_a_denial_has_its_tool_rule_reason_and_entry(folder: Path) -> None:
    make_company(folder)
    done = lgov_run(folder, "python", write(folder, TWICE), "SELECT 1")
    with AuditLog(folder / ".lgov" / "audit.db", signer=None) as log:
        entries = [entry for entry in log.entries() if entry.effect == "deny"]
    denied = [line for line in report(done.stderr) if line.startswith("denied")]
    assert len(entries) == 3
    (line,) = denied
    assert line.startswith("denied 3 times: run_sql, by sql/sql-read-only: the last: ")
    assert line.endswith(f"({entries[-1].entry_id})")


def test_a_call_that_waits_has_the_command_that_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_company(folder)
    write(folder, APPROVED, "policy.yaml")
    program = write(folder, WORKER)
    lines = report(lgov_run(folder, "python", program, "SELECT count(*) FROM staff").stderr)
    at = next(number for number, line in enumerate(lines) if line.startswith("not approved yet: run_sql, by a-person/"))
    command = shlex.split(lines[at + 1].partition("to answer: lgov ")[2].replace("NAME", "Eve"))
    assert CliRunner().invoke(cli, command).exit_code == 0
    again = lgov_run(folder, "python", program, "SELECT count(*) FROM staff")
    assert again.stdout == "[(3,)]\n", "the run after it may do what was approved"
    assert "not approved" not in again.stderr


def test_what_a_child_was_denied_is_named(folder: Path) -> None:
    make_company(folder)
    write(folder, WORKER, "worker.py")
    done = lgov_run(folder, "python", write(folder, PARENT))
    assert any(line.startswith("denied: run_sql, by sql/") for line in report(done.stderr)), done.stderr


def test_in_shadow_mode_it_names_what_would_be_blocked(folder: Path) -> None:
    make_company(folder)
    policy = (folder / "policy.yaml").read_text().replace("name: test", "name: test\nmode: shadow")
    (folder / "policy.yaml").write_text(policy)
    done = lgov_run(folder, "python", write(folder, WORKER), "DELETE FROM staff WHERE name = 'a'")
    assert any(line.startswith("would have been denied: run_sql, by sql/") for line in report(done.stderr))


@pytest.mark.parametrize("box", [(), ("--confine", "--preset", "workspace")], ids=["alone", "in a box"])
def test_shadow_mode_is_named_also_where_it_would_block_nothing(folder: Path, box: tuple[str, ...]) -> None:
    if box and (why := why_not()):
        pytest.skip(f"no box here: {why}")
    rules = "default: allow\nrules:\n  - {name: never, tools: [none], use: deny}\n"
    (folder / "policy.yaml").write_text("version: 1\nmode: shadow\n" + rules)
    done = lgov_run(folder, "python", write(folder, "print('done')"), options=box)
    assert done.stdout == "done\n", done.stderr
    assert "0 denied; shadow mode: none of the allowed would have been denied" in done.stderr
    as_json = lgov_run(folder, "python", "agent.py", options=(*box, "--json")).stderr
    reports = [json.loads(line) for line in as_json.splitlines()]
    assert [each["report"]["shadow"] for each in reports if "report" in each] == [True]
    (folder / "policy.yaml").write_text("version: 1\n" + rules)
    assert "shadow mode" not in lgov_run(folder, "python", "agent.py", options=box).stderr


@pytest.mark.parametrize("box", [(), ("--confine",)], ids=["alone", "in a box"])
def test_rules_for_a_box_are_said_not_to_hold_where_there_is_none(folder: Path, box: tuple[str, ...]) -> None:
    if box and (why := why_not()):
        pytest.skip(f"no box here: {why}")
    make_company(folder)
    policy = folder / "policy.yaml"
    policy.write_text(policy.read_text() + "\nconfine: {preset: workspace}\n")
    done = lgov_run(folder, "python", write(folder, "print('done')"), options=box)
    assert done.stdout == "done\n", done.stderr
    said = "confine: of the policy file did not hold: this run had no box (--confine)"
    assert (said in report(done.stderr)) == (not box)


def test_as_json_every_kind_is_listed(folder: Path) -> None:
    make_company(folder)
    done = lgov_run(folder, "python", write(folder, WORKER), "DROP TABLE staff", options=("--json",))
    (blocked,) = json.loads(done.stderr.splitlines()[-1])["report"]["blocked"]
    assert (blocked["effect"], blocked["name"], blocked["policy"], blocked["count"]) == ("deny", "run_sql", "sql", 1)
