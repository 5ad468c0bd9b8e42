"""Processes that a governed program starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from lgov_runs import LGOV, WORKER, lgov_run, make_company, write

from lgov_core.audit import AuditLog
from lgov_core.store import open_store
from lgov_core.types import Outcome

UNGOVERNED = {
    "isolated": "subprocess.run([sys.executable, '-I', 'worker.py', 'SELECT 1'])",
    "no environment": "subprocess.run([sys.executable, '-E', 'worker.py', 'SELECT 1'])",
    "own environment": "subprocess.run([sys.executable, 'worker.py', 'SELECT 1'], env={'PATH': os.environ['PATH']})",
    "spawn": "os.spawnv(os.P_WAIT, sys.executable, [sys.executable, '-I', 'worker.py', 'SELECT 1'])",
    "system": "os.system(f'{sys.executable} -I worker.py \"SELECT 1\"')",
    "fork and exec": "os.fork() or os.execv(sys.executable, [sys.executable, '-I', 'worker.py', 'SELECT 1']); os.wait()",
    "among governed ones": (
        'subprocess.run(f\'{sys.executable} worker.py "SELECT 2"; {sys.executable} worker.py "SELECT 2";'
        ' {sys.executable} -I worker.py "SELECT 1"\', shell=True)'
    ),
    "grandchild": "subprocess.run([sys.executable, 'middle.py'])",
}


@pytest.mark.parametrize("way", sorted(UNGOVERNED))
def test_an_ungoverned_child_makes_the_status_78(way: str, folder: Path) -> None:
    make_company(folder)
    write(folder, WORKER, "worker.py")
    write(folder, f"import os, subprocess, sys\n{UNGOVERNED['isolated']}\n", "middle.py")
    program = write(folder, f"import os, subprocess, sys\n{UNGOVERNED[way]}\nprint('the end')\n")
    store = ("--store", "store.db", "--rollout-id", "r-1")
    done = lgov_run(folder, "python", program, options=store)
    assert "[(1,)]" in done.stdout
    assert done.stdout.endswith("the end\n")
    assert done.returncode == 78, done.stderr
    assert "1 Python process that the program started was not governed" in done.stderr
    assert "--children best-effort" in done.stderr
    with open_store(str(folder / "store.db")) as stored:  # type: ignore[attr-defined]
        assert [attempt.outcome for attempt in stored.attempts(["r-1"])] == [Outcome.BLOCKED]
    assert not list(folder.glob("lgov-children-*"))
    for allowed in (("--children", "best-effort"), ("--children", "allow")):
        done = lgov_run(folder, "python", program, options=allowed)
        assert done.returncode == 0, done.stderr
    assert "not governed" in done.stderr


OTHERS = {
    "argument": "subprocess.run(['sh', '-c', 'true'])",
    "shell": "subprocess.run('true && ls | cat', shell=True)",
    "system": "os.system('true')",
    "fork and exec": "os.fork() or os.execvp('true', ['true']); os.wait()",
    "words about Python": "subprocess.run(['echo', 'it is python'], cwd='python')",
}


@pytest.mark.parametrize("way", sorted(OTHERS))
def test_a_program_that_is_not_python_is_named_and_no_failure(way: str, folder: Path) -> None:
    (folder / "python").mkdir()
    done = lgov_run(folder, "python", write(folder, f"import os, subprocess\n{OTHERS[way]}\n"))
    assert done.returncode == 0, done.stderr
    assert "1 other program without a policy: it started " in done.stderr


def test_a_script_for_python_is_python(folder: Path) -> None:
    script = folder / "tool"
    script.write_text(f"#!{sys.executable} -I\nprint('ran')\n")
    script.chmod(0o700)
    done = lgov_run(folder, "python", write(folder, "import subprocess; subprocess.run(['./tool'])"))
    assert (done.stdout, done.returncode) == ("ran\n", 78), done.stderr


def test_an_ungoverned_child_does_not_hide_the_programs_own_status(folder: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', '']); sys.exit(5)"
    assert lgov_run(folder, "python", write(folder, program)).returncode == 5


def test_a_program_that_replaces_itself_is_ended(folder: Path) -> None:
    program = write(folder, "import os, sys; os.execv(sys.executable, [sys.executable, '-I', '-c', 'print(1)'])")
    done = lgov_run(folder, "python", program)
    assert (done.returncode, done.stdout) == (78, ""), done.stderr
    assert "replaces itself by python" in done.stderr
    done = lgov_run(folder, "python", program, options=("--children", "best-effort"))
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


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
    options = ("--audit", "audit.db", "--rollout-id", "r-1", "--json")
    done = lgov_run(folder, "python", program, options=options)
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


#: Ways in which people start Python below other programs. PY is Python; small.py makes a file of the name that it is given.
BELOW_OTHERS = """
import os, pathlib, subprocess, sys, time
os.environ["PY"] = sys.executable
for text in (
    f"{sys.executable} small.py a",
    f"true; {sys.executable} small.py a; true",
    f"cd sub && {sys.executable} ../small.py a",
    f"for i in 1 2; do {sys.executable} small.py $i; done",
    f"({sys.executable} small.py a) | cat",
    f"{sys.executable} missing.py 2>&1 | grep -q x || {sys.executable} small.py a",
    f"PYTHONPATH=sub:$PYTHONPATH {sys.executable} small.py a && true",
    f"{sys.executable} small.py $(echo a) ; true",
    f"{sys.executable} small.py last-$$ & ",
):
    subprocess.run(text, shell=True, check=True)
    os.system(text)
