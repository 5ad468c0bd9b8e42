"""What the audit record holds, and how it fails."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import pytest

from lgov_core.audit import AuditLog, verify
from lgov_core.audit.entry import PAYLOAD_LIMIT
from lgov_core.audit.reading import EntrySelection
from lgov_core.errors import AuditError
from lgov_core.types import Action, Decision, Effect, Point, Severity, ToolOutcome
from tests.audit.audit_parts import DENY, action, in_child


def test_an_entry_says_everything(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.sqlite", policy_digest="d1") as log:
        entry_id = log.commit(action(), DENY)
        (entry,) = log.entries()
    assert (entry.entry_id, entry.kind, entry.position, entry.seq) == (entry_id, "decision", 1, 1)
    assert entry_id.startswith("aud_")
    assert (entry.point, entry.action_kind, entry.name) == ("pre_tool_call", "function", "run_sql")
    assert entry.arguments == '{"limit":3,"query":"DROP TABLE staff"}'
    (salt,) = sqlite3.connect(tmp_path / "audit.sqlite").execute("SELECT salt FROM entries").fetchone()
    assert entry.arguments_sha256 == hashlib.sha256(salt + entry.arguments.encode()).hexdigest()
    assert (entry.agent, entry.framework, entry.session_id) == ("clerk", "langchain", "s1")
    assert (entry.rollout_id, entry.attempt, entry.call_id) == ("r1", 2, "call_1")
    assert (entry.effect, entry.policy, entry.rule, entry.reason) == ("deny", "sql", "no-drop", "it destroys a table")
    assert (entry.severity, entry.shadowed, entry.latency_us) == ("critical", False, 12.5)
    assert (entry.policy_digest, entry.code_version) == ("d1", version("lgov"))
    assert entry.prev_hash == bytes(32)
    assert len(entry.hash) == 32
    assert entry.time_ns > 1_700_000_000 * 10**9
    assert entry.monotonic_ns > 0
    assert entry.status is None


def test_an_outcome_is_an_entry_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path) as log:
        decision_id = log.commit(action(), DENY)
        outcome_id = log.commit_outcome(ToolOutcome(action(), "denied", error="no", error_type="Denied"), decision_id)
        alone = log.commit_outcome(ToolOutcome(action(rollout_id="r2"), "ok", result="3 rows"), None)
        first, second, third = log.entries()
        assert [e.entry_id for e in (first, second, third)] == [decision_id, outcome_id, alone]
        assert (second.kind, second.refers_to, second.status, second.effect) == ("outcome", decision_id, "denied", None)
        assert (second.arguments, second.arguments_sha256) == (None, None)
        assert json.loads(second.content or "") == {"error": "no"}
        assert second.body["error_type"] == "Denied"
        assert third.arguments == first.arguments
        assert json.loads(third.content or "") == {"result": "3 rows"}
        assert (second.prev_hash, third.prev_hash) == (first.hash, second.hash)
        assert [e.entry_id for e in log.entries("r2")] == [alone]
        assert log.entries("nobody") == []
    assert verify(path).ok


def test_texts_transforms_and_parts_are_kept(tmp_path: Path) -> None:
    parts = (
        Decision(Effect.DENY, "egress", "private-address", "no", Severity.HIGH, shadowed=True),
        Decision(Effect.ALLOW, "tools"),
    )
    decision = Decision(
        Effect.TRANSFORM, "pii", "redact", arguments={"query": "x"}, text="[redacted]", parts=parts, shadowed=True
    )
    with AuditLog(tmp_path / "audit.sqlite") as log:
        log.commit(action(text="my number is 7"), decision)
        (entry,) = log.entries()
    assert json.loads(entry.content or "") == {
        "text": "my number is 7",
        "new_arguments": {"query": "x"},
        "new_text": "[redacted]",
    }
    assert [(p["policy"], p["effect"], p["shadowed"]) for p in entry.body["parts"]] == [
        ("egress", "deny", True),
        ("tools", "allow", False),
    ]
    assert entry.shadowed is True


class Odd:
    def __repr__(self) -> str:
        return "Odd()"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "{}"),
        ({"b": 1, "a": [True, None, 1.5]}, '{"a":[true,null,1.5],"b":1}'),
        ({"x": Odd()}, '{"x":"Odd()"}'),
        (MappingProxyType({"x": MappingProxyType({"y": {3, 1}})}), '{"x":{"y":[1,3]}}'),
        ({"x": float("nan"), "y": [float("-inf")]}, '{"x":"nan","y":["-inf"]}'),
        ({1: "a", "b": {(2, 3): Odd()}}, '{"1":"a","b":{"(2, 3)":"Odd()"}}'),
        ({"x": b"\x00\xff"}, '{"x":"b\'\\\\x00\\\\xff\'"}'),
        ({"x": "é\ud800\u0000'\""}, '{"x":"\\u00e9\\ud800\\u0000\'\\""}'),
    ],
)
def test_any_arguments_have_a_canonical_form(tmp_path: Path, arguments: dict[str, object], text: str) -> None:
    with AuditLog(tmp_path / "audit.sqlite") as log:
        log.commit(action(arguments=arguments, name="odd \ud800 name", call_id="\ud800"), DENY)
        (entry,) = log.entries()
        assert entry.arguments == text
        assert entry.name == "odd \ud800 name"
    assert verify(tmp_path / "audit.sqlite").ok


def test_equal_arguments_have_equal_texts_and_hashes_that_do_not_show_it(tmp_path: Path) -> None:
    with AuditLog(tmp_path / "audit.sqlite") as log:
        log.commit(action(arguments={"a": 1, "b": {"d": 2, "c": 3}}), DENY)
        log.commit(action(arguments={"b": {"c": 3, "d": 2}, "a": 1}), DENY)
        one, same = log.entries()
    assert one.arguments == same.arguments
    assert one.arguments_sha256 != same.arguments_sha256


def test_bodies_are_canonical_json(tmp_path: Path) -> None:
    parts = (DENY, Decision(Effect.WARN, "p\u00e4", '"q"', "\n\U0001f600", Severity.LOW))
    with AuditLog(tmp_path / "audit.sqlite", policy_digest="d\u00e9") as log:
        log.commit(action("n\u00e4me", text="t", agent='a"b\\', parent_id="p"), DENY)
        log.commit(Action(Point.OUTPUT, "x"), Decision(Effect.DENY, "set", parts=parts, abort=True, latency_us=1e22))
        log.commit_outcome(ToolOutcome(action(), "error", error="e", error_type="E"), None)
        log.append("signal", {"name": "SIGSTOP", "agent": None}, arguments=None, content={})
        bodies = [row[0] for row in sqlite3.connect(log.path).execute("SELECT body FROM entries")]
    for body in bodies:
        assert body == json.dumps(json.loads(body), sort_keys=True, separators=(",", ":"))
    assert [part["effect"] for part in json.loads(bodies[1])["parts"]] == ["deny", "warn"]
    assert "agent" not in json.loads(bodies[3])
    assert verify(tmp_path / "audit.sqlite").ok


def test_the_digest_is_that_of_the_policies_at_the_time(tmp_path: Path) -> None:
    digests = iter(["before", "before", "after"])
    with AuditLog(tmp_path / "audit.sqlite", policy_digest=lambda: next(digests)) as log:
        for _ in range(3):
            log.commit(action(), DENY)
        assert [entry.policy_digest for entry in log.entries()] == ["before", "before", "after"]


def test_huge_texts_are_cut_and_their_hash_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    huge = "x" * 5_000_000
    with AuditLog(path) as log:
        log.commit(action(arguments={"query": huge}, text=huge, name=huge, call_id=huge), DENY)
        log.commit_outcome(ToolOutcome(action(), "ok", result=huge), "d")
        entry, outcome = log.entries()
    cut = json.loads(entry.arguments or "")["lgov.cut"]
    assert cut["characters"] == len(huge) + 12
    assert cut["sha256"] == hashlib.sha256(f'{{"query":"{huge}"}}'.encode()).hexdigest()
    assert cut["begins"].startswith('{"query":"xxx')
    assert len(entry.arguments or "") < PAYLOAD_LIMIT
    assert "lgov.cut" in (outcome.content or "")
    assert len(entry.name) < 3000
    assert path.stat().st_size < 200_000
    assert verify(path).ok


def recursive() -> dict[str, object]:
    value: dict[str, object] = {}
    value["itself"] = value
    return value


def deep() -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(100_000):
        value = {"x": value}
    return value


class Angry:
    def __repr__(self) -> str:
        raise RuntimeError("I have no name")


@pytest.mark.parametrize("make", [recursive, deep, lambda: {"x": Angry()}])
def test_arguments_that_cannot_be_written_are_an_audit_error(
    tmp_path: Path, make: Callable[[], dict[str, object]]
) -> None:
    with AuditLog(tmp_path / "audit.sqlite") as log:
        with pytest.raises(AuditError, match=r"'run_sql' cannot be recorded.*not done"):
            log.commit(action(arguments=make()), DENY)
        with pytest.raises(AuditError, match="cannot be recorded"):
            log.commit_outcome(ToolOutcome(action(arguments=make()), "ok"), None)
        assert log.entries() == []
        log.commit(action(), DENY)
    assert verify(tmp_path / "audit.sqlite").entries == 1


def test_the_file_is_private_and_append_only(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    log = AuditLog(path)
    for _ in range(3):
        log.commit(action(text="t"), DENY)
    for name in os.listdir(tmp_path):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
    other = sqlite3.connect(path)
    for statement in (
        "UPDATE entries SET body = '{}'",
        "DELETE FROM entries WHERE position = 3",
        "REPLACE INTO entries SELECT position, writer, seq, rollout_id, '{}', prev_hash, hash, salt, arguments, content"
        " FROM entries",
        "UPDATE entries SET arguments = '{}'",
        "UPDATE entries SET salt = NULL, arguments = NULL",  # the content stays
        "UPDATE entries SET salt = NULL, arguments = NULL, content = NULL, rollout_id = 'r9'",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            other.execute(statement)
        other.rollback()
    other.close()
    assert len(log.entries()) == 3
    log.close()
    assert verify(path).ok


def test_texts_can_be_erased_and_the_chain_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path) as log:
        first = log.commit(action(arguments={"name": "Ada-of-first-entry"}), DENY)
        log.commit(action(text="Ada-of-second-entry", rollout_id="r2"), DENY)
        log.commit(action(arguments={"name": "kept"}, rollout_id="r3"), DENY)
        assert log.erase(EntrySelection(entry_id=first), reason="asked for") == 1
        assert log.erase(EntrySelection(rollout_id="r2")) == 1
        assert log.erase(EntrySelection(rollout_id="r2")) == 0  # nothing is left
        assert log.erase(EntrySelection(entry_id="aud_of_nobody")) == 0
        assert [entry.arguments is None for entry in log.entries()[:3]] == [True, True, False]
        erased, *_, erasure = log.entries()[:4]
        assert (erasure.kind, erasure.reason) == ("erasure", "asked for")
        assert erasure.body["erased"] == {first: erased.hash.hex()}
        with pytest.raises(AuditError, match="says which entries are erased"):
            log.erase(EntrySelection())
        with pytest.raises(AuditError, match="which entries"):
            log.erase(EntrySelection(text=""))
    report = verify(path)
    assert (report.ok, report.entries, report.erased) == (True, 5, 2)
    left = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"Ada-of" not in left
    assert b"kept" in left


def test_texts_that_are_gone_without_an_erasure_are_tampering(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path) as log:
        for _ in range(3):
            log.commit(action(), DENY)
    other = sqlite3.connect(path)
    other.execute("UPDATE entries SET salt = NULL, arguments = NULL, content = NULL WHERE position = 2")
    other.commit()
    other.close()
    report = verify(path)
    assert (report.ok, report.first_bad, report.problem) == (False, 2, "its texts are gone, and no erasure says so")


def test_every_failure_to_open_is_an_audit_error(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all " * 100)
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    newer = tmp_path / "newer.sqlite"
    AuditLog(newer).close()
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version=7")
    connection.close()
    for path, match in (
        (text, "not a database"),
        (other, "not an lgov audit record"),
        (newer, "upgrade lgov"),
        (tmp_path, "is a directory"),
        (tmp_path / "missing" / "a.sqlite", "does not exist"),
    ):
        with pytest.raises(AuditError, match=match):
            AuditLog(path)
        assert not verify(path).ok


def gone(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
    elif how == "moved":
        path.rename(path.with_name("elsewhere"))
    elif how == "linked elsewhere, then deleted":
        os.link(path, path.with_name("elsewhere"))
        path.unlink()
    else:
        shutil.copy(path, path.with_name("copy"))
        os.replace(path.with_name("copy"), path)


@pytest.mark.parametrize("how", ["deleted", "moved", "linked elsewhere, then deleted", "replaced by a copy"])
@pytest.mark.parametrize("after", [0.0, 0.2], ids=["made just now", "made a while ago"])
def test_a_record_that_is_gone_denies_the_next_act(tmp_path: Path, how: str, after: float) -> None:
    path = tmp_path / "audit.sqlite"
    log = AuditLog(path)
    time.sleep(after)
    for _ in range(3):
        log.commit(action(), DENY)
    gone(path, how)
    for _ in range(2):
        with pytest.raises(AuditError, match=r"is (gone|no longer the file)"):
            log.commit(action(), DENY)


def test_a_record_whose_folder_is_moved_or_linked_elsewhere_is_missed_soon_and_lost_never(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to("one")
    path = tmp_path / "link" / "audit.sqlite"
    log = AuditLog(path)
    time.sleep(0.2)
    for _ in range(3):
        log.commit(action(), DENY)
    (tmp_path / "link").unlink()
    (tmp_path / "two").mkdir()
    (tmp_path / "link").symlink_to("two")
    written: list[str] = []

    def go_on() -> None:
        while len(written) < 100:
            written.append(log.commit(action(), DENY))

    with pytest.raises(AuditError, match="is gone"):
        go_on()
    assert verify(tmp_path / "one" / "audit.sqlite").entries == 3 + len(written)


def test_a_closed_or_missing_record_denies(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    log = AuditLog(path)
    log.commit(action(), DENY)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(AuditError, match="is gone"):
        log.commit(action(), DENY)
    assert not path.exists()
    (tmp_path / "elsewhere").rename(path)
    log.commit(action(), DENY)
    log.close()
    log.close()
    for refused in (lambda: log.commit(action(), DENY), log.entries):
        with pytest.raises(AuditError, match="closed"):
            refused()
    assert verify(path).entries == 2


def test_a_locked_record_denies_and_goes_on_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "audit.sqlite"
    with AuditLog(path, busy_timeout_s=0.05) as log:
        log.commit(action(), DENY)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(AuditError, match=r"locked .*another process holds the file"):
            log.commit(action(), DENY)
        holder.execute("ROLLBACK")
        holder.close()
        log.commit(action(), DENY)
        assert len(log.entries()) == 2
    # Nobody can say how far a failed commit got, so what follows it is a new chain.
    assert (verify(path).ok, verify(path).entries, verify(path).writers) == (True, 2, 2)


def test_a_full_disk_denies_and_leaves_no_gap(tmp_path: Path) -> None:
    code = """
        import resource, sys
        from lgov_core.audit import AuditLog, verify
        from lgov_core.errors import AuditError
        from lgov_core.types import Action, Decision, Effect, Point
        log = AuditLog(sys.argv[1])
        action = Action(Point.PRE_TOOL_CALL, "run_sql", arguments={"x": "x" * 10_000})
        decision = Decision(Effect.ALLOW, "p")
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
        acknowledged, refused = [], []
        for _ in range(60):
            try:
                acknowledged.append(log.commit(action, decision))
            except AuditError as error:
                refused.append(str(error))
        assert acknowledged and refused
        assert all("full disk" in text for text in refused), refused[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        acknowledged.append(log.commit(action, decision))
        assert [entry.entry_id for entry in log.entries()] == acknowledged
        log.close()
        report = verify(sys.argv[1])
        assert report.ok and report.entries == len(acknowledged), report
        print("done")
    """
    done = in_child(code, tmp_path / "audit.sqlite")
    assert done.stdout == "done\n", done.stderr
