"""Runs an unedited Python program under policy: what ``lgov run`` does.

Everything is decided before the program's first line: the policy is loaded, the record opened, the frameworks
watched. If any of that fails, or the program later imports a framework that cannot be governed, the process ends with
status 78 and a sentence that says why. Governance covers this process and its threads; a child process is not
covered, and the closing report says so when one was started.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lgov_core.errors import ArmError, LgovError, PolicyDenied
from lgov_core.import_guard import FrameworkGuard
from lgov_core.invocation import Invocation, execute, parse_command
from lgov_core.scope import RolloutScope, carry_into_threads
from lgov_core.types import Outcome, Rollout, new_id

if TYPE_CHECKING:
    from lgov_core.adapter import Adapter
    from lgov_core.audit import AuditLog
    from lgov_core.governor import Governor
    from lgov_core.store.protocol import TraceStore

#: The status of a process that could not be governed (EX_CONFIG of sysexits.h).
CANNOT_GOVERN = 78

DEFAULT_AUDIT = Path(".lgov") / "audit.db"

_CHILD_EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.spawn", "os.system"})


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a program under policy.

    ``policy`` is a policy file; None takes ``policy.yaml`` beside the program. ``audit`` is the file of the record;
    None means ``.lgov/audit.db`` in the working directory. ``store`` keeps spans and rewards; None keeps none.
    ``endpoint`` is the base URL of the training endpoint, to which OpenAI-style clients of the program are then
    pointed. ``rollout_id`` names the rollout that the process is; None makes a fresh one. ``task_id`` names its task;
    None means the program's name.
    """

    policy: Path | None = None
    audit: Path | None = None
    store: str | None = None
    endpoint: str | None = None
    rollout_id: str | None = None
    task_id: str | None = None
    timeout_s: float = 2.0
    plugins: tuple[object, ...] = ()


@dataclass(slots=True)
class _Run:
    """What is open while the program runs, and what the closing report needs."""

    scope: RolloutScope
    audit: AuditLog
    audit_path: Path
    store: TraceStore | None
    governor: Governor
    guard: FrameworkGuard = field(init=False)
    attempt_open: bool = False
    children: Counter[str] = field(default_factory=Counter)
    pid: int = field(default_factory=os.getpid)


def run_program(command: Sequence[str], options: RunOptions) -> int:
    """Runs ``command`` (``python SCRIPT …`` or ``python -m MODULE …``) governed, in this process; returns its status.

    Returns 78 and says why on standard error if the program could not be governed; then no line of it has run. A
    framework that turns out ungovernable when the program imports it ends the process with 78 on the spot. A report
    is written to standard error when the process ends. Changes ``sys.argv``, ``sys.path``, the environment and the
    import system, so it is for a process that does nothing else. Fails closed.
    """
    try:
        invocation = parse_command(command)
        scope = RolloutScope(
            options.rollout_id or new_id("rol"), 1, task_id=options.task_id or Path(invocation.target).name
        )
        run = _prepare(invocation, scope, options)
    except LgovError as error:
        return _cannot(str(error))
    except Exception as error:  # noqa: BLE001 - whatever is broken here, the program must not run without it
        return _cannot(f"{type(error).__name__}: {error}")
    _watch_children(run.children)
    atexit.register(_finish, run)
    try:
        if options.endpoint is not None:
            _point_clients_at(options.endpoint, scope)
        carry_into_threads()
        _begin_attempt(run, command)
        run.guard.install()
        with run.governor.rollout(scope):
            status = execute(invocation)
    except PolicyDenied as denied:
        status = _cannot(f"the policy does not let this program start: {denied.decision.reason}")
    except LgovError as error:
        status = _cannot(str(error))
    _end_attempt(run, status)
    return status


def _prepare(invocation: Invocation, scope: RolloutScope, options: RunOptions) -> _Run:
    from lgov_core.audit import AuditLog, default_signer
    from lgov_core.governor import Governor
    from lgov_core.plugins import make_plugin_manager
    from lgov_core.policies import load_policy_file
    from lgov_core.reward.air import AirPlugin

    policies = load_policy_file(options.policy or _policy_beside(invocation))
    manager = make_plugin_manager()
    audit_path = options.audit or DEFAULT_AUDIT
    _make_folder(audit_path.parent)
    audit = AuditLog(audit_path, policy_digest=policies.digest or "", signer=default_signer())
    plugins: list[object] = [AirPlugin(), *options.plugins]
    store = None
    if options.store is not None:
        from lgov_core.store import open_store
        from lgov_core.trace.sink import StoreSink

        store = open_store(options.store)
        plugins.append(StoreSink(store))
    governor = Governor(policies, plugins=plugins, audit=audit, timeout_s=options.timeout_s, manager=manager)
    adapters: list[Adapter] = manager.hook.lgov_framework()
    run = _Run(scope, audit, audit_path, store, governor)
    run.guard = FrameworkGuard(adapters, governor, partial(_refuse, run))
    return run


