"""Policy files: what they mean, and that every mistake is told with its line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from lgov_core.errors import PolicyFileError
from lgov_core.policies import BUILTIN_POLICIES, PolicySet, ReloadingPolicySet, load_policies, load_policy_file
from lgov_core.policies.loader import fresh_policies
from lgov_core.policies.sql.policy import SQLPolicy
from lgov_core.types import Action, Decision, Effect, Point, Severity

GOOD = """\
version: 1
name: pay-desk
default: deny
rules:
  - name: known-tools
    use: tool
    with:
      allow: [run_sql, give_answer]
      schemas:
        give_answer:
          type: object
          required: [value]
  - name: careful-sql
    on: [pre_tool_call]
    tools: [run_sql]
    use: sql
    severity: critical
    with:
      dialect: sqlite
      mode: guarded
      deny: [DELETE, "table:salary_answers"]
  - name: no-interns
    agents: [intern-*]
    use: deny
    with: {reason: Interns only watch.}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policies.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def act(name: str, agent: str | None = None, **arguments: Any) -> Action:
    return Action(Point.PRE_TOOL_CALL, name, arguments=arguments, agent=agent)


def test_a_good_file_judges(tmp_path: Path) -> None:
    judges = load_policy_file(write(tmp_path, GOOD))
    assert (judges.name, judges.version, judges.mode, judges.default) == ("pay-desk", 1, "enforce", "deny")
    assert judges.bounded
    assert judges.judge(act("run_sql", query="SELECT 1")).effect is Effect.ALLOW
    denied = judges.judge(act("run_sql", query="SELECT * FROM salary_answers"))
    assert (denied.policy, denied.rule, denied.severity) == ("careful-sql", "sql-denied-table", Severity.CRITICAL)
    assert judges.judge(act("run_sql", query="DELETE FROM t WHERE id = 1")).blocks
    assert judges.judge(act("rm")).rule == "tool-unknown"
    assert judges.judge(act("give_answer")).rule == "tool-arguments"
    assert judges.judge(act("give_answer", value=1)).effect is Effect.ALLOW
    intern = judges.judge(act("give_answer", agent="intern-3", value=1))
    assert (intern.policy, intern.reason) == ("no-interns", "Interns only watch.")


def test_shadow_and_default_allow(tmp_path: Path) -> None:
    judges = load_policy_file(write(tmp_path, GOOD.replace("default: deny", "default: allow\nmode: shadow")))
    assert (judges.mode, judges.default) == ("shadow", "allow")
    decision = judges.judge(act("rm"))
    assert decision.effect is Effect.ALLOW
    assert decision.parts[0].rule == "tool-unknown"


def test_the_digest_is_of_the_meaning(tmp_path: Path) -> None:
    one = load_policy_file(write(tmp_path, GOOD)).digest
    assert one is not None
    assert len(one) == 64
    same = load_policy_file(write(tmp_path, "# a note\n" + GOOD.replace("[intern-*]", '["intern-*"]'))).digest
    other = load_policy_file(write(tmp_path, GOOD.replace("guarded", "read_only"))).digest
    assert one == same
    assert one != other


