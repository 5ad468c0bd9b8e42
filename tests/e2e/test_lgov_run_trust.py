"""The places that govern a run may not change while it runs: the report names what did, and the next start refuses."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lgov_core.audit import make_key, verify
from lgov_core.commands import cli
from lgov_core.errors import InstrumentationError
from lgov_core.governance import Governance
from lgov_core.trust import notes_of, untrusted
from tests.confine.conftest import why_not
from tests.e2e.lgov_runs import LGOV, lgov_run, write

POLICY = "version: 1\nrules:\n  - {name: none, use: deny}\n"
WAITS = (
    "import pathlib, time\npathlib.Path('runs').touch()\nwhile not pathlib.Path('stop').exists(): time.sleep(0.02)\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LGOV_CHILD", raising=False)
    return tmp_path


def run(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return lgov_run(folder, "python", write(folder, code), options=options)


def begin(folder: Path, name: str = "waits.py") -> subprocess.Popen[str]:
    """A run that goes on until a file ``stop`` is there."""
    (folder / "runs").unlink(missing_ok=True)
    program = subprocess.Popen(
        [*LGOV, "run", "--", "python", write(folder, WAITS, name)], cwd=folder, text=True, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not (folder / "runs").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return program


def end(folder: Path, *programs: subprocess.Popen[str]) -> list[str]:
    (folder / "stop").touch()
    reports = [program.communicate(timeout=60)[1] for program in programs]
    (folder / "stop").unlink()
    return reports


CHANGES = {
    "rewrites its policy": ("open('policy.yaml', 'w').write('version: 1')", "policy.yaml changed"),
    "makes settings": ("open('lgov.toml', 'w').write('timeout_s = 9')", "lgov.toml appeared"),
    "gives the project's file settings": (
        "open('pyproject.toml', 'w').write('[tool.lgov]\\ntimeout_s = 9')",
        "pyproject.toml appeared",
    ),
    "makes settings in a folder below": (
        "import os; os.makedirs('a/b'); open('a/b/lgov.toml', 'w').write('timeout_s = 9')",
        "a/b/lgov.toml appeared",
    ),
    "makes a record in a folder below": ("import os; os.makedirs('sub/.lgov')", "sub/.lgov appeared"),
    "makes a package named as lgov's": (
        "import os; os.mkdir('lgov_core'); open('lgov_core/cli.py', 'w').write('x')",
        "lgov_core appeared",
    ),
    "hides settings in a new environment": (
        "import os; os.mkdir('env'); open('env/pyvenv.cfg', 'w'); open('env/lgov.toml', 'w').write('timeout_s = 9')",
        "env/lgov.toml appeared",
    ),
    "makes a policy in a folder below": (
        "import os; os.mkdir('sub'); open('sub/policy.yaml', 'w').write('{version: 1, rules: []}')",
        "sub/policy.yaml appeared",
    ),
    "removes its policy": ("import os; os.rename('policy.yaml', 'policy.yml')", "policy.yaml vanished"),
}


@pytest.mark.parametrize(("code", "line"), CHANGES.values(), ids=CHANGES)
def test_what_a_program_changes_is_named_and_the_next_start_refuses(folder: Path, code: str, line: str) -> None:
    first = run(folder, code)
    assert first.returncode == 0
    assert f"{line} while a governed program ran" in first.stderr
    second = run(folder, "print('it ran')")
    assert second.returncode == 78
    assert "lgov policy trust" in second.stderr
    assert "it ran" not in second.stdout
    with pytest.raises(InstrumentationError, match="while a governed program ran"):
        Governance(policy=folder / "other.yaml").open() if (folder / "other.yaml").write_text(POLICY) else None


def test_what_governed_below_at_the_start_and_did_not_change_is_nobodys_change(folder: Path) -> None:
    for name in ("sub", "env"):
        (folder / name).mkdir()
        (folder / name / "lgov.toml").write_text("timeout_s = 3\n")
    (folder / "env" / "pyvenv.cfg").touch()
    (folder / "sub" / "pyproject.toml").write_text("[project]\n")
    assert "governed program ran" not in run(folder, "open('sub/pyproject.toml', 'a').write('name = 1')").stderr
    assert "governed program ran" not in run(folder, "open('sub/policy.yaml', 'w').write('kind: Role')").stderr
    assert "governed program ran" not in run(folder, "open('env/lgov.toml', 'w').write('timeout_s = 4')").stderr
    assert "sub/lgov.toml changed" in run(folder, "open('sub/lgov.toml', 'w').write('timeout_s = 4')").stderr


def test_a_run_that_begins_below_is_refused_for_what_it_would_obey(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "other").mkdir()
    run(folder, "open('sub/lgov.toml', 'w').write('audit = \"mine.db\"')")
    refused = run(folder / "sub", "print('it ran')", "--policy", str(folder / "policy.yaml"))
    assert (refused.returncode, refused.stdout) == (78, ""), refused.stderr
    assert "with lgov policy trust;" in refused.stderr
    assert "sub/lgov.toml" in refused.stderr
    (folder / "other" / "lgov.toml").write_text("timeout_s = 3\n")
    assert len(untrusted(folder / ".lgov" / "audit.db")) == 1, "what appears after the end is the owner's"
    assert run(folder / "other", "", "--policy", str(folder / "policy.yaml")).returncode == 0
    assert CliRunner().invoke(cli, ["policy", "trust", "--yes"]).exit_code == 0
    assert run(folder / "sub", "", "--policy", str(folder / "policy.yaml")).returncode == 0


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import os; os.mkfifo('pyproject.toml')", "pyproject.toml appeared"),
        ("open('lgov.toml', 'w').truncate(64 << 30)", "lgov.toml appeared"),
        ("import os; os.remove('policy.yaml'); os.mkfifo('policy.yaml')", "policy.yaml changed"),
    ],
)
def test_a_pipe_or_an_endless_file_is_a_change_that_is_not_read(folder: Path, code: str, line: str) -> None:
    assert f"{line} while a governed program ran" in run(folder, code).stderr
    assert [change.diff() for change in untrusted(folder / ".lgov" / "audit.db")] == [""]


@pytest.mark.parametrize("name", ["pyproject.toml", "lgov.toml", "policy.yaml"])
@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: os.truncate(path.open("w").name, 64 << 30)], ids=["pipe", "64 GiB"]
)
def test_what_is_no_file_of_sane_size_is_an_error_that_names_it(
    folder: Path, make: Callable[[Path], None], name: str
) -> None:
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    refused = run(folder, "print('it ran')")
    assert (refused.returncode, refused.stdout) == (78, ""), refused.stderr
    assert name in refused.stderr
    assert "it is not a regular file" in refused.stderr or "more than 8388608" in refused.stderr


def test_a_person_sees_the_change_and_accepts_it(folder: Path) -> None:
    run(folder, "open('policy.yaml', 'a').write('mode: shadow\\n')")
    trust = CliRunner().invoke(cli, ["policy", "trust"], input="n\n")
    assert trust.exit_code == 1
    assert "+mode: shadow" in trust.output
    (change,) = json.loads(CliRunner().invoke(cli, ["policy", "trust", "--json"]).output)
    assert (change["path"], change["change"]) == (str(folder / "policy.yaml"), "changed")
    assert run(folder, "").returncode == 78
    assert CliRunner().invoke(cli, ["policy", "trust", "--yes"]).exit_code == 0
    assert run(folder, "").returncode == 0
    assert CliRunner().invoke(cli, ["policy", "trust"]).output.startswith("nothing that governs changed")


def policies_on_record(folder: Path, *words: str) -> list[dict[str, Any]]:
    """The entries that say which policies hold from when on, and who accepted a change."""
    shown = CliRunner().invoke(cli, ["audit", "show", *words, "--json"])
    return [entry for entry in json.loads(shown.output) if entry["kind"] == "policy"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["approvals", "--key", "eve"], "make a key"),
        (["approvals", "--approve", "req_1", "--by", "eve"], "answer the calls that wait"),
        (["approvals", "--reject", "req_1", "--by", "eve"], "answer the calls that wait"),
        (["policy", "trust", "pins.db", "--approve", "0" * 64], "pin tools that changed"),
        (["audit", "rotate", ".lgov/audit.db", "--to", "old", "--accept-loss"], "accept that entries are lost"),
        (["audit", "rotate", ".lgov/audit.db", "--to", "old"], "archive its record"),
        (["audit", "keygen", "--key", "own.key"], "make the key that signs its record"),
        (["erase", "--where", "text=ada", "--yes"], "erase what is on record"),
        (["traces", "prune", ".lgov/traces.db", "--keep-last", "0", "--yes"], "delete what is recorded"),
    ],
    ids=lambda words: "-".join(words[:3]) if isinstance(words, list) else "",
)
def test_a_governed_program_cannot_do_what_is_for_a_person(folder: Path, words: list[str], what: str) -> None:
    from lgov_core.policies import ApprovalRequests
    from lgov_core.policies.pins import PinnedTools

    (folder / ".lgov").mkdir()
    PinnedTools(folder / "pins.db").close()
    ApprovalRequests(folder / ".lgov" / "approvals.db").close()
    command = [*LGOV, *words]
    code = f"import subprocess; print(subprocess.run({command!r}, capture_output=True, text=True))"
    told = run(folder, code).stdout
    assert "returncode=78" in told
    assert "stdout=''" in told
    assert f"may not {what}" in told or f" or {what}" in told


def test_a_governed_program_cannot_accept_what_it_changed(folder: Path) -> None:
    command = [*LGOV, "policy", "trust", "--yes"]
    code = f"""
