"""docs/reference/data.md names every attribute, field and finding that there is, and none that is not."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from lgov_core.store import open_store
from lgov_core.trace import semconv
from lgov_core.transitions import DataFinding
from lgov_core.transitions.rows import trl_rollouts, verl_rows
from lgov_core.transitions.tokens import make_chains
from lgov_core.transitions.transition_set import Transition, TransitionSet
from lgov_core.types import CapturedCall, Outcome, Reward, Rollout

TEXT = (Path(__file__).parents[2] / "docs/reference/data.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([\w.]+)`", TEXT))
ONE = Transition(
    run_id="run",
    weights_version=0,
    model="m",
    task_id="t",
    rollout_id="r",
    attempt=1,
    turn=0,
    response_id="a",
    agent="x",
    prompt_ids=(1,),
    response_ids=(2,),
    response_mask=(1,),
    logprobs=(-0.5,),
    temperature=1.0,
    finish_reason="stop",
    outcome=Outcome.SUCCEEDED,
    rewards={},
    value_to_go=0.0,
    advantages=(0.0,),
)


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_column(title: str) -> list[str]:
    rows = re.findall(r"^\| ?(`.*?) ?\|", section(title), re.M)
    return [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]


def test_every_attribute_is_documented_once_and_none_is_made_up() -> None:
    names = {value for key, value in vars(semconv).items() if key.isupper() and isinstance(value, str)}
    operations = {semconv.CHAT, semconv.EXECUTE_TOOL, semconv.INVOKE_AGENT, semconv.TEXT_COMPLETION, semconv.EMBEDDINGS}
    assert operations <= NAMED
    documented = first_column("Spans")
    assert sorted(documented) == sorted(names - operations)


def test_every_field_of_a_transition_is_documented_once() -> None:
    assert sorted(first_column("Transitions")) == sorted(ONE.as_row())


def test_every_finding_is_documented_once() -> None:
    assert sorted(first_column("Diagnostics")) == sorted(finding.value for finding in DataFinding)


def test_fields_of_chains_and_of_rows_for_others_are_documented() -> None:
    (chain,) = make_chains([ONE])
    row = chain.as_row()
    assert {*row, *row["turns"][0]} <= {*re.findall(r"`(\w+)`", section("Chains"))}
    data = TransitionSet((ONE,))
    exports = {*re.findall(r"`(\w+)`", section("Exports"))}
    assert {*verl_rows(data)[0].fields, *trl_rollouts(data).columns} <= exports


def test_the_example_is_json() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", TEXT, re.S)
    assert json.loads(example)["resourceSpans"]


def test_a_store_becomes_tokens_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", section("From a store to tokens"), re.S)
    with closing(open_store(str(tmp_path / "store.db"))) as store:
        store.add_rollouts([Rollout("r", "t", "run", {})])
        store.start_attempt("r", 1)
        store.add_call(
            CapturedCall(
                "a", "m", {}, {}, (1, 2), (3,), (-0.5,), "stop", 0, 1.0, 1.0, 1.0, 2.0, rollout_id="r", attempt=1
            )
        )
        store.finish_attempt("r", 1, Outcome.SUCCEEDED, rewards=[Reward(1.0, "task", "r", 1)])
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/reference/data.md", "exec"), {})
    assert "t {'transitions': 1, 'nodes': 1, 'total': 3, 'distinct': 3" in capsys.readouterr().out
