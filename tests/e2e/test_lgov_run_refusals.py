"""lgov run does not run what it cannot govern."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from lgov_runs import AGENT, lgov_run, write

from lgov_core.store import open_store


@pytest.mark.parametrize("adapter", ["lgov_langchain", "lgov_openai_agents"])
def test_a_program_that_instruments_itself_is_refused(adapter: str, folder: Path) -> None:
    """Its ``instrument`` imports the framework, which lgov run is waiting for: two instrumentors, one inside the other."""
    program = f"""
from importlib import import_module
from lgov_core import Governor
from lgov_core.errors import InstrumentationError
from lgov_core.policies import preset

adapter = import_module("{adapter}")
own = Governor(preset("permissive"))
try:
    adapter.instrument(own)
except InstrumentationError as error:
    print("refused" if "already governed" in str(error) else error)
print(import_module("{adapter}.instrumentor").INSTRUMENTOR.governor not in (own, None))
"""
    done = lgov_run(folder, "python", write(folder, program))
    assert done.stdout == "refused\nTrue\n", done.stderr
    assert "governed: none" not in done.stderr


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (None, "no policy"),
        ("version: 1\nrules: [\n", "policy.yaml"),
        ("version: 1\nname: empty\nrules: []\n", "policy.yaml"),
        ("version: 1\nrules:\n  - {name: a, use: nosuchpolicy}\n", "nosuchpolicy"),
    ],
)
def test_without_a_sound_policy_no_line_runs(policy: str | None, says: str, folder: Path) -> None:
    if policy is None:
        (folder / "policy.yaml").unlink()
    else:
        (folder / "policy.yaml").write_text(policy)
    done = lgov_run(folder, "python", write(folder, AGENT), "hello")
    assert done.returncode == 78
    assert "lgov: not run: " in done.stderr
    assert says in done.stderr
    assert not (folder / "it-ran").exists()


def test_a_policy_file_that_is_named_must_be_there(folder: Path) -> None:
    done = lgov_run(folder, "python", write(folder, AGENT), options=("--policy", "other.yaml"))
    assert done.returncode == 78
    assert "other.yaml" in done.stderr
    assert not (folder / "it-ran").exists()


def test_without_a_record_no_line_runs(folder: Path) -> None:
    (folder / "taken").write_text("a file, not a folder")
    done = lgov_run(folder, "python", write(folder, AGENT), options=("--audit", "taken/audit.db"))
    assert done.returncode == 78
    assert not (folder / "it-ran").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("bash", "agent.py"),
        ("python9.9", "agent.py"),
        ("/usr/bin/env", "python", "agent.py"),
        ("python", "-c", "print(1)"),
        ("python", "-I", "agent.py"),
        ("python", "nothing-here.py"),
        ("python", "."),
        ("python",),
    ],
)
def test_only_programs_of_this_interpreter_are_run(command: tuple[str, ...], folder: Path) -> None:
    write(folder, AGENT)
    done = lgov_run(folder, *command)
    assert done.returncode == 78
    assert "lgov: not run: " in done.stderr
    assert not (folder / "it-ran").exists()


@pytest.mark.parametrize("program", ["agent.py", "./agent.py"])
def test_a_script_without_python_gets_the_full_command(program: str, folder: Path) -> None:
    write(folder, AGENT)
    done = lgov_run(folder, program)
    assert done.returncode == 78
    assert f"lgov run -- python {program}" in done.stderr
    assert not (folder / "it-ran").exists()


def test_another_environment_of_the_same_python_is_refused(folder: Path) -> None:
    other = folder / "venv" / "bin"
    other.mkdir(parents=True)
    (other / "python").symlink_to(Path(sys.executable).resolve())
    done = lgov_run(folder, str(other / "python"), write(folder, AGENT))
    assert done.returncode == 78
    assert not (folder / "it-ran").exists()


def test_a_framework_that_cannot_be_governed_ends_the_program(folder: Path) -> None:
    """As if a release of AutoGen had none of the classes that are governed."""
    pytest.importorskip("autogen_core")
    (folder / "autogen_agentchat").mkdir()
    write(folder, "", "autogen_agentchat/__init__.py")
    program = """
import pathlib
try:
    import autogen_agentchat
except BaseException:
    pass
import autogen_agentchat
pathlib.Path("went-on").touch()
"""
    done = lgov_run(folder, "python", write(folder, program), options=("--store", "store.db", "--rollout-id", "r"))
    assert done.returncode == 78
    assert "AutoGen cannot be governed here" in done.stderr
    assert not (folder / "went-on").exists()
    store = open_store(str(folder / "store.db"))
    assert [attempt.outcome for attempt in store.attempts(["r"])] == ["blocked"]
    store.close()


@pytest.mark.parametrize("stderr", ["sys.stderr = None", "sys.stderr.close()", "os.close(2)", "sys.stderr = Raises()"])
@pytest.mark.parametrize("where", ["itself", "child"])
def test_it_ends_with_a_closed_standard_error(stderr: str, where: str, folder: Path) -> None:
    """What was raised while saying why would have been one more exception that a program can catch."""
    pytest.importorskip("autogen_core")
    (folder / "autogen_agentchat").mkdir()
    write(folder, "", "autogen_agentchat/__init__.py")
    program = f"""
