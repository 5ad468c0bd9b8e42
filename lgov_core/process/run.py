"""Runs an unedited Python program under policy: what ``lgov run`` does.

Before the program's first line the policy is loaded, the record opened and the import hook installed. If any of that
fails, or the program later imports a framework that cannot be governed, the process ends with status 78 and a message.
Governance covers this process, its threads, and the Python processes that it starts (`lgov_core.process.children`); the
closing report names the other programs that were started.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from lgov_core.errors import InstrumentationError, LgovError, PolicyDenied
from lgov_core.process.children import BY_CHILD, BY_MULTIPROCESSING, VARIABLE, hand_on, read_reports
from lgov_core.process.governed import (
    CANNOT_GOVERN,
    DEFAULT_AUDIT,
    GovernedProcess,
    ProcessOptions,
    end_process,
    govern_process,
    policy_in,
    say,
    write_error,
)
from lgov_core.process.import_guard import FrameworkGuard
from lgov_core.process.invocation import Invocation, execute, parse_command
from lgov_core.scope import RolloutScope, carry_into_threads
from lgov_core.types import Outcome, Rollout, new_id

if TYPE_CHECKING:
    pass

_CHILD_EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.spawn", "os.system"})


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a program under policy.

    ``policy`` is a policy file; None takes ``policy.yaml`` beside the program. ``audit`` is the file of the record;
    None means ``.lgov/audit.db`` in the working directory. ``redact`` names arguments whose values the record does not
    keep. ``store`` keeps spans and rewards; None keeps none.
    ``endpoint`` is the base URL of the training endpoint, to which OpenAI-style clients of the program are then
    pointed. ``rollout_id`` names the rollout that the process is; None makes a fresh one. ``task_id`` names its task;
    None means the program's name.
    """

    policy: Path | None = None
    audit: Path | None = None
    redact: tuple[str, ...] = ()
    store: str | None = None
    endpoint: str | None = None
    rollout_id: str | None = None
    task_id: str | None = None
    timeout_s: float = 2.0
    plugins: tuple[object, ...] = ()
    children: Literal["govern", "allow"] = "govern"
    capture_content: bool = True
    as_json: bool = False
    broker: str | None = None


@dataclass(slots=True)
class _Run:
    """The state of a running program, for its closing report."""

    scope: RolloutScope
    options: RunOptions
    folder: Path
    process: GovernedProcess = field(init=False)
    guard: FrameworkGuard = field(init=False)
    child_reports: Path | None = None
    attempt_open: bool = False
    children: Counter[str] = field(default_factory=Counter)
    pid: int = field(default_factory=os.getpid)
    script: Path | None = None  # absolute: the program may go to another folder


def run_program(command: Sequence[str], options: RunOptions) -> int:
    """Runs ``command`` (``python SCRIPT …`` or ``python -m MODULE …``) governed, in this process; returns its status.

    Returns 78 and says why on standard error if the program could not be governed; then no line of it has run. A
    framework that turns out ungovernable when the program imports it ends the process with 78 on the spot. A report
    is written to standard error when the process ends. Changes ``sys.argv``, ``sys.path``, the environment and the
    import system, so it is for a process that does nothing else. Fails closed.
    """
    if VARIABLE in os.environ:
        already = "this process was started by a governed program and is under its policy already"
        hint = "start it without lgov run, or the program around it with --children allow"
        return refuse_run(InstrumentationError(already, hint=hint), options)
    try:
        invocation = parse_command(command)
        scope = RolloutScope(
            options.rollout_id or new_id("rol"), 1, task_id=options.task_id or Path(invocation.target).name
        )
        run = _prepare(invocation, scope, options)
    except LgovError as error:
        return refuse_run(error, options)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever is broken here, the program must not run without it
        return refuse_run(InstrumentationError(f"{type(error).__name__}: {error}"), options)
    _watch_children(run.children)
    atexit.register(_finish, run)
    try:
        if options.endpoint is not None:
            _point_clients_at(options.endpoint, scope)
        carry_into_threads()
        if options.children == "govern":
            run.child_reports = hand_on(run.process.options, scope)
            run.process.tally.reports = run.child_reports
        _begin_attempt(run, command)
        run.guard.install()
        with run.process.governor.rollout(scope):
            status = execute(invocation)
    except PolicyDenied as denied:
        reason = f"the policy does not let this program start: {denied.decision.reason}"
        status = refuse_run(InstrumentationError(reason), options)
    except LgovError as error:
        status = refuse_run(error, options)
    _end_attempt(run, status)
    return status


def _prepare(invocation: Invocation, scope: RolloutScope, options: RunOptions) -> _Run:
    run = _Run(scope, options, invocation.folder)
    run.script = None if invocation.is_module else Path(invocation.target).resolve()
    run.process, run.guard = govern_process(
        ProcessOptions(
            options.policy or policy_in(invocation.folder),
            options.audit or DEFAULT_AUDIT,
            options.store,
            options.timeout_s,
            options.capture_content,
            options.redact,
            options.broker,
        ),
        partial(_refuse, run),
        plugins=options.plugins,
    )
    return run


