"""Runs the conformance suite of the protocol without lgov and with it, and writes the figures side by side.

``npm install @modelcontextprotocol/conformance`` in a FOLDER (Node.js 22), then ``python -m tests.mcp_proxy.conformance
FOLDER [--node PROGRAM]``. The server scenarios drive `everything_server` directly, and through ``lgov mcp --url``; the
client scenarios are driven by a client of the official SDK, directly, and through ``lgov mcp --url`` on standard input. It
ends with 1 if the results differ; ``--write`` puts the table into docs/how-to/coding-agents.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.types import ElicitResult

from tests.mcp_proxy.proxied import EVERYTHING, LGOV, connected, environment, serving

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/coding-agents.md"
CLIENT_SCENARIOS = ("initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry")
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "tools_call": ("add_numbers", {"a": 5, "b": 3}),
    "elicitation-sep1034-client-defaults": ("test_client_elicitation_defaults", {}),
    "sse-retry": ("test_reconnection", {}),
}
POLICY = 'version: 1\nrules:\n  - {name: tools, use: tool, with: {allow: ["*"]}}\n'


async def be_client(url: str, *, behind: bool) -> None:
    """Does what the scenario asks of a client, with the server at ``url``, or with lgov in front of it."""

    async def elicitation(context: Any, params: Any) -> ElicitResult:
        fields = params.requested_schema["properties"]
        return ElicitResult(action="accept", content={name: field["default"] for name, field in fields.items()})

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "policy.yaml").write_text(POLICY)
        if behind:
            opened: Any = connected(Path(folder), [*LGOV, "mcp", "--url", url], elicitation_callback=elicitation)
        else:
            opened = Client(url, mode="legacy", elicitation_callback=elicitation)
        async with opened as client:
            await client.list_tools()
            call = CALLS.get(os.environ["MCP_CONFORMANCE_SCENARIO"])
            if call is not None:
                await client.call_tool(*call)


Checks = Counter[tuple[str, str, str]]


def checks_in(folder: Path) -> Checks:
    """How often each check of each scenario below ``folder`` had which result. What only informs is no check."""
    return Counter(
        (re.sub(r"-[\dTZ-]+$", "", path.parent.name), check["id"], check["status"])
        for path in folder.rglob("checks.json")
        for check in json.loads(path.read_text())
        if check["status"] != "INFO"
    )


def run_suite(suite: list[str], folder: Path, *, behind: bool) -> tuple[Checks, Checks]:
    """The results of the server scenarios and of the client scenarios."""
    (folder / "policy.yaml").write_text(POLICY)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ExitStack() as stack:
        process = subprocess.Popen([*EVERYTHING, str(port)], env=environment(), stderr=subprocess.DEVNULL)
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        url = f"http://127.0.0.1:{port}/mcp"
        if behind:
            url = stack.enter_context(serving(folder, url))
        subprocess.run([*suite, "server", "--url", url, "--suite", "all", "-o", str(folder / "server")], check=False)
    program = [sys.executable, "-m", "tests.mcp_proxy.conformance", "--client", "lgov" if behind else "direct"]
    for scenario in CLIENT_SCENARIOS:
        command = [
            *suite,
            "client",
            "--scenario",
            scenario,
            "--command",
            " ".join(program),
            "-o",
            str(folder / "client"),
        ]
        subprocess.run([*command, "--timeout", "90000"], env=environment(), check=False)
    return checks_in(folder / "server"), checks_in(folder / "client")


def table(results: dict[str, tuple[Checks, Checks]]) -> str:
    lines = ["| scenarios | | passed | failed | warnings |", "|---|---|---|---|---|"]
    for number, kind in enumerate(("a server", "a client")):
        for name, suites in results.items():
            scenarios = {scenario for scenario, _, _ in suites[number]}
            statuses: Counter[str] = Counter()
            for (_, _, status), count in suites[number].items():
                statuses[status] += count
            counts = f"{statuses['SUCCESS']} | {statuses['FAILURE']} | {statuses['WARNING']}"
            lines.append(f"| of {kind} ({len(scenarios)}) | {name} | {counts} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where the suite is installed; for --client the server's address")
    parser.add_argument("--node", default="node")
    parser.add_argument("--client", choices=("direct", "lgov"))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.client is not None:
        return asyncio.run(be_client(options.folder, behind=options.client == "lgov"))
    package = Path(options.folder).absolute() / "node_modules/@modelcontextprotocol/conformance"
    suite = [options.node, str(package / "dist/index.js")]
    results: dict[str, tuple[Checks, Checks]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("without lgov", "with lgov"):
            place = Path(folder) / name.replace(" ", "-")
            place.mkdir()
            results[name] = run_suite(suite, place, behind=name == "with lgov")
    shown = table(results)
    print(shown)
    if options.write:
        version = json.loads((package / "package.json").read_text())["version"]
        text = PAGE.read_text()
        block = f"<!-- conformance -->\n\nVersion {version}:\n\n{shown}\n\n<!-- end: conformance -->"
        PAGE.write_text(re.sub(r"<!-- conformance -->.*<!-- end: conformance -->", block, text, flags=re.S))
    without, behind = results.values()
    if without != behind or not all(without):
        differing = [(one - other) + (other - one) for one, other in zip(without, behind, strict=True)]
        sys.exit(f"the results differ, or there are none: {differing}")


if __name__ == "__main__":
    main()
