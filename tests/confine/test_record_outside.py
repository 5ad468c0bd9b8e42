"""The record and the approvals of a box are outside: code inside adds to them, and can do nothing else."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from lgov_core.audit import AuditLog, verify
from lgov_core.commands import cli
from lgov_core.policies import ApprovalRequests
from lgov_core.policies.confinement import read_confinement
from lgov_core.process.report import ClosingReport
from lgov_core.store import open_store
from lgov_core.trace import semconv
from tests.confine.conftest import Ran, Workspace

#: Code inside that speaks to the broker as a governed process does.
INSIDE = """
import json, os
from lgov_core.confine.broker import Broker
broker = Broker(json.loads(os.environ["LGOV_CHILD"])["governance"]["broker"])
def ask(**message):
    try:
        print(json.dumps(broker.ask(message)))
    except Exception as error:
        print(type(error).__name__)
def append(prefix="aud", **fields):
    ask(do="append", prefix=prefix, fields={"kind": "decision", **fields}, arguments=None, content=None)
"""


def answers(ran: Ran) -> list[dict[str, str]]:
    return [json.loads(line) for line in ran.output.splitlines()]


def test_code_inside_can_add_entries_and_nothing_else(workspace: Workspace) -> None:
    ran = workspace.run(
        INSIDE
        + """
append(name="forged", writer="0" * 32, seq=1, entry_id="aud_1", policy_digest="0", time_ns=1)
append(policy="confinement", name="connect")
append(kind="erasure", erased=["aud_1"])
append(prefix="era", kind="erasure")
append(prefix="ung", kind="ungoverned", programs="no counts")
ask(do="entries")
ask(do="erase", entry_id="aud_1")
ask(do="append", prefix="aud", fields={"kind": "decision"}, arguments=["x" * 100000, 1], content=None)
"""
    )
    assert ["id" in answer for answer in answers(ran)] == [True, *[False] * 7], ran.output
    record = workspace.folder / ".lgov" / "audit.db"
    log = AuditLog(record)
    (forged,) = [entry for entry in log.entries() if entry.name == "forged"]
    writers = {entry.writer for entry in log.entries()}
    log.close()
    assert forged.writer != "0" * 32
    assert forged.policy_digest == read_confinement(workspace.folder / "policy.yaml").digest
    assert len(writers) == 1, "one chain, the broker's"
    assert forged.time_ns > 1
    assert verify(record).ok


#: Ways to write the name of the box's own policy so that a reader takes it for that.
LOOK_ALIKES = [
    "confinement ",
    "confinement\n",
    "Confinement",
    "con\u200bfinement",
    "\uff43onfinement",
    "\x1bconfinement",
]


def test_what_the_box_says_is_marked_and_does_not_pass_for_the_outside(workspace: Workspace) -> None:
    ran = workspace.run(
        f"""{INSIDE}
for name in {LOOK_ALIKES!r}:
    append(policy=name)
