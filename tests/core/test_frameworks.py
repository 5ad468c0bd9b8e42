"""What adapters declare is true in form: the page is up to date, and every cell, ability and gap has its test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lgov_core.adapter import MODES, SHAPES, Adapter, Gap, Surface
from lgov_core.cli import cli
from lgov_core.run_report import near_gaps
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


def test_the_command_shows_what_the_adapters_declare() -> None:
    shown = json.loads(CliRunner().invoke(cli, ["frameworks", "--json"]).output)
    assert [one["name"] for one in shown] == [adapter.name for adapter in ADAPTERS]
    text = CliRunner().invoke(cli, ["frameworks", "langchain"]).output
    assert "tested with langchain" in text
    assert "pre_tool_call" in text
    assert "autogen" not in text
    wrong = CliRunner().invoke(cli, ["frameworks", "langchian"])
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
