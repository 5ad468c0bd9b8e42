"""A policy to start from: one rule for each tool that a program offers to its model, as the program itself says.

`start_offline` starts the program once, in a process of its own, with a model that ends every call at once. Every model call
and every tool call of a governed framework is denied there; what the call would have offered is written down, and so are the
tools of the agents, teams and nodes that are alive at that moment (`Adapter.offers`). Other clients that go where the
environment says are answered by a server of that process. `starting_policy` writes the rules.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from lgov_core.authoring.rules import (
    ProposedRule,
    ToolActs,
    checkable_schema,
    holds,
    load,
    meaning_rules,
    meanings,
    rule_of,
)
from lgov_core.governance import Governance
from lgov_core.hookspecs import hookimpl
from lgov_core.plugins import make_plugin_manager
from lgov_core.policies.confinement import in_box
from lgov_core.process.governed import installed_adapters
from lgov_core.process.invocation import parse_command
from lgov_core.process.run import ENDING, RunOptions, point_clients_at, run_program
from lgov_core.types import Action, Adapter, Decision, Effect

#: Seconds that an offline start may take, and how many model calls it may make.
MAX_START_S: Final = 120
#: Seconds without a word after which the start says that it goes on.
_SILENT_S: Final = 5
#: Seconds that a program which has to end gets for it.
_ENDING_S: Final = 10
MAX_CALLS: Final = 25
#: The text that the program reads at each of its questions, and how often before its input ends.
_INPUT: Final = "Hello.\n" * 3
_SCHEMAS: Final = ("parameters", "input_schema", "params_json_schema", "inputSchema")
#: Modules whose name says which database a program speaks to.
_DIALECTS: Final = {
    "psycopg": "postgres",
    "psycopg2": "postgres",
    "asyncpg": "postgres",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "duckdb": "duckdb",
}
#: What the policy of an offline start says, wherever the plug-in of `run_offline` is not: in child processes.
_POLICY: Final = """\
version: 1
name: offline start
default: deny
rules: [{name: nothing runs, use: deny, on: [pre_model_call, pre_tool_call], with: {reason: this is an offline start}}]
"""
#: Begins `run_offline` in an interpreter of its own, with a model server from above this layer.
_BEGIN: Final = f"""\
import sys
sys.flags.safe_path or sys.path.__setitem__(0, sys.prefix)
from {__name__} import run_offline
from lgov_core.testing.server import offline_model
run_offline(offline_model)
"""
#: In the box: no network, all variables, files written in these folders only.
_BOX: Final = "confine: {{model: false, environment: ['*'], write: [{folders}]}}\n"


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a program: ``schemas`` are those of its arguments, one for each tool of that name.

    ``kind`` is that of `Action`. ``arguments`` are the arguments' names. ``offered``: a model call offered it; the schemas
    are then as the model sees them. Those of an adapter, which have the names that policies see, take their place.
    """

    name: str
    kind: str = "function"
    schemas: tuple[Mapping[str, Any], ...] = ()
    by_adapter: bool = False
    description: str = ""
    arguments: tuple[str, ...] = ()
    offered: bool = False


@dataclass(slots=True)
class OfflineStart:
    """The result of an offline start: the tools by name, and how many model calls the program would have made.

    ``boxed``: it ran in a box. ``by_endpoint``: a client asked that has no adapter.
    ``status`` is None where it had to be ended; ``last_words`` are the end of what it wrote.
    """

    tools: dict[str, OfferedTool] = field(default_factory=dict[str, OfferedTool])
    calls: int = 0
    modules: frozenset[str] = frozenset()
    boxed: bool = False
    by_endpoint: bool = False
    status: int | None = None
    last_words: str = ""

    def add(self, line: Mapping[str, Any]) -> None:
        """Takes a line of the report of `run_offline`."""
        self.calls += line.get("call", 0)
        self.boxed = self.boxed or line.get("boxed", False)
        self.by_endpoint = self.by_endpoint or line.get("by_endpoint", False)
        self.modules |= frozenset(line.get("modules", ()))
        for definition in line.get("tools", ()):
            tool = _tool(definition, offered=bool(line.get("call") or line.get("offered")))
            if tool is None:
                continue
            known = self.tools.get(tool.name, tool)
            kind = tool.kind if known.kind == "function" else known.kind  # a definition for a model does not say it
            best = tool if tool.schemas and (not known.schemas or tool.by_adapter > known.by_adapter) else known
            if tool.by_adapter == best.by_adapter:
                best = replace(
                    best, schemas=best.schemas + tuple(new for new in tool.schemas if new not in best.schemas)
                )
            arguments = best.arguments or known.arguments or tool.arguments
            self.tools[tool.name] = replace(best, kind=kind, arguments=arguments, offered=known.offered or tool.offered)


