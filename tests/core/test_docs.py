"""What the documents say holds."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from contextlib import closing
from pathlib import Path

import click
import pytest

from lgov_core.cli import cli
from lgov_core.commands.group import Exit, LazyGroup
from lgov_core.policies import load_policy_file
from lgov_core.settings import Settings, load_settings
from lgov_core.store import open_store
from lgov_core.trace import semconv

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("examples/*/*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "docs/reference/policy-files.md"], ids=lambda path: path.name
)
def test_the_policy_files_in_the_documents_load(path: Path, tmp_path: Path) -> None:
    text, *conditions = blocks(path, "yaml")
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    assert load_policy_file(file).rules
    for condition in conditions:
        assert condition.startswith("when:")
        rule = condition.replace("\n", "\n    ")
        file.write_text(f"version: 1\nrules:\n  - name: r\n    use: deny\n    {rule}\n")
        assert load_policy_file(file).rules[0].condition is not None


def test_the_settings_file_in_the_documents_loads(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs/reference/settings.md", "toml")
    (tmp_path / "lgov.toml").write_text(text)
    settings = load_settings(folder=tmp_path, environ={})
    assert {name for name in tomllib.loads(text) if settings.origin(name) == "default"} == set()


def test_a_program_records_into_a_store_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = (block for block in blocks(ROOT / "docs/concepts/store.md", "python") if "StoreSink" in block)
    (tmp_path / "policy.yaml").write_text("version: 1\nrules: [{name: a, use: allow}]\n")
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "store.md", "exec"), {})
    with closing(open_store("traces.sqlite")) as store:
        points = [span.attributes[semconv.POINT] for span in store.spans(["r2"])]
    assert points == ["agent_startup", "agent_shutdown"]


def test_every_setting_is_documented_with_its_variable_and_default() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \| `([\w-]+)` \| (.*?) \|", (ROOT / "docs/reference/settings.md").read_text(), re.M
    )
    fields = [field for field in dataclasses.fields(Settings) if field.name != "origins"]
    assert [row[0] for row in rows] == [field.name for field in fields]
    for (name, variable, _, default), field in zip(rows, fields, strict=True):
        assert variable == f"LGOV_{name.upper()}"
        if field.default not in (None, ()):
            assert default == str(field.default)


def test_the_commands_in_the_readme_exist_and_none_is_missing() -> None:
    table = (ROOT / "README.md").read_text().partition("## Commands")[2].partition("## Layout")[0]
    named = {tuple(match.split()) for match in re.findall(r"`lgov ([a-z]+(?: [a-z]+\b(?!:))?)", table)}
    existing: set[tuple[str, ...]] = set()
    assert isinstance(cli, LazyGroup)
    for name in cli.commands:
        command = cli.load(name)
        inner = command.commands if isinstance(command, click.Group) else {}
        existing |= {(name, sub) for sub in inner} or {(name,)}
    known = {path if path in existing else path[:1] for path in named}
    assert known == existing


def test_the_exit_codes_in_the_readme_are_those_of_the_program() -> None:
    table = (ROOT / "README.md").read_text().partition("| exit status |")[2].partition("## Layout")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)] == [code.value for code in Exit]


def test_every_test_that_the_threat_model_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/concepts/threat-model.md").read_text()))
    files = list((ROOT / "tests").rglob("test_*.py"))
    there = {path.stem for path in files}
    there.update(name for path in files for name in re.findall(r"def (test_\w+)", path.read_text()))
    assert len(named) > 30
    assert named - there == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), target
