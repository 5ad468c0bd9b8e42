"""`lgov run --confine`: what a program sees, what works in a box, and when it is not run."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lgov_core.audit import AuditLog, verify
from tests.confine.conftest import POLICY, Workspace

WANTED = {
    "writes in the workspace": "open('made', 'w').write('x')",
    "reads its home folder, which is empty": "assert os.listdir(os.path.expanduser('~')) is not None",
    "temporary files": "tempfile.TemporaryFile().write(b'x')",
    "threads": "t = threading.Thread(target=print); t.start(); t.join()",
    "subprocess": "subprocess.run(['sh', '-c', 'echo hi | cat'], check=True)",
    "python child": "subprocess.run([sys.executable, '-c', 'import ssl, sqlite3'], check=True)",
    "asyncio": "asyncio.run(main())",
    "multiprocessing": (
        "p = multiprocessing.get_context('spawn').Process(target=print); p.start(); p.join(); assert p.exitcode == 0"
    ),
    "manager": "with multiprocessing.Manager() as m: assert m.list([1])[0] == 1",
    "shared memory": "multiprocessing.Lock()",
    "sqlite": "sqlite3.connect('x.db').execute('create table if not exists a(b)')",
    "git": (
        "subprocess.run('git init -q g && cd g && git config user.email a@b && git config user.name n && echo 1 > f"
        " && git add f && git commit -qm m && git log --oneline', shell=True, check=True)"
    ),
    "a server of its own": (
        "s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()).close()"
    ),
    "a terminal of its own": "import pty; os.close(pty.openpty()[0])",
}

PREPARED = """
import asyncio, multiprocessing, os, socket, sqlite3, subprocess, sys, tempfile, threading, traceback

async def main():
    assert await (await asyncio.create_subprocess_exec("true")).wait() == 0

if __name__ == "__main__":
    for name, code in {wanted!r}.items():
        try:
            exec(code)
        except BaseException:
            print(name, traceback.format_exc())
"""


def test_everyday_work_goes_on_inside(workspace: Workspace) -> None:
    ran = workspace.run(PREPARED.replace("{wanted!r}", repr(WANTED)), "--children", "allow")
    failed = [line for line in ran.output.splitlines() if "Error" in line]
    assert (ran.status, failed) == (0, []), ran.output + ran.errors
    assert (workspace.folder / "made").read_text() == "x"
    assert list(ran.box["layers"]) == ["namespaces", "root", "limits", "capabilities", "landlock", "seccomp"]
    assert ran.box["missing"] == {}


def test_the_program_sees_nothing_but_what_the_rules_show(workspace: Workspace) -> None:
    outside = workspace.folder.parent / "outside"
    outside.mkdir()
    (outside / "data").write_text("d")
    (workspace.folder / "sub").mkdir()
    (workspace.folder / "sub" / ".env").write_text("SECRET")
    program = f"""
import os
for act in (lambda: os.listdir({str(outside)!r}), lambda: open('sub/.env').read(), lambda: open('policy.yaml', 'a'),
            lambda: os.rename('policy.yaml', 'p'), lambda: os.listdir('.lgov'), lambda: os.rename('sub', 'other')):
    try:
        print(act())
    except OSError as error:
        print(type(error).__name__)
