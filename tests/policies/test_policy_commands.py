"""`lgov policy` init, explain, eval and replay, on real files, a real trace store and a real audit record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lgov_core import Action, AuditLog, Decision, Effect, Governor, Point, PolicySet, RolloutScope, ToolOutcome
from lgov_core.commands import cli
from lgov_core.policies import ConstantPolicy, Rule, load_policy_file
from lgov_core.scope import enter_scope
from lgov_core.store import open_store
from lgov_core.trace.sink import StoreSink
from lgov_core.types import Rollout

Run = Callable[..., Result]

STRICT = """
version: 1
name: strict
rules:
  - {name: reads, tools: [run_sql], use: sql, with: {dialect: sqlite, mode: read_only}}
  - {name: never, tools: [rm], use: deny, severity: critical}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(STRICT)
    return lambda *args: CliRunner().invoke(cli, [str(arg) for arg in args])


def write_cases(path: Path, *cases: dict[str, Any] | str) -> Path:
    path.write_text("".join(f"{case if isinstance(case, str) else json.dumps(case)}\n" for case in cases))
    return path


def sql(query: str, expect: str, **more: Any) -> dict[str, Any]:
    return {"point": "pre_tool_call", "name": "run_sql", "arguments": {"query": query}, "expect": expect, **more}


# ---------------------------------------------------------------------- init


# ---------------------------------------------------------------------- explain


def test_explain_names_every_rule_and_the_answer(run: Run) -> None:
    action = json.dumps({"name": "run_sql", "arguments": {"query": "DROP TABLE staff"}})
    found = run("policy", "explain", "policy.yaml", "--action", action, "--json")
    assert found.exit_code == 3
    answer = json.loads(found.stdout)
    assert (answer["effect"], answer["policy"], answer["rule"]) == ("deny", "reads", "sql-read-only")
    assert [(rule["rule"], rule["covers"]) for rule in answer["rules"]] == [("reads", True), ("never", False)]
    assert answer["rules"][0]["decision"]["reason"]
    text = run("policy", "explain", "policy.yaml", "--action", action).stdout
    assert "sql-read-only" in text
    assert "does not cover" in text


def test_explain_reads_the_action_from_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "action.json").write_text(json.dumps({"name": "run_sql", "arguments": {"query": "SELECT 1"}}))
    assert run("policy", "explain", "policy.yaml", "--action", "@action.json").exit_code == 0
    assert run("policy", "explain", "policy.yaml", "--action", "@absent.json").exit_code == 1


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"name": ""}', "name is"),
        ('{"name": "a", "point": "sometimes"}', "point is"),
        ('{"name": "a", "argumnts": {}}', "argumnts"),
        ('{"name": "a", "arguments": [1]}', "must be objects"),
    ],
)
def test_explain_says_what_is_wrong_with_an_action(run: Run, action: str, said: str) -> None:
    found = run("policy", "explain", "policy.yaml", "--action", action)
    assert found.exit_code == 1
    assert said in found.stderr


# ---------------------------------------------------------------------- eval


def test_eval_counts_and_exits_by_mismatches(run: Run, tmp_path: Path) -> None:
    right = write_cases(
        tmp_path / "right.jsonl",
        sql("SELECT 1", "allow", id="reads"),
        sql("DROP TABLE a", "deny", id="drops", why="destroys"),
        {"id": "unknown", "point": "pre_tool_call", "name": "other", "arguments": {}, "expect": "deny"},
    )
    found = run("policy", "eval", "policy.yaml", right, "--json")
    assert found.exit_code == 0
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(line["id"], line["effect"], line["policy"]) for line in lines[:-1]] == [
        ("reads", "allow", "reads"),
        ("drops", "deny", "reads"),
        ("unknown", "deny", "strict"),
    ]
    assert {"id", "effect", "policy", "rule", "severity", "reason"} <= set(lines[1])
    assert lines[-1] == {
        "summary": {"cases": 3, "malicious": 2, "blocked": 2, "benign": 1, "false_alarms": 0, "mismatches": 0}
    }
    wrong = write_cases(tmp_path / "wrong.jsonl", sql("SELECT 1", "deny"), sql("DROP TABLE a", "allow"))
    found = run("policy", "eval", "policy.yaml", wrong)
    assert found.exit_code == 1
    counts = "denied 0 of 1 (0.0%) that expect deny and 1 of 1 (100.0%) that expect allow; 2 mismatches"
    assert f"2 cases: {counts}" in found.stdout
    head, first, second, _ = found.stdout.splitlines()
    assert head.split() == ["case", "expected", "decision", "rule", "why"]
    assert [line.split()[:3] for line in (first, second)] == [["1", "deny", "allow"], ["2", "allow", "deny"]]
    assert first.rstrip().endswith("MISMATCH")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{]", "cases.jsonl:2: not JSON"),
        (json.dumps({"name": "a"}), "cases.jsonl:2: expect is None"),
        (json.dumps(sql("SELECT 1", "maybe")), "cases.jsonl:2: expect is 'maybe'"),
        (json.dumps({**sql("SELECT 1", "allow"), "user_txt": "x"}), "did you mean user_text?"),
        (json.dumps({"name": "run_sql", "args": {"query": "SELECT 1"}, "expect": "deny"}), "did you mean arguments?"),
        (json.dumps({**sql("SELECT 1", "allow"), "text": 3}), "cases.jsonl:2: text is 3"),
        (json.dumps(sql("SELECT 1", "allow", id="1st")), "is in line 1 too"),
        (json.dumps(sql("SELECT 1", "allow", sequence=3)), "cases.jsonl:2: sequence is 3"),
        (json.dumps(sql("SELECT 1", "allow", result=3)), "cases.jsonl:2: result is 3"),
    ],
)
def test_eval_says_which_line_is_no_case(run: Run, tmp_path: Path, line: str, said: str) -> None:
    cases = write_cases(tmp_path / "cases.jsonl", sql("SELECT 1", "allow", id="1st"), line)
    found = run("policy", "eval", "policy.yaml", cases)
    assert found.exit_code == 1
    assert said in found.stderr
    assert found.stdout == ""  # nothing is judged before everything is understood


