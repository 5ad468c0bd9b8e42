"""Runs an unedited Python program under policy: what ``lgov run`` does.

Before the program's first line the policy is loaded, the record opened and the import hook installed. If any of that
fails, or the program later imports a framework that cannot be governed, the process ends with status 78 and a message.
Governance covers this process, its threads, and the Python processes that it starts (`lgov_core.process.children`); the
closing report names the other programs that were started. The status is 78 for Python that was started ungoverned, unless
that is allowed.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

from lgov_core.errors import InstrumentationError, LgovError, PolicyDenied
from lgov_core.process.child_reports import make_reports, read_reports, watch_children
from lgov_core.process.children import VARIABLE, hand_on
from lgov_core.process.governed import (
    CANNOT_GOVERN,
    DEFAULT_AUDIT,
    GovernedProcess,
    ProcessOptions,
    as_counts,
    end_process,
    govern_process,
    policy_in,
    say,
    write_error,
)
from lgov_core.process.import_guard import FrameworkGuard
from lgov_core.process.invocation import Invocation, execute, parse_command
from lgov_core.scope import RolloutScope, carry_into_threads
from lgov_core.settings import without_password
from lgov_core.types import BLOCKING, Outcome, Rollout, new_id

#: Descriptors kept for the closing report, which needs some when the program has used up its own.
_SPARE = 4
_SPAWNERS = tuple(f"multiprocessing.popen_{way}" for way in ("spawn_posix", "spawn_win32", "forkserver"))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a program under policy.

    ``policy`` is a policy file; None takes ``policy.yaml`` beside the program. ``audit`` is the file of the record;
    None means ``.lgov/audit.db`` in the working directory; ``audit_key`` (the user's key if None) signs it, and ``heads`` is
    the file for signed heads (beside the record if None). ``air`` is a file of reward rules; None takes the built-in ones.
    ``redact`` names arguments whose values the record does not
    keep. ``store`` keeps spans and rewards; None keeps none.
    ``endpoint`` is the base URL of the training endpoint, to which OpenAI-style clients of the program are then
    pointed. ``rollout_id`` names the rollout that the process is; None makes a fresh one. ``task_id`` names its task;
    None means the program's name. ``allow_ungoverned_children``: the status stays 0 when the program started Python that
    was not governed; ``children`` "allow" governs none, and allows them too.
    """

    policy: Path | None = None
    audit: Path | None = None
    audit_key: Path | None = None
    heads: Path | None = None
    redact: tuple[str, ...] = ()
    air: Path | None = None
    store: str | None = None
    endpoint: str | None = None
    rollout_id: str | None = None
    task_id: str | None = None
    timeout_s: float = 2.0
    plugins: tuple[object, ...] = ()
    children: Literal["govern", "allow"] = "govern"
    allow_ungoverned_children: bool = False
    capture_content: bool = True
    as_json: bool = False
    broker: str | None = None

    @property
    def ungoverned_children_are_accepted(self) -> bool:
        """Whether the run may end well although it started some: as the user says, or since a box contains them."""
        return self.allow_ungoverned_children or self.children == "allow" or self.broker is not None


@dataclass(slots=True)
class _Run:
    """The state of a running program, for its closing report."""

    scope: RolloutScope
    options: RunOptions
    folder: Path
    process: GovernedProcess = field(init=False)
    guard: FrameworkGuard = field(init=False)
    child_reports: Path = field(init=False)
    spare: list[int] = field(default_factory=list[int])
    attempt_open: bool = False
    status: int = CANNOT_GOVERN
    pid: int = field(default_factory=os.getpid)
    script: Path | None = None  # absolute: the program may go to another folder


