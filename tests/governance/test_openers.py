"""What ``lgov.toml`` says about governing holds in everything that governs: one walk through all of them."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog, verify
from lgov_core.testing import ScriptedCall, ScriptedModelServer, ScriptedReply
from tests.confine.conftest import why_not

ROOT = Path(__file__).parents[2]
LGOV = (sys.executable, "-c", "from lgov_core.commands import main; main()")

POLICY = "version: 1\nrules:\n  - {name: all, use: allow}\nconfine: {preset: workspace}\n"
SETTINGS = """\
audit_key = "../keys/secret.pem"
heads = "../elsewhere/heads.jsonl"
redact = ["password"]
store = "traces.sqlite"
timeout_s = 0.3
"""
#: A policy of a package, of the kind that has to be bounded: it takes its time over one tool.
PLUGIN = """
import time
from lgov_core import hookimpl

@hookimpl
def lgov_pre_tool_call(action):
    if action.name == "slow":
        time.sleep(3)
"""
TOOLS = """
from langchain_core.tools import tool

@tool
def login(password: str) -> str:
    "Logs in."
    return "in"

@tool
def slow() -> str:
    "Takes its time to be judged."
    return "done"

def act():
    login.invoke({"password": "hunter2"})
    slow.invoke({})
"""
AGENT = TOOLS + "\ndef agent(resource, task):\n    act()\n    return 1.0\n"
CHILD = "import subprocess, sys\nsubprocess.run([sys.executable, 'acting.py'], check=True)\n"
OTEL = (
    "from lgov_core.otel_instrumentor import LgovInstrumentor\nLgovInstrumentor().instrument()\n" + TOOLS + "\nact()\n"
)
TEST = """
from lgov_core.types import Action, Point

def test_it(lgov_governor):
    lgov_governor.decide(Action(Point.PRE_TOOL_CALL, "login", arguments={"password": "hunter2"}))
    lgov_governor.decide(Action(Point.PRE_TOOL_CALL, "slow", arguments={}))
"""
RUNNER = """
from pathlib import Path
from agent import agent
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.wire import Assignment
from lgov_core.governance import Governance

if __name__ == "__main__":
    governance = Governance.from_settings().under(Path("policy.yaml"), Path("record.db"))
    runner = AgentRunner(agent, endpoint="http://127.0.0.1:9", governance=governance)
    report = runner.run(Assignment("ro", 1, "t", "train", {"a": 1}, "http://127.0.0.1:9/v1", "m", 60.0))
    runner.close()
    assert report.outcome.value == "infrastructure" and report.spans, report  # a policy that is too slow is a fault
"""
TRAINING = """
import sys
from pathlib import Path
from agent import agent
from lgov_core import Client
from lgov_core.server.local import serving
from lgov_core.train.settings import load_train_settings

if __name__ == "__main__":
    settings = load_train_settings(Path("config.yaml"))
    with serving(settings, Path("run")) as server:
        client = Client(server.url, quiet=True)
        client.upload_data([{"question": "digits 1"}])
        try:
            client.train(agent, nworkers=1, workers=sys.argv[1], policy="policy.yaml", audit="record.db")
        except Exception as error:
            print(repr(error))  # of an agent whose every attempt fails there is nothing to learn
"""
TRAINER = """
from agent import agent
from lgov_core.trainer import Trainer

if __name__ == "__main__":
    try:
        Trainer(agent=agent, tasks=[{"question": "digits 1"}], config="config.yaml", folder="run").train(num_steps=1)
    except Exception as error:
        print(repr(error))  # as above
