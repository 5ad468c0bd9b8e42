"""The distribution: typed, runnable as a module, completed by shells, and built from versions that are all pinned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lgov_core

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
#: What the Makefile installs into .venv beside the groups dev and docs.
EXTRAS = re.findall(r'-e "\.\[(.+)\]"', (ROOT / "Makefile").read_text())[0]


@pytest.mark.parametrize("package", PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
def test_every_package_of_the_wheel_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "lgov_core", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"lgov {lgov_core.__version__}\n")


def test_shells_complete_commands() -> None:
    asks = {"_LGOV_COMPLETE": "bash_complete", "COMP_WORDS": "lgov policy su", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "lgov_core"], env=os.environ | asks, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "plain,suggest\n"


def test_every_distribution_that_make_installs_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}
    assert needed() - pins == set()


def needed() -> set[str]:
    """The names of everything that lgov with `EXTRAS` and the groups ``dev`` and ``docs`` bring to this interpreter."""
    groups = PROJECT["dependency-groups"]
    waiting = [Requirement(f"lgov[{EXTRAS}]"), *map(Requirement, groups["dev"] + groups["docs"])]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for line in metadata.requires(name) or []:
                one = Requirement(line)
                if one.marker is None or one.marker.evaluate({"extra": extra}):
                    waiting.append(one)
    return {name for name, _ in seen} - {"lgov", "setuptools"}  # which comes with the environment
