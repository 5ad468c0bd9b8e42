"""Runs a program as `lgov_core.process.run` does, in a box that the kernel holds: what ``lgov run --confine`` does.

The box is made before anything of the program's is loaded. Outside of it stay the audit record, the approvals and the
proxy that is the one way out; they end with this process, and the box with them. ``python -P -m lgov_core.process.confined``
runs another command in a box, which `command_in_box` writes: tests and workers.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lgov_core.errors import InstrumentationError, LgovError, counted
from lgov_core.governance import Governance, make_folder, record_answers
from lgov_core.process.children import VARIABLE
from lgov_core.process.governed import CANNOT_GOVERN, policy_in, say, write_error
from lgov_core.process.invocation import is_interpreter, parse_command
from lgov_core.process.run import RunOptions, changed_lines, refuse_run, run_program
from lgov_core.types import new_id

if TYPE_CHECKING:
    from lgov_core.confine.box import Box, Layers
    from lgov_core.confine.plan import BoxPlan
    from lgov_core.confine.proxy import Attempts, Reach
    from lgov_core.confine.seccomp import RefusedCalls
    from lgov_core.policies import ApprovalRequests
    from lgov_core.policies.confinement import ConfinedPolicy, ConfineRules


_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
#: More places of the same kind are counted, not listed.
MAX_PLACES = 5


def enter_box(options: RunOptions, *, strict: bool = True, preset: str | None = None) -> int | RunOptions:
    """Puts this process, which must have one thread, into a box. Returns twice.

    In the box: the options with absolute paths and the broker's address. Outside, where the record, the approvals and the
    proxy are kept until all in the box has ended: its status. Without a policy file the preset (``workspace`` if none is
    named) stands in the working folder. Raises outside, and nothing stays that runs in the box.
    """
    if sys.platform != "linux":
        raise InstrumentationError(
            f"confinement needs Linux, and this is {sys.platform}",
            hint="run it in a Linux container or virtual machine",
        )
    from lgov_core.confine.layers import make_private_folder
    from lgov_core.policies.confinement import preset_rules, read_confinement

    governance = replace(options.governance, audit=options.governance.audit.absolute())
    options = replace(options, governance=governance)
    confined = None if governance.policy is None else read_confinement(governance.policy)
    for file in (governance.audit, *(Path(store) for store in _stores(confined) if store)):
        make_folder(file.parent)  # what is to be hidden must be there
    if governance.store is not None and Path(governance.store).absolute().parent == governance.audit.parent:
        raise InstrumentationError(
            f"the box shows nothing of the record's folder, {governance.audit.parent}: the trace store cannot be in it",
            hint="name another folder, as in: lgov run --store .traces/traces.db --confine",
        )
    governance.refuse_untrusted()
    rules = preset_rules(preset or "workspace", Path.cwd()) if confined is None else confined.with_preset(preset)
    private = make_private_folder()
    try:
        placed = _start(rules, options, confined, private.path, strict=strict)
    except BaseException:
        private.remove()
        raise
    if isinstance(placed, RunOptions):
        return placed
    try:
        return _run_outside(*placed, options, confined)
    finally:
        private.remove()


def _stores(confined: ConfinedPolicy | None) -> dict[str, list[Mapping[str, Any]]]:
    return confined.approval_stores() if confined is not None else {}


def _requests(store: str, rules: Sequence[Mapping[str, Any]]) -> ApprovalRequests:
    """The requests in a file: an approval holds no longer than the longest ``expires_s`` of its rules says."""
    from lgov_core.policies import ApprovalRequests
    from lgov_core.policies.approvals.answers import Inquiry
    from lgov_core.policies.approvals.notices import Notice

    longest = max(rule.get("expires_s", 3600.0) for rule in rules)  # as `ApprovalPolicy` has it
    notices = [Notice.of("approval", rule.get("command", ()), rule.get("webhook"), store) for rule in rules]
    answered = {str(rule["name"]): Inquiry.of_rule(rule) for rule in rules}
    return ApprovalRequests(store, expires_s=longest, notices=notices, rules=answered)


def _start(
    rules: ConfineRules,
    options: RunOptions,
    confined: ConfinedPolicy | None,
    private: Path,
    *,
    strict: bool,
) -> tuple[Box, BoxPlan, Reach, str] | RunOptions:
    """Makes the box. Returns the options of the program in the program's process, and what the outside needs outside."""
    from lgov_core.confine import box
    from lgov_core.confine.plan import Outside, make_placeholders, make_plan, remove_placeholders
    from lgov_core.confine.proxy import make_reach, model_endpoints

    governance = options.governance
    reach = make_reach(rules, model_endpoints(options.endpoint))
    for name in ("tmp", "home"):
        (private / name).mkdir()
    apart = tuple(str(file) for file in (governance.audit_key, governance.heads) if file is not None)
    outside = Outside(governance.audit, str(private), apart, reach.forwards(), governance.places(), governance.programs)
    plan = make_plan(rules, confined, outside)
    make_placeholders(plan)
    token = secrets.token_hex(16)
    try:
        placed = box.start(plan, strict=strict, ports=[*plan.forwards, 0, 0])
    except BaseException:
        remove_placeholders(plan, governance.audit)
        raise
    if isinstance(placed, box.Box):
        return placed, plan, reach, token
    os.environ.update(dict.fromkeys(_PROXIES, f"http://127.0.0.1:{placed.ports[-1]}"))
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "localhost,127.0.0.1,::1"
    return replace(options, governance=replace(governance, broker=f"{placed.ports[-2]}:{token}"))