def _tool(definition: Mapping[str, Any], *, offered: bool) -> OfferedTool | None:
    function = definition.get("function")
    fields: Mapping[str, Any] = function if isinstance(function, Mapping) else definition
    schema = next((fields[key] for key in _SCHEMAS if isinstance(fields.get(key), Mapping)), None)
    name, kind = fields.get("name"), definition.get("kind", "function")
    if not isinstance(name, str) or not name:
        return None  # what runs at the provider, which no rule sees when it is called
    names = tuple(definition.get("arguments", ())) or tuple((schema or {}).get("properties", {}))
    schemas = () if schema is None else (schema,)
    return OfferedTool(name, kind, schemas, not offered, str(fields.get("description") or ""), names, offered)


def start_offline(command: Sequence[str]) -> OfflineStart:
    """Starts ``command``, a Python program, offline, and returns what it offered. Raises `InstrumentationError`.

    It reads a few lines of input and ends after `MAX_CALLS` model calls or `MAX_START_S` seconds. See the how-to page for
    what is held and what is not: the program's own code runs.
    """
    invocation = parse_command(command)
    start = OfflineStart()
    with tempfile.TemporaryDirectory(prefix="lgov-offline-") as folder:
        report, folders = Path(folder, "report.jsonl"), (os.getcwd(), str(invocation.folder), folder)
        report.touch()
        box = _BOX.format(folders=", ".join(json.dumps(each) for each in dict.fromkeys(folders)))
        Path(folder, "policy.yaml").write_text(_POLICY + box, encoding="utf-8")
        environment = {**dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), "offline"), **os.environ}
        for boxed in (True, False) if sys.platform == "linux" else (False,):
            words = [sys.executable, "-c", _BEGIN, folder, "box" if boxed else "", *command]
            with open(Path(folder, "output"), "wb+") as output, _left_by_signals():
                process = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
                )
                try:
                    _wait(process, shlex.join(command))
                    start.status = process.returncode
                except subprocess.TimeoutExpired:
                    start.status = None
                finally:
                    _end(process)
                output.seek(0)
                start.last_words = "\n".join(output.read().decode(errors="replace").splitlines()[-8:])
            for line in report.read_text(encoding="utf-8").splitlines():
                start.add(json.loads(line))
            if report.stat().st_size:  # it began; else there is no box here
                break
    return start


