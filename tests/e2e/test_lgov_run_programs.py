"""Ways to start a program under lgov run: interpreter options, commands of packages, and launchers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from lgov_runs import LGOV, WORKER, lgov_run, make_company, write

from tests.service_links import service_links

BIN = str(Path(sys.executable).parent)
APP = f"""{WORKER}
async def app(scope, receive, send):
    assert scope["type"] == "http"
    text = run_sql.invoke({{"query": "SELECT count(*) FROM staff"}})
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": text.encode()}})
"""


def test_interpreter_options_reach_the_program(folder: Path) -> None:
    program = "import sys; print(sys.flags.optimize, sys.flags.dev_mode, sys.warnoptions[-1], sys.argv, sys.path[0])"
    options = ("-O", "-W", "error", "-Xdev", "-u")
    done = lgov_run(folder, "python", *options, write(folder, program), "a", "-O", options=("--rollout-id", "r-1"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"1 True error ['agent.py', 'a', '-O'] {folder}\n"
    assert "governed: none" in done.stderr


def test_interpreter_options_do_not_loosen_the_policy(folder: Path) -> None:
    make_company(folder)
    done = lgov_run(folder, "python", "-O", "-B", write(folder, WORKER), "DROP TABLE staff")
    assert "DENIED" in done.stdout
    assert "langchain: evaluated 1 tool call" in done.stderr


def test_an_agent_is_governed_in_a_pod_beside_a_service_of_lgov(folder: Path) -> None:
    program = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(1)'], check=True)\n"
    done = lgov_run(folder, "python", write(folder, program), env={**service_links("lgov"), "LGOV_TIMEOUT_S": "1.5"})
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    refused = lgov_run(folder, "python", write(folder, program), env={**service_links("lgov"), "LGOV_TIMEOUT": "1.5"})
    assert (refused.returncode, refused.stdout) == (78, "")
    assert "there is no setting LGOV_TIMEOUT " in refused.stderr


def test_a_command_of_a_package_is_governed(folder: Path) -> None:
    make_company(folder)
    write(folder, APP, "app.py")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
    server = subprocess.Popen(
        [*LGOV, "run", "--", "uvicorn", "app:app", "--port", "0"],
        cwd=folder,
        env={**clean, "PATH": f"{BIN}{os.pathsep}{clean['PATH']}", "TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert server.stderr is not None
    try:
        address = next(found[0] for line in server.stderr if (found := re.search(r"http://127.0.0.1:\d+", line)))
        assert urllib.request.urlopen(address, timeout=30).read() == b"[(3,)]"
    finally:
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=60)
    assert "langchain: evaluated 1 tool call" in said


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (("uv", "run", "agent.py", "x"), "uv run lgov run -- python agent.py x"),
        (("poetry", "run", "python", "agent.py"), "poetry run lgov run -- python agent.py"),
        (("python", "-c", "print(1)"), "put code of -c into a file"),
        (("bash", "agent.sh"), "python -m package, uvicorn app:app"),
    ],
)
def test_what_cannot_be_governed_names_what_to_write(command: tuple[str, ...], instead: str, folder: Path) -> None:
    done = lgov_run(folder, *command)
    assert done.returncode == 78
    assert instead in done.stderr


def test_a_command_of_another_python_is_refused(folder: Path) -> None:
    tool = folder / "tool"
    tool.write_text("#!/usr/lib/python9.9\nprint(1)\n")
    tool.chmod(0o755)
    done = lgov_run(folder, "./tool")
    assert (done.returncode, done.stdout) == (78, "")
    assert "is a program of /usr/lib/python9.9" in done.stderr
