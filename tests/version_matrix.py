"""Runs each adapter's tests against the oldest and the newest version of its framework that lgov accepts.

``make test-matrix``, or ``python -m tests.version_matrix [NAME …] [--end oldest|newest]``. Every run has an environment of
its own under ``.peers``, made on first use: the oldest from the pins below, which are the lower ends of the ranges in
pyproject.toml, the newest from whatever the package index has within them. Ends with 1 if any run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".peers"
TOOLS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "mcp", "opentelemetry-sdk")

#: Tests of all frameworks; those of the others are skipped.
STREAMS = tuple(
    f"tests/instrumentation/test_{name}.py" for name in ("watched_streams", "streaming_agents", "wrapped_streams")
)


@dataclass(frozen=True, slots=True)
class Framework:
    """An adapter's tests, the extra that brings its framework, and the oldest versions; ``shown`` is what is reported."""

    name: str
    tests: tuple[str, ...]
    extra: str
    oldest: tuple[str, ...]
    shown: tuple[str, ...]
    tools: tuple[str, ...] = ()


FRAMEWORKS = (
    Framework(
        "langchain",
        ("tests/langchain", *STREAMS),
        "langchain",
        ("langchain==1.4.0", "langchain-core==1.7.0", "langgraph==1.2.11", "langchain-openai==1.7.0"),
        ("langchain", "langchain-core", "langgraph", "langchain-openai"),
    ),
    Framework(
        "autogen",
        ("tests/autogen", *STREAMS),
        "autogen",
        ("autogen-agentchat==0.7.5", "autogen-ext==0.7.5"),
        ("autogen-agentchat", "openai"),
        ("autogen-ext[mcp]",),
    ),
    Framework(
        "openai-agents",
        ("tests/openai_agents", *STREAMS),
        "openai-agents",
        ("openai-agents==0.24.0",),
        ("openai-agents", "openai"),
    ),
    Framework("openai", ("tests/openai", *STREAMS), "openai", ("openai==3.15.0",), ("openai",), ("httpx", "requests")),
)


def prepare(framework: Framework, end: str) -> tuple[Path, str]:
    """The interpreter of the environment, and the versions that are in it. Raises `CalledProcessError` with pip's words."""
    folder = ENVIRONMENTS / f"matrix-{framework.name}-{end}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        pins = framework.oldest if end == "oldest" else ()
        wanted = ["-e", f"{ROOT}[{framework.extra},gateway]", *TOOLS, *framework.tools, *pins]
        subprocess.run([*pip, *wanted], check=True, capture_output=True, text=True)
        (folder / ".complete").touch()
    listed = subprocess.run(
        [str(python), "-m", "pip", "--disable-pip-version-check", "list", "--format=json"],
        check=True,
        capture_output=True,
        text=True,
    )
    versions = {one["name"]: one["version"] for one in json.loads(listed.stdout)}
    return python, ", ".join(f"{name} {versions.get(name, '?')}" for name in framework.shown)


def main() -> int:
    """Runs what was asked for and prints a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="adapters; all when none is named")
    parser.add_argument("--end", choices=("oldest", "newest"), help="only this end of the range")
    arguments = parser.parse_args()
    failed = 0
    for framework in FRAMEWORKS:
        if arguments.names and framework.name not in arguments.names:
            continue
        for end in ("oldest", "newest") if arguments.end is None else (arguments.end,):
            failed += not one_run(framework, end)
    return 1 if failed else 0


def one_run(framework: Framework, end: str) -> bool:
    """Runs the tests of one environment; returns whether they passed."""
    print(f"{framework.name}, {end}: ", end="", flush=True)
    try:
        python, versions = prepare(framework, end)
    except subprocess.CalledProcessError as error:
        print(f"could not be installed: {str(error.stderr).strip()[-400:]}")
        return False
    print(versions, end=": ", flush=True)
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *framework.tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    print(done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-400:])
    if done.returncode != 0:
        print(done.stdout[-4000:], file=sys.stderr)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
