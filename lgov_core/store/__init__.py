"""The trace store: rollouts, calls, rewards, spans and the queue of work. `open_store` opens one."""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from lgov_core._util.sqlite_file import is_blank
from lgov_core.errors import SettingsError, StoreError
from lgov_core.settings import load_settings
from lgov_core.store.rollout_queue import Pruned, RolloutQueue, StoreStatistics
from lgov_core.store.rollout_states import STATE_MOVES, Claim, EndedRollouts, QueueEntry, RolloutConfig, RolloutState
from lgov_core.store.trace_store import TraceStore

__all__ = [
    "STATE_MOVES",
    "Claim",
    "EndedRollouts",
    "Pruned",
    "QueueEntry",
    "RolloutConfig",
    "RolloutQueue",
    "RolloutState",
    "StoreStatistics",
    "TraceStore",
    "open_store",
]


def store_of(address: str | os.PathLike[str]) -> str:
    """``address``, or if it is a folder the store of the run or the project in it, where there is one.

    That is the address that the run's ``server.json`` names, the file ``store.sqlite``, or the setting ``store`` of the
    folder's own settings file. A password is not in ``server.json``: it is taken from the settings in force there, if they
    name the same store, and else libpq looks for it (PGPASSWORD, ~/.pgpass).
    """
    path = os.fspath(address)
    folder = Path(path)
    if "://" in path or not folder.is_dir():
        return path
    with suppress(OSError, ValueError, AttributeError):
        if isinstance(kept := json.loads((folder / "server.json").read_bytes()).get("store"), str):
            with suppress(SettingsError):
                if (setting := load_settings(folder=folder).store) and without_secret(setting) == kept:
                    return setting
            return kept
    if (folder / "store.sqlite").is_file():
        return str(folder / "store.sqlite")
    own = (folder / "lgov.toml").is_file() or (folder / "pyproject.toml").is_file()
    setting = load_settings(folder=folder, environ={}).store if own else None
    return path if setting is None else os.path.join(folder, setting) if "://" not in setting else setting


def without_secret(address: str) -> str:
    """A store's place as a run's folder keeps it: an absolute path, or an address without passwords."""
    if "://" not in (address := address.removeprefix("sqlite:///")):
        return os.path.abspath(address)
    address = re.sub(r"^(\w+://[^:@/?]*):[^@/?]*@", r"\1@", address)
    return re.sub(r"(?<=[?&])(?:ssl)?password=[^&]*&?", "", address).rstrip("?&")


def open_store(place: str | os.PathLike[str], *, make: bool = True, busy_timeout_s: float = 10.0) -> RolloutQueue:
    """The store at ``place``: a path, ``sqlite:///path`` (``sqlite:////path`` when the path is absolute), the folder of a
    run (`store_of`), ``postgresql://user@host:port/database`` for a server that several machines share (needs the extra
    ``postgres``), or ``memory://`` for a new one in memory, for tests.

    A store that does not exist is created, unless ``make`` is false: then one that may not be written is opened for reading.
    Another process that holds a file is waited for, ``busy_timeout_s`` seconds at most. Raises `StoreError` for another kind of
    address, and when the store cannot be opened.
    """
    path = store_of(place)
    if path.startswith(("postgresql://", "postgres://")):
        try:
            from lgov_core.store.postgres import PostgresStore
        except ImportError as error:  # psycopg, or the libraries that it needs
            raise StoreError(
                f"a trace store in PostgreSQL needs psycopg: {error}", hint="pip install 'lgov[postgres]'"
            ) from error
        return PostgresStore(path, make=make)
    from lgov_core.store.sqlite import SQLiteStore

    if path == "memory://":
        return SQLiteStore(None)
    if path.startswith("sqlite:///"):
        path = path.removeprefix("sqlite:///")
    elif "://" in path or path.startswith("sqlite:"):
        raise StoreError(
            f"there is no trace store for {path.split(':')[0]} addresses",
            hint="use a file path, sqlite:///path or postgresql://user@host/database",
        )
    if path in ("", ":memory:"):
        raise StoreError(f"a trace store needs a file, not {path!r}", hint="use a path in a temporary folder")
    if not make and not os.path.isfile(path):
        raise StoreError(f"there is no trace store {path}", hint="name the store that was given to --store")
    if not make and is_blank(Path(path), busy_timeout_s=busy_timeout_s):
        raise StoreError(
            f"there is nothing in {path}, not even an empty trace store",
            hint="look for the file that belongs beside it, ending in -wal, or for a copy of both",
        )
    return SQLiteStore(path, only_look=not make, busy_timeout_s=busy_timeout_s)
