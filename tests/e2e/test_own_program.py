"""An agent under ``lgov run`` cannot rewrite itself: what Python would run of it at the next start is closed to its tools."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest

from lgov_core.audit import AuditLog
from lgov_core.places import is_started_with
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from tests.confine.conftest import why_not
from tests.e2e.lgov_runs import lgov_run, write

AGENT = """
import importlib.util, pathlib, shutil, subprocess
import helper
importlib.util.find_spec("nowhere_installed")
from parts import words
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def write_file(path: str, content: str) -> str:
    "Writes a file."
    file = pathlib.Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return "done"

@tool
def read_file(path: str) -> str:
    "Reads a file."
    return pathlib.Path(path).read_text()

@tool
def move_file(source: str, destination: str) -> str:
    "Moves a file or folder."
    shutil.move(source, destination)
    return "done"

@tool
def bash(command: str) -> str:
    "Runs a command."
    subprocess.run(["bash", "-c", command], check=True)
    return "done"

agent = create_agent(ChatOpenAI(model="scripted", max_retries=0), [write_file, read_file, move_file, bash], name="coder")
agent.invoke({"messages": [("user", "go")]}, {"recursion_limit": 500})
"""
POLICY = """
version: 1
rules:
  - {name: files, use: path, tools: ["*_file"], with: {roots: [.]}}
  - {name: shell, use: shell, tools: [bash]}
