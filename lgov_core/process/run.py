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
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, NoReturn

from lgov_core.errors import InstrumentationError, LgovError, PolicyDenied, counted
from lgov_core.governance import Governance
from lgov_core.places import MissedModules
from lgov_core.policies.confinement import read_confinement
from lgov_core.policies.policy_set import in_shadow_mode, trusted_programs
from lgov_core.process.children import (
    VARIABLE,
    hand_on,
    make_reports,
    read_reports,
    watch_children,
    watch_requests,
)
from lgov_core.process.governed import (
    CANNOT_GOVERN,
    GovernedProcess,
    as_counts,
    end_process,
    policy_in,
    say,
    why_not_started,
    write_error,
)
from lgov_core.process.invocation import Invocation, execute, parse_command, without_arguments
from lgov_core.scope import RolloutScope, carry_into_threads
from lgov_core.settings import without_password
from lgov_core.trust import RunWatch
from lgov_core.types import BLOCKING, Outcome, Rollout, new_id

#: Descriptors kept for the closing report, which needs some when the program has used up its own.
_SPARE = 4
#: How long a signal that ends the program holds up what it interrupted, in seconds, while the report is made.
_PAUSE_S = 2.0
#: Signals that end a program which has no handler of its own: as a service, and with its terminal.
ENDING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_NO_BOX = "confine: of the policy file did not hold: this run had no box (--confine)"
_SPAWNERS = tuple(f"multiprocessing.popen_{way}" for way in ("spawn_posix", "spawn_win32", "forkserver"))


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a program under policy.

    Where ``governance`` names no policy file it is ``policy.yaml`` beside the program. ``endpoint`` is the base URL of the
    training endpoint, to which OpenAI-style clients of the program are then pointed. ``rollout_id`` names the rollout that
    the process is; None makes a fresh one. ``task_id`` names its task; None means the program's name. ``plugins`` take part
    beside the installed ones. ``allow_ungoverned_children``: the status stays 0 when the program started Python that was not
    governed; ``children`` "allow" governs none, and allows them too. ``deny_unevaluated``: requests to model servers that no
    rule sees are not sent. With ``as_json`` errors and the report are JSON.
    """

    governance: Governance = field(default_factory=Governance)
    endpoint: str | None = None
    rollout_id: str | None = None
    task_id: str | None = None
    plugins: tuple[object, ...] = ()
    children: Literal["govern", "allow"] = "govern"
    allow_ungoverned_children: bool = False
    deny_unevaluated: bool = False
    as_json: bool = False

    @property
    def ungoverned_children_are_accepted(self) -> bool:
        """True if the run may end well although it started some: as the user says, or since a box contains them."""
        return self.allow_ungoverned_children or self.children == "allow" or self.governance.broker is not None


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
    sys.meta_path.append(MissedModules)
    try:
        run = GovernedRun(parse_command(command), options)
    except LgovError as error:
        return refuse_run(error, options)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever is broken here, the program must not run without it
        return refuse_run(InstrumentationError(f"{type(error).__name__}: {error}"), options)
    return run.execute(command)


class GovernedRun:
    """One program under policy: its open governance, its attempt in the store, and its closing report.

    Raises `LgovError` where something cannot be opened; then no line of the program has run.
    """

    def __init__(self, invocation: Invocation, options: RunOptions) -> None:
        governance = options.governance
        boxed = governance.broker is not None  # then the process outside watches what governs
        if not boxed:
            governance.refuse_untrusted()
        if governance.policy is None:
            governance = governance.under(policy_in(invocation.folder, invocation.target))
        governance = replace(governance, programs=invocation.files)
        assert governance.policy is not None
        #: What the policy file demands, and this run cannot hold.
        self.unheld = [] if boxed or read_confinement(governance.policy).value is None else [_NO_BOX]
        self.invocation = invocation
        self.options = replace(options, governance=governance)
        self.scope = RolloutScope(
            options.rollout_id or new_id("rol"),
            task_id=options.task_id or Path(invocation.target).name,
            of_process=True,
        )
        # Absolute: the program may go to another folder.
        self.folder = invocation.folder
        self.script = None if invocation.is_module else Path(invocation.target).resolve()
        self.pid = os.getpid()
        self.status = CANNOT_GOVERN
        self.is_closing = threading.Lock()
        self.attempt_open = False
        self.watch = None if boxed else governance.begin_run(self.scope.rollout_id, governance.places())
        try:
            self.process = GovernedProcess(governance, self.refuse, plugins=options.plugins)
            if not boxed:
                governance.refuse_untrusted()  # also what changed since the watch began, before it was read
        except BaseException:
            self.end_watch()
            raise
        self.reports = self.process.tally.reports = make_reports()
        self.requests = watch_requests(self.reports, refuses=options.deny_unevaluated)
        self.spare = [os.open(self.reports, os.O_RDONLY) for _ in range(_SPARE)]

    def execute(self, command: Sequence[str]) -> int:
        """Runs the program and returns its status. The report follows when the interpreter ends."""
        watch_children(self.reports, self._refuse_to_be_replaced)
        atexit.register(self._finish)
        for number in ENDING if threading.current_thread() is threading.main_thread() else ():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._end_by_signal)
        options, governor = self.options, self.process.governor
        try:
            if options.endpoint is not None:
                point_clients_at(options.endpoint, _named(self.scope))
            carry_into_threads()
            if options.children == "govern":
                hand_on(options.governance, self.scope, self.reports, deny_unevaluated=options.deny_unevaluated)
            self._begin_attempt(command)
            self.process.guard.install()
            with governor.rollout(self.scope):
                self.status = execute(self.invocation)
        except PolicyDenied as denied:
            self.status = refuse_run(InstrumentationError(why_not_started("program", denied)), options)
        except LgovError as error:
            self.status = refuse_run(error, options)
        return self.status

    def refuse(self, reason: str) -> NoReturn:
        """Ends the process with 78 at once: the program must not go on."""
        end_process(
            lambda: _print_error("stopped", InstrumentationError(reason), self.options),
            lambda: self._end_attempt(CANNOT_GOVERN),
            lambda: [say(problem) for problem in self.end_watch()],
        )

    def end_watch(self) -> list[str]:
        """Ends the watch over what governs; returns what changed, in words."""
        watch, self.watch = self.watch, None
        return [] if watch is None else changed_lines(watch, self.options.governance)

    def _refuse_to_be_replaced(self, name: str) -> None:
        """Ends a program that replaces itself by another: there would be no closing report, and no status of lgov's."""
        if self.options.ungoverned_children_are_accepted:
            say(f"the program replaces itself by {name}, which this report does not cover")
        else:
            self.refuse(f"the program replaces itself by {name}; start it as a child, or give --children best-effort")

    # ------------------------------------------------------------------ the attempt in the store

    def _begin_attempt(self, command: Sequence[str]) -> None:
        store, scope = self.process.opened.store, self.scope
        if store is None:
            return
        run_id = new_id("run")
        named = list(command) if self.options.governance.content else without_arguments(command)
        store.add_rollouts([Rollout(scope.rollout_id, scope.task_id or scope.rollout_id, run_id, {"command": named})])
        store.start_attempt(scope.rollout_id, scope.attempt)
        self.attempt_open = True

    def _end_attempt(self, status: int) -> None:
        """Closes the attempt. A crash or a signal is an infrastructure outcome."""
        store = self.process.opened.store
        if store is None or not self.attempt_open:
            return
        self.attempt_open = False
        outcomes = {0: Outcome.SUCCEEDED, **dict.fromkeys((1, 129, 130, 143), Outcome.INFRASTRUCTURE)}
        outcome = Outcome.BLOCKED if status == CANNOT_GOVERN else outcomes.get(status, Outcome.FAILED)
        error = f"exit status {status}" if status else None
        try:
            store.finish_attempt(self.scope.rollout_id, self.scope.attempt, outcome, error=error)
        except LgovError as problem:
            say(f"the end of the attempt could not be stored: {problem}")

    def _store_connections(self) -> None:
        """Puts the connections that a box asked for into the store."""
        opened, content = self.process.opened, self.options.governance.content
        if opened.store is not None:
            for span in opened.connections(self.scope.rollout_id, self.scope.attempt, content=content):
                self.process.governor.observe(span)

    # ------------------------------------------------------------------ the end

    def _end_by_signal(self, number: int, _frame: object) -> None:
        """Makes the report before a signal ends the process, as that would have without a handler.

        In a thread: what the signal interrupts may hold a lock that closing needs. A second signal ends the process at once.
        """
        signal.signal(number, signal.SIG_DFL)

        def end() -> None:
            self._finish(128 + number)
            os.kill(self.pid, number)

        if os.getpid() == self.pid:
            thread = threading.Thread(target=end, name="lgov-closing", daemon=True)
            with suppress(RuntimeError):  # the interpreter is ending, and the report is made
                thread.start()
                thread.join(_PAUSE_S)
                return
        os.kill(os.getpid(), number)

    def _finish(self, status: int | None = None) -> None:
        """Runs at interpreter exit, after the program's own threads have ended. Without a report the status is not 0."""
        if os.getpid() != self.pid:
            return  # a forked child ends; the record and the report are its parent's
        self.is_closing.acquire()  # for good: the report is made once
        self.status = self.status if status is None else status
        for handle in self.spare:
            with suppress(OSError):  # the program may have closed it, and opened something else in its place
                if os.path.samestat(os.fstat(handle), os.stat(self.reports)):
                    os.close(handle)
        try:
            refused = self._close()
        except Exception as error:  # noqa: BLE001 - whatever the program did to its process
            say(f"the closing report cannot be made: {type(error).__name__}: {error}")
            refused = self.status == 0
            self.status = self.status or CANNOT_GOVERN
        if refused and self.status == CANNOT_GOVERN:
            end_process()  # the interpreter is ending already, with the program's status

    def _record_ungoverned(self, **counts: Mapping[str, int]) -> None:
        """Puts on record what was started or sent and not governed, by name."""
        audit = self.process.opened.audit
        if any(counts.values()) and audit is not None:
            kinds = {kind: {name: int(times) for name, times in count.items()} for kind, count in counts.items()}
            about = {"rollout_id": self.scope.rollout_id, **kinds}
            audit.append("ungoverned", about, arguments=None, content={})

    def _record_is_lost(self) -> list[str]:
        """Closes the record; says why it does not hold what was decided and done, or cannot prove it: its end is not signed."""
        from lgov_core.audit import AuditLog

        audit, failures = self.process.opened.audit, self.process.governor.failures
        missing = failures["commit_outcome:audit"]
        lost = [f"{counted(missing, 'call')} that ran without an outcome on record"] if missing else []
        if not isinstance(audit, AuditLog):
            return lost
        try:
            if failures["audit"]:
                audit.ping()
            audit.close()
        except LgovError as error:
            lost.append(str(error))
        return lost

    def _close(self) -> bool:
        """Closes everything and writes the report; returns True if the status is not 0 for the children or the record."""
        from lgov_core.process.report import ClosingReport, cannot_block, near_gaps

        process, options, guard = self.process, self.options, self.process.guard
        children = read_reports(self.reports)
        # multiprocessing announces no start, but loads one of these for it: then at least one process was not governed.
        unseen = Counter(multiprocessing=not children.multiprocessing and any(map(sys.modules.__contains__, _SPAWNERS)))
        started = children.started + Counter(multiprocessing=children.multiprocessing) + unseen
        ungoverned = children.ungoverned + unseen
        unevaluated = self.requests.unevaluated + children.unevaluated
        self._record_ungoverned(programs=ungoverned, others=children.others, requests=unevaluated)
        refused = bool(ungoverned) and not options.ungoverned_children_are_accepted
        lost = self._record_is_lost()
        if (lost or refused) and self.status == 0:
            self.status = CANNOT_GOVERN
        self._store_connections()
        self._end_attempt(self.status)
        judged = process.tally.judged + children.judged
        denied = sum(count for (_, _, effect), count in judged.items() if effect in BLOCKING)
        would = sum(count for (_, _, effect), count in judged.items() if effect.removeprefix("would-") in BLOCKING)
        adapters = [adapter for adapter in guard.adapters if adapter.name in guard.instrumented]
        process.tally.blocked.merge(children.blocked)
        sessions = process.tally.sessions | children.sessions
        left_out, unknown = ({}, []) if options.endpoint is None else _left_out(options.endpoint, self.scope)
        noted = [*self.unheld, *unknown, *children.problems]
        report = ClosingReport(
            frameworks=list(guard.instrumented),
            judged=as_counts(judged),
            allowed=judged.total() - denied,
            denied=denied,
            shadow=in_shadow_mode(process.governor.policies),
            would_deny=would - denied,
            uncovered={adapter.name: points for adapter in adapters if (points := cannot_block(adapter))},
            near_gaps=near_gaps(self.folder, adapters, self.script),
            children=dict(started),
            governed_children=children.governed,
            running_children=children.running,
            ungoverned_children=dict(ungoverned),
            other_children=dict(children.others),
            children_refused=refused,
            failures=dict(process.governor.failures),
            audit=str(options.governance.audit),
            record_lost=bool(lost),
            rollout_id=self.scope.rollout_id,
            conversations=sum(rollout == self.scope.rollout_id for rollout, _ in sessions),
            store=(store := options.governance.store) and without_password(store),
            runs_code=trusted_programs(process.governor.policies),
            blocked=list(process.tally.blocked),
            unevaluated=dict(unevaluated),
            unevaluated_refused=options.deny_unevaluated,
            left_out=left_out,
            problems=[*noted, *dict.fromkeys(lost + process.close()), *self.end_watch()],
        )
        if options.as_json:
            write_error(json.dumps({"report": report.as_json()}))
        else:
            for line in report.lines():
                say(line)
        return refused or bool(lost)