def _point_clients_at(endpoint: str, scope: RolloutScope) -> None:
    """Sends the OpenAI-style clients of this process to ``endpoint``, with headers that name the rollout."""
    base = endpoint.rstrip("/").removesuffix("/v1")
    os.environ["LGOV_ENDPOINT"] = base
    os.environ["OPENAI_BASE_URL"] = f"{base}/v1"
    os.environ.setdefault("OPENAI_API_KEY", "lgov")  # clients insist on one; the endpoint may be open
    headers = [f"x-lgov-rollout-id: {scope.rollout_id}", f"x-lgov-attempt: {scope.attempt}"]
    given = os.environ.get("OPENAI_CUSTOM_HEADERS", "").strip()
    os.environ["OPENAI_CUSTOM_HEADERS"] = "\n".join(([given] if given else []) + headers)


def _watch_children(children: Counter[str]) -> None:
    """Notes every program that this process starts. An audit hook stays for the life of the process."""

    def notice(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHILD_EVENTS and not _asks_platform() and not _is_repeated(event):
            name = _program_name(event, arguments)
            children[name] += 1
            if event == "os.exec":  # The process becomes another one: there will be no closing report.
                say(f"the program replaces itself by {name}, which this report does not cover")

    sys.addaudithook(notice)


def _asks_platform() -> bool:
    """Whether it is Python's own ``platform`` that starts a program: it asks ``uname`` which machine this is."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == platform.__file__:
            return True
        frame = frame.f_back
    return False


def _is_repeated(event: str) -> bool:
    """Whether ``subprocess`` starts by posix_spawn (from Python 3.13 on) what it has announced already."""
    return event == "os.posix_spawn" and sys._getframe(2).f_code.co_filename == subprocess.__file__


def _program_name(event: str, arguments: tuple[Any, ...]) -> str:
    named = next((one for one in arguments if isinstance(one, (str, bytes, os.PathLike)) and one), None)
    if named is None:
        return event
    text = os.fsdecode(named)
    return text.split()[0] if event == "os.system" and text.split() else os.path.basename(text)


def _begin_attempt(run: _Run, command: Sequence[str]) -> None:
    if run.process.store is None:
        return
    scope = run.scope
    rollout = Rollout(scope.rollout_id, scope.task_id or scope.rollout_id, new_id("run"), {"command": list(command)})
    run.process.store.add_rollouts([rollout])
    run.process.store.start_attempt(scope.rollout_id, scope.attempt)
    run.attempt_open = True


def _end_attempt(run: _Run, status: int) -> None:
    """Closes the attempt. A crash or an interrupt is an infrastructure outcome."""
    if run.process.store is None or not run.attempt_open:
        return
    run.attempt_open = False
    outcomes = {0: Outcome.SUCCEEDED, 1: Outcome.INFRASTRUCTURE, 130: Outcome.INFRASTRUCTURE}
    outcome = Outcome.BLOCKED if status == CANNOT_GOVERN else outcomes.get(status, Outcome.FAILED)
    error = f"exit status {status}" if status else None
    try:
        run.process.store.finish_attempt(run.scope.rollout_id, run.scope.attempt, outcome, error=error)
    except LgovError as problem:
        say(f"the end of the attempt could not be stored: {problem}")


# ---------------------------------------------------------------------- the end


def _finish(run: _Run) -> None:
    """Runs at interpreter exit, after the program's own threads have ended, and writes the report."""
    if os.getpid() != run.pid:
        return  # a forked child ends; the record and the report are its parent's
    from lgov_core.process.report import make_report

    process = run.process
    began, judged, problems = read_reports(run.child_reports)
    children = run.children + _multiprocessing_children(began[BY_MULTIPROCESSING])
    report = make_report(
        run.guard.adapters,
        run.guard.instrumented,
        process.tally.judged + judged,
        folder=run.folder,
        children=children,
        governed_children=began.total(),
        ungoverned_children=max(children.total() - (began.total() - began[BY_CHILD]), 0),
        failures=process.governor.failures,
        audit=process.options.audit,
        rollout_id=run.scope.rollout_id,
        store=run.options.store,
        problems=[*problems, *process.close()],
        main=run.script,
    )
    if run.options.as_json:
        write_error(json.dumps({"report": report.as_json()}))
        return
    for line in report.lines():
        say(line)


def _multiprocessing_children(governed: int) -> Counter[str]:
    """Children that ``multiprocessing`` spawned without an audit event, by their reports. Forked ones stay governed."""
    spawned = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_spawn_win32", "multiprocessing.forkserver")
    return Counter({BY_MULTIPROCESSING: governed or 1} if any(name in sys.modules for name in spawned) else {})


def _refuse(run: _Run, reason: str) -> NoReturn:
    end_process(
        lambda: _print_error("stopped", InstrumentationError(reason), run.options),
        lambda: _end_attempt(run, CANNOT_GOVERN),
    )


def refuse_run(error: LgovError, options: RunOptions) -> int:
    """Says why the program is not run; returns 78."""
    _print_error("not run", error, options)
    return CANNOT_GOVERN


def _print_error(what: str, error: LgovError, options: RunOptions) -> None:
    if options.as_json:
        write_error(json.dumps({"error": {**error.as_json(), "message": f"{what}: {error.message}"}}))
    else:
        say(f"{what}: {error}")
