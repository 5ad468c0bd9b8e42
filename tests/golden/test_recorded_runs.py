"""Recorded runs give the rows that they always gave.

``recorded_runs/*.db.gz`` are stores as earlier versions wrote them (``make_runs.py``, ``lgov demo --quick``),
``recorded_runs/rows.json.gz`` is what was made of them. Where rows change on purpose, write them anew in the same commit, and
say why in its message:
``python tests/golden/test_recorded_runs.py --write``.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lgov_core.commands.transitions import FORMATS
from lgov_core.store import open_store
from lgov_core.transitions import (
    CreditRules,
    Records,
    Selection,
    TransitionSet,
    assign_credit,
    make_chains,
    make_transitions,
    read_store,
)

RUNS = Path(__file__).parent / "recorded_runs"
ROWS = RUNS / "rows.json.gz"
STORES = sorted(path.name.removesuffix(".db.gz") for path in RUNS.glob("*.db.gz"))
#: Views of each run: what `make_transitions` gets, and the schemes that assign credit.
SELECTIONS = {
    "plain": (Selection(), {}),
    "all": (Selection(held_out=True), {"keep_infrastructure": True}),
    "planner": (Selection(("planner",)), {}),
    "other": (Selection(models=("other",)), {"need_logprobs": True}),
}
SCHEMES = {
    "identical": CreditRules(scheme="identical"),
    "return_to_go": CreditRules(scheme="return_to_go", discount=0.9),
    "step": CreditRules(scheme="step", air_cap=None, caps={"air": 0.1}),
    "gigpo": CreditRules(scheme="gigpo"),
    "flow_grpo": CreditRules(scheme="flow_grpo", air_cap=None),
}
CREDIT = ("return", "credit", "value", "advantages", "loss_weight")


def unpacked(name: str, folder: Path) -> Path:
    path = folder / f"{name}.db"
    path.write_bytes(gzip.decompress((RUNS / f"{name}.db.gz").read_bytes()))
    return path


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def notes(data: TransitionSet) -> dict[str, Any]:
    return {
        "diagnostics": [[one.finding.value, one.subject, one.detail] for one in data.diagnostics],
        "unassigned": [[one.reward_id, one.dimension, one.value] for one in data.unassigned],
    }


def rows_of_run(records: Records) -> dict[str, Any]:
    """All that is compared of one run."""
    views: dict[str, Any] = {}
    for view, (selection, options) in SELECTIONS.items():
        data = make_transitions(records, selection, **options)
        views[view] = {"rows": [one.as_row() for one in data.transitions], **notes(data)}
    data = make_transitions(records)
    for scheme, rules in SCHEMES.items():
        credited = assign_credit(data, rules)
        views[scheme] = [[one.as_row()[name] for name in CREDIT] for one in credited.transitions]
        views[f"{scheme} chains"] = digest([chain.as_row() for chain in make_chains(credited.transitions)])
    credited = assign_credit(make_transitions(records, need_logprobs=True), SCHEMES["return_to_go"])
    for form, write in FORMATS.items():
        written, left_out = write(records, credited)
        views[f"format {form}"] = [len(written), digest(plain(written)), dict(sorted(left_out.items()))]
    return plain(views)


def rows_of_store(path: Path) -> dict[str, Any]:
    with open_store(path, make=False) as store:
        runs = sorted({rollout.run_id for rollout in store.rollouts()})
        found = {
            run: rows_of_run(read_store(store, [one.rollout_id for one in store.rollouts(run_id=run)])) for run in runs
        }
        everything = make_transitions(read_store(store), Selection(held_out=True))
    found["everything"] = {"rows": digest([one.as_row() for one in everything.transitions]), **notes(everything)}
    return found


def test_there_are_fifty_runs_with_all_that_a_run_can_have() -> None:
    expected = json.loads(gzip.decompress(ROWS.read_bytes()))
    runs = [run for store in STORES for name, run in expected[store].items() if name != "everything"]
    assert len(runs) >= 50
    rows = [row for run in runs for row in run["all"]["rows"]]
    assert {row["outcome"] for row in rows} >= {
        "succeeded",
        "failed",
        "blocked",
        "truncated",
        "infrastructure",
        "timeout",
    }
    assert max(row["attempt"] for row in rows) == 3
    assert {row["agent"] for row in rows} >= {"planner", "coder", None}
    for name in ("set_aside", "held_out", "parent_call_id", "truncated"):
        assert any(row[name] for row in rows), name
    assert {dimension for row in rows for dimension in row["rewards"]} >= {"task", "air", "compliance"}


@pytest.mark.parametrize("name", STORES)
def test_a_recorded_run_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    expected = json.loads(gzip.decompress(ROWS.read_bytes()))[name]
    rows = rows_of_store(unpacked(name, tmp_path))
    assert rows.keys() == expected.keys()
    for run, views in expected.items():
        for view, value in views.items():
            assert rows[run][view] == value, f"{run}: {view}"


def write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = {name: rows_of_store(unpacked(name, Path(folder))) for name in STORES}
    ROWS.write_bytes(gzip.compress(json.dumps(rows).encode(), mtime=0))


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/golden/test_recorded_runs.py --write")
    write()
