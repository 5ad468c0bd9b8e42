"""What all commands have in common: help, errors, exit codes, output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import lgov_core
from lgov_core.audit import AuditLog
from lgov_core.commands import cli
from lgov_core.commands.group import Exit, LazyGroup, exit_of, write_table
from lgov_core.errors import AuditError, InstrumentationError, PolicyDenied, PolicyFileError, SettingsError
from lgov_core.store import open_store
from lgov_core.types import ALLOW
from tests.commands.cli_runner import LGOV, POLICY, lgov


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.commands:
        command = group.load(name) if isinstance(group, LazyGroup) else group.commands[name]
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


LEAVES = dict(commands(cli))  # type: ignore[arg-type]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_offers_json_and_documents_its_exit_codes(path: tuple[str, ...]) -> None:
    result = lgov(*path, "--help")
    assert result.exit_code == Exit.OK
    assert "--json" in result.output or path == ("mcp",)  # whose standard output is the client's
    assert re.search(r"Exit (status|codes):", result.output)
    assert LEAVES[path].help


def test_the_help_lists_every_command_without_loading_any() -> None:
    code = """
import sys
from lgov_core.commands import main
sys.argv = ["lgov", "--help"]
try:
    main()
finally:
    loaded = {name.partition(".")[0] for name in sys.modules}
    ours = {name for name in sys.modules if name.startswith("lgov_core.") and "lgov_core.types" not in name}
    print(sorted(loaded & {"rich", "yaml", "sqlglot", "torch", "pluggy", "starlette", "sqlite3"}))
    print(sorted(ours))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    *_, heavy, ours = done.stdout.splitlines()
    assert heavy == "[]"
    assert ours == "['lgov_core.commands', 'lgov_core.commands.group', 'lgov_core.errors']"
    for name in cli.commands:  # type: ignore[attr-defined]
        assert re.search(rf"^  {name} +\w", done.stdout, re.M)


