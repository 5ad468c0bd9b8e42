"""``lgov doctor`` and ``lgov models``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lgov_core
from lgov_core.commands.group import Exit
from tests.commands.cli_runner import lgov


def test_plugins_lists_the_built_in_adapters() -> None:
    found = {plugin["name"]: plugin for plugin in json.loads(lgov("doctor", "--json").stdout)["plugins"]}
    assert found["lgov_langchain.instrumentor"] == {
        "name": "lgov_langchain.instrumentor",
        "builtin": True,
        "hooks": ["lgov_framework"],
    }
    assert "lgov_langchain.instrumentor" in lgov("doctor").stdout


def test_a_plugin_that_cannot_be_loaded_is_a_finding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder / "broken_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lgov]\nbroken = no_such_module\n")
    monkeypatch.syspath_prepend(str(folder))
    result = lgov("doctor")
    assert result.exit_code == Exit.FINDING
    assert "no_such_module" in result.stdout
    result = lgov("doctor", "--json")
    assert result.exit_code == Exit.FINDING
    assert any("no_such_module" in problem for problem in json.loads(result.stdout)["problems"])


def test_doctor_shows_settings_with_origins_and_problems(folder: Path) -> None:
    (folder / "lgov.toml").write_text("\nport = 9\n")
    result = lgov("doctor", "--json")
    assert result.exit_code == Exit.OK
    report = json.loads(result.stdout)
    assert report["settings"]["port"] == {"value": 9, "origin": "lgov.toml:2"}
    assert report["lgov"] == lgov_core.__version__
    assert {"langchain", "autogen", "openai-agents"} <= {framework["name"] for framework in report["frameworks"]}
    assert report["extras"]["langchain"]["langchain-core"]
    assert "lgov.toml:2" in lgov("doctor").stdout
    (folder / "lgov.toml").write_text("prot = 9\n")
    result = lgov("doctor")
    assert result.exit_code == Exit.FINDING
    assert "did you mean port" in result.stdout


def test_models_pull_without_a_name_says_which_are_here(folder: Path) -> None:
    (folder / "lgov.toml").write_text('cache = "cache"\n')
    here = {model["name"]: model["available"] for model in json.loads(lgov("models", "pull", "--json").stdout)}
    assert here == {"tiny": True, "smollm2": False}
    model = folder / "cache" / "models" / "smollm2"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    assert str(model) in lgov("models", "pull", "--json").stdout
    assert lgov("models", "pull", "smollm2").stdout == f"{model}\n"


def installed(folder: Path, name: str, version: str, *requires: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")


def test_an_extra_is_complete_with_the_extras_that_it_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled parser is a distribution of its own, which sqlglot[c] brings."""
    installed(folder, "sqlglot", "30.1", 'sqlglotc==30.1; python_version >= "3.10" and extra == "c"')
    monkeypatch.syspath_prepend(str(folder))
    fast = json.loads(lgov("doctor", "--json").stdout)["extras"]["fast"]
    assert set(fast) == {"sqlglot", "sqlglotc"}
    assert fast["sqlglot"] == "30.1"
    installed(folder, "sqlglotc", "30.1")
    assert json.loads(lgov("doctor", "--json").stdout)["extras"]["fast"]["sqlglotc"] == "30.1"


@pytest.mark.parametrize(("mcp", "breaks"), [("2.3.0", True), ("1.28.1", False)])
def test_doctor_names_the_mcp_that_breaks_autogen(
    mcp: str, breaks: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(folder, "mcp", mcp)
    installed(folder, "autogen-ext", "0.7.5")
    monkeypatch.syspath_prepend(str(folder))
    result = lgov("doctor")
    assert ("pip install 'mcp<2'" in result.stdout) == breaks
    assert result.exit_code == Exit.OK
