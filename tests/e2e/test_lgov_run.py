"""lgov run: an unedited program is governed, and the report says what was judged."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from lgov_runs import AGENT, LGOV, WORKER, lgov_run, make_company, write

from lgov_core.audit import AuditLog
from lgov_core.store import open_store
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_langchain_agent"


ALLOW_ALL = """
version: 1
name: open
default: allow
rules:
  - {name: everything, use: allow}
"""


def test_the_example_keeps_its_rows_and_its_files(tmp_path: Path) -> None:
    done = lgov_run(tmp_path, "python", str(EXAMPLE / "main.py"))
    assert done.returncode == 0, done.stderr
    assert "lgov" not in (EXAMPLE / "main.py").read_text().replace("lgov run", "")
    assert done.stdout.count("DENIED") == 2
    assert "rows in orders now: 5" in done.stdout
    assert "invoices.txt" in done.stdout.splitlines()[-1]
    assert "governed: langchain; decisions: " in done.stderr
    assert " 2 denied" in done.stderr
    assert "not governed" not in done.stderr


def test_the_example_does_harm_without_lgov(tmp_path: Path) -> None:
    """The control: what the other tests prevent would happen."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "main.py")],
        env={key: value for key, value in os.environ.items() if not key.startswith("OPENAI_")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "rows in orders now: 0" in done.stdout
    assert "invoices.txt" not in done.stdout.splitlines()[-1]


def test_an_unedited_agent_over_http(folder: Path) -> None:
    make_company(folder)
    script = [
        ScriptedReply(tool_calls=[ScriptedCall("run_sql", {"query": "DROP TABLE staff"}, "c1")]),
        ScriptedReply(tool_calls=[ScriptedCall("run_sql", {"query": "SELECT count(*) FROM staff"}, "c2")]),
        "there are three",
    ]
    with ScriptedModelServer(script) as model:
        endpoint = model.base_url.removesuffix("/v1")
        done = lgov_run(
            folder,
            "python3",
            write(folder, AGENT),
            "how",
            "many?",
            options=("--endpoint", endpoint, "--rollout-id", "r-1", "--store", "store.db", "--audit", "audit.db"),
        )
    assert done.returncode == 7, "the program's own status"
    assert done.stdout == "there are three\n"
    first, second, third = model.requests
    assert first.body["messages"][-1]["content"] == "how many?"
    assert "DENIED" in second.body["messages"][-1]["content"]
    assert third.body["messages"][-1]["content"] == "[(3,)]"
    for request in model.requests:
        assert request.headers["x-lgov-rollout-id"] == "r-1"
        assert request.headers["x-lgov-attempt"] == "1"
        assert request.headers["x-lgov-agent"] == "clerk"

    audit = AuditLog(folder / "audit.db")
    judged = [entry for entry in audit.entries("r-1") if entry.point == "pre_tool_call" and entry.effect]
    audit.close()
    effects = {entry.call_id: entry.effect for entry in judged}
    assert effects == {"c1": "deny", "c2": "allow"}

    store = open_store(str(folder / "store.db"))
    rewards = {reward.tool_call_id: reward.dimension for reward in store.rewards(["r-1"])}
    (attempt,) = store.attempts(["r-1"])
    chats = [span for span in store.spans(["r-1"]) if span.name == "chat scripted"]
    store.close()
    assert rewards == {"c1": "compliance", "c2": "air", None: "air"}  # the last: AIR is taken back at the end
    assert attempt.outcome == "failed"
    assert len(chats) == 3


def test_an_unedited_program_of_anthropics_client_goes_to_the_endpoint(folder: Path) -> None:
    program = (
        "from anthropic import Anthropic\n"
        "messages = [{'role': 'user', 'content': 'hi'}]\n"
        "print(Anthropic().messages.create(model='m', max_tokens=9, messages=messages).content[0].text)\n"
    )
    with ScriptedModelServer(["hello"]) as model:
        options = ("--endpoint", model.base_url.removesuffix("/v1"), "--rollout-id", "r-3")
        done = lgov_run(folder, "python", write(folder, program), options=options)
    assert done.stdout == "hello\n", done.stderr
    (request,) = model.requests
    assert (request.path, request.headers["x-lgov-rollout-id"]) == ("/v1/messages", "r-3")
    assert "not evaluated" not in done.stderr, "the endpoint judges it"


def test_a_tool_called_by_hand_in_a_thread_is_governed_too(folder: Path) -> None:
    make_company(folder)
    program = """
import concurrent.futures, sqlite3
from langchain_core.tools import tool

@tool
def run_sql(query: str) -> str:
    "Runs SQL."
    with sqlite3.connect("company.db") as connection:
        return str(connection.execute(query).fetchall())

with concurrent.futures.ThreadPoolExecutor() as pool:
    print(pool.submit(run_sql.invoke, {"query": "DROP TABLE staff"}).result())
    print(pool.submit(run_sql.invoke, {"query": "SELECT count(*) FROM staff"}).result())
"""
    done = lgov_run(folder, "python", write(folder, program), options=("--rollout-id", "r-2", "--audit", "audit.db"))
    assert done.returncode == 0, done.stderr
    denied, counted = done.stdout.splitlines()
    assert "DENIED" in denied
    assert counted == "[(3,)]"
    audit = AuditLog(folder / "audit.db")
    assert {entry.rollout_id for entry in audit.entries() if entry.kind != "policy"} == {"r-2"}
    audit.close()


def test_the_report_says_that_no_framework_was_imported(folder: Path) -> None:
    done = lgov_run(folder, "python", "-u", write(folder, "import sys; print(sys.argv, __name__)"), "-x", "--y")
    assert done.returncode == 0
    assert done.stdout == "['agent.py', '-x', '--y'] __main__\n"
    assert "no framework" in done.stderr


def test_the_report_names_programs_that_run_the_folders_code(folder: Path) -> None:
    rule = "{use: shell, tools: [bash], with: {code: {allow: [pytest, make]}}}"
    (folder / "policy.yaml").write_text(f"version: 1\nrules:\n  - {rule}\n")
    done = lgov_run(folder, "python", write(folder, "print('done')"))
    assert "runs the folder's code, as the policy permits: pytest, make" in done.stderr


def test_a_module_is_run_as_python_runs_it(folder: Path) -> None:
    write(folder, "import neighbour, sys\nprint(neighbour.NAME, __name__, sys.argv[1:])\n", "tool_main.py")
    write(folder, "NAME = 'next door'\n", "neighbour.py")
    done = lgov_run(folder, sys.executable, "-m", "tool_main", "a")
    assert done.stdout == "next door __main__ ['a']\n", done.stderr


def test_the_report_says_what_was_judged(folder: Path) -> None:
    make_company(folder)
    with ScriptedModelServer(
        [ScriptedReply(tool_calls=[ScriptedCall("run_sql", {"query": "SELECT 1"}, "c1")]), "one"]
    ) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"}
        done = lgov_run(folder, "python", write(folder, AGENT), "go", env=env)
    assert (
        "lgov: langchain: evaluated 1 input, 2 model calls, 2 replies, 1 tool call, 1 tool result, 1 answer"
        in done.stderr
    )


def test_the_report_counts_what_shadow_mode_would_have_denied(folder: Path) -> None:
    make_company(folder)
    (folder / "policy.yaml").write_text(
        "version: 1\nmode: shadow\ndefault: allow\nrules:\n  - {name: never, tools: [run_sql], use: deny}\n"
    )
    with ScriptedModelServer(
        [ScriptedReply(tool_calls=[ScriptedCall("run_sql", {"query": "SELECT 1"}, "c1")]), "one"]
    ) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"}
        done = lgov_run(folder, "python", write(folder, AGENT), "go", env=env)
    assert "0 denied; shadow mode: 1 of the allowed would have been denied" in done.stderr


def test_the_report_names_the_gaps_that_the_program_came_near(folder: Path) -> None:
    program = """
from langchain_core.tools import tool

@tool
def double(number: int) -> int:
    "Doubles."
    return 2 * number

print(double.func(4))
"""
    done = lgov_run(folder, "python", write(folder, program), options=("--json",))
    assert done.stdout == "8\n"
    report = json.loads(done.stderr.splitlines()[-1])["report"]
    (near,) = report["near_gaps"]
    assert (Path(near["file"]).name, near["line"], near["call"], near["framework"]) == (
        "agent.py",
        9,
        "func",
        "langchain",
    )
    assert "near a known gap: agent.py:9 calls func()" in lgov_run(folder, "python", "agent.py").stderr


@pytest.mark.parametrize(
    ("program", "status", "says"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no way')", 1, "no way"),
        ("def f():\n    raise KeyError('gone')\nf()", 1, "KeyError: 'gone'"),
        ("raise KeyboardInterrupt", 130, "line 1"),
    ],
)
def test_the_programs_end_is_its_own(program: str, status: int, says: str, folder: Path) -> None:
    done = lgov_run(folder, "python", write(folder, program))
    assert done.returncode == status
    assert says in done.stderr
    assert "invocation.py" not in done.stderr, "tracebacks begin with the program's own lines"


def as_plain_python_does(folder: Path, *command: str) -> str:
    """What the program writes; asserts that it is the same without lgov run."""
    plain = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=60)
    governed = lgov_run(folder, "python", *command, options=("--policy", str(folder / "policy.yaml")))
    assert (governed.returncode, governed.stdout) == (plain.returncode, plain.stdout), governed.stderr
    for line in plain.stderr.splitlines()[-1:]:
        assert line in governed.stderr
    return governed.stdout


