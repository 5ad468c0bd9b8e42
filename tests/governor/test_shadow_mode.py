"""What a policy in shadow mode would have denied is shown wherever decisions are shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lgov_core import Action, AuditLog, Governor, Point, RolloutScope, load_policy_file
from lgov_core.audit import default_key_path, make_key, verify
from lgov_core.commands import cli
from lgov_core.policies import PolicySet, Rule
from lgov_core.scope import enter_scope
from lgov_core.store import open_store
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Decision, Effect, Rollout

POLICY = """
version: 1
mode: shadow
default: allow
rules:
  - {name: never, tools: [rm], use: deny, severity: critical, with: {reason: rm deletes}}
"""
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The commands, beside a record and a store of two acts in shadow mode, of which rm would have been denied."""
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(POLICY)
    store = open_store("store.db")
    store.add_rollouts([Rollout("r1", "t1", "run", {}, 1.0)])
    store.start_attempt("r1", 1)
    with AuditLog("audit.db") as log:
        governor = Governor(load_policy_file("policy.yaml"), audit=log, plugins=[StoreSink(store)])
        with enter_scope(RolloutScope("r1")):
            for name in ("ls", "rm"):
                assert not governor.decide(Action(Point.PRE_TOOL_CALL, name, call_id=name)).blocks
    store.close()
    return lambda *arguments: CliRunner().invoke(cli, [str(one) for one in arguments])