subprocess.run(["timeout", "60", sys.executable, "small.py", "a"], check=True)
subprocess.run(["sh", "run.sh"], check=True)
while len(list(pathlib.Path().glob("last-*"))) < 2:
    time.sleep(0.05)
"""


def test_python_below_a_shell_and_other_programs_is_governed_and_the_status_is_the_programs_own(folder: Path) -> None:
    (folder / "sub").mkdir()
    write(folder, "import sys; open(sys.argv[1], 'w')", "small.py")
    write(folder, '"$PY" small.py a', "run.sh")
    done = lgov_run(folder, "python", write(folder, BELOW_OTHERS), options=("--json",))
    report = json.loads(done.stderr.splitlines()[-1])["report"]
    assert (done.returncode, report["ungoverned_children"]) == (0, {}), done.stderr
    assert report["governed_children"] == 2 * 11 + 2


#: Each starts one that nothing governs, most beside one that is governed and must not stand for the other.
ESCAPES = """
import os, subprocess, sys
os.environ["PY"] = sys.executable
for text in (
    f"{sys.executable} small.py a; {sys.executable} -I small.py a",
    f"{sys.executable} small.py a; env -i {sys.executable} small.py a",
    f"{sys.executable} small.py a; PYTHONPATH= {sys.executable} small.py a",
    f"{sys.executable} small.py a; (unset LGOV_CHILD; {sys.executable} small.py a)",
    f"for option in -u -I; do {sys.executable} $option small.py a; done",
):
    subprocess.run(text, shell=True, check=True)
own = {"PATH": os.environ["PATH"]}
for environment in (None, own):  # twice the same
    subprocess.run(f"{sys.executable} small.py a; true", shell=True, check=True, env=environment)
subprocess.run([sys.executable, "small.py", "a"], check=True, env=own)
for starter in (os.getpid(), 1):
    subprocess.run(["sh", "run.sh"], check=True, env={**os.environ, "LGOV_STARTER": str(starter)})
"""


def test_a_governed_child_never_stands_for_another_that_is_not(folder: Path) -> None:
    write(folder, "", "small.py")
    write(folder, '"$PY" small.py a; "$PY" small.py a & ', "run.sh")
    done = lgov_run(folder, "python", write(folder, ESCAPES), options=("--json",))
    report = json.loads(done.stderr.splitlines()[-1])["report"]
    assert (done.returncode, sum(report["ungoverned_children"].values())) == (78, 7), done.stderr


#: Each starts what has not begun, or whose starter has ended, when the report is made.
DETACHED = {
    "at the very end": "subprocess.Popen([sys.executable, 'small.py'])",
    "by a child that has ended": "subprocess.run([sys.executable, 'middle.py'])",
    "in a session of its own": "subprocess.run(['setsid', '--fork', sys.executable, 'small.py'])",
    "behind a shell": "subprocess.run(f'(nohup {sys.executable} small.py &) > /dev/null', shell=True)",
}


@pytest.mark.parametrize("way", sorted(DETACHED))
def test_what_outlives_the_program_is_governed_and_the_report_says_that_it_still_runs(way: str, folder: Path) -> None:
    small = (
        "import os, pathlib, time\nos.close(1), os.close(2)\nwhile not pathlib.Path('stop').exists(): time.sleep(0.05)"
    )
    write(folder, small, "small.py")
    write(folder, f"import subprocess, sys\n{DETACHED['at the very end']}", "middle.py")
    done = lgov_run(folder, "python", write(folder, f"import subprocess, sys\n{DETACHED[way]}"), options=("--json",))
    (folder / "stop").touch()
    report = json.loads(done.stderr.splitlines()[-1])["report"]
    assert (done.returncode, report["ungoverned_children"]) == (0, {}), done.stderr
    assert (report["governed_children"], report["running_children"]) == (2 if "child" in way else 1, 1)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_what_a_child_that_a_signal_ends_was_denied_is_in_the_report(name: str, folder: Path) -> None:
    if signal.getsignal(signal.Signals[name]) is signal.SIG_IGN:
        pytest.skip(f"{name} is ignored here, as by nohup")
    make_company(folder)
    write(folder, WORKER, "worker.py")
    program = """
