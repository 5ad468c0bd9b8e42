"""The examples run as their READMEs say, and their programs know nothing of lgov."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Programs of users.
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/main.py"))
DENIED, NOT_RUN = "DENIED by policy small-payments", "It was not run; do not repeat it."
LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
CLEAN["PYTHONPATH"] = os.pathsep.join(sys.path)


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, env={**CLEAN, **(env or {})}, capture_output=True, text=True, timeout=180, check=False
    )


@contextmanager
def served(*command: str, cwd: Path) -> Generator[str]:
    """A server as a process of its own; gives the address that it prints first."""
    process = subprocess.Popen(command, cwd=cwd, env=CLEAN, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_an_example_is_short_and_imports_no_lgov(folder: Path) -> None:
    main = (folder / "main.py").read_text()
    assert not re.search(r"^\s*(import|from) lgov", main, re.M)
    assert all(len(path.read_text().splitlines()) <= 120 for path in folder.glob("*.py"))
    readme = (folder / "README.md").read_text()
    assert "lgov" in readme


def test_the_examples_are_numbered_once() -> None:
    names = sorted(path.name for path in (ROOT / "examples").iterdir() if path.name != "notebooks")
    assert [name[:3] for name in names] == [f"{number:02}_" for number in range(1, 10)]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's package, installed into a folder of its own as pip installs it."""
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-deps"]
    done = run(*command, "--target", str(target), str(ROOT / "examples" / "05_policy_plugin"), cwd=target)
    if done.returncode != 0:
        pytest.skip(f"pip could not build the example: {done.stderr[-300:]}")
    return target


def test_a_policy_plugin_is_found_by_its_entry_point(plugin: Path, tmp_path: Path) -> None:
    folder = ROOT / "examples" / "05_policy_plugin"
    env = {"PYTHONPATH": os.pathsep.join([str(plugin), *sys.path])}
    assert run(*LGOV, "policy", "check", str(folder / "policy.yaml"), cwd=tmp_path, env=env).returncode == 0
    judged = run(
        *LGOV, "policy", "eval", str(folder / "policy.yaml"), str(folder / "cases.jsonl"), cwd=tmp_path, env=env
    )
    assert judged.returncode == 0, judged.stdout
    done = run(*LGOV, "run", "--", "python", str(folder / "main.py"), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "paid 60 to Ada",
        f"{DENIED}/too-much: 5000 is above 100, the limit of one payment. {NOT_RUN}",
        "paid 80 to Carl",
        f"{DENIED}/spent: With this payment 180 would be spent, of 150. {NOT_RUN}",
        "paid in all: 140",
    ]


def test_without_the_plugin_the_program_does_not_start(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "05_policy_plugin"
    done = run(*LGOV, "run", "--", "python", str(folder / "main.py"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert "payment_limit" in done.stderr


def test_a_program_that_only_has_a_base_url_is_recorded(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "06_base_url_only"
    with served(sys.executable, str(folder / "offline_server.py"), "0", cwd=tmp_path) as upstream:
        serve = (*LGOV, "serve", "--upstream", f"{upstream}/v1", "--store", "traces.sqlite", "--port", "0")
        with served(*serve, cwd=tmp_path) as endpoint:
            env = {"OPENAI_BASE_URL": f"{endpoint}/rollout/monday/attempt/1/v1", "OPENAI_API_KEY": "none"}
            done = run(sys.executable, str(folder / "main.py"), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "model: You said: What is my name?"
    shown = run(*LGOV, "traces", "show", "traces.sqlite", "monday", cwd=tmp_path).stdout
    assert shown.count("You said: What is 2 + 3?") >= 1


# ---------------------------------------------------------------------- nothing runs ungoverned


def add_plugin(folder: Path, source: str) -> None:
    """Installs a plugin as pip would: a module and its metadata."""
    (folder / "lgov_raising.py").write_text(source)
    info = folder / "lgov_raising-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lgov_raising\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lgov]\nlgov_raising = lgov_raising\n")


def hide_adapter(folder: Path, name: str) -> None:
    """As in an installation from which an adapter's package was left out."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("")


RAISES_ON_IMPORT = "raise RuntimeError('this plugin is broken')\n"
RAISES_WHEN_ASKED = """
from lgov_core import hookimpl

@hookimpl
def lgov_framework():
    raise RuntimeError('this plugin is broken')
"""


SELF_CONTAINED = [folder for folder in EXAMPLES if folder.name != "05_policy_plugin"]


@pytest.mark.parametrize("trouble", ["policy", "adapter", "plugin", "plugin that raises when asked"])
@pytest.mark.parametrize(
    "example", [folder for folder in EXAMPLES if folder.name != "05_policy_plugin"], ids=lambda one: one.name
)
def test_in_trouble_no_line_of_an_example_runs(example: Path, trouble: str, tmp_path: Path) -> None:
    before = (example / "main.py").read_bytes()
    extra = tmp_path / "installed"
    extra.mkdir()
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules:\n  - {name: all, use: allow}\n")
    if trouble == "policy":
        policy.write_text("version: 1\nrules:\n  - {name: all, use: alow}\n")
    elif trouble == "adapter":
        hide_adapter(extra, "lgov_autogen")
    else:
        add_plugin(extra, RAISES_ON_IMPORT if trouble == "plugin" else RAISES_WHEN_ASKED)
    env = {"PYTHONPATH": os.pathsep.join([str(extra), *sys.path])}
    done = run(*LGOV, "run", "--policy", "policy.yaml", "--", "python", str(example / "main.py"), cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (78, ""), done.stderr
    said = {"policy": "alow", "adapter": "lgov_autogen"}.get(trouble, "this plugin is broken")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert (example / "main.py").read_bytes() == before


@pytest.mark.parametrize(
    "example", [one for one in SELF_CONTAINED if (one / "policy.yaml").exists()], ids=lambda one: one.name
)
def test_a_policy_is_suggested_from_what_an_example_did(example: Path, tmp_path: Path) -> None:
    program = ("--store", "traces.sqlite", "--", "python", str(example / "main.py"))
    assert run(*LGOV, "run", *program, cwd=tmp_path).returncode == 0
    done = run(*LGOV, "policy", "suggest", "traces.sqlite", "-o", "policy.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["denied"] == []
    assert found["needed"] > 0
    assert all(one["now"] == "deny" for one in found["rest"]), "what was denied is not needed"
    assert run(*LGOV, "policy", "check", "policy.yaml", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("source", [RAISES_ON_IMPORT, RAISES_WHEN_ASKED], ids=["when loaded", "when asked"])
def test_a_plugin_that_ends_the_process_does_not_pass_for_a_program_that_ran(source: str, tmp_path: Path) -> None:
    add_plugin(tmp_path, source.replace("RuntimeError('this plugin is broken')", "SystemExit(0)"))
    (tmp_path / "policy.yaml").write_text("version: 1\nrules:\n  - {name: all, use: allow}\n")
    (tmp_path / "program.py").write_text("print('it ran')")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = run(*LGOV, "run", "--", "python", "program.py", cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (78, "")
    assert "SystemExit" in done.stderr
