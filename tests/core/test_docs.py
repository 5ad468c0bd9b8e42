"""What the documents say holds."""

from __future__ import annotations

import json
import re
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from markdown.extensions.toc import slugify

from lgov_core.commands import cli
from lgov_core.policies import load_policy_file
from lgov_core.settings import load_settings
from lgov_core.store import open_store
from lgov_core.trace import semconv
from lgov_core.transitions import read_store

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    path
    for places in ("*.md", "docs/**/*.md", "examples/*/*.md", "evidence/**/*.md")
    for path in sorted(ROOT.glob(places))
]


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs/reference/policies.md"], ids=lambda path: path.name)
def test_the_policy_files_in_the_documents_load(path: Path, tmp_path: Path) -> None:
    written = blocks(path, "yaml")
    conditions = [text for text in written if text.startswith("when:")]
    file = tmp_path / "policy.yaml"
    for text in written:
        if text not in conditions:
            file.write_text(text)
            assert load_policy_file(file).rules
    for condition in conditions:
        rule = condition.replace("\n", "\n    ")
        file.write_text(f"version: 1\nrules:\n  - name: r\n    use: deny\n    {rule}\n")
        assert load_policy_file(file).rules[0].condition is not None


def test_the_settings_file_in_the_documents_loads(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs/reference/settings.md", "toml")
    (tmp_path / "lgov.toml").write_text(text)
    settings = load_settings(folder=tmp_path, environ={})
    assert {name for name in tomllib.loads(text) if settings.origin(name) == "default"} == set()


def test_a_program_records_into_a_store_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = (block for block in blocks(ROOT / "docs/how-to/tracing.md", "python") if "RolloutScope(" in block)
    (tmp_path / "policy.yaml").write_text("version: 1\nrules: [{name: a, use: allow}]\n")
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "store.md", "exec"), {})
    with closing(open_store("traces.sqlite")) as store:
        points = [span.attributes[semconv.POINT] for span in store.spans(["r2"])]
        (rollout,) = read_store(store, ["r2"]).rollouts
    assert points == ["agent_startup", "agent_shutdown"]
    assert rollout.task_id == "task-1"
    (listed,) = json.loads(CliRunner().invoke(cli, ["traces", "list", "traces.sqlite", "--json"]).stdout)["attempts"]
    assert listed["task_id"] == "task-1"


def test_every_test_that_the_threat_model_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/concepts/threat-model.md").read_text()))
    files = list((ROOT / "tests").rglob("test_*.py"))
    there = {path.stem for path in files}
    there.update(name for path in files for name in re.findall(r"def (test_\w+)", path.read_text()))
    assert len(named) > 30
    assert named - there == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        place = path.parent / target if target else path
        assert place.exists(), target
        if anchor and place.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.M)
            assert anchor in [slugify(heading, "-") for heading in headings], f"{target}#{anchor}"