def _policy_beside(invocation: Invocation) -> Path:
    for name in ("policy.yaml", "policy.yml"):
        if (path := invocation.folder / name).is_file():
            return path
    raise ArmError(
        f"no policy was given and there is no policy.yaml in {invocation.folder}",
        hint="name one with --policy; a program without a policy is not run",
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArmError(f"the folder {folder} for the audit record cannot be made: {error}") from error


# ---------------------------------------------------------------------- surroundings of the program


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
        if event in _CHILD_EVENTS:
            name = _program_name(event, arguments)
            children[name] += 1
            if event == "os.exec":  # The process becomes another one: there will be no closing report.
                _say(f"the program replaces itself by {name}; from here on nothing is governed")

    sys.addaudithook(notice)


def _program_name(event: str, arguments: tuple[Any, ...]) -> str:
    named = next((one for one in arguments if isinstance(one, (str, bytes, os.PathLike)) and one), None)
    if named is None:
        return event
    text = os.fsdecode(named)
    return text.split()[0] if event == "os.system" and text.split() else os.path.basename(text)


def _begin_attempt(run: _Run, command: Sequence[str]) -> None:
    if run.store is None:
        return
    scope = run.scope
    rollout = Rollout(scope.rollout_id, scope.task_id or scope.rollout_id, new_id("run"), {"command": list(command)})
    run.store.add_rollouts([rollout])
    run.store.start_attempt(scope.rollout_id, scope.attempt)
    run.attempt_open = True


def _end_attempt(run: _Run, status: int) -> None:
    """Closes the attempt. A crash or an interrupt says nothing about how well the agent did its task."""
    if run.store is None or not run.attempt_open:
        return
    run.attempt_open = False
    outcomes = {0: Outcome.SUCCEEDED, 1: Outcome.INFRASTRUCTURE, 130: Outcome.INFRASTRUCTURE}
    outcome = Outcome.BLOCKED if status == CANNOT_GOVERN else outcomes.get(status, Outcome.FAILED)
    error = f"exit status {status}" if status else None
    try:
        run.store.finish_attempt(run.scope.rollout_id, run.scope.attempt, outcome, error=error)
    except LgovError as problem:
        _say(f"the end of the attempt could not be stored: {problem}")


# ---------------------------------------------------------------------- the end


def _finish(run: _Run) -> None:
    """Runs at interpreter exit, after the program's own threads have ended, and writes the report."""
    if os.getpid() != run.pid:
        return  # a forked child ends; the record and the report are its parent's
    effects = run.governor.effects
    denied = effects["deny"] + effects["escalate"]
    frameworks = ", ".join(run.guard.armed) or "none"
    _say(f"governed: {frameworks}; decisions: {sum(effects.values()) - denied} allowed, {denied} denied")
    if not run.guard.armed:
        _say("the program imported no framework that lgov governs: no tool call of it was judged")
    for what, count in sorted(run.governor.failures.items()):
        _say(f"{count} failures in {what}")
    children = run.children + _multiprocessing_children()
    if children:
        names = ", ".join(name for name, _ in children.most_common(5))
        _say(f"the program started other processes ({names}); those were not governed")
    _say(f"audit record: {run.audit_path}")
    run.governor.close()
    closers: list[Callable[[], None]] = [run.audit.close]
    if run.store is not None:
        closers.append(run.store.close)
    for close in closers:
        try:
            close()
        except LgovError as error:
            _say(str(error))


def _multiprocessing_children() -> Counter[str]:
    """Children that ``multiprocessing`` spawned: it starts them without an audit event. Forked ones stay governed."""
    spawned = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_spawn_win32", "multiprocessing.forkserver")
    return Counter(["multiprocessing"] if any(name in sys.modules for name in spawned) else [])


def _refuse(run: _Run, reason: str) -> NoReturn:
    """Ends the process at once. Not an exception: the program could catch one and go on ungoverned."""
    _say(f"stopped: {reason}")
    _end_attempt(run, CANNOT_GOVERN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # nothing is left to say it with
    os._exit(CANNOT_GOVERN)


def _cannot(reason: str) -> int:
    _say(f"not run: {reason}")
    return CANNOT_GOVERN


def _say(text: str) -> None:
    sys.stderr.write(f"lgov: {text}\n")
