"""Writes the golden store and its answers: ``python -m tests.golden.window.record_golden``, with the code to compare with."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from lgov_core.store import open_store
from tests.golden.window.window_answers import everything
from tests.golden.window.window_record import fill, settle

HERE = Path(__file__).parent


def main() -> None:
    """Makes ``store.sqlite.gz`` and ``answers.json.gz``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite"
        with closing(open_store(path)) as store:
            fill(store)
        with closing(sqlite3.connect(path)) as connection, connection:
            settle(connection.execute)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("VACUUM")
            connection.execute("PRAGMA journal_mode=DELETE")
        (HERE / "store.sqlite.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
        with closing(open_store(path)) as store:
            answers = everything(store, str(path))
    text = json.dumps(answers, sort_keys=True, separators=(",", ":"))
    (HERE / "answers.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(answers)} answers, {len(text)} characters")


if __name__ == "__main__":
    main()