def test_a_decision_knows_the_part_that_was_not_enforced(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    policies = load_policy_file(tmp_path / "policy.yaml")
    allowed = policies.judge(Action(Point.PRE_TOOL_CALL, "ls"))
    shadowed = policies.judge(Action(Point.PRE_TOOL_CALL, "rm"))
    assert allowed.unenforced is None
    assert shadowed.unenforced is not None
    assert (shadowed.effect, shadowed.unenforced.effect, shadowed.unenforced.policy) == (
        Effect.ALLOW,
        Effect.DENY,
        "never",
    )
    enforced = Decision(Effect.DENY, "p", parts=(Decision(Effect.DENY, "p"), Decision(Effect.DENY, "q", shadowed=True)))
    assert enforced.unenforced is None, "it was denied anyway"


class Failing:
    """A rule that answers too late, or raises."""

    name = "failing"

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def judge(self, action: Action) -> Decision | None:
        time.sleep(self.wait_s)
        raise RuntimeError(action.name)


@pytest.mark.parametrize(("wait_s", "rule"), [(0.5, "policy-timeout"), (0.0, "policy-error")])
def test_a_rule_that_is_late_or_raises_blocks_only_outside_shadow_mode(wait_s: float, rule: str) -> None:
    for mode, effect in (("enforce", Effect.DENY), ("shadow", Effect.ALLOW)):
        governor = Governor(PolicySet([Rule(Failing(wait_s), "check")], mode=mode, default="allow"), timeout_s=0.05)
        decision = governor.decide(Action(Point.PRE_TOOL_CALL, "ls"))
        assert (decision.effect, [part.rule for part in decision.parts]) == (effect, [rule])
        governor.close()


def test_a_call_that_cannot_be_put_on_record_is_blocked_in_shadow_mode_too(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    log = AuditLog(tmp_path / "audit.db")
    log.close()
    decision = Governor(load_policy_file(tmp_path / "policy.yaml"), audit=log).decide(Action(Point.PRE_TOOL_CALL, "ls"))
    assert (decision.effect, decision.rule) == (Effect.DENY, "audit-failed")


def test_what_a_rule_permits_is_recorded_by_its_name(tmp_path: Path) -> None:
    text = POLICY.replace("allow\nrules:", "deny\nrules:\n  - {name: listing, tools: [ls], use: allow}")
    (tmp_path / "policy.yaml").write_text(text)
    policies = load_policy_file(tmp_path / "policy.yaml")
    decision = policies.judge(Action(Point.PRE_TOOL_CALL, "ls"))
    assert (decision.effect, decision.policy, decision.rule, decision.shadowed) == (
        Effect.ALLOW,
        "listing",
        "allow",
        True,
    )


def test_audit_show_lists_it_among_the_denied(run: Run) -> None:
    shown = run("audit", "show", "audit.db", "--denied")
    assert shown.exit_code == 0, shown.output
    (line,) = [one for one in shown.stdout.splitlines() if "rm" in one]
    assert "allow (would deny)" in line
    assert "never" in line
    assert "rm deletes" in line
    assert "1 of 1 entry" in shown.stderr
    (entry,) = json.loads(run("audit", "show", "audit.db", "--denied", "--json").stdout)
    assert entry["name"] == "rm"


def test_an_ocsf_event_has_the_severity_it_would_have_had(run: Run) -> None:
    lines = run("export", "audit.db", "--format", "ocsf").stdout.splitlines()
    listed, removed = map(json.loads, lines)
    assert (listed["severity_id"], removed["severity_id"]) == (1, 5)
    assert removed["action_id"] == 1, "it was allowed"
    assert "rm deletes" in removed["message"]
    assert removed["policy"]["name"] == "never"


def test_traces_show_says_what_would_have_been_denied(run: Run) -> None:
    for arguments in (("r1",), ("--denied",)):
        shown = run("traces", "show", "store.db", *arguments)
        assert shown.exit_code == 0, shown.output
        (line,) = [one for one in shown.stdout.splitlines() if "would deny" in one]
        assert "allow (would deny)  never" in line
        assert "rm deletes" in line
        assert "critical" in line
    view = json.loads(run("traces", "show", "store.db", "r1", "--json").stdout)
    found = {tool["call_id"]: tool["decisions"][0] for tool in view["loose_tools"]}
    assert [(found[name]["effect"], found[name]["would"]) for name in ("ls", "rm")] == [
        ("allow", ""),
        ("allow", "deny"),
    ]


def cases(path: Path, *expected: tuple[str, str]) -> Path:
    rows: list[dict[str, Any]] = [{"name": name, "arguments": {}, "expect": expect} for name, expect in expected]
    path.write_text(
        "".join(json.dumps({"id": str(n), "point": "pre_tool_call", **row}) + "\n" for n, row in enumerate(rows))
    )
    return path


def test_policy_eval_compares_what_it_would_do(run: Run, tmp_path: Path) -> None:
    right = cases(tmp_path / "cases.jsonl", ("ls", "allow"), ("rm", "deny"))
    done = run("policy", "eval", "policy.yaml", right, "--json")
    assert done.exit_code == 0, done.output
    listed, removed, summary = done.stdout.splitlines()
    assert (json.loads(listed)["effect"], json.loads(listed)["shadowed"]) == ("allow", True)
    line = json.loads(removed)
    assert (line["effect"], line["policy"], line["severity"], line["shadowed"]) == ("deny", "never", "critical", True)
    assert json.loads(summary)["summary"]["blocked"] == 1
    wrong = run("policy", "eval", "policy.yaml", cases(tmp_path / "cases.jsonl", ("rm", "allow")))
    assert wrong.exit_code == 1


def test_policy_explain_says_that_it_would_be_denied(run: Run) -> None:
    done = run("policy", "explain", "policy.yaml", "--action", '{"name": "rm"}')
    assert "allow (would deny): never" in done.stdout
    assert done.exit_code == 0, "the act is allowed"
    found = json.loads(run("policy", "explain", "policy.yaml", "--action", '{"name": "rm"}', "--json").stdout)
    assert (found["effect"], found["would"]) == ("allow", "deny")
    assert found["policy"] == "never"


def test_the_one_line_use_records_the_digest_and_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "policy.yaml").write_text(POLICY)
    key = make_key(default_key_path())
    policies, path = load_policy_file(tmp_path / "policy.yaml"), tmp_path / "audit.db"
    governor = Governor(policies, audit=AuditLog(path))
    governor.decide(Action(Point.PRE_TOOL_CALL, "ls"))
    log = governor.audit
    assert isinstance(log, AuditLog)
    assert [entry.policy_digest for entry in log.entries()] == [policies.digest]
    log.close()
    report = verify(path, key=key.public, require_signed=True)
    assert report.ok, report
    other = Governor(load_policy_file(tmp_path / "policy.yaml"), audit=AuditLog(tmp_path / "none.db", signer=None))
    other.decide(Action(Point.PRE_TOOL_CALL, "ls"))
    assert verify(tmp_path / "none.db").heads == 0


def test_two_governors_on_one_record_each_have_their_digest(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(POLICY)
    (tmp_path / "two.yaml").write_text(POLICY.replace("critical", "high"))
    one, two = (load_policy_file(tmp_path / name) for name in ("one.yaml", "two.yaml"))
    with AuditLog(tmp_path / "audit.db") as log:
        for policies in (one, two, one):
            Governor(policies, audit=log).decide(Action(Point.PRE_TOOL_CALL, "ls"))
        assert [entry.policy_digest for entry in log.entries()] == [one.digest, two.digest, one.digest]