"""
    ran = workspace.run(program)
    refused = ["FileNotFoundError", "PermissionError", "OSError", "OSError", "PermissionError", "OSError"]
    assert ran.output.split() == refused, ran.errors
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, read: [../outside]}}\n")
    assert workspace.run(program).output.split()[0] == "['data']"


def test_a_symbolic_link_of_the_rules_leads_to_the_same_place(workspace: Workspace) -> None:
    outside, alias = workspace.folder.parent / "outside", workspace.folder.parent / "alias"
    outside.mkdir()
    (outside / "data").write_text("d")
    alias.symlink_to(outside)
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, read: [{alias}]}}\n")
    ran = workspace.run(f"import os; print(os.listdir({str(alias)!r}), os.listdir({str(outside)!r}))")
    assert ran.output == "['data'] ['data']\n", ran.errors


@pytest.mark.parametrize(
    ("confine", "options", "said"),
    [
        ("{preset: workspace, write: [gone]}", (), "does not exist"),
        ("{read: [/usr]}", (), "working folder"),
        ("{preset: workspace}", ("--audit", "audit.db"), "must be outside of its box"),
        ("{preset: workspace}", ("--set", "audit_key=audit.key"), "must be outside of its box"),
        ("{preset: workspace}", ("--preset", "workspce"), "did you mean workspace"),
        ("{preset: workspace, files: 100000000}", (), "limits cannot be had"),
    ],
)
def test_what_cannot_be_confined_is_not_run(
    confine: str, options: tuple[str, ...], said: str, workspace: Workspace
) -> None:
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{confine}\n")
    ran = workspace.run("open('ran', 'w')", *options)
    assert ran.status == 78
    assert said in ran.errors
    assert not (workspace.folder / "ran").exists()


def test_best_effort_says_what_is_missing_and_records_it(workspace: Workspace) -> None:
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, files: 100000000}}\n")
    ran = workspace.run("print('ran')", confine="--confine=best-effort")
    assert (ran.status, ran.output) == (0, "ran\n"), ran.errors
    assert list(ran.box["missing"]) == ["limits"]
    assert "best effort, without limits" in ran.errors
    _, box, *_ = AuditLog(workspace.folder / ".lgov" / "audit.db").entries()
    assert list(box.body["missing"]) == ["limits"]
    assert str(box.reason).startswith("confined at best effort, without limits")


def test_the_status_and_the_end_by_a_limit_are_the_programs(workspace: Workspace) -> None:
    assert workspace.run("import sys; sys.exit(7)").status == 7
    (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, cpu: 1, memory: 4GiB}}\n")
    ran = workspace.run("while True: pass")
    assert ran.status in (128 + signal.SIGXCPU, 128 + signal.SIGKILL)
    assert ran.box["status"] == ran.status
    ran = workspace.run("bytearray(5 << 30)")
    assert "MemoryError" in ran.errors


def test_an_interrupt_reaches_the_program(workspace: Workspace) -> None:
    process = workspace.start("import time; print('up', flush=True); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_nothing_outlives_the_program_or_the_outside(workspace: Workspace) -> None:
    daemon = "import subprocess, time; subprocess.Popen(['sleep', '4.3217'], start_new_session=True)"
    assert workspace.run(daemon).status == 0
    process = workspace.start(f"{daemon}\nprint('up', flush=True); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.wait()
    time.sleep(0.5)
    running = subprocess.run(["ps", "axo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 4.3217" not in running


class _Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hello() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hello)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


FETCH = """
import os, urllib.request
def get(url):
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode())
    except OSError as error:
        print(error)
"""


def test_the_model_endpoint_is_reachable_unless_the_preset_keeps_it_away(workspace: Workspace, hello: int) -> None:
    program = f"{FETCH}get(os.environ['OPENAI_BASE_URL'])"
    env = {"OPENAI_BASE_URL": f"http://127.0.0.1:{hello}/v1"}
    ran = workspace.run(program, env=env)
    assert ran.output == "hi\n", ran.errors
    assert ran.box["connections"]["allowed"] == {f"127.0.0.1:{hello}": 1}
    assert ran.box["models"] == {f"127.0.0.1:{hello}": 1}
    assert "refused" in workspace.run(program, "--preset", "no-network", env=env).output


def test_what_no_rule_sees_of_other_programs_is_in_the_report_of_the_box(workspace: Workspace, hello: int) -> None:
    """No Python of the box sends it, so only the proxy can know of it."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    place = f"127.0.0.1:{hello}"
    curl = f"import subprocess; subprocess.run(['curl', '-sS', 'http://{place}/v1/chat/completions', '-d', '{{}}'])"
    ran = workspace.run(curl, env={"OPENAI_BASE_URL": f"http://{place}/v1"})
    assert ran.box["models"] == {place: 1}, ran.errors