append(policy="tools", parts=[{{"policy": "confinement ", "effect": "allow"}}])
append(policy="tools", point="confinement")
append(policy="c\u043enfinement", rule="box", reason="made up", name="forged", inside=False)
"""
    )
    assert ["id" in answer for answer in answers(ran)] == [False] * 8 + [True], ran.output
    record = workspace.folder / ".lgov" / "audit.db"
    log = AuditLog(record)
    marked = {entry.name or entry.kind: entry.body.get("inside") for entry in log.entries()}
    log.close()
    assert (marked["forged"], marked["confinement"]) == (True, None)
    rows = CliRunner().invoke(cli, ["audit", "show", str(record)]).output.splitlines()
    assert ["said in the box" in row for row in rows if "forged" in row or "confined: " in row] == [False, True], rows


def test_python_that_was_not_governed_in_the_box_is_in_the_auditors_report(workspace: Workspace) -> None:
    ran = workspace.run("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'pass'], env={})\n")
    (name,) = json.loads(ran.errors.splitlines()[0])["report"]["ungoverned_children"]
    record = workspace.folder / ".lgov" / "audit.db"
    report = workspace.folder.parent / "report.json"
    CliRunner().invoke(cli, ["export", str(record), "--format", "report", "--to", str(report)])
    (row,) = json.loads(report.read_text())["ungoverned"]
    assert (row["programs"], row["inside"]) == (f"{name} (1)", True)


def test_what_still_runs_in_a_box_is_said_to_end_with_it(workspace: Workspace) -> None:
    ran = workspace.run(
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(5)'])\n"
    )
    report = ClosingReport(**json.loads(ran.errors.splitlines()[0])["report"])
    assert (
        "1 Python process that the program started was governed; 1 still running, until the box ends" in report.lines()
    )


def test_without_the_token_nothing_is_added(workspace: Workspace) -> None:
    ran = workspace.run(INSIDE + "broker._token = 'guess'\nappend(name='forged')")
    assert ran.output in ("ConnectionError\n", "ConnectionResetError\n")


def test_a_tool_call_is_on_record_before_it_runs_and_denied_without_the_record(workspace: Workspace) -> None:
    program = """
import os, sys
from langchain_core.tools import tool

@tool
def touch(name: str) -> str:
    "Makes a file."
    open(name, "w")
    return "made"

print(touch.invoke({"name": "first"}))
from lgov_core.confine import broker
broker.Broker.ask = lambda *_: (_ for _ in ()).throw(OSError("gone"))
print(touch.invoke({"name": "second"}))
"""
    ran = workspace.run(program)
    assert "made" in ran.output, ran.errors
    assert (workspace.folder / "first").exists()
    assert not (workspace.folder / "second").exists()
    log = AuditLog(workspace.folder / ".lgov" / "audit.db")
    kinds = [(entry.kind, entry.effect or entry.status) for entry in log.entries() if entry.name == "touch"]
    log.close()
    assert kinds[:2] == [("decision", "allow"), ("outcome", "ok")]


def test_the_death_of_the_outside_ends_the_program(workspace: Workspace) -> None:
    process = workspace.start("import time; print('up', flush=True); time.sleep(1); open('on', 'w'); time.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(1.5)
    assert not (workspace.folder / "on").exists()


def test_what_a_killed_run_left_is_removed_by_the_next(workspace: Workspace, tmp_path: Path) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    program = "import socket, sys; socket.socket(1).bind('/tmp/' + 'left'); print('up', flush=True); sys.stdin.read()"
    runs = [workspace.start(program, env={"TMPDIR": str(temporary)}, stdin=subprocess.PIPE) for _ in range(2)]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
    left = set(temporary.glob("lgov-box-*/tmp/left"))
    assert len(left) == 2
    os.kill(runs[0].pid, signal.SIGKILL)
    runs[0].communicate()
    assert set(temporary.glob("lgov-box-*/tmp/left")) == left
    workspace.run("", env={"TMPDIR": str(temporary)})
    assert len(left & set(temporary.glob("lgov-box-*/tmp/left"))) == 1, "the one that still runs keeps its own"
    runs[1].communicate()
    assert list(temporary.iterdir()) == []


APPROVAL = """
version: 1
rules: [{{use: approval, with: {{tools: [touch], store: {store}}}}}, {{use: allow}}]
confine: {{preset: workspace}}
"""
ASKING_FLOW = """
version: 1
rules: [{{use: flow, tools: [touch], with: {{otherwise: approve, store: {store}}}}}, {{use: allow}}]
confine: {{preset: workspace}}
"""
CALL = """
from langchain_core.tools import tool

@tool
def touch(name: str) -> str:
    "Makes a file."
    open(name, "w")
    return "made"