import pathlib, subprocess
pathlib.Path("policy.yaml").write_text("version: 1\\nmode: shadow\\nrules: []\\n")
print(subprocess.run({command!r}, capture_output=True, text=True).stderr)
"""
    assert "may not accept what it changed" in run(folder, code).stdout
    refused = run(folder, "print('ran')")
    assert (refused.returncode, refused.stdout) == (78, "")
    assert "policy.yaml changed while a governed program ran" in refused.stderr


def test_the_record_says_from_when_on_a_policy_holds_and_who_accepted_a_change(folder: Path) -> None:
    for _ in range(2):  # the same policy: nothing new begins
        assert run(folder, "").returncode == 0
    run(folder, "open('policy.yaml', 'a').write('mode: shadow\\n')")
    assert run(folder, "").returncode == 78
    assert CliRunner().invoke(cli, ["policy", "trust", "--yes"]).exit_code == 0
    run(folder, "")
    first, changed, refused, trusted, second = policies_on_record(folder)
    assert [entry["content"]["policy"] for entry in (first, second)] == [POLICY, POLICY + "mode: shadow\n"]
    changes = {str(folder / "policy.yaml"): "changed"}
    assert (changed["found"], refused["refused"]) == (changes, changes)
    assert refused["reason"].startswith("refused at a start by")
    assert (first["name"], first["mode"], second["mode"]) == (str(folder / "policy.yaml"), "enforce", "shadow")
    assert first["policy_digest"] != second["policy_digest"]
    assert trusted["trusted"] == changes
    assert {entry["by"] for entry in (first, changed, refused, trusted, second)} == {pwd.getpwuid(os.getuid()).pw_name}
    assert CliRunner().invoke(cli, ["audit", "verify", ".lgov/audit.db"]).exit_code == 0
    report = CliRunner().invoke(cli, ["export", ".lgov/audit.db", "--format", "report", "--json"]).stdout
    told = [change["what"] for change in json.loads(report)["changes"]]
    assert told[3] == f"{folder / 'policy.yaml'} changed: trusted by {trusted['by']}"


@pytest.mark.parametrize("record", [".lgov/audit.db", "logs/audit.db"])
def test_settings_that_name_another_record_hide_no_change(folder: Path, record: str) -> None:
    (folder / "lgov.toml").write_text(f'audit = "{record}"')
    run(folder, "open('lgov.toml', 'w').write('audit = \"other.db\"')")
    refused = run(folder, "")
    assert (refused.returncode, "lgov policy trust;" in refused.stderr) == (78, True)
    shown = CliRunner().invoke(cli, ["policy", "trust"], input="n\n")
    assert (shown.exit_code, '+audit = "other.db"' in shown.output) == (1, True)
    assert CliRunner().invoke(cli, ["policy", "trust", "--yes"]).exit_code == 0
    assert run(folder, "").returncode == 0
    on_record = [policies_on_record(folder, file) for file in (record, "other.db") if (folder / file).is_file()]
    assert str(folder / "lgov.toml") in str([entry.get("trusted") for entries in on_record for entry in entries])
    shown = CliRunner().invoke(cli, ["policy", "trust"])
    assert shown.output.startswith("nothing that governs changed")


def test_settings_that_nobody_can_read_are_named_and_the_owner_still_sees_the_change(folder: Path) -> None:
    (folder / "lgov.toml").write_text("timeout_s = 3\n")
    run(folder, "open('lgov.toml', 'a').write('timeout_s =')")
    shown = CliRunner().invoke(cli, ["policy", "trust"], input="n\n")
    assert shown.exit_code == 1
    assert "lgov.toml:2: not valid TOML" in shown.output
    assert "\n+timeout_s =" in shown.output
    (folder / "lgov.toml").write_text("timeout_s = 3\n")
    assert run(folder, "").returncode == 0, "undone"


def test_a_change_that_is_undone_needs_no_trust_and_stays_on_record(folder: Path) -> None:
    run(folder, "open('policy.yaml', 'a').write('mode: shadow\\n')")
    (folder / "policy.yaml").write_text(POLICY)
    assert run(folder, "").returncode == 0
    assert policies_on_record(folder)[-1]["found"] == {str(folder / "policy.yaml"): "changed"}


def test_settings_that_changed_do_not_say_where_a_refusal_is_recorded(folder: Path) -> None:
    run(folder, "open('lgov.toml', 'w').write('audit = \"other.db\"')")
    (folder / "other.db").touch()
    assert run(folder, "").returncode == 78
    assert (folder / "other.db").read_bytes() == b""
    assert [entry["reason"][:19] for entry in policies_on_record(folder, ".lgov/audit.db")][1:] == [
        "found at the end of"
    ]


def test_an_edit_between_runs_is_the_owners(folder: Path) -> None:
    assert run(folder, "open('pyproject.toml', 'w').write('[project]')").returncode == 0
    (folder / "policy.yaml").write_text(POLICY + "mode: shadow\n")
    (folder / "lgov.toml").write_text("timeout_s = 3\n")
    again = run(folder, "print('it ran')")
    assert (again.returncode, again.stdout) == (0, "it ran\n")
    assert not notes_of(folder / ".lgov" / "audit.db").exists()


def test_a_killed_run_is_compared_at_the_next_start(folder: Path) -> None:
    program = begin(folder)
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert run(folder, "").returncode == 0, "nothing changed: its note is forgotten"
    (folder / "policy.yaml").write_text(POLICY + "name: mine\n")
    assert run(folder, "").returncode == 0, "an edit after that is the owner's"
    (folder / "policy.yaml").write_text(POLICY)
    program = begin(folder)
    (folder / "policy.yaml").write_text(POLICY + "mode: shadow\n")
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert run(folder, "").returncode == 78
    assert CliRunner().invoke(cli, ["policy", "trust", "--yes"]).exit_code == 0
    assert run(folder, "").returncode == 0


def test_runs_beside_each_other_share_a_folder(folder: Path) -> None:
    first, second = begin(folder, "a.py"), begin(folder, "b.py")
    assert not untrusted(folder / ".lgov" / "audit.db")
    (folder / "lgov.toml").write_text("timeout_s = 3\n")
    assert run(folder, "").returncode == 78, "while they run"
    assert CliRunner().invoke(cli, ["policy", "trust", "--yes"]).exit_code == 0
    third = begin(folder, "c.py")
    for report in end(folder, first, second, third):
        assert "while a governed program ran" not in report, "it was trusted"
    assert run(folder, "").returncode == 0


def test_a_note_that_cannot_be_read_is_a_change(folder: Path) -> None:
    notes = notes_of(folder / ".lgov" / "audit.db")
    notes.mkdir(parents=True)
    (notes / "rol_1.json").write_text("{")
    assert run(folder, "").returncode == 78
    assert CliRunner().invoke(cli, ["policy", "trust", "--yes"]).exit_code == 0
    assert run(folder, "").returncode == 0


def test_the_text_of_a_key_is_kept_nowhere(folder: Path) -> None:
    key = folder / "audit.key"
    assert CliRunner().invoke(cli, ["audit", "keygen", str(key)]).exit_code == 0 or key.write_text("x" * 64)
    watch = Governance(policy=folder / "policy.yaml", audit_key=key).begin_run(
        "rol_1", Governance(policy=folder / "policy.yaml", audit_key=key).places()
    )
    note = (notes_of(folder / ".lgov" / "audit.db") / "rol_1.json").read_text()
    assert key.read_text().strip() not in note
    assert str(key) in note
    key.write_text("another")
    (change,) = watch.end()
    assert change.diff() == ""


@pytest.mark.skipif(sys.platform != "linux" or not os.path.exists("/proc/self/ns/user"), reason="a box needs Linux")
def test_what_a_box_lets_change_is_named_and_refused_too(folder: Path) -> None:
    boxed = run(folder, "open('pyproject.toml', 'w').write('[tool.lgov]')", "--confine", "--preset", "workspace")
    if "confinement" in boxed.stderr and boxed.returncode == 78:
        pytest.skip("no box can be made here")
    assert "pyproject.toml appeared while a governed program ran" in boxed.stderr, boxed.stderr
    assert not (folder / "lgov.toml").exists(), "a box leaves no file that it kept free"
    assert not (folder / "policy.yml").exists()
    assert run(folder, "").returncode == 78


@pytest.mark.skipif(why_not() is not None, reason=f"no box here: {why_not()}")
def test_what_governs_itself_in_a_box_needs_no_look_at_the_record_outside(folder: Path) -> None:
    inner = (
        "from pathlib import Path\n"
        "from lgov_core.governance import Governance\n"
        "with Governance(policy=Path('policy.yaml'), audit=Path('/tmp/inner/audit.db')).open() as opened:\n"
        "    print('governed')\n"
    )
    done = run(folder, inner, "--confine", "--preset", "workspace")
    assert done.stdout == "governed\n", done.stderr


def test_notes_that_cannot_be_read_are_no_permission(folder: Path) -> None:
    notes = notes_of(Path(".lgov/audit.db"))
    notes.parent.mkdir()
    notes.symlink_to(notes)
    with pytest.raises(InstrumentationError, match="cannot be read"):
        Governance(policy=folder / "policy.yaml", audit=Path(".lgov/audit.db")).open()


SIGNED = pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])


@SIGNED
def test_a_run_whose_record_is_gone_says_so_and_does_not_end_well(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, signed: bool
) -> None:
    if signed:
        make_key(tmp_path_factory.mktemp("keys") / "audit.key")
        (folder / "lgov.toml").write_text(f'audit_key = "{tmp_path_factory.getbasetemp()}/keys0/audit.key"\n')
    done = run(folder, "import shutil; shutil.rmtree('.lgov'); print('ran')")
    assert (done.returncode, done.stdout) == (78, "ran\n")
    assert ".lgov/audit.db is gone" in done.stderr
    assert "audit record: .lgov/audit.db, which does not hold what was decided" in done.stderr
    assert "status 78 for that" in done.stderr
    assert "what was decided is on record" not in done.stderr
    failed = run(folder, "import shutil; shutil.rmtree('.lgov'); raise SystemExit(3)")
    assert (failed.returncode, ".lgov/audit.db is gone" in failed.stderr) == (3, True), "the program's own status stays"


def test_a_run_that_did_what_the_record_has_no_outcome_of_does_not_end_well(folder: Path) -> None:
    (folder / "policy.yaml").write_text("version: 1\nrules:\n  - {name: any, use: allow}\n")
    locked = """