def test_every_command_loads_without_any_extra() -> None:
    missing = "starlette", "uvicorn", "aiohttp", "torch", "transformers", "openai", "pyarrow", "cryptography", "psycopg"
    code = f"""
import sys
sys.modules.update(dict.fromkeys({missing}))
from tests.commands.test_cli import LEAVES
print(len(LEAVES))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{len(LEAVES)}\n", "")


def test_version() -> None:
    assert lgov("--version").output == f"lgov {lgov_core.__version__}\n"


def test_a_misspelt_command_is_a_usage_error_with_a_suggestion() -> None:
    result = lgov("polcy")
    assert result.exit_code == Exit.USAGE
    assert "policy" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingsError("x"), 2),
        (PolicyDenied(ALLOW), 3),
        (AuditError("x"), 4),
        (InstrumentationError("x"), 78),
        (PolicyFileError("x"), 1),
    ],
)
def test_errors_have_exit_codes(error: Any, code: int) -> None:
    assert exit_of(error) == code


# ---------------------------------------------------------------------- errors and colours


def test_with_json_an_error_is_json() -> None:
    result = lgov("traces", "list", "missing.sqlite", "--json")
    assert (result.exit_code, result.stdout) == (Exit.FINDING, "")
    assert json.loads(result.stderr)["error"]["code"] == "store"


def test_json_after_two_dashes_belongs_to_the_program() -> None:
    result = lgov("run", "--set", "timeout_s=-1", "--", "python", "agent.py", "--json")
    assert result.exit_code == Exit.CANNOT_GOVERN
    assert result.stderr.startswith("error: not run: ")


def test_errors_are_not_coloured_without_a_terminal(folder: Path) -> None:
    done = subprocess.run(
        [*LGOV, "policy", "check", "missing.yaml"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == Exit.FINDING
    assert done.stderr.startswith("error: ")
    assert "\x1b" not in done.stderr


# ---------------------------------------------------------------------- run


def test_run_with_unusable_settings_runs_nothing(folder: Path) -> None:
    (folder / "lgov.toml").write_text('polcy = "policy.yaml"\n')
    (folder / "agent.py").write_text("open('it-ran', 'w')\n")
    result = lgov("run", "--", "python", "agent.py")
    assert result.exit_code == Exit.CANNOT_GOVERN
    assert "did you mean policy" in result.stderr
    assert not (folder / "it-ran").exists()


def test_run_uses_the_settings_and_passes_arguments_and_status(folder: Path) -> None:
    (folder / "rules").mkdir()
    (folder / "rules" / "desk.yaml").write_text(POLICY)
    (folder / "lgov.toml").write_text('policy = "rules/desk.yaml"\naudit = "record.db"\n')
    (folder / "agent.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(5)\n")
    command = [*LGOV, "run", "python", "agent.py", "--policy", "mine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (5, "['--policy', 'mine']\n")
    assert (folder / "record.db").is_file()


def test_run_without_a_command_is_wrong_usage() -> None:
    assert lgov("run").exit_code == Exit.USAGE


# ---------------------------------------------------------------------- what a shell does to a command


@pytest.mark.parametrize(
    "command",
    [
        ("policy", "chek"),
        ("policy", "check"),
        ("traces", "list", "--where", "outcome=good", "x"),
        ("audit", "verify", "x", "--key", "zz"),
        ("demo", "--seeds", "0"),
        ("serve", "--model", "m", "--host", "0.0.0.0"),
        ("transitions", "x", "--cap", "task=nan"),
        ("traces", "prune", "x", "--keep-last", "1"),
        ("erase", "x", "--where", "entry=1"),
    ],
)
def test_with_json_a_usage_error_is_json(command: tuple[str, ...], folder: Path) -> None:
    (folder / "x").write_bytes(b"")
    result = lgov(*command, "--json")
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert json.loads(result.stderr.splitlines()[-1])["error"]["message"]


@pytest.mark.parametrize("name", [".", "folder", "/"])
@pytest.mark.parametrize("command", ["export a.db --to", "export a.db --format ocsf --to"])
def test_a_folder_cannot_be_the_output_file(command: str, name: str, folder: Path) -> None:
    (folder / "folder").mkdir()
    AuditLog(folder / "a.db").close()
    result = lgov(*command.split(), name)
    assert result.exit_code == Exit.FINDING
    assert result.stderr.startswith("error: ")


def test_an_unknown_rollout_is_not_exported(folder: Path) -> None:
    open_store("store.sqlite").close()
    (folder / "kept.jsonl").write_text("kept")
    result = lgov("export", "store.sqlite", "--where", "rollout=gone", "--to", "kept.jsonl")
    assert result.exit_code == Exit.FINDING
    assert "gone" in result.stderr
    assert (folder / "kept.jsonl").read_text() == "kept"
    assert lgov("export", "store.sqlite", "--to", ".").exit_code == Exit.FINDING


def test_an_unknown_credit_scheme_is_a_usage_error() -> None:
    open_store("store.sqlite").close()
    result = lgov("transitions", "store.sqlite", "--credit", "gigp")
    assert result.exit_code == Exit.USAGE
    assert "there is no credit scheme 'gigp'" in result.stderr


def test_an_impossible_position_is_a_usage_error() -> None:
    AuditLog(Path("a.db")).close()
    assert lgov("export", "a.db", "--after", "9" * 20).exit_code == Exit.USAGE


@pytest.mark.parametrize(
    ("shown", "encoding"), [("\\ud800", "utf-8:surrogateescape"), ("\\ud800", "utf-8"), ("\\u00e9", "ascii")]
)
def test_what_standard_output_cannot_write_is_escaped(shown: str, encoding: str, folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "cases.jsonl").write_text(f'{{"id": "{shown}", "name": "{shown}", "expect": "deny"}}')
    action = f'{{"name": "{shown}"}}'
    evaluate = ("eval", "policy.yaml", "cases.jsonl")
    for command in (("explain", "policy.yaml", "--action", action), evaluate, (*evaluate, "--json")):
        done = subprocess.run(
            [*LGOV, "policy", *command],
            env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == (0 if command[0] == "eval" else Exit.DENIED), done.stderr
        assert b"Traceback" not in done.stderr
    assert json.loads(done.stdout.splitlines()[0])["id"] == json.loads(f'"{shown}"')


def test_a_table_in_a_pipe_has_one_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(["rollout", "text"], [["r" * 100, "word " * 40], ["b", "c"]])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["rollout", "r" * 100, "b"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_message(folder: Path) -> None:
    (folder / "policy.yaml").write_text(POLICY)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*LGOV, "policy", "explain", "policy.yaml", "--action", '{"name": "search"}'],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (Exit.FINDING, "error: No space left on device\n")


def test_no_color_turns_colours_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", value)
        result = CliRunner().invoke(cli, ["policy", "check", "gone.yaml"], color=True)
        assert ("\x1b" in result.stderr) is coloured
