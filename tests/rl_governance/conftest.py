"""A kernel that runs SQL on a table of users, its audit record, and namespaces after parts of the tutorial."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lgov_core import AuditLog, KernelSpace, SQLPolicy
from tests.rl_governance.tutorial_code import DROP_STEP, QUICK_START, SELECT_STEP, Database, run


@pytest.fixture
def record(tmp_path: Path) -> Iterator[AuditLog]:
    with AuditLog(tmp_path / "audit.db") as log:
        yield log


@pytest.fixture
def users() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript("CREATE TABLE users (id INTEGER, name TEXT); INSERT INTO users VALUES (42, 'Ada')")
    yield connection
    connection.close()


@pytest.fixture
def kernel(record: AuditLog, users: sqlite3.Connection) -> Iterator[KernelSpace]:
    policy = SQLPolicy(dialect="sqlite", argument="input", deny=["DROP", "DELETE"])
    made = KernelSpace(policy, record, executor=lambda text: users.execute(text).fetchall())
    yield made
    made.close()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "company.db")


@pytest.fixture
def names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[dict[str, Any]]:
    """The reader's namespace, in a folder of their own; what was printed is not the test's output."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    yield {"__name__": "tutorial"}
    capsys.readouterr()


@pytest.fixture
def kernel_names(names: dict[str, Any]) -> dict[str, Any]:
    """The namespace after the quick start: kernel, runner, reward_fn, rollout."""
    run(QUICK_START, names)
    return names


@pytest.fixture
def scored(kernel_names: dict[str, Any], database: Database) -> dict[str, Any]:
    """The namespace with two rollouts beside it: ``good`` and ``bad``."""
    kernel_names["runner"].init(database)
    run(DROP_STEP, kernel_names)
    kernel_names["bad"] = kernel_names["rollout"]
    run(SELECT_STEP, kernel_names)
    kernel_names["good"] = kernel_names["rollout"]
    return kernel_names
