"""Conditions: what is true, what is false, and that everything else is an error that denies."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lgov_core.errors import PolicyError, PolicyFileError
from lgov_core.governor.conditions import ConditionError, condition_of
from lgov_core.policies import ConstantPolicy, PolicySet, Rule, load_policy_file
from lgov_core.policies.policy_set import explain
from lgov_core.types import Action, Decision, Effect, Point, Severity

ARGUMENTS: dict[str, Any] = {
    "amount": 120,
    "rate": 1.5,
    "currency": "EUR",
    "urgent": True,
    "note": None,
    "tags": ["a", 2, True],
    "to": {"account": "CH93", "bank.code": "X", "lines": [{"sum": 7}]},
    "lines": "a\nb",
    "nul": "a\0",
    "half": "a\ud800",
    "nan": math.nan,
    "thing": object(),
}


def act(arguments: dict[str, Any] | None = None, **more: Any) -> Action:
    given = {"agent": "clerk-1", "context": {"level": 3}, **more}
    return Action(Point.PRE_TOOL_CALL, "pay", arguments=ARGUMENTS if arguments is None else arguments, **given)


def one(field: Any, **comparison: Any) -> dict[str, Any]:
    return {"field": field, **comparison}


AMOUNT, CURRENCY = "arguments.amount", "arguments.currency"

TRUE = [
    one(AMOUNT, eq=120),
    one(AMOUNT, eq=120.0),
    one(AMOUNT, gt=100),
    one(AMOUNT, gt=100, le=120),
    one(AMOUNT, ge=120, lt=120.5, ne=7),
    one(AMOUNT, type="number"),
    one(AMOUNT, type="integer"),
    one(AMOUNT, **{"in": [1, 120]}),
    one(AMOUNT, not_in=[1, 2]),
    one("arguments.rate", lt=2),
    one("arguments.rate", type="number"),
    one(CURRENCY, eq="EUR"),
    one(CURRENCY, ne="eur"),
    one(CURRENCY, gt="EUQ"),
    one(CURRENCY, glob="E?R"),
    one(CURRENCY, contains="U"),
    one(CURRENCY, starts_with="E"),
    one(CURRENCY, ends_with="R"),
    one(CURRENCY, matches="^E.R$"),
    one(CURRENCY, matches="U"),
    one(CURRENCY, length=3),
    one(CURRENCY, length={"gt": 2, "le": 3}),
    one("arguments.urgent", eq=True),
    one("arguments.urgent", type="boolean"),
    one("arguments.note", eq=None),
    one("arguments.note", type="null"),
    one("arguments.note", exists=True),
    one("arguments.missing", exists=False),
    one("arguments.to.missing.deeper", exists=False),
    one("arguments.tags", contains="a"),
    one("arguments.tags", contains=2),
    one("arguments.tags", length=3),
    one("arguments.tags", eq=["a", 2, True]),
    one("arguments.tags", type="list"),
    one("arguments.tags.0", eq="a"),
    one("arguments.to", contains="account"),
    one("arguments.to", type="mapping"),
    one("arguments.to.account", starts_with="CH"),
    one(["arguments", "to", "bank.code"], eq="X"),
    one("arguments.to.lines.0.sum", eq=7),
    one("arguments", contains="amount"),
    one("context.level", ge=3),
    one("point", eq="pre_tool_call"),
    one("name", eq="pay"),
    one("kind", **{"in": ["function", "mcp"]}),
    one("agent", glob="clerk-*"),
    one("framework", exists=False),
    {"not": one(AMOUNT, gt=1000)},
    {"all": [one(AMOUNT, gt=1), one(CURRENCY, eq="EUR")]},
    {"any": [one(AMOUNT, gt=1000), one(CURRENCY, eq="EUR")]},
    {"any": [one(AMOUNT, gt=1), one("arguments.missing", gt=1)]},
    {"not": {"all": [one("arguments.missing", exists=True), one("arguments.missing", gt=1)]}},
]


@pytest.mark.parametrize("condition", TRUE, ids=str)
def test_true_and_its_opposite(condition: dict[str, Any]) -> None:
    assert condition_of(condition).holds(act()) is True
    assert condition_of({"not": condition}).holds(act()) is False


UNCLEAR = [
    (one("arguments.missing", eq=1), "arguments.missing is missing"),
    (one("arguments.missing", ne=1), "missing"),
    (one("arguments.missing", not_in=["x"]), "missing"),
    (one("arguments.missing", type="null"), "missing"),
    (one("arguments.missing", length=0), "missing"),
    (one("arguments.to.nothing.deeper", eq=1), "missing"),
    (one("arguments.tags.9", eq=1), "missing"),
    (one("arguments.tags.-1", eq=1), "missing"),
    (one("arguments.tags." + "9" * 5000, eq=1), "missing"),
    (one("framework", eq="x"), "framework is missing"),
    (one("text", contains="x"), "text is missing"),
    (one(AMOUNT, eq="120"), "is number, not text"),
    (one(AMOUNT, contains="1"), "is number"),
    (one(AMOUNT, glob="1*"), "is number, not text"),
    (one(AMOUNT, matches="1"), "is number, not text"),
    (one("arguments.lines", glob="a*"), "arguments.lines holds a line end or NUL"),
    (one("arguments.nul", glob="*"), "holds a line end or NUL"),
    (one("arguments.half", matches="a"), "holds a lone surrogate"),
    (one(AMOUNT, length=3), "is number"),
    (one(AMOUNT, gt="100"), "is number, not text"),
    (one(CURRENCY, gt=100), "is text, not number"),
    (one(CURRENCY, ne=100), "is text, not number"),
    (one(CURRENCY, **{"in": [1, 2]}), "is text, not number"),
    (one(CURRENCY, contains=1), "is text"),
    (one("arguments.urgent", eq=1), "is boolean, not number"),
    (one("arguments.urgent", gt=0), "is boolean, not number"),
    (one(AMOUNT, eq=True), "is number, not boolean"),
    (one("arguments.note", eq="x"), "is null, not text"),
    (one("arguments.nan", gt=1), "is NaN"),
    (one("arguments.nan", ne=1), "is NaN"),
    (one("arguments.nan", not_in=[1]), "is NaN"),
    (one("arguments.thing", ne="x"), "is object"),
    (one("arguments.tags", not_in=["x"]), "is list"),
    ({"not": one("arguments.missing", eq=1)}, "missing"),
    ({"not": {"not": one("arguments.missing", eq=1)}}, "missing"),
    ({"all": [one(AMOUNT, gt=1), one("arguments.missing", eq=1)]}, "missing"),
    ({"all": [one("arguments.missing", eq=1), one(AMOUNT, gt=1000)]}, "missing"),
    ({"any": [one(AMOUNT, gt=1000), one("arguments.missing", eq=1)]}, "missing"),
    ({"any": [one("arguments.missing", eq=1), one(AMOUNT, gt=1)]}, "missing"),
]


@pytest.mark.parametrize(("condition", "says"), UNCLEAR, ids=lambda value: str(value)[:80])
def test_what_cannot_be_told_is_an_error_and_denies(condition: dict[str, Any], says: str) -> None:
    with pytest.raises(ConditionError, match=says):
        condition_of(condition).holds(act())
    for effect in (Effect.ALLOW, Effect.DENY):
        for default in ("allow", "deny"):
            rule = Rule(ConstantPolicy(effect), name="limit", when=condition)
            decision = PolicySet([Rule(ConstantPolicy(Effect.ALLOW)), rule], default=default).judge(act())  # type: ignore[arg-type]
            assert (decision.effect, decision.policy, decision.rule) == (Effect.DENY, "limit", "condition-error")
            assert says.split()[-1] in decision.reason


def test_a_rule_whose_condition_is_false_does_not_cover_the_action() -> None:
    over = {"field": AMOUNT, "gt": 100}
    judges = PolicySet([Rule(ConstantPolicy(Effect.DENY), name="limit", when=over)], default="allow")
    assert judges.judge(act()).policy == "limit"
    assert judges.judge(act({"amount": 100})).rule == "default"
    assert not judges.judge(act({"amount": 100})).blocks
    only = PolicySet([Rule(ConstantPolicy(Effect.ALLOW), when={"not": over})])
    assert only.judge(act()).rule == "default", "nothing covers it, so the default denies"
    assert only.judge(act()).blocks
    assert not only.judge(act({"amount": 100})).blocks
    verdicts = explain(judges, act({"amount": 1})).verdicts
    assert [verdict.covers for verdict in verdicts] == [False]


def test_a_condition_sees_what_the_transforms_before_it_left() -> None:
    class Halves:
        name = "halves"

        def judge(self, action: Action) -> Decision:
            return Decision(Effect.TRANSFORM, "halves", arguments={"amount": action.arguments["amount"] // 2})

    limit = Rule(ConstantPolicy(Effect.DENY), name="limit", when={"field": AMOUNT, "gt": 100})
    assert PolicySet([limit, Halves()]).judge(act()).blocks
    assert not PolicySet([Halves(), limit]).judge(act()).blocks


def test_what_the_agent_did_not_choose_is_no_violation_of_its() -> None:
    def denied(field: str) -> Decision:
        return PolicySet([Rule(ConstantPolicy(Effect.ALLOW), when={"field": field, "eq": "x"})]).judge(act())

    assert not denied("arguments.missing").fault
    assert not denied("text").fault
    assert denied("context.missing").fault
    assert denied("framework").fault


def test_a_condition_error_keeps_its_severity() -> None:
    rule = Rule(ConstantPolicy(Effect.ALLOW), when={"field": "text", "eq": "x"}, severity=Severity.CRITICAL)
    assert PolicySet([rule]).judge(act()).severity is Severity.MEDIUM


HEAD = "version: 1\ndefault: allow\nrules:\n  - name: limit\n    use: deny\n    when:\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("      field: amount\n      gt: 1\n", 7, "write arguments.amount"),
        ("      field: argument.amount\n      gt: 1\n", 7, "did you mean arguments.amount?"),
        ("      field: agnet\n      eq: x\n", 7, "did you mean agent?"),
        ("      field: name.first\n      eq: x\n", 7, "write field: name"),
        ("      field: arguments..x\n      eq: x\n", 7, "not a field"),
        ("      field: 7\n      eq: x\n", 7, "not a field"),
        ("      field: name\n      equals: x\n", 8, "did you mean eq?"),
        ("      field: name\n      gte: x\n", 8, "did you mean ge?"),
        ("      field: name\n      regex: x\n", 8, "did you mean matches?"),
        ("      field: name\n      matches: (a)\\1\n", 8, "which RE2 does not accept"),
        ("      field: name\n", 7, "compared with nothing"),
        ("      eq: x\n", 7, "write field: arguments.NAME"),
        ("      anny: []\n", 7, "did you mean any?"),
        ("      any: []\n", 7, "write any: [...]"),
        ("      all: {field: name, eq: x}\n", 7, "write all: [...]"),
        (
            "      all:\n        - field: name\n          eq: x\n        - field: name\n          gt: 1\n",
            11,
            "name is text",
        ),
        ("      not:\n        field: point\n        eq: pre_tool\n", 9, "never 'pre_tool'"),
        ("      all: [{field: name, eq: x}]\n      any: [{field: name, eq: x}]\n", 7, "is used beside any"),
        ("      field: name\n      eq: no\n", 8, "put it in quotes"),
        ("      field: arguments.x\n      in: x\n", 8, "write in: [...]"),
        ("      field: arguments.x\n      in: []\n", 8, "write in: [...]"),
        ("      field: arguments.x\n      in: [[1]]\n", 8, "in compares with"),
        ("      field: arguments.x\n      gt: true\n", 8, "gt compares with text or number"),
        ("      field: arguments.x\n      glob: 7\n", 8, "put it in quotes"),
        ("      field: arguments.x\n      contains: ''\n", 8, "something in it"),
        ("      field: arguments.x\n      exists: maybe\n", 8, "write exists: true"),
        ("      field: arguments.x\n      type: string\n", 8, "write one of: text, number"),
        ("      field: arguments.x\n      length: long\n", 8, "whole number"),
        ("      field: arguments.x\n      length: {about: 3}\n", 8, "length has no comparison 'about'"),
        ("      []\n", 7, "neither a mapping nor text"),
        ("      7\n", 7, "neither a mapping nor text"),
        ("      {}\n", 7, "not a condition"),
        ("      'arguments.amount >'\n", 7, "CEL"),
        ("      'amount > 1'\n", 7, "write arguments.amount"),
        ("      'argument.amount > 1'\n", 7, "did you mean arguments?"),
        ("      'size(name)'\n", 7, "is INT, not true or false"),
        ("      'name > 1'\n", 7, "no matching overload"),
        ("      'name.matches(\"a\")'\n", 7, "write the condition as {field: arguments.NAME, matches: PATTERN}"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(HEAD + text)
    with pytest.raises(PolicyFileError) as caught:
        load_policy_file(path)
    assert says in str(caught.value)
    # A block that begins in the line after `when:` may be reported at the key.
    assert caught.value.line in (line, 6 if line == 7 else line), str(caught.value)


def test_mistakes_in_python_name_the_rule_and_the_place() -> None:
    with pytest.raises(PolicyError, match=r"rule limit: when\.all\.1\.eq: name is text"):
        Rule(ConstantPolicy(Effect.DENY), name="limit", when={"all": [one("name", eq="x"), one("name", eq=1)]})
    deep: dict[str, Any] = one("name", eq="x")
    for _ in range(200):
        deep = {"not": deep}
    with pytest.raises(PolicyError, match="nested too deeply"):
        condition_of(deep)


# ---------------------------------------------------------------------- CEL


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("arguments.amount > 100", True),
        ("arguments.amount > 100.5 && agent.startsWith('clerk')", True),
        ("arguments.currency in ['EUR', 'CHF']", True),
        ("has(arguments.missing) && arguments.missing > 1", False),
        ("arguments.to.lines[0].sum == 7", True),
        ("context.level >= 4", False),
        ("point == 'pre_tool_call'", True),
        ("arguments.urgent", True),
        ("arguments.note == null", True),
    ],
)
def test_cel(text: str, holds: bool) -> None:
    arguments = {key: value for key, value in ARGUMENTS.items() if key not in ("nan", "thing", "half")}
    assert condition_of(text).holds(act(arguments)) is holds


@pytest.mark.parametrize(
    "text",
    [
        "arguments.missing > 1",
        "arguments.missing != 1",
        "!(arguments.missing == 1)",
        "arguments.currency > 1",
        "arguments.amount",
        "framework == 'x'",
        "arguments.big == 1",
        "arguments.amount / 0 == 1",
        "arguments.many.all(a, arguments.many.all(b, arguments.many.all(c, a + b + c >= 0)))",
    ],
)
def test_cel_that_gives_no_truth_value_denies(text: str) -> None:
    arguments = {**ARGUMENTS, "big": 2**70, "many": list(range(300))}
    del arguments["nan"], arguments["thing"]
    with pytest.raises(ConditionError):
        condition_of(text).holds(act(arguments))
    judges = PolicySet([Rule(ConstantPolicy(Effect.ALLOW), when=text)], default="allow")
    assert judges.judge(act(arguments)).rule == "condition-error"


def test_cel_refuses_arguments_that_it_cannot_read() -> None:
    loop: dict[str, Any] = {"amount": 1}
    loop["self"] = loop
    for arguments in ({"amount": 1, "other": math.nan}, {"amount": 1, "other": object()}, loop):
        with pytest.raises(ConditionError):
            condition_of("arguments.amount >= 1").holds(act(arguments))


def test_without_the_library_a_cel_condition_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(HEAD + "      'name == \"pay\"'\n")
    program = (
        "import sys; sys.modules['cel_expr_python'] = None\n"
        "from lgov_core.policies import load_policy_file\n"
        "load_policy_file('policy.yaml')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "PolicyFileError: policy.yaml:" in done.stderr
    assert "pip install 'lgov[cel]'" in done.stderr