"""
#: What Python would run at the next start: the program, modules that it loaded, names in place of loaded ones.
CLOSED = (
    *("agent.py", "./sub/../agent.py", "helper.py", "helper/__init__.py", "parts/__init__.py", "parts/words.py"),
    *("openai.py", "openai/__init__.py", "json.py", "sitecustomize.py", "usercustomize.py"),
    *("__pycache__/helper.cpython-312.pyc", "langchain_core/tools/__init__.py"),
    # Not loaded: lgov's shell parser, of Python itself, installed, and looked for by a library that works without it.
    *("tree_sitter.py", "queue.py", "mcp/__init__.py", "nowhere_installed.py"),
)
#: What a coder writes beside it.
OPEN = (
    *("calculator.py", "test_agent.py", "tests/test_helper.py", "tests/conftest.py", "parts/more.py", "conf/openai.py"),
    *("notes.md", "helper.txt", "openai/readme.md", "email/draft.txt", "json.md", "src/agent.py", "helper.old.py"),
)
SHELL = {
    "echo 'import os' >> agent.py": "shell-governs",
    "sed -i s/go/stop/ helper.py": "shell-governs",
    "cp notes.md openai.py": "shell-governs",
    "mv agent.py old.py": "shell-governs",
    "mv parts old": "shell-governs",
    "rm -f *.py": "shell-governs",
    "cat agent.py helper.py": "allow",
    "mkdir -p src/json email": "allow",
    "cp agent.py copy_of_agent.py": "allow",
    "echo 'import agent' > test_more.py": "allow",
    "rm -rf __pycache__": "allow",
}
#: Folders that get the name of what Python would import, and others.
BROUGHT = {
    "mv brought langchain_openai": "shell-governs",
    "mkdir new && touch new/__init__.py && mv new openai": "shell-governs",
    "cp -r brought helper": "shell-governs",
    "mv brought/openai .": "shell-governs",
    "rm -rf __pycache__ && mv brought/cached __pycache__": "shell-governs",
    "rm -rf parts/__pycache__ && cp -r brought/cached parts/__pycache__": "shell-governs",
    "cp -rT brought parts": "shell-governs",
    "rsync -a brought/ json": "shell-governs",
    "ln -s brought openai": "shell-governs",
    "ln -s brought/openai": "shell-governs",
    "tar -xf links.tar -C parts": "shell-governs",
    "mkdir email": "allow",
    "cp notes.md email": "allow",
    "cp -r brought parts": "allow",
    "cp -r brought email": "allow",
    "tar -xf links.tar -C email": "allow",
    "ln -s brought linked": "allow",
    "mv brought kept": "allow",
}
MOVES = {
    ("brought", "openai"): "path-governs",
    ("brought/cached", "__pycache__"): "path-governs",
    ("brought/helper.py", "."): "path-governs",
    ("brought/openai", "."): "path-governs",
    ("notes.md", "brought"): "allow",
    ("brought/cached", "."): "allow",
    ("brought", "parts"): "path-governs",  # one tool puts it into the folder, another fills the folder with it
    ("brought", "kept"): "allow",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "parts").mkdir()
    (tmp_path / "policy.yaml").write_text(POLICY)
    for name in ("openai", "cached"):
        (tmp_path / "brought" / name).mkdir(parents=True)
    brought = ("__init__.py", "helper.py", "openai/__init__.py", "cached/helper.cpython-311.pyc")
    for name in (
        "helper.py",
        "parts/__init__.py",
        "parts/words.py",
        "notes.md",
        *(f"brought/{name}" for name in brought),
    ):
        (tmp_path / name).touch()
    with tarfile.open(tmp_path / "links.tar", "w") as archive:
        link = tarfile.TarInfo("words")
        link.type, link.linkname = tarfile.SYMTYPE, "more"
        archive.addfile(link)  # Python looks for a package before it looks for a file
    return tmp_path


def judged(folder: Path, calls: list[ScriptedCall], *command: str) -> list[tuple[str, str]]:
    """The rule that denied each call, or allow, with the reason."""
    script = [*(ScriptedReply(tool_calls=[call]) for call in calls), "done"]
    with ScriptedModelServer(script) as model:
        ran = lgov_run(folder, *command, env={"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"})
    assert ran.returncode == 0, ran.stderr
    assert "governed program ran" not in ran.stderr
    with AuditLog(folder / ".lgov" / "audit.db", signer=None) as log:
        decisions = [entry for entry in log.entries() if entry.kind == "decision" and entry.point == "pre_tool_call"]
    verdicts = [entry.verdict for entry in decisions]
    return [
        (verdict["rule"] if entry.effect == "deny" else "allow", verdict["reason"])
        for entry, verdict in zip(decisions, verdicts, strict=True)
    ]


def writing(*paths: str) -> list[ScriptedCall]:
    return [ScriptedCall("write_file", {"path": path, "content": ""}, f"c{at}") for at, path in enumerate(paths)]


def test_file_tools_change_nothing_that_the_next_start_runs(folder: Path) -> None:
    reads = [ScriptedCall("read_file", {"path": path}, f"r{path}") for path in ("agent.py", "helper.py")]
    verdicts = judged(folder, [*writing(*CLOSED, *OPEN), *reads], "python", write(folder, AGENT))
    assert [rule for rule, _ in verdicts] == ["path-governs"] * len(CLOSED) + ["allow"] * (len(OPEN) + 2)
    assert (
        "agent.py is run when this program starts or imports a module of its name, so the program cannot change it"
        in verdicts[0][1]
    )


def test_neither_does_the_shell(folder: Path) -> None:
    calls = [ScriptedCall("bash", {"command": command}, f"c{at}") for at, command in enumerate(SHELL)]
    verdicts = judged(folder, calls, "python", write(folder, AGENT))
    assert [rule for rule, _ in verdicts] == [*SHELL.values()]
    assert "is run when this program starts" in verdicts[0][1]


def test_no_folder_gets_a_name_that_the_next_start_imports(folder: Path) -> None:
    calls = [ScriptedCall("bash", {"command": command}, f"c{at}") for at, command in enumerate(BROUGHT)]
    verdicts = judged(folder, calls, "python", write(folder, AGENT))
    assert dict(zip(BROUGHT, [rule for rule, _ in verdicts], strict=True)) == BROUGHT
    assert "is run when this program starts" in verdicts[0][1]


def test_nor_does_a_tool_that_moves_bring_one(folder: Path) -> None:
    calls = [
        ScriptedCall("move_file", {"source": source, "destination": destination}, f"c{at}")
        for at, (source, destination) in enumerate(MOVES)
    ]
    verdicts = judged(folder, calls, "python", write(folder, AGENT))
    assert dict(zip(MOVES, [rule for rule, _ in verdicts], strict=True)) == MOVES


def test_of_a_package_that_is_started_every_module_is_closed(folder: Path) -> None:
    (folder / "coder").mkdir()
    (folder / "coder" / "__init__.py").touch()
    write(folder / "coder", AGENT, "__main__.py")
    closed = ("coder/__init__.py", "coder/__main__.py", "coder/loaded_later.py", "helper.py")
    verdicts = judged(folder, writing(*closed, "coder/data.json", "other.py"), "python", "-m", "coder")
    assert [rule for rule, _ in verdicts] == ["path-governs"] * len(closed) + ["allow"] * 2


def test_a_child_cannot_rewrite_the_program_that_started_it(folder: Path) -> None:
    write(folder, AGENT, "child.py")
    parent = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'child.py']))"
    verdicts = judged(folder, writing("agent.py", "child.py", "new.py"), "python", write(folder, parent))
    assert [rule for rule, _ in verdicts] == ["path-governs", "path-governs", "allow"]


def test_the_report_and_the_record_name_a_program_that_was_rewritten_and_an_edit_needs_no_trust(folder: Path) -> None:
    ran = lgov_run(folder, "python", write(folder, "open(__file__, 'a').write('#')"))
    assert "agent.py changed while a governed program ran" in ran.stderr
    assert "refused" not in ran.stderr
    with AuditLog(folder / ".lgov" / "audit.db", signer=None) as log:
        (found,) = [entry.body["found"] for entry in log.entries() if "found" in entry.body]
    assert found == {str(folder / "agent.py"): "changed"}
    write(folder, "print('edited')")
    again = lgov_run(folder, "python", "agent.py")
    assert (again.returncode, again.stdout) == (0, "edited\n"), again.stderr
    assert "changed" not in again.stderr


@pytest.mark.skipif(bool(why_not()), reason=str(why_not()))
@pytest.mark.parametrize("command", [("agent.py",), ("-m", "coder")], ids=["script", "package"])
def test_in_a_box_its_files_are_read_only(folder: Path, command: tuple[str, ...]) -> None:
    code = """