def _run_outside(
    placed: Box, plan: BoxPlan, reach: Reach, token: str, options: RunOptions, confined: ConfinedPolicy | None
) -> int:
    """Keeps the record, the approvals and the proxy until the program has ended; returns its status."""
    from lgov_core.confine.broker import BoxBroker
    from lgov_core.confine.plan import remove_placeholders
    from lgov_core.confine.proxy import POLICY, Attempts, Proxy
    from lgov_core.confine.seccomp import RefusedCalls

    with closing(placed.channel), ExitStack() as opened:  # a box that is not released ends
        opened.callback(remove_placeholders, plan, options.governance.audit)
        watch = options.governance.begin_run(options.rollout_id or new_id("run"), plan.places, below=plan.rules.write)
        opened.callback(watch.end)
        options.governance.refuse_untrusted()
        log = options.governance.open_record(*("", "") if confined is None else (confined.digest, confined.mode))
        opened.callback(_close, log)
        stores = {store: _requests(store, asking) for store, asking in _stores(confined).items()}
        answered = list(map(Path, stores))
        record_answers(log, answered)
        attempts = Attempts(log, options.rollout_id)
        rules = {name: value for name, value in asdict(plan.rules).items() if value not in (None, ())}
        layers = placed.layers
        fields = {"strict": layers.strict, "layers": layers.held, "missing": layers.missing, "rules": rules}
        about = {"rollout_id": options.rollout_id, "policy": POLICY, "rule": "box", "reason": _summary(placed.layers)}
        log.append("confinement", {**about, **fields}, arguments=None, content={})
        if placed.layers.missing:
            say(_summary(placed.layers))
        denials = RefusedCalls(log, options.rollout_id)
        if placed.refused is not None:
            denials.serve(placed.refused)
        proxy = Proxy(reach, attempts)
        BoxBroker(log, attempts, stores, token).serve(placed.listeners[-2])
        proxy.serve(placed.listeners[-1])
        for listener, port in zip(placed.listeners[:-2], plan.forwards, strict=False):
            proxy.forward(listener, port)
        placed.release()
        status = placed.wait()
        models = {server: count for server, count in attempts.allowed.items() if server in reach.models()}
        fields |= {"changed": changed_lines(watch, options.governance), "models": models}
        _report(placed.layers, attempts, denials, fields, status, options)
        record_answers(log, answered)
        if not _close(log) and status == 0:
            say(f"status {CANNOT_GOVERN} for that")
            status = CANNOT_GOVERN
    return status


def _close(log: Any) -> bool:
    try:
        log.close()
    except LgovError as error:
        say(str(error))
        return False
    return True


def _summary(layers: Layers) -> str:
    missing = "; ".join(f"without {name} ({why})" for name, why in layers.missing.items())
    held = ", ".join(f"{name} {what}".strip() for name, what in layers.held.items())
    return f"confined at best effort, {missing}: {held}" if missing else f"confined: {held}"