def test_the_proxy_lets_the_named_hosts_through_and_records_all(workspace: Workspace) -> None:
    host = socket.gethostname()
    try:
        socket.getaddrinfo(host, 80)
    except OSError:
        pytest.skip("this machine's own name is not known")
    with http.server.ThreadingHTTPServer(("", 0), _Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"{host.lower()}:{server.server_address[1]}"
        (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, connect: ['{place}']}}\n")
        tunnel = (
            "import http.client; c = http.client.HTTPConnection(*os.environ['HTTPS_PROXY'][7:].split(':'))\n"
            f"c.set_tunnel({host!r}, {server.server_address[1]}); c.request('GET', '/')\n"
            "print(c.getresponse().read().decode())\n"
        )
        unreadable = (
            "s = socket.create_connection(os.environ['HTTPS_PROXY'][7:].split(':'))\n"
            "s.sendall(b'CONNECT evil[\\x1bx:443 HTTP/1.1\\r\\n\\r\\n'); print(s.recv(99).decode()[:12])\n"
        )
        ran = workspace.run(
            f"import socket\n{FETCH}{tunnel}get('http://{place}/'); get('http://other.example/'); get('https://evil.example/')"
            f"\n{unreadable}"
        )
        server.shutdown()
    assert ran.output.splitlines()[:2] == ["hi", "hi"], ran.errors
    assert ran.output.splitlines()[2:] == [
        "HTTP Error 403: Refused",
        "<urlopen error Tunnel connection failed: 403 Refused>",
        "HTTP/1.1 400",
    ]
    assert "Traceback" not in ran.errors
    denied = {"other.example:80": 1, "evil.example:443": 1, "evil[\\x1bx:443": 1}
    assert ran.box["connections"] == {"allowed": {place: 2}, "denied": denied}
    record = workspace.folder / ".lgov" / "audit.db"
    log = AuditLog(record)
    decisions = [(entry.effect, entry.rule) for entry in log.entries() if entry.name == "connect"]
    log.close()
    assert decisions == [("allow", place)] * 2 + [("deny", "connect")] * 3
    assert verify(record).ok


def test_pip_installs_from_a_host_that_is_named_and_from_no_other(workspace: Workspace, tmp_path: Path) -> None:
    host = socket.gethostname()
    try:
        socket.getaddrinfo(host, 80)
    except OSError:
        pytest.skip("this machine's own name is not known")
    folder = tmp_path / "index" / "simple" / "tool"
    folder.mkdir(parents=True)
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: tool\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(folder / "tool-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tool.py", "")
        for name, text in about.items():
            wheel.writestr(f"tool-1.dist-info/{name}", text)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "index"))
    with http.server.ThreadingHTTPServer(("", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        place = f"{host.lower()}:{port}"
        (workspace.folder / "policy.yaml").write_text(f"{POLICY}{{preset: workspace, connect: ['{place}']}}\n")
        program = (
            f"import subprocess, sys\ndef pip(host, to): return subprocess.run([sys.executable, '-m', 'pip', '--isolated',"
            f" '--retries=0', 'install', '--no-deps', '-qq', '--trusted-host', host, '--target', to, '-i',"
            f" f'http://{{host}}:{port}/simple/', 'tool']).returncode\nprint(pip({host!r}, 'lib'), pip('other.example', 'no'))"
        )
        ran = workspace.run(program)
        server.shutdown()
    assert ran.output == "0 1\n", ran.errors
    assert (workspace.folder / "lib" / "tool.py").exists()
    assert ran.box["connections"]["allowed"].keys() == {place}
    assert ran.box["connections"]["denied"].keys() == {f"other.example:{port}"}


def test_a_box_started_by_a_shell_has_none_of_its_files(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET")
    with (tmp_path / "secret").open() as secret:
        ran = workspace.run(
            f"import os; print(os.path.exists('/proc/self/fd/{secret.fileno()}'))", pass_fds=[secret.fileno()]
        )
    assert ran.output == "False\n", ran.errors


def test_refused_system_calls_are_counted_and_recorded(workspace: Workspace) -> None:
    program = """
import ctypes, socket
lib = ctypes.CDLL(None, use_errno=True)
for _ in range(3):
    print(lib.ptrace(0, 0, 0, 0), ctypes.get_errno())
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
except PermissionError as error:
    print(error.errno)
"""
    ran = workspace.run(program)
    assert ran.output == "-1 1\n-1 1\n-1 1\n1\n", ran.errors
    assert ran.box["refused"] == {"ptrace": 3, "socket": 1}
    log = AuditLog(workspace.folder / ".lgov" / "audit.db")
    refused = [(entry.name, entry.effect) for entry in log.entries() if entry.rule == "system-call"]
    log.close()
    assert refused == [("ptrace", "deny"), ("socket", "deny")]


def test_a_python_without_lgov_runs_in_a_box(workspace: Workspace) -> None:
    if os.path.realpath(sys.prefix) == os.path.realpath(sys.base_prefix):
        pytest.skip("needs a virtual environment, beside which there is a Python without lgov")
    program = (
        "import os, subprocess, sys\n"
        "path = os.environ['PYTHONPATH'].split(os.pathsep)[0]\n"
        "subprocess.run([sys._base_executable, '-s', '-c', 'print(6 * 7)'], env={**os.environ, 'PYTHONPATH': path})"
    )
    ran = workspace.run(program)
    assert (ran.status, ran.output) == (0, "42\n"), ran.errors