def run_program(command: Sequence[str], options: RunOptions) -> int:
    """Runs ``command`` (``python SCRIPT …`` or ``python -m MODULE …``) governed, in this process; returns its status.

    Returns 78 and says why on standard error if the program could not be governed; then no line of it has run. A
    framework that turns out ungovernable when the program imports it ends the process with 78 on the spot. A report
    is written to standard error when the process ends, with 78 instead of 0 if it had started Python processes that were
    not governed and are not allowed. Changes ``sys.argv``, ``sys.path``, the environment and the import system, so it is for
    a process that does nothing else. Fails closed.
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
    run.process.tally.reports = run.child_reports
    watch_children(run.child_reports, partial(_refuse_to_be_replaced, run))
    atexit.register(_finish, run)
    try:
        if options.endpoint is not None:
            _point_clients_at(options.endpoint, scope)
        carry_into_threads()
        if options.children == "govern":
            hand_on(run.process.options, scope, run.child_reports)
        _begin_attempt(run, command)
        run.guard.install()
        with run.process.governor.rollout(scope):
            run.status = execute(invocation)
    except PolicyDenied as denied:
        reason = f"the policy does not let this program start: {denied.decision.reason}"
        run.status = refuse_run(InstrumentationError(reason), options)
    except LgovError as error:
        run.status = refuse_run(error, options)
    return run.status


def _prepare(invocation: Invocation, scope: RolloutScope, options: RunOptions) -> _Run:
    run = _Run(scope, options, invocation.folder)
    run.script = None if invocation.is_module else Path(invocation.target).resolve()
    run.process, run.guard = govern_process(
        ProcessOptions(
            options.policy or policy_in(invocation.folder, invocation.target),
            options.audit or DEFAULT_AUDIT,
            options.store,
            options.timeout_s,
            options.capture_content,
            options.redact,
            options.broker,
            options.audit_key,
            options.heads,
            options.air,
        ),
        partial(_refuse, run),
        plugins=options.plugins,
    )
    run.child_reports = make_reports()
    run.spare = [os.open(run.child_reports, os.O_RDONLY) for _ in range(_SPARE)]
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
    """Runs at interpreter exit, after the program's own threads have ended. Without a report the status is not 0."""
    if os.getpid() != run.pid:
        return  # a forked child ends; the record and the report are its parent's
    for handle in run.spare:
        with suppress(OSError):  # the program may have closed it, and opened something else in its place
            if os.path.samestat(os.fstat(handle), os.stat(run.child_reports)):
                os.close(handle)
    try:
        refused = _close(run)
    except Exception as error:  # noqa: BLE001 - whatever the program did to its process
        say(f"the closing report cannot be made: {type(error).__name__}: {error}")
        refused = run.status == 0
        run.status = run.status or CANNOT_GOVERN
    if refused and run.status == CANNOT_GOVERN:
        end_process()  # the interpreter is ending already, with the program's status


def _close(run: _Run) -> bool:
    """Closes everything and writes the report; returns whether the status is not 0 for the children."""
    from lgov_core.process.report import RunReport, cannot_block, near_gaps

    process, options = run.process, run.options
    children = read_reports(run.child_reports)
    # multiprocessing announces no start, but loads one of these for it: then at least one process was not governed.
    unseen = int(not children.multiprocessing and any(name in sys.modules for name in _SPAWNERS))
    started = children.started + Counter({"multiprocessing": children.multiprocessing + unseen})
    ungoverned = children.ungoverned + unseen
    refused = bool(ungoverned) and not options.ungoverned_children_are_accepted
    if refused and run.status == 0:
        run.status = CANNOT_GOVERN
    process.trace_connections(run.scope)
    _end_attempt(run, run.status)
    judged = process.tally.judged + children.judged
    denied = sum(count for (_, _, effect), count in judged.items() if effect in BLOCKING)
    would = sum(count for (_, _, effect), count in judged.items() if effect.removeprefix("would-") in BLOCKING)
    adapters = [adapter for adapter in run.guard.adapters if adapter.name in run.guard.instrumented]
    process.tally.blocked.merge(children.blocked)
    report = RunReport(
        frameworks=list(run.guard.instrumented),
        judged=as_counts(judged),
        allowed=judged.total() - denied,
        denied=denied,
        would_deny=would - denied,
        uncovered={one.name: points for one in adapters if (points := cannot_block(one))},
        near_gaps=near_gaps(run.folder, adapters, run.script),
        children=dict(started),
        governed_children=children.governed,
        ungoverned_children=ungoverned,
        other_children=children.others.total(),
        children_refused=refused,
        failures=dict(process.governor.failures),
        audit=str(process.options.audit),
        rollout_id=run.scope.rollout_id,
        store=None if options.store is None else without_password(options.store),
        blocked=list(process.tally.blocked),
        problems=[*children.problems, *process.close()],
    )
    if options.as_json:
        write_error(json.dumps({"report": report.as_json()}))
    else:
        for line in report.lines():
            say(line)
    return refused


def _refuse_to_be_replaced(run: _Run, name: str) -> None:
    """Ends a program that replaces itself by another: there would be no closing report, and no status of lgov's."""
    if run.options.ungoverned_children_are_accepted:
        say(f"the program replaces itself by {name}, which this report does not cover")
    else:
        _refuse(run, f"the program replaces itself by {name}; start it as a child, or give --allow-ungoverned-children")


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