def test_a_program_finds_itself_as_under_python(folder: Path) -> None:
    """A relative path would lead nowhere once the program has gone to another folder."""
    program = """print(sorted(vars()))
import os, pathlib, sys
os.chdir("/")
print(sys.argv, sys.path[0], __file__, __package__, __spec__ and __spec__.name, __builtins__.len, vars() is vars(
    sys.modules["__main__"]))
print(pathlib.Path(__file__).read_text() != "")
raise ValueError(1)
"""
    (folder / "in").mkdir()
    for name in ("agent.py", "in/__main__.py", "in/module.py", "in/__init__.py"):
        write(folder, program if name != "in/__init__.py" else "", name)
    for command in (("agent.py", "--", "-c"), ("in/../agent.py",), ("in",), ("-m", "in.module", "-x")):
        assert "True\nTrue\n" in as_plain_python_does(folder, *command)
    with zipfile.ZipFile(folder / "agent.pyz", "w") as archive:
        archive.writestr("__main__.py", "import sys\nprint(sys.argv, sys.path[0], __file__)")
    as_plain_python_does(folder, "agent.pyz", "argument")


def test_what_outlives_the_last_line_still_finds_the_program(folder: Path) -> None:
    program = """
import atexit, pickle, sys, threading

class Kept:
    pass

def late():
    threading.main_thread().join()
    print(type(pickle.loads(pickle.dumps(Kept()))) is Kept, flush=True)

atexit.register(lambda: print(sys.modules["__main__"].Kept is Kept))
threading.Thread(target=late).start()
"""
    assert as_plain_python_does(folder, write(folder, program)) == "True\nTrue\n"


