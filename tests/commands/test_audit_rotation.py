"""`lgov audit rotate`: archived records, verification across them, and retention."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lgov_core import Action, Decision, Effect, Point
from lgov_core.audit import AuditLog, SigningKey, load_key, make_key, verify
from tests.commands.cli_runner import lgov

ALLOWED = Decision(Effect.ALLOW, "desk", "default", "")


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    make_key(tmp_path / "audit.key")
    return load_key(tmp_path / "audit.key")


def write(path: Path, key: SigningKey | None, *names: str) -> None:
    with AuditLog(path, signer=key) as log:
        for name in names:
            log.commit(Action(Point.PRE_TOOL_CALL, name, arguments={"text": f"of {name}"}), ALLOWED)


@pytest.fixture
def archived(tmp_path: Path, key: SigningKey) -> tuple[Path, list[Path]]:
    """A record that was rotated twice, and its archives, the oldest first."""
    path, archives = tmp_path / "audit.db", list[Path]()
    for number in range(2):
        write(path, key, f"first-{number}", f"second-{number}")
        done = lgov(
            "audit", "rotate", str(path), "--to", str(tmp_path / "old"), "--set", "audit_key=audit.key", "--json"
        )
        assert done.exit_code == 0, done.output
        archives.append(Path(json.loads(done.stdout)["archive"]))
    write(path, key, "last")
    return path, archives


def checked(path: Path) -> tuple[int, list[dict[str, Any]]]:
    done = lgov(
        "audit", "verify", str(path), "--archive", "old", "--key", "audit.key.pub", "--head", "audit.db.heads.jsonl",
        "--require-signed", "--json",
    )  # fmt: skip
    return done.exit_code, json.loads(done.stdout)["records"]


def test_records_are_verified_across(archived: tuple[Path, list[Path]]) -> None:
    path, (first, second) = archived
    status, records = checked(path)
    assert status == 0, records
    assert [Path(one["path"]).name for one in records] == [path.name, second.name, first.name]
    assert [one["entries"] for one in records] == [2, 4, 3]
    assert records[0]["continues"]["record"] == records[1]["record"]
    assert not list(path.parent.glob(".audit.db*")), "nothing is left of the rotation"
    assert not [one for one in first.parent.iterdir() if one not in (first, second)]


def test_a_missing_archive_is_found(archived: tuple[Path, list[Path]]) -> None:
    path, (_, second) = archived
    second.unlink()
    status, (record,) = checked(path)
    assert (status, "that it continues is not in old" in record["problem"]) == (4, True)


@pytest.mark.parametrize("change", ["body = replace(body, 'first', 'third') WHERE position = 1", ""])
def test_a_changed_or_cut_archive_is_found(archived: tuple[Path, list[Path]], change: str) -> None:
    path, (first, _) = archived
    with sqlite3.connect(first) as connection:
        for name in ("changed", "removed"):
            connection.execute(f"DROP TRIGGER entries_are_not_{name}")
        connection.execute(f"UPDATE entries SET {change}" if change else "DELETE FROM entries WHERE position = 3")
    connection.close()
    status, records = checked(path)
    assert (status, [one["ok"] for one in records]) == (4, [True, True, False])


def test_another_record_does_not_pass_for_the_archive(archived: tuple[Path, list[Path]]) -> None:
    path, (first, _) = archived
    connection = sqlite3.connect(first)
    (name,) = connection.execute("SELECT id FROM record").fetchone()
    connection.close()
    first.unlink()
    write(first, None, "first-0", "second-0", "third-0")
    connection = sqlite3.connect(first)
    with connection:
        connection.execute("UPDATE record SET id = ?", (name,))
    connection.close()
    done = lgov("audit", "verify", str(path), "--archive", "old")
    assert done.exit_code == 4
    assert "its first 3 entries are not those that the record after it continues" in done.stdout


def test_texts_of_an_archive_can_be_erased(archived: tuple[Path, list[Path]]) -> None:
    path, (first, _) = archived
    assert (
        lgov("erase", str(first), "--where", "text=of first-0", "--yes", "--set", "audit_key=audit.key").exit_code == 0
    )
    status, records = checked(path)
    assert (status, records[2]["erased"], records[2]["entries"]) == (0, 1, 4)


def test_archives_of_an_age_are_deleted_and_the_record_says_so(archived: tuple[Path, list[Path]]) -> None:
    path, archives = archived
    done = lgov(
        "audit",
        "rotate",
        str(path),
        "--to",
        "old",
        "--set",
        "audit_key=audit.key",
        "--delete-before",
        "2100-01-01",
        "--json",
    )
    told = json.loads(done.stdout)
    assert len(told["deleted"]) == 3
    assert not any(one.exists() for one in (*archives, Path(told["archive"])))
    status, (record,) = checked(path)
    assert (status, len(record["retired"])) == (0, 3)
    young = lgov(
        "audit", "rotate", str(path), "--to", "old", "--set", "audit_key=audit.key", "--delete-before", "1h", "--json"
    )
    assert json.loads(young.stdout)["deleted"] == []


def test_settings_name_the_key_and_the_heads(tmp_path: Path, key: SigningKey) -> None:
    (tmp_path / "lgov.toml").write_text('audit_key = "audit.key"\nheads = "far/heads.jsonl"\n')
    (tmp_path / "far").mkdir()
    path = tmp_path / "audit.db"
    with AuditLog(path, signer=key, heads=tmp_path / "far" / "heads.jsonl") as log:
        log.commit(Action(Point.PRE_TOOL_CALL, "one", arguments={"text": "private"}, rollout_id="r1"), ALLOWED)
    erased = lgov("erase", str(path), "--where", "text=private", "--reason", "asked", "--yes")
    assert erased.exit_code == 0, erased.output
    assert lgov("audit", "rotate", str(path), "--to", "old").exit_code == 0
    words = lgov("audit", "verify", str(path), "--archive", "old", "--head", "far/heads.jsonl", "--require-signed")
    assert (words.exit_code, "kept there too" in words.stdout) == (0, False), words.output
    shown = " ".join(lgov("audit", "show", str(next((tmp_path / "old").iterdir()))).stdout.split())
    assert "erasure texts of 1 entry" in shown
    assert ", of 3 entries" in " ".join(lgov("audit", "show", str(path)).stdout.split())


def test_a_record_in_use_is_not_archived(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "audit.db"
    with AuditLog(path, signer=key) as log:
        log.commit(Action(Point.PRE_TOOL_CALL, "one"), ALLOWED)
        done = lgov("audit", "rotate", str(path), "--to", "old", "--set", "audit_key=audit.key")
        assert (done.exit_code, "is in use" in done.stderr) == (1, True), "the record is not broken"
        log.commit(Action(Point.PRE_TOOL_CALL, "two"), ALLOWED)
    assert verify(path, key=key.public, require_signed=True).ok
    assert not list((tmp_path / "old").iterdir())


def test_a_broken_record_is_not_archived_and_the_next_begins_without_it(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "audit.db"
    write(path, key, "one", "two")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TRIGGER entries_are_not_changed")
        connection.execute("UPDATE entries SET body = replace(body, 'two', 'six') WHERE position = 2")
    connection.close()
    rotation = ("audit", "rotate", str(path), "--to", "old", "--set", "audit_key=audit.key", "--accept-loss")
    done = lgov(*rotation)
    assert (done.exit_code, "BROKEN at entry 2" in done.stderr) == (4, True), done.output
    path.rename(tmp_path / "broken.db")
    assert lgov(*rotation).exit_code == 0
    write(path, key, "three")
    assert verify(path, head=tmp_path / "audit.db.heads.jsonl", require_signed=True).ok


def test_a_signed_record_is_archived_with_its_key_only(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "audit.db"
    write(path, key, "one")
    done = lgov("audit", "rotate", str(path), "--to", "old")
    assert (done.exit_code, "only who has its key" in done.stderr) == (1, True), "the record is not broken"
    assert verify(path).entries == 1


def test_another_key_begins_with_a_rotation(tmp_path: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    following = make_key(tmp_path / "next.key")
    write(tmp_path / "audit.db", key, "first")
    (tmp_path / "lgov.toml").write_text('audit_key = "next.key"\n')
    refused = lgov("audit", "rotate", "audit.db", "--to", "old")
    assert (refused.exit_code, "--set audit_key=FILE" in refused.output) == (1, True), refused.output
    done = lgov("audit", "rotate", "audit.db", "--to", "old", "--set", "audit_key=audit.key", "--json")
    assert done.exit_code == 0, done.output
    write(tmp_path / "audit.db", following, "second")
    archive = Path(json.loads(done.stdout)["archive"])
    assert (verify(archive, key=key.public).ok, verify(tmp_path / "audit.db", key=following.public).ok) == (True, True)
    across = ("audit", "verify", "audit.db", "--archive", "old", "--require-signed")
    assert lgov(*across).exit_code == 0
    done = lgov(*across, "--key", "next.key.pub", "--head", "audit.db.heads.jsonl")
    assert done.exit_code == 0, f"the record says which key was before its own: {done.output}"
    assert lgov(*across, "--key", "audit.key.pub").exit_code == 4, "a key that was given up signs nothing new"
    archive.unlink()
    make_key(tmp_path / "forged.key")
    write(archive, load_key(tmp_path / "forged.key"), "first")
    assert lgov(*across, "--key", "next.key.pub").exit_code == 4
