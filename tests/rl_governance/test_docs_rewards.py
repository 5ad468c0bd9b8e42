"""What docs/how-to/rewards.md and docs/how-to/other-frameworks.md say holds: every block runs, every hook and name is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from lgov_core import air, hookspecs
from lgov_core.air.rules import PARAMETERS
from lgov_core.reward import AirRules
from lgov_core.scope import RolloutScope
from lgov_core.transitions import SCHEMES, CreditRules, TransitionSet
from lgov_core.types import Action, Point, Reward, ToolOutcome
from tests.docs.page_runner import page_text

ROOT = Path(__file__).parents[2]
REWARDS = (ROOT / "docs/how-to/rewards.md").read_text(encoding="utf-8")
PLUGINS = page_text(f"{ROOT}/docs/how-to/other-frameworks.md#Write a plugin")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", REWARDS, re.M | re.S)


def test_every_block_runs_and_pays_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text("version: 1\nrules:\n  - {name: all, use: allow}\n")
    (rules,) = blocks("yaml")
    Path("air.yaml").write_text(rules)
    python = blocks("python")
    assert len(python) == 4
    names: dict[str, Any] = {}
    with air.scope():
        exec(python[0], names)
        assert played(names, "run_sql", ("ok", {}), ("error", {})) == [0.1, -0.05, -0.05]
        exec(python[1], names)
        pages = [("ok", {"page": page, "at": at}) for at, page in enumerate((1, 1, 2))]
        assert played(names, "fetch_page", *pages) == [0.1, 0.1, -0.2]
        exec(python[2], names)
        assert played(names, "run_sql", ("ok", {"x": 1}), ("ok", {"x": 2})) == [0.1, -0.1]
        assert played(names, "other", ("ok", {}), ("error", {})) == [0.05, -0.05]
    for block in python[3:]:
        exec(block, names)
    assert isinstance(names["credited"], TransitionSet)
    from tests.transitions.credit_parts import group

    def only_the_last(rollouts: Any, rules: CreditRules) -> list[list[float]]:
        mean = sum(rollout[-1].reward for rollout in rollouts) / len(rollouts)
        return [[0.0] * (len(rollout) - 1) + [rollout[-1].reward - mean] for rollout in rollouts]

    credited = names["assign_credit"](group([0.0, 1.0], [0.0]), CreditRules(scheme=only_the_last))
    assert [one.credit for one in credited.transitions] == [0.0, 0.5, -0.5]


class Seen:
    """Keeps the rewards that a governor shows."""

    def __init__(self) -> None:
        self.values: list[float] = []

    @hookspecs.hookimpl
    def lgov_observe(self, event: Any) -> None:
        if isinstance(event, Reward):
            self.values.append(round(event.value, 12))


def played(names: dict[str, Any], tool: str, *calls: tuple[Any, dict[str, Any]]) -> list[float]:
    """What calls of a tool, each a status and its arguments, earn in one rollout; at the end what is taken back."""
    governor, seen = names["governor"], Seen()
    governor.manager.register(seen)
    with governor.rollout(RolloutScope("r")):
        for at, (status, arguments) in enumerate(calls):
            action = Action(Point.PRE_TOOL_CALL, tool, arguments=arguments, call_id=f"c{at}")
            governor.record(ToolOutcome(action, status, result="three rows"))
    governor.manager.unregister(seen)
    return seen.values


def test_the_decorators_and_what_they_may_ask_for_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(on_\w+)` \| (.*?) \|", REWARDS, re.M))
    assert {name.removeprefix("on_") for name in rows} == set(PARAMETERS)
    for name, asked in rows.items():
        known = set(PARAMETERS[name.removeprefix("on_")])  # type: ignore[index]
        named = set(re.findall(r"`(\w+)`", asked)) - {"output"} | ({"output"} & known)
        assert named <= known
        assert hasattr(air, name)
        if "the same" not in asked:
            assert named == known
        else:
            assert named | set(PARAMETERS["tool_success"]) - {"output"} == known


def test_schemes_and_numbers_in_the_text_are_those_of_the_code() -> None:
    table = REWARDS.partition("| scheme |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.M)) == set(SCHEMES)
    values = AirRules()
    assert f"success {values.tool_success:g}, failure −{-values.tool_error:g}, denial −{-values.denied:g}" in REWARDS
    assert f"`CreditRules.air_cap`, {CreditRules().air_cap:g} a rollout" in REWARDS.replace("\n", " ")
    assert f"({air.RuleSet().cap:.1f} unless given)" in REWARDS
    for name in re.findall(r"`air\.(\w+)", REWARDS):
        assert hasattr(air, name), name


def test_the_plugin_of_the_page_denies_and_pays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text("version: 1\nrules:\n  - {name: all, use: allow}\n")
    (program,) = re.findall(r"^```python\n(.*?)^```", PLUGINS, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(program, "plugins.md", "exec"), names)
    decisions = [names["governor"].decide(Action(Point.PRE_TOOL_CALL, name)) for name in ("pay", "search")]
    assert [decision.effect.name for decision in decisions] == ["DENY", "ALLOW"]
    assert played(names, "search", ("ok", {}), ("error", {})) == [0.1]


def test_every_scheme_says_where_it_comes_from_and_whether_it_is_biased() -> None:
    for name, scheme in SCHEMES.items():
        document = inspect.getdoc(scheme) or ""
        assert "A[i][t]" in document, name
        assert re.search(r"[Bb]iased", document), name
        assert "Source:" in document or name == "step", name
