"""A kernel that runs SQL on a table of users, and its audit record."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from lgov_core import AuditLog, KernelSpace, SQLPolicy


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
