"""What stores are kept in. Each back end is one line of `BACKENDS`; every test of this folder runs on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from lgov_core.store import RolloutQueue, open_store
from lgov_core.store.memory import MemoryStore
from lgov_core.store.memory_traces import MemoryPlace
from tests.postgres_server import shared_server

#: Opens a store on one empty place; called again, another on the same place, which sees what the first one wrote.
Place: TypeAlias = Callable[[], RolloutQueue]


@contextmanager
def sqlite_file(folder: Path) -> Iterator[Place]:
    yield lambda: open_store(folder / "store.sqlite")


@contextmanager
def memory(folder: Path) -> Iterator[Place]:
    place = MemoryPlace()
    yield lambda: MemoryStore(place)


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