import pathlib
for path in ("FILE", "beside.py"):
    try:
        pathlib.Path(path).write_text("")
        print(path, "written")
    except OSError:
        print(path, "read-only")
"""
    (folder / "coder").mkdir()
    file = "agent.py" if command == ("agent.py",) else "coder/__main__.py"
    write(folder, code.replace("FILE", file), file)
    ran = lgov_run(folder, "python", *command, options=("--confine", "--preset", "workspace", "--json"))
    assert ran.stdout == f"{file} read-only\nbeside.py written\n", ran.stderr
    assert json.loads(ran.stderr.splitlines()[-1])["confinement"]["changed"] == []


def test_a_module_of_any_folder_that_python_searches_cannot_be_shadowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, libraries = tmp_path / "program", tmp_path / "libraries"
    for folder in (program, libraries):
        folder.mkdir()
    (libraries / "helperlib.py").touch()  # which nothing has imported yet
    (program / "own.py").touch()
    monkeypatch.setattr(sys, "path", [str(program), *sys.path, str(libraries)])
    names = ("helperlib.py", "helperlib/__init__.py", "test.py", "own.py", "new.py")
    assert [name for name in names if is_started_with(str(program / name))] == [*names[:2]]
    assert not is_started_with(str(libraries / "helperlib.py"))


def test_a_governed_child_keeps_the_names_that_it_looked_for_in_vain_too(folder: Path) -> None:
    write(folder, CHILD, "child.py")
    done = lgov_run(
        folder, "python", write(folder, "import subprocess, sys; subprocess.run([sys.executable, 'child.py'])")
    )
    assert (done.stdout, done.returncode) == ("True False\n", 0), done.stderr


CHILD = """
import importlib.util, os
from lgov_core.places import is_started_with
importlib.util.find_spec("nowhere_installed")
print(*(is_started_with(os.path.abspath(name)) for name in ("nowhere_installed.py", "never_looked_for.py")))
"""
