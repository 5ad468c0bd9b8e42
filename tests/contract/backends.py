"""The databases of the contract tests. Each is one line of `BACKENDS`, and every test of this folder runs on all of them.

A test that opens a second store on the same database does not run in memory: there is nothing to open a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from lgov_core.store import RolloutQueue, open_store
from tests.postgres_server import shared_server

#: Opens a store on one empty place; called again, another on the same place, which sees what the first one wrote.
Place: TypeAlias = Callable[[], RolloutQueue]


@contextmanager
def sqlite_file(folder: Path) -> Iterator[Place]:
    yield lambda: open_store(folder / "store.sqlite")


@contextmanager
def memory(folder: Path) -> Iterator[Place]:
    yield lambda: open_store("memory://")


@contextmanager
def postgres_database(folder: Path) -> Iterator[Place]:
    address = shared_server().empty_store()
    yield lambda: open_store(address)


#: A back end: given an empty folder, a place for the time of one test. What can not be had here must fail, not skip.
BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "sqlite": sqlite_file,
    "memory": memory,
    "postgres": postgres_database,
}