@contextlib.contextmanager
def _left_by_signals() -> Generator[None]:
    """Raises `SystemExit` in the block where a signal would end this process at once, with what it started left running."""
    numbers = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _wait(process: subprocess.Popen[bytes], program: str) -> None:
    """Waits for the end of a program. Raises `subprocess.TimeoutExpired` after `MAX_START_S`."""
    try:
        process.communicate(_INPUT.encode(), _SILENT_S)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"{program} runs offline; it is ended after {MAX_START_S} s\n")
        process.communicate(timeout=MAX_START_S - _SILENT_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what still runs: a box first gets the time to end what is in it, and to remove what it has put into the folder."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if process.poll() is None:
                os.killpg(process.pid, number)
                process.wait(_ENDING_S)


# ---------------------------------------------------------------------- in the process of the program


class _Offers:
    """A plug-in that denies every model and tool call, and writes down what was offered."""

    bounded = True

    def __init__(self, report: Path, adapters: Sequence[Adapter], serve: Callable[..., str]) -> None:
        self.report, self.adapters, self.serve, self.calls = report, adapters, serve, 0

    @hookimpl
    def lgov_agent_startup(self) -> None:
        """Says that the program begins, and sends the clients that have no adapter to a model of this process."""
        self.tell({"boxed": in_box()})
        point_clients_at(self.serve(on_request=self.asked), {})

    @hookimpl
    def lgov_pre_model_call(self, action: Action) -> Decision:
        """Ends the call."""
        self.asked({"tools": action.context.get("tools", ())}, by_endpoint=False)
        return Decision(Effect.DENY, "offline start", reason="no model is asked")

    @hookimpl
    def lgov_pre_tool_call(self, action: Action) -> Decision:
        """Lets nothing run. A hosted tool is judged when it is offered."""
        tool = {"name": action.name, "kind": action.kind, "arguments": list(action.arguments)}
        self.tell({"call": 0, "offered": True, "tools": [tool]})
        return Decision(Effect.DENY, "offline start", reason="no tool runs")

    def asked(self, request: Mapping[str, Any], *, by_endpoint: bool = True) -> None:
        """Writes down what a model call offers. The program ends after `MAX_CALLS`."""
        self.calls += 1
        tools = [dict(tool) for tool in request.get("tools") or () if isinstance(tool, Mapping)]
        self.tell({"call": 1, "by_endpoint": by_endpoint, "tools": tools})
        self.look_around()
        if self.calls >= MAX_CALLS:
            os._exit(0)

    def look_around(self) -> None:
        """Writes down what the agents that are alive could offer."""
        for adapter in self.adapters:
            if any(module in sys.modules for module in adapter.modules):
                self.tell({"tools": list(adapter.offers())})
        self.tell({"modules": [name for name in _DIALECTS if name in sys.modules]})

    def tell(self, line: Mapping[str, Any]) -> None:
        """Adds a line to the report."""
        with open(self.report, "a", encoding="utf-8") as report:
            report.write(json.dumps(line, default=str) + "\n")


def run_offline(serve: Callable[..., str]) -> None:
    """Runs the program; ``sys.argv`` is as `start_offline` makes it. The report says that it begins, and in a box or not.

    ``serve`` starts a model server that answers clients without an adapter: `lgov_core.testing.server.offline_model`.
    """
    folder, boxed, *command = sys.argv[1:]
    sys.argv[1:] = command
    from lgov_core.process.confined import run_confined

    offers = _Offers(Path(folder, "report.jsonl"), installed_adapters(make_plugin_manager()), serve)
    governance = Governance(policy=Path(folder, "policy.yaml"), audit=Path(folder, "record", "audit.db"))
    options = RunOptions(governance, plugins=(offers,), allow_ungoverned_children=True, deny_unevaluated=True)
    if boxed:
        run: Any = partial(run_confined, strict=False, preset=None)
    else:
        run = run_program
        sys.addaudithook(_refuse_network)
    own = os.getpid()
    status = run(command, options)
    if not boxed or os.getpid() != own:  # in the box is another process
        offers.look_around()
    sys.exit(status)


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuses connections of this process to other machines. In a box the kernel does."""
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
        address = arguments[1] if event != "socket.getaddrinfo" else arguments
        host = address[0] if isinstance(address, tuple) else ""
        if isinstance(host, str) and host not in ("", "localhost", "::1") and not host.startswith("127."):
            raise PermissionError(f"an offline start connects to no other machine, so not to {host}")


# ---------------------------------------------------------------------- the policy


def starting_policy(start: OfflineStart, program: str, folder: Path, cwd: Path) -> str:
    """The text of a policy file in ``folder`` for the tools that ``program``, run in ``cwd``, offered.

    Each may be called with arguments that fit the schema that the model sees, and goes where its arguments may lead:
    `lgov_core.authoring.rules`. Each rule's comment says what it leaves open.
    """
    dialect = next((_DIALECTS[module] for module in _DIALECTS if module in start.modules), "sqlite")
    roots = list(dict.fromkeys([".", os.path.relpath(cwd, folder)]))
    rules: list[ProposedRule] = []
    for tool in start.tools.values():
        rules += _of_tool(tool, dialect, roots, folder)
    text = (
        f"# For the tools that {program} offered to its model when lgov init started it offline.\n"
        "# Read it and change it to fit: each comment says what the rules leave open.\n"
        "# Then: lgov policy check FILE, and lgov policy explain FILE --action JSON\n"
        "version: 1\nname: agent\n"
        "mode: enforce   # or shadow: evaluate and record everything, block nothing\n"
        "default: deny   # a tool that no rule names is not called\n"
        "confine: {preset: workspace}   # what lgov run --confine leaves open: this folder and the model\n"
        + ("rules:\n" + "\n".join(rule.text() for rule in rules) if rules else f"rules:\n{_NO_TOOLS}")
    )
    load(text, folder)
    return text


#: What a program is held to that has no tools.
_NO_TOOLS: Final = """\
  # It offered no tool. Costs: at most so many model calls in one run; what they say is not read.
  - name: costs
    use: cost
    with: {max_calls: 200}
"""


def _of_tool(tool: OfferedTool, dialect: str, roots: Sequence[str], folder: Path) -> list[ProposedRule]:
    acts, schema = ToolActs(tool.name), tool.schemas[0] if tool.schemas else None
    meant = meanings(tool.name, tool.kind, schema, tool.arguments, tool.description)
    further = meaning_rules(acts, meant, (schema or {}).get("required", ()), dialect, roots)
    allow = {"allow": rule_of("tool", acts, None, {}, ()).rule["tools"]}
    seen = tool.kind if tool.offered else f"{tool.kind}, of an agent that was not asked"
    checked = [checkable_schema(each) for each in tool.schemas]
    schemas = {tool.name: checked[0] if len(checked) == 1 else {"anyOf": checked}}
    note = f"{tool.name} ({seen})" + (": arguments of its schema; open: what they say" if schema else "")
    rule = rule_of("tool", acts, None, {**allow, "schemas": schemas}, [note])
    if not any(each.get("properties") for each in checked) or not holds(rule, (), folder):
        note = f"{tool.name} ({seen})" + (
            ": open: its arguments, of which no schema is checked" if tool.arguments else ""
        )
        rule = rule_of("tool", acts, None, allow, [note])
    return [rule, *further]
