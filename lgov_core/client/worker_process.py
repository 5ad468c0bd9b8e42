"""A worker process of a client: reads assignments from standard input, runs the agent, reports on standard output.

Started by `lgov_core.client.workers.ProcessWorkers`, never by hand. Ends when its input ends. What agents print goes to
standard error: the real standard input and output carry the protocol, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, NoReturn

from lgov_core import air
from lgov_core.client.attempts import AgentRunner
from lgov_core.client.tasks import load_agent
from lgov_core.client.wire import Assignment, Report
from lgov_core.client.workers import ThreadWorkers
from lgov_core.errors import InstrumentationError, LgovError
from lgov_core.governance import Governance
from lgov_core.governor import Governor
from lgov_core.process.governed import FrameworkGuard, end_process, installed_adapters, say


def main() -> None:
    """Entry point of ``python -m lgov_coreent.worker_process``."""
    assignments, output = _take_standard_streams()
    # A module that starts a training when it is imported must not do so again.
    os.environ["LIGHTNING_CLIENT_WORKER"] = "1"
    lines = os.fdopen(assignments, "rb")
    options: dict[str, Any] = json.loads(lines.readline())
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines, waiting), daemon=True).start()
    broker = next((word.partition("=")[2] for word in sys.argv[1:]), None)  # in a box: see `command_in_box`
    runner = _open_runner(options, output, broker)
    _send(output, {"ready": True})
    if options["threads"] == 1:
        _run_alone(runner, waiting, output)
    else:
        _run_in_threads(runner, options["threads"], waiting, output)


def govern_imports(governor: Governor, refuse: Callable[[str], NoReturn]) -> FrameworkGuard:
    """Governs every framework that the agent imports before the import returns; returns the guard that does it.

    Unused frameworks are not loaded: that takes seconds. One that cannot be governed is reported to ``refuse``, which
    must end the process. Raises `InstrumentationError` when no governable framework is installed: a worker must not run
    ungoverned agents.
    """
    adapters = installed_adapters(governor.manager)
    installed = [adapter for adapter in adapters if adapter.installed()]
    if not any(adapter.surface for adapter in installed):
        names = ", ".join(adapter.name for adapter in installed) or "none"
        raise InstrumentationError(
            f"no framework here can be governed (installed but not governable: {names})",
            hint='pip install "lgov[langchain]"',
        )
    guard = FrameworkGuard(adapters, lambda: governor, refuse)
    guard.install()
    return guard


def _open_runner(options: dict[str, Any], output: int, broker: str | None) -> AgentRunner:
    """The runner of the agent that ``options`` names. Ends the process with 1 after it told the client why there is none."""
    governance = replace(Governance.of_json(options["governance"]), broker=broker)
    os.environ.setdefault("OPENAI_API_KEY", "not-used")
    os.environ.setdefault("ANTHROPIC_API_KEY", "not-used")
    if options["threads"] > 1:
        # One address for all attempts of the process: what lgov adds to each request says which attempt it is of.
        os.environ["OPENAI_BASE_URL"] = f"{options['endpoint']}/v1"
    # Under a policy a framework is governed when it is imported, and the process ends where that cannot be done.
    guarded = options["instrument"] and governance.policy is not None
    try:
        # The set in use: rules that the agent's module registers when it is imported are in it, or a set of its own is.
        rules = air.use(governance.reward_rules()) if options["rules"] else None
        agent = load_agent(options["agent"])
        runner = AgentRunner(
            agent,
            endpoint=options["endpoint"],
            governance=governance,
            rules=rules if rules is None else air.current(),
            instrument=options["instrument"] and not guarded,
            content=options.get("content", False),
        )
        if guarded:
            # The process ends, for it must not run ungoverned agents; the client starts no other.
            govern_imports(runner.governor, lambda reason: end_process(lambda: say(reason)))
        return runner
    except LgovError as error:
        _send(output, {"error": error.message, "hint": error.hint})
    except Exception as error:  # noqa: BLE001 - the client reports whatever the agent's module raises
        _send(output, {"error": f"the agent's module raised {type(error).__name__}: {error}", "hint": None})
    sys.exit(1)


def _run_alone(runner: AgentRunner, waiting: queue.SimpleQueue[bytes], output: int) -> NoReturn:
    """Runs one attempt after the other in this thread, the main one, as agents expect that use signals."""
    while True:
        assignment = Assignment(**json.loads(waiting.get()))
        # For programs that take the address of the model from here.
        os.environ["OPENAI_BASE_URL"] = assignment.model_api
        _report(output, assignment, runner.run(assignment))


def _run_in_threads(runner: AgentRunner, threads: int, waiting: queue.SimpleQueue[bytes], output: int) -> NoReturn:
    """Runs up to ``threads`` attempts at a time."""
    writing = threading.Lock()

    def done(assignment: Assignment, report: Report) -> None:
        with writing:
            _report(output, assignment, report)

    workers = ThreadWorkers(runner, threads, done)
    while True:
        message = json.loads(waiting.get())
        if "abandon" in message:
            rollout_id, attempt = message["abandon"]
            workers.abandon((rollout_id, attempt))
        else:
            workers.give(Assignment(**message))


def _read_lines(lines: BinaryIO, waiting: queue.SimpleQueue[bytes]) -> None:
    """Keeps reading while an agent runs, so that the process ends when the client is gone."""
    for line in lines:
        waiting.put(line)
    sys.stderr.flush()
    os._exit(0)


def _take_standard_streams() -> tuple[int, int]:
    """Descriptors of standard input and output, for the protocol alone.

    From here on the agent, and what it starts, reads nothing from standard input and prints to standard error.
    """
    source, output = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, output


def _report(output: int, assignment: Assignment, report: Report) -> None:
    _send(output, {"report": report.as_json(), "key": list(assignment.key)})


def _send(output: int, message: Mapping[str, Any]) -> None:
    """Writes one line to the client."""
    data = json.dumps(message, default=str).encode() + b"\n"
    while data:
        data = data[os.write(output, data) :]


if __name__ == "__main__":
    main()