"""
ACTS = ("login", "slow")
CONFIG = """\
model: {name: MODEL, max_new_tokens: 4}
training: {batch_size: 1, group_size: 2, steps: 1, epochs: 1, kl_coef: 0.0}
data: {train: tasks.jsonl}
runtime: {nworkers: 1, policy: policy.yaml, max_attempts: 1}
"""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder with the settings, and programs that act there. ``more`` is what an opener's fixture left in it."""

    path: Path
    request: pytest.FixtureRequest
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def write(self, name: str, text: str) -> str:
        (self.path / name).write_text(text)
        return name

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.path, env=self.environment, capture_output=True, text=True, timeout=180, check=False
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        return output

    def train(self, *argv: str) -> str:
        """Runs a command that needs torch, in a process that has it already. Its status may tell of failed attempts."""
        pytest.importorskip("torch", reason="needs the extra train")
        from tests.pair.warm_process import Warm

        warm: Warm = self.request.getfixturevalue("warm")
        model: Path = self.request.getfixturevalue("model_folder")
        self.write("config.yaml", CONFIG.replace("MODEL", str(model)))
        self.write("tasks.jsonl", '{"question": "digits 1"}\n')
        log = self.path / "log.txt"
        environment = {"LGOV_CACHE": str(self.path), "PYTHONPATH": self.environment["PYTHONPATH"]}
        asked = {"argv": argv, "cwd": str(self.path), "env": environment, "log": str(log), "hold": None}
        warm.ask({"wait": warm.ask(asked)})
        return log.read_text()