def _report(
    layers: Layers,
    attempts: Attempts,
    denials: RefusedCalls,
    fields: Mapping[str, Any],
    status: int,
    options: RunOptions,
) -> None:
    """Writes what the box held and what was asked of it to standard error. Outside, where the program cannot change it."""
    connections = {"allowed": dict(attempts.allowed), "denied": dict(attempts.denied)}
    if options.as_json:
        write_error(
            json.dumps(
                {"confinement": {**fields, "connections": connections, "refused": denials.counts, "status": status}}
            )
        )
        return
    say(_summary(layers))
    for what, counts in (("allowed", attempts.allowed), ("denied", attempts.denied)):
        if counts:
            say(f"{counted(counts.total(), 'connection')} {what}: {_places(counts)}")
    if models := Counter[str](fields["models"]):
        say(
            f"model servers reached: {_places(models)}, by any program; of those that are not Python no rule saw a request"
        )
    for line in fields["changed"]:
        say(line)
    if denials.counts:
        say(f"{counted(denials.counts.total(), 'system call')} refused: {_places(denials.counts)}")
    if status > 128:
        limits = [name for name in ("memory", "cpu", "file_size") if name in fields["rules"]]
        because = f"; the box limits {', '.join(limits)}" if limits else ""
        say(f"the program was ended by signal {status - 128}{because}")


def _places(counts: Counter[str]) -> str:
    named = [f"{place} ({count})" for place, count in counts.most_common(MAX_PLACES)]
    more = len(counts) - len(named)
    return ", ".join(named) + (f" and {more} further places" if more else "")


#: The option by which a command in a box is given the address of its broker.
BROKER: Final = "--lgov-broker"


def run_confined(command: Sequence[str], options: RunOptions, *, strict: bool, preset: str | None) -> int:
    """Runs ``command`` governed and confined; returns its status, 78 when it could not be confined.

    ``strict`` wants every layer; without it, what there is counts, and the report and the record say what is missing.
    ``preset`` takes the place of the policy file's. Must be called with one thread. Returns in the program's process, too.
    """
    if VARIABLE in os.environ:
        return run_program(command, options)  # which says that it is governed already
    try:
        command = _started_by_python(command)
        invocation = parse_command(command)
        policy = options.governance.policy or policy_in(invocation.folder, invocation.target)
        governance = replace(options.governance.under(policy.absolute()), programs=invocation.files)
        options = replace(options, governance=governance, rollout_id=options.rollout_id or new_id("rol"))
        placed = enter_box(options, strict=strict, preset=preset)
    except Exception as error:  # noqa: BLE001 - whatever is broken here, the program must not run without the box
        return _refuse(error, options)
    return placed if isinstance(placed, int) else run_program(command, placed)


def _started_by_python(command: Sequence[str]) -> Sequence[str]:
    """``command`` as a Python program: another program, which only the box and the endpoint govern, is started by this module.

    Raises `InstrumentationError` for what cannot be run.
    """
    try:
        parse_command(command)
    except InstrumentationError:
        if not command or is_interpreter(command[0]) or shutil.which(command[0]) is None:
            raise
        return ["python", "-m", __name__, "--", *command]
    return command


def command_in_box(
    before: Sequence[str],
    after: Sequence[str] = (),
    *,
    governance: Governance,
    preset: str | None = None,
    endpoint: str | None = None,
) -> list[str]:
    """The command that runs Python with ``before --lgov-broker=ADDRESS after`` in a strict box of its own.

    Its status is that of Python, 78 where the box cannot be had. Without a policy file the preset (``workspace``) stands in
    the working folder. The record of ``governance`` is kept outside. ``endpoint`` is where its models are.
    """
    options = {
        "before": list(before),
        "after": list(after),
        "governance": replace(governance, store=None).as_json(),  # a command line can be read by everyone
        "preset": preset,
        "endpoint": endpoint,
    }
    # -P: the working folder is no place of modules here, from which a box would show it.
    return [sys.executable, "-P", "-m", __name__, json.dumps(options)]


def main() -> None:
    """Entry point of the command of `command_in_box`, and of another program in a box, which follows ``--``."""
    if sys.argv[1] == "--":
        sys.exit(subprocess.call(sys.argv[2:]))
    arguments: Mapping[str, Any] = json.loads(sys.argv[1])
    options = RunOptions(Governance.of_json(arguments["governance"]), endpoint=arguments["endpoint"])
    try:
        placed = enter_box(options, preset=arguments["preset"])
    except Exception as error:  # noqa: BLE001 - as above
        sys.exit(_refuse(error, options))
    if isinstance(placed, int):
        sys.exit(placed)
    os.execv(
        sys.executable,
        [sys.executable, *arguments["before"], f"{BROKER}={placed.governance.broker}", *arguments["after"]],
    )


def _refuse(error: Exception, options: RunOptions) -> int:
    refusal = error if isinstance(error, LgovError) else InstrumentationError(f"{type(error).__name__}: {error}")
    return refuse_run(refusal, options)


if __name__ == "__main__":
    main()
