"""``lgov run`` as a person uses it: real processes, unedited programs."""

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

from lgov_core.audit import AuditLog
from lgov_core.store import open_store
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply

EXAMPLE = Path(__file__).parents[2] / "examples" / "01_langchain_agent"
LGOV = (sys.executable, "-c", "from lgov_core.cli import main; main()")

POLICY = """
version: 1
name: test
rules:
  - {name: sql, tools: [run_sql], use: sql, with: {dialect: sqlite, mode: read_only, argument: query}}
"""

ALLOW_ALL = """
version: 1
name: open
default: allow
rules:
  - {name: everything, use: allow}
"""

AGENT = """
import pathlib, sqlite3, sys
pathlib.Path("it-ran").touch()
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def run_sql(query: str) -> str:
    "Runs SQL."
    connection = sqlite3.connect("company.db")
    with connection:
        return str(connection.execute(query).fetchall())

agent = create_agent(ChatOpenAI(model="scripted", max_retries=0), [run_sql], name="clerk")
print(agent.invoke({"messages": [("user", " ".join(sys.argv[1:]))]})["messages"][-1].text)
sys.exit(7)
"""


def lgov_run(
    folder: Path, *command: str, options: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs ``lgov run`` in ``folder`` with an environment that names no model and no settings."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
    return subprocess.run(
        [*LGOV, "run", *options, "--", *command],
        cwd=folder,
        env={**clean, "TMPDIR": str(folder), **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def write(folder: Path, text: str, name: str = "agent.py") -> str:
    (folder / name).write_text(text)
    return name


def make_company(folder: Path) -> None:
    connection = sqlite3.connect(folder / "company.db")
    with connection:
        connection.execute("CREATE TABLE staff(name)")
        connection.execute("INSERT INTO staff VALUES ('a'), ('b'), ('c')")
    connection.close()


# ---------------------------------------------------------------------- it governs


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
    assert {entry.rollout_id for entry in audit.entries()} == {"r-2"}
    audit.close()


def test_a_program_without_a_framework_is_told_that_nothing_was_judged(folder: Path) -> None:
    done = lgov_run(folder, "python", "-u", write(folder, "import sys; print(sys.argv, __name__)"), "-x", "--y")
    assert done.returncode == 0
    assert done.stdout == "['agent.py', '-x', '--y'] __main__\n"
    assert "no framework" in done.stderr


def test_a_module_is_run_as_python_runs_it(folder: Path) -> None:
    write(folder, "import neighbour, sys\nprint(neighbour.NAME, __name__, sys.argv[1:])\n", "tool_main.py")
    write(folder, "NAME = 'next door'\n", "neighbour.py")
    done = lgov_run(folder, sys.executable, "-m", "tool_main", "a")
    assert done.stdout == "next door __main__ ['a']\n", done.stderr


def test_started_programs_are_reported_as_not_governed(folder: Path) -> None:
    done = lgov_run(folder, "python", write(folder, "import subprocess, sys; subprocess.run([sys.executable, '-V'])"))
    assert done.returncode == 0
    assert "not governed" in done.stderr


# ---------------------------------------------------------------------- the processes that the program starts

WORKER = """
import sqlite3, sys
from langchain_core.tools import tool

@tool
def run_sql(query: str) -> str:
    "Runs SQL."
    with sqlite3.connect("company.db") as connection:
        return str(connection.execute(query).fetchall())

if __name__ == "__main__":
    print(run_sql.invoke({"query": sys.argv[1]}), flush=True)
"""

STARTERS = {
    "subprocess": "subprocess.run([sys.executable, 'worker.py', {query!r}], check=True)",
    "module": "subprocess.run([sys.executable, '-m', 'worker', {query!r}], check=True)",
    "shell": "subprocess.run(f'{{sys.executable}} worker.py \"{query}\"', shell=True, check=True)",
    "other folder": "subprocess.run([sys.executable, '../{folder}/worker.py', {query!r}], check=True)",
    "grandchild": "subprocess.run([sys.executable, 'middle.py', {query!r}], check=True)",
}


@pytest.mark.parametrize("way", sorted(STARTERS))
def test_a_python_process_that_the_program_starts_is_governed(way: str, folder: Path) -> None:
    make_company(folder)
    write(folder, WORKER, "worker.py")
    write(folder, "import subprocess, sys; subprocess.run([sys.executable, 'worker.py', sys.argv[1]])", "middle.py")
    start = STARTERS[way].format(query="DROP TABLE staff", folder=folder.name)
    program = write(folder, f"import subprocess, sys\n{start}\nprint('parent goes on')\n")
    done = lgov_run(folder, "python", program, options=("--audit", "audit.db", "--rollout-id", "r-1", "--json"))
    assert done.returncode == 0, done.stderr
    assert "DENIED" in done.stdout
    assert "parent goes on" in done.stdout
    report = json.loads(done.stderr.splitlines()[-1])["report"]
    assert report["governed_children"] == (2 if way == "grandchild" else 1)
    assert report["judged"]["langchain"]["pre_tool_call"] == {"deny": 1}
    audit = AuditLog(folder / "audit.db")
    (denied,) = [entry for entry in audit.entries("r-1") if entry.effect == "deny"]
    audit.close()
    assert denied.name == "run_sql"
    assert not list(folder.glob("lgov-children-*")), "the children's reports are read and removed"


def test_a_spawned_worker_is_governed(folder: Path) -> None:
    make_company(folder)
    write(folder, WORKER, "worker.py")
    program = """
import multiprocessing

def work(query):
    import worker
    return worker.run_sql.invoke({"query": query})

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(work, ("DROP TABLE staff",)))
        print(pool.apply(work, ("SELECT count(*) FROM staff",)))
"""
    done = lgov_run(folder, "python", write(folder, program))
    assert done.returncode == 0, done.stderr
    denied, counted = done.stdout.splitlines()
    assert "DENIED" in denied
    assert counted == "[(3,)]"
    assert "were governed" in done.stderr


def test_children_write_to_the_same_store(folder: Path) -> None:
    make_company(folder)
    write(folder, WORKER, "worker.py")
    program = write(
        folder, "import subprocess, sys\nsubprocess.run([sys.executable, 'worker.py', 'SELECT 1'], cwd='.')\n"
    )
    options = ("--store", "store.db", "--rollout-id", "r-1", "--no-content")
    done = lgov_run(folder, "python", program, options=options)
    assert done.stdout == "[(1,)]\n", done.stderr
    assert "lgov: trace store: store.db, rollout r-1\n" in done.stderr
    store = open_store(str(folder / "store.db"))
    spans = store.spans(["r-1"])
    store.close()
    assert "execute_tool run_sql" in {span.name for span in spans}
    assert "SELECT 1" not in str(spans), "without content no argument is on a span"


def test_what_is_redacted_is_in_no_record_also_of_children(folder: Path) -> None:
    make_company(folder)
    write(folder, WORKER, "worker.py")
    write(folder, "[tool.lgov]\nredact = ['query']\n", "pyproject.toml")
    program = write(
        folder,
        "import subprocess, sys, worker\nprint(worker.run_sql.invoke({'query': 'SELECT 41 + 1'}))\n"
        "subprocess.run([sys.executable, 'worker.py', 'SELECT 42 + 1'])\n",
    )
    done = lgov_run(folder, "python", program, options=("--audit", "audit.db"))
    assert sorted(done.stdout.splitlines()) == ["[(42,)]", "[(43,)]"], done.stderr
    with AuditLog(folder / "audit.db") as record:
        entries = [entry for entry in record.entries() if entry.name == "run_sql" and entry.kind == "decision"]
    assert {entry.arguments for entry in entries} == {'{"query":"[redacted]"}'}
    assert len({entry.writer for entry in entries}) == 2  # the program's and the child's
    assert b" + 1" not in (folder / "audit.db").read_bytes()


def test_a_child_that_cannot_be_governed_does_not_run(folder: Path) -> None:
    write(folder, WORKER + "\nopen('went-on', 'w')\n", "worker.py")
    program = """
import pathlib, subprocess, sys
pathlib.Path("policy.yaml").write_text("version: 1\\nrules: [")
done = subprocess.run([sys.executable, "worker.py", "SELECT 1"], capture_output=True, text=True)
print(done.returncode, "policy.yaml" in done.stderr)
"""
    done = lgov_run(folder, "python", write(folder, program))
    assert done.stdout == "78 True\n", done.stderr
    assert not (folder / "went-on").exists()


def test_an_interpreter_without_lgov_does_not_run_either(folder: Path) -> None:
    """As it is for the Python of another environment: what is started is Python, and it finds no lgov."""
    program = """
import os, subprocess, sys
environment = {**os.environ, "PYTHONPATH": os.environ["PYTHONPATH"].split(os.pathsep)[0]}
done = subprocess.run([sys._base_executable, "-s", "-c", "print('ran')"], capture_output=True, text=True, env=environment)
print(done.returncode, done.stdout, "--children allow" in done.stderr)
"""
    if os.path.realpath(sys.prefix) == os.path.realpath(sys.base_prefix):
        pytest.skip("needs a virtual environment, beside which there is a Python without lgov")
    done = lgov_run(folder, "python", write(folder, program))
    assert done.stdout == "78  True\n", done.stderr


def test_isolated_and_allowed_children_are_named(folder: Path) -> None:
    program = write(folder, "import subprocess, sys\nsubprocess.run([sys.executable, '-I', '-c', 'print(1)'])\n")
    done = lgov_run(folder, "python", program)
    assert done.stdout == "1\n"
    assert "1 processes that the program started were not governed (it started python" in done.stderr
    program = write(folder, "import os; print(os.environ.get('LGOV_CHILD'))")
    done = lgov_run(folder, "python", program, options=("--children", "allow"))
    assert done.stdout == "None\n"


def test_children_that_are_not_governed_are_counted_beside_those_that_are(folder: Path) -> None:
    program = """
import multiprocessing, subprocess, sys

if __name__ == "__main__":
    for _ in range(2):
        one = multiprocessing.get_context("spawn").Process(target=print)
        one.start()
        one.join()
    subprocess.run([sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'])"])
    for _ in range(3):
        subprocess.run([sys.executable, "-I", "-c", "print(2)"])
"""
    done = lgov_run(folder, "python", write(folder, program), options=("--json",))
    report = json.loads(done.stderr.splitlines()[-1])["report"]
    assert report["ungoverned_children"] == 3
    assert report["governed_children"] >= 4  # multiprocessing starts one more that keeps its things tidy


def test_a_childs_own_sitecustomize_still_runs(folder: Path) -> None:
    (folder / "site").mkdir()
    write(folder, "import builtins; builtins.OWN = 'own'", "site/sitecustomize.py")
    program = write(folder, "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(OWN)'])\n")
    env = {"PYTHONPATH": os.pathsep.join([str(folder / "site"), *sys.path])}
    done = lgov_run(folder, "python", program, env=env)
    assert done.stdout == "own\n", done.stderr


def test_lgov_run_inside_a_governed_program_is_refused(folder: Path) -> None:
    write(folder, "print('inner ran')", "inner.py")
    command = [*LGOV, "run", "--policy", "policy.yaml", "--", "python", "inner.py"]
    program = write(folder, f"import subprocess\nprint(subprocess.run({command!r}).returncode)\n")
    done = lgov_run(folder, "python", program)
    assert done.stdout == "78\n"
    assert "is under its policy already" in done.stderr


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
print(import_module("{adapter}.instrumentor")._INSTRUMENTOR.governor not in (own, None))
"""
    done = lgov_run(folder, "python", write(folder, program))
    assert done.stdout == "refused\nTrue\n", done.stderr
    assert "governed: none" not in done.stderr


# ---------------------------------------------------------------------- the closing report


def test_the_report_says_what_was_judged(folder: Path) -> None:
    make_company(folder)
    with ScriptedModelServer(
        [ScriptedReply(tool_calls=[ScriptedCall("run_sql", {"query": "SELECT 1"}, "c1")]), "one"]
    ) as model:
        env = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "none"}
        done = lgov_run(folder, "python", write(folder, AGENT), "go", env=env)
    assert (
        "lgov: langchain: judged 1 user texts, 2 model calls, 2 replies, 1 tool calls, 1 tool results, 1 answers"
        in done.stderr
    )


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


# ---------------------------------------------------------------------- it does not run what it cannot govern


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
def test_what_is_no_python_program_of_this_interpreter_is_refused(command: tuple[str, ...], folder: Path) -> None:
    write(folder, AGENT)
    done = lgov_run(folder, *command)
    assert done.returncode == 78
    assert "lgov: not run: " in done.stderr
    assert not (folder / "it-ran").exists()


@pytest.mark.parametrize("program", ["agent.py", "./agent.py"])
def test_a_program_without_its_python_is_told_the_whole_command(program: str, folder: Path) -> None:
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
def test_it_ends_also_where_nothing_can_be_said(stderr: str, where: str, folder: Path) -> None:
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


def test_json_is_asked_for_and_an_error_is_json(folder: Path) -> None:
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


def test_a_langchain_that_cannot_be_instrumented_ends_the_program(folder: Path) -> None:
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


def test_a_program_that_moves_to_another_folder_stays_governed_and_recorded(folder: Path) -> None:
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


def test_a_second_copy_of_a_framework_ends_the_program(folder: Path) -> None:
    """What was instrumented are the classes of the first one."""
    program = """
import sys
import autogen_core
import importlib
importlib.reload(autogen_core)
print("reloaded", flush=True)
for name in [name for name in sys.modules if name.split(".")[0] == "autogen_core"]:
    del sys.modules[name]
try:
    import autogen_core
finally:
    open("went-on", "w")
"""
    done = lgov_run(folder, "python", write(folder, program))
    assert (done.returncode, done.stdout) == (78, "reloaded\n")
    assert "autogen_core was imported a second time" in done.stderr
    assert not (folder / "went-on").exists()


@pytest.mark.parametrize("way", ["os.fork", "pool"])
def test_what_a_forked_child_was_denied_is_in_the_report(way: str, folder: Path) -> None:
    make_company(folder)
    write(folder, WORKER, "worker.py")
    program = """
import os

def work(query):
    import worker
    return worker.run_sql.invoke({"query": query})

"""
    if way == "pool":
        program += "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(1) as pool:\n"
        program += "    print(pool.apply(work, ('DROP TABLE staff',)))\n"
    else:
        program += (
            "child = os.fork()\nif child == 0:\n    print(work('DROP TABLE staff'), flush=True)\n    os._exit(0)\n"
        )
        program += "os.waitpid(child, 0)\n"
    done = lgov_run(folder, "python", write(folder, program), options=("--json",))
    assert "DENIED" in done.stdout, done.stderr
    report = json.loads(done.stderr.splitlines()[-1])["report"]
    assert report["judged"]["langchain"]["pre_tool_call"] == {"deny": 1}
    assert report["denied"] == 1


def test_asking_which_machine_this_is_starts_no_other_program(folder: Path) -> None:
    done = lgov_run(folder, "python", write(folder, "import platform\nprint(platform.processor())\n"))
    assert done.returncode == 0
    assert "other processes" not in done.stderr


def test_instrumentation_says_what_a_framework_cannot_be_governed_in(folder: Path) -> None:
    program = "import logging, sys; logging.basicConfig(level='INFO', stream=sys.stdout)\nimport autogen_core\n"
    done = lgov_run(folder, "python", write(folder, program))
    assert done.returncode == 0, done.stderr
    assert "lgov.instrumentation:autogen: not governed" in done.stdout
    assert "AutoGen 0.7 has no synchronous API" in done.stdout