import os, signal, subprocess, sys
end = "import os, worker; worker.run_sql.invoke({'query': 'DROP TABLE staff'}); os.kill(os.getpid(), 9)"
subprocess.run([sys.executable, "-c", end])
"""
    program += f"os.kill(os.getpid(), signal.{name})\n"
    done = lgov_run(folder, "python", write(folder, program), options=("--store", "store.db", "--rollout-id", "r-1"))
    assert done.returncode == -signal.Signals[name], done.stderr
    assert "governed: langchain; decisions: 1 allowed, 1 denied" in done.stderr
    assert "langchain: evaluated 1 tool call" in done.stderr
    assert "imported no framework" not in done.stderr
    assert done.stderr.count("audit record: ") == 1
    with open_store(str(folder / "store.db")) as stored:  # type: ignore[attr-defined]
        assert [attempt.outcome for attempt in stored.attempts(["r-1"])] == [Outcome.INFRASTRUCTURE]


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


@pytest.mark.parametrize("before", [["python", "agent.py"], ["python", "-u", "-m", "agent"]], ids=["script", "module"])
def test_without_content_the_store_and_the_page_name_the_program_and_not_its_arguments(
    folder: Path, before: list[str]
) -> None:
    write(folder, "import sys\nprint(sys.argv[1:])\n")
    for content in ("--content", "--no-content"):
        (folder / "store.db").unlink(missing_ok=True)
        done = lgov_run(folder, *before, "--for", "pay alice", options=("--store", "store.db", content))
        assert done.stdout == "['--for', 'pay alice']\n", done.stderr
        with closing(open_store(str(folder / "store.db"))) as store:
            (rollout,) = store.rollouts()
        assert rollout.input == {"command": before if content == "--no-content" else [*before, "--for", "pay alice"]}
        subprocess.run(
            [*LGOV, "view", "store.db", "--export", "page.html", "--no-content"], cwd=folder, check=True, timeout=60
        )
        page = (folder / "page.html").read_text("utf-8")
        assert "pay alice" not in page
        assert f'"command":{json.dumps(before, separators=(",", ":"))}' in page


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


def test_a_child_with_a_governor_of_its_own_says_what_to_do(folder: Path) -> None:
    write(folder, "from lgov_core.governor import Governor\nfrom lgov_core.client.worker_process import govern_imports\n"
                  "govern_imports(Governor([]), exit)\nprint('went on')\n", "own.py")  # fmt: skip
    program = write(folder, "import subprocess, sys\nsubprocess.run([sys.executable, 'own.py'])\n")
    done = lgov_run(folder, "python", program)
    assert "start lgov run with --children allow" in done.stderr
    done = lgov_run(folder, "python", program, options=("--children", "allow"))
    assert (done.stdout, done.returncode) == ("went on\n", 0), done.stderr


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
    assert (done.stdout, done.returncode) == ("1\n", 78)
    assert "1 Python process that the program started was not governed (it started python" in done.stderr
    program = write(folder, "import os; print(os.environ.get('LGOV_CHILD'))")
    done = lgov_run(folder, "python", program, options=("--children", "allow"))
    assert done.stdout == "None\n"


def test_governed_and_ungoverned_children_are_counted(folder: Path) -> None:
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
    assert sum(report["ungoverned_children"].values()) == 3
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
