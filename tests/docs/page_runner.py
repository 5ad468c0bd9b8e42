"""Follows a page of the documentation as a reader does.

A code block with a title that is a file name is saved under it. The lines of a ``console`` block are typed, those that
install packages excepted; with the title "first terminal" they start a server that runs until the end of the page.
A ``text`` block is what the commands before it print, with ``…`` for what differs from run to run. Commands end with
status 0, or as their comment ``# status N`` says. Of a page a section may be followed alone (``page.md#title``), and of
content tabs one: a reader opens that one.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
TAB = re.compile(r'^=== "([^"]+)"\n((?:(?: {4}.*)?\n)+)', re.M)
SERVER = "first terminal"
CLEAN = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "LGOV_", "PYTEST_"))}


@dataclass(frozen=True)
class Step:
    """Commands that a reader types, and what the page says they print (None: nothing is said)."""

    commands: str
    shown: str | None
    server: bool = False


def page_text(place: Path | str, tab: str | None = None) -> str:
    """The text of a page, or of its section after ``#`` (the heading's own words), with the content of one tab."""
    name, _, title = str(place).partition("#")
    text = Path(name).read_text(encoding="utf-8")
    if title:
        heading = re.search(rf"^(#+) {re.escape(title)}\n", _without_code_headings(text), re.M)
        assert heading is not None, f"{name} has no section {title!r}"
        rest = text[heading.end() :]
        end = re.search(rf"^#{{1,{len(heading[1])}}} ", _without_code_headings(rest), re.M)
        text = rest[: end.start()] if end else rest
    return TAB.sub(lambda block: textwrap.dedent(block[2]) if block[1] == tab else "", text)


def _without_code_headings(text: str) -> str:
    """The text with the comments in its code blocks, which begin like headings, masked."""
    return re.sub(r"^ *```.*?^ *```$", lambda block: block[0].replace("#", "?"), text, flags=re.M | re.S)


def read_page(
    path: Path | str, replace: Mapping[str, str] | None = None, tab: str | None = None
) -> tuple[dict[str, str], list[Step]]:
    """The files and the steps of a page, with addresses replaced by those of the test."""
    text = page_text(path, tab)
    for old, new in (replace or {}).items():
        assert old in text, f"{path} does not say {old!r}"
        text = text.replace(old, new)
    files: dict[str, str] = {}
    steps: list[Step] = []
    for language, title, block in BLOCK.findall(text):
        if language == "console":
            if not block.startswith("pip install"):
                steps.append(Step(block, None, title == SERVER))
        elif language == "text":
            steps[-1] = Step(steps[-1].commands, block)
        elif title:
            files[title] = block
    return files, steps


def follow(
    path: Path | str,
    folder: Path,
    environment: Mapping[str, str],
    replace: Mapping[str, str] | None = None,
    tab: str | None = None,
) -> list[str]:
    """Does what the page says in ``folder`` and checks what is printed; returns what each step printed."""
    files, steps = read_page(path, replace, tab)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    programs = folder / ".programs"
    programs.mkdir()
    lgov = programs / "lgov"
    lgov.write_text(f'#!/bin/sh\nexec {sys.executable} -m lgov_core "$@"\n')
    lgov.chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    env = {
        **CLEAN,
        "PATH": f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "120",
        **environment,
    }
    printed: list[str] = []
    with contextlib.ExitStack() as servers:
        for step in steps:
            if step.server:
                servers.enter_context(_serving(step.commands, folder, env))
                continue
            done = subprocess.run(
                ["bash", "-c", step.commands],
                cwd=folder,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=280,
                check=False,
            )
            stated = re.search(r"# status (\d)", step.commands)
            assert done.returncode == int(stated[1] if stated else 0), f"{step.commands}\n{done.stdout}"
            printed.append(done.stdout)
            if step.shown is not None:
                assert same(step.shown, done.stdout), f"{path} says\n{step.shown}\nprinted was\n{done.stdout}"
    return printed


def same(shown: str, printed: str) -> bool:
    """Whether that is what was printed: any run of white space is one, and ``…`` stands for anything."""
    parts = (" ".join(part.split()) for part in shown.split("…"))
    pattern = r"\s*(.*?)\s*".join(re.escape(part) for part in parts)
    return re.fullmatch(pattern, " ".join(printed.split()), re.S) is not None


@contextlib.contextmanager
def _serving(command: str, folder: Path, env: Mapping[str, str]) -> Generator[None]:
    """A server, from when it prints its address to the end."""
    process = subprocess.Popen(
        f"exec {command}",
        shell=True,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "http://" in line, line
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