def changed_lines(watch: RunWatch, governance: Governance) -> list[str]:
    """Ends ``watch``; returns a line for each place that governs, or is the program's own file, and changed, and what it means.

    The changes are on record then.
    """
    rewritten = watch.program_changes()
    try:
        changes = watch.end()
    except OSError as error:
        return [f"what governs cannot be compared with the start: {error}"]
    governance.note_changes([*changes, *rewritten], "found", "found at the end of a run")
    further = ["the next start is refused until lgov policy trust, or until the change is undone"] if changes else []
    return [*map(str, changes), *further, *map(str, rewritten)]


def point_clients_at(endpoint: str, headers: Mapping[str, str]) -> None:
    """Sends the OpenAI-style and Anthropic-style clients of this process to ``endpoint``, with these headers."""
    base = endpoint.rstrip("/").removesuffix("/v1")
    os.environ["LGOV_ENDPOINT"] = base
    for maker, url in (("OPENAI", f"{base}/v1"), ("ANTHROPIC", base)):
        os.environ[f"{maker}_BASE_URL"] = url
        os.environ.setdefault(f"{maker}_API_KEY", "lgov")  # clients insist on one; the endpoint may be open
        before = os.environ.get(f"{maker}_CUSTOM_HEADERS", "").strip()
        lines = ([before] if before else []) + [f"{name}: {value}" for name, value in headers.items()]
        os.environ[f"{maker}_CUSTOM_HEADERS"] = "\n".join(lines)


