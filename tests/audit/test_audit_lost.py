"""A record that is older than its heads, or gone: nothing goes on without a word, and a loss that is accepted is told."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from lgov_core.audit import AuditLog, SigningKey, load_key, make_key, verify
from lgov_core.audit.rotation import rotate
from lgov_core.audit.signing import LostEntries
from lgov_core.audit.verify import in_words, verify_archived
from lgov_core.errors import AuditError
from tests.audit.audit_proof_parts import DENY, action
from tests.commands.cli_runner import lgov


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    make_key(tmp_path / "audit.key")
    return load_key(tmp_path / "audit.key")


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere" / "heads.jsonl"


@pytest.fixture
def path(tmp_path: Path, key: SigningKey, heads: Path) -> Path:
    """A record of two runs with three entries each; a copy from between them lies in ``older.db``."""
    (tmp_path / "kept").mkdir()
    path = tmp_path / "kept" / "audit.db"
    write(path, key, heads, 3)
    shutil.copy(path, tmp_path / "older.db")
    write(path, key, heads, 3)
    return path


def write(path: Path, key: SigningKey, heads: Path, count: int = 1) -> None:
    with AuditLog(path, signer=key, heads=heads) as log:
        for number in range(count):
            log.commit(action(number), DENY)


def killed(*arguments: Any, **options: Any) -> None:
    raise KeyboardInterrupt


def numbers(heads: Path) -> list[tuple[str, int]]:
    lines = [json.loads(line) for line in heads.read_text().splitlines()]
    return [(json.loads(line["body"])["record"], line["number"]) for line in lines]


def test_an_older_copy_is_not_written_to(tmp_path: Path, path: Path, key: SigningKey, heads: Path) -> None:
    shutil.copy(tmp_path / "older.db", path)
    with pytest.raises(LostEntries, match=r"older copy.* 3 entries.* head 3 over 6") as refused:
        write(path, key, heads)
    assert "--accept-loss" in (refused.value.hint or "")
    assert verify(path).entries == 3
    write(path.with_name("copy.db"), key, path.with_name("others.jsonl"))  # at a place of its own, nothing is missed
    with AuditLog(path, signer=None) as log:  # who only reads
        assert len(log.entries()) == 3


def test_a_loss_that_is_accepted_is_on_record_and_no_number_is_used_twice(
    tmp_path: Path, path: Path, key: SigningKey, heads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LGOV_AUDIT_KEY", "audit.key")
    monkeypatch.setenv("LGOV_HEADS", str(heads))
    shutil.copy(tmp_path / "older.db", path)
    refused = lgov("audit", "rotate", str(path), "--to", "old")
    assert (refused.exit_code, "--accept-loss" in refused.stderr) == (4, True), refused.output
    done = lgov("audit", "rotate", str(path), "--to", "old", "--accept-loss")
    assert done.exit_code == 0, done.output
    write(path, key, heads)
    (_, record), (archive, restored) = verify_archived(path, "old", key=key.public, head=heads, require_signed=True)
    assert (record.ok, restored.ok, restored.entries) == (True, True, 5), (record.problem, restored.problem)
    assert "lost: entries 4 to 6 of it, and any after them; accepted by" in in_words(restored)
    assert restored.anchored == 4, "the head that is lost is not counted as there"
    assert len(numbers(heads)) == len(set(numbers(heads)))
    assert verify(archive, head=heads).ok, "it says so itself"
    assert "lost: up to entry 6" in " ".join(lgov("audit", "show", archive).stdout.split())


def test_a_copy_that_went_on_by_itself_is_not_taken_for_the_record(
    tmp_path: Path, path: Path, key: SigningKey, heads: Path
) -> None:
    (tmp_path / "others.jsonl").write_text("".join(heads.read_text().splitlines(keepends=True)[:2]))
    write(tmp_path / "older.db", key, tmp_path / "others.jsonl")
    shutil.copy(tmp_path / "older.db", path)
    for accept_loss in (False, True):
        with pytest.raises(AuditError, match="went on in two copies: its head 3"):
            rotate(path, tmp_path / "old", signer=key, heads=heads, accept_loss=accept_loss)
    path.unlink()
    assert rotate(path, tmp_path / "old", signer=key, heads=heads, accept_loss=True) is None
    write(path, key, heads)
    assert verify(path, head=heads, require_signed=True).ok


def test_heads_whose_disk_is_not_there_are_missed(tmp_path: Path, path: Path, key: SigningKey, heads: Path) -> None:
    kept = heads.read_text()
    heads.unlink()
    with pytest.raises(AuditError, match=r"has 3 heads, and .* none of them") as refused:
        write(path, key, heads)
    assert "mount its disk" in (refused.value.hint or "")
    assert not heads.exists()
    heads.write_text(kept)
    log = AuditLog(path, signer=key, heads=heads, sign_every=1)
    heads.unlink()  # while it runs: a file that begins with the next head would pass for the whole
    log.commit(action(1), DENY)
    with pytest.raises(AuditError, match="second place"):
        log.ping_heads()
    log.signing_error = None  # as after a head that others wrote
    with log._lock, pytest.raises(AuditError, match="second place"):
        log.ping_heads()  # also while an entry is written
    heads.write_text(kept)
    log.commit(action(2), DENY)
    log.ping_heads()
    log.close()
    assert verify(path, head=heads).anchored == verify(path).heads, "what was owed is written once it can be"
    heads.unlink()
    rotate(path, tmp_path / "old", signer=key, heads=heads, accept_loss=True)
    write(path, key, heads)


def test_heads_are_not_left_out_without_a_word(path: Path, key: SigningKey, heads: Path) -> None:
    with AuditLog(path, signer=key, heads=heads) as log:
        assert log._heads is not None
        log._heads.lost = 7
        log.commit(action(1), DENY)
    assert "no entry says that they are lost" in (verify(path).problem or "")


def test_a_record_that_is_gone_does_not_begin_anew_without_a_word(
    tmp_path: Path, path: Path, key: SigningKey, heads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(path.parent)
    with pytest.raises(LostEntries, match=r"is gone: .* head 3 over 6"):
        write(path, key, heads)
    assert not path.parent.exists()
    path.parent.mkdir()
    AuditLog(path, signer=None).close()  # somebody puts another one there
    with pytest.raises(LostEntries, match="is gone"):
        write(path, key, heads)
    path.unlink()
    with monkeypatch.context() as patch:  # a kill before the loss is on record
        patch.setattr(AuditLog, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            rotate(path, tmp_path / "old", signer=key, heads=heads, accept_loss=True)
    with pytest.raises(LostEntries, match="is gone"):
        write(path, key, heads)
    shutil.rmtree(path.parent)
    assert rotate(path, tmp_path / "old", signer=key, heads=heads, accept_loss=True) is None
    write(path, key, heads)
    report = verify(path, key=key.public, head=heads, require_signed=True)
    assert (report.ok, report.entries) == (True, 2), report.problem
    assert f"lost: entries 1 to 6 of record {report.losses[0]['record']}" in in_words(report)


def test_a_record_that_says_itself_that_it_continues_one_does_not_pass_for_the_next(
    path: Path, key: SigningKey, heads: Path
) -> None:
    record = verify(path).record
    path.unlink()
    with AuditLog(path, signer=None) as log:
        log.append("rotation", {"previous": {"record": record}}, arguments=None, content={})
    with pytest.raises(LostEntries, match="is gone"):
        write(path, key, heads)


@pytest.mark.parametrize("interrupted", ["link", "replace"])
def test_a_rotation_that_was_killed_hinders_nobody(
    tmp_path: Path, path: Path, key: SigningKey, heads: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, interrupted, killed)
        with pytest.raises(KeyboardInterrupt):
            rotate(path, tmp_path / "old", signer=key, heads=heads)
    write(path, key, heads)
    for _ in range(2):
        rotate(path, tmp_path / "old", signer=key, heads=heads)
    write(path, key, heads)
    assert all(report.ok for _, report in verify_archived(path, tmp_path / "old", key=key.public, head=heads))


def test_what_a_kill_leaves_out_or_cuts_off_and_what_nobody_signed_refuses_nothing(
    path: Path, key: SigningKey, heads: Path
) -> None:
    lines = heads.read_text().splitlines(keepends=True)
    newest = json.loads(lines[-1])
    body = newest["body"].replace('"number":3', '"number":9')
    forged = json.dumps({**newest, "number": 9, "body": body}) + "\n"
    malformed = [
        json.dumps({**newest, "signature": "zz"}),
        json.dumps({**newest, "body": newest["body"].replace('"number":3', f'"number":{10**30}')}),
        json.dumps({**newest, "body": newest["body"].replace('"record"', '"other":{},"recor"')}),
        json.dumps({**newest, "body": newest["body"].replace('"last":6', '"last":"6"')}),
    ]
    noise = "\n".join([*malformed, json.dumps(newest["body"]), "[" * 9999, ""])
    for text in ("".join(lines[:-1]), "".join(lines)[:-20], "".join([*lines, forged, noise]), "".join(reversed(lines))):
        heads.write_text(text)
        write(path, key, heads)


def test_the_newest_head_may_have_been_overtaken(tmp_path: Path, path: Path, key: SigningKey, heads: Path) -> None:
    lines = heads.read_text().splitlines(keepends=True)
    heads.write_text("".join([lines[0], lines[2], lines[1]]))
    shutil.copy(tmp_path / "older.db", path)
    with pytest.raises(LostEntries, match="head 3"):
        write(path, key, heads)


def test_writers_that_open_and_close_the_record_at_once_are_not_refused(
    path: Path, key: SigningKey, heads: Path
) -> None:
    refusals: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(15):
                write(path, key, heads)
        except Exception as error:
            refusals.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals == []
    assert verify(path, key=key.public, head=heads, require_signed=True).ok


def test_two_heads_of_one_number_break_the_record_that_they_are_of(
    tmp_path: Path, path: Path, key: SigningKey, heads: Path
) -> None:
    other = tmp_path / "other.db"
    write(other, key, heads)
    first = json.loads(heads.read_text().splitlines()[0])
    with heads.open("a") as file:
        file.write(json.dumps({**first, "signature": "00"}) + "\n")
    assert "two different heads 1" in (verify(path, head=heads).problem or "")
    assert verify(other, head=heads).ok


# ---------------------------------------------------------------------- which record belongs in a place


def test_an_archive_in_the_place_of_the_record_is_not_taken_for_it(
    tmp_path: Path, path: Path, key: SigningKey, heads: Path
) -> None:
    archive = rotate(path, tmp_path / "old", signer=key, heads=heads)
    assert archive is not None
    write(path, key, heads)
    other = tmp_path / "kept" / "other.db"
    write(other, key, heads)
    current = verify(path).record
    for place in (path, archive, other):
        assert verify(place, key=key.public, head=heads, require_signed=True).ok, place
    assert all(report.ok for _, report in verify_archived(path, tmp_path / "old", key=key.public, head=heads))
    said = in_words(verify(archive, head=heads))
    assert f"  ../kept/audit.db: record {current}, 2 entries" in said
    assert said.splitlines().index(f"  ../kept/audit.db: record {current}, 2 entries") < len(said.splitlines()) - 2
    assert "none of the heads names this place" in said
    shutil.copy(archive, path)
    (_, report), *_ = verify_archived(path, tmp_path / "old", key=key.public, head=heads, require_signed=True)
    assert (report.ok, f"is of the record {current}, over 2 entries" in (report.problem or "")) == (False, True), report


def test_a_rotation_and_a_loss_that_was_accepted_leave_the_record_in_its_place(
    tmp_path: Path, path: Path, key: SigningKey, heads: Path
) -> None:
    rotate(path, tmp_path / "old", signer=key, heads=heads)
    assert verify(path, head=heads).ok, "no head of the new record names the place yet"
    path.unlink()
    rotate(path, tmp_path / "old", signer=key, heads=heads, accept_loss=True)
    assert verify(path, head=heads).ok
    write(path, key, heads)
    assert verify(path, key=key.public, head=heads, require_signed=True).ok


def test_where_an_auditor_has_copies_no_place_is_claimed(
    tmp_path: Path, path: Path, key: SigningKey, heads: Path
) -> None:
    archive = rotate(path, tmp_path / "old", signer=key, heads=heads)
    write(path, key, heads)
    desk = tmp_path / "desk" / "2026"
    desk.mkdir(parents=True)
    shutil.copy(str(archive), desk / "audit.db")
    shutil.copy(heads, desk / "heads.jsonl")
    report = verify(desk / "audit.db", head=desk / "heads.jsonl")
    assert (report.ok, report.placed) == (True, False), report.problem
    assert "do not say whether a later record belongs here" in in_words(report)


def test_what_nobody_signed_says_nothing_of_a_place(path: Path, key: SigningKey, heads: Path) -> None:
    last = json.loads(heads.read_text().splitlines()[-1])
    body = last["body"].replace(verify(path).record or "-", "f" * 32)
    with heads.open("a") as file:
        file.write(json.dumps({**last, "body": body}) + "\n")
    assert verify(path, key=key.public, head=heads).ok