def test_an_interrupt_ends_with_130_and_a_report(folder: Path) -> None:
    program = "import sys, time\nprint('ready', flush=True)\ntime.sleep(60)\n"
    process = subprocess.Popen(
        [*LGOV, "run", "--", "python", write(folder, program)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "audit record" in errors


def test_open_policies_are_open(folder: Path) -> None:
    (folder / "policy.yaml").write_text(ALLOW_ALL)
    make_company(folder)
    with ScriptedModelServer(
        [ScriptedReply(tool_calls=[ScriptedCall("run_sql", {"query": "DROP TABLE staff"}, "c1")]), "done"]
    ) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"}
        done = lgov_run(folder, "python", write(folder, AGENT), "go", env=env)
    assert done.stdout == "done\n"
    assert "x-lgov-rollout-id" not in model.requests[0].headers, "another's endpoint learns nothing of rollouts"
    connection = sqlite3.connect(folder / "company.db")
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    connection.close()


def test_a_program_that_changes_its_folder_stays_governed(folder: Path) -> None:
    """Files of lgov are opened more than once: by then a relative path means another file."""
    make_company(folder)
    write(folder, WORKER, "worker.py")
    program = """
import os, sys, threading
sys.path.insert(0, os.getcwd())
os.mkdir("elsewhere")
os.chdir("elsewhere")
import worker

def work(query):
    print(worker.run_sql.invoke({"query": query}))

for query in sys.argv[1:]:
    thread = threading.Thread(target=work, args=(query,))
    thread.start()
    thread.join()
worker.run_sql.func("SELECT 3")
"""
    options = ("--audit", "record.db", "--store", "traces.db", "--rollout-id", "r-1")
    done = lgov_run(folder, "python", write(folder, program), "DROP TABLE staff", "SELECT 2", options=options)
    assert done.stdout.splitlines()[1:] == ["[(2,)]"], done.stdout + done.stderr
    assert "DENIED" in done.stdout
    assert "failures" not in done.stderr
    assert "near a known gap: agent.py" in done.stderr
    audit = AuditLog(folder / "record.db")
    assert [entry.name for entry in audit.entries("r-1") if entry.effect == "deny"] == ["run_sql"]
    audit.close()
    store = open_store(str(folder / "traces.db"))
    assert [span.name for span in store.spans(["r-1"])].count("execute_tool run_sql") == 2
    store.close()