def _named(scope: RolloutScope) -> dict[str, str]:
    return {"x-lgov-rollout-id": scope.rollout_id, "x-lgov-attempt": str(scope.attempt)}


def _left_out(endpoint: str, scope: RolloutScope) -> tuple[dict[str, int], list[str]]:
    """Asks the endpoint what the rollout's model was not offered, with the number of calls; or why that is not known."""
    from urllib.request import Request, urlopen

    base, key = endpoint.rstrip("/").removesuffix("/v1"), os.environ.get("OPENAI_API_KEY", "lgov")
    try:
        request = Request(f"{base}/v1/left_out", headers={**_named(scope), "authorization": f"Bearer {key}"})
        with urlopen(request, timeout=_PAUSE_S) as reply:
            return json.loads(reply.read()), []
    except Exception as error:  # noqa: BLE001 - whatever the program did to its process, there is a report
        return {}, [f"the endpoint does not say what it left out of calls: {error}"]


def refuse_run(error: LgovError, options: RunOptions) -> int:
    """Says why the program is not run; returns 78."""
    _print_error("not run", error, options)
    return CANNOT_GOVERN


def _print_error(what: str, error: LgovError, options: RunOptions) -> None:
    if options.as_json:
        write_error(json.dumps({"error": {**error.as_json(), "message": f"{what}: {error.message}"}}))
    else:
        say(f"{what}: {error}")