LIMITS = """
version: 1
rules:
  - {name: tools, use: tool, with: {allow: [search, send]}}
  - {name: budget, use: cost, with: {max_calls: 2, per: global}}
  - {name: pace, use: rate, with: {max_calls: 2, per_seconds: 3600, per: global}}
  - {name: again, tools: [search], use: loop, with: {max_repeats: 1}}
  - {name: said, use: provenance}
"""


def search(query: str, expect: str, **more: Any) -> dict[str, Any]:
    return {"name": "search", "arguments": {"q": query}, "expect": expect, **more}


def test_eval_judges_each_case_as_if_there_were_no_other(run: Run, tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(LIMITS)
    said = {"point": "input", "name": "user", "text": "Write to ada@lovelace.org", "expect": "allow"}
    sent = {"name": "send", "arguments": {"to": "ada@lovelace.org"}}
    cases = write_cases(
        tmp_path / "cases.jsonl",
        *[search("a", "allow") for _ in range(4)],
        *[search(query, "allow", agent="clerk") for query in "abc"],
        said,
        {**sent, "expect": "deny"},
    )
    found = run("policy", "eval", "limits.yaml", cases)
    assert found.exit_code == 0, found.stdout


@pytest.mark.parametrize("key", ["sequence", "session_id", "rollout_id"])
def test_eval_lets_cases_of_one_sequence_follow_on_each_other(run: Run, tmp_path: Path, key: str) -> None:
    (tmp_path / "limits.yaml").write_text(LIMITS)
    said = {"point": "input", "name": "user", "text": "Write to ada@lovelace.org", "expect": "allow"}
    sent = {"name": "send", "arguments": {"to": "ada@lovelace.org"}}
    cases = write_cases(
        tmp_path / "cases.jsonl",
        search("a", "allow", **{key: "one"}),
        search("a", "allow", **{key: "two"}),
        search("a", "deny", **{key: "one"}),
        search("b", "allow"),
        search("b", "allow", **{key: "two"}),
        search("c", "deny", **{key: "two"}),
        {**said, key: "three"},
        {**sent, key: "three", "expect": "allow"},
    )
    found = run("policy", "eval", "limits.yaml", cases)
    assert found.exit_code == 0, found.stdout


def test_rules_about_order_are_printed_and_judge_by_the_results_of_cases(run: Run, tmp_path: Path) -> None:
    ask_first = "{name: ask first, tools: [send], use: order, with: {after: {tool: ask}}}"
    (tmp_path / "order.yaml").write_text(f"version: 1\nrules: [{{use: allow}}, {ask_first}]")
    sentence = "ask first: Only after ask has returned."
    assert f"order: {sentence}" in run("policy", "check", "order.yaml").stdout
    assert json.loads(run("policy", "check", "order.yaml", "--json").stdout)["order"] == [sentence]
    send = {"name": "send", "arguments": {}, "sequence": "s"}
    cases = write_cases(
        tmp_path / "cases.jsonl",
        {**send, "expect": "deny"},
        {"name": "ask", "sequence": "s", "expect": "allow"},
        {**send, "expect": "deny"},
        {"name": "ask", "sequence": "s", "result": "yes", "expect": "allow"},
        {**send, "expect": "allow"},
    )
    found = run("policy", "eval", "order.yaml", cases)
    assert found.exit_code == 0, found.stdout


def test_eval_of_an_empty_file_is_an_error(run: Run, tmp_path: Path) -> None:
    assert run("policy", "eval", "policy.yaml", write_cases(tmp_path / "none.jsonl")).exit_code == 1


# ---------------------------------------------------------------------- replay


def record(folder: Path, policies: PolicySet) -> None:
    """Three governed tool calls and a text, in a trace store and an audit record."""
    store = open_store(folder / "store.sqlite")
    store.add_rollouts([Rollout("ro_1", "task", "run", {"question": "?"})])
    store.start_attempt("ro_1", 1)
    with AuditLog(folder / "audit.sqlite") as audit, enter_scope(RolloutScope("ro_1")):
        governor = Governor(policies, audit=audit, plugins=[StoreSink(store)])
        for number, query in enumerate(("SELECT 1", "DROP TABLE a", "SELECT 2")):
            action = Action(Point.PRE_TOOL_CALL, "run_sql", arguments={"query": query}, call_id=f"call_{number}")
            decision: Decision = governor.decide(action)
            governor.record(ToolOutcome(action, "denied" if decision.blocks else "ok", "1", decision=decision))
        governor.decide(Action(Point.OUTPUT, "agent", text="done"))
    store.close()


@pytest.mark.parametrize(("place", "judged"), [("store.sqlite", 3), ("audit.sqlite", 4)])
def test_replay_shows_what_would_be_blocked_now(run: Run, tmp_path: Path, place: str, judged: int) -> None:
    record(tmp_path, PolicySet([Rule(ConstantPolicy(Effect.ALLOW))]))
    found = run("policy", "eval", "policy.yaml", place, "--json")
    assert found.exit_code == 1
    answer = json.loads(found.stdout)
    assert (answer["judged"], answer["blocked_then"], answer["blocked_now"]) == (judged, 0, 1)
    (change,) = answer["changes"]
    assert (change["call_id"], change["then"], change["now"]) == ("call_1", "allow", "deny")
    assert (change["now_policy"], change["arguments"]) == ("reads", {"query": "DROP TABLE a"})
    assert "DROP TABLE a" in run("policy", "eval", "policy.yaml", place).stdout


@pytest.mark.parametrize("place", ["store.sqlite", "audit.sqlite"])
def test_replay_of_the_same_policy_changes_nothing(run: Run, tmp_path: Path, place: str) -> None:
    record(tmp_path, load_policy_file(tmp_path / "policy.yaml"))
    found = run("policy", "eval", "policy.yaml", place)
    assert found.exit_code == 0, found.stdout
    assert "0 changed; 1 were blocked then, 1 would be now" in found.stdout


def test_replay_shows_what_is_no_longer_blocked(run: Run, tmp_path: Path) -> None:
    record(tmp_path, PolicySet([Rule(ConstantPolicy(Effect.DENY, reason="closed"))]))
    answer = json.loads(run("policy", "eval", "policy.yaml", "audit.sqlite", "--json").stdout)
    assert [(change["then"], change["now"]) for change in answer["changes"]] == [("deny", "allow")] * 2
    assert {change["reason"] for change in answer["changes"]} == {"closed"}


def test_replay_knows_who_wrote_a_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "said.yaml").write_text("version: 1\nrules: [{use: allow}, {use: provenance}]\n")
    with AuditLog(tmp_path / "said.sqlite") as audit, enter_scope(RolloutScope("ro_1")):
        governor = Governor(PolicySet([Rule(ConstantPolicy(Effect.ALLOW))]), audit=audit)
        for source, to in (("user", "ann@firma.de"), ("agent", "eve@evil.net")):
            governor.decide(Action(Point.INPUT, "agent", kind="text", text=f"write to {to}", source=source))
            governor.decide(Action(Point.PRE_TOOL_CALL, "send", arguments={"to": to}))
    answer = json.loads(run("policy", "eval", "said.yaml", "said.sqlite", "--json").stdout)
    assert [change["arguments"] for change in answer["changes"]] == [{"to": "eve@evil.net"}]


def test_replay_counts_what_was_recorded_without_arguments(run: Run, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.sqlite")
    store.add_rollouts([Rollout("ro_1", "task", "run", {})])
    store.start_attempt("ro_1", 1)
    with enter_scope(RolloutScope("ro_1")):
        governor = Governor(load_policy_file(tmp_path / "policy.yaml"), plugins=[StoreSink(store, content=False)])
        action = Action(Point.PRE_TOOL_CALL, "run_sql", arguments={"query": "SELECT 1"}, call_id="call_0")
        governor.record(ToolOutcome(action, "ok", "1", decision=governor.decide(action)))
    store.close()
    answer = json.loads(run("policy", "eval", "policy.yaml", "store.sqlite", "--json").stdout)
    assert (answer["judged"], answer["incomplete"]) == (0, 1)


def test_replay_does_not_make_a_store(run: Run, tmp_path: Path) -> None:
    assert run("policy", "eval", "policy.yaml", "absent.sqlite").exit_code == 1
    assert not (tmp_path / "absent.sqlite").exists()
