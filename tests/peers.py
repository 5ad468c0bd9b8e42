"""Environments of their own for packages that cannot be installed beside lgov's, or beside each other."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".peers"
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: What lgov itself needs for judging, in an environment that has nothing of lgov installed, and what its servers need.
_NEEDED = tuple(_PROJECT["dependencies"])
SERVERS = tuple(_PROJECT["optional-dependencies"]["gateway"])


class PeerUnavailable(Exception):
    """The package index could not be reached, or has no such package for this Python."""


def peer_python(*requirements: str) -> Path:
    """The interpreter of an environment with ``requirements``, made on first use and kept in ``.peers``.

    Raises `PeerUnavailable` with what pip said.
    """
    key = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    folder = PEERS / f"{requirements[0].partition('=')[0]}-{key}"
    python = folder / "bin" / "python"
    with _one_at_a_time(folder):
        if (folder / ".complete").exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        done = subprocess.run(
            [*command, *_NEEDED, *requirements],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise PeerUnavailable(f"pip could not install {' '.join(requirements)}: {done.stderr.strip()[-500:]}")
        (folder / ".complete").touch()
    return python


@contextmanager
def _one_at_a_time(folder: Path) -> Generator[None]:
    """Tests run in several processes, and more than one may want the same environment first."""
    PEERS.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_there(python: Path, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Runs ``python`` with this source tree on its path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [str(python), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