import sqlite3
from langchain_core.tools import tool

@tool
def lock() -> str:
    "Keeps the record locked."
    global record
    record = sqlite3.connect(".lgov/audit.db", isolation_level=None)
    record.execute("BEGIN EXCLUSIVE")
    return "done"

print(lock.invoke({})[:6])
record.close()
"""
    done = run(folder, locked)
    assert (done.returncode, done.stdout) == (78, "DENIED\n"), done.stderr
    assert "1 call that ran without an outcome on record" in done.stderr
    assert "which does not hold what was decided" in done.stderr


@pytest.mark.parametrize("place", ["removed", "a file"])
def test_a_run_whose_end_is_not_kept_at_the_second_place_does_not_end_well_and_the_next_one_brings_it_there(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, place: str
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    make_key(elsewhere / "audit.key")
    heads = elsewhere / "disk" / "heads.jsonl"
    heads.parent.mkdir()
    (folder / "lgov.toml").write_text(f'audit_key = "{elsewhere}/audit.key"\nheads = "{heads}"\n')
    assert run(folder, "print('ran')").returncode == 0
    away = f"import os; os.rename('{heads.parent}', '{elsewhere}/away')"
    away += f"; open('{heads.parent}', 'w').close()" if place == "a file" else ""
    done = run(folder, f"{away}; print('ran')")
    assert (done.returncode, done.stdout) == (78, "ran\n"), done.stderr
    assert "not signed, or not at the second place" in done.stderr
    assert "status 78 for that" in done.stderr
    heads.parent.unlink(missing_ok=True)  # as one repairs it
    (elsewhere / "away").rename(heads.parent)
    record = folder / ".lgov" / "audit.db"
    before = verify(record, head=heads)
    assert (before.ok, before.heads - (before.anchored or 0) > 0) == (True, True), before
    assert run(folder, "print('ran')").returncode == 0
    healed = verify(record, head=heads, require_signed=True)
    assert (healed.ok, healed.anchored) == (True, healed.heads), healed.problem
    numbers = [json.loads(line)["number"] for line in heads.read_text().splitlines()]
    assert numbers == sorted(set(numbers))


def test_a_start_that_cannot_be_put_on_record_says_why_and_what_next(folder: Path, tmp_path_factory: Any) -> None:
    keys = tmp_path_factory.mktemp("keys")
    make_key(keys / "audit.key")
    (folder / "lgov.toml").write_text(f'audit_key = "{keys}/audit.key"\n')
    forges = """
