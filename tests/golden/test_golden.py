"""Cases worked out by hand: what spans in the documented format become (see `golden_cases` for how they are written)."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from golden_cases import otlp_spans, read_cases, request_line

from lgov_core.commands import cli

ALL = read_cases()
#: As many as the acceptance asks for.
FEWEST = 60
CREDITED = ("return", "credit", "advantages", "loss_weight")


def arguments(case: dict[str, Any]) -> list[str]:
    given = case.get("options", {})
    fields = {"agents": "agent", "models": "model"}
    found = [word for name in fields for glob in given.get(name, ()) for word in ("--where", f"{fields[name]}={glob}")]
    found += [word for name, glob in given.get("attributes", {}).items() for word in ("--where", f"{name}={glob}")]
    found += ["--credit", given.get("credit", "none")]
    found += ["--include-infrastructure"] if given.get("include_infrastructure") else []
    return [*found, *(["--chains"] if "chains" in case["expect"] else [])]


def convert(case: dict[str, Any], lines: list[str], folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What ``lgov transitions SPANS.jsonl --json --diagnostics FILE`` says."""
    source, told = folder / "spans.jsonl", folder / "diagnostics.json"
    source.write_text("\n".join(lines) + "\n")
    command = ["transitions", str(source), "--json", "--diagnostics", str(told), *arguments(case)]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), json.loads(told.read_text())


def close(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, int | float):
        return found == pytest.approx(expected, abs=1e-9)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(close(found[k], expected[k]) for k in found)
        )
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize("case", ALL, ids=[case["name"] for case in ALL])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    rows, told = convert(case, [request_line(otlp_spans(case))], tmp_path)
    expected = case["expect"].get("chains", case["expect"].get("transitions", []))
    assert [row.get("response_id") for row in rows] == [one.get("response_id") for one in expected]
    for row, wanted in zip(rows, expected, strict=True):
        for name, value in wanted.items():
            assert close(row[name], value), f"{wanted.get('response_id')}: {name} is {row[name]}, not {value}"
    assert told["counts"] == case["expect"].get("diagnostics", {}), told["diagnostics"]
    unassigned = sorted([one["dimension"], one["value"]] for one in told["unassigned"])
    assert unassigned == case["expect"].get("unassigned", [])
    for finding, subjects in case["expect"].get("subjects", {}).items():
        assert sorted(one["subject"] for one in told["diagnostics"] if one["finding"] == finding) == sorted(subjects)


@pytest.mark.parametrize("case", ALL, ids=[case["name"] for case in ALL])
def test_the_order_of_arrival_changes_nothing(case: dict[str, Any], tmp_path: Path) -> None:
    """The same spans shuffled, some twice, spread over requests."""
    spans = otlp_spans(case)
    expected = convert(case, [request_line(spans)], tmp_path)
    chance = random.Random(case["name"])
    again = [*spans, *chance.sample(spans, len(spans) // 2)]
    chance.shuffle(again)
    lines = [request_line(again[start : start + 2]) for start in range(0, len(again), 2)]
    assert convert(case, lines, tmp_path) == expected


def test_there_are_enough_cases_and_each_says_how_it_was_worked_out() -> None:
    assert len({case["name"] for case in ALL}) == len(ALL) >= FEWEST
    for case in ALL:
        assert len(case["about"]) > 20, case["name"]
        assert len(case["working"]) > 30, case["name"]


def test_two_thousand_spans_inside_each_other(tmp_path: Path) -> None:
    """Each of 2,000 runs inside the one before makes a call: no recursion, and every call has the agent right above it."""
    spans: list[dict[str, Any]] = [
        {"agent": "a0", "id": 0, "outcome": "succeeded", "rollout": "r", "attempt": 1, "task": "t"}
    ]
    for depth in range(1, 2000):
        spans.append({"agent": f"a{depth}", "id": depth, "under": depth - 1})
    tokens = {"prompt": [1], "reply": [2], "logprobs": [-0.5]}
    spans += [{"call": f"c{depth}", "under": depth, **tokens} for depth in range(2000)]
    spans.append({"reward": 1.0, "under": 1999})
    made = otlp_spans({"spans": spans})
    chance = random.Random(0)
    chance.shuffle(made)
    rows, told = convert({"expect": {}, "options": {"agents": ["a1999", "a7"]}}, [request_line(made)], tmp_path)
    assert [(row["response_id"], row["agent"], row["rollout_id"]) for row in rows] == [
        ("c7", "a7", "r"),
        ("c1999", "a1999", "r"),
    ]
    assert [row["rewards"] for row in rows] == [{}, {"task": 1.0}]
    assert told["counts"] == {}


def test_a_cycle_of_two_thousand_spans(tmp_path: Path) -> None:
    ring = [{"span": "s", "id": at, "under": (at + 1) % 2000} for at in range(2000)]
    call = {"call": "c", "under": 5, "rollout": "r", "task": "t", "outcome": "succeeded", "prompt": [1], "reply": [2]}
    made = otlp_spans({"spans": [*ring, {**call, "logprobs": [-0.5]}, {"reward": 1.0, "rollout": "r"}]})
    rows, told = convert({"expect": {}}, [request_line(made)], tmp_path)
    assert [row["rewards"] for row in rows] == [{"task": 1.0}]
    assert told["counts"] == {"cyclic_spans": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not an ExportTraceServiceRequest"),
        ("[]", "not an ExportTraceServiceRequest"),
        ('{"spans": []}', "no resourceSpans"),
        ("\udc80", "not an ExportTraceServiceRequest"),
    ],
)
def test_a_broken_line_is_named(line: str, said: str, tmp_path: Path) -> None:
    good = request_line(otlp_spans(ALL[0]))
    source = tmp_path / "spans.jsonl"
    source.write_bytes(f"{good}\n\n{line}\n".encode(errors="surrogateescape"))
    result = CliRunner().invoke(cli, ["transitions", str(source), "--json"])
    assert result.exit_code == 1
    assert f"{source}:3: " in result.stderr
    assert said in result.stderr
    assert result.stdout == ""


def test_a_span_that_cannot_be_read_loses_no_other(tmp_path: Path) -> None:
    spans = otlp_spans(ALL[0])
    rows, told = convert({"expect": {}}, [request_line([*spans, {**spans[1], "spanId": "zz"}])], tmp_path)
    assert len(rows) == 3
    assert told["counts"] == {"unreadable_span": 1}
