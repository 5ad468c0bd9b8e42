"""The mutants of a small file, and how the command finds out about each. Runs in the environment of ``make mutants``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="make .venv-mutants/.installed has it")

from tests.mutants.mutations import mutants_of

SMALL = '''\
"""Three functions."""

LIMIT = 3


def is_small(number: int) -> bool:
    return number < LIMIT


def half(number: int) -> int:
    return number // 2


def named(number: int) -> str:
    """The number as text."""
    if number < 0:
        raise ValueError("it is less than nothing")
    return str(number)
'''
TESTS = """\
import pytest
from small.numbers import half, is_small, named


def test_numbers():
    assert is_small(2) and not is_small(3)
    assert half(0) == 0
    assert named(1) == "1"
"""
EXPLAINED = """\
[[mutant]]
file = "small/numbers.py"
scope = "named"
from = "return str(number)"
to = "return str(None)"
reason = "An explanation of what a test notices."
"""
PROGRAM = """\
from pathlib import Path
from tests.mutants.__main__ import Subject, report, run

subject = Subject(("small/numbers.py",), ("test_small.py",), Path("equivalent.toml"))
run(subject, list(subject.files), minutes=1)
raise SystemExit(report(subject, list(subject.files)))
"""


def test_the_mutants_of_a_file_are_small_changes_of_what_decides() -> None:
    mutants = mutants_of("small/numbers.py", SMALL)
    assert [(mutant.function, mutant.removed, mutant.added) for mutant in mutants] == [
        ("", "LIMIT = 3", "LIMIT = None"),
        ("", "LIMIT = 3", "LIMIT = 4"),
        ("is_small", "return number < LIMIT", "return number <= LIMIT"),
        ("half", "return number // 2", "return number / 2"),
        ("half", "return number // 2", "return number // 3"),
        ("named", "if number < 0:", "if number <= 0:"),
        ("named", "if number < 0:", "if number < 1:"),
        ("named", 'raise ValueError("it is less than nothing")', "pass"),
        ("named", "return str(number)", "return str(None)"),
    ]
    assert "return number <= LIMIT" in mutants[2].source()


def test_each_mutant_is_killed_refused_or_shown(tmp_path: Path) -> None:
    for name, text in {
        "small/__init__.py": "",
        "small/numbers.py": SMALL,
        "test_small.py": TESTS,
        "equivalent.toml": EXPLAINED,
        "pyproject.toml": '[tool.pyright]\ntypeCheckingMode = "strict"\n',
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = os.pathsep.join((str(tmp_path), str(Path.cwd())))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    table = ran.stdout.partition("| file")[2]
    assert "| `small/numbers.py` | 9 | 4 | 1 | 0 | 4 | 0 |" in table
    assert "\n  + return number / 2" not in table, "the type checker refuses it: a float is no int"
    assert "explains what does not survive: ('small/numbers.py', 'named'" in table
    for survivor in ("return number // 3", "if number <= 0:", "if number < 1:", "pass"):
        assert f"\n  + {survivor}\n" in table