import sqlite3
db = sqlite3.connect(".lgov/audit.db")
columns = "writer, seq, rollout_id, body, prev_hash, hash"
last = db.execute(f"SELECT {columns} FROM entries ORDER BY position DESC LIMIT 1").fetchone()
db.execute(f"INSERT INTO entries ({columns}) VALUES (?, ?, ?, ?, ?, ?)", ("another", *last[1:4], b"", b"1" * 32))
db.commit()
"""
    forged = run(folder, forges)
    assert forged.returncode == 78
    refused = run(folder, "print('ran')")
    assert (refused.returncode, refused.stdout) == (78, "")
    first = refused.stderr.splitlines()[0]
    assert "not run: the start of this program cannot be put on record: audit record" in first
    assert "which no writer with the record's key wrote" in first
    assert "lgov audit verify, and begin a new record" in first
    assert "imported no framework" not in refused.stderr


def test_a_program_that_removes_the_record_and_dies_does_not_hide_it_from_heads_elsewhere(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    make_key(elsewhere / "audit.key")
    (folder / "lgov.toml").write_text(f'audit_key = "{elsewhere}/audit.key"\nheads = "{elsewhere}/heads.jsonl"\n')
    gone = "import os, shutil, signal\nshutil.rmtree('.lgov')\nos.kill(os.getpid(), signal.SIGKILL)"
    assert run(folder, "").returncode == 0
    assert run(folder, gone).returncode == -signal.SIGKILL
    refused = run(folder, "print('ran')")
    assert (refused.returncode, refused.stdout, "audit.db is gone" in refused.stderr) == (78, "", True)
    accepted = CliRunner().invoke(cli, ["audit", "rotate", ".lgov/audit.db", "--to", "old", "--accept-loss"])
    assert accepted.exit_code == 0, accepted.output
    assert run(folder, "print('ran')").stdout == "ran\n"
    verified = CliRunner().invoke(cli, ["audit", "verify", ".lgov/audit.db", "--head", f"{elsewhere}/heads.jsonl"])
    assert (verified.exit_code, "lost: entries 1 to " in verified.output) == (0, True)
