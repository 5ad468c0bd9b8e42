"""AIR rules in YAML: loading, errors with lines, the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from air_cases import ATTEMPT, Bench

from lgov_core import air
from lgov_core._util.schema import read_yaml
from lgov_core.errors import RewardFileError
from lgov_core.reward import AirPlugin, AirRules
from lgov_core.types import Decision, Effect

FILE = """
version: 1
cap: 0.4
defaults: {tool_error: -0.1}
rules:
  - name: rows
    on: tool_success
    tools: ["search_*"]
    agents: [clerk]
    reward: 0.2
    milestone: tool
  - {on: denied, reward: -0.75}
  - {name: talk, on: model_call, tools: ["gpt-*"], reward: 0.01, shaped: false}
"""


def test_rules_from_a_file_pay_as_those_in_python(tmp_path: Path) -> None:
    path = tmp_path / "air.yaml"
    path.write_text(FILE)
    rules = air.load_rules(path)
    assert [(rule.name, rule.event, rule.reward, rule.shaped) for rule in rules.rules] == [
        ("rows", "tool_success", 0.2, True),
        ("rule 2", "denied", -0.75, False),
        ("talk", "model_call", 0.01, False),
    ]
    assert (rules.cap, rules.base) == (0.4, AirRules(tool_error=-0.1))
    bench = Bench(AirPlugin(rules))
    with bench.governor.rollout(ATTEMPT):
        assert bench.tool("search_web", "1", agent="clerk") == [(0.2, "air")]
        assert bench.tool("search_web", "2", agent="clerk", arguments={"x": 1}) == []
        assert bench.tool("search_web", "3", agent="boss") == [(0.05, "air")]
        assert bench.tool("search_web", "4", "error") == [(-0.1, "air")]
        assert bench.tool("t", "5", "denied", decision=Decision(Effect.DENY, "p")) == [(-0.75, "compliance")]
        bench.chat("resp-1", model="gpt-1")
    assert bench.paid()[-4:] == [
        (0.01, "air", None, "resp-1"),
        (-0.2, "air", "1", None),  # clerk's
        (-0.05, "air", "3", None),  # boss's
        (0.1, "air", "4", None),
    ]


def test_rules_from_a_section_and_from_memory(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    inner = "".join(f"  {line}\n" for line in FILE.strip().splitlines())
    path.write_text(f"else: {{whatever: 1}}\nair:\n{inner}")
    assert air.load_rules(path, section="air").rules == air.rules_of(read_yaml(FILE, "file")[0]).rules
    path.write_text(path.read_text().replace("reward: 0.2", "reward: much"))
    with pytest.raises(RewardFileError, match=rf"^{path}:11: reward is 'much'"):
        air.load_rules(path, section="air")
    with pytest.raises(RewardFileError, match="no section 'rewards'"):
        air.load_rules(path, section="rewards")


def test_true_for_defaults_are_the_built_in_values() -> None:
    assert air.rules_of({"version": 1, "defaults": True}).base == AirRules()


WRONG = [
    ("", 1, "the document is None"),
    ("version: 2\ndefaults: true", 1, "version is 2"),
    ("version: 1\ncap: -1\ndefaults: true", 2, "cap is -1"),
    ("version: 1\ncap: lots\ndefaults: true", 2, "cap is 'lots'"),
    ("version: 1", 1, "nothing is ever paid"),
    ("version: 1\nrule: []", 2, "no key 'rule' here (did you mean rules?)"),
    ("version: 1\ndefaults: {denied: [1]}", 2, "denied is [1]"),
    ("version: 1\ndefaults: {shaped: 3}", 2, "shaped is 3 (it must be true or false)"),
    ("version: 1\ndefaults: {denial: 3}", 2, "no key 'denial' here (did you mean denied?)"),
    ("version: 1\ndefaults: 3", 2, "defaults is 3 (it must be true or a mapping)"),
    ("version: 1\nrules: 3", 2, "rules is 3 (it must be a list)"),
    ("version: 1\nrules:\n- on: denied", 3, "there is no reward"),
    ("version: 1\nrules:\n- reward: 1", 3, "there is no on"),
    ("version: 1\nrules:\n- on: tool_sucess\n  reward: 1", 3, "on is 'tool_sucess' (did you mean tool_success?)"),
    ("version: 1\nrules:\n- on: denied\n  reward: true", 4, "reward is True"),
    ("version: 1\nrules:\n- on: denied\n  reward: .nan", 4, "'.nan' is read as float"),
    (
        "version: 1\nrules:\n- on: denied\n  reward: 1\n  tools: run_sql",
        5,
        "tools is 'run_sql' (it must be a list of globs, at least one)",
    ),
    (
        "version: 1\nrules:\n- on: denied\n  reward: 1\n  agents: []",
        5,
        "agents is [] (it must be a list of globs, at least one)",
    ),
    ("version: 1\nrules:\n- on: denied\n  reward: 1\n  shaped: 1", 5, "shaped is 1"),
    ("version: 1\nrules:\n- on: denied\n  reward: 1\n  name: 7", 5, "name is 7"),
    ("version: 1\nrules:\n- on: tool_success\n  reward: 1\n  milestone: day", 5, "milestone is 'day'"),
    ("version: 1\nrules:\n- {on: denied, reward: 1, name: x}\n- {on: denied, reward: 1, name: x}", 4, "two AIR rules"),
    ("version: 1\nrules: [", 2, "not YAML"),
]


@pytest.mark.parametrize(("text", "line", "said"), WRONG)
def test_a_mistake_is_an_error_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = tmp_path / "air.yaml"
    path.write_text(text)
    with pytest.raises(RewardFileError) as raised:
        air.load_rules(path)
    assert said in str(raised.value)
    if text:
        assert str(raised.value).startswith(f"{path}:{raised.value.line}: ")
        assert raised.value.line == line


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff")])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "air.yaml")
    with pytest.raises(RewardFileError, match=r"air\.yaml: "):
        air.load_rules(tmp_path / "air.yaml")


def test_the_schema_agrees_with_the_loader() -> None:
    validate = fastjsonschema.compile(air.AIR_FILE_SCHEMA)
    validate(read_yaml(FILE, "file")[0])
    # What only the loader can tell: names that are given twice, files in which nothing is paid, YAML that is none.
    beyond = ("two AIR rules", "nothing is ever paid", "not YAML", ".nan")
    for text, _, said in WRONG:
        if not any(part in said for part in beyond):
            with pytest.raises(fastjsonschema.JsonSchemaException):
                validate(read_yaml(text, "file")[0])