import os, pathlib, sys

class Raises:
    def write(self, text):
        raise RuntimeError("no")

{stderr}
for _ in range(2):
    try:
        import autogen_agentchat
    except BaseException:
        pass
pathlib.Path("went-on").touch()
"""
    write(folder, program)
    write(folder, "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'agent.py']))", "child.py")
    done = lgov_run(folder, "python", "agent.py" if where == "itself" else "child.py")
    assert done.returncode == 78
    assert not (folder / "went-on").exists()


def test_errors_are_json_on_request(folder: Path) -> None:
    write(folder, "print('it ran')")
    for options, command in ((("--policy", "other.yaml"), "agent.py"), ((), "gone.py"), (("--nonsense",), "agent.py")):
        done = lgov_run(folder, "python", command, options=("--json", *options))
        assert (done.stdout, done.returncode) == ("", 2 if "--nonsense" in options else 78)
        assert json.loads(done.stderr)["error"]["message"]


def test_the_agents_sdk_is_told_from_a_folder_of_the_same_name(folder: Path) -> None:
    (folder / "agents").mkdir()
    write(folder, "", "agents/__init__.py")
    program = write(folder, "import agents, pathlib; pathlib.Path('went-on').touch()")
    assert lgov_run(folder, "python", program).returncode == 0
    assert (folder / "went-on").exists()

    (folder / "went-on").unlink()
    for name in ("guardrail.py", "run.py", "model_settings.py"):
        write(folder, "", f"agents/{name}")
    done = lgov_run(folder, "python", program)
    assert done.returncode == 78
    assert "Agents SDK" in done.stderr
    assert not (folder / "went-on").exists()


def test_an_uninstrumentable_langchain_ends_the_program(folder: Path) -> None:
    """As if a future LangChain no longer had what the backstop wraps."""
    package = folder / "langchain_core"
    package.mkdir()
    write(folder, "", "langchain_core/__init__.py")
    program = "try:\n    import langchain_core\nexcept BaseException:\n    pass\nopen('went-on', 'w')\n"
    done = lgov_run(folder, "python", write(folder, program))
    assert done.returncode == 78
    assert "langchain cannot be governed" in done.stderr
    assert not (folder / "went-on").exists()


def test_a_policy_that_forbids_the_start_is_obeyed(folder: Path) -> None:
    (folder / "policy.yaml").write_text(
        "version: 1\nrules:\n  - {name: closed, on: [agent_startup], use: deny, with: {reason: closed today}}\n"
    )
    done = lgov_run(folder, "python", write(folder, AGENT))
    assert done.returncode == 78
    assert "closed today" in done.stderr
    assert not (folder / "it-ran").exists()


@pytest.mark.parametrize("name", ["autogen_core", "autogen_core.tools._function_tool", "langchain_core.tools.base"])
@pytest.mark.parametrize("way", ["reload", "removed"])
def test_a_second_copy_of_a_framework_ends_the_program(way: str, name: str, folder: Path) -> None:
    """What was instrumented are the classes of the first one."""
    again = {
        "reload": f"importlib.reload(sys.modules[{name!r}])",
        "removed": f"del sys.modules[{name!r}]; importlib.import_module({name!r})",
    }[way]
    program = f"""
import importlib, sys
import {name}
print("imported", flush=True)
try:
    {again}
finally:
    open("went-on", "w")
"""
    done = lgov_run(folder, "python", write(folder, program))
    assert (done.returncode, done.stdout) == (78, "imported\n"), done.stderr
    assert f"{name} is loaded a second time" in done.stderr
    assert not (folder / "went-on").exists()


def test_what_is_no_framework_can_be_reloaded(folder: Path) -> None:
    write(folder, "print('loaded', flush=True)", "own.py")
    program = "import importlib, autogen_core, json, own\nimportlib.reload(own), importlib.reload(json)\n"
    done = lgov_run(folder, "python", write(folder, program))
    assert (done.returncode, done.stdout) == (0, "loaded\nloaded\n"), done.stderr


@pytest.mark.parametrize("where", ["itself", "child"])
def test_a_sub_interpreter_ends_the_program(where: str, folder: Path) -> None:
    module = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    code = "import langchain_core.tools; open('went-on', 'w')"
    write(folder, f"import {module} as inner\nprint('begun', flush=True)\ninner.run_string(inner.create(), {code!r})\n")
    write(folder, "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'agent.py']))", "child.py")
    done = lgov_run(folder, "python", "agent.py" if where == "itself" else "child.py")
    assert (done.returncode, done.stdout) == (78, "begun\n"), done.stderr
    assert "makes a sub-interpreter" in done.stderr
    assert not (folder / "went-on").exists()


def test_instrumentation_logs_what_is_not_governed(folder: Path) -> None:
    program = "import logging, sys; logging.basicConfig(level='INFO', stream=sys.stdout)\nimport autogen_core\n"
    done = lgov_run(folder, "python", write(folder, program))
    assert done.returncode == 0, done.stderr
    assert "lgov.instrumentation:autogen: not governed" in done.stdout
    assert "AutoGen 0.7 has no synchronous API" in done.stdout