print(touch.invoke({"name": "ada@example.org"}))  # which no user wrote
"""


@pytest.mark.parametrize("policy", [APPROVAL, ASKING_FLOW], ids=["approval", "flow"])
def test_approvals_are_answered_outside_only(workspace: Workspace, policy: str) -> None:
    (workspace.folder / "policy.yaml").write_text(policy.format(store=".lgov/approvals.db"))
    assert "has to approve" in workspace.run(CALL, "--rollout-id", "r-1").output
    requests = ApprovalRequests(workspace.folder / ".lgov" / "approvals.db")
    (request,) = requests.pending()
    store = str(workspace.folder / ".lgov" / "approvals.db")
    inside = f"ask(do='approve', store={store!r}, request_id={request.request_id!r}, by='me')\nopen({store!r})"
    ran = workspace.run(INSIDE + inside, "--rollout-id", "r-1")
    assert "error" in answers(ran)[0]
    assert "PermissionError" in ran.errors
    requests.approve(request.request_id, by="kim")
    assert "made" in workspace.run(CALL, "--rollout-id", "r-1").output
    with AuditLog(workspace.folder / ".lgov" / "audit.db") as log:
        (answered,) = [entry for entry in log.entries() if entry.kind == "approval"]
    assert (answered.body["request"], answered.body["by"]) == (request.request_id, "kim")
    assert "inside" not in answered.body
    requests.close()


def test_an_approval_holds_no_longer_and_is_given_by_nobody_else_than_the_policy_says(workspace: Workspace) -> None:
    store = str(workspace.folder / ".lgov" / "approvals.db")
    (workspace.folder / "policy.yaml").write_text(APPROVAL.format(store=".lgov/approvals.db"))
    content = {"name": "pay", "arguments": {}}
    claimed = {"rule": "approval", "approvers": 0, "by": ["me"]}
    asking = {"content": content, "digest": "", "inquiry": claimed, "expires_s": 1e18}
    ran = workspace.run(f"{INSIDE}ask(do='ask', store={store!r}, asking={asking!r})")
    assert "request" in answers(ran)[0], ran.output
    requests = ApprovalRequests(store)
    (request,) = requests.pending()
    requests.close()
    assert request.until - request.asked_at == pytest.approx(3600)
    assert (request.inquiry.approvers, request.inquiry.by) == (1, ())


@pytest.mark.parametrize("policy", [APPROVAL, ASKING_FLOW], ids=["approval", "flow"])
@pytest.mark.parametrize("store", ["approvals.db", "../approvals.db"])
def test_an_approvals_file_that_the_box_shows_is_refused(store: str, policy: str, workspace: Workspace) -> None:
    (workspace.folder / "policy.yaml").write_text(policy.format(store=store))
    ran = workspace.run("print('ran')")
    assert (ran.status == 78) == (store == "approvals.db"), ran.errors


def test_each_connection_is_a_span_of_the_attempt_and_names_its_entry(workspace: Workspace) -> None:
    long = "a" * 300
    program = f"""
import os, socket, urllib.request
for url in (os.environ["OPENAI_BASE_URL"], "https://evil.example/", "https://{long}/"):
    try:
        urllib.request.urlopen(url, timeout=10)
    except OSError as error:
        print(error)
"""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    url = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}
    ran = workspace.run(program, "--store", "traces.db", "--rollout-id", "r-1", env=url)
    assert ran.status == 0, ran.errors
    with AuditLog(workspace.folder / ".lgov" / "audit.db") as log:
        entries = {one.entry_id: one.effect for one in log.entries() if one.name == "connect"}
    with closing(open_store(str(workspace.folder / "traces.db"))) as store:
        spans = [one for one in store.spans(["r-1"]) if one.attributes.get(semconv.DECISION_POLICY) == "confinement"]
    found = [
        (one.attempt, one.attributes[semconv.SERVER_ADDRESS], one.attributes[semconv.SERVER_PORT]) for one in spans
    ]
    assert found == [(1, "127.0.0.1", port), (1, "evil.example", 443), (1, long[:255], 443)]
    effects = {one.attributes[semconv.DECISION_ID]: one.attributes[semconv.DECISION_EFFECT] for one in spans}
    assert effects == entries
    assert list(effects.values()) == ["allow", "deny", "deny"]
