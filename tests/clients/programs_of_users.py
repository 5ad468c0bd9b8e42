"""The clients that the tests run as their users do: where each is, how it is told of a model server, how it is started."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/coding-agents.md"
PROGRAMS = ROOT / "tests/clients/programs"
#: Where `make test-clients` puts them.
INSTALLED = ROOT / ".clients/node_modules/.bin"
ASK = "Write hello into made.txt"
COMMAND = "echo hello > made.txt"


def folder() -> str:
    """The folders that are searched for the programs."""
    own = str(Path(sys.executable).parent)
    return os.pathsep.join([own, os.environ.get("LGOV_TEST_CLIENTS", ""), str(INSTALLED), os.environ.get("PATH", "")])


def block(title: str, url: str) -> str:
    """The block with this title of the page about coding agents, with another address."""
    (text,) = re.findall(rf'```\w+ title="{title}"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.S)
    (address,) = re.findall(r"http://127[^\"]+", text)
    return text.replace(address, url)


def codex(work: Path, url: str) -> None:
    """Writes Codex's settings."""
    (work / "home/.codex").mkdir()
    (work / "home/.codex/config.toml").write_text(block("config.toml", url))


def opencode(work: Path, url: str) -> None:
    """Writes opencode's settings."""
    (work / "opencode.json").write_text(block("opencode.json", url))


_BASH = ("bash", {"command": COMMAND, "description": "writes"})
_WRITE = ("write", {"filePath": "made.txt", "content": "hello"})


@dataclass(frozen=True, slots=True)
class Client:
    """One program. ``shell`` is a call of its tool for commands, ``other`` of a tool that it offers besides.

    ``command`` begins with a program that npm installs, or is ``python`` with a program of ``tests/clients/programs``.
    """

    name: str
    command: tuple[str, ...]
    shell: tuple[str, dict[str, Any]] = _BASH
    other: tuple[str, dict[str, Any]] = _WRITE
    configure: Callable[[Path, str], None] = lambda work, url: None

    @property
    def slug(self) -> str:
        """The name for a rollout."""
        return self.name.lower().replace(" ", "-")

    @property
    def from_npm(self) -> bool:
        """Whether it is one of the programs that npm installs."""
        return self.command[0] != "python"

    def program(self) -> Path:
        """Where it is installed; skips the test where it is not."""
        path = shutil.which(self.command[0], path=folder())
        if path is None:
            way = "make test-clients, or LGOV_TEST_CLIENTS=FOLDER/node_modules/.bin"
            pytest.skip(f"{self.command[0]} is not installed: {way}")
        return Path(path).resolve()

    def run(
        self, work: Path, url: str, *, ask: str = ASK, before: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Does the task in the folder ``work``, with a home of its own; ``before`` stands before its command."""
        self.program()
        home = work / "home"
        home.mkdir(parents=True)
        self.configure(work, url)
        for name in self.command[1:]:
            if name.endswith(".py"):
                for file in (name, "tools.py"):
                    shutil.copy(PROGRAMS / file, work)
        told = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "any", "OPENAI_MODEL": "scripted"}
        environment = {"PATH": folder(), "HOME": str(home), "TERM": "dumb", **told}
        command = [*before, *self.command, ask]
        return subprocess.run(
            command, cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200
        )


CLIENTS = {
    client.name: client
    for client in (
        Client("LangChain", ("python", "langchain_agent.py")),
        Client("AutoGen", ("python", "autogen_agent.py")),
        Client("Agents SDK", ("python", "agents_sdk_agent.py")),
        Client("openai", ("python", "openai_agent.py")),
        Client("anthropic", ("python", "anthropic_agent.py")),
        Client(
            "Codex",
            ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            ("exec_command", {"cmd": COMMAND}),
            ("view_image", {"path": "made.txt"}),
            codex,
        ),
        Client(
            "Qwen Code",
            ("qwen", "--yolo", "--auth-type", "openai", "-p"),
            ("run_shell_command", {"command": COMMAND, "description": "writes", "is_background": False}),
            ("write_file", {"file_path": "made.txt", "content": "hello"}),
        ),
        Client("opencode", ("opencode", "run", "--auto"), configure=opencode),
    )
}