def broken(old: str, new: str) -> str:
    assert GOOD.count(old) >= 1
    return GOOD.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (broken("version: 1", "version: 2"), 1, "write version: 1"),
        (broken("version: 1\n", ""), None, "write version: 1"),
        (broken("version: 1", "version: true"), 1, "write version: 1"),
        (broken("default: deny", "default: block"), 3, "default is 'block'"),
        (broken("default: deny", "defualt: deny"), 3, "did you mean default?"),
        (broken("name: pay-desk", "mode: shadows"), 2, "did you mean shadow?"),
        (broken("    use: tool", "    use: tol"), 6, "did you mean tool?"),
        (broken("    use: tool\n", ""), 5, "write use: "),
        (broken("    on: [pre_tool_call]", "    on: [pre_tool_cal]"), 14, "did you mean pre_tool_call?"),
        (broken("    on: [pre_tool_call]", "    on: pre_tool_call"), 14, "write on: [...]"),
        (broken("    on: [pre_tool_call]", "    on: []"), 14, "must be a list"),
        (broken("    tools: [run_sql]", "    tools: [run_sql, no]"), 15, "put it in quotes"),
        (broken("    tools: [run_sql]", "    tolls: [run_sql]"), 15, "did you mean tools?"),
        (broken("severity: critical", "severity: fatal"), 17, "severity is 'fatal'"),
        (broken("dialect: sqlite", "dialect: sqlit"), 19, "did you mean sqlite?"),
        (broken("      dialect: sqlite\n", ""), 18, "needs dialect"),
        (broken("mode: guarded", "mode: open"), 20, "guarded, read_only"),
        (broken("mode: guarded", "modus: guarded"), 20, "did you mean mode?"),
        (broken("deny: [DELETE,", "deny: [DELET,"), 21, "did you mean DELETE?"),
        (broken('deny: [DELETE, "table:salary_answers"]', "deny: DELETE"), 21, "list of strings"),
        (broken("type: object", "type: objekt"), 11, "schema of give_answer is wrong"),
        (broken("name: careful-sql", "name: known-tools"), 13, "two rules are called known-tools"),
        (broken("with: {reason: Interns only watch.}", "with: [x]"), 25, "with must be a mapping"),
        (broken("default: deny", "default: deny\ndefault: allow"), 4, "given twice (first in line 3)"),
        (broken("mode: guarded", "mode: guarded\n      mode: read_only"), 21, "given twice (first in line 20)"),
        (broken("name: pay-desk", "name: 2020-01-01"), 2, "put it in quotes"),
        (broken("name: pay-desk", "name: !!python/name:os.system x"), 2, "not supported"),
        (broken("name: pay-desk", "name: !custom x"), 2, "not supported"),
        (broken("name: pay-desk", "name: [a"), 3, "not YAML"),
        (broken("name: pay-desk", "name: &n pay-desk").replace("name: known-tools", "name: *n"), 2, "alias"),
        (GOOD + "---\nversion: 1\n", 26, "not YAML"),
        ("", None, "empty"),
        ("# only a note\n", None, "empty"),
        ("- version: 1\n", 1, "must be a mapping"),
        ("version: 1\n", None, "no rules"),
        ("version: 1\nrules: []\n", 2, "no rules"),
        ("version: 1\nrules:\n", 2, "no rules"),
        ("version: 1\nrules:\n  - deny\n", 3, "a rule must be a mapping"),
        ("version: 1\nrules: " + "[" * 50 + "]" * 50, 2, "nested too deeply"),
        ("version: 1\nrules: " + "[" * 5000 + "]" * 5000, None, "not YAML"),
        ("a: 1\x00", None, "not YAML"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, line: int | None, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(PolicyFileError) as caught:
        load_policy_file(path)
    assert says in str(caught.value)
    assert caught.value.path == str(path)
    if line is not None:
        assert caught.value.line == line
        assert str(caught.value).startswith(f"{path}:{line}: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="no such file"):
        load_policy_file(tmp_path / "missing.yaml")
    with pytest.raises(PolicyFileError, match="cannot be read"):
        load_policy_file(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(PolicyFileError, match="UTF-8"):
        load_policy_file(tmp_path / "latin.yaml")
    if os.geteuid() != 0:  # root may read anything
        locked = write(tmp_path, GOOD)
        locked.chmod(0)
        with pytest.raises(PolicyFileError, match="cannot be read"):
            load_policy_file(locked)


def test_a_document_in_memory() -> None:
    document = {"version": 1, "rules": [{"use": "sql", "with": {"dialect": "sqlite"}}]}
    judges = load_policies(document, source="settings")
    assert judges.judge(act("run_sql", query="DROP TABLE t")).policy == "sql"
    with pytest.raises(PolicyFileError, match=r"settings: .*did you mean rules\?"):
        load_policies({"version": 1, "rulse": []}, source="settings")
    with pytest.raises(PolicyFileError, match="JSON"):
        load_policies({"version": 1, "rules": [{"use": "echo", "with": {"x": object()}}]}, registry={"echo": Echo})


class Echo:
    """A policy from elsewhere."""

    permits = True

    def __init__(self, *, name: str, x: object) -> None:
        self.name, self.x = name, x
        if x == "bad":
            raise RuntimeError("x is bad")

    def judge(self, action: Action) -> Decision | None:
        return Decision(Effect.WARN, policy=self.name, reason=str(self.x))


def test_the_registry_can_be_widened(tmp_path: Path) -> None:
    registry = {**BUILTIN_POLICIES, "echo": Echo}
    text = "version: 1\nrules:\n  - name: e\n    use: echo\n    with:\n      x: hi\n"
    judges = load_policy_file(write(tmp_path, text), registry=registry)
    assert isinstance(judges, PolicySet)
    decision = judges.judge(act("t"))
    assert (decision.effect, decision.policy, decision.reason) == (Effect.WARN, "e", "hi")
    assert not judges.bounded
    with pytest.raises(PolicyFileError, match=r":5: policy echo cannot be made: RuntimeError: x is bad"):
        load_policy_file(write(tmp_path, text.replace("hi", "bad")), registry=registry)
    assert BUILTIN_POLICIES["sql"] is SQLPolicy
    with pytest.raises(TypeError):
        BUILTIN_POLICIES["echo"] = Echo  # type: ignore[index]


# ---------------------------------------------------------------------- files that policies keep books in


@pytest.mark.parametrize(
    "load",
    [load_policy_file, ReloadingPolicySet, lambda path: fresh_policies(path)()],
    ids=["file", "reloading", "fresh"],
)
def test_relative_files_count_from_the_policy_files_folder(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that share a budget, and the person who approves, find one file, also by a relative path to the policy."""
    file, elsewhere = tmp_path / "desk" / "policy.yaml", tmp_path / "elsewhere"
    file.parent.mkdir()
    elsewhere.mkdir()
    file.write_text(
        "version: 1\nrules:\n"
        "  - {name: budget, use: cost, with: {max_calls: 1, per: global, ledger: budget.db}}\n"
        "  - {name: asks, use: approval, with: {store: approvals.db}}\n"
    )
    monkeypatch.chdir(elsewhere)
    policies = load("../desk/policy.yaml")
    monkeypatch.chdir(tmp_path)
    assert policies.judge(Action(Point.PRE_TOOL_CALL, "pay")).rule == "approval-pending"
    assert sorted(one.name for one in file.parent.glob("*.db")) == ["approvals.db", "budget.db"]
    assert list(elsewhere.iterdir()) == []


def test_relative_folders_count_from_the_policy_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, elsewhere = tmp_path / "desk" / "policy.yaml", tmp_path / "elsewhere"
    for folder in (file.parent / "data", elsewhere / "data"):
        folder.mkdir(parents=True)
    file.write_text(
        "version: 1\nrules:\n"
        "  - {name: files, use: path, tools: [read], with: {roots: [data, /srv], cwd: data}}\n"
        "  - {name: home, use: path, tools: [keep], with: {roots: ['~/notes']}}\n"
        "  - {name: shell, use: shell, tools: [bash], with: {cwd: ., writable: [data]}}\n"
    )
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    policies = load_policy_file("../desk/policy.yaml")

    def blocks(tool: str, **arguments: str) -> bool:
        return policies.judge(Action(Point.PRE_TOOL_CALL, tool, arguments=arguments)).blocks

    assert not blocks("read", path=str(file.parent / "data" / "a"))
    assert not blocks("read", path="a")
    assert not blocks("read", path="/srv/a")
    assert blocks("read", path=str(elsewhere / "data" / "a"))
    assert not blocks("keep", path=str(tmp_path / "home" / "notes" / "a"))
    assert not blocks("bash", command="touch data/a")
    assert blocks("bash", command=f"touch {elsewhere}/data/a")
    assert blocks("bash", command="touch b")


def test_absolute_files_and_memory_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desk").mkdir()
    file = tmp_path / "desk" / "policy.yaml"
    rule = {"name": "asks", "use": "approval", "with": {"store": str(tmp_path / "full.db")}}
    file.write_text(yaml.safe_dump({"version": 1, "rules": [rule]}))
    load_policy_file(file)
    load_policies({"version": 1, "rules": [{**rule, "with": {"store": "here.db"}}]})
    assert sorted(one.name for one in tmp_path.glob("*.db")) == ["full.db", "here.db"]
    assert list(file.parent.glob("*.db")) == []


@pytest.mark.parametrize(
    ("options", "line", "says"),
    [
        ("{use: tool, with: {allow: [a,\n      1]}}", 4, "allow holds 1 (write text"),
        (
            "{use: cost, with: {max_calls: 1, prices: {a: [1, 2],\n      b: {input: -1, output: 2}}}}",
            4,
            "prices: b holds",
        ),
        ("{use: cost, with: {max_calls: 1,\n      tool_costs: {t: free}}}", 4, "US dollars"),
        ("{use: rate, with: {max_calls: 2,\n      per_seconds: true}}", 4, "a number above 0"),
        ("{use: approval, with: {tools: ['*'],\n      per: user}}", 4, "one of"),
        ("{use: loop, with: {max_repeats: 2,\n      abort_after: 1.5}}", 4, "a whole number above 0"),
        ("{use: egress, with: {domains: [a.example],\n      ports: [443, 70000]}}", 4, "a number from 1 to 65535"),
        ("{use: shell, with: {writable: [a],\n      unknown: maybe}}", 4, "one of"),
        ("{use: pii, with: {action: deny,\n      max_characters: 0}}", 4, "a whole number above 0"),
        ("{use: provenance, with: {messages: true,\n      kinds: [email, name]}}", 4, "holds 'name'"),
        ("{use: approval, with: {wait_s: 1,\n      clock: now}}", 4, "clock"),
    ],
)
def test_a_mistake_within_an_option_has_its_line(tmp_path: Path, options: str, line: int, says: str) -> None:
    with pytest.raises(PolicyFileError) as caught:
        load_policy_file(write(tmp_path, f"version: 1\nrules:\n  - {options}\n"))
    assert caught.value.line == line
    assert says in str(caught.value)
