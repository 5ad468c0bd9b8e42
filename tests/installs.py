"""Installs the built wheel with each extra into fresh environments, and shows what came of it.

``make test-install``, or ``python -m tests.installs [EXTRA …] [--python PATH …] [--json]``. The wheel is built once; then for
each row: a fresh environment, ``pip install lgov[EXTRA]``, ``pip check``, an import of the packages, ``lgov --version`` and
``python -m lgov_core --version``; for a framework, ``lgov run`` of a program that imports it; for ``mcp``, ``lgov mcp`` of
a server. ``base`` is lgov without an extra: a program asks a governor, and its record is verified; with ``view`` the window
exports it. Ends with 1 if any row failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Extras that need torch (200 MB and more), another interpreter or a peer of lgov are installed when they are named.
BY_NAME_ONLY = {"train", "tensorboard", "verl", "vllm", "all", "agent-os", "agent-os-core"}
#: What a program with the framework of an extra imports.
FRAMEWORKS = {
    "langchain": "langchain.agents",
    "autogen": "autogen_agentchat.agents",
    "openai-agents": "agents",
    "openai": "openai",
}
POLICY = "version: 1\nrules: [{name: reads, tools: [run_sql], use: sql, with: {dialect: sqlite}}]\n"
#: What the base installation governs by itself: the calls that a program asks about.
BASE = """
from lgov_core import Action, AuditLog, Governor, Point, load_policy_file

with AuditLog("audit.db") as log:
    governor = Governor(load_policy_file("policy.yaml"), audit=log)
    for query, blocked in (("SELECT 1", False), ("DROP TABLE staff", True)):
        decision = governor.decide(Action(Point.PRE_TOOL_CALL, "run_sql", arguments={"query": query}))
        assert decision.blocks is blocked, decision
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """One installation. ``megabytes`` is the size of site-packages without pip, ``problem`` is empty where all went well."""

    python: str
    extra: str
    seconds: float
    megabytes: int
    distributions: int
    problem: str


def build(folder: Path) -> Path:
    """The wheel of this working tree. Raises `CalledProcessError`."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    return next(folder.glob("lgov-*.whl"))


def output(*command: str | Path, cwd: Path | None = None) -> str:
    """What a command printed. Raises `CalledProcessError`."""
    return subprocess.run(
        [str(part) for part in command],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=1200,
        cwd=cwd,
    ).stdout


def install(python: Path, extra: str, wheel: Path, folder: Path) -> Installed:
    """One row: a fresh environment below ``folder``, and everything that is tried in it."""
    output(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    version = output(own, "-c", "import platform; print(platform.python_version())").strip()
    site = Path(output(own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    before, start, problem = size(site), time.perf_counter(), ""
    try:
        output(
            own, "-m", "pip", "install", "--quiet", f"lgov{'' if extra == 'base' else f'[{extra}]'} @ {wheel.as_uri()}"
        )
        seconds = time.perf_counter() - start
        megabytes = round((size(site) - before) / 1e6)
        output(own, "-m", "pip", "check")
        output(own, "-c", "import lgov_core, lgov_langchain, lgov_autogen, lgov_openai_agents, lgov_openai")
        says = {output(folder / "bin" / "lgov", "--version"), output(own, "-m", "lgov_core", "--version")}
        if says != {f"lgov {wheel.name.split('-')[1]}\n"}:
            problem = f"--version says {says}"
        if extra in ("base", "view"):
            (folder / "policy.yaml").write_text(POLICY)
            (folder / "agent.py").write_text(BASE)
            output(own, "agent.py", cwd=folder)
            output(folder / "bin" / "lgov", "audit", "verify", folder / "audit.db")
        if extra == "view":
            output(folder / "bin" / "lgov", "view", folder / "audit.db", "--export", folder / "page.html")
        if extra == "mcp":
            (folder / "policy.yaml").write_text("version: 1\nrules: [{name: all, use: allow}]\n")
            output(folder / "bin" / "lgov", "mcp", "--", own, ROOT / "tests" / "mcp_files_server.py", cwd=folder)
        if extra in FRAMEWORKS:
            (folder / "policy.yaml").write_text("version: 1\nrules: [{name: all, use: allow}]\n")
            (folder / "agent.py").write_text(f"import {FRAMEWORKS[extra]}\n")
            lgov_run = [folder / "bin" / "lgov", "run", "--audit", folder / "audit.db", "--"]
            output(*lgov_run, own, folder / "agent.py")
    except subprocess.CalledProcessError as error:
        seconds, megabytes = time.perf_counter() - start, 0
        problem = f"{' '.join(error.cmd[1:5])}: {(error.stderr or error.stdout).strip()[-400:]}"
    return Installed(version, extra, round(seconds, 1), megabytes, len(list(site.glob("*.dist-info"))) - 1, problem)


def size(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> int:
    """The exit status."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="default: base and each extra that needs no torch")
    parser.add_argument(
        "--python",
        action="append",
        type=Path,
        metavar="PATH",
        help="an interpreter; may be repeated (default: this one)",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    extras: list[str] = options.extras or ["base", *(extra for extra in named if extra not in BY_NAME_ONLY)]
    if unknown := set(extras) - {"base", *named}:
        parser.error(f"pyproject.toml has no extra {', '.join(sorted(unknown))}; it has {', '.join(named)}")
    rows: list[Installed] = []
    with tempfile.TemporaryDirectory(prefix="lgov-installs-") as folder:
        wheel = build(Path(folder))
        for python in options.python or [Path(sys.executable)]:
            for extra in extras:
                with tempfile.TemporaryDirectory(dir=folder) as environment:
                    row = install(python, extra, wheel, Path(environment))
                rows.append(row)
                if not options.json:
                    size_and_count = f"{row.megabytes:5d} MB {row.distributions:4d} packages"
                    print(
                        f"{row.python:8} {row.extra:14} {row.seconds:6.1f} s {size_and_count}  {row.problem or 'ok'}",
                        flush=True,
                    )
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    return int(any(row.problem for row in rows))


if __name__ == "__main__":
    sys.exit(main())
