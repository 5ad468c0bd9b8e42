"""Between a model's reply and the permitted act run exactly the files of one list; ARCHITECTURE.md shows it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import grimp
import pytest
from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool, StaticWorkbench

from lgov_autogen import GovernedWorkbench
from lgov_core.audit import AuditLog
from lgov_core.governor import Governor
from lgov_core.policies import PolicySet, Rule, ToolPolicy
from tests.governor.act_path import ACT_PATH, LOADED, PAGE, code_lines, page, table

ROOT = Path(__file__).parents[2]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}},
    "required": ["city"],
    "additionalProperties": False,
}


class Trace:
    """The files of lgov in which a function starts, in every thread, from ``start`` to ``stop``."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.on = False

    def start(self) -> None:
        self.on = True
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def stop(self) -> None:
        self.on = False
        sys.setprofile(None)
        threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if (
            self.on
            and event == "call"
            and file.is_relative_to(ROOT)
            and file.relative_to(ROOT).parts[0].startswith("lgov_")
        ):
            self.files.add(str(file.relative_to(ROOT)))


async def traced_call(log: AuditLog, trace: Trace, arguments: dict[str, Any]) -> Any:
    """Two calls of a tool with ``arguments``; the second is traced from the call to the tool's own first line."""

    def weather(city: str) -> str:
        trace.stop()
        return f"sunny in {city}"

    policies = PolicySet([Rule(ToolPolicy(allow=["weather"], schemas={"weather": SCHEMA}), "tools")])
    governor = Governor(policies, audit=log)
    governor.exports_spans = False  # as in a program without OpenTelemetry's SDK
    workbench = GovernedWorkbench(StaticWorkbench([FunctionTool(weather, description="The weather.")]), governor)
    result = None
    for _ in range(2):
        trace.files.clear()
        trace.start()
        try:
            result = await workbench.call_tool("weather", arguments, CancellationToken())
        finally:
            trace.stop()
    return result


def trace_permitted(path: str) -> list[str]:
    """The files that run for a permitted call with its record at ``path``."""
    trace = Trace()
    with AuditLog(path, signer=None) as log:
        result = asyncio.run(traced_call(log, trace, {"city": "Rome"}))
        entries = log.entries()
    assert result.to_text() == "sunny in Rome"
    assert [entry.effect for entry in entries if entry.point == "pre_tool_call" and entry.kind == "decision"] == [
        "allow"
    ] * 2
    return sorted(trace.files)


def test_the_files_between_reply_and_act_are_those_of_the_list(tmp_path: Path) -> None:
    """In a process of its own: what a test before this one has instrumented brings files of its own."""
    code = "import json, sys; from tests.governor.test_act_path import trace_permitted"
    code += "; print(json.dumps(trace_permitted(sys.argv[1])))"
    command = [sys.executable, "-c", code, str(tmp_path / "audit.db")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert set(json.loads(ran.stdout.splitlines()[-1])) == set(ACT_PATH)


def test_a_refused_call_runs_no_other_file_and_not_the_tool(tmp_path: Path) -> None:
    trace = Trace()
    with AuditLog(tmp_path / "audit.db", signer=None) as log:
        result = asyncio.run(traced_call(log, trace, {"city": "rome"}))
    assert result.is_error
    assert "tools/tool-arguments" in result.to_text()
    decisive = {file for file in ACT_PATH if "governor/" in file or "policies/" in file or "audit/" in file}
    assert decisive <= trace.files


def test_the_files_import_nothing_else_of_lgov() -> None:
    graph = grimp.build_graph("lgov_core", "lgov_autogen", exclude_type_checking_imports=True)
    modules = {file.removesuffix(".py").replace("/", ".") for file in ACT_PATH}
    imported = {name for module in modules for name in graph.find_modules_directly_imported_by(module)}
    assert imported - modules == set(LOADED)


def test_the_files_do_not_grow() -> None:
    sources = [(ROOT / file).read_text() for file in ACT_PATH]
    assert sum(map(code_lines, sources)) <= 2_350
    assert sum(len(source.splitlines()) for source in sources) <= 3_650


def test_the_page_has_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert table() in PAGE.read_text()
    assert page(PAGE.read_text()) == PAGE.read_text(), "python -m tests.governor.act_path --write"
