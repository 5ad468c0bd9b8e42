"""The places that govern are one list, closed to what they govern wherever a name leads; harmless places are another."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import lgov_core
from lgov_core.governance import Governance
from lgov_core.places import GoverningPlaces, _plugin_files, is_harmless, is_harmless_variable, places_for
from lgov_core.policies import load_policy_file
from lgov_core.types import Action, Point

POLICY = """
version: 1
rules:
  - {name: files, use: path, tools: [write_file], with: {roots: [.]}}
  - {name: people, use: approval, tools: [pay], with: {store: answers.db}}
  - {name: pins, use: pinned, with: {store: conf/pins.db}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "conf").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "rules.yaml").write_text(POLICY)
    (folder / "lgov.toml").write_text('policy = "rules.yaml"\naudit = "kept/record.db"\nair = "rewards.py"\n')
    monkeypatch.chdir(folder)
    return folder


def judged(folder: Path, path: str, **arguments: str) -> str:
    policies = load_policy_file(folder / "rules.yaml")
    decision = policies.judge(Action(Point.PRE_TOOL_CALL, "write_file", arguments={"path": path, **arguments}))
    return decision.rule if decision.blocks else "allow"


@pytest.mark.parametrize(
    "path",
    [
        *("rules.yaml", "lgov.toml", "rewards.py", "policy.yaml", "policy.yml"),
        *("kept/record.db", "kept/record.db-wal", "kept/record.db.heads.jsonl", "answers.db", "conf/pins.db-journal"),
        *(
            "sub/lgov.toml",
            "sub/.lgov/audit.db",
            "RULES.yaml",
            "conf/../rules.yaml",
            "%72ules.yaml",
            "lgov_core/cli.py",
            ".venv/lib/python3.12/site-packages/x.pth",
        ),
    ],
)
def test_a_file_tool_cannot_change_what_governs_it(project: Path, path: str) -> None:
    assert judged(project, path) == "path-governs"


@pytest.mark.parametrize(
    "path", ["notes.md", "conf/app.yaml", "sub/policy.yaml", "pyproject.toml", "kept/recorder.py", "."]
)
def test_what_does_not_govern_stays_open(project: Path, path: str) -> None:
    assert judged(project, path) == "allow"


def test_modules_of_plugins_are_closed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "own" / "rules").mkdir(parents=True)
    (project / "own" / "rules" / "judge.py").write_text("raise AssertionError('it is not imported')")
    point = EntryPoint("mine", "own.rules.judge:Policy", "lgov")
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == "lgov" else [])
    _plugin_files.cache_clear()
    try:
        places = places_for(project)
        assert places.writes(str(project / "own" / "rules" / "judge.py"))
        assert places.writes(str(project / "own" / "rules" / "other.py")) is None
    finally:
        _plugin_files.cache_clear()


def test_a_name_is_judged_where_it_ends_up(project: Path) -> None:
    (project / "way").symlink_to(".")
    (project / "soft").symlink_to("rules.yaml")
    os.link(project / "rules.yaml", project / "hard")
    for path in ("way/rules.yaml", "soft", "hard", "way/way/policy.yml"):
        assert judged(project, path) == "path-governs", path


def test_the_projects_file_may_be_edited_but_not_given_settings(project: Path) -> None:
    assert judged(project, "pyproject.toml", content="[project]\nname = 'x'") == "allow"
    assert judged(project, "pyproject.toml") == "allow"  # it may be read
    for arguments in (
        {"content": "[tool.lgov]\npolicy = 'mine.yaml'"},
        {"content": '["tool"."l\\u0067ov"]'},
        {"content_base64": "W3Rvb2wubGdvdl0K"},
        {"source": "other.toml"},
        {"url": "https://example.com/other.toml"},
    ):
        assert judged(project, "pyproject.toml", **arguments) == "path-governs", arguments
    (project / "pyproject.toml").write_text("[tool.xgov]\n[tool.lxgxoxv]\n")
    assert judged(project, "pyproject.toml", old="xg", new="lg") == "path-governs"
    assert judged(project, "pyproject.toml", old="x", new="") == "path-governs"
    assert judged(project, "pyproject.toml", old="xgov", new="ruff") == "allow"
    (project / "lgov.toml").unlink()
    (project / "pyproject.toml").write_text("[tool.lgov]\npolicy = 'rules.yaml'\n")
    assert judged(project, "pyproject.toml", content="[project]") == "path-governs"


def test_rules_are_read_but_records_and_keys_are_not(project: Path) -> None:
    places = places_for(project).and_of(GoverningPlaces.at((), (str(project / "answers.db"),)))
    assert places.reads(str(project / "rules.yaml")) is None
    for kept in ("kept/record.db", "answers.db", "sub/.lgov/approvals.db"):
        assert places.reads(str(project / kept)), kept
    assert places.reads(os.path.expanduser("~/.config/lgov/audit-key")) or "XDG_CONFIG_HOME" in os.environ


def test_a_folder_that_holds_what_governs_stays_where_it_is(project: Path) -> None:
    places = places_for(project)
    assert places.moves(str(project / "kept"))
    assert places.moves(str(project))
    assert places.moves(str(project / "conf")) is None
    assert places.writes(str(project / "kept" / "other")) is None


def test_the_places_are_those_of_the_options_that_govern(project: Path) -> None:
    places = Governance(policy=Path("rules.yaml"), audit=Path("elsewhere.db"), heads=Path("heads.jsonl")).places()
    assert places.writes(str(project / "elsewhere.db-shm"))
    assert places.writes(str(project / "heads.jsonl"))
    assert places.writes(str(Path(lgov_core.__file__)))


def test_variables_of_lgov_are_closed() -> None:
    assert GoverningPlaces.variable("LGOV_POLICY")
    assert GoverningPlaces.variable("PATH") is None


@pytest.mark.parametrize("path", ["/usr/share/dict/words", "/etc/os-release", "/proc/cpuinfo"])
def test_harmless_places_are_known(path: str) -> None:
    assert is_harmless(path)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/etc/shadow",
            "/etc/passwd",
            "/etc/ssl/private/site.key",
            "/root/.bashrc",
            "/home/a/notes",
            "/proc/self/environ",
        ),
        *(
            "/run/secrets/x",
            "/var/lib/mysql/ibdata1",
            "/usr/../etc/shadow",
            "/usrlocal",
            "/Users/a/Library",
            "/mnt/backup",
        ),
    ],
)
def test_every_other_place_is_not(path: str) -> None:
    assert not is_harmless(path)


def test_a_link_out_of_a_harmless_place_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lgov_core.places.HARMLESS_PLACES", (str(tmp_path / "open"),))
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "way").symlink_to("/etc/shadow")
    assert is_harmless(str(tmp_path / "open" / "file"))
    assert not is_harmless(str(tmp_path / "open" / "way"))


def test_of_the_environment_the_harmless_names_are_known() -> None:
    assert all(map(is_harmless_variable, ("PATH", "HOME", "LC_ALL", "VIRTUAL_ENV", "CI", "PYTHONPATH")))
    assert not any(
        map(is_harmless_variable, ("OPENAI_API_KEY", "DATABASE_URL", "SECRET", "SSH_AUTH_SOCK", "path", "X"))
    )