@pytest.fixture(scope="session")
def warm() -> Any:
    """Starts commands as processes that begin at once."""
    from tests.pair.conftest import ENVIRONMENT
    from tests.pair.warm_process import Warm

    found = Warm(ENVIRONMENT, ROOT)
    yield found
    found.close()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights."""
    from lgov_core.models import build_tiny
    from tests.pair.conftest import SMALL

    folder = tmp_path_factory.mktemp("models") / "small"
    build_tiny(["digits please 0 1 2 3 4 5 6 7 8 9", "a b c d e f"] * 3, seed=0, **SMALL).save(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Folder:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}
    path = tmp_path / "project"
    path.mkdir()
    environment = {**clean, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    made = Folder(path, request, environment)
    made.write("policy.yaml", POLICY)
    made.write("lgov.toml", SETTINGS)
    made.write("agent.py", AGENT)
    made.write("acting.py", TOOLS + "\nact()\n")
    made.write("lgov_slow.py", PLUGIN)
    (tmp_path / "elsewhere").mkdir()
    (path / "lgov_slow-1.dist-info").mkdir()
    made.write("lgov_slow-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: lgov_slow\nVersion: 1\n")
    made.write("lgov_slow-1.dist-info/entry_points.txt", "[lgov]\nlgov_slow = lgov_slow\n")
    made.run(*LGOV, "audit", "keygen", "--key", "../keys/secret.pem")
    return made


# ---------------------------------------------------------------------- the openers: each acts, and names its record


def run_a_program(folder: Folder) -> str:
    folder.run(*LGOV, "run", "--audit", "record.db", "--", "python", "acting.py")
    return "record.db"


def start_a_child(folder: Folder) -> str:
    program = folder.write("parent.py", CHILD)
    folder.run(*LGOV, "run", "--audit", "record.db", "--", "python", program)
    return "record.db"


def run_in_a_box(folder: Folder) -> str:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder.run(*LGOV, "run", "--confine", "--", "python", "acting.py")
    return ".lgov/audit.db"


def run_tests(folder: Folder) -> str:
    folder.write("test_a.py", TEST)
    folder.run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--lgov-policy", "policy.yaml", "test_a.py"
    )
    return ".lgov/pytest.db"


def run_tests_in_a_box(folder: Folder) -> str:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder.write("test_a.py", TEST)
    more = ("--lgov-policy", "policy.yaml", "--lgov-confine")
    folder.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, "test_a.py")
    return ".lgov/pytest.db"


def instrument_with_opentelemetry(folder: Folder) -> str:
    (folder.path / "lgov.toml").write_text(SETTINGS + 'policy = "policy.yaml"\naudit = "record.db"\n')
    folder.run(sys.executable, folder.write("program.py", OTEL))
    return "record.db"


def run_an_agent(folder: Folder) -> str:
    folder.run(sys.executable, folder.write("runner.py", RUNNER))
    return "record.db"


def serve_an_endpoint(folder: Folder) -> str:
    reply = ScriptedReply(tool_calls=[ScriptedCall("login", {"password": "hunter2"}), ScriptedCall("slow")])
    command = [*LGOV, "serve", "--port", "0", "--policy", "policy.yaml", "--audit", "record.db"]
    with ScriptedModelServer([reply]) as model, contextlib.ExitStack() as running:
        process = subprocess.Popen(
            [*command, "--upstream", model.base_url, "--json"],
            cwd=folder.path,
            env=folder.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.callback(process.wait)
        running.callback(process.terminate)
        assert process.stdout is not None
        running.callback(process.stdout.close)
        lines = ""
        while True:
            lines += process.stdout.readline()
            with contextlib.suppress(ValueError):
                base_url = json.loads(lines)["base_url"]
                break
            assert process.poll() is None
        body = {
            "model": "scripted",
            "messages": [{"role": "user", "content": "Go."}],
            "tools": [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("login", "slow")],
        }
        address = base_url.replace("/v1", "/rollout/monday/attempt/1/v1") + "/chat/completions"
        request = urllib.request.Request(address, json.dumps(body).encode(), {"content-type": "application/json"})
        with pytest.raises(urllib.error.HTTPError, match="503"):  # a policy that is too slow is a fault
            urllib.request.urlopen(request, timeout=60)
    return "record.db"


def train_in_threads(folder: Folder) -> str:
    folder.train("python", folder.write("training.py", TRAINING), "threads")
    return "record.db"


def train_in_processes(folder: Folder) -> str:
    folder.train("python", folder.write("training.py", TRAINING), "processes")
    return "record.db"


def train_with_the_command(folder: Folder) -> str:
    folder.train("lgov", "train", "config.yaml", "--agent", "agent.py:agent", "--folder", "run")
    return "run/audit.db"


def train_with_a_trainer(folder: Folder) -> str:
    (folder.path / "lgov.toml").write_text(SETTINGS + 'audit = "record.db"\n')
    folder.train("python", folder.write("trainer.py", TRAINER))
    return "record.db"


def evaluate(folder: Folder) -> str:
    model: Path = folder.request.getfixturevalue("model_folder")
    folder.train(
        "python",
        folder.write(
            "evaluating.py",
            "from pathlib import Path\nfrom agent import agent\nfrom lgov_core.models import load_model\n"
            "from lgov_core.evaluation.evaluation import EvaluationPlan, evaluate\n"
            f"evaluate(load_model({str(model)!r}), [{{'question': 'digits'}}], agent, Path('evaluated'),"
            " EvaluationPlan(policy=Path('policy.yaml'), max_attempts=1))\n",
        ),
    )
    return "evaluated/audit.db"


#: With whether the store of the settings is theirs: a training keeps its rollouts in its own.
OPENERS: dict[Callable[[Folder], str], bool] = {
    run_a_program: True,
    start_a_child: True,
    run_in_a_box: True,
    run_tests: True,
    run_tests_in_a_box: True,
    instrument_with_opentelemetry: True,
    run_an_agent: False,
    serve_an_endpoint: True,
    train_in_threads: False,
    train_in_processes: False,
    train_with_the_command: False,
    train_with_a_trainer: False,
    evaluate: False,
}


@pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: opener.__name__)
def test_what_the_settings_say_holds(opener: Callable[[Folder], str], folder: Folder) -> None:
    pytest.importorskip("langchain_core", reason="needs the extra langchain")
    record = folder.path / opener(folder)
    # redact
    assert record.exists(), sorted(str(path) for path in folder.path.rglob("*.db"))
    for path in record.parent.glob(f"{record.name}*"):
        assert b"hunter2" not in path.read_bytes()
    with AuditLog(record, signer=None) as log:
        decided = {
            entry.name: entry.effect for entry in log.entries() if entry.kind == "decision" and entry.name in ACTS
        }
    assert decided["login"] == "allow"
    # timeout_s
    assert decided["slow"] == "deny"
    # audit_key and heads
    heads = folder.path.parent / "elsewhere" / "heads.jsonl"
    public = (folder.path.parent / "keys" / "secret.pem.pub").read_text().strip()
    report = verify(record, key=public, head=heads)  # a process that is killed signs nothing at its end
    assert report.ok, report
    assert report.heads
    # store
    if OPENERS[opener]:
        with contextlib.closing(sqlite3.connect(folder.path / "traces.sqlite")) as store:
            assert store.execute("SELECT count(*) FROM spans").fetchone()[0] > 0
