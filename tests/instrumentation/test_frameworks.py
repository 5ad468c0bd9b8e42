"""What adapters declare is true in form: the page is up to date, and every cell, ability and gap has its test."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lgov_core.commands import cli
from lgov_core.instrumentation.framework import MODES, SHAPES, Adapter, Gap, Surface
from lgov_core.process.report import near_gaps
from lgov_core.types import Point
from tests import frameworks_page

ADAPTERS = frameworks_page.adapters()


def test_the_page_is_up_to_date() -> None:
    assert frameworks_page.PAGE.read_text() == frameworks_page.page(), "python -m tests.frameworks_page --write"


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
def test_every_cell_is_tested_or_explained(adapter: Adapter) -> None:
    cells = frameworks_page.marked("cell")
    for mode in MODES:
        for shape in SHAPES:
            reason = frameworks_page.unsupported(adapter, mode, shape)
            tests = cells.get((adapter.name, mode, shape), [])
            assert bool(tests) != bool(reason), f"{adapter.name} {mode} {shape}: tests {tests}, reason {reason!r}"


def test_no_mark_names_a_cell_that_does_not_exist() -> None:
    names = {adapter.name for adapter in ADAPTERS}
    for name, mode, shape in frameworks_page.marked("cell"):
        assert (name in names, mode in MODES, shape in SHAPES) == (True, True, True), (name, mode, shape)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
def test_a_declared_ability_includes_what_it_needs(adapter: Adapter) -> None:
    for point, surface in adapter.surface.items():
        assert surface.observe, point
        assert surface.block or not surface.tell, point
    for (mode, shape), reason in adapter.unsupported.items():
        assert mode in MODES
        assert shape in (*SHAPES, "*")
        assert len(reason) > 20


def declared_abilities() -> set[tuple[str, str, str]]:
    """``(framework, point, ability)`` of every flag that an adapter has set."""
    return {
        (adapter.name, point.value, one.name)
        for adapter in ADAPTERS
        for point, surface in adapter.surface.items()
        for one in dataclasses.fields(surface)
        if getattr(surface, one.name)
    }


def test_every_declared_ability_is_shown_by_a_test_and_no_test_claims_another() -> None:
    marks = frameworks_page.marked("surface")
    shown = {(name, point, ability) for name, point, *abilities in marks for ability in abilities}
    declared = declared_abilities()
    assert sorted(declared - shown) == [], "declared, and shown by no test"
    assert sorted(shown - declared) == [], "claimed by a test, and not declared"
    assert all(len(words) > 2 for words in marks), "a mark without an ability says nothing"


#: Gaps that no test can show here, and why: ``(framework, gap) -> reason``.
NOT_SHOWN: dict[tuple[str, str], str] = {}


def test_every_gap_is_shown_by_a_test_or_it_is_said_why_not() -> None:
    shown = set(frameworks_page.marked("gap"))
    declared = {(adapter.name, gap.name) for adapter in ADAPTERS for gap in adapter.gaps}
    assert sorted(shown - declared) == [], "shown by a test, and not declared"
    assert sorted(declared - shown - set(NOT_SHOWN)) == [], "declared, and neither shown nor explained"
    assert sorted(set(NOT_SHOWN) & shown) == [], "shown after all"
    assert sorted(set(NOT_SHOWN) - declared) == [], "no such gap"
    assert all(len(reason) > 20 for reason in NOT_SHOWN.values())


def test_the_command_shows_what_the_adapters_declare() -> None:
    shown = json.loads(CliRunner().invoke(cli, ["doctor", "--frameworks", "--json"]).output)
    assert [one["name"] for one in shown] == [adapter.name for adapter in ADAPTERS]
    text = CliRunner().invoke(cli, ["doctor", "--frameworks", "langchain"]).output
    assert "tested with langchain" in text
    assert "pre_tool_call" in text
    assert "autogen" not in text
    wrong = CliRunner().invoke(cli, ["doctor", "--frameworks", "langchian"])
    assert wrong.exit_code == 2
    assert "there are: langchain" in wrong.output


def test_gaps_are_found_by_what_the_program_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = tmp_path / "main.py"
    main.write_text("import helper\ntool.func(1)\nprint('func')\nrun()\n")
    (tmp_path / "helper.py").write_text("def go():\n    return x.y.coroutine()\n")
    (tmp_path / "broken.py").write_text("def (")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.argv", [str(main)])
    import helper  # pyright: ignore[reportMissingImports] # noqa: F401

    adapter = Adapter(
        "x", ("x",), {}, {Point.OUTPUT: Surface()}, lambda: True, lambda governor: None, lambda: None,
        gaps=(Gap("tool.func", "goes around", ("func", "coroutine")), Gap("silent", "cannot be seen")),
    )  # fmt: skip
    found = near_gaps(tmp_path, [adapter])
    assert [(Path(one.file).name, one.line, one.call) for one in found] == [
        ("helper.py", 2, "coroutine"),
        ("main.py", 2, "func"),
    ]
    assert near_gaps(tmp_path, []) == []
